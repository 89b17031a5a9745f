"""How many bytes rows and results take, Python objects included."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tdmap.data.kinds import Data, data_row_bytes, is_dense, is_opened_by_row, tensors_of
from tensordict_lite import NonTensorDataBase, is_non_tensor, is_tensor_collection

SAMPLE = 64
"""Objects of a column whose sizes stand for all of them."""


def row_bytes_of(data: Data, rows: int) -> int:
    """Bytes of one of `rows` rows of a dataset; objects are estimated from the first ones."""
    own = data_row_bytes(data, rows)
    return own if is_opened_by_row(data) or not rows else own + _object_bytes(data, rows) // rows


def result_bytes(value: Any) -> int:
    """Bytes of what a function has returned, roughly: its tensors and arrays, strings, bytes and other objects."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if is_tensor_collection(value):
        return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(value)) + _object_bytes(value, 0)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return _sampled(list(value.values()), len(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sampled(value, len(value))
    return sys.getsizeof(value)


def _object_bytes(node: Data, rows: int) -> int:
    """Bytes of the entries that are no tensors; one object for all rows counts once a row."""
    if not is_tensor_collection(node):
        return 0
    if isinstance(node, NonTensorDataBase):
        return sys.getsizeof(node._payload) * max(rows, 1)
    if is_non_tensor(node):
        count = node._batch_size[node._stack_dim]
        first = node if count <= SAMPLE or node._stack_dim else node[:SAMPLE]
        values = first._payloads()
        if values is not None:
            return sum(map(result_bytes, values)) * int(count) // max(len(values), 1)
        members = node._source[:SAMPLE]
        each = [result_bytes(m._payload) if isinstance(m, NonTensorDataBase) else _object_bytes(m, 0) for m in members]
        return sum(each) * int(count) // max(len(each), 1)
    entries: Iterable[Any] = node._source.values() if is_dense(node) else node._source[:SAMPLE]
    total = sum(_object_bytes(entry, rows) for entry in entries)
    return total if is_dense(node) else total * len(node._source) // max(min(len(node._source), SAMPLE), 1)


def _sampled(values: Any, count: int) -> int:
    found = [result_bytes(value) for value, _ in zip(values, range(SAMPLE))]
    return sum(found) * count // max(len(found), 1)
