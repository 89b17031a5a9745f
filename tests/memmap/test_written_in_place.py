"""Small files that a later save writes in place, and when it does not."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap import save as saving
from tensordict_lite.memmap.disk import inplace
from tensordict_lite.memmap.disk.turns import Watch
from tests.memmap.test_crash import STEPS, one_value
from tests.processes import beside, in_child, kill_at, seen_by

ROWS = 5
LEAVES = ("a.memmap", "below/b.memmap", "lazy/0/r.memmap", "lazy/1/r.memmap")


def dataset(value: int) -> TensorDict:
    tree = {
        "a": torch.full((ROWS, 3), value),
        "below": {"b": torch.full((ROWS,), float(value))},
        "lazy": lazy_stack([TensorDict({"r": torch.full((ROWS, n), value)}, [ROWS]) for n in (1, 2)], 1),
        "note": str(value),
    }
    return TensorDict(tree, [ROWS])


def value_at(path: Path) -> int | None:
    """That of the one dataset in a folder, None where there is none."""
    try:
        data = TensorDict.load_memmap(path)
    except DatasetNotFoundError:
        return None
    assert data.batch_size == (ROWS,)
    return one_value(data)


def numbers(path: Path) -> list[int]:
    return [(path / leaf).stat().st_ino for leaf in LEAVES]


def names_below(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    if not os.major(tmp_path.stat().st_dev):
        pytest.skip("the temporary folder is not on a disk of this machine")
    dataset(1).memmap(tmp_path / "d")
    return tmp_path / "d"


def test_files_that_nobody_has_open_stay(path: Path) -> None:
    before, meta, names = numbers(path), (path / "meta.json").stat().st_ino, names_below(path)
    for value in (2, 345, 6):  # the metadata, which hold a text, grow and shrink
        assert dataset(value).memmap(path)["a"].eq(value).all()
        assert value_at(path) == value and numbers(path) == before
        assert (path / "meta.json").stat().st_ino == meta
    assert names_below(path) == names


def page(value: int) -> TensorDict:
    return TensorDict({"x": torch.full((ROWS,), value)}, [ROWS])


def test_a_file_of_one_page_is_written_under_the_metadata_that_are_there(tmp_path: Path, monkeypatch: Any) -> None:
    if not os.major(tmp_path.stat().st_dev):
        pytest.skip("the temporary folder is not on a disk of this machine")
    page(1).memmap(tmp_path / "d")
    before = {file.name: file.stat().st_ino for file in (tmp_path / "d").iterdir()}
    page(2).memmap(tmp_path / "d")
    assert TensorDict.load_memmap(tmp_path / "d")["x"].eq(2).all()
    assert {file.name: file.stat().st_ino for file in (tmp_path / "d").iterdir()} == before

    real, others = inplace.turn_in, [TensorDict({"x": torch.zeros(7, 2, dtype=torch.int16)}, [7])]

    def turn_in(folder: str) -> int:
        if others:
            others.pop().memmap(folder)  # between the look at the metadata and the turn
        return real(folder)

    monkeypatch.setattr(inplace, "turn_in", turn_in)
    page(3).memmap(tmp_path / "d")
    assert not others and TensorDict.load_memmap(tmp_path / "d")["x"].tolist() == [3] * ROWS


@pytest.mark.parametrize("name", ["pwrite", "pread", "open"])
def test_a_page_that_cannot_be_written_stays(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page(1).memmap(tmp_path / "d")
    real = getattr(os, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(os, name, real)
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, name, failing)
    with contextlib.suppress(OSError):
        page(2).memmap(tmp_path / "d")
    assert TensorDict.load_memmap(tmp_path / "d")["x"].tolist() in ([1] * ROWS, [2] * ROWS)
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]


def test_who_watches_the_metadata_finds_others(path: Path) -> None:
    """Metadata of another number tell readers that the dataset is another."""
    with Watch(str(path)) as watch:
        assert watch.is_same()
        dataset(2).memmap(path)
        assert value_at(path) == 2 and not watch.is_same()


def test_a_link_to_the_folder_and_every_layout_of_the_values(path: Path) -> None:
    (path.parent / "link").symlink_to(path)
    before = numbers(path)
    data = dataset(0)
    data["a"] = torch.arange(15).view(3, ROWS).t()
    data["below", "b"] = torch.tensor(7.0).expand(ROWS)
    data.memmap(path.parent / "link")
    again = TensorDict.load_memmap(path)
    assert torch.equal(again["a"], torch.arange(15).view(3, ROWS).t()) and again["below", "b"].eq(7).all()
    assert numbers(path) == before


KINDS = {
    "bfloat16": torch.arange(6).to(torch.bfloat16),
    "complex, conjugated": torch.tensor([1 + 2j, 3 - 1j, 0j]).conj(),
    "negated": torch.tensor([1 + 2j, 3j]).conj().imag,
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3),
    "with a gradient": torch.ones(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "nothing": torch.zeros(0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind(path: Path, kind: str) -> None:
    tree = TensorDict({"x": KINDS[kind], "y": KINDS[kind].detach() * 1, "z": torch.zeros(3)})
    tree.memmap(path.parent / "k")
    tree["z"] = torch.ones(3)
    tree.memmap(path.parent / "k")
    again = TensorDict.load_memmap(path.parent / "k")
    assert torch.equal(again["x"], KINDS[kind].detach()) and torch.equal(again["y"], KINDS[kind].detach())
    assert again["z"].eq(1).all()


# -- where files may not be written -------------------------------------------------------------------------------


def hold_open(path: Path, how: str) -> Any:
    file = path / "a.memmap"
    if how == "mapped by torch":
        return TensorDict.load_memmap(path)
    if how == "mapped copy-on-write":
        return TensorDict.load_memmap(path, mode="r")
    if how == "mapped by numpy":
        return np.memmap(file, dtype=np.int64, mode="r")
    if how == "mapped, closed":
        with open(file, "rb") as opened:
            return mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    if how == "open for reading":
        return open(file, "rb")
    if how == "open for writing":
        return open(file, "r+b")
    code = f"import sys; f = open({str(file)!r}, 'rb'); print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline()
    return other


def first_of(held: Any) -> int:
    if isinstance(held, TensorDict):
        return int(held["a"][0, 0])
    if isinstance(held, np.memmap):
        return int(held[0])
    return int.from_bytes((held[:8] if isinstance(held, mmap.mmap) else os.pread(held.fileno(), 8, 0)), "little")


@pytest.mark.parametrize(
    "how",
    [
        "mapped by torch", "mapped copy-on-write", "mapped by numpy", "mapped, closed", "open for reading",
        "open for writing", "open in another process",
    ],
)  # fmt: skip
def test_who_has_a_file_open_keeps_what_it_has(path: Path, how: str) -> None:
    held = hold_open(path, how)
    before = numbers(path)
    dataset(2).memmap(path)
    assert value_at(path) == 2 and numbers(path)[0] != before[0]
    if how == "open in another process":
        held.communicate()
    else:
        assert first_of(held) == 1


def hard_link(path: Path) -> None:
    os.link(path / "a.memmap", path.parent / "copy")


def make_holes(path: Path) -> None:
    os.truncate(path / "a.memmap", 0)
    os.truncate(path / "a.memmap", ROWS * 3 * 8)


def lengthen(path: Path) -> None:
    os.truncate(path / "a.memmap", 1000)


def forbid(path: Path) -> None:
    (path / "a.memmap").chmod(0o444)


def remove(path: Path) -> None:
    (path / "a.memmap").unlink()


def remove_inner_metadata(path: Path) -> None:
    (path / "below" / "meta.json").unlink()


@pytest.mark.parametrize("change", [hard_link, make_holes, lengthen, forbid, remove, remove_inner_metadata])
def test_other_files_are_replaced(path: Path, change: Callable[[Path], None]) -> None:
    change(path)
    before = (path / "below" / "b.memmap").stat().st_ino
    dataset(2).memmap(path)
    assert value_at(path) == 2 and (path / "below" / "b.memmap").stat().st_ino != before
    if change is hard_link:
        assert np.fromfile(path.parent / "copy", dtype=np.int64).tolist() == [1] * (ROWS * 3)
    assert (path / "a.memmap").stat().st_mode & stat.S_IWUSR


@pytest.mark.parametrize("folder", ["below", "lazy/0"])
def test_a_link_in_place_of_a_folder_is_refused(path: Path, folder: str) -> None:
    outside = path.parent / "outside"
    (path / folder).rename(outside)
    (path / folder).symlink_to(outside)
    before = {file: file.read_bytes() for file in outside.iterdir()}
    with pytest.raises(DatasetError, match="link"):
        dataset(2).memmap(path)
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


def test_no_leases_no_writing_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inplace.fcntl.fcntl

    def refuse(fd: int, command: int, argument: int = 0) -> Any:
        if command == inplace.fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "no leases here")
        return real(fd, command, argument)

    before = numbers(path)
    monkeypatch.setattr(inplace.fcntl, "fcntl", refuse)
    dataset(2).memmap(path)
    assert value_at(path) == 2 and numbers(path) != before


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("not a folder")
    with pytest.raises(NotADirectoryError, match="a dataset is a folder"):
        dataset(1).memmap(tmp_path / "d")


# -- errors, kills, others beside it ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pwrite", "rename", "open", "pread"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken disk"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_fails_in_the_middle_leaves_the_old_dataset(
    path: Path, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, real = names_below(path), getattr(os, name)

    def fails(number: int) -> bool:
        """Saves where the n-th call fails; whether it came to that."""
        calls = iter(range(1, 1000))

        def failing(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                raise error
            return real(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing)
            with contextlib.suppress(type(error)):
                dataset(2).memmap(path)
        return next(calls) > number

    number = 1
    while fails(number):
        assert value_at(path) in (1, 2) and names_below(path) == names, number
        dataset(1).memmap(path)
        number += 1
    assert number > 4 and value_at(path) == 2


def test_killed_at_every_step_it_is_the_old_one_the_new_one_or_none(tmp_path: Path) -> None:
    ended: dict[int | None, int] = {None: 0, 1: 0, 2: 0}
    number, killed = 0, True
    while killed:
        number += 1
        folder = tmp_path / f"d{number}"
        dataset(1).memmap(folder)
        names = names_below(folder)
        killed = kill_at(number, lambda folder=folder: dataset(2).memmap(folder), STEPS)
        ended[value_at(folder)] += 1
        dataset(2).memmap(folder)
        assert value_at(folder) == 2 and names_below(folder) == names
    assert number > 30 and ended[1] > 10 and ended[2] > 1


def test_a_limit_on_the_size_of_files_leaves_the_old_dataset(path: Path) -> None:
    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))
        with pytest.raises(OSError, match="too large"):
            dataset(2).memmap(path)

    names = names_below(path)
    assert in_child(save) == 0
    assert value_at(path) == 1 and names_below(path) == names


def saves(path: Path, values: Iterator[int]) -> Callable[[], Any]:
    """A step that saves the dataset of the next value."""
    return lambda: dataset(next(values)).memmap(path)


def test_a_reader_who_knows_of_no_locks_finds_whole_files(path: Path) -> None:
    """Who opens a file while it is written waits until that is done."""

    def look() -> int:
        with open(path / "a.memmap", "rb") as file:
            (value,) = set(np.frombuffer(file.read(), dtype=np.int64).tolist())
        return value

    with beside(path.parent / "ended", [saves(path, itertools.count(2))]):
        assert len(seen_by(look, 3000, 6)) > 5


def test_readers_and_writers_beside_each_other(path: Path) -> None:
    """Some saves find the files mapped, some do not."""
    with beside(path.parent / "ended", [saves(path, itertools.count(first, 2)) for first in (3, 4)]):
        assert None not in seen_by(lambda: value_at(path), 300, 6)
        kept = TensorDict.load_memmap(path)
        value = one_value(kept)
        for _ in range(50):
            value_at(path)
        assert one_value(kept) == value


def take_leases(*lists: list[Any]) -> None:
    """What the kernel does while a process is stopped and others wait."""
    for _, fd, _ in itertools.chain(*lists):
        inplace.fcntl.fcntl(fd, inplace.fcntl.F_SETLEASE, inplace.fcntl.F_UNLCK)


@pytest.mark.parametrize("moment", ["before it writes", "while it writes"])
def test_who_was_stopped_until_others_had_the_files_writes_none_of_them(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[TensorDict] = []
    real_stale, real_write, real_all, opened = inplace._leased, inplace._write, inplace.write_all, []

    def leased(*args: Any) -> Any:
        opened.append(real_stale(*args))
        if moment == "before it writes" and len(opened) == len(LEAVES):
            take_leases([(*one, None) for one in opened])
            kept.append(torch.from_file(str(path / "a.memmap"), True, ROWS * 3, dtype=torch.int64))
        return opened[-1]

    def write(stack: Any, prefix: str, files: list[Any], *rest: Any) -> None:
        def stopped(*args: Any) -> None:
            monkeypatch.setattr(inplace, "write_all", real_all)
            real_all(*args)
            take_leases(files)
            kept.append(torch.from_file(str(path / LEAVES[1]), True, ROWS, dtype=torch.float32))

        if moment == "while it writes":
            monkeypatch.setattr(inplace, "write_all", stopped)
        real_write(stack, prefix, files, *rest)

    monkeypatch.setattr(inplace, "_leased", leased)
    monkeypatch.setattr(inplace, "_write", write)
    monkeypatch.setattr(inplace, "_longest_wait", lambda: -1, raising=False)
    names = names_below(path)
    dataset(2).memmap(path)
    assert value_at(path) == 2 and names_below(path) == names
    assert [tensor.unique().tolist() for tensor in kept] == [[1]]


def test_a_child_that_was_forked_meanwhile_does_not_keep_others_waiting(path: Path, monkeypatch: Any) -> None:
    real, children = inplace._write, []

    def forking(*args: Any) -> None:
        child = os.fork()
        if child == 0:
            os.read(waiting, 1)
            os._exit(0)
        children.append(child)
        real(*args)

    waiting, go = os.pipe()
    monkeypatch.setattr(inplace, "_write", forking)
    dataset(2).memmap(path)
    monkeypatch.undo()
    assert value_at(path) == 2  # opening a file that the child holds a lease of would take 45 s
    dataset(3).memmap(path)
    assert value_at(path) == 3
    os.write(go, b".")
    os.waitpid(children[0], 0)
    assert saving.may_overwrite([1])
