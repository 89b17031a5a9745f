"""Files of the user's in and beside an output: no writer replaces or removes them, killed or not."""

import itertools
import json
import os
import random
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.datasets import convert, images, read, write
from tensordict_lite import DatasetWriter, Ragged, TensorDict, lazy_stack, load_memmap, tensorclass, unpack_memmap
from tests.cells.kinds import plain
from tests.cells.operations import OPERATIONS, resumable
from tests.processes import in_child, kill_at
from tests.products import sampled


def table(rows: int = 40) -> TensorDict:
    x = torch.arange(rows)
    return TensorDict({"x": x, "g": x % 3, "n": {"y": x.float()}, "s": [f"n{int(i)}" for i in x]}, [rows])


def keep(chunk: Any) -> Any:
    return chunk.clone()


def even(chunk: Any) -> torch.Tensor:
    return chunk["x"] % 2 == 0


Writer = Callable[..., Any]


def called(name: str) -> Writer:
    return lambda out, **o: OPERATIONS[name].call(plain(40), out=out, **o)


ROWS: dict[str, Writer] = {
    **{name: called(name) for name in resumable() if name != "train_test_split"},
    "map, drop": lambda out, **o: tdmap.map(table(), keep, out=out, chunksize=10, on_error="drop", **o),
    "map of strings": lambda out, **o: tdmap.map(table(), keep, out=out, chunksize=10, **o),
    "filtered write": lambda out, **o: table().pipeline().filter(even).write(out, **o),
}
"""Operations that take `rows_per_shard=` and URLs as well."""


def columns() -> TensorDict:
    return TensorDict({"x": torch.arange(40), "s": Ragged.from_list([f"n{i}" for i in range(40)])}, [40])


FOLDERS: dict[str, Writer] = {
    **ROWS,
    "filter of text": lambda out, **o: tdmap.filter(columns(), lambda t: t["x"] > 3, out=out, **o),
    "sort of text": lambda out, **o: tdmap.sort(columns(), "x", out=out, **o),
}
"""Those that write one folder."""


