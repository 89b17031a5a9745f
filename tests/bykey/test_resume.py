"""Operations by key that are killed go on to the same bits, and what is done is not done again."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.datasets import pack
from tdmap.memory import rowfiles, spill
from tdmap.reducers import Count, Mean, Sum
from tdmap.run import disk
from tdmap.runtime import driver
from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, lazy_stack, tensorclass
from tests.processes import in_child, kill_at

CALLS = ("open", "close", "write", "pwrite", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate")
STEPS = [*((os, name) for name in CALLS), (rowfiles.Places, "write"), (spill.Spill, "append")]
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
    "join of several folders": lambda data, **o: tdmap.join(
        tdmap.concat([data[:90], data[90:]]), second(), "key", chunksize=50, **o
    ),
    "join with several folders": lambda data, **o: tdmap.join(
        data, tdmap.concat([second()[:11], second()[11:]]), "key", "outer", **o
    ),
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
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)  # the death of processes counts, not the disk
    with tuning.use(log_seconds=0, partition_bytes=700, gather_bytes=1 << 9):
        yield


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
        warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
        data = TensorDict.load_memmap(folder / "in")
        return operation(data, out=folder / "out", resume=True, **{"num_workers": 0, **options})


def kill_and_go_on(operation: Operation, folder: Path, numbers: Iterable[int]) -> None:
    """Die at a step, go on and die again, and go on to the end."""
    data = TensorDict.load_memmap(folder / "in")
    operation(data, out=folder / "wanted", num_workers=0)
    wanted = files(folder / "wanted")
    for number in numbers:
        out = folder / "out"
        killed = kill_at(number, lambda: call(operation, folder), STEPS)
        kill_at(number // 2 + 1, lambda: call(operation, folder), STEPS)
        if (out / "meta.json").exists():  # what looks like a dataset is a whole one
            assert files(out) == wanted
        assert in_child(lambda: call(operation, folder)) == 0
        assert files(out) == wanted, f"killed at step {number}"
        assert set(os.listdir(out / ".tdmap")) <= {"lock", "journal"}
        os.rename(out, folder / f"out-{number}")
        if not killed:
            return
    raise AssertionError("it has more steps than that")


@pytest.mark.parametrize("name", OPERATIONS)
def test_whoever_is_killed_goes_on_to_the_same_bytes(name, tmp_path, small):
    first = 11 + 3 * list(OPERATIONS).index(name)
    kill_and_go_on(OPERATIONS[name], dataset(tmp_path), (first * 4**n for n in range(9)))


@pytest.mark.parametrize("name", ["sort", "shuffle"])
@pytest.mark.usefixtures("small")
@tuning.use(available_memory=0, bucket_bytes=1500)
def test_rows_that_travel_through_files_are_not_written_twice(name, tmp_path):
    """As for data that does not fit into memory."""
    kill_and_go_on(OPERATIONS[name], dataset(tmp_path), (25 * 4**n for n in range(9)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OPERATIONS)
def test_whoever_is_killed_at_any_step_goes_on_to_the_same_bytes(name, tmp_path, small):
    kill_and_go_on(OPERATIONS[name], dataset(tmp_path), range(1, 5000))


class Chunks(tdmap.events.Callback):
    """Notes the chunks that are done, and kills the program when they are so many."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self.path = path
        self.last = last
        self.count = 0

    def on_lease_done(self, event: Any) -> None:
        self.count += event.stop - event.start
        self.path.write_text(str(self.count))
        if self.last is not None and self.count >= self.last:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["sort", "reduce", "inner join", "shuffle"])
