"""What the members of a lazy stack have in common: batch size, device, names, and errors where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import normalise_device

__all__ = ["is_ragged", "member_device", "member_names", "member_size", "stack_error", "stack_position"]


def member_size(members: Sequence[Any], strict: bool) -> torch.Size:
    """The batch size of the members, -1 where they differ."""
    size = members[0]._batch_size
    for member in members[1:]:
        other = member._batch_size
        if other == size:
            continue
        if strict or len(other) != len(size):
            raise RuntimeError(
                f"stacking tensordicts requires them to have congruent batch sizes, got {list(size)} and {list(other)}"
                + ("" if len(other) != len(size) else " (strict_shape=False allows different lengths)")
            )
        size = torch.Size([a if a == b else -1 for a, b in zip(size, other)])
    return size


def stack_position(dim: int, member_dims: int) -> int:
    at = dim + member_dims + 1 if dim < 0 else dim
    if not 0 <= at <= member_dims:
        raise RuntimeError(
            f"stack dim {dim} is out of range for members with {member_dims} batch dimension(s): it may be "
            f"{-member_dims - 1} to {member_dims}"
        )
    return at


def member_device(members: Sequence[Any], device: Any) -> torch.device | None:
    if not members:
        return None if device is None else normalise_device(device)
    first = members[0]._device
    for member in members:
        if member._device != first:
            raise RuntimeError(f"devices differ, got {first} and {member._device}")
    return first


def member_names(members: Sequence[Any], dim: int, stack_name: str | None) -> list[str | None] | None:
    first = members[0]._names if members else None
    for member in members:
        if member._names != first:
            raise ValueError(f"Not all dim names match, got {members[0].names} and {member.names}.")
    if first is None and stack_name is None:
        return None
    names = members[0].names if members else []
    return [*names[:dim], stack_name, *names[dim:]]


def is_ragged(items: Sequence[Any]) -> bool:
    """Whether a list of values, one a member, holds tensors or collections of different shapes."""
    if not all(isinstance(item, (Tensor, TensorCollection)) for item in items):
        return False
    return any(item.shape != items[0].shape for item in items)


def stack_error(values: Sequence[Any], key: str, err: Exception | None) -> Exception:
    if not all(isinstance(value, Tensor) for value in values):
        kinds = sorted({type(value).__name__ for value in values})
        return TypeError(
            f"the entry {key!r} cannot be stacked: it is a {' in one member and a '.join(kinds)} in another"
        )
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) == 1:
        return RuntimeError(f"failed to stack the entry {key!r}: {err}")
    shown = f"{shapes[:8]}{'...' if len(shapes) > 8 else ''}"
    return RuntimeError(
        f"Failed to stack tensors within a tensordict under the key {key!r}: their shapes are {shown}. To read them, "
        "pass as_padded_tensor=True, as_nested_tensor=True or as_list=True to get()."
    )
