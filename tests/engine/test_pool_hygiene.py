"""Pools that replace worn-out workers, and what they tell about themselves."""

import contextlib
import os
import pickle
import signal
import threading
import time

import psutil
import pytest
import torch

import tdmap
from tdmap import tuning
from tests.processes import comes_true

METHODS = ["fork", "forkserver"]


def pid_of(x):
    return torch.full((len(x),), os.getpid())


def test_a_pool_replaces_workers_after_so_many_chunks():
    with tdmap.WorkerPool(1, max_tasks_per_child=4) as pool:
        pids = tdmap.map(torch.zeros(12), pid_of, pool=pool, chunksize=1).tolist()
        assert len(set(pids)) == 3 and all(pids.count(pid) == 4 for pid in pids)
        pids = tdmap.map(torch.zeros(6), pid_of, pool=pool, chunksize=1).tolist()
        assert len(set(pids)) == 2
        stats = pool.stats()
        assert stats["restarts"] == stats["recycled"] == 4 and stats["lost"] == 0
        assert stats["total_rows"] == 18


def hoarding(x, hoard=[]):  # noqa: B006
    hoard.append(bytearray(os.urandom(1)) * (8 << 20))
    return pid_of(x)


@pytest.mark.parametrize("limit", [{"max_tasks_per_child": 4}, {"max_memory": 40 << 20}], ids=str)
def test_a_call_may_limit_what_a_worker_does(limit):
    pids = tdmap.map(torch.zeros(30), hoarding, num_workers=1, chunksize=1, **limit).tolist()
    assert len(set(pids)) >= 2
    assert "max_memory" in limit or max(map(pids.count, pids)) <= 4


def test_a_worn_worker_does_not_take_part_in_the_next_job():
    with tdmap.WorkerPool(2, max_tasks_per_child=1) as pool:
        first = set(tdmap.map(torch.zeros(2), pid_of, pool=pool, chunksize=1).tolist())
        second = set(tdmap.map(torch.zeros(2), pid_of, pool=pool, chunksize=1).tolist())
        assert len(first) == len(second) == 2 and not first & second


def leak_in(method):
    """A function that keeps 40 MB a chunk for ever: malloc never takes so much from what a fork was born with."""
    hoard = []

    def leak(x):
        hoard.append(bytearray(os.urandom(1)) * (40 << 20))
        return torch.stack([x, torch.full((len(x),), os.getpid())], 1)

    return leak


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_grows_too_large_is_replaced_between_chunks(method):
    limit = 200 << 20
    with tdmap.WorkerPool(1, method, max_memory=limit) as pool:
        result = tdmap.map(torch.arange(30), leak_in(method), pool=pool, chunksize=1)
        stats = pool.stats()
    assert torch.equal(result[:, 0], torch.arange(30))
    chunks = result[:, 1].unique(return_counts=True)[1]
    assert stats["recycled"] >= 2 and stats["lost"] == 0
    assert 5 <= int(chunks.max()) and len(chunks) == stats["started"] - (len(stats["rows"]) - _used(stats))


def _used(stats):
    """Workers alive that have run anything."""
    return sum(rows > 0 for rows in stats["rows"].values())


def test_mapped_and_shared_memory_do_not_count(tmp_path):
    from tensordict_lite import TensorDict

    data = TensorDict({"x": torch.ones(64, 1 << 18)}, [64]).memmap_(tmp_path / "td")  # 64 MiB
    out = TensorDict({"x": torch.zeros(64, 1 << 18)}, [64]).memmap_(tmp_path / "out")
    with tdmap.WorkerPool(1, max_memory=48 << 20) as pool:
        tdmap.map(data, lambda td: td.apply(lambda x: x + 1), pool=pool, out=out, chunksize=4)
        assert pool.stats()["recycled"] == 0
    assert (out["x"] == 2).all()


def test_in_place_work_is_exact_while_workers_are_replaced():
    x = torch.arange(200)
    with tdmap.WorkerPool(2, max_tasks_per_child=3) as pool:
        tdmap.map(x, lambda part: part.add_(1), out=x, pool=pool, chunksize=2)
    assert torch.equal(x, torch.arange(200) + 1)


