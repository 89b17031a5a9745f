"""The tensors in a value of any structure: collections, tuples, lists and dicts of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tdmap.data.kinds import is_data, tensors_of, with_tensors


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in `value`, in a fixed order. Other objects are not looked into.

    Example:
        >>> import torch
        >>> tensors_in({"x": torch.zeros(1), "n": (2, torch.ones(1))})
        [tensor([0.]), tensor([1.])]
    """
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, into: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        into.append(value)
    elif is_data(value):
        into.extend(tensors_of(value))
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, into)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, into)


def rebuild(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same structure around other tensors, given in the order of `tensors_in`. Types, locks and names are kept."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_data(value):
        return _rebuild_collection(value, tensors)
    if isinstance(value, (tuple, list)):
        items = [rebuild(item, tensors) for item in value]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return items if type(value) is list else type(value)(items)
    if isinstance(value, dict):
        new = copy.copy(value)  # its type, its default factory
        for key, item in value.items():
            new[key] = rebuild(item, tensors)
        return new
    return value


def _rebuild_collection(value: Any, tensors: Iterator[Tensor]) -> Any:
    own = [next(tensors) for _ in tensors_of(value)]
    new = with_tensors(value, own)
    if own:
        new._set_device(own[0].device)
    if value.is_locked:
        new.lock_()
    return new