class Users:
    """Files of the user's, and what they are to hold."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("notes.txt", "thesis/chapter1.txt", ".ssh/id")) -> None:
        self.paths = [folder / name for name in names]
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"years of work on {path.name}")
        self.empty = folder / "photos"
        self.empty.mkdir(exist_ok=True)

    def check(self) -> None:
        assert [path.read_text() for path in self.paths] == [f"years of work on {path.name}" for path in self.paths]
        assert self.empty.is_dir()


PLACES: dict[str, Callable[[Path], Users]] = {
    "no dataset": lambda out: Users(out),
    "a dataset": lambda out: (table(5).memmap(out), Users(out))[1],
    "in a nested collection": lambda out: (table(5).memmap(out), Users(out / "n"))[1],
    "in a column of strings": lambda out: (table(5).memmap(out), Users(out / "s"))[1],
    "an older file of tensors": lambda out: (table(5).memmap(out), Users(out, ("z.memmap",)))[1],
    "another dataset below": lambda out: (table(5).memmap(out / "day0"), table(5).memmap(out), Users(out / "day0"))[2],
    "a damaged dataset": lambda out: (table(5).memmap(out), (out / "meta.json").write_text("{"), Users(out))[2],
    "a stack": lambda out: (lazy_stack([table(5), table(6)]).memmap(out), Users(out / "1"))[1],
    "shards": lambda out: (shards(out), Users(out))[1],
    "in a shard": lambda out: (shards(out), Users(next(out.glob("shard-*"))))[1],
}


def shards(out: Path) -> None:
    tdmap.map(table(5), keep, out=out, rows_per_shard=2, num_workers=0)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Leases(tdmap.events.Callback):
    """The chunks that were worked on."""

    done = 0

    def on_lease_done(self, event: Any) -> None:
        self.done += 1


@pytest.mark.parametrize("name, place", sampled(3, [*FOLDERS, *(f"{name} in shards" for name in ROWS)], PLACES))
def test_a_folder_with_other_files_is_refused_before_any_work(name: str, place: str, tmp_path: Path) -> None:
    out, beside, work = tmp_path / "out", Users(tmp_path / "beside"), Leases()
    users = PLACES[place](out)
    before = tree(out)
    run = FOLDERS[name.removesuffix(" in shards")]
    how: dict[str, Any] = {"rows_per_shard": 7} if name.endswith("shards") else {}
    with pytest.raises((FileExistsError, RuntimeError)) as caught:
        run(out, overwrite=True, num_workers=0, callbacks=[work], **how)
    assert str(out) in str(caught.value) and not work.done
    assert tree(out) == before
    users.check()
    beside.check()


@pytest.mark.parametrize("place", PLACES)
def test_a_save_keeps_other_files(place: str, tmp_path: Path) -> None:
    """`memmap` replaces a dataset in any folder."""
    users = PLACES[place](tmp_path / "out")
    table().memmap(tmp_path / "out")
    assert len(TensorDict.load_memmap(tmp_path / "out")) == 40
    users.check()


@pytest.mark.parametrize("name", ROWS)
def test_a_bucket_with_other_files_is_refused_before_any_work(name: str) -> None:
    fs, work = pytest.importorskip("fsspec").filesystem("memory"), Leases()
    fs.pipe("/bucket/other/file", b"x")
    fs.pipe("/bucket/readme", b"y")
    before = fs.find("/bucket")
    try:
        with pytest.raises(FileExistsError, match="other/file, readme"):
            ROWS[name]("memory://bucket", overwrite=True, num_workers=0, callbacks=[work])
        assert fs.find("/bucket") == before and not work.done
    finally:
        fs.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    "kind", ["plain", "tensorclass", "stack", "shards", "strings", "pictures", "table", "checksums"]
)
@pytest.mark.parametrize("into", ["folder", "shards"])
def test_every_kind_of_dataset_is_replaced_whole(kind: str, into: str, tmp_path: Path) -> None:
    out, how = tmp_path / "out", {"rows_per_shard": 7} if into == "shards" else {}
    if kind == "shards" and into == "folder":
        pytest.skip("a folder does not take the place of shards")
    make_kind(kind, out, tmp_path)
    tdmap.map(table(), keep, out=out, num_workers=0, overwrite=True, **how)
    assert len(tdmap.open(out)) == 40
    left = {name.partition("/")[0] for name in tree(out)}
    known = {"meta.json", "x.memmap", "g.memmap", "n", "s"} if into == "folder" else {"shards.json"}
    assert {name for name in left if not name.startswith(("shard-", ".tdmap"))} == known
    assert sorted(os.listdir(tmp_path)) == ["out", *(["pictures"] if kind == "pictures" else [])]


@tensorclass
class Sample:
    x: torch.Tensor
    text: str


def make_kind(kind: str, out: Path, scratch: Path) -> None:
    if kind == "tensorclass":
        Sample(x=torch.arange(4), text="a", batch_size=[4]).memmap(out)
    elif kind == "stack":
        lazy_stack([TensorDict({"r": torch.zeros(3, n + 1)}, [3]) for n in range(3)], 0).memmap(out)
    elif kind == "shards":
        shards(out)
    elif kind == "strings":
        data = TensorDict({"s": [f"word {n}" for n in range(5000)], "o": [{"a": n} for n in range(5000)]}, [5000])
        data.memmap(out, reference_format=False)
    elif kind == "pictures":
        image = pytest.importorskip("PIL.Image")
        (scratch / "pictures" / "cats").mkdir(parents=True)
        image.new("RGB", (8, 8)).save(scratch / "pictures" / "cats" / "a.png")
        images.ingest(scratch / "pictures", out, size=4, num_workers=0)
    elif kind == "table":
        columns().save(out)
    else:
        table().memmap(out)
        if kind == "checksums":
            load_memmap(out).checksum()


def test_a_file_that_appears_while_a_dataset_is_replaced_stays(tmp_path: Path) -> None:
    for how in ({}, {"rows_per_shard": 7}):
        out = tmp_path / f"out{len(how)}"
        tdmap.map(table(), keep, out=out, num_workers=0, **how)
        found: list[Users] = []

        def fn(chunk: Any, out: Path = out, found: list[Users] = found) -> Any:
            if not found:
                found.append(Users(out))
            return chunk.clone()

        tdmap.map(table(), fn, out=out, num_workers=0, overwrite=True, **how)
        found[0].check()
        assert len(tdmap.open(out)) == 40


def test_a_part_of_another_dataset_and_the_working_directory_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table().memmap(tmp_path / "root")
    shards(tmp_path / "shards")
    for out in (tmp_path / "root" / "n", next((tmp_path / "shards").glob("shard-*"))):
        for how in ({}, {"rows_per_shard": 7}):
            with pytest.raises(FileExistsError, match="is a part of the dataset in"):
                tdmap.map(table(), keep, out=out, num_workers=0, overwrite=True, **how)
    monkeypatch.chdir(tmp_path / "root")
    with pytest.raises(FileExistsError, match="is the working directory"):
        tdmap.map(table(), keep, out=".", num_workers=0, overwrite=True)
    assert len(load_memmap(tmp_path / "root")) == 40 and len(tdmap.open(tmp_path / "shards")) == 5


# -- Zarr stores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", "x/notes.txt", "x/c/notes.txt", "group/zarr.txt"])
def test_a_zarr_store_with_other_files_is_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    write(table().select("x", "g"), tmp_path / "f.zarr")
    write(table(3).select("x", "g"), tmp_path / "f.zarr")
    assert len(read(tmp_path / "f.zarr")) == 3 and os.listdir(tmp_path) == ["f.zarr"]
    users = Users(tmp_path / "f.zarr", (name,))
    with pytest.raises(FileExistsError, match=name):
        write(table().select("x"), tmp_path / "f.zarr")
    users.check()
    assert len(read(tmp_path / "f.zarr")) == 3


# -- kills -------------------------------------------------------------------------------------------------------------


def write_rows(out: Path) -> None:
    with DatasetWriter(out, table(1)[0].select("x", "n")) as writer:
        for start in range(0, 40, 10):
            writer.append(table()[start : start + 10].select("x", "n"))
            writer.flush()
    DatasetWriter(out).finalize()


def unpack(out: Path) -> None:
    table().save(out.with_name("packed.tdz"))
    unpack_memmap(out.with_name("packed.tdz"), out)


FILES: dict[str, Writer] = {
    f"write {ending}": lambda out, ending=ending: write(table().select("x", "g"), out.with_name(f"out.{ending}"))
    for ending in ("csv", "jsonl", "parquet", "arrow", "npz", "h5", "zarr")
}
KILLED: dict[str, Writer] = {
    **{name: lambda out, run=run: run(out, overwrite=True, num_workers=0) for name, run in FOLDERS.items()},
    **{
        f"{name} in shards": lambda out, run=run: run(out, overwrite=True, num_workers=0, rows_per_shard=7)
        for name, run in ROWS.items()
    },
    **FILES,
    "map, resume": lambda out: tdmap.map(table(), keep, out=out, num_workers=0, resume=True, chunksize=10),
    "map, resume, in shards": lambda out: tdmap.map(
        table(), keep, out=out, num_workers=0, resume=True, rows_per_shard=7
    ),
    "sort, resume": lambda out: tdmap.sort(table(), "x", out=out, num_workers=0, resume=True),
    "map, workers": lambda out: tdmap.map(table(), keep, out=out, num_workers=2, overwrite=True, rows_per_shard=7),
    "DatasetWriter": lambda out: write_rows(out),
    "unpack": lambda out: unpack(out),
    "save": lambda out: table().save(out.with_name("out.tdz")),
    "convert": lambda out: convert(out.with_name("source.csv"), out, overwrite=True, num_workers=0),
}
STEPS = [(os, name) for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "open", "pwrite", "ftruncate")]
"""What changes names, where a kill may leave an output between two states."""


def prepared(folder: Path, name: str) -> tuple[Path, list[Users]]:
    """A folder with an older output of the writer, and files of the user's beside it."""
    out = folder / "out"
    folder.mkdir(parents=True, exist_ok=True)
    write(table().select("x", "g"), folder / "source.csv")
    users = [Users(folder), Users(folder / ".out"), Users(folder / "out.old", (".tdmap", "meta.json"))]
    if not name.endswith("resume") and "resume" not in name and name not in ("DatasetWriter", *FILES):
        in_child(lambda: KILLED[name](out))
    return out, users


