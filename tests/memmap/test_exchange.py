"""A save over a dataset: the old or the new one is there, whole, at every moment; and where that cannot be had."""

import errno
import itertools
import mmap
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensordict_lite as lib
from tensordict_lite import TensorClass, TensorDict, lazy_stack
from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.memmap.checksum import store
from tensordict_lite.memmap.disk import staging
from tests.memmap.test_crash import STEPS, one_value
from tests.memmap.trees import leaves
from tests.mounts import as_nobody, mounted, needs_root
from tests.processes import beside, in_child, kill_at, seen_by

ROWS = 5
EVERY_STEP = [*STEPS, (os, "link"), (os, "chmod"), (staging, "_exchanged"), (os, "rmdir")]


class Pair(TensorClass):
    x: torch.Tensor
    kept: torch.Tensor


def dataset(value: int) -> TensorDict:
    tree = {
        "a": torch.full((ROWS, 3), value),
        "below": {"b": torch.full((ROWS,), float(value)), f"only{value % 2}": torch.full((ROWS,), value)},
        "lazy": lazy_stack([TensorDict({"r": torch.full((ROWS, n), value)}, [ROWS]) for n in (1, 2)], 1),
        "note": str(value),
    }
    return TensorDict(tree, [ROWS])


def names_below(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


@pytest.mark.parametrize("beside", ["notes.txt", ".tdmap/lock"])
@pytest.mark.parametrize("save", [TensorDict.memmap, TensorDict.memmap_like])
def test_a_save_leaves_no_folders_of_entries_that_are_gone(tmp_path: Path, save: Any, beside: str) -> None:
    dataset(0).memmap(tmp_path / "a")
    for folder in (tmp_path / "a", tmp_path / "b"):
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text("mine")
    for folder in (tmp_path / "a", tmp_path / "b"):
        save(dataset(0).select("a"), folder)
    found, fresh = names_below(tmp_path / "a"), names_below(tmp_path / "b")
    assert [name for name in found if not name.startswith(".tdmap")] == [n for n in fresh if not n.startswith(".tdmap")]


def save_all(path: Path, value: int) -> None:
    dataset(value).memmap(path)


def unpack(path: Path, value: int) -> None:
    if value == 1:
        return save_all(path, 1)
    dataset(value).save(path.with_suffix(".tdz"))
    lib.unpack_memmap(path.with_suffix(".tdz"), path)


def change_an_entry(path: Path, value: int) -> None:
    """One entry of a mapped dataset is another tensor, the rest is in its files already."""
    data = TensorDict.load_memmap(path).unlock_() if path.exists() else TensorDict(batch_size=[ROWS])
    data["x"] = torch.full((ROWS, 3), value)
    data["meta", "kept"] = data.get(("meta", "kept"), torch.arange(ROWS))
    data.memmap_(path)


def change_an_entry_below(path: Path, value: int) -> None:
    data = TensorDict.load_memmap(path).unlock_() if path.exists() else TensorDict(batch_size=[ROWS])
    data["kept"] = data.get("kept", torch.arange(ROWS))
    data["below", "x"] = torch.full((ROWS, 3), value)
    data.memmap_(path)


def change_a_field(path: Path, value: int) -> None:
    data = Pair.load_memmap(path).unlock_() if path.exists() else Pair(x=torch.zeros(()), kept=torch.arange(ROWS))
    data.x = torch.full((ROWS, 3), value)
    data.memmap_(path)


def change_the_note(path: Path, value: int) -> None:
    data = TensorDict.load_memmap(path).unlock_() if path.exists() else TensorDict({"kept": torch.arange(ROWS)}, [ROWS])
    data["note"] = str(value)
    data.memmap_(path)


def change_a_part(path: Path, value: int) -> None:
    if not path.exists():
        change_an_entry_below(path, value)
    TensorDict({"x": torch.full((ROWS, 3), value)}, [ROWS]).memmap(path / "below")


SAVES = [save_all, unpack, change_an_entry, change_an_entry_below, change_a_field, change_the_note, change_a_part]


def values_of(data: Any) -> list[Any]:
    return [leaf.tolist() for leaf in leaves(data)]


def value_at(path: Path) -> int:
    """The value of the one dataset in a folder."""
    data = TensorDict.load_memmap(path)
    for kept in [data.get(key, None) for key in ("kept", *([("meta", "kept")] if "meta" in data.keys() else []))]:
        assert kept is None or kept.tolist() == list(range(ROWS))
    if "lazy" in data.keys():
        assert f"only{one_value(data) % 2}" in data["below"].keys()
        return one_value(data)
    if data.get("note", None) is not None:
        return int(data["note"])
    x = data.get("x", None)
    (value,) = (data["below", "x"] if x is None else x).unique().tolist()
    return value


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 9])
@pytest.mark.parametrize("save", SAVES)
def test_killed_at_any_step_the_old_or_the_new_one_is_there(
    tmp_path: Path, save: Callable[[Path, int], None], every: int
) -> None:
    found, number, killed = [], 1 - every, True
    while killed:
        number += every
        path = tmp_path / f"d{number}"
        save(path, 1)
        killed = kill_at(number, lambda path=path: save(path, 2), EVERY_STEP)
        found.append(value_at(path))
        assert killed or found[-1] == 2
        names = names_below(path)
        save(path, 3)
        assert value_at(path) == 3
        assert [name.replace("only1", "only0") for name in names_below(path) if "tdlite" not in name] == [
            name.replace("only1", "only0") for name in names if "tdlite" not in name
        ]
        assert not [name for name in names_below(tmp_path) if "tdlite" in name], number
        shutil.rmtree(path)
    assert number > 8 and set(found) == {1, 2} and found == sorted(found)