def test_what_is_done_is_not_done_again(name, tmp_path, small, monkeypatch):
    monkeypatch.setattr(driver.Driver, "_policy", one_chunk_each(driver.Driver._policy))
    operation, folder = OPERATIONS[name], dataset(tmp_path)
    assert in_child(lambda: call(operation, folder, callbacks=[Chunks(folder / "all")])) == 0
    os.rename(folder / "out", folder / "whole")
    total = int((folder / "all").read_text())
    for last in (total // 2, total - 2):
        first, second = folder / f"first-{last}", folder / f"second-{last}"
        assert in_child(lambda: call(operation, folder, callbacks=[Chunks(first, last)])) == signal.SIGKILL  # noqa: B023
        assert in_child(lambda: call(operation, folder, callbacks=[Chunks(second)])) == 0  # noqa: B023
        # The chunk that was done when the program was killed may not have been noted.
        assert total <= last + int(second.read_text()) <= total + 2
        assert files(folder / "out") == files(folder / "whole")
        os.rename(folder / "out", folder / f"out-{last}")


def one_chunk_each(policy: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, nbytes: replace(policy(self, nbytes), max_lease=1)


def test_a_group_is_not_handed_to_the_function_again(tmp_path, small, monkeypatch):
    monkeypatch.setattr(driver.Driver, "_policy", one_chunk_each(driver.Driver._policy))
    folder, calls = dataset(tmp_path), tmp_path / "calls"

    def first(rows: Any) -> Any:
        with open(calls, "a") as file:
            file.write(f"{int(rows['key'][0])}\n")
        if len(calls.read_text().splitlines()) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[:1]

    def groups(data: Any, **options: Any) -> Any:
        return tdmap.group_by(data, "key").map_groups(first, **options)

    assert in_child(lambda: call(groups, folder)) == signal.SIGKILL
    assert in_child(lambda: call(groups, folder)) == 0
    seen = [int(line) for line in calls.read_text().splitlines()]
    assert set(seen) == set(range(37)) and len(seen) < 37 + 5  # those of the partition that it died in come twice
    assert TensorDict.load_memmap(folder / "out")["key"].tolist() == list(range(37))


@tensorclass
class Record:
    key: torch.Tensor
    name: str


def kinds(rows: int) -> dict[str, Any]:
    key = torch.arange(rows) * 7 % 5
    lazy = [TensorDict({"key": k, "x": torch.arange(3) + k}, []) for k in key]
    return {
        "words": TensorDict({"key": [f"k{k}" for k in key.tolist()], "at": torch.arange(rows)}, [rows]),
        "objects": TensorDict({"key": key, "tag": [f"t{n}" for n in range(rows)]}, [rows]),
        "two dimensions": TensorDict({"key": key, "x": torch.arange(rows * 6).view(rows, 2, 3).bfloat16()}, [rows]),
        "tensorclass": Record(key=key, name=NonTensorStack(*[f"r{n}" for n in range(rows)]), batch_size=[rows])
        if rows
        else Record(key=key, name=NonTensorData("", batch_size=[0]), batch_size=[0]),
        "lazy": lazy_stack(lazy) if rows else TensorDict({"key": key, "x": torch.zeros(0, 3)}, [0]),
    }


@pytest.mark.parametrize("kind", kinds(0))
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_rows_of_every_kind_go_on(kind, rows, tmp_path, small):
    data = kinds(rows)[kind]
    one = min(rows, 1)
    other = TensorDict({"key": data.get("key")[:one], "y": torch.ones(one)}, [one])
    calls: dict[str, Operation] = {
        "sort": lambda **o: tdmap.sort(data, "key", **o),
        "map_groups": lambda **o: tdmap.group_by(data, "key").map_groups(lambda part: part[-1:], **o),
        "count": lambda **o: tdmap.group_by(data, "key").reduce({"n": Count()}, **o),
        "join": lambda **o: tdmap.join(data, other, "key", "left", **o),
    }
    if not rows and kind in ("words", "objects", "tensorclass"):
        calls = {"count": calls["count"]} if kind != "words" else {}  # nothing tells what such rows would look like
    for name, operation in calls.items():
        wanted = operation(num_workers=0)
        kill_at(40, lambda o=operation, n=name: o(out=tmp_path / n, resume=True, num_workers=0), STEPS)
        found = operation(out=tmp_path / name, resume=True, num_workers=0)
        assert len(found) == len(wanted)
        for row in range(len(wanted)):
            assert plain(found[row]) == plain(wanted[row])


def plain(row: Any) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in row.to_dict().items()}


def table(folder: Path) -> TensorDict:
    if not (folder / "table").exists():
        rows = range(60)
        columns = {
            "name": [f"n{n * 7 % 11}" for n in rows],
            "x": torch.arange(60),
            "ids": Ragged.from_list([torch.arange(n % 5) for n in rows]),
        }
        TensorDict(columns, [60]).memmap(folder / "table")
    return TensorDict.load_memmap(folder / "table")


def other_table() -> TensorDict:
    return TensorDict({"name": [f"n{n}" for n in range(0, 20, 2)], "y": torch.arange(10)}, [10])


def other_call(name: str, folder: Path) -> Any:
    """The same operation on other rows, into a folder that holds a result."""
    part = table(folder)[:50]
    return TABLES[name](part, out=folder / "out", resume=True, num_workers=0)


TABLES: dict[str, Operation] = {
    "sort": lambda t, **o: tdmap.sort(t, ["name", "x"], **o),
    "join": lambda t, **o: tdmap.join(t, other_table(), "name", how="outer", **o),
    "reduce": lambda t, **o: tdmap.group_by(t, "name").reduce({"sum": Sum("x")}, **o),
    "agg": lambda t, **o: tdmap.group_by(t, "name").agg({"x": ["mean", "median"]}, **o),
    "top_k of groups": lambda t, **o: tdmap.group_by(t, "name").top_k("x", 2, **o),
    "value_counts": lambda t, **o: tdmap.value_counts(t, "name", **o),
    "unique": lambda t, **o: tdmap.unique(t, ["name", "x"], **o),
    "top_k": lambda t, **o: tdmap.top_k(t, "x", 7, **o),
    "sample": lambda t, **o: tdmap.sample(t, 9, seed=1, **o),
    "shuffle": lambda t, **o: tdmap.shuffle(t, seed=1, **o),
    "map_groups": lambda t, **o: tdmap.group_by(t, "name").map_groups(two, **o),
    "pack": lambda t, **o: pack(t, "ids", 7, **o),
}


@pytest.mark.parametrize("name", TABLES)
def test_text_and_lists_go_on(name, tmp_path, small):
    def run() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
            return TABLES[name](table(tmp_path), out=tmp_path / "out", resume=True, num_workers=0)

    TABLES[name](table(tmp_path), out=tmp_path / "wanted", num_workers=0)
    wanted = files(tmp_path / "wanted")
    assert wanted
    for number in (30, 90):
        kill_at(number, run, STEPS)
        assert len(run()) == len(TensorDict.load_memmap(tmp_path / "wanted"))
        assert files(tmp_path / "out") == wanted
        assert set(os.listdir(tmp_path / "out" / ".tdmap")) <= {"lock", "journal"}
        with pytest.raises(tdmap.errors.ResumeMismatch):
            other_call(name, tmp_path)
        os.rename(tmp_path / "out", tmp_path / f"out-{number}")
    with pytest.raises(ValueError, match="pass out=a folder"):
        TABLES[name](table(tmp_path), resume=True)
