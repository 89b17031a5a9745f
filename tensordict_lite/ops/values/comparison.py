"""Comparisons and logical operators: bool leaves under the same keys.

Non-tensor entries compare as objects (``objects.py``): one bool per element of the batch. An entry that is ``None``
counts as missing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.ops.values.objects import combine_objects, is_none, kept
from tensordict_lite.ops.values.operands import (
    FEW,
    NUMBERS,
    align,
    broadcast,
    is_collection,
    is_object,
    keys_mismatch,
    spelled_out,
    spread,
    widened,
)

_ORDERINGS = frozenset((operator.lt, operator.le, operator.gt, operator.ge))
_COMPARISONS = _ORDERINGS | {operator.eq, operator.ne}
_REFLECTED = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}


def _operator(op: Callable[[Any, Any], Any], otherwise: bool | None = None) -> Any:
    """A method for an operator. ``otherwise``: the result for an unsupported operand; by default Python decides."""

    def method(self: Any, other: object) -> Any:
        result = _compare(self, other, op)
        return otherwise if result is NotImplemented and otherwise is not None else result

    return method


class ComparisonOps(Kernel):
    """Mixin of the comparison family. Results are unlocked, and unnamed unless the other side is a tensor.

    The other side is a number, a tensor aligned with the batch dimensions, or a collection or mapping with
    the same keys. Any other object is unequal.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    __eq__ = _operator(operator.eq, False)
    __ne__ = _operator(operator.ne, True)
    __lt__ = _operator(operator.lt, False)
    __le__ = _operator(operator.le, False)
    __gt__ = _operator(operator.gt, False)
    __ge__ = _operator(operator.ge, False)
    __or__ = __ror__ = _operator(operator.or_)
    __xor__ = __rxor__ = _operator(operator.xor)


def _compare(node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    kind = type(other)
    if node._is_non_tensor:  # alone it is not a plain object, and equals none
        return combine_objects(node, other, op) if isinstance(other, Tensor) or is_collection(other) else NotImplemented
    if kind in NUMBERS:
        return _with_number(node, other, op)
    if is_collection(other):
        if hasattr(kind, "_field_specs") and not hasattr(node, "_field_specs"):
            node, other, op = other, node, _REFLECTED.get(op, op)  # the result has the class with fields
        if other._batch_size == node._batch_size:
            return _with_collection(node, other, op, -1)
        node, other = align(node, other)
        return _with_collection(node, other, op, len(node._batch_size))
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


def _with_number(node: Any, other: Any, op: Callable[[Any, Any], Any], made: dict[Any, Tensor] | None = None) -> Any:
    """``made``: tensors of the number that the levels above have used, for comparisons."""
    source = node._source
    if node._is_unbatched:
        return combine_objects(node, other, op)
    if node._is_non_tensor:
        # Objects are not compared with numbers: keep them for orderings, drop them otherwise.
        return kept(node) if op in _ORDERINGS else node._plain_class()._trusted({}, node._batch_size, node._device)
    if type(source) is not dict:
        return _members(node, [_with_number(member, other, op, made) for member in node._nested()])
    if made is None and op in _COMPARISONS:
        made = {}
    spelled = other
    if made or (made is not None and len(source) >= FEW):
        spelled = spelled_out(other, [value for value in source.values() if isinstance(value, Tensor)], made)
    numbers = iter(spelled) if type(spelled) is list else repeat(other)
    out = {
        key: op(value, next(numbers)) if isinstance(value, Tensor) else _with_number(value, other, op, made)
        for key, value in source.items()
    }
    return node._rebuild(out, node._batch_size)


def _with_collection(node: Any, other: Any, op: Callable[[Any, Any], Any], dims: int) -> Any:
    """``dims``: batch dimensions after which leaves with fewer dimensions are widened; -1 for no widening."""
    source, found = node._source, other._source
    if type(source) is not dict:
        stack_dim = node.stack_dim
        same = type(found) is not dict and other.stack_dim == stack_dim
        rows = other._nested() if same else other.unbind(stack_dim)
        inner = dims - (stack_dim < dims)
        return _members(node, [_with_collection(a, b, op, inner) for a, b in zip(node._nested(), rows)])
    if type(found) is not dict:
        found = {key: other._get_str(key) for key in other._key_list()}
    if source.keys() != found.keys():
        source, found = _without_none(source, found)
    out = {}
    for key, value in source.items():
        match = found[key]
        plain = dims < 0 and type(value) is Tensor and type(match) is Tensor  # the common case
        out[key] = op(value, match) if plain else _entries(value, match, op, dims)
    return node._rebuild(out, node._batch_size)


def _without_none(source: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Any, Any]:
    """The entries of both sides, without those that are ``None`` on one side and missing on the other.

    Raises:
        KeyError: other entries are in only one of them.
    """
    source = {key: value for key, value in source.items() if key in found or not is_none(value)}
    found = {key: value for key, value in found.items() if key in source or not is_none(value)}
    ours, theirs = set(source), set(found)
    if ours != theirs:
        raise keys_mismatch({(key,) for key in ours - theirs}, {(str(key),) for key in theirs - ours})
    return source, found


def _entries(value: Any, match: Any, op: Callable[[Any, Any], Any], dims: int) -> Any:
    """One entry against the entry under its key on the other side."""
    if isinstance(value, Tensor):
        if isinstance(match, Tensor):
            return op(value, match) if dims < 0 else op(*widened(value, match, dims))
        if is_object(match):
            return combine_objects(match, value, op)
        return op(value, match)  # a collection on the right uses its reflected operator
    if is_object(value):
        return combine_objects(value, match, op)
    if isinstance(match, Tensor):
        return _compare(value, match, op)
    if is_object(match):
        return combine_objects(match, value, op)
    return _with_collection(value, match, op, dims)


def _with_mapping(node: Any, other: Mapping[str, Any], op: Callable[[Any, Any], Any]) -> Any:
    source, found = node._source, other
    if type(source) is not dict:
        return _compare(node, node._plain_class()(other, batch_size=node._batch_size), op)
    if set(source) != set(found):
        source, found = _without_none(source, found)

    def entry(value: Any, match: Any) -> Any:
        if isinstance(value, Tensor):
            return _compare_tensor(value, match, op)
        return combine_objects(value, match, op) if is_object(value) else _compare(value, match, op)

    return node._rebuild({key: entry(value, found[key]) for key, value in source.items()}, node._batch_size)


def _compare_tensor(value: Tensor, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    if isinstance(match, Tensor) or type(match) in NUMBERS or is_collection(match):
        return op(value, match)
    try:
        return op(value, torch.as_tensor(match, device=value.device))
    except (TypeError, ValueError, RuntimeError):  # an object that is not a number: unequal
        if op in (operator.eq, operator.ne):
            return torch.full(value.shape, op is operator.ne, dtype=torch.bool, device=value.device)
        raise


def _members(node: Any, members: list[Any]) -> Any:
    """A lazy stack like ``node`` of other members."""
    return type(node)(*members, stack_dim=node.stack_dim)
