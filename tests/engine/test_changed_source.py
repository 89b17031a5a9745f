"""Functions that change their chunk in place and return results as well.

Where a result of None has a meaning (`map`, unless into a folder), the source changes, and a warning says so. All other
functions must not write: their chunks are private. Rows in memory of the very process that calls the function cannot be
private, so the change is noticed there.
"""

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import Ragged, TensorDict, lazy_stack, tensorclass
from tests.engine.conftest import WORKERS
from tests.products import sampled


def doubled_and_returned(chunk: TensorDict) -> TensorDict:
    chunk["x"].mul_(2)
    return chunk


def summed_of_doubled(chunk: TensorDict) -> TensorDict:
    return TensorDict({"sum": chunk["x"].mul_(2).sum(-1)}, chunk.batch_size)


def doubled_through_numpy(chunk: TensorDict) -> TensorDict:
    chunk["x"].numpy()[...] *= 2
    return chunk


def doubled(chunk: TensorDict) -> None:
    chunk["x"].mul_(2)


def with_another_entry(chunk: TensorDict) -> TensorDict:
    chunk = chunk.copy()
    chunk["y"] = chunk["x"] * 2
    return chunk


def doubled_clone(chunk: TensorDict) -> TensorDict:
    return doubled_and_returned(chunk.clone())


def rows_of(tmp_path: Path, mapped: bool) -> TensorDict:
    data = TensorDict({"x": torch.arange(24).view(12, 2)}, [12])
    return data.memmap(tmp_path / "data") if mapped else data


def collected(data: TensorDict, fn: Any, how: str, tmp_path: Path, num_workers: int) -> None:
    options: dict[str, Any] = {"num_workers": num_workers, "chunksize": 5}
    if how == "iter":
        list(tdmap.map_iter(data, fn, **options))
    elif how == "filter":
        tdmap.filter(data, lambda chunk: (fn(chunk), torch.ones(len(chunk), dtype=torch.bool))[1], **options)
    else:
        tdmap.map(data, fn, out=tmp_path / "out" if how == "folder" else None, **options)


