"""An iterator that nobody will finish is collected: anywhere, in any thread and process. No other job notices."""

import gc
import os
import threading
import warnings

import pytest
import torch

import tdmap
from tdmap import seeding, tuning
from tensordict_lite import TensorDict
from tests.engine._steps import KINDS, Steps, spread

X = torch.arange(400)


@pytest.fixture(autouse=True)
def _only_our_collections():
    """The collector runs when a test says so, and what goes wrong in it is an error."""
    gc.collect()
    # What pytest holds need not be looked through each time. It stays so: `gc.unfreeze` would undo what the session did
    # for all tests (see conftest.py), and each collection of those that follow would take a second.
    gc.freeze()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error", pytest.PytestUnraisableExceptionWarning)
        yield
        gc.collect()
    gc.enable()


def double(part):
    return part * 2


def slow(part):
    """So slow that the driver has not heard of every lease when an iterator is left."""
    threading.Event().wait(0.002)
    return part * 2


def leave(kind, pool=None):
    """An iterator that is at work, and that only the collector can end."""

    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself = cycle
    if kind == "pipeline":
        rows = TensorDict({"x": X}, [400]).pipeline().map(lambda td: slow(td["x"])).batch(5)
        cycle.rows = iter(rows.iter(num_workers=2, chunksize=5))
    elif pool is not None:
        cycle.rows = tdmap.map_iter(X, slow, pool=pool, chunksize=5)
    else:
        cycle.rows = tdmap.map_iter(X, slow, chunksize=5, **KINDS[kind])
    for _ in range(3):  # from the second on, workers have leases that have not been answered
        next(cycle.rows)


def collecting(part):
    gc.collect()
    return part * 2


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_in_a_worker_while_the_pool_of_the_iterator_is_at_work_again(method):
    with tdmap.WorkerPool(2, method) as pool, tdmap.WorkerPool(2, "fork") as other:
        leave("", pool)
        other.warm_up()  # forked now, so that these workers have copies of the iterator
        gc.collect()
        rows = tdmap.map_iter(X, slow, chunksize=5, pool=pool)
        got = [next(rows) for _ in range(3)]
        assert torch.equal(tdmap.map(X, collecting, pool=other, chunksize=20), 2 * X)
        assert torch.equal(torch.cat([*got, *rows]), 2 * X)


@pytest.mark.parametrize("kind", [*KINDS, "pipeline"])
def test_in_a_worker_of_another_job(kind):
    leave(kind)
    with tdmap.WorkerPool(2, "fork") as pool:
        assert torch.equal(tdmap.map(X, collecting, pool=pool, chunksize=20), 2 * X)
    gc.collect()
    assert torch.equal(tdmap.map(X, double, chunksize=20, **KINDS.get(kind, KINDS["fork"])), 2 * X)


@pytest.mark.parametrize("inner", ["fork", "thread", "seeded thread", "serial"])
@pytest.mark.parametrize("kind", [*KINDS, "pipeline"])
def test_in_a_function_or_a_callback_of_another_job(kind, inner):
    class Collect(tdmap.events.Callback):
        def on_lease_done(self, event):
            gc.collect()

    for options in ({"callbacks": [Collect()]}, {}):
        leave(kind)
        fn = double if options or inner == "fork" else collecting
        assert torch.equal(tdmap.map(X, fn, chunksize=20, **KINDS[inner], **options), 2 * X)
        gc.collect()


