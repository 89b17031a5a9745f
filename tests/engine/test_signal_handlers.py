"""Signal handlers that map, or raise, at any step of a map that they interrupt."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading

import psutil
import pytest
import torch

import tdmap
from tdmap.process.calls import CURRENT
from tdmap.runtime.workers import pool
from tests.engine._steps import Steps, at_steps
from tests.processes import comes_true

X = torch.arange(400)
KINDS = {
    "fork": {"num_workers": 2, "mp_start_method": "fork"},
    "forkserver": {"num_workers": 2, "mp_start_method": "forkserver"},
    "default": {"num_workers": 2},
    "thread": {"num_workers": 2, "executor": "thread"},
    "serial": {"num_workers": 0},
}


class TimeUp(Exception):
    """What a handler raises."""


@contextlib.contextmanager
def handling(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt():
    signal.raise_signal(signal.SIGUSR1)


def double(part):
    return part * 2


def run(kind, fresh):
    """A map, on workers that must start first, or on warm ones."""
    if fresh and kind in ("fork", "forkserver"):
        with tdmap.WorkerPool(2, kind) as pool:
            return tdmap.map(X, double, pool=pool, chunksize=20)
    return torch.cat(list(tdmap.map_iter(X, double, chunksize=20, **KINDS[kind])))


@pytest.mark.parametrize("inner", ["fork", "forkserver", "thread"])
@pytest.mark.parametrize("kind", ["fork", "forkserver", "thread", "serial"])
def test_a_map_in_a_handler_at_any_step_of_a_map(kind, inner):
    answers = []

    def handler(number, frame):
        try:
            answers.append(torch.equal(tdmap.map(X, torch.neg, chunksize=50, **KINDS[inner]), -X))
        except tdmap.errors.WorkerStartError as error:  # within a fork, no other fork is possible
            answers.append(inner == "fork" and "forks already" in str(error))

    for fresh in (True, False) if kind in ("fork", "forkserver") else (False,):
        run(kind, fresh)
        with handling(handler):
            for step in at_steps(12, interrupt, lambda fresh=fresh: run(kind, fresh)):
                with step:
                    assert torch.equal(run(kind, fresh), 2 * X)
    assert len(answers) > 8 and all(answers)


def test_a_handler_that_wants_the_pool_that_is_at_work_is_told_so():
    errors = []

    def handler(number, frame):
        try:
            tdmap.map(X, torch.neg, pool=pool)
        except RuntimeError as error:
            errors.append("another pool" in str(error))

    def work():
        return tdmap.map(X, double, pool=pool, chunksize=20)

    with tdmap.WorkerPool(2) as pool, handling(handler):
        work()
        for step in at_steps(60, interrupt, work):  # before and after the job, the handler gets the pool
            with step:
                assert torch.equal(work(), 2 * X)
    assert len(errors) > 10 and all(errors)


# Where the handler interrupts a finalizer, nobody can be told: that is Python's own way.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["fork", "forkserver", "thread", "serial"])
def test_an_exception_of_a_handler_at_any_step_comes_as_itself_and_leaves_order(kind):
    def handler(number, frame):
        raise TimeUp

    def work():
        return tdmap.map(X, lambda part: part * 2, chunksize=20, **KINDS[kind])

    work()
    gc.collect()
    threads, processes = set(threading.enumerate()), len(psutil.Process().children())
    came = 0
    with handling(handler):
        for step in at_steps(60, interrupt, work):
            with step:
                try:
                    work()
                except TimeUp:
                    came += 1
            assert torch.equal(work(), 2 * X)
    assert came > 30
    gc.collect()  # a traceback may hold a pool that was lost on its way to the job
    assert comes_true(lambda: set(threading.enumerate()) <= threads)
    # At most one pool that this job has made.
    assert comes_true(lambda: len(psutil.Process().children()) <= processes + 2)


def test_after_an_exception_of_a_handler_at_any_step_no_operation_is_taken_to_run():
    """Later calls would be parts of it, which have no bar and no profile of their own."""

    def handler(number, frame):
        raise TimeUp

    def work():
        return tdmap.map(X, double, num_workers=0)

    work()
    with Steps(files=("operation.py",)) as steps:
        work()
    with handling(handler):
        for at in range(1, steps.count + 1):
            with contextlib.suppress(TimeUp), Steps(at, interrupt, files=("operation.py",)):
                work()
            assert CURRENT.get() is None
    assert steps.count > 8


def test_a_handler_that_closes_all_pools_ends_the_job_with_words():
    def handler(number, frame):
        tdmap.close_pools()

    run("fork", False)
    ended = 0
    with handling(handler):
        for step in at_steps(40, interrupt, lambda: run("fork", False)):
            run("fork", False)
            with step:
                try:
                    assert torch.equal(run("fork", False), 2 * X)
                except RuntimeError as error:
                    assert "closed" in str(error)
                    ended += 1
    assert ended > 10


def test_a_handler_that_closes_all_pools_at_any_step_of_lending_them_does_no_harm(monkeypatch):
    monkeypatch.setattr(pool, "MAX_WARM", 1)

    def handler(number, frame):
        tdmap.close_pools()

    def lend():
        first, second = (pool.borrow_pool(workers, "fork", 1) for workers in (1, 2))
        for lent in (first, second):
            pool.give_back(lent)

    with Steps(files=("pool.py",)) as steps:
        lend()
    lend()
    with handling(handler):
        for at in range(1, steps.count + 1):
            with Steps(at, interrupt, files=("pool.py",)):
                try:
                    lend()
                except RuntimeError as error:
                    assert "closed" in str(error)
            lend()
    assert torch.equal(run("fork", False), 2 * X)


def test_while_the_function_is_being_packed_too():
    def handler(number, frame):
        raise TimeUp("while packing")

    class Slow:
        """Takes its time to be packed; the alarm comes meanwhile."""

        def __init__(self, nested):
            self.nested = nested

        def __reduce__(self):
            interrupt()
            return Slow, (self.nested,)

        def __call__(self, part):
            return part

    slow = Slow(1)

    with handling(handler):
        for fn in (slow, lambda part: slow(part), {"f": slow}["f"].__call__):
            with pytest.raises(TimeUp, match="while packing"):
                tdmap.map(X, fn, num_workers=2)
    with handling(lambda *_: None):
        assert torch.equal(tdmap.map(X, slow, num_workers=2), X)


def test_while_the_culprit_is_looked_for_too():
    def handler(number, frame):
        raise TimeUp

    class Stubborn:
        tries = 0

        def __reduce__(self):
            Stubborn.tries += 1
            if Stubborn.tries > 1:
                interrupt()
            raise TypeError("not me")

    held = Stubborn()
    with handling(handler), pytest.raises(TimeUp):
        tdmap.map(X, lambda part: part + len(str(held)), num_workers=2)


def test_an_exception_of_packing_itself_is_still_a_serialization_error():
    held = threading.Lock()
    gate = {"held": (value for value in ())}

    def fn(part):
        return part, gate, held

    with pytest.raises(tdmap.errors.SerializationError, match="generator"):
        tdmap.map(X, fn, num_workers=2)


@pytest.mark.parametrize("serial", [{"num_workers": 0}, {"executor": "serial"}])
def test_the_callers_alarm_is_no_bad_row(serial):
    def handler(number, frame):
        raise TimeUp

    def fn(part):
        if bool((part == 57).any()):
            interrupt()
        return part

    with handling(handler), pytest.raises(TimeUp):
        tdmap.map(X, fn, chunksize=20, on_error="skip", **serial)


def test_the_functions_own_alarm_is_a_bad_row():
    def handler(number, frame):
        raise TimeUp

    def fn(part):
        with handling(handler):
            if bool((part == 57).any()):
                interrupt()
        return part

    with pytest.warns(tdmap.SkippedRows):
        result = tdmap.map(X, fn, chunksize=20, on_error="skip", num_workers=0)
    assert torch.equal((result != X).nonzero().flatten(), torch.tensor([57]))
