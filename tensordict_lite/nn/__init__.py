"""Parameters of modules as collections."""

from __future__ import annotations

from tensordict_lite.nn.params import TensorDictParams

__all__ = ["TensorDictParams"]