@pytest.mark.parametrize("kind", [*KINDS, "pipeline"])
def test_in_another_thread(kind):
    ended = []

    def collect():
        gc.collect()
        ended.append(True)

    leave(kind)
    rows = tdmap.map_iter(X, double, num_workers=2, chunksize=10)
    got = [next(rows)]
    thread = threading.Thread(target=collect)
    thread.start()
    got += list(rows)
    thread.join(300)
    assert ended and torch.equal(torch.cat(got), 2 * X)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_its_workers_go_on_with_the_next_job(method):
    """The collector may run in another thread, which would close a pool that the next job has taken already."""

    def pid(part):
        return torch.full((len(part),), os.getpid())

    class Cycle:
        pass

    options = {"num_workers": 1, "mp_start_method": method, "chunksize": 5}
    cycle = Cycle()
    cycle.itself, cycle.rows = cycle, tdmap.map_iter(X, pid, **options)
    first = next(cycle.rows)
    del cycle
    gc.collect()
    assert torch.equal(tdmap.map(X, pid, **options), first[0].expand(400))


def test_in_a_thread_of_its_own_executor():
    started, collected = threading.Event(), threading.Event()
    others = set(threading.enumerate())  # those of stores stay as long as the process

    def slow(part):
        if int(part[0]) == 0:
            started.wait(300)
        elif int(part[0]) == 5:
            started.set()
            collected.wait(300)
            gc.collect()
        return part

    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself, cycle.rows = cycle, tdmap.map_iter(X, slow, num_workers=2, chunksize=5, executor="thread")
    next(cycle.rows)
    before = threading.active_count()
    del cycle
    collected.set()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("tdmap-"):
            thread.join(300)
    assert threading.active_count() < before
    assert torch.equal(tdmap.map(X, double, num_workers=2, executor="thread"), 2 * X)


@tuning.use(leave_seconds=0.2)
def test_by_a_thread_that_holds_what_the_function_waits_for():
    started, lock, ended = threading.Event(), threading.Lock(), threading.Event()

    def locked(part):
        if int(part[0]) == 0:
            started.wait(300)
        elif int(part[0]) == 5:
            started.set()
            with lock:
                ended.set()
        return part

    class Cycle:
        pass

    cycle = Cycle()
    with lock:
        cycle.itself = cycle
        cycle.rows = tdmap.map_iter(X, locked, num_workers=2, chunksize=5, executor="thread")
        next(cycle.rows)
        del cycle
        gc.collect()  # must not wait for the lock for ever
        assert not ended.is_set()
    assert ended.wait(300)
    assert torch.equal(tdmap.map(X, double, num_workers=2), 2 * X)


def test_with_the_pool_that_it_works_on():
    for _ in range(3):
        leave("", tdmap.WorkerPool(2))
        gc.collect()
    assert torch.equal(tdmap.map(X, double, num_workers=2), 2 * X)


@pytest.mark.parametrize("method, most", [("fork", 12), ("forkserver", 5)])
def test_at_any_step_of_another_job(method, most):
    def run():
        with tdmap.WorkerPool(2, method) as pool:  # so that workers start, too
            return tdmap.map(X, double, pool=pool, chunksize=20)

    leave(method)
    with Steps(files=("launch.py", "process_state.py", "pool.py", "processes.py", "driver.py")) as steps:
        run()
    gc.collect()
    for at in spread(steps.count, most):
        leave(method)
        with Steps(at, gc.collect, files=("launch.py", "process_state.py", "pool.py", "processes.py", "driver.py")):
            assert torch.equal(run(), 2 * X)
        gc.collect()


def test_random_streams_are_put_back_after_the_last_seeded_job():
    def draw(part):
        gc.collect()
        return torch.rand(len(part))

    class Cycle:
        pass

    wanted = tdmap.map(X, draw, seed=3, num_workers=0, chunksize=50)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    cycle = Cycle()
    cycle.itself = cycle
    cycle.rows = tdmap.map_iter(X, double, seed=1, num_workers=2, executor="thread", chunksize=400)
    next(cycle.rows)  # its thread, which shares the streams with this one, begins no chunk any more
    del cycle
    # Were streams put back when it is closed, within a chunk of the other job, that one would draw other numbers.
    assert torch.equal(tdmap.map(X, draw, seed=3, num_workers=0, chunksize=50), wanted)
    gc.collect()
    assert torch.equal(torch.get_rng_state(), before) and not seeding._turn._line
