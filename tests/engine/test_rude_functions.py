"""Functions that do what nobody should: each ends in a result, or in an error that names the rows."""

import functools
import os
import signal
import sys
import threading

import pytest
import torch

import tdmap
from tdmap.errors import RemoteError

X = torch.arange(60.0)


class Odd(BaseException):
    """Not an Exception."""


class Picky(Exception):
    """Cannot be made from its arguments."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def on_row_32(deed):
    def fn(x):
        if 32 in x:
            deed()
        return x + 1

    return fn


def throw(error):
    raise error


@pytest.fixture(params=["process", "thread"])
def options(request):
    return {"executor": request.param, "num_workers": 2, "chunksize": 4}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(0), r"sys.exit\(0\)"),
        (SystemExit("bye"), r"sys.exit\('bye'\)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(), r"raised StopIteration\(\)"),
        (Odd("strange"), "strange"),
    ],
    ids=["exit 0", "exit text", "interrupt", "generator exit", "stop iteration", "own"],
)
def test_what_would_end_a_program_is_an_error_of_its_rows(options, error, text):
    with pytest.raises(RemoteError, match=text) as caught:
        tdmap.map(X, on_row_32(lambda: throw(error)), **options)
    assert "rows 32:36" in caught.value.__notes__[0]


def test_rows_in_place_are_put_back_then(options):
    x = torch.zeros(60)

    def spoil(part):
        part.add_(1)
        raise Odd

    with pytest.raises(RemoteError):
        tdmap.map(x, spoil, out=x, **options)
    assert not x.any()


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_exceptions_that_are_hard_to_carry(executor):
    options = {"executor": executor, "num_workers": 1, "chunksize": 4}
    with pytest.raises(Exception, match="this and that"):
        tdmap.map(X, on_row_32(lambda: throw(Picky("this", "that"))), **options)

    def deep(n=0):
        return deep(n + 1)

    with pytest.raises(RecursionError):
        tdmap.map(X, on_row_32(deep), **options)
    with pytest.raises(MemoryError):
        tdmap.map(X, on_row_32(lambda: bytearray(1 << 46)), **options)


def return_twice():
    """Fork, and let the child go on, as someone does who forgets to exit."""
    os.fork()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_child_that_returns_from_the_function_runs_no_chunk(method, capfd):
    x = torch.zeros(4000)
    seen = threading.Event()

    def once(part):
        part.add_(1)
        if not seen.is_set():
            seen.set()
            return_twice()

    tdmap.map(x, once, out=x, chunksize=4, num_workers=1, mp_start_method=method)
    # The row of the fork has been changed by both, before they parted or not; no other row may be.
    assert torch.equal(x, torch.ones(4000))


def map_in_a_child(x):
    child = os.fork()
    if child == 0:
        same = torch.equal(tdmap.map(x, torch.neg, executor="serial"), -x)
        os._exit(7 if same else 1)
    return x * 0 + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_of_a_worker_may_map():
    assert set(tdmap.map(X, map_in_a_child, num_workers=1, chunksize=30).tolist()) == {7.0}


def test_descriptors_that_are_closed_harm_only_their_worker():
    for low, high in ((0, 3), (3, 4096), (0, 4096)):
        close = functools.partial(os.closerange, low, high)
        assert torch.equal(tdmap.map(X, on_row_32(close), num_workers=2, chunksize=4), X + 1)
    assert torch.equal(tdmap.map(X, torch.neg, num_workers=2, chunksize=4), -X)


def settings_of(x):
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()


def upset(x):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout = sys.stderr = None
    return x


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_settings_of_one_function_are_gone_for_the_next(method):
    with tdmap.WorkerPool(1, method) as pool:
        tdmap.map(X, upset, pool=pool)
        assert list(tdmap.map_iter(X, settings_of, pool=pool, num_chunks=1)) == [(torch.float32, True, 1)]
