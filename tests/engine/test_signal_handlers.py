"""Signal handlers that raise, close pools or want the pool of the map that they interrupt."""

import contextlib
import functools
import gc
import signal
import threading

import fsspec
import psutil
import pytest
import torch
from torch.overrides import TorchFunctionMode

import tdmap
from tensordict_lite import NonTensorStack, TensorDict, lazy_stack
from tests.engine._steps import KINDS, at_steps
from tests.processes import comes_true

X = torch.arange(400)


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


def test_a_handler_that_wants_the_pool_that_is_at_work_is_told_so():
    errors = []

    def handler(number, frame):
        try:
            tdmap.map(X, torch.neg, pool=pool)
        except RuntimeError as error:
            errors.append("in use by an iterator" in str(error))

    def work():
        return tdmap.map(X, double, pool=pool, chunksize=20)

    with tdmap.WorkerPool(2) as pool, handling(handler):
        work()
        for step in at_steps(30, interrupt, work):  # before and after the job, the handler gets the pool
            with step:
                assert torch.equal(work(), 2 * X)
    assert len(errors) > 5 and all(errors)


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
        for step in at_steps(16, interrupt, work):
            with step:
                try:
                    work()
                except TimeUp:
                    came += 1
            assert torch.equal(work(), 2 * X)
    assert came > 7
    gc.collect()  # a traceback may hold a pool that was lost on its way to the job
    assert comes_true(lambda: set(threading.enumerate()) <= threads)
    # At most one pool that this job has made.
    assert comes_true(lambda: len(psutil.Process().children()) <= processes + 2)


def test_a_handler_that_closes_all_pools_ends_the_job_with_words():
    def handler(number, frame):
        tdmap.close_pools()

    run("fork", False)
    ended = 0
    with handling(handler):
        for step in at_steps(10, interrupt, lambda: run("fork", False)):
            run("fork", False)
            with step:
                try:
                    assert torch.equal(run("fork", False), 2 * X)
                except RuntimeError as error:
                    assert "closed" in str(error)
                    ended += 1
    assert ended > 2


class Interrupting:
    """Takes its time to be packed; the alarm comes at the n-th attempt. `error` is raised by each one."""

    def __init__(self, at=1, error=None):
        self.at, self.error, self.attempts = at, error, 0

    def __reduce__(self):
        self.attempts += 1
        if self.attempts == self.at:
            interrupt()
        if self.error is not None:
            raise self.error
        return Interrupting, ()

    def __call__(self, part, **options):
        return part


class Stacking(TorchFunctionMode):
    """The alarm comes while torch stacks the members of a lazy stack."""

    def __torch_function__(self, fn, types, args=(), kwargs=None):
        if fn is torch.stack:
            interrupt()
        return fn(*args, **(kwargs or {}))


class AlarmFileSystem(fsspec.AbstractFileSystem):
    """A store whose answer takes so long that the alarm comes."""

    protocol = "alarm"

    def info(self, path, **options):
        interrupt()

    ls = cat_file = cat = cat_ranges = info


def pack_lambda():
    fn = Interrupting()
    tdmap.map(X, lambda part: fn(part), num_workers=2)


def open_store():
    fsspec.register_implementation("alarm", f"{__name__}.AlarmFileSystem", clobber=True)
    tdmap.open("alarm://bucket/data")


def run_on_no_rows():
    tdmap.map(X[:0], lambda part: interrupt(), num_workers=0)


def write_members():
    rows = lazy_stack([TensorDict({"x": x}, []) for x in X])
    with Stacking():
        tdmap.shuffle(rows, 0)


PLACES = {
    "packing a function": lambda: tdmap.map(X, Interrupting(), num_workers=2),
    "packing a function by value": pack_lambda,
    "packing a method": lambda: tdmap.map(X, Interrupting().__call__, num_workers=2),
    "packing options of a function": lambda: tdmap.map(X, double, fn_kwargs={"option": Interrupting()}, num_workers=2),
    "looking for what cannot be packed": lambda: tdmap.map(
        X, functools.partial(double, option=Interrupting(2, TypeError("not me"))), num_workers=2
    ),
    "packing the data": lambda: tdmap.map(
        TensorDict({"x": X[:2], "o": NonTensorStack(Interrupting(), Interrupting())}, [2]), double, num_workers=2
    ),
    "a function on no rows": run_on_no_rows,
    "opening a store": open_store,
    "stacking members": write_members,
}


@pytest.mark.parametrize("error", [TimeUp, TimeoutError], ids=lambda error: error.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_an_alarm_comes_as_itself_wherever_the_engine_expects_an_error(place, error):
    came = []

    def handler(number, frame):
        came.append(place)
        raise error("time is up")

    with handling(handler), pytest.raises(error, match="time is up"):
        PLACES[place]()
    assert len(came) == 1


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

    with pytest.warns(tdmap.errors.SkippedRows):
        result = tdmap.map(X, fn, chunksize=20, on_error="skip", num_workers=0)
    assert torch.equal((result != X).nonzero().flatten(), torch.tensor([57]))
