"""Reducing entries that are no tensors: strings, bytes and other Python objects that can be hashed."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from tdmap.data.kinds import entries_of
from tdmap.reducers.base import Key
from tensordict_lite import is_non_tensor, is_tensorclass


def objects_of(chunk: Any, key: Key | None) -> list[Any] | None:
    """The objects of an entry, all of its elements in order; None where the entry is a tensor."""
    entry = None if key is None or not hasattr(chunk, "get") else _entry(chunk, key)
    if entry is None or not is_non_tensor(entry):
        return None
    found: list[Any] = _flat(entry.tolist(), len(entry.batch_size))
    return found


def _entry(chunk: Any, key: Key) -> Any:
    node = chunk
    for name in (key,) if isinstance(key, str) else key:
        node = entries_of(node).get(name) if is_tensorclass(node) else node.get(name, None)
        if node is None:
            return None
    return node


def _flat(values: Any, dims: int) -> list[Any]:
    if dims == 0:
        return [values]
    return values if dims == 1 else [item for row in values for item in _flat(row, dims - 1)]


def counted(values: list[Any], key: Key | None) -> Counter[Any]:
    """How often each value occurs.

    Raises:
        TypeError: one cannot be hashed; names it.
    """
    try:
        return Counter(values)
    except TypeError as error:
        bad = next(value for value in values if not _is_hashable(value))
        raise TypeError(
            f"the entry {key!r} holds a {type(bad).__name__}, and only values that can be hashed are counted "
            "(strings, bytes, numbers, None, tuples of them). Map it to one of these first: json.dumps(value, "
            "sort_keys=True), for one."
        ) from error


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
        return True
    except TypeError:
        return False


def in_order(values: Iterable[Any]) -> list[Any]:
    """Values in ascending order; None first, and values that do not compare by the names of their types."""
    values = list(values)
    try:
        return [*(value for value in values if value is None), *sorted(value for value in values if value is not None)]
    except TypeError:
        return sorted(values, key=lambda value: (value is not None, type(value).__name__, repr(value)))


def best(pairs: Iterable[tuple[Any, int]], k: int, largest: bool) -> list[tuple[Any, int]]:
    """The `k` pairs of a value and a row with the largest (or smallest) values, best first; ties to the earlier row.

    None ranks below everything.
    """
    known = sorted(((value, row) for value, row in pairs if value is not None), key=itemgetter(1))
    try:  # both keep the order of equal values, and rows are ascending
        return (heapq.nlargest if largest else heapq.nsmallest)(k, known, key=itemgetter(0))
    except TypeError as error:
        raise TypeError(f"TopK ranks values that compare with each other, and these do not: {error}") from error
