"""How many bytes rows and results take, Python objects and ragged rows included."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tdmap.data.kinds import Data, Rows, is_dense, tensor_bytes, tensors_of
from tensordict_lite import NonTensorDataBase, Ragged, is_non_tensor, is_tensor_collection
from tensordict_lite.base import TensorCollection
from tensordict_lite.ragged import is_ragged

SAMPLE = 64
"""Objects of a result whose sizes stand for all of them."""

COLUMN_SAMPLE = 1 << 12
"""Objects of a column whose sizes stand for all of them; they are spread over the column."""

RAGGED_SAMPLE = 1 << 16
"""Chosen rows of a ragged column whose lengths stand for all of them."""


def row_bytes_of(data: Data, rows: int) -> int:
    """Mean bytes of one of `rows` rows of a dataset; objects are estimated from some of them."""
    if isinstance(data, Rows) and not data.is_view:
        return data.row_bytes
    return tensor_bytes(data, rows) + (_object_bytes(data, rows) // rows if rows else 0)


def result_bytes(value: object) -> int:
    """Bytes of what a function has returned, roughly: its tensors and arrays, strings, bytes and other objects."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, TensorCollection):
        return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(value)) + _object_bytes(value, 0)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return _sampled(list(value.values()), len(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sampled(value, len(value))
    return sys.getsizeof(value)


def _object_bytes(node: Any, rows: int) -> int:
    """Bytes of the entries that are no tensors; one object for all rows counts once a row."""
    if is_dense(node):
        return sum([_object_bytes(entry, rows) for entry in node._source.values() if not isinstance(entry, Tensor)])
    if not is_tensor_collection(node):
        return 0
    if isinstance(node, NonTensorDataBase):
        return sys.getsizeof(node._payload) * max(rows, 1)
    if is_ragged(node):
        return _ragged_bytes(node)
    if is_non_tensor(node):
        count = node._batch_size[node._stack_dim]
        some = node if count <= COLUMN_SAMPLE or node._stack_dim else node[:: count // COLUMN_SAMPLE]
        values = some._payloads()
        if values is not None:
            size = sys.getsizeof if {str, bytes}.issuperset(map(type, values)) else result_bytes
            return sum(map(size, values)) * int(count) // max(len(values), 1)
        members = node._source[:SAMPLE]
        each = [result_bytes(m._payload) if isinstance(m, NonTensorDataBase) else _object_bytes(m, 0) for m in members]
        return sum(each) * int(count) // max(len(each), 1)
    members = node._source[:SAMPLE]
    return sum(_object_bytes(member, rows) for member in members) * len(node._source) // max(len(members), 1)


def _ragged_bytes(entry: Ragged) -> int:
    """Bytes of the values and offsets of ragged rows: exact where the rows are consecutive."""
    column, rows = entry.column, entry._rows
    assert column is not None
    if type(numbers := column.numbers(rows)) is range and numbers.step == 1:
        total = max(int(column.offsets[numbers.stop]) - int(column.offsets[numbers.start]), 0)
    else:
        some = rows[:: max(len(rows) // RAGGED_SAMPLE, 1)]
        starts, ends = column.spans(some)
        total = int((ends - starts).sum()) * len(rows) // max(len(some), 1)
    return total * column.values.itemsize * column.values.shape[1:].numel() + 8 * len(rows)


def _sampled(values: Collection[Any], count: int) -> int:
    found = [result_bytes(value) for value, _ in zip(values, range(SAMPLE))]
    return sum(found) * count // max(len(found), 1)
