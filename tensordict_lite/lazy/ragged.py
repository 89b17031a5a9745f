"""Tensors of different shapes as one: nested or padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.keys import NestedKey

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection


def member_tensors(node: TensorCollection, path: tuple[str, ...]) -> Any:
    """The tensors of the members at a path, a list for each stack on the way; ``None`` where no tensor stands there.

    Raises:
        KeyError: a member has no such entry.
        KeyThroughLeafError: a tensor stands on the way.
    """
    if type(node._source) is list and not node._is_non_tensor:
        values = [member_tensors(member, path) for member in node._source]
        return None if any(value is None for value in values) else values
    value = node._get_str(path[0])
    if isinstance(value, Tensor):
        if len(path) > 1:
            raise KeyThroughLeafError(
                f"{path[0]!r} is a {type(value).__name__}, not a tensordict, so it has no entry {path[1]!r}"
            )
        return value
    return member_tensors(value, path[1:]) if len(path) > 1 else None


def nested(values: Sequence[Any], layout: torch.layout | None = None) -> Tensor:
    """A nested tensor of the given ones, jagged unless that layout cannot hold them or another one is requested."""
    values = list(values)
    if isinstance(values[0], list):
        raise ValueError(
            "a nested tensor holds one level of tensors, but the members of this stack are stacks: use as_list=True or "
            "as_padded_tensor=True"
        )
    if layout is None:
        try:
            return torch.nested.nested_tensor(values, layout=torch.jagged)
        except RuntimeError:  # several ragged dimensions, or none at all
            layout = torch.strided
    return torch.nested.nested_tensor(values, layout=layout)


def padded(values: Sequence[Any], side: str, value: float, key: NestedKey) -> Tensor:
    """One tensor ``[len(values), *longest]``, the shorter ones filled with ``value`` at the ``side``.

    Lists among the values are padded first.

    Raises:
        RuntimeError: the numbers of dimensions differ.
        ValueError: ``side`` is neither ``"right"`` nor ``"left"``.
    """
    if side not in ("right", "left"):
        raise ValueError(f"padding_side is 'right' or 'left', got {side!r}")
    values = [padded(item, side, value, key) if isinstance(item, list) else item for item in values]
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
