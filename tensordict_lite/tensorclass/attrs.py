"""Device, dtype and shape of tensors, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.tensorclass.decorator import TensorClass
from tensordict_lite.views import as_read


class TensorAttrs(TensorClass):
    """Device, dtype and shape of one tensor; fields that were not requested are ``None``.

    Args:
        tgt_device: ``torch.device``.
        tgt_dtype: ``torch.dtype``.
        tgt_shape: ``torch.Size``.
    """

    tgt_device: Any = None
    tgt_dtype: Any = None
    tgt_shape: Any = None


def describe(td: Any, fields: Sequence[str]) -> Any:
    """The tree of ``td`` with a ``TensorAttrs`` for each tensor, without batch dimensions or device."""
    unknown = set(fields) - {"device", "dtype", "shape"}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}: expected any of 'device', 'dtype' and 'shape'")
    out: dict[str, Any] = {}
    for key, value in as_read(td._entries()):
        if isinstance(value, Tensor):
            out[key] = TensorAttrs(**{f"tgt_{name}": getattr(value, name) for name in fields}, batch_size=())
        elif value._is_non_tensor:
            out[key] = value._rebuild({}, torch.Size(()), None)
        else:
            out[key] = describe(value, fields)
    if not hasattr(type(td), "__dataclass_fields__"):
        return td._plain_class()._trusted(out, torch.Size(()), None, None)
    new = td._rebuild(out, torch.Size(()), None)  # the fields of a tensorclass
    new._device = None
    return new