def test_replaced_workers_leave_no_descriptors_and_no_processes():
    def use():
        with tdmap.WorkerPool(2, max_tasks_per_child=2) as pool:
            tdmap.map(torch.zeros(40), lambda x: x, pool=pool, chunksize=1)

    use()
    descriptors, children = psutil.Process().num_fds(), len(psutil.Process().children())
    use()  # replaces some twenty workers
    assert comes_true(lambda: psutil.Process().num_fds() < descriptors + 10)
    assert comes_true(lambda: len(psutil.Process().children()) <= children)


def test_stats_count_rows_chunks_and_memory():
    with tdmap.WorkerPool(2) as pool:
        assert pool.stats()["alive"] == 0 and pool.stats()["total_rows"] == 0
        tdmap.map(torch.zeros(100), pid_of, pool=pool, chunksize=3)
        list(tdmap.map_iter(torch.zeros(50), pid_of, pool=pool, chunksize=3))
        stats = pool.stats()
    assert stats["total_rows"] == sum(stats["rows"].values()) == 150
    assert set(stats["rows"]) == set(stats["chunks"]) == set(stats["memory"]) == set(stats["pids"])
    # One worker may have done all before the other had come up.
    assert all(stats["peak_memory"][pid] > 0 for pid, rows in stats["rows"].items() if rows)
    assert stats["started"] == 2 and stats["restarts"] == 0


def test_a_pool_that_is_taken_for_a_loop_says_so_in_the_loop():
    x = torch.arange(40)
    with tdmap.WorkerPool(2) as pool:
        parts = tdmap.map_iter(x, lambda part: part + 1, pool=pool, chunksize=4)
        first = next(parts)
        with pytest.raises(RuntimeError, match="has not finished: close that iterator"):
            tdmap.map(first, torch.neg, pool=pool)
        assert torch.equal(tdmap.map(first, torch.neg, num_workers=2), -first)  # a pool of its own
        assert torch.equal(torch.cat([first, *parts]), x + 1)
        assert torch.equal(tdmap.map(x, torch.neg, pool=pool), -x)


def test_a_pool_cannot_be_sent():
    with tdmap.WorkerPool(1) as pool:
        with pytest.raises(TypeError, match="belongs to the process that made it"):
            pickle.dumps(pool)
        with pytest.raises(tdmap.errors.SerializationError, match="'pool'.*belongs to the process"):
            tdmap.map(torch.arange(4), lambda x: tdmap.map(x, torch.neg, pool=pool), pool=pool)


@pytest.mark.parametrize("when", ["idle", "at work"])
@tuning.use(start_seconds=0.5)
def test_a_worker_that_was_stopped_is_replaced_after_the_timeout(when, tmp_path):
    def stop(part):
        """Stops the first worker that comes to the middle."""
        if when == "at work" and int(part[0]) == 150:
            with contextlib.suppress(FileExistsError):
                (tmp_path / "stopped").mkdir()
                (tmp_path / str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGSTOP)
        return part

    x = torch.arange(300)
    with tdmap.WorkerPool(2) as pool:
        pool.warm_up()
        stopped = pool.stats()["pids"][0]
        if when == "idle":
            os.kill(stopped, signal.SIGSTOP)
        # On a busy machine others may take as long: they have as many tries as they need.
        assert torch.equal(tdmap.map(x, stop, pool=pool, chunksize=1, timeout=0.5, retries=1000), x)
        if when == "at work":
            stopped = int(next(path.name for path in tmp_path.iterdir() if path.name != "stopped"))
        assert pool.stats()["lost"] >= 1 and stopped not in pool.stats()["pids"]


def test_a_worker_that_was_stopped_and_goes_on_loses_nothing(tmp_path):
    def stop_once(part):
        if int(part[0]) == 20:
            (tmp_path / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return part

    def wake():
        comes_true(lambda: os.listdir(tmp_path))
        pid = int(os.listdir(tmp_path)[0])
        comes_true(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        time.sleep(0.7)
        os.kill(pid, signal.SIGCONT)

    x = torch.arange(300)
    with tdmap.WorkerPool(2) as pool:
        waker = threading.Thread(target=wake)
        pool.warm_up()
        waker.start()
        assert torch.equal(tdmap.map(x, stop_once, pool=pool, chunksize=1), x)
        waker.join()
        assert pool.stats()["lost"] == 0
