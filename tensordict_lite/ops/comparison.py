"""Comparisons and logical operators: bool leaves under the same keys.

The other side is a number, a tensor aligned with the batch dimensions, or a collection or mapping with the same keys.
Any other object is unequal. An entry that is ``None`` counts as missing.

Of non-tensor entries, ``==`` and ``!=`` compare the objects; ``|``, ``^`` and ``&`` use their truth value. The result
is a bool tensor of the batch size. An unsupported operation (``<``, or ``|`` of strings) keeps the object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.ops.operands import (
    FEW,
    NUMBERS,
    align,
    broadcast,
    is_collection,
    is_object,
    keys_mismatch,
    require_ragged_kept,
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


def comparing(op: Callable[[Any, Any], Any], otherwise: bool | None = None) -> Any:
    """A method for an operator. ``otherwise``: the result for an unsupported operand; by default Python decides."""

    def method(self: Any, other: object) -> Any:
        result = _compare(self, other, op)
        return otherwise if result is NotImplemented and otherwise is not None else result

    return method


def _compare(node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    kind = type(other)
    if node._is_ragged_numbers and not (is_collection(other) and not other._is_ragged_numbers):
        return _by_elements(node, other, op)
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
            before, node = node, node.expand(size)
            require_ragged_kept((before,), (node,))
        return node._with_leaves(
            iter([op(leaf, row) for leaf, row in zip(node._leaves(True), spread(node, other))]), True
        )
    if isinstance(other, Mapping):
        return _with_mapping(node, other, op)
    return NotImplemented


def _with_number(node: Any, other: Any, op: Callable[[Any, Any], Any], made: dict[Any, Tensor] | None = None) -> Any:
    """``made``: tensors of the number that the levels above have used, for comparisons."""
    source = node._source
    if node._is_unbatched:
        return combine_objects(node, other, op)
    if node._is_ragged_numbers:
        return _by_elements(node, other, op)
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


def _by_elements(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    """``op`` on each element of a ragged column of numbers, unlocked and unnamed."""
    if getattr(match, "_is_ragged_numbers", False):
        other = value._values_beside(match)
    elif isinstance(match, Tensor):
        (other,) = spread(value, match)
    elif isinstance(match, (*NUMBERS, np.generic)):
        other = match
    else:
        return NotImplemented
    new = value._map_leaves(lambda leaf: op(leaf, other), True)
    new._set_names(None)
    return new


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


# -- non-tensor entries ----------------------------------------------------------------------------------

_EQUALITY = (operator.eq, operator.ne)


def kept(node: Any) -> Any:
    """A non-tensor entry unchanged, but unlocked and unnamed like all results of a comparison."""
    new = node.clone(False)
    new._set_names(None)
    return new


def is_none(value: Any) -> bool:
    """Whether an entry, raw or as a plain value, is ``None``."""
    return value is None or (getattr(value, "_is_non_tensor", False) and getattr(value, "_payload", value) is None)


def combine_objects(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    """``op`` between a non-tensor entry and the entry under its key on the other side.

    Args:
        value: non-tensor data: one object, or one per element.
        match: non-tensor data, a tensor, a collection of tensors or a plain object.
        op: an operator; only symmetric ones are supported.
    """
    if value._is_unbatched or getattr(match, "_is_unbatched", False):
        return _with_unbatched(value, match, op)
    if value._is_ragged_numbers and getattr(match, "_is_ragged_numbers", False):
        return _by_elements(value, match, op)
    if op in _ORDERINGS:
        if value._is_ragged_numbers:
            raise TypeError(f"{value!r} cannot be ordered beside a {type(match).__name__}: it needs a ragged column")
        return kept(value)
    try:
        if isinstance(match, Tensor):
            return _with_tensor(value, match, op)
        if getattr(match, "_is_non_tensor", False):
            return _with_objects(value, match, op)
        if hasattr(match, "_with_leaves"):
            return _with_tree(value, match, op)
        return _with_objects(value, value._like_rows(match, value._batch_size), op)
    except TypeError:  # these objects do not support the operator
        return kept(value)


def _with_unbatched(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    """A tensor without batch dimensions against another one or a number, element by element."""
    if not value._is_unbatched:
        value, match = match, value
    other = match._leaves()[0] if getattr(match, "_is_unbatched", False) else match
    if isinstance(other, Tensor) or isinstance(other, (int, float, complex)):
        new = value._map_leaves(lambda leaf: op(leaf, other))
        new._set_names(None)
        return new
    if op in _EQUALITY:  # an object
        return torch.full(value._batch_size, op is operator.ne, dtype=torch.bool, device=value._device)
    return kept(value)


def with_answers(new: Any, node: Any, other: Any, op: Callable[[Any, Any], Any]) -> Any:
    """Add the results for non-tensor entries to ``new``, the result of ``op`` on the tensors of two trees."""
    if node._is_non_tensor:
        return combine_objects(node, other, op)
    source = node._source
    if type(source) is not dict:
        if type(other._source) is dict or other.stack_dim != node.stack_dim:
            rows = other.unbind(node.stack_dim) if other.batch_dims == node.batch_dims else [other] * len(source)
        else:
            rows = other._source
        for member, mine, row in zip(new._source, source, rows):
            with_answers(member, mine, row, op)
        return new
    for key, value in source.items():
        if not isinstance(value, Tensor) and key in new._source and key in other._key_list():
            match = other._get_str(key)
            if value._is_non_tensor:
                new._source[key] = combine_objects(value, match, op)
            elif not isinstance(match, Tensor):
                with_answers(new._source[key], value, match, op)
    return new


def _with_objects(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Tensor:
    if -1 in value._batch_size or -1 in match._batch_size:
        return _by_rows(value, match, op)
    size = torch.broadcast_shapes(value._batch_size, match._batch_size)
    left, right = _elements(value, size), _elements(match, size)
    if left is None and right is None:
        return torch.full(size, _answer(value._payload, match._payload, op), dtype=torch.bool, device=value._device)
    if left is None:
        left = [value._payload] * len(right or ())
    if right is None:
        right = [match._payload] * len(left)
    answers = [_answer(a, b, op) for a, b in zip(left, right)]
    return torch.tensor(answers, dtype=torch.bool, device=value._device).reshape(size)


def _by_rows(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Tensor:
    """Nested stacks of different lengths."""
    mine, theirs = value.unbind(0), match.unbind(0)
    if len(mine) != len(theirs):
        raise RuntimeError(
            f"the batch sizes {list(value._batch_size)} and {list(match._batch_size)} cannot be compared"
        )
    return torch.stack([combine_objects(a, b, op) for a, b in zip(mine, theirs)])


def _answer(a: Any, b: Any, op: Callable[[Any, Any], Any]) -> bool:
    if op not in _EQUALITY:
        return bool(op(a, b))
    return registry.same_payload(a, b) is (op is operator.eq)


def _elements(data: Any, size: torch.Size) -> list[Any] | None:
    """The objects in row-major order; ``None`` if one object is shared by all."""
    if not hasattr(data, "_payloads") and type(data._source) is dict:
        return None
    rows = data.tolist() if data._batch_size == size else data.expand(size).tolist()
    for _ in size[1:]:
        rows = [element for row in rows for element in row]
    return rows


def _with_tensor(value: Any, match: Tensor, op: Callable[[Any, Any], Any]) -> Any:
    """Objects that are numbers (or arrays of them) against a tensor; other objects equal no tensor."""
    held = value._payload if type(value._source) is dict else value.tolist()
    if isinstance(held, (bool, int, float, complex, list, np.ndarray, np.generic, Tensor)):
        try:
            numbers = torch.as_tensor(held, device=match.device)
            numbers = numbers[(...,) + (None,) * max(0, match.ndim - numbers.ndim)] if numbers.ndim else numbers
            answer = op(match, numbers)
            return answer.expand(torch.broadcast_shapes(answer.shape, value._batch_size))
        except (ValueError, RuntimeError, TypeError):  # a ragged list, strings, another shape
            pass
    if op not in _EQUALITY:
        return kept(value)
    return torch.full(value._batch_size, op is operator.ne, dtype=torch.bool, device=match.device)


def _with_tree(value: Any, match: Any, op: Callable[[Any, Any], Any]) -> Any:
    """A mapping object against the collection into which an entry would convert it."""
    held = value._payload if type(value._source) is dict else None
    if isinstance(held, Mapping):
        try:
            return op(match, held)
        except (KeyError, RuntimeError):  # other keys or shapes
            pass
    return torch.full(value._batch_size, op is operator.ne, dtype=torch.bool, device=value._device)
