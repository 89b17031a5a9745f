"""Whatever may be called, and wherever: dicts of columns and arrays are rows."""

import array
import asyncio
import collections
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdmap
from tdmap.errors import OutputMismatch
from tdmap.functions import adapted, as_function, modules_of, moved
from tdmap.plan import make_plan
from tensordict_lite import TensorDict

ROWS = 12
DATA = TensorDict({"x": torch.arange(ROWS), "k": torch.arange(ROWS) % 3}, [ROWS])


def function(chunk: Any) -> dict[str, Any]:
    return {"y": chunk["x"] * 2, "deep": {"z": chunk["x"].numpy() + 1}}


class Instance:
    def __call__(self, chunk: Any) -> dict[str, Any]:
        return function(chunk)


class Module(torch.nn.Module):
    def forward(self, chunk: Any) -> dict[str, Any]:
        return function(chunk)


CALLABLES: list[Callable[..., Any]] = [function, Instance(), functools.partial(function), Instance().__call__, Module()]


def batches(fn: Any) -> Any:
    return DATA.pipeline().batch(4).map(fn)


OPERATIONS: dict[str, Callable[[Any, Path], Any]] = {
    "map": lambda fn, out: tdmap.map(DATA, fn, num_workers=0),
    "map to a folder": lambda fn, out: tdmap.map(DATA, fn, out=out, num_workers=0),
    "map by workers": lambda fn, out: tdmap.map(DATA, fn, num_workers=2),
    "map row by row": lambda fn, out: tdmap.map(DATA, fn, chunksize=0, num_workers=0),
    "flat_map": lambda fn, out: tdmap.flat_map(DATA, fn, num_workers=0),
    "flat_map to a folder": lambda fn, out: tdmap.flat_map(DATA, fn, out=out, num_workers=0),
    "flat_map of a generator": lambda fn, out: tdmap.flat_map(DATA, lambda chunk: iter([fn(chunk)]), num_workers=0),
    "map_groups": lambda fn, out: tdmap.group_by(DATA, "k").map_groups(fn, num_workers=0),
    "pipeline.map": lambda fn, out: DATA.pipeline().map(fn).collect(num_workers=0),
    "pipeline.map_rows": lambda fn, out: DATA.pipeline().map_rows(fn).collect(num_workers=0),
    "pipeline.flat_map": lambda fn, out: DATA.pipeline().flat_map(fn).collect(num_workers=0),
    "pipeline of batches": lambda fn, out: batches(fn).collect(num_workers=0),
    "pipeline of batches, written": lambda fn, out: batches(fn).write(out, num_workers=0),
}


@pytest.mark.parametrize("fn", CALLABLES, ids=lambda fn: type(fn).__name__)
@pytest.mark.parametrize("name", OPERATIONS)
def test_dicts_are_rows_everywhere(name: str, fn: Any, tmp_path: Path) -> None:
    found = OPERATIONS[name](fn, tmp_path / "out")
    order = DATA["k"].sort(stable=True).indices if name == "map_groups" else torch.arange(ROWS)
    assert found["y"].tolist() == (DATA["x"][order] * 2).tolist()
    assert found["deep", "z"].tolist() == (DATA["x"][order] + 1).tolist()


def test_a_generator_may_yield_arrays_and_dicts() -> None:
    def parts(chunk: Any) -> Iterator[Any]:
        yield chunk["x"].numpy()
        yield chunk["x"].numpy()[:0]

    assert sorted(tdmap.flat_map(DATA, parts, num_workers=0).tolist()) == DATA["x"].tolist()


def test_a_dict_of_numbers_is_one_row_of_a_group() -> None:
    found = tdmap.group_by(DATA, "k").map_groups(
        lambda rows: {"k": rows["k"][0], "most": rows["x"].max(), "mean": np.float64(rows["x"].double().mean())},
        num_workers=0,
    )
    assert found["k"].tolist() == [0, 1, 2] and found["most"].tolist() == [9, 10, 11]
    assert found["mean"].tolist() == [4.5, 5.5, 6.5]


def test_dicts_that_are_no_rows_are_told() -> None:
    with pytest.raises(OutputMismatch, match=r"a dict \('y', 'z'\), whose columns differ in length"):
        tdmap.flat_map(DATA, lambda chunk: {"y": chunk["x"], "z": chunk["x"][:1]}, num_workers=0, chunksize=4)
    for name in ("flat_map", "flat_map of a generator", "pipeline.flat_map"):
        for value, kind in ((torch.tensor(1), "Tensor"), ("one text", "str"), (b"bytes", "bytes"), ({1, 2}, "set")):
            with pytest.raises(OutputMismatch, match=rf"a dict without a column of rows \('y' is a {kind}\)"):
                OPERATIONS[name](lambda chunk, value=value: {"y": value}, Path())
    with pytest.raises(OutputMismatch, match="the column 'y' .* which torch lacks"):
        tdmap.map(DATA, lambda chunk: {"y": np.arange(len(chunk), dtype=np.longdouble)}, num_workers=0)
    with pytest.raises(OutputMismatch, match="'y' is on the meta device and has no values"):
        tdmap.flat_map(DATA, lambda chunk: {"y": torch.zeros(len(chunk), device="meta")}, num_workers=0)


