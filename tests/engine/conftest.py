"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest
import torch

from tensordict_lite import TensorDict


@pytest.fixture
def data() -> TensorDict:
    """40 rows: a float matrix and a nested counter."""
    x = torch.arange(120.0).reshape(40, 3)
    return TensorDict({"x": x, "meta": {"row": torch.arange(40)}}, batch_size=[40])
