"""Comparisons, and the operators that answer like them: bool leaves under the same keys.

Non-tensor entries compare as objects under ``==`` and ``!=``: one bool for each element of the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tensordict_lite.ops.operands import (
    NUMBERS,
    align,
    broadcast,
    is_collection,
    is_object,
    keys_mismatch,
    spread,
    widened,
)

__all__ = ["ComparisonOps"]

_ORDERINGS = (operator.lt, operator.le, operator.gt, operator.ge, operator.or_, operator.xor)


class ComparisonOps:
    """Mixin of the comparison family. Results are unlocked, and unnamed unless the other side is a tensor.

    The other side is a number, a tensor aligned with the batch dimensions, or a collection or mapping with
    the same keys. Anything else is unequal, as for every Python object.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        result = _compare(self, other, operator.eq)
        return False if result is NotImplemented else result

    def __ne__(self, other: object) -> Any:
        result = _compare(self, other, operator.ne)
        return True if result is NotImplemented else result

    def __lt__(self, other: Any) -> Any:
        result = _compare(self, other, operator.lt)
        return False if result is NotImplemented else result

    def __le__(self, other: Any) -> Any:
        result = _compare(self, other, operator.le)
        return False if result is NotImplemented else result

    def __gt__(self, other: Any) -> Any:
        result = _compare(self, other, operator.gt)
        return False if result is NotImplemented else result

    def __ge__(self, other: Any) -> Any:
        result = _compare(self, other, operator.ge)
        return False if result is NotImplemented else result

    def __or__(self, other: Any) -> Any:
        return _compare(self, other, operator.or_)

    def __ror__(self, other: Any) -> Any:
        return _compare(self, other, operator.or_)

    def __xor__(self, other: Any) -> Any:
        return _compare(self, other, operator.xor)

    def __rxor__(self, other: Any) -> Any:
        return _compare(self, other, operator.xor)


def _compare(node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    kind = type(other)
    if kind in NUMBERS:
        return _with_number(node, other, op)
    if is_collection(other):
        if other._batch_size == node._batch_size:
            return _with_collection(node, other, op)
        node, other = align(node, other)
        dims = len(node._batch_size)
        return _with_collection(node, other, lambda a, b: op(*_widened(a, b, dims)))
    if isinstance(other, np.generic):
        return _with_number(node, other.item(), op)
    if isinstance(other, Tensor):
        size = other.shape
        if size != node._batch_size and (size := broadcast(node._batch_size, size)) != node._batch_size:
            node = node.expand(size)
        return node._with_leaves(iter([op(leaf, row) for leaf, row in zip(node._leaves(), spread(node, other))]))
    if isinstance(other, Mapping):
        return _with_mapping(node, other, op)
    return NotImplemented


def _with_number(node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    source = node._source
    if (type(source) is not dict or not source) and is_object(node):
        # An object has no order, and is not compared with numbers: kept, or left without an answer.
        ordered = op in _ORDERINGS[:4]
        return _kept(node) if ordered else node._plain_class()._trusted({}, node._batch_size, node._device)
    if type(source) is not dict:
        return _members(node, [_with_number(member, other, op) for member in node._nested()])
    return node._rebuild(
        {
            key: op(value, other) if isinstance(value, Tensor) else _with_number(value, other, op)
            for key, value in source.items()
        },
        node._batch_size,
    )


def _with_collection(node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    source, found = node._source, other._source
    if type(source) is not dict:
        stack_dim = node.stack_dim
        same = type(found) is not dict and other.stack_dim == stack_dim
        rows = other._nested() if same else other.unbind(stack_dim)
        return _members(node, [_with_collection(a, b, op) for a, b in zip(node._nested(), rows)])
    if type(found) is not dict:
        found = {key: other._get_str(key) for key in other._key_list()}
    if source.keys() != found.keys():
        ours, theirs = set(source), set(found)
        raise keys_mismatch({(key,) for key in ours - theirs}, {(key,) for key in theirs - ours})
    # A collection on the right of a tensor answers through its reflected operator.
    return node._rebuild(
        {
            key: op(value, found[key]) if isinstance(value, Tensor) else _entries(value, found[key], op)
            for key, value in source.items()
        },
        node._batch_size,
    )


def _widened(a: Any, b: Any, dims: int) -> tuple[Any, Any]:
    return widened(a, b, dims) if isinstance(a, Tensor) and isinstance(b, Tensor) else (a, b)


def _entries(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    """A nested collection against whatever the other side has under its key."""
    if isinstance(match, Tensor):
        return _compare(value, match, op)
    if is_object(value) or is_object(match):
        # Objects are equal or not; they have no order and no bits.
        return _kept(value) if op in _ORDERINGS else op(value, match)
    return _with_collection(value, match, op)


def _with_mapping(node: Any, other: Mapping[str, Any], op: Callable[[Any, Any], Any]) -> Any:
    source = node._source
    if set(source) != set(other):
        ours, theirs = set(source), set(other)
        raise keys_mismatch({(key,) for key in ours - theirs}, {(str(key),) for key in theirs - ours})

    def entry(key: str, value: Any) -> Any:
        match = other[key]
        if isinstance(value, Tensor) and not isinstance(match, Mapping):
            return op(value, match)
        return _compare(value, match, op)

    return node._rebuild({key: entry(key, value) for key, value in source.items()}, node._batch_size)


def _kept(node: Any) -> Any:
    """A non-tensor entry as it is, unlocked and unnamed as all of the result."""
    new = node.clone(False)
    new._set_names(None)
    return new


def _members(node: Any, members: list[Any]) -> Any:
    """A lazy stack like ``node`` of other members."""
    return type(node)(*members, stack_dim=node.stack_dim)