COLUMNS: dict[str, Callable[[list[int]], Any]] = {
    "list": lambda x: [str(v) for v in x],
    "tuple": lambda x: tuple(str(v) for v in x),
    "tuple of numbers": lambda x: tuple(x),
    "tuple of tensors": lambda x: tuple(map(torch.tensor, x)),
    "range": lambda x: range(x[0], x[0] + len(x)),
    "deque": lambda x: collections.deque(str(v) for v in x),
    "UserList": lambda x: collections.UserList(x),
    "array": lambda x: array.array("q", x),
    "memoryview": lambda x: memoryview(array.array("q", x)),
    "keys": lambda x: dict.fromkeys(map(str, x)).keys(),
    "values": lambda x: dict(enumerate(x)).values(),
    "iterator": lambda x: map(str, x),
    "numpy texts": lambda x: np.array([str(v) for v in x]),
    "numpy objects": lambda x: np.array([str(v) for v in x], dtype=object),
    "numpy scalars": lambda x: [np.float32(v) for v in x],
    "numpy scalars and numbers": lambda x: [np.int64(v) if v % 2 else v for v in x],
    "numpy bools": lambda x: [np.bool_(v % 2) for v in x],
    "arrays of many lengths": lambda x: [np.arange(v) for v in x],
    "nested tensor": lambda x: torch.nested.nested_tensor([torch.arange(float(v)) for v in x]),
    "Series": lambda x: __import__("pandas").Series([str(v) for v in x]),
    "Series of numbers": lambda x: __import__("pandas").Series(x),
    "Polars": lambda x: __import__("polars").Series([str(v) for v in x]),
    "Arrow": lambda x: __import__("pyarrow").array([str(v) for v in x]),
    "Arrow numbers": lambda x: __import__("pyarrow").array(x),
    "Arrow chunks": lambda x: __import__("pyarrow").chunked_array([[str(v) for v in x]]),
}


def plain(value: Any) -> Any:
    """A row in plain Python."""
    for name in ("as_py", "tolist"):
        value = getattr(value, name, lambda value=value: value)()
    return value


@pytest.mark.parametrize("form", COLUMNS)
def test_columns_of_all_forms_are_as_many_rows_everywhere(form: str, tmp_path: Path) -> None:
    make = COLUMNS[form]
    for module in ("pandas", "polars", "pyarrow"):
        if module in make.__code__.co_consts:
            pytest.importorskip(module)

    def fn(chunk: Any) -> dict[str, Any]:
        return {"y": make(chunk["x"].tolist()), "deep": {"z": make(chunk["x"].tolist())}}

    def rows_of(column: Any) -> list[Any]:
        return [plain(row) for row in (column.tolist() if isinstance(column, torch.Tensor) else column)]

    for name, call in OPERATIONS.items():
        if name not in ("map row by row", "pipeline.map_rows", "map by workers"):
            found = call(fn, tmp_path / name)
            parts = (
                [DATA["x"][DATA["k"] == k].tolist() for k in range(3)] if name == "map_groups" else [DATA["x"].tolist()]
            )
            wanted = [plain(row) for part in parts for row in make(part)]
            assert rows_of(found["y"]) == rows_of(found["deep", "z"]) == wanted, name


def test_columns_of_different_lengths_are_refused_whatever_their_form() -> None:
    for form in ("list", "deque", "numpy objects", "Series", "Arrow"):
        with pytest.raises(OutputMismatch, match="columns differ in length"):
            OPERATIONS["map_groups"](lambda rows, make=COLUMNS[form]: {"x": rows["x"], "y": make([1])}, Path())


TIMES = DATA.clone().set("time", torch.arange(ROWS) * 1_000_000)
TIMES.arrow_types = {"time": "timestamp[us]"}