@pytest.mark.parametrize(
    ("how", "num_workers", "mapped"),
    [
        *(("gathered", num_workers, mapped) for num_workers in (0, 2) for mapped in (False, True)),
        *((how, 0, False) for how in ("folder", "iter", "filter")),
    ],
)
@pytest.mark.parametrize("fn", [doubled_and_returned, summed_of_doubled, doubled_through_numpy])
def test_a_source_that_has_changed_beside_results_is_told_of(
    tmp_path: Path, how: str, num_workers: int, mapped: bool, fn: Any
) -> None:
    data = rows_of(tmp_path, mapped)
    with pytest.warns(RuntimeWarning, match="changed rows of the source in place, and also returned results") as found:
        collected(data, fn, how, tmp_path, num_workers)
    # The collector may find things of other tests meanwhile, and warn of them.
    assert [warning.filename for warning in found if warning.category is RuntimeWarning] == [__file__]
    assert torch.equal(data["x"], 2 * torch.arange(24).view(12, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("fn", "to_source", "changes"),
    [
        (doubled, False, True),
        (doubled_and_returned, True, True),
        (doubled_clone, True, True),
        (doubled_clone, False, False),
        (with_another_entry, False, False),
    ],
)
def test_what_was_meant_is_done_without_a_word(
    tmp_path: Path, num_workers: int, fn: Any, to_source: bool, changes: bool
) -> None:
    data = rows_of(tmp_path, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tdmap.map(data, fn, out=data if to_source else None, num_workers=num_workers, chunksize=5)
    assert torch.equal(data["x"], (2 if changes else 1) * torch.arange(24).view(12, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"resume": True}, {"rows_per_shard": 6}, {"on_error": "skip"}, {"on_error": "drop"}, {"chunksize": 0}],
    ids=str,
)
def test_rows_stay_where_a_folder_gets_no_results(
    tmp_path: Path, num_workers: int, mapped: bool, options: dict[str, Any]
) -> None:
    data = rows_of(tmp_path, mapped)
    with pytest.raises(OutputMismatch, match=r"returned None.*pass out=data"):
        tdmap.map(data, doubled, out=tmp_path / "out", num_workers=num_workers, **{"chunksize": 5, **options})
    assert torch.equal(data["x"], torch.arange(24).view(12, 2))


# -- functions that must not write -------------------------------------------------------------------------------------

ROWS = 24
X = torch.arange(2.0 * ROWS).view(ROWS, 2)


@tensorclass
class Sample:
    x: torch.Tensor


def _with_numpy(x: torch.Tensor) -> None:
    x.numpy()[...] *= 2


def _with_out(x: torch.Tensor) -> None:
    np.add(x.numpy(), 1, out=x.numpy())


def _with_data(x: torch.Tensor) -> None:
    x.data.mul_(2)


def _with_ctypes(x: torch.Tensor) -> None:
    ctypes.memset(x.data_ptr(), 1, x.nbytes)


WRITES = [_with_numpy, _with_out, _with_data, _with_ctypes]


def _dense(folder: Path) -> Any:
    TensorDict({"x": X, "inner": {"y": X}}, [ROWS]).memmap(folder)
    return TensorDict.load_memmap(folder)


def _read_only(folder: Path) -> Any:
    _dense(folder)
    return TensorDict.load_memmap(folder, mode="r")


def _typed(folder: Path) -> Any:
    Sample(x=X.clone(), batch_size=[ROWS]).memmap(folder)
    return Sample.load_memmap(folder)


def _lazy(folder: Path) -> Any:
    lazy_stack([TensorDict({"x": row}, []) for row in X]).memmap(folder)
    return TensorDict.load_memmap(folder)


def _archive(folder: Path) -> Any:
    folder.mkdir()
    TensorDict({"x": X, "inner": {"y": X}}, [ROWS]).consolidate(filename=folder / "all")
    return TensorDict.from_consolidated(folder / "all")


def _shards(folder: Path) -> Any:
    tdmap.map(TensorDict({"x": X}, [ROWS]), _itself, out=folder, rows_per_shard=10, num_workers=0)
    return tdmap.open(folder)


def _anonymous(folder: Path) -> Any:
    return TensorDict({"x": X.clone()}, [ROWS]).memmap()


def _itself(chunk: Any) -> Any:
    return chunk


KINDS = [_dense, _read_only, _typed, _lazy, _archive, _shards, _anonymous]


def _pipeline(data: Any) -> Any:
    return data.pipeline(seed=0)


def _true(fn: Any) -> Callable[[Any], torch.Tensor]:
    return lambda chunk: (fn(chunk), torch.ones(len(chunk), dtype=torch.bool))[1]


def _first_of(fn: Any) -> Callable[[Any], torch.Tensor]:
    return lambda chunk: fn(chunk).get("x")[:, 0].clone()


CALLS: dict[str, Callable[..., Any]] = {
    "map to a folder": lambda data, fn, out, **o: tdmap.map(data, fn, out=out, **o),
    "map to shards": lambda data, fn, out, **o: tdmap.map(data, fn, out=out, rows_per_shard=7, **o),
    "map_iter": lambda data, fn, out, **o: [len(part) for part in tdmap.map_iter(data, fn, **o)],
    "filter": lambda data, fn, out, **o: tdmap.filter(data, _true(fn), **o),
    "flat_map": lambda data, fn, out, **o: tdmap.flat_map(data, fn, **o),
    "sort": lambda data, fn, out, **o: tdmap.sort(data, _first_of(fn), **o),
    "unique": lambda data, fn, out, **o: tdmap.unique(data, _first_of(fn), **o),
    "group_by": lambda data, fn, out, **o: tdmap.group_by(data, _first_of(fn)).reduce(tdmap.reducers.Count(), **o),
    "map_reduce": lambda data, fn, out, **o: tdmap.map_reduce(data, lambda c: len(fn(c)), int.__add__, **o),
    "iterated": lambda data, fn, out, **o: [list(_pipeline(data).map(fn).batch(5).iter(epoch=e, **o)) for e in (0, 1)],
    "map_rows": lambda data, fn, out, **o: _pipeline(data).map_rows(fn).collect(**o),
    "a pipeline's filter": lambda data, fn, out, **o: _pipeline(data).filter(_true(fn)).collect(**o),
    "written": lambda data, fn, out, **o: _pipeline(data).map(fn).write(out, **o),
    "reduced": lambda data, fn, out, **o: _pipeline(data).map(fn).reduce(tdmap.reducers.Sum("x"), **o),
}
OF_TENSORS = {"map to a folder", "map to shards", "written"}


def writing(write: Callable[[torch.Tensor], None]) -> Callable[[Any], Any]:
    def fn(chunk: Any) -> Any:
        write(chunk.get("x"))
        return chunk

    return fn


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("error:.*changed rows of the source")
@pytest.mark.parametrize("kind, workers, half", sampled(2, KINDS, WORKERS, [0, 1]), indirect=["workers"])
def test_a_function_that_must_not_write_changes_no_file(
    tmp_path: Path, kind: Any, workers: dict[str, Any], half: int
) -> None:
    data = kind(tmp_path / "data")
    before = contents(tmp_path / "data")
    for number, (name, call) in [*enumerate(CALLS.items())][half::2]:
        if kind is _lazy and name in OF_TENSORS:
            continue
        write = WRITES[number % len(WRITES)]
        call(data, writing(write), tmp_path / f"out-{number}", **workers)
        assert contents(tmp_path / "data") == before, (name, write)
        assert torch.equal(data[:ROWS].get("x"), X), (name, write)


@pytest.mark.filterwarnings("ignore:this pipeline is iterated once more")
@pytest.mark.parametrize("kind, write", sampled(2, [_dense, _shards, _anonymous], WRITES))
def test_each_epoch_of_a_loader_finds_the_rows_that_were_saved(tmp_path: Path, kind: Any, write: Any) -> None:
    data = kind(tmp_path / "data")
    before = contents(tmp_path / "data")
    for num_workers in (0, 2):
        loader = DataLoader(
            _pipeline(data).map(writing(write)).batch(5), batch_size=None, num_workers=num_workers, collate_fn=_itself
        )
        epochs = [torch.cat([batch["x"] for batch in loader]) for _ in range(2)]
        expected = X.clone()
        write(expected)
        assert all(torch.equal(epoch.sort(0).values, expected.sort(0).values) for epoch in epochs)
    assert contents(tmp_path / "data") == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("executor", ["serial", "thread"])
def test_a_pipeline_refuses_to_change_rows_in_memory(write: Any, executor: str) -> None:
    data = TensorDict({"x": X.clone()}, [ROWS])
    with pytest.raises(RuntimeError, match="changed rows of the dataset in place"):
        list(_pipeline(data).map(writing(write)).batch(5).iter(num_workers=2, executor=executor))
    assert torch.equal(data["x"], X)


def test_a_worker_of_a_loader_refuses_to_change_rows_in_memory() -> None:
    """Torch waits five seconds for each worker of an iterator that has raised, when that is collected."""
    stage = _pipeline(TensorDict({"x": X.clone()}, [ROWS])).map(writing(_with_numpy)).batch(5)
    with pytest.raises(RuntimeError, match="changed rows of the dataset in place"):
        list(DataLoader(stage, batch_size=None, num_workers=1, collate_fn=_itself))


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ragged_entries_are_private_too(tmp_path: Path, num_workers: int, loaded: bool) -> None:
    rows = Ragged.from_list([torch.arange(float(n)) for n in range(1, 8)])
    data = TensorDict({"rows": rows}, [7]).memmap(tmp_path / "data")
    if loaded:
        data = TensorDict.load_memmap(tmp_path / "data")
    before = contents(tmp_path / "data")

    def fn(chunk: Any) -> Any:
        for row in chunk.get("rows"):
            row.as_subclass(torch.Tensor).numpy()[...] += 1
        return chunk

    tdmap.map(data, fn, num_workers=num_workers)
    tdmap.map(data, fn, out=tmp_path / "out", num_workers=num_workers)
    tdmap.filter(data, lambda chunk: [bool(len(fn(chunk)))] * len(chunk), num_workers=num_workers)
    tdmap.sort(data, lambda chunk: fn(chunk).get("rows").lengths, num_workers=num_workers)
    stage = data.pipeline().map(lambda chunk: TensorDict({"n": fn(chunk).get("rows").lengths}, [len(chunk)]))
    for epoch in range(2):
        list(stage.batch(2).iter(num_workers=num_workers, epoch=epoch))
    assert contents(tmp_path / "data") == before
