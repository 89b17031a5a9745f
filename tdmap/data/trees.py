"""The tensors in a value of any structure: collections, tuples, lists and dicts of them; and results that stay."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, strided

from tdmap.data.kinds import Data, has_members, is_data, is_dense, tensors_of, with_tensors


def tensors_in(value: object) -> list[Tensor]:
    """The tensors in `value`, in a fixed order. Other objects are not looked into.

    Example:
        >>> import torch
        >>> tensors_in({"x": torch.zeros(1), "n": (2, torch.ones(1))})
        [tensor([0.]), tensor([1.])]
    """
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: object, into: list[Tensor]) -> None:
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


def rebuild(value: object, tensors: Iterator[Tensor]) -> Any:
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


def _rebuild_collection(value: Data, tensors: Iterator[Tensor]) -> Data:
    own = [next(tensors) for _ in tensors_of(value)]
    new = with_tensors(value, own)
    if own:
        new._set_device(own[0].device)
    if value.is_locked:
        new.lock_()
    return new


TRIED = 4
"""Results of a function whose memory is compared."""


class FreshResults:
    """Makes results of a function outlive its next call, which may write into what it has returned before.

    Results are copied until it is known that the function returns new memory: the first ones are kept, so that no
    address is used again by chance. Where two of them share memory, or are one object, all later ones are copied too.

    Example:
        >>> import torch
        >>> buffer, fresh = torch.zeros(1), FreshResults()
        >>> [float(result) for result in [fresh(buffer.fill_(number)) for number in range(9)]]
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Results of another size follow, for which the function may have another buffer."""
        self._left = TRIED
        self._kept: list[Any] = []
        self._known: set[tuple[str, int]] = set()

    def __call__(self, value: Any) -> Any:
        if not self._left:
            return value
        if self._left > 0:
            places = set(_places(value))
            self._left = -1 if places & self._known else self._left - 1
            if self._left > 0:
                self._kept.append(value)
                self._known |= places
            else:
                self._kept.clear()
        return _copied(value)


def _places(value: object) -> Iterator[tuple[str, int]]:
    """The addresses of the memory in a value, and the identities of its containers."""
    if isinstance(value, Tensor):
        if value.layout is strided and not value.is_nested and value.numel():
            yield "memory", value.data_ptr()
    elif isinstance(value, np.ndarray):
        if value.size:
            yield "memory", value.__array_interface__["data"][0]
    elif is_data(value):
        yield "object", id(value)
        for tensor in tensors_of(value):
            yield from _places(tensor)
    elif isinstance(value, (tuple, list, dict)):
        if not isinstance(value, tuple):
            yield "object", id(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from _places(item)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_dense(value) or has_members(value):
        new = with_tensors(value, [tensor.clone() for tensor in tensors_of(value)])
        return new.lock_() if value.is_locked else new
    if type(value) in (tuple, list):
        return type(value)(map(_copied, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_copied, value))
    if isinstance(value, dict):
        new = copy.copy(value)
        for key, item in value.items():  # not by update(), which counts in a Counter
            new[key] = _copied(item)
        return new
    return value
