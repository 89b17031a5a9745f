"""Fixtures of the engine's tests."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict

POOL = "a pool of the standard library"
WORKERS = ("here", "threads", "fork", "forkserver", POOL)
"""The parameters of `workers`."""


@contextlib.contextmanager
def put(setter: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    """A setting, as long as the block runs."""
    setter(value)
    try:
        yield
    finally:
        setter(before)


@pytest.fixture
def data() -> TensorDict:
    """40 rows: a float matrix and a nested counter."""
    x = torch.arange(120.0).reshape(40, 3)
    return TensorDict({"x": x, "meta": {"row": torch.arange(40)}}, batch_size=[40])


@pytest.fixture(params=["serial", "thread", "process"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`tdmap.map` on each executor, with two workers."""
    return lambda data, fn, *args, **options: tdmap.map(
        data, fn, *args, executor=request.param, **{"num_workers": 2, **options}
    )


@pytest.fixture(scope="module", params=WORKERS)
def workers(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Options of each way to run functions."""
    if request.param == POOL:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            yield {"pool": pool}
    elif request.param in ("fork", "forkserver"):
        yield {"num_workers": 2, "mp_start_method": request.param}
    else:
        yield {"num_workers": 0} if request.param == "here" else {"num_workers": 2, "executor": "thread"}