def check(folder: Path, users: list[Users], late: list[Users]) -> None:
    for one in (*users, *late):
        one.check()


def finish(name: str, out: Path, users: list[Users], late: list[Users]) -> None:
    """Call again: it refuses because of the user's files, or comes to its end and leaves nothing of a killed call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            KILLED[name](out)
        except FileExistsError:
            assert late, name
            check(out.parent, users, late)
            return
    check(out.parent, users, late)
    left = [path for path in out.parent.iterdir() if "tdlite" in path.name or ".tdmap-new" in path.name]
    assert not left, left


def put_late(folder: Path, out: Path, chance: random.Random) -> list[Users]:
    """Files that the user puts into the output of a killed call."""
    if not out.is_dir() or chance.random() < 0.5:
        return []
    return [Users(out, ("late.txt", "more/late.txt"))]


def kill_steps(name: str, folder: Path, steps: Iterator[int]) -> int:
    kills, chance = 0, random.Random(name)
    for number in steps:
        place = folder / f"{number}"
        out, users = prepared(place, name)
        if not kill_at(number, lambda out=out: KILLED[name](out), STEPS):
            check(place, users, [])
            return kills
        kills += 1
        check(place, users, [])
        late = put_late(place, out, chance)
        finish(name, out, users, late)
    return kills


@pytest.mark.parametrize(
    "name", ["map", "map in shards", "sort in shards", "write csv", "DatasetWriter", "map, resume"]
)
def test_kills_touch_no_file_of_the_users(name: str, tmp_path: Path) -> None:
    assert kill_steps(name, tmp_path, iter(range(1, 60, 13)))


def fails_first(chunk: Any) -> Any:
    if int(chunk["x"][0]) < 20:
        raise ValueError("no row")
    return chunk.clone()


@pytest.mark.parametrize("resume", [False, True])
def test_a_kill_between_the_manifest_and_the_end_loses_no_shard(resume: bool, tmp_path: Path) -> None:
    """Some shards are empty, and are removed after the manifest is there."""
    how: dict[str, Any] = {"num_workers": 0, "rows_per_shard": 5, "chunksize": 5, "on_error": "drop"}

    def run(out: Path, **more: Any) -> Any:
        return tdmap.map(table(), fails_first, out=out, **how, **more)

    steps, number, killed, whole = [(os, "unlink"), (os, "replace"), (os, "rmdir")], 0, True, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while killed:
            number += 13
            out = tmp_path / f"{number}"
            killed = kill_at(number, lambda out=out: run(out, resume=resume), steps)
            if (out / "shards.json").exists():
                whole += killed
                assert tdmap.open(out)["x"].tolist() == list(range(20, 40))
                again = run(out, resume=True) if resume else run(out, overwrite=True)
            else:
                again = run(out, resume=resume)
            assert again["x"].tolist() == list(range(20, 40))
            assert len(list(out.glob("shard-*"))) == len(json.loads((out / "shards.json").read_text())["shards"])
    assert whole


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_kills_touch_no_file_of_the_users(tmp_path: Path) -> None:
    """By step, and a third of them at a random instant."""
    chance, kills = random.Random(0), 0
    for name in (name for name in KILLED if name != "map, workers"):  # which take a driver's steps, and its kill
        kills += kill_steps(name, tmp_path / name, iter(sorted(chance.sample(range(1, 150), 12))))
    for number in itertools.count():
        if kills >= 500:
            break
        name = chance.choice([*KILLED])
        place = tmp_path / f"at random {number}"
        out, users = prepared(place, name)
        child = os.fork()
        if child == 0:
            KILLED[name](out)
            os._exit(0)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        check(place, users, [])
        finish(name, out, users, put_late(place, out, chance))
    print(f"{kills} kills")


def rows_with_text(count: int) -> TensorDict:
    words = Ragged.from_list([f"w{number}" for number in range(count)])
    x = torch.arange(count)
    return TensorDict({"x": x, "w": words, "in": {"y": x, "v": words.clone()}}, [count])


def one_column(data: TensorDict, out: Path) -> None:
    saved = TensorDict.load_memmap(out)
    saved.set("x", saved["x"] + 1).memmap(out)


REPLACE = {
    "memmap": lambda data, out: data.memmap(out),
    "memmap of one column": one_column,
    "map": lambda data, out: tdmap.map(data, lambda rows: rows, out=out, overwrite=True, num_workers=0),
    "sort": lambda data, out: tdmap.sort(data, "x", out=out, overwrite=True, num_workers=0),
    "flat_map": lambda data, out: tdmap.flat_map(data, lambda rows: rows, out=out, overwrite=True, num_workers=0),
}


@pytest.mark.parametrize("modes", [(0o700, 0o600), (0o770, 0o660), (0o755, 0o600)], ids=lambda modes: f"{modes[0]:o}")
@pytest.mark.parametrize("name", REPLACE)
def test_a_replaced_dataset_keeps_its_permissions(tmp_path, name, modes):
    out = tmp_path / "out"
    rows_with_text(5).memmap(out)
    for path in [out, *out.rglob("*")]:
        path.chmod(modes[path.is_file()])
    REPLACE[name](rows_with_text(9), out)
    found = {
        str(path): stat.S_IMODE(path.stat().st_mode) for path in [out, *out.rglob("*")] if ".tdmap" not in str(path)
    }
    assert found == {name: modes[os.path.isfile(name)] for name in found}
