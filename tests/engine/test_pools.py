"""Pools: warm, shared, foreign, and gone when they should be."""

import importlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import multiprocess
import psutil
import pytest
import torch

import tdmap
from tdmap.runtime.workers import pool as pools
from tests.processes import comes_true


def pid_of(x):
    return torch.full((len(x),), os.getpid())


def has_ended(pid):
    """A zombie has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pids):
    """Whether all these processes end."""
    return comes_true(lambda: all(map(has_ended, pids)))


@pytest.mark.parametrize("method", [None, "forkserver"])
def test_later_calls_use_the_same_workers(method):
    x = torch.zeros(1000)
    options = {"num_workers": 2, "chunksize": 100, "mp_start_method": method}
    seen = set()
    for _ in range(20):  # how many milliseconds such a call takes is a matter of benchmarks/overhead.py
        seen |= set(tdmap.map(x, pid_of, **options).tolist())
        assert os.getpid() not in seen and len(seen) <= 2


def test_a_pool_of_ones_own():
    with tdmap.WorkerPool(2) as pool:
        pool.warm_up()
        pids = pool.stats()["pids"]
        assert len(pids) == 2
        used = set(tdmap.map(torch.zeros(100), pid_of, pool=pool, chunksize=1).tolist())
        assert used <= set(pids)
        assert sum(pool.stats()["chunks"].values()) == 100
    assert gone(pids)
    with pytest.raises(RuntimeError, match="closed"):
        tdmap.map(torch.zeros(4), pid_of, pool=pool)


class Watchful:
    """A function that notes, when it is packed, how many workers have been forked."""

    def __init__(self, pool):
        self.pool, self.forked = pool, []

    def __call__(self, part):
        return part * 2

    def __reduce__(self):
        self.forked.append(len(self.pool.stats()["pids"]))
        return Watchful, (None,)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_come_up_while_the_program_goes_on(method):
    tdmap.close_pools()
    with tdmap.WorkerPool(1, method) as pool:
        pool.warm_up(wait=False)
        stats = pool.stats()
        assert stats["alive"] == 1 and len(stats["pids"]) == (method != "forkserver")  # its pid is known when it is
        pool.warm_up(wait=False)  # on their way already
        x, fn = torch.arange(7), Watchful(pool)
        for _ in range(2):
            assert torch.equal(tdmap.map(x, fn, pool=pool, chunksize=2), x * 2)
        assert pool.stats()["started"] == 1
    # The job was packed while the template started.
    assert fn.forked[0] == (method != "forkserver") and fn.forked[-1] == 1


def test_to_warm_up_a_pool_at_work_does_not_wait_for_it():
    with tdmap.WorkerPool(1) as pool:
        rows = tdmap.map_iter(torch.arange(4), lambda part: part, pool=pool, chunksize=1)
        first = next(rows)
        pool.warm_up(wait=False)
        assert pool.stats()["started"] == 1
        assert torch.equal(torch.cat([first, *rows]), torch.arange(4))
    with pytest.raises(RuntimeError, match="closed"):
        pool.warm_up(wait=False)


def test_pools_that_are_closed_or_collected_end_before_their_workers_are_forked():
    tdmap.close_pools()
    # Idle workers would leave by themselves.
    closed, collected = (tdmap.WorkerPool(2, "forkserver", idle_seconds=1e6) for _ in range(2))
    for pool in (closed, collected):
        pool.warm_up(wait=False)
    closed.close()
    del pool, collected
    with tdmap.WorkerPool(1, "forkserver") as other:
        other.warm_up()
        (pid,) = other.stats()["pids"]
        assert gone({child.pid for child in psutil.Process(pid).parent().children()} - {pid})


def test_a_pool_that_nobody_holds_ends_its_workers():
    pool = tdmap.WorkerPool(1)
    pool.warm_up()
    pids = pool.stats()["pids"]
    del pool
    assert gone(pids)


def test_idle_workers_leave_and_come_back():
    with tdmap.WorkerPool(1, idle_seconds=0.05) as pool:
        first = tdmap.map(torch.zeros(3), pid_of, pool=pool).tolist()
        assert gone(first[:1])
        second = tdmap.map(torch.zeros(3), pid_of, pool=pool).tolist()
        assert first != second


def test_a_worker_killed_while_idle_is_replaced():
    with tdmap.WorkerPool(2) as pool:
        pool.warm_up()
        for pid in pool.stats()["pids"]:
            os.kill(pid, signal.SIGKILL)
        assert torch.equal(tdmap.map(torch.arange(50), lambda x: x + 1, pool=pool), torch.arange(1, 51))


@pytest.mark.parametrize(
    "option, value",
    [
        ("num_workers", 0), ("start_method", "beam"), ("worker_threads", 0), ("max_memory", 0), ("max_memory", 1.5),
        ("max_tasks_per_child", 0),
    ],
)  # fmt: skip
def test_bad_pools_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must be"):
        tdmap.WorkerPool(**{"num_workers": 1, option: value})


def test_callers_in_many_threads():
    x = torch.arange(200)
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(tdmap.map, x, lambda part, k=k: part * k, num_workers=2, chunksize=9) for k in range(8)]
        for k, job in enumerate(jobs):
            assert torch.equal(job.result(300), x * k)


def test_a_warm_fork_pool_serves_after_threads_were_started():
    x = torch.arange(50)
    assert torch.equal(tdmap.map(x, lambda part: part, num_workers=2), x)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert torch.equal(tdmap.map(x, lambda part: part + 1, num_workers=2), x + 1)
    finally:
        stop.set()
        thread.join()


def test_the_workers_of_a_thread_survive_it():
    pids = []

    def use():
        pids.extend(
            tdmap.map(torch.zeros(40), pid_of, num_workers=2, chunksize=1, mp_start_method="forkserver").tolist()
        )

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    assert len(set(pids)) <= 2


@pytest.mark.parametrize("library", [multiprocessing, multiprocess], ids=["multiprocessing", "multiprocess"])
def test_pools_of_threads_are_refused(library, data):
    with importlib.import_module(f"{library.__name__}.pool").ThreadPool(2) as pool:
        with pytest.raises(TypeError, match=r'got a ThreadPool\..* executor="thread" runs in threads'):
            tdmap.map(data, lambda td: td["x"], pool=pool)


def test_a_death_in_a_foreign_pool_is_an_error_and_not_a_hang():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        with pytest.raises(tdmap.errors.WorkerLost, match="WorkerPool"):
            tdmap.map(torch.arange(20), lambda x: os.kill(os.getpid(), 9), pool=pool, chunksize=5)


def test_inside_a_worker_of_another_pool_maps_run_serially():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with_warning = pool.apply(_map_in_child)
    assert with_warning == (True, list(range(1, 11)))


def _map_in_child():
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tdmap.map(torch.arange(10), lambda x: x + 1, num_workers=2).tolist()
    return any("serially" in str(w.message) for w in caught), result


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "option",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"executor": "thread"},
        {"mp_start_method": "spawn"},
        {"worker_threads": 2},
        {"max_tasks_per_child": 3},
        {"max_memory": 1 << 20},
    ],
    ids=str,
)
def test_a_pool_beside_options_that_start_workers_is_an_error(option, own):
    x = torch.arange(4)
    with tdmap.WorkerPool(1) if own else multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(ValueError, match=f"pool= and {next(iter(option))}="):
            tdmap.map(x, lambda part: part, pool=pool, **option)
        with tdmap.options(**option):  # which the call replaces
            assert torch.equal(tdmap.map(x, lambda part: part + 1, pool=pool), x + 1)


def test_a_fork_of_the_caller_does_not_disturb_its_pools():
    x = torch.arange(30)
    tdmap.map(x, lambda part: part, num_workers=2)
    pid = os.fork()
    if pid == 0:
        ok = not pools._warm
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(tdmap.map(x, lambda part: part + 1, num_workers=2), x + 1)


def test_descriptors_do_not_pile_up():
    def use():
        tdmap.map(torch.arange(100), lambda x: x + 1, num_workers=2, chunksize=3)
        list(tdmap.map_iter(torch.zeros(20, 20_000), lambda x: x, num_workers=2, chunksize=1))

    use()
    before, times = psutil.Process().num_fds(), 20
    for _ in range(times):
        use()
    # How many results are under way, each in memory of its own that is kept for the next, depends on who is faster.
    assert psutil.Process().num_fds() < before + times / 2
