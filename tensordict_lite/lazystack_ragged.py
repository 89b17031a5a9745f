"""Tensors of different shapes as one: nested or padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["nested", "padded"]


def nested(values: Sequence[Tensor], layout: torch.layout | None = None) -> Tensor:
    """A nested tensor of the given ones, jagged unless that layout cannot hold them or another one is asked for."""
    values = list(values)
    if layout is None:
        try:
            return torch.nested.nested_tensor(values, layout=torch.jagged)
        except RuntimeError:  # several ragged dimensions, or none at all
            layout = torch.strided
    return torch.nested.nested_tensor(values, layout=layout)


def padded(values: Sequence[Tensor], side: str, value: float, key: Any) -> Tensor:
    """One tensor ``[len(values), *longest]``, the shorter ones filled with ``value`` at the ``side``.

    Raises:
        RuntimeError: the numbers of dimensions differ.
        ValueError: ``side`` is neither ``"right"`` nor ``"left"``.
    """
    if side not in ("right", "left"):
        raise ValueError(f"padding_side is 'right' or 'left', got {side!r}")
    ndim = values[0].ndim
    if any(item.ndim != ndim for item in values):
        raise RuntimeError(
            f"the entry {key!r} cannot be padded: its tensors have {sorted({item.ndim for item in values})} dimensions"
        )
    longest = [max(item.shape[d] for item in values) for d in range(ndim)]
    out = values[0].new_full((len(values), *longest), value)
    for row, item in zip(out, values):
        window = row
        for d, n in enumerate(item.shape):
            window = window.narrow(d, 0 if side == "right" else longest[d] - n, n)
        window.copy_(item)
    return out
