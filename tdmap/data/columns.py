"""Rows as columns, which can be cut, sorted and written to files one by one, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.kinds import Data, is_dense, signed_view, tensors_of, with_entries
from tdmap.data.reader import narrow
from tdmap.data.schema import plain
from tensordict_lite import NonTensorDataBase
from tensordict_lite.gathering import flat_bytes

Order: TypeAlias = NDArray[Any]
"""Row numbers, of an unsigned or signed integer dtype."""


def is_columnar(data: Data) -> bool:
    """Whether the rows of every entry lie along dimension 0 of a tensor, or are all the same object."""
    if isinstance(data, Tensor):
        return data.layout is torch.strided and data.device.type == "cpu" and not data.is_quantized
    if not is_dense(data):
        return isinstance(data, NonTensorDataBase) and not data._source
    return all(is_columnar(value) for value in data._source.values())


def columns_of(data: Data) -> list[Tensor]:
    """The columns of a columnar collection; what is conjugated lazily, is now, because its memory is written."""
    return [plain(column) for column in tensors_of(data)]


def with_columns(example: Data, columns: Iterable[Tensor], rows: int) -> Data:
    """A collection like `example` with other columns, in the order of `columns_of`, of `rows` rows."""
    return _rebuild(example, iter(columns), rows)


def _rebuild(example: Data, columns: Iterator[Tensor], rows: int) -> Data:
    if isinstance(example, Tensor):
        return next(columns)
    source = {key: _rebuild(value, columns, rows) for key, value in example._source.items()}
    return with_entries(example, source, rows)


def split_rows(example: Data, columns: Sequence[Tensor], lengths: list[int]) -> Iterator[Data]:
    """Consecutive rows of columns as collections like `example`, of so many rows each.

    Views of all of them are made in one call a column: cheaper by far than a slice of a collection for each.
    """
    views: Iterable[Any] = zip(*(column.split(lengths) for column in columns)) if columns else repeat((), len(lengths))
    for rows, view in zip(lengths, views):
        yield with_columns(example, view, rows)


def row_words(tensor: Tensor) -> Tensor:
    """The rows of a tensor as words of the widest integer that they consist of, so that one kind of copy serves all.

    A view where the tensor is contiguous.
    """
    tensor = tensor.contiguous()
    rows = tensor.shape[0]
    return words_of(flat_bytes(tensor), rows, tensor.numel() // max(rows, 1) * tensor.element_size())


def words_of(raw: Tensor, rows: int, width: int) -> Tensor:
    """As `row_words`, from the bytes of `rows` rows of `width` bytes each."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if width % dtype.itemsize == 0 and raw.data_ptr() % dtype.itemsize == 0:
            words = raw.view(dtype)
            return words if width == dtype.itemsize else words.view(rows, width // dtype.itemsize)
    return raw.view(rows, width)


def reordered(column: Tensor, order: Order) -> Tensor:
    """Some rows of a column, as a copy."""
    if column.dim() == 1 and column.dtype in (torch.int64, torch.float64):
        return torch.from_numpy(column.numpy(force=True)[order])  # numpy takes any integers as they are
    index = torch.from_numpy(order)
    index = index if index.dtype in (torch.int32, torch.int64) else index.to(torch.int64)
    return signed_view(column).index_select(0, index).view(column.dtype)


def gather(data: Data, order: Order) -> Data:
    """Some rows of a columnar collection, as a copy."""
    return with_columns(data, [reordered(column, order) for column in columns_of(data)], len(order))


def schema_of(data: Data) -> Data:
    """No rows of a columnar collection, in memory of their own."""
    none = narrow(data, 0, 0, 0)
    return with_columns(none, [column.clone() for column in columns_of(none)], 0)


@dataclass(frozen=True)
class Shape:
    """What one row of a column is."""

    dtype: torch.dtype
    row: tuple[int, ...]

    @classmethod
    def of(cls, column: Tensor) -> Shape:
        """Of a column."""
        return cls(column.dtype, tuple(column.shape[1:]))

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return torch.Size(self.row).numel() * self.dtype.itemsize

    def empty(self, rows: int) -> Tensor:
        """Room for rows."""
        return torch.empty((rows, *self.row), dtype=self.dtype)
