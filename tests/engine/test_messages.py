"""Warnings name the user's line, and messages are grammatical."""

import os
import signal
import time
import warnings

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


def place_of(category, call):
    """File and line of the warning that `call` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (found,) = [warning for warning in caught if issubclass(warning.category, category)]
    return found.filename, found.lineno


def fail_first(td):
    if 0 in td["x"]:
        raise ValueError
    return td


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_a_warning_about_skipped_rows_names_the_line_of_the_call(executor):
    td = TensorDict({"x": torch.arange(6)}, [6])
    options = {"on_error": "skip", "executor": executor, "num_workers": 1}
    calls = [
        lambda: tdmap.map(td, fail_first, **options),
        lambda: td.map(fail_first, **options),
        lambda: list(td.map_iter(fail_first, **options)),
        lambda: tdmap.map_reduce(td, fail_first, tdmap.reducers.Count(), **options),
    ]
    for call in calls:
        assert place_of(tdmap.errors.SkippedRows, call) == (__file__, call.__code__.co_firstlineno)


def test_a_warning_about_a_run_that_is_complete_names_the_line_of_the_call(tmp_path):
    td = TensorDict({"x": torch.arange(6)}, [6])
    call = lambda: td.map(torch.clone, out=tmp_path / "out", resume=True, num_workers=1)  # noqa: E731
    call()
    assert place_of(tdmap.errors.AlreadyComplete, call) == (__file__, call.__code__.co_firstlineno)


def inner(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tdmap.map(x, torch.neg)
    # A fork may collect, and be warned of, what tests before this one have left open.
    return [(w.filename, w.lineno) for w in caught if not issubclass(w.category, ResourceWarning)]


def test_a_warning_about_a_nested_map_names_the_line_of_the_inner_call():
    (found,) = tdmap.map_iter(torch.zeros(2), inner, num_workers=1, chunksize=2)
    assert found == [(__file__, inner.__code__.co_firstlineno + 3)]


@pytest.mark.parametrize(
    ("retries", "text"),
    [(0, "stopped after 1 attempt: row 0 ran longer"), (2, "stopped after 3 attempts: row 0 ran longer")],
)
def test_how_often_a_chunk_was_stopped(retries, text):
    with pytest.raises(tdmap.errors.ChunkTimeout, match=text):
        tdmap.map(torch.zeros(1), lambda x: time.sleep(60), num_workers=1, timeout=0.15, retries=retries)


@pytest.mark.parametrize(
    ("retries", "text"),
    [
        (0, r"the worker \(in worker process \d+\) died: killed by"),
        (1, r"2 workers died, the last one \(in .*\): killed by"),
    ],
)
def test_how_many_workers_died(retries, text):
    with pytest.raises(tdmap.errors.WorkerLost, match=text):
        tdmap.map(torch.zeros(1), lambda x: os.kill(os.getpid(), signal.SIGKILL), num_workers=1, retries=retries)
