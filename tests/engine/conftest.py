"""Fixtures of the engine's tests: no process may be left behind."""

from __future__ import annotations

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


@pytest.fixture(scope="session", autouse=True)
def _end_workers_at_the_end():
    yield
    tdmap.close_pools()


@pytest.fixture
def data() -> TensorDict:
    """40 rows: a float matrix and a nested counter."""
    x = torch.arange(120.0).reshape(40, 3)
    return TensorDict({"x": x, "meta": {"row": torch.arange(40)}}, batch_size=[40])
