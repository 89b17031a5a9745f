"""A function that returns one buffer again and again: its results hold the same rows in every executor."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tdmap
from tensordict_lite import TensorDict

ROWS = 48


def filled(buffers: dict[int, Any], rows: torch.Tensor) -> Any:
    """The buffer for so many rows, with their values."""
    buffer = buffers.setdefault(len(rows), torch.zeros_like(rows))
    return buffer.copy_(rows)


class Entry:
    """A buffer in a new collection each time."""

    def __init__(self) -> None:
        self.buffers: dict[int, Any] = {}

    def __call__(self, chunk: TensorDict) -> Any:
        return TensorDict({"i": filled(self.buffers, chunk["i"])}, chunk.batch_size)


class Bare(Entry):
    def __call__(self, chunk: TensorDict) -> Any:
        return filled(self.buffers, chunk["i"])


class Array(Entry):
    def __call__(self, chunk: TensorDict) -> Any:
        array = self.buffers.setdefault(0, np.zeros(ROWS, dtype=np.int64))[: len(chunk)]
        array[...] = chunk["i"].numpy()
        return {"i": array}


class Collection(Entry):
    """One collection, whose entry is replaced."""

    def __call__(self, chunk: TensorDict) -> Any:
        out = self.buffers.setdefault(len(chunk), TensorDict({}, chunk.batch_size))
        out["i"] = chunk["i"].clone()
        return out


class Two(Entry):
    """Two buffers in turns."""

    calls = 0

    def __call__(self, chunk: TensorDict) -> Any:
        self.calls += 1
        buffers = self.buffers.setdefault(self.calls % 2, {})
        return TensorDict({"i": filled(buffers, chunk["i"])}, chunk.batch_size)


class Shorter(Entry):
    """All rows but the last of each chunk, which `map` joins at the end."""

    def __call__(self, chunk: TensorDict) -> Any:
        return super().__call__(chunk[:-1] if len(chunk) > 1 else chunk)


class OfRow(Entry):
    def __call__(self, row: TensorDict) -> Any:
        return TensorDict({"i": filled(self.buffers, row["i"].reshape(1))[0]}, [])


class Parts(Entry):
    def __call__(self, chunk: TensorDict) -> Iterator[Any]:
        for row in chunk["i"].split(1):
            yield TensorDict({"i": filled(self.buffers, row)}, [1])


class Sum(Entry):
    def __call__(self, chunk: TensorDict) -> Any:
        return filled(self.buffers, chunk["i"].sum().reshape(1))


class Raises(Entry):
    def __call__(self, chunk: TensorDict) -> Any:
        if bool((chunk["i"] == 13).any()):
            raise ValueError("13")
        return super().__call__(chunk)


def values(parts: Any) -> list[int]:
    return [int(x) for part in parts for x in (part if isinstance(part, torch.Tensor) else part["i"]).reshape(-1)]


def stages(data: TensorDict) -> Any:
    return data.pipeline(seed=0)


WAYS: dict[str, Callable[..., list[int]]] = {
    "map": lambda data, fn, **o: values([tdmap.map(data, fn, **o)]),
    "map_iter": lambda data, fn, **o: values(list(tdmap.map_iter(data, fn, **o))),
    "flat_map": lambda data, fn, **o: values([tdmap.flat_map(data, fn, **o)]),
    "pipeline": lambda data, fn, **o: values(list(stages(data).map(fn).batch(5).iter(**o))),
    "collect": lambda data, fn, **o: values([stages(data).map(fn).collect(**o)]),
    "after a buffer": lambda data, fn, **o: sorted(
        values(list(stages(data).shuffle(buffer=9, seed=1).map(fn).batch(5).iter(**o)))
    ),
}
ALL = list(range(ROWS))
CASES: list[tuple[str, Callable[..., Any], type[Entry], Any]] = [
    *((way, call, kind, ALL) for way, call in WAYS.items() for kind in (Entry, Bare, Array, Collection, Two)),
    ("map, joined", WAYS["map"], Shorter, [i for i in ALL if i % 4 != 3]),
    ("batches", lambda data, fn, **o: values(list(stages(data).batch(4).map(fn).iter(**o))), Entry, ALL),
    ("map_rows", lambda data, fn, **o: values(list(stages(data).map_rows(fn).batch(5).iter(**o))), OfRow, ALL),
    ("rows", lambda data, fn, **o: values([tdmap.map(data, fn, **{**o, "chunksize": 0})]), OfRow, ALL),
    ("flat_map, parts", WAYS["flat_map"], Parts, ALL),
    ("parts", lambda data, fn, **o: values(list(stages(data).flat_map(fn).batch(5).iter(**o))), Parts, ALL),
    ("states", lambda data, fn, **o: tdmap.map_reduce(data, fn, torch.add, **o).tolist(), Sum, [sum(ALL)]),
    (
        "rows that raise",
        lambda data, fn, **o: values([tdmap.map(data, fn, on_error="drop", **o)]),
        Raises,
        [i for i in ALL if i != 13],
    ),
]


@pytest.mark.filterwarnings("ignore::tdmap.errors.SkippedRows")
@pytest.mark.parametrize(
    "workers",
    [{"num_workers": 0}, {"num_workers": 1, "executor": "thread"}, {"num_workers": 2}],
    ids=["here", "thread", "processes"],
)
@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [case[1:] for case in CASES],
    ids=[f"{way}-{kind.__name__}" for way, _, kind, _ in CASES],
)
def test_a_buffer_that_is_returned_again_loses_no_rows(call: Any, kind: Any, expected: Any, workers: Any) -> None:
    data = TensorDict({"i": torch.arange(ROWS)}, [ROWS])
    assert call(data, kind(), chunksize=4, **workers) == expected


class LargeOnly:
    """Has a buffer for many rows, and returns new memory for few."""

    def __init__(self) -> None:
        self.buffers: dict[int, torch.Tensor] = {}

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) < 100:
            return rows.clone()
        return self.buffers.setdefault(len(rows), torch.empty_like(rows)).copy_(rows)


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_later_chunks_of_another_size_may_have_another_buffer(executor: str) -> None:
    x, sizes = torch.arange(500_000), set()
    parts = []
    for part in tdmap.map_iter(x, LargeOnly(), num_workers=1, executor=executor):
        sizes.add(len(part) < 100)
        parts.append(part)
    assert sizes == {True, False}  # the first chunks are small: nothing is known of results
    assert torch.equal(torch.cat(parts), x)


@pytest.mark.parametrize("kind", [Entry, Array, Collection, Two])
def test_a_loader_over_a_pipeline_loses_no_rows(kind: Any) -> None:
    data = TensorDict({"i": torch.arange(ROWS)}, [ROWS])
    loader = DataLoader(stages(data).map(kind()).batch(5), batch_size=None, num_workers=2)
    assert sorted(values(list(loader))) == ALL
