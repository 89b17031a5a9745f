"""`overwrite=True`: the dataset of a folder is replaced, by every operation, when the new one is whole."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.errors import FolderInUse
from tensordict_lite import TensorDict
from tests import interpreters
from tests.cells.operations import OPERATIONS as CELLS
from tests.cells.operations import resumable
from tests.processes import meanwhile
from tests.products import sampled


def table() -> TensorDict:
    x = torch.arange(20)
    return TensorDict({"x": x, "k": x % 3, "s": [f"n{int(i)}" for i in x]}, [20])


def of_cells(name: str) -> Callable[..., Any]:
    return lambda data, out, **options: CELLS[name].call(data, out=out, **options)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: of_cells(name) for name in resumable() if name != "train_test_split"},  # which writes two
    "map, drop": lambda data, out, **options: tdmap.map(data, lambda c: c, out=out, on_error="drop", **options),
    "write, growing": lambda data, out, **options: data.pipeline().filter(lambda c: c["x"] > 3).write(out, **options),
}


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def rows(data: TensorDict) -> str:
    values = {
        key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in data.to_dict().items()
    }
    return str((values, data.batch_size))


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_new_dataset_takes_the_place_of_the_old_one(name: str, tmp_path: Path) -> None:
    run, options = OPERATIONS[name], {"num_workers": 2}
    fresh = run(table(), tmp_path / "fresh", **options)
    TensorDict({"old": torch.zeros(5), "deep": {"s": ["a"] * 5}}, [5]).memmap(tmp_path / "out")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        run(table(), tmp_path / "out", **options)
    for out in (tmp_path / "out", str(tmp_path / "out"), tmp_path / "new"):
        result = run(table(), out, overwrite=True, **options)
        assert rows(result) == rows(fresh) == rows(TensorDict.load_memmap(out))
        assert tree(Path(out)) == tree(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "new", "out"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dataset_whose_run_was_killed_while_it_moved_its_files_is_replaced(name: str, tmp_path: Path) -> None:
    run, out = OPERATIONS[name], tmp_path / "out"
    hidden = out / ".tdmap"
    table().memmap(out)
    (hidden / "data").mkdir(parents=True)
    os.replace(out / "meta.json", hidden / "data" / "meta.json")
    (hidden / "moving").touch()
    fresh = run(table(), tmp_path / "fresh", num_workers=0)
    assert rows(run(table(), out, overwrite=True, num_workers=0)) == rows(fresh) == rows(TensorDict.load_memmap(out))
    assert tree(out) == tree(tmp_path / "fresh")


@pytest.mark.parametrize("name, shards", sampled(2, OPERATIONS, [{}, {"rows_per_shard": 5}]))
def test_two_calls_that_replace_one_dataset_do_not_disturb_each_other(
    name: str, shards: dict[str, int], tmp_path: Path
) -> None:
    out, done = tmp_path / "out", 0
    fresh = OPERATIONS[name](table(), tmp_path / "fresh", num_workers=0)
    table().memmap(out)

    def second() -> None:
        nonlocal done
        with contextlib.suppress(FolderInUse):
            OPERATIONS[name](table(), out, overwrite=True, num_workers=0)
            done += 1

    with meanwhile(second, [(os, "unlink"), (os, "rmdir"), (os, "replace")]):
        result = OPERATIONS[name](table(), out, overwrite=True, num_workers=0, **shards)
    assert done <= 1  # when the first one has let go of the folder
    assert rows(result[:].clone()) == rows(fresh.clone()) == rows(tdmap.open(out)[:].clone())
    assert tree(out) == tree(tmp_path / "fresh") or (shards and not done)
    assert sorted(os.listdir(tmp_path)) == ["fresh", "out"]


@pytest.mark.parametrize("name, shards", sampled(2, OPERATIONS, [{}, {"rows_per_shard": 5}]))
def test_the_folder_that_is_read_is_not_replaced(name: str, shards: dict[str, int], tmp_path: Path) -> None:
    data = table().memmap(tmp_path / "above" / "data")
    (tmp_path / "link").symlink_to("above/data")
    before = tree(tmp_path)
    for out, found in (("above/data", "is the folder of"), ("link", "is the folder of"), ("above", "below it")):
        with pytest.raises(FileExistsError, match=f"{found}.*data"):
            OPERATIONS[name](data, tmp_path / out, overwrite=True, num_workers=0, **shards)
    assert tree(tmp_path) == before
    assert rows(TensorDict.load_memmap(tmp_path / "above" / "data")) == rows(table())


def test_a_pipeline_does_not_replace_a_part_or_a_cache_of_its_own(tmp_path: Path) -> None:
    data, other = table().memmap(tmp_path / "data"), table()
    joined = other.pipeline().concat(data.pipeline())
    with pytest.raises(FileExistsError, match="is the folder of the data"):
        joined.write(tmp_path / "data", overwrite=True)
    cached = other.pipeline().cache(tmp_path / "cache").map(lambda c: c)
    for _ in range(2):
        with pytest.raises(FileExistsError, match="is the folder of the data"):
            cached.write(tmp_path / "cache", overwrite=True)
        cached.collect()


def test_an_old_dataset_stays_whole_until_the_new_one_is(tmp_path: Path) -> None:
    old = table().memmap(tmp_path / "out")

    def fail(chunk: TensorDict) -> TensorDict:
        if chunk["x"][-1] > 15:
            raise ValueError("no")
        return chunk

    with pytest.raises(ValueError, match="no"):
        tdmap.map(table(), fail, out=tmp_path / "out", overwrite=True, num_workers=2, chunksize=2)
    assert os.listdir(tmp_path) == ["out"]
    assert rows(TensorDict.load_memmap(tmp_path / "out")) == rows(table())

    code = """
import os, signal, sys, torch, tdmap
from tensordict_lite import TensorDict
def die(chunk):
    if chunk["x"][-1] > 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk + 1
data = TensorDict({"x": torch.arange(20)}, [20])
tdmap.map(data, die, out=sys.argv[1], overwrite=True, num_workers=0, chunksize=2)
"""
    assert interpreters.run(["-c", code, str(tmp_path / "out")]).returncode == -9
    assert rows(TensorDict.load_memmap(tmp_path / "out")) == rows(table())
    assert len(os.listdir(tmp_path)) == 2  # what the killed one has begun, which the next one removes
    tdmap.map(TensorDict({"x": torch.arange(3)}, [3]), lambda c: c, out=tmp_path / "out", overwrite=True, num_workers=2)
    assert os.listdir(tmp_path) == ["out"]
    assert TensorDict.load_memmap(tmp_path / "out")["x"].tolist() == [0, 1, 2]
    assert rows(old) == rows(table())  # it is read from files without a name


def test_what_cannot_be_overwritten_is_named(tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(4)}, [4])
    with pytest.raises(ValueError, match="resume=True continues .* overwrite=True replaces"):
        tdmap.map(data, lambda c: c, out=tmp_path / "a", overwrite=True, resume=True)
    with pytest.raises(ValueError, match="so out must be its path: it is None"):
        tdmap.map(data, lambda c: c, overwrite=True)
    with pytest.raises(ValueError, match="got a TensorDict, whose rows are written over"):
        tdmap.shuffle(data, 0, out=data.clone(), overwrite=True)
