"""Non-tensor entries as operands: ``==`` and ``!=`` compare the objects; ``|``, ``^`` and ``&`` use their truth value.

The result is a bool tensor of the batch size. An unsupported operation (``<``, or ``|`` of strings) keeps the object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry

_EQUALITY = (operator.eq, operator.ne)
_ORDERINGS = (operator.lt, operator.le, operator.gt, operator.ge)


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
    if op in _ORDERINGS:
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
