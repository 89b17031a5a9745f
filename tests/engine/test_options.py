"""Options of operations: their documentation, and defaults for a block."""

import os
import threading
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

SETS = [tdmap.RunOptions, tdmap.FunctionOptions, tdmap.Options, tdmap.MapOptions, tdmap.MapGroupsOptions]


class Jobs(tdmap.events.Callback):
    """Notes how many workers each job is given."""

    def __init__(self) -> None:
        self.workers: list[int] = []

    def on_job_started(self, event: Any) -> None:
        self.workers.append(event.num_workers)


def rows(count: int = 40) -> TensorDict:
    return TensorDict({"x": torch.arange(count).flip(0), "k": torch.arange(count) % 3}, [count])


def twice(chunk: TensorDict) -> TensorDict:
    return TensorDict({"x": chunk["x"] * 2}, chunk.batch_size)


def chunks_of(call: Any) -> int:
    """How many chunks the first job of a call has."""
    seen: list[int] = []

    class Chunks(tdmap.events.Callback):
        def on_job_started(self, event: Any) -> None:
            seen.append(event.num_chunks)

    call(callbacks=[Chunks()])
    return seen[0]


@pytest.mark.parametrize("options", SETS, ids=lambda one: one.__name__)
def test_every_option_is_documented(options):
    assert [name for name in options.__annotations__ if f" {name}: " not in options.__doc__] == []


CALLS = {
    "map": lambda **o: tdmap.map(rows(), twice, **o),
    "filter": lambda **o: tdmap.filter(rows(), lambda chunk: chunk["k"] == 1, **o),
    "flat_map": lambda **o: tdmap.flat_map(rows(), twice, **o),
    "reduce": lambda **o: tdmap.reduce(rows(), tdmap.reducers.Count(), **o),
    "shuffle": lambda **o: tdmap.shuffle(rows(), 1, **o),
    "TensorDict.map": lambda **o: rows().map(twice, **o),
    "TensorDict.map_iter": lambda **o: list(rows().map_iter(twice, **o)),
    "TensorDict.map_reduce": lambda **o: rows().map_reduce(None, tdmap.reducers.Count(), **o),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_block_sets_what_the_call_leaves_out(name):
    call = CALLS[name]
    with tdmap.options(num_workers=0, chunksize=10):
        assert chunks_of(call) == 4
        assert chunks_of(lambda **o: call(chunksize=20, **o)) == 2
        with tdmap.options(chunksize=5):
            assert chunks_of(call) == 8
        assert chunks_of(call) == 4


def test_who_works_is_said_by_the_call_or_by_the_block():
    with tdmap.options(executor="serial"):
        watcher = Jobs()
        tdmap.map(rows(), twice, chunksize=5, callbacks=[watcher])
        assert watcher.workers == [1]
        tdmap.map(rows(), twice, chunksize=5, num_workers=2, callbacks=[watcher])
        assert watcher.workers == [1, 2]


def test_a_pool_of_the_block_is_not_asked_where_the_call_names_workers():
    with tdmap.WorkerPool(2) as pool, tdmap.options(pool=pool):
        pids = {int(pid) for pid in tdmap.map(rows(), pid_of, chunksize=5)["pid"]}
        assert pids <= set(pool.stats()["pids"])
        here = {int(pid) for pid in tdmap.map(rows(), pid_of, chunksize=5, num_workers=0)["pid"]}
        assert not here & set(pool.stats()["pids"])


def pid_of(chunk: TensorDict) -> TensorDict:
    return TensorDict({"pid": torch.full(chunk.batch_size, os.getpid())}, chunk.batch_size)


def test_options_that_an_operation_lacks_are_left_out_of_its_call():
    with tdmap.options(num_workers=0, retries=1, timeout=600.0):
        assert tdmap.describe(rows()).rows == 40
        assert len(tdmap.group_by(rows(), "k").reduce({"n": tdmap.reducers.Count()})) == 3


def test_a_block_holds_for_its_thread_alone():
    found: list[int] = []
    with tdmap.options(num_workers=0, chunksize=10):
        thread = threading.Thread(target=lambda: found.append(chunks_of(lambda **o: CALLS["map"](num_workers=0, **o))))
        thread.start()
        thread.join()
    assert found != [4]


def test_an_error_ends_the_block():
    with pytest.raises(KeyError), tdmap.options(num_workers=0, chunksize=10):
        raise KeyError
    assert chunks_of(lambda **o: CALLS["map"](num_workers=0, **o)) != 4