@pytest.mark.parametrize("workers", [0, 2])
def test_times_that_a_function_passes_on_keep_their_type(workers: int, tmp_path: Path) -> None:
    """Under their own name, or as a view under another one; other columns are numbers."""

    def fn(rows: Any) -> Any:
        time = rows["time"]
        return {"time": time.clone(), "first": time[:1].expand(len(time)), "numpy": time.numpy(), "x": rows["x"]}

    def one(rows: Any) -> Any:
        return {"day": rows["time"][0], "n": rows["x"].sum()}

    wanted = dict.fromkeys(("time", "first", "numpy"), "timestamp[us]")
    options: Any = {"num_workers": workers}
    found = {
        "map": tdmap.map(TIMES, fn, **options),
        "TensorDict": tdmap.map(TIMES, lambda rows: TensorDict(fn(rows), rows.batch_size), **options),
        "folder": tdmap.map(TIMES, fn, out=tmp_path / "map", **options),
        "flat_map": tdmap.flat_map(TIMES, fn, **options),
        "generator": tdmap.flat_map(TIMES, lambda rows: iter([fn(rows), fn(rows)]), **options),
        "map_groups": tdmap.group_by(TIMES, "k").map_groups(fn, **options),
        "pipeline.map": TIMES.pipeline().map(fn).collect(**options),
        "pipeline.flat_map": TIMES.pipeline().flat_map(fn).collect(**options),
    }
    for name, result in found.items():
        assert result.arrow_types == wanted, name
    rows = {
        "map": tdmap.map(TIMES, lambda row: {"day": row["time"], "n": row["x"]}, chunksize=0, **options),
        "map_rows": TIMES.pipeline().map_rows(lambda row: {"day": row["time"], "n": row["x"]}).collect(**options),
        "map_groups": tdmap.group_by(TIMES, "k").map_groups(one, **options),
    }
    for name, result in rows.items():
        assert result.arrow_types == {"day": "timestamp[us]"}, name
    parquet = pytest.importorskip("pyarrow.parquet")
    tdmap.datasets.write(rows["map_groups"], tmp_path / "x.parquet")
    assert [str(field.type) for field in parquet.read_schema(tmp_path / "x.parquet")] == ["timestamp[us]", "int64"]
    for other in (lambda rows: {"time": rows["time"].int()}, lambda rows: {"t": rows["time"] + 1}):
        assert tdmap.map(TIMES, other, **options).arrow_types == {}


def test_a_module_that_returns_dicts_is_still_one() -> None:
    """Its parameters are looked at, and go to the device, through all that lies around it."""
    module = torch.nn.Linear(2, 2)
    called: Any = adapted(as_function(module), make_plan(4, chunksize=2), with_indices=True)
    assert list(modules_of(called)) == [module]
    there: Any = moved(called, torch.device("meta"), own=False)
    assert there is not called and there.fn.fn is not called.fn.fn and module.weight.device.type == "cpu"


async def later(chunk: Any) -> Any:
    return chunk


class Later:
    async def __call__(self, chunk: Any) -> Any:
        return chunk


@pytest.mark.parametrize("fn", [later, Later(), functools.partial(later)], ids=["function", "object", "partial"])
def test_async_functions_are_refused_before_anything_runs(fn: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: tdmap.map(DATA, fn, num_workers=2),
        lambda: tdmap.map(DATA, fn, in_keys="x", num_workers=0),
        lambda: tdmap.map_iter(DATA, fn, num_workers=2),
        lambda: DATA.pipeline().map(fn),
        lambda: tdmap.filter(DATA, fn),
        lambda: tdmap.flat_map(DATA, fn),
        lambda: tdmap.group_by(DATA, "x").map_groups(fn),
        lambda: DATA.pipeline().filter(fn),
        lambda: DATA.pipeline().flat_map(fn),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="is async.*asyncio.run"):
            call()
    assert tdmap.map(DATA, lambda chunk: asyncio.run(later(chunk)), num_workers=2)["x"].tolist() == list(range(ROWS))


def ask_map(data: TensorDict, fn: Any, **options: Any) -> Any:
    return tdmap.map(data, fn, chunksize=3, **options)


def ask_flat_map(data: TensorDict, fn: Any, **options: Any) -> Any:
    return tdmap.flat_map(data, fn, chunksize=3, **options)


def ask_groups(data: TensorDict, fn: Any, **options: Any) -> Any:
    return tdmap.group_by(data, "half").map_groups(fn, **options)


def ask_pipeline(data: TensorDict, fn: Any, *, out: Path | None, **options: Any) -> Any:
    stages = data.pipeline().batch(3).map(fn)
    return stages.collect(**options) if out is None else stages.write(out, **options)


VALUES: dict[str, list[Any]] = {
    "whole": [0, 1, 2, 3, 4, 5],
    "bytes": [b"a", b"", b"\xff", b"d", b"e", b"f"],
    "text": ["a", "", "c", "d", "e", "f"],
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("ask", [ask_map, ask_flat_map, ask_groups, ask_pipeline])
@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize("workers", [0, 2])
def test_none_is_a_value_among_text_only(tmp_path: Path, values: str, ask: Any, place: str, workers: int) -> None:
    """Into memory and into a folder, whichever chunk has it; without it, bytes are rows in chunks of any size."""
    data = TensorDict({"i": torch.arange(6), "half": torch.arange(6) // 3}, [6])
    for number, missing in enumerate([(), (1,), (4,), (0, 1, 2, 3, 5)]):
        rows = [None if row in missing else value for row, value in enumerate(VALUES[values])]

        def fn(chunk: TensorDict, rows: list[Any] = rows) -> dict[str, Any]:
            return {"y": [rows[row] for row in chunk["i"].tolist()]}

        out = tmp_path / str(number) if place == "folder" else None
        if not missing or values == "text":
            assert ask(data, fn, out=out, num_workers=workers).get("y").tolist() == rows
            continue
        what = "bytes" if values == "bytes" else "numbers"
        with pytest.raises(OutputMismatch, match=f"'y' with None among {what}, in row . of 3.*'y.valid'"):
            ask(data, fn, out=out, num_workers=workers)
