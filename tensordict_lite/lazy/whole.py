"""Members of a lazy stack that are written whole: one fused copy for all of their tensors, where each has its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.ops.values.generated import inplace

__all__ = ["copy_whole"]


def copy_whole(members: Sequence[Any], pieces: Sequence[Any]) -> bool:
    """Copies every piece into its member; False where an entry has to be looked at, and is to be written once more.

    That is one that the member does not have, what is no plain tensor, and what does not fit.
    """
    into: list[Tensor] = []
    values: list[Tensor] = []
    for member, piece in zip(members, pieces):
        if not _pair(member, piece, into, values):
            return False
    try:
        inplace(torch._foreach_copy_, Tensor.copy_, into, values)
    except RuntimeError:  # raised again, with the name of the entry, when they are written one by one
        return False
    return True


def _pair(member: Any, piece: Any, into: list[Tensor], values: list[Tensor]) -> bool:
    entries, items = member._source, piece._source
    if type(entries) is not dict or type(items) is not dict or piece._batch_size != member._batch_size:
        return False
    for one in (member, piece):
        if one._is_non_tensor or one._is_unbatched:
            return False
    for key, item in items.items():
        entry = entries.get(key)
        if _is_plain(entry) and _is_plain(item):
            into.append(entry)
            values.append(item)
        elif entry is None or isinstance(entry, Tensor) or isinstance(item, Tensor):
            return False
        elif not _pair(entry, item, into, values):
            return False
    return True


def _is_plain(value: Any) -> TypeGuard[Tensor]:
    kind = type(value)
    return kind is Tensor or kind is registry.MemoryMappedTensor
