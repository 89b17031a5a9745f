"""Functions as other libraries have them: dicts and arrays as results, numbers of rows, keyword arguments."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tensordict_lite import TensorDict, lazy_stack

ROWS = 23


@pytest.fixture
def data(tmp_path: Path) -> Any:
    return TensorDict({"x": torch.arange(ROWS)}, [ROWS]).memmap(tmp_path / "data")


@pytest.mark.parametrize("workers", [0, 2])
def test_dicts_and_arrays_become_rows(data: Any, tmp_path: Path, workers: int) -> None:
    def columns(chunk: Any) -> dict[str, Any]:
        return {"y": chunk["x"] * 2, "z": chunk["x"].numpy() + 1.5, "s": [f"row {x}" for x in chunk["x"].tolist()]}

    for out in (None, tmp_path / "out"):
        found = data.map(columns, num_workers=workers, chunksize=5, out=out)
        assert found["y"].tolist() == [2 * x for x in range(ROWS)]
        assert found["z"].dtype is torch.float64 and found["z"].tolist() == [x + 1.5 for x in range(ROWS)]
        assert list(found["s"]) == [f"row {x}" for x in range(ROWS)]
    assert data.map(lambda chunk: chunk["x"].numpy()[::-1][::-1], num_workers=workers).tolist() == list(range(ROWS))
    rows = data.map(lambda row: {"y": row["x"] + 1, "m": np.ones(2)}, chunksize=0, num_workers=workers)
    assert rows["y"].tolist() == list(range(1, ROWS + 1)) and rows["m"].shape == (ROWS, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_functions_get_numbers_and_arguments(data: Any, workers: int) -> None:
    def fn(chunk: Any, numbers: Any, scale: int, offset: int = 0) -> dict[str, Any]:
        assert torch.equal(chunk["x"], torch.as_tensor(numbers))
        return {"y": numbers * scale + offset}

    options: Any = {"with_indices": True, "fn_kwargs": {"scale": 3, "offset": 1}, "num_workers": workers}
    for chunksize in (None, 4):
        assert data.map(fn, chunksize=chunksize, **options)["y"].tolist() == [3 * x + 1 for x in range(ROWS)]
    single = data.map(lambda row, number: {"y": row["x"] - number}, with_indices=True, chunksize=0, num_workers=workers)
    assert not single["y"].any()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("options", [{"rows_per_shard": 6}, {"shard": (1, 2)}], ids=["shards", "rank"])
def test_numbers_in_a_part_are_those_of_the_whole(
    options: Any, on_error: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    data = TensorDict({"x": torch.arange(ROWS)}, [ROWS])
    options = {**options, **({"out": tmp_path / "out"} if "rows_per_shard" in options else {})}
    options |= {"on_error": on_error, "with_indices": True, "chunksize": 2, "num_workers": 0}
    found = tdmap.map(data, lambda chunk, numbers: {"y": chunk["x"] - numbers}, **options)
    assert len(found) and not found["y"].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_follow_the_dimension_that_is_mapped(workers: int) -> None:
    data = TensorDict({"x": torch.arange(21).reshape(3, 7)}, [3, 7])
    options: Any = {"dim": 1, "with_indices": True, "num_workers": workers, "chunksize": 2}
    found = data.map(lambda chunk, numbers: {"y": chunk["x"] * 0 + numbers}, **options)
    assert found["y"].tolist() == [list(range(7))] * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_functions_of_entries_get_numbers_and_arguments(data: Any, workers: int) -> None:
    def fn(x: Any, numbers: Any, scale: int) -> Any:
        assert torch.equal(x, numbers)
        return numbers * scale

    options: Any = {"in_keys": ["x"], "out_keys": ["y"], "num_workers": workers}
    found = data.map(fn, with_indices=True, fn_kwargs={"scale": 3}, **options)
    assert found["y"].tolist() == [3 * x for x in range(ROWS)]
    assert data.map(Scale(), fn_kwargs={"by": 4}, **options)["y"].tolist() == [4 * x for x in range(ROWS)]
    alone = tdmap.map(data["x"], Scale(), fn_kwargs={"by": 5}, num_workers=workers)
    assert alone.tolist() == [5 * x for x in range(ROWS)]


class Scale(torch.nn.Module):
    def forward(self, x: Any, by: int = 1) -> Any:
        return x * by


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chunksize", [0, 4])
def test_streams_get_numbers_and_arguments(data: Any, workers: int, shuffle: bool, chunksize: int) -> None:
    def fn(chunk: Any, numbers: Any, scale: int) -> dict[str, Any]:
        assert torch.equal(chunk["x"], torch.as_tensor(numbers))
        return {"y": numbers * scale}

    options: Any = {"with_indices": True, "fn_kwargs": {"scale": 3}, "num_workers": workers, "chunksize": chunksize}
    results = list(data.map_iter(fn, shuffle=shuffle, seed=5, **options))
    assert all(type(result) is dict for result in results)
    rows = torch.cat([torch.atleast_1d(torch.as_tensor(result["y"])) for result in results]).tolist()
    assert sorted(rows) == [3 * x for x in range(ROWS)]
    assert (rows == sorted(rows)) is not shuffle


FORMS: dict[str, Any] = {
    "lists": lambda x, numbers: list(zip(x.tolist(), numbers.tolist(), strict=True)),
    "dicts": lambda x, numbers: {"x": x, "numbers": numbers},
    "rows of another width for each chunk": lambda x, numbers: torch.stack([x, numbers], 1)[:, None].expand(
        -1, int(x.max()) + 1, -1
    ),
    "other rows than those of the chunk": lambda x, numbers: torch.cat([x, numbers, numbers]),
}


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_results_that_cannot_be_joined_are_those_of_the_rows_that_are_left(
    form: str, dim: int, shuffle: bool, executor: str
) -> None:
    rows, bad = 40, [0, 5, 6, 21]
    data = torch.arange(rows) if dim == 0 else torch.arange(rows)[None].repeat(2, 1)

    def fn(chunk: Any, numbers: Any) -> Any:
        x = chunk if dim == 0 else chunk[0]
        if set(x.tolist()) & set(bad):
            raise ValueError("a bad row")
        return FORMS[form](x, numbers)

    options: Any = {"executor": executor, "num_workers": 1, "chunksize": 20, "shuffle": shuffle, "seed": 3}
    errors = tdmap.RowErrors()
    found = list(tdmap.map_iter(data, fn, dim, with_indices=True, on_error=errors, **options))
    chunks = list(tdmap.map_iter(data, lambda chunk, numbers: numbers, dim, with_indices=True, **options))
    assert len(found) == len(chunks) and len(errors.rows) == len(bad)
    for result, chunk in zip(found, chunks, strict=True):
        left = torch.tensor([row for row in chunk.tolist() if row not in bad])
        wanted = FORMS[form](left, left)
        if isinstance(wanted, torch.Tensor):
            assert torch.equal(result, wanted)
        else:
            assert str(result) == str(wanted)


def test_arguments_of_streams_are_checked_at_once(data: Any) -> None:
    with pytest.raises(TypeError, match="fn_kwargs must be a dict"):
        data.map_iter(lambda chunk: chunk, fn_kwargs=[3], num_workers=0)


def test_results_that_are_no_rows_are_told(data: Any) -> None:
    with pytest.raises(OutputMismatch, match=r"a dict \('y', 'z'\), whose columns differ in length"):
        data.map(lambda chunk: {"y": chunk["x"], "z": chunk["x"][:1]}, num_workers=0, chunksize=5)
    with pytest.raises(TypeError, match="fn_kwargs must be a dict"):
        data.map(lambda chunk: chunk, fn_kwargs=[3], num_workers=0)


class Doubled:
    """An object with `__call__`, which a function may be as well."""

    def __call__(self, chunk: Any) -> dict[str, Any]:
        return {"y": chunk["x"] * 2}


def test_objects_that_are_called_return_dicts_as_functions_do(tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(ROWS)}, [ROWS])
    for workers in (0, 2):
        result = data.map(Doubled(), num_workers=workers, out=tmp_path / f"{workers}", resume=True)
        assert result["y"].tolist() == [2 * x for x in range(ROWS)]


def test_stages_of_a_pipeline_return_dicts_and_arrays_as_functions_do() -> None:
    data = TensorDict({"x": torch.arange(ROWS)}, [ROWS])
    chain = data.pipeline().map(Doubled()).map_rows(lambda row: {"y": row["y"] + 1, "z": row["y"]})
    assert chain.collect()["y"].tolist() == [2 * x + 1 for x in range(ROWS)]
    twice = chain.flat_map(lambda rows: {"y": torch.cat([rows["y"], rows["y"]])})
    assert twice.count() == 2 * ROWS
    numbers = chain.map(lambda rows: rows["y"].numpy() % 3).collect()
    assert numbers.tolist() == [(2 * x + 1) % 3 for x in range(ROWS)]
    with pytest.raises(OutputMismatch, match="columns differ in length"):
        data.pipeline().map(lambda rows: {"a": rows["x"], "b": rows["x"][1:]}).collect()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_that_returns_another_number_of_rows_warns(workers: int) -> None:
    data = TensorDict({"x": torch.arange(ROWS)}, [ROWS])
    for options in ({}, {"chunksize": 5}):
        with pytest.warns(RuntimeWarning, match=r"even returned \d+ rows for \d+ rows .*use tdmap.flat_map to return"):
            assert data.map(even, num_workers=workers, **options)["x"].tolist() == list(range(0, ROWS, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(data.map(lambda rows: rows, num_workers=workers)) == ROWS
        assert len(tdmap.flat_map(data, even, num_workers=workers)) == (ROWS + 1) // 2


def even(rows: Any) -> Any:
    return rows[rows["x"] % 2 == 0]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "torch": lambda rows: rows["x"].add_(1),
    "numpy": lambda rows: np.add(rows["x"].numpy(), 1, out=rows["x"].numpy()),
    "set_": lambda rows: rows.set_("x", rows["x"] + 1),
    "update_": lambda rows: rows.update_({"x": rows["x"] + 1}),
}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_that_returns_none_and_changes_nothing_warns(workers: int) -> None:
    data = TensorDict({"x": torch.arange(ROWS)}, [ROWS])
    with pytest.warns(RuntimeWarning, match="returned None for every chunk and changed no rows.*return the chunk"):
        assert data.map(lambda rows: None, num_workers=workers) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, change in enumerate(CHANGES.values(), 1):
            assert data.map(lambda rows, change=change: [change(rows)].clear(), num_workers=workers) is None
            assert data["x"].tolist() == list(range(number, ROWS + number))
        data.map(lambda rows: None, out=data, num_workers=workers)


def opened(kind: str, folder: Path) -> Any:
    data = TensorDict({"x": torch.arange(ROWS), "deep": {"y": torch.arange(ROWS)}}, [ROWS])
    if kind == "lazy":
        return lazy_stack(list(data.unbind(0))).lock_()
    if kind == "lazy, nested":
        return TensorDict({"x": data["x"], "deep": lazy_stack(list(data["deep"].unbind(0)))}, [ROWS]).lock_()
    if kind == "sharded":
        return tdmap.concat([data[:3].memmap(folder / "a"), data[3:].memmap(folder / "b")])
    if kind == "loaded":
        data.memmap(folder)
        return TensorDict.load_memmap(folder)
    return {"memmap": lambda: data.memmap(folder), "shared": data.share_memory_, "locked": data.lock_}[kind]()


def widen(rows: Any) -> Any:
    rows["new"] = rows["x"] * 2
    rows["deep", "z"] = rows["deep", "y"] * 3
    rows["x"] = rows["x"] + 1
    return rows


@pytest.mark.parametrize("kind", ["memmap", "loaded", "shared", "locked", "sharded", "lazy", "lazy, nested"])
def test_a_chunk_takes_new_entries_and_the_dataset_does_not(kind: str, tmp_path: Path) -> None:
    data = opened(kind, tmp_path)
    shuffled: Any = {"shuffle": True, "seed": 0, "num_workers": 0}
    calls: dict[str, Callable[[], Any]] = {
        "map": lambda: tdmap.map(data, widen, num_workers=0),
        "threads": lambda: tdmap.map(data, widen, num_workers=2, executor="thread"),
        "processes": lambda: tdmap.map(data, widen, num_workers=2),
        "rows": lambda: tdmap.map(data, widen, num_workers=0, chunksize=0),
        "map_iter": lambda: torch.cat(list(tdmap.map_iter(data, widen, num_workers=0, chunksize=5))),
        "shuffled": lambda: tdmap.sort(torch.cat(list(tdmap.map_iter(data, widen, **shuffled))), "x", num_workers=0),
        "flat_map": lambda: tdmap.flat_map(data, widen, num_workers=0),
        "map_groups": lambda: tdmap.group_by(data, "x").map_groups(widen, num_workers=0),
        "pipeline": lambda: data.pipeline().map(widen).collect(num_workers=0),
        "pipeline, rows": lambda: data.pipeline().map_rows(widen).collect(num_workers=0),
        "batches": lambda: torch.cat(list(data.pipeline().batch(4).map(widen).iter(num_workers=0))),
    }
    wanted = torch.arange(ROWS)
    for name, call in calls.items():
        found = call()
        assert torch.equal(found["new"], wanted * 2) and torch.equal(found["deep", "z"], wanted * 3), name
        assert torch.equal(found["x"], wanted + 1), name
        assert set(data.keys(True, True)) == {"x", ("deep", "y")} and torch.equal(data[:]["x"], wanted), name
