"""Each executor passes `tdmap.testing.executor`: our own, pools of other libraries, and one that a user might write."""

import concurrent.futures
import importlib
import multiprocessing
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tdmap
from tdmap.execution import Execution
from tdmap.runtime.executors.base import Executor, LocalWorkers, Workers, run_lease
from tdmap.runtime.wire.messages import Joined
from tdmap.testing.executor import CASES


class LastFirst(Executor):
    """Runs leases in the caller, the last one first."""

    size = 3

    def start(self, job: Any) -> Workers:
        return LastFirstWorkers(job)


class LastFirstWorkers(LocalWorkers):
    size = 3

    def open(self, sink: Any) -> None:
        self.events: deque[Any] = deque((worker, Joined()) for worker in range(self.size))
        self.leases: list[Any] = []
        for worker in range(self.size):
            self.add_loop(lambda message, worker=worker: self.events.append((worker, message)))
        if sink.writer is not None:
            self.output(sink.writer)

    def grant(self, worker: int, lease: Any) -> None:
        self.leases.append((worker, lease))

    def wait(self, timeout: float) -> Any:
        if not self.events:
            worker, lease = self.leases.pop()
            self.events.append((worker, run_lease(self._loops[worker], lease.id, lease.start, lease.stop)))
        events, self.events = self.events, deque()
        return list(events)

    def close(self, ok: bool, changed: bool) -> None:
        self.leases.clear()


def _pool_of(module: str) -> Any:
    return importlib.import_module(module).get_context("fork").Pool(2)


POOLS: dict[str, Any] = {
    "multiprocessing": lambda: _pool_of("multiprocessing"),
    "torch": lambda: _pool_of("torch.multiprocessing"),
    "multiprocess": lambda: _pool_of("multiprocess"),
    "concurrent.futures": lambda: concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")),
    "loky": lambda: pytest.importorskip("joblib.externals.loky").ProcessPoolExecutor(2),
}

EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {"executor": "serial"},
    "threads": {"executor": "thread", "num_workers": 2},
    "fork": {"num_workers": 2, "mp_start_method": "fork"},
    "forkserver": {"num_workers": 2, "mp_start_method": "forkserver"},
    "of a user": {"executor": LastFirst()},
}


@pytest.fixture(scope="module", params=[*EXECUTORS, *POOLS])
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param in EXECUTORS:
        yield EXECUTORS[request.param]
        return
    pool = POOLS[request.param]()
    yield {"pool": pool}
    (pool.terminate if hasattr(pool, "terminate") else pool.shutdown)()


@pytest.mark.parametrize("case", [case for case in CASES if "dies" not in case])
def test_an_executor_does_what_all_do(case: str, options: dict[str, Any]) -> None:
    CASES[case](**options)


@pytest.mark.parametrize("name", [*EXECUTORS, *POOLS])
def test_a_worker_that_dies(name: str) -> None:
    """A pool of its own: those of other libraries are broken afterwards."""
    if name in EXECUTORS:
        CASES["a_worker_that_dies_loses_no_row_in_silence"](**EXECUTORS[name])
        return
    pool = POOLS[name]()
    try:
        CASES["a_worker_that_dies_loses_no_row_in_silence"](pool=pool)
    finally:
        (pool.terminate if hasattr(pool, "terminate") else pool.shutdown)()


@pytest.mark.parametrize(
    "pool", [concurrent.futures.ThreadPoolExecutor(1), 3, object()], ids=["threads", "3", "object"]
)
def test_other_things_are_no_pools(pool: Any) -> None:
    with pytest.raises(TypeError, match="pool must be"):
        tdmap.map(torch.arange(3), torch.neg, pool=pool)
    with pytest.raises(ValueError, match="executor must be"):
        Execution(executor=pool)
