"""Device, dtype and shape of tensors, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe"]


def describe(td: Any, fields: Sequence[str]) -> Any:
    """The tree of ``td`` with a ``TensorAttrs`` for each tensor, without batch dimensions or device."""
    from tensordict_lite.tensorclass import TensorAttrs

    unknown = set(fields) - {"device", "dtype", "shape"}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}: expected any of 'device', 'dtype' and 'shape'")
    out: dict[str, Any] = {}
    for key, value in td._entries():
        if isinstance(value, Tensor):
            out[key] = TensorAttrs(**{f"tgt_{name}": getattr(value, name) for name in fields}, batch_size=())
        elif value._is_non_tensor:
            out[key] = value._rebuild({}, torch.Size(()), None)
        else:
            out[key] = describe(value, fields)
    return td._plain_class()._trusted(out, torch.Size(()), None, None)
