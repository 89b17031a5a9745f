"""Fixtures of the engine's tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict

POOL = "a pool of the standard library"


@pytest.fixture
def data() -> TensorDict:
    """40 rows: a float matrix and a nested counter."""
    x = torch.arange(120.0).reshape(40, 3)
    return TensorDict({"x": x, "meta": {"row": torch.arange(40)}}, batch_size=[40])


@pytest.fixture(scope="module", params=["here", "threads", "fork", "forkserver", POOL])
def workers(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Options of each way to run functions."""
    if request.param == POOL:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            yield {"pool": pool}
    elif request.param in ("fork", "forkserver"):
        yield {"num_workers": 2, "mp_start_method": request.param}
    else:
        yield {"num_workers": 0} if request.param == "here" else {"num_workers": 2, "executor": "thread"}
