"""Rows that are strings cost a string each, in every operation: nobody makes a collection of each of them."""

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tensordict_lite.objects.column import PayloadColumn

ROWS = 300


def dataset() -> TensorDict:
    numbers = torch.arange(ROWS)
    return TensorDict({"i": numbers, "s": [f"word {n * 7 % 100:03d}" for n in range(ROWS)]}, [ROWS])


def same(chunk):
    return TensorDict({"i": chunk["i"] + 1, "s": chunk["s"]}, chunk.batch_size)


def even(chunk):
    return chunk["i"] % 2 == 0


OPERATIONS = {
    "map": lambda data, out: tdmap.map(data, same, num_workers=0),
    "map to a folder": lambda data, out: tdmap.map(data, same, out=out, num_workers=0),
    "map loaded": lambda data, out: tdmap.map(
        TensorDict.load_memmap(data.memmap(out)._memmap_path), same, num_workers=0
    ),
    "map_iter": lambda data, out: list(tdmap.map_iter(data, same, num_workers=0)),
    "filter": lambda data, out: tdmap.filter(data, even, num_workers=0),
    "flat_map": lambda data, out: tdmap.flat_map(data, lambda chunk: chunk[even(chunk)], num_workers=0),
    "sort": lambda data, out: tdmap.sort(data, "s", num_workers=0),
    "shuffle": lambda data, out: tdmap.shuffle(data, seed=1, num_workers=0),
    "count by": lambda data, out: tdmap.group_by(data, "s").reduce({"n": tdmap.reducers.Count()}, num_workers=0),
    "collect": lambda data, out: tdmap.Pipeline(data).map(same).collect(num_workers=0),
    "write": lambda data, out: tdmap.Pipeline(data).map(same).write(out, num_workers=0),
    "batches": lambda data, out: list(tdmap.Pipeline(data).map(same).batch(32).iter(num_workers=0)),
    "unique": lambda data, out: tdmap.reduce(data, tdmap.reducers.Unique("s"), num_workers=0),
}


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_row_gets_a_wrapper(tmp_path, monkeypatch, name, looked):
    asked = []
    member = PayloadColumn.member
    data = dataset()
    if looked:
        data[0], data.get("s")[-1]
    monkeypatch.setattr(PayloadColumn, "member", lambda self, row: asked.append(row) or member(self, row))
    OPERATIONS[name](data, tmp_path / "out")
    assert not asked
