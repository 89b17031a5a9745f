"""``repr`` of collections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["render"]

_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def render(td: Any) -> str:
    """The text of ``repr(td)``."""
    return f"{type(td).__name__}(batch_size={list(td.batch_size)}, fields={{{_fields(td, td.batch_dims)}}})"


def _fields(td: Any, dims: int) -> str:
    parts = []
    for key, value in td._entries():
        if isinstance(value, Tensor):
            parts.append(f"{key}: {_SHORT.get(value.dtype, str(value.dtype))}{list(value.shape[dims:])}")
        elif value._is_non_tensor:
            parts.append(f"{key}: {type(value._as_value()).__name__}")
        else:
            parts.append(f"{key}: {{{_fields(value, dims)}}}")
    return ", ".join(parts)
