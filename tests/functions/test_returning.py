"""Whatever may be called, and wherever: dicts of columns and arrays are rows."""

import asyncio
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
    with pytest.raises(OutputMismatch, match=r"whose columns differ in length"):
        tdmap.flat_map(DATA, lambda chunk: {"y": chunk["x"].sum()}, num_workers=0)


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
