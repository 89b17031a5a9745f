"""Operations by key that are killed go on: the same bits, the work that is done is not done again, others are refused."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.bykey import index, prepare
from tdmap.memory import rowfiles, spill
from tdmap.operations import permute
from tdmap.reducers import Count, Mean, Sum
from tdmap.resume import journal, steps
from tensordict_lite import TensorDict
from tests.processes import in_child, kill_at

CALLS = ("open", "close", "write", "pwrite", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate", "mkdir")
STEPS = [*((os, name) for name in CALLS), (rowfiles.Places, "write"), (spill.Spill, "append"), (spill.Spill, "read")]
ROWS = 210


def second() -> TensorDict:
    key = torch.arange(0, 40, 2).repeat(2)
    return TensorDict({"key": key, "y": torch.arange(len(key)) * 10}, [len(key)])


def two(rows: TensorDict) -> TensorDict:
    return rows[:2]


Operation = Callable[..., Any]

OPERATIONS: dict[str, Operation] = {
    "sort": lambda data, **o: tdmap.sort(data, "key", chunksize=50, **o),
    "sort by several": lambda data, **o: tdmap.sort(data, ["key", "x"], descending=[True, False], **o),
    "reduce": lambda data, **o: tdmap.group_by(data, "x").reduce({"sum": Sum("v"), "n": Count()}, chunksize=50, **o),
    "few groups": lambda data, **o: tdmap.group_by(data, "key").reduce({"mean": Mean("v")}, chunksize=50, **o),
    "agg": lambda data, **o: tdmap.group_by(data, "key").agg({"v": ["mean", "median"]}, chunksize=50, **o),
    "map_groups": lambda data, **o: tdmap.group_by(data, "key").map_groups(two, chunksize=50, **o),
    "top_k of groups": lambda data, **o: tdmap.group_by(data, "key").top_k("v", 2, **o),
    "inner join": lambda data, **o: tdmap.join(data, second(), "key", chunksize=50, **o),
    "outer join": lambda data, **o: tdmap.join(data, second(), "key", "outer", **o),
    "semi join": lambda data, **o: tdmap.join(data, second(), "key", "semi", **o),
    "unique": lambda data, **o: tdmap.unique(data, ["key", "b"], **o),
    "value_counts": lambda data, **o: tdmap.value_counts(data, "key", **o),
    "top_k": lambda data, **o: tdmap.top_k(data, "v", 5, **o),
    "sample": lambda data, **o: tdmap.sample(data, 50, seed=3, shuffle=True, **o),
    "shuffle": lambda data, **o: tdmap.shuffle(data, 5, **o),
}


@pytest.fixture
def small(monkeypatch):
    """Many jobs, chunks and partitions of few rows, all of which are noted at once."""
    monkeypatch.setattr(steps, "SECONDS", 0)
    monkeypatch.setattr(journal, "COMMIT_SECONDS", 0)
    monkeypatch.setattr(journal.Helper, "_start", lambda self: False)  # the death of processes counts, not the disk
    monkeypatch.setattr(prepare, "PARTITION_BYTES", 300)
    monkeypatch.setattr(index, "count_partitions", lambda nbytes, at_least=1: 5)
    monkeypatch.setattr(permute, "BLOCK_BYTES", 1 << 9)


def dataset(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    x = torch.randperm(ROWS, generator=generator)
    columns = {"key": x % 37, "x": x, "b": x % 3, "v": torch.rand(ROWS, generator=generator), "in": {"row": x * 2}}
    TensorDict(columns, [ROWS]).memmap(folder / "in")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of a dataset."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.memmap") if ".tdmap" not in p.parts}


def call(operation: Operation, folder: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tdmap.AlreadyComplete)
        data = TensorDict.load_memmap(folder / "in")
        return operation(data, out=folder / "out", resume=True, **{"num_workers": 0, **options})


@pytest.mark.parametrize("name", OPERATIONS)
def test_whoever_is_killed_at_any_step_goes_on_to_the_same_bytes(name, tmp_path, small):
    operation, folder = OPERATIONS[name], dataset(tmp_path)
    data = TensorDict.load_memmap(folder / "in")
    operation(data, out=folder / "wanted", num_workers=0)
    wanted = files(folder / "wanted")
    number, killed = 3, True
    while killed:
        out = folder / "out"
        killed = kill_at(number, lambda: call(operation, folder), STEPS)
        kill_at(number // 2, lambda: call(operation, folder), STEPS)
        if (out / "meta.json").exists():  # what looks like a dataset is a whole one
            assert files(out) == wanted
        assert in_child(lambda: call(operation, folder)) == 0
        assert files(out) == wanted, f"killed at step {number}"
        assert set(os.listdir(out / ".tdmap")) <= {"lock", "journal", "errors.jsonl"}
        number = number * 3 // 2 + 1
        os.rename(out, folder / f"out-{number}")
    assert number > 20