@pytest.mark.parametrize("save", SAVES)
def test_a_reader_beside_a_save_finds_one_dataset(tmp_path: Path, save: Callable[[Path, int], None]) -> None:
    path, values = tmp_path / "d", itertools.count(2)
    save(path, 1)
    kept = TensorDict.load_memmap(path)
    before = values_of(kept)
    with beside(tmp_path / "ended", [lambda: save(path, next(values))]):
        assert len(seen_by(lambda: value_at(path), 300, 6)) > 5
    assert values_of(kept) == before


def test_a_program_that_knows_no_locks_finds_whole_files(tmp_path: Path) -> None:
    path, values = tmp_path / "d", itertools.count(2)
    dataset(1).memmap(path)

    def look() -> int:
        (value,) = set(np.fromfile(path / "a.memmap", dtype=np.int64).tolist())
        return value

    with beside(tmp_path / "ended", [lambda: dataset(next(values)).memmap(path)]):
        assert len(seen_by(look, 3000, 6)) > 5


# -- what belonged to the old dataset, and what did not -----------------------------------------------------------


def exchanged(path: Path) -> None:
    """Nothing is in the way."""


def file_by_file(path: Path) -> None:
    (path / "notes.txt").write_text("mine")


@pytest.mark.parametrize("way", [exchanged, file_by_file])
def test_what_belonged_to_the_old_dataset_goes_with_it(tmp_path: Path, way: Callable[[Path], None]) -> None:
    path = tmp_path / "d"
    dataset(1).memmap(path)
    store(path)
    (path / ".tdmap").mkdir()
    (path / ".tdmap" / "journal").write_bytes(b"of the old rows")
    way(path)
    TensorDict({"a": torch.zeros(ROWS)}, [ROWS]).memmap(path)
    files = {name for name in names_below(path) if not (path / name).is_dir()} - {"notes.txt"}
    assert files == {"a.memmap", "meta.json"} and not (path / ".tdmap").exists()
    assert way is exchanged or (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["pictures.json", "columns.json", "shards.json"])
def test_files_that_a_format_lays_beside_the_dataset_stay(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d"
    dataset(1).memmap(path)
    (path / name).write_text('{"shards": []}')
    (path / "files").mkdir()
    (path / "files" / "1.jpg").write_bytes(b"a picture")
    dataset(2).memmap(path)
    assert value_at(path) == 2 and (path / name).exists() and (path / "files" / "1.jpg").exists()


def hold_open(file: Path, how: str) -> Any:
    if how == "mapped by torch":
        return TensorDict.load_memmap(file.parent)["a"]
    if how == "mapped copy-on-write":
        return TensorDict.load_memmap(file.parent, mode="r")["a"]
    if how == "mapped by numpy":
        return np.memmap(file, dtype=np.int64, mode="r")
    if how == "hard link":
        os.link(file, file.parent.parent / "copy")
        return np.memmap(file.parent.parent / "copy", dtype=np.int64, mode="r")
    opened = open(file, "r+b")
    return opened if how == "open for writing" else mmap.mmap(opened.fileno(), 0)


@pytest.mark.parametrize("way", [exchanged, file_by_file])
@pytest.mark.parametrize(
    "how",
    ["mapped by torch", "mapped copy-on-write", "mapped by numpy", "hard link", "mapped by mmap", "open for writing"],
)
def test_an_open_file_keeps_the_old_rows(tmp_path: Path, way: Callable[[Path], None], how: str) -> None:
    dataset(1).memmap(tmp_path / "d")
    way(tmp_path / "d")
    held = hold_open(tmp_path / "d" / "a.memmap", how)
    dataset(2).memmap(tmp_path / "d")
    assert value_at(tmp_path / "d") == 2
    read = held.read() if hasattr(held, "read") else np.asarray(held).tobytes()
    assert set(np.frombuffer(read, dtype=np.int64).tolist()) == {1}


def test_entries_that_stay_are_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "d"
    change_an_entry(path, 1)
    old = TensorDict.load_memmap(path)
    data = TensorDict.load_memmap(path).unlock_()
    data["x"] = torch.zeros(ROWS, 3)
    data.memmap_(path)
    assert (path / "meta" / "kept.memmap").stat().st_nlink == 1
    data["meta", "kept"][0] = 7  # in all that map the file
    assert old["meta", "kept"][0] == 7 == TensorDict.load_memmap(path)["meta", "kept"][0]
    assert old["x"].eq(1).all()


# -- where a folder cannot be exchanged -----------------------------------------------------------------------------


def no_such_call(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staging, "_renameat2", lambda: None)


def working_directory(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(path)


def below_the_working_directory(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(path / "below")


def user_file(path: Path, patch: pytest.MonkeyPatch) -> None:
    (path / "below" / "notes.txt").write_text("mine")


def no_hard_links(path: Path, patch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    patch.setattr(os, "link", refuse)


def other_owner(path: Path, patch: pytest.MonkeyPatch) -> None:
    real = os.chmod

    def refuse(place: Any, *args: Any, **options: Any) -> None:
        if os.path.isdir(place):
            raise PermissionError(errno.EPERM, "not the owner")
        real(place, *args, **options)

    path.chmod(0o775)
    patch.setattr(os, "chmod", refuse)


def mount_point(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os.path, "ismount", lambda folder: str(folder) == str(path))


WAYS = [
    no_such_call, working_directory, below_the_working_directory, user_file, no_hard_links, other_owner, mount_point,
]  # fmt: skip


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_cannot_be_exchanged_stays_and_its_files_are_replaced(
    tmp_path: Path, way: Callable[..., None], save: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    save(path, 1)
    (path / "below").mkdir(exist_ok=True)
    kept, before = TensorDict.load_memmap(path), os.stat(path).st_ino
    values = values_of(kept)
    way(path, monkeypatch)
    save(path, 2)
    assert value_at(path) == 2 and values_of(kept) == values
    assert not [name for name in names_below(tmp_path) if "tdlite" in name]
    assert os.stat(path).st_ino == before or way in (no_hard_links, below_the_working_directory)
    assert os.getcwd()  # it is there
    if way is user_file:
        assert (path / "below" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 9])
@pytest.mark.parametrize("way", [user_file, mount_point])
def test_file_by_file_a_kill_leaves_the_old_one_the_new_one_or_none(
    tmp_path: Path, way: Callable[..., None], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int | None] = []
    number, killed = 0, True
    while killed:
        number += every
        path = tmp_path / f"d{number}"
        dataset(1).memmap(path)
        with monkeypatch.context() as patch:
            way(path, patch)
            killed = kill_at(number, lambda path=path: dataset(2).memmap(path), STEPS)
            try:
                found.append(value_at(path))
            except DatasetNotFoundError:
                found.append(None)
                assert not (path / "meta.json").exists()  # that of the root is the last that is written
            dataset(3).memmap(path)
        assert value_at(path) == 3
        assert not [name for name in names_below(tmp_path) if "tdlite" in name]
        assert way is not user_file or (path / "below" / "notes.txt").read_text() == "mine"
    assert set(found) == {1, None, 2} and number > 20


@needs_root
@pytest.mark.parametrize("options", [["-t", "tmpfs", "none"], ["--bind", "{beside}"]], ids=["tmpfs", "bind"])
def test_a_mounted_folder(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "beside").mkdir()
    with mounted(tmp_path / "d", *[option.format(beside=tmp_path / "beside") for option in options]) as path:
        for value in (1, 2):
            dataset(value).memmap(path)
            assert value_at(path) == value
        change_an_entry(path, 3)
        assert TensorDict.load_memmap(path)["x"].eq(3).all()
        assert sorted(os.listdir(tmp_path)) == ["beside", "d"]
        assert not [name for name in names_below(path) if "tdlite" in name]


@needs_root
def test_a_user_who_may_not_write_beside_the_folder(request: pytest.FixtureRequest) -> None:
    parent = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(parent))
    parent.chmod(0o755)
    path = parent / "d"
    dataset(1).memmap(path)
    for file in (path, *path.rglob("*")):
        os.chown(file, 65534, 65534)

    def save() -> None:
        dataset(2).memmap(path)
        path.chmod(0o555)
        with pytest.raises(PermissionError):
            dataset(3).memmap(path)

    as_nobody(save)
    assert value_at(path) == 2
    assert os.listdir(parent) == ["d"]


# -- the folder itself ----------------------------------------------------------------------------------------------


def test_permissions_owner_and_attributes_of_folders_stay(tmp_path: Path) -> None:
    path = tmp_path / "d"
    dataset(1).memmap(path)
    path.chmod(0o2770)
    (path / "below").chmod(0o750)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    with_attributes = True
    try:
        os.setxattr(path, "user.note", b"mine")
    except (AttributeError, OSError):
        with_attributes = False
    before = os.stat(path)
    dataset(2).memmap(path)
    after = os.stat(path)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino and stat.S_IMODE(os.stat(path / "below").st_mode) & 0o777 == 0o750
    assert os.stat(path / "a.memmap").st_gid == after.st_gid  # the group of the folder is that of its files
    assert not with_attributes or os.getxattr(path, "user.note") == b"mine"


@pytest.mark.parametrize(("error", "exchanges"), [(errno.ENOTSUP, True), (errno.EACCES, False)])
def test_folders_whose_attributes_cannot_be_read_are_exchanged_only_where_there_are_none(
    tmp_path: Path, error: int, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise OSError(error, os.strerror(error), path)

    path = tmp_path / "d"
    dataset(1).memmap(path)
    before = os.stat(path).st_ino
    monkeypatch.setattr(os, "listxattr", refuse, raising=False)
    dataset(2).memmap(path)
    assert value_at(path) == 2 and (os.stat(path).st_ino != before) is exchanges


def test_a_file_that_appears_while_folders_are_exchanged_stays(tmp_path: Path, monkeypatch: Any) -> None:
    path, real = tmp_path / "d", staging._exchanged
    dataset(1).memmap(path)

    def late(new: str, place: str) -> bool:
        (path / "below" / "notes.txt").write_text("mine")
        return real(new, place)

    monkeypatch.setattr(staging, "_exchanged", late)
    dataset(2).memmap(path)
    assert value_at(path) == 2 and (path / "below" / "notes.txt").read_text() == "mine"
    (path / "below" / "notes.txt").unlink()

    def save() -> None:
        monkeypatch.setattr(staging, "put_away", lambda *args: os._exit(0))
        dataset(3).memmap(path)

    assert in_child(save) == 0
    monkeypatch.setattr(staging, "_exchanged", real)
    dataset(4).memmap(path)
    assert value_at(path) == 4 and (path / "below" / "notes.txt").read_text() == "mine"


def test_the_folder_is_exchanged_on_this_machine(tmp_path: Path) -> None:
    """Else the tests above show nothing."""
    if sys.platform != "linux":
        pytest.skip("RENAME_EXCHANGE is of Linux")
    dataset(1).memmap(tmp_path / "d")
    before = os.stat(tmp_path / "d").st_ino
    dataset(2).memmap(tmp_path / "d")
    assert os.stat(tmp_path / "d").st_ino != before
