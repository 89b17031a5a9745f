"""Rows of different lengths, without a Python object a row: strings, bytes, and tensors that differ in one dimension.

    values     [total, ...]   all rows, one after the other
    offsets    [n + 1]        row i is values[offsets[i] : offsets[i + 1]]

A part of it (a slice, a choice of rows, another order) shares the values, and has where each of its rows starts and
ends: what Arrow calls a list view. Strings are the bytes of their UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.entries import row_numbers
from tdmap.datasets.tables.doors import JaggedDoors
from tdmap.process_state import on_host
from tensordict_lite.building.arrays import require_unmasked
from tensordict_lite.errors import DatasetError
from tensordict_lite.gathering import gather_rows, offsets_of

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

KINDS = ("tensor", "str", "bytes")

BLOCK_ROWS = 1 << 18
"""Rows whose numbers are looked at together."""


@on_host
class Jagged(JaggedDoors):
    """Rows of different lengths over one flat tensor.

    Args:
        values: `[total, ...]`, the elements of all rows.
        offsets: int64 `[n + 1]`, ascending: where each row begins, and where the last one ends.
        kind: what a row is given as: a `"tensor"` `[length, ...]`, a `"str"` or `"bytes"`. The values of both others
            are uint8 `[total]`.
        check: look at every offset. What is out of place otherwise is an error of the row that is asked for.

    Raises:
        ValueError: offsets do not ascend, or reach beyond the values.
        TypeError: a dtype is not as it should be.

    Example:
        >>> words = Jagged.from_list(["ant", "", "bee"])
        >>> words[2], len(words), words.lengths.tolist()
        ('bee', 3, [3, 0, 3])
        >>> words[[2, 0]].tolist()
        ['bee', 'ant']
        >>> Jagged(torch.arange(5), torch.tensor([0, 2, 5]))[1]
        tensor([2, 3, 4])
    """

    __slots__ = ("ends", "folder", "kind", "starts", "values")

    values: Tensor
    """`[total, ...]`; may hold more than the rows of this part."""
    starts: Tensor
    """int64 `[n]`: where each row begins in the values."""
    ends: Tensor
    """int64 `[n]`: where each row ends."""
    kind: str
    folder: Path | None
    """Where all of it is saved; None for parts, and in memory."""

    def __init__(self, values: Tensor, offsets: Tensor, kind: str = "tensor", *, check: bool = True) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}: got {kind!r}.")
        if offsets.dtype is not torch.int64 or offsets.dim() != 1 or not len(offsets):
            raise TypeError(f"offsets must be int64 [n + 1], got {offsets.dtype} {list(offsets.shape)}.")
        if not values.dim() or (kind != "tensor" and (values.dtype is not torch.uint8 or values.dim() != 1)):
            wanted = "[total, ...]" if kind == "tensor" else f"uint8 [total] for {kind!r}"
            raise TypeError(f"values must be {wanted}, got {values.dtype} {list(values.shape)}.")
        offsets = offsets.as_subclass(Tensor)
        if int(offsets[0]) < 0 or int(offsets[-1]) > len(values):
            raise ValueError(f"offsets reach from {int(offsets[0])} to {int(offsets[-1])}, of {len(values)} values.")
        if check and bool((offsets[1:] < offsets[:-1]).any()):
            row = int((offsets[1:] < offsets[:-1]).nonzero()[0])
            raise ValueError(f"offsets ascend, and row {row} would end before it begins.")
        self._set(values, offsets[:-1], offsets[1:], kind)

    def _set(self, values: Tensor, starts: Tensor, ends: Tensor, kind: str) -> Self:
        self.values, self.starts, self.ends, self.kind = values.as_subclass(Tensor), starts, ends, kind
        self.folder = None
        return self

    def _part(self, starts: Tensor, ends: Tensor) -> Jagged:
        return Jagged.__new__(type(self))._set(self.values, starts, ends, self.kind)

    @classmethod
    def of_spans(cls, values: Tensor, starts: Tensor, ends: Tensor, kind: str = "tensor") -> Self:
        """Rows that lie anywhere in the values: row *i* is `values[starts[i] : ends[i]]`. Nothing is checked."""
        return cls.__new__(cls)._set(values, starts, ends, kind)

    # -- making ------------------------------------------------------------------------------------------------

    @classmethod
    def from_list(cls, rows: Iterable[Any]) -> Jagged:
        """Of strings, of bytes, or of tensors, arrays and lists of numbers whose first dimension differs.

        Raises:
            TypeError: rows are not of one kind, or differ in more than their first dimension; names one.
            ValueError: there are no rows, so nothing tells their kind.
        """
        rows = list(rows)
        if not rows:
            raise ValueError("no rows, so nothing tells their kind: Jagged(values[:0], torch.zeros(1, dtype=int64)).")
        kind = "str" if isinstance(rows[0], str) else "bytes" if isinstance(rows[0], (bytes, bytearray)) else "tensor"
        if kind == "tensor":
            return _from_tensors(cls, [_as_tensor(number, row) for number, row in enumerate(rows)])
        wanted = str if kind == "str" else (bytes, bytearray)
        wrong = next((number for number, row in enumerate(rows) if not isinstance(row, wanted)), None)
        if wrong is not None:
            raise TypeError(f"row {wrong} is a {type(rows[wrong]).__name__}, where row 0 is a {kind}.")
        parts = [row.encode("utf-8", "surrogatepass") for row in rows] if kind == "str" else rows
        return cls(bytes_tensor(b"".join(parts)), offsets_of(torch.tensor([len(part) for part in parts])), kind)

    @classmethod
    def of_no_text(cls, kind: str) -> Jagged:
        """No rows of strings, `"str"`, or of `"bytes"`."""
        return cls(bytes_tensor(b""), torch.zeros(1, dtype=torch.int64), kind)

    @classmethod
    def from_nested(cls, tensor: Tensor) -> Jagged:
        """Of a nested tensor whose elements differ in their first dimension; a jagged one shares its values."""
        if tensor.layout is torch.jagged and tensor._lengths is None:  # type: ignore[attr-defined]
            return cls(tensor.values().detach(), tensor.offsets().to(torch.int64))  # type: ignore[attr-defined]
        return cls.from_list(tensor.unbind())

    @staticmethod
    def cat(parts: Sequence[Jagged]) -> Jagged:
        """The rows of several, one after the other, in new memory.

        Raises:
            TypeError: they are of different kinds, dtypes or shapes.
        """
        first = parts[0]
        for part in parts[1:]:
            if (part.kind, part.values.dtype, part.row_shape) != (first.kind, first.values.dtype, first.row_shape):
                raise TypeError(f"rows of different kinds cannot be joined: {first!r} and {part!r}.")
        values = torch.cat([part.flat() for part in parts])
        return Jagged(values, offsets_of(torch.cat([part.lengths for part in parts])), first.kind)

    # -- looking -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Tensor:
        """int64 `[n]`: elements (bytes, for strings) of each row."""
        return self.ends - self.starts

    @property
    def total(self) -> int:
        """Elements of all rows together."""
        return int(self.lengths.sum()) if len(self) else 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one element of a row."""
        return self.values.shape[1:]

    @property
    def is_compact(self) -> bool:
        """Whether the rows lie one after the other, in their order."""
        return len(self) < 2 or bool((self.starts[1:] == self.ends[:-1]).all())

    @property
    def offsets(self) -> Tensor:
        """int64 `[n + 1]` of the rows one after the other, from 0: those of `flat()`."""
        return offsets_of(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        """A row for a number; for a slice, a list, a tensor of numbers or a mask, those rows, sharing the values."""
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            number = int(index)
            if not -len(self) <= number < len(self):
                raise IndexError(f"row {number} of {len(self)} rows")
            start, end = int(self.starts[number]), int(self.ends[number])
            if not 0 <= start <= end <= len(self.values):
                raise DatasetError(str(self.folder or "these rows"), f"row {number} lies at {start} to {end}: damaged")
            return self._row(self.values[start:end])
        if isinstance(index, slice):
            if (index.step or 1) < 0:
                index = list(range(*index.indices(len(self))))
            return self._part(self.starts[index], self.ends[index])
        if isinstance(index, Tensor) and not index.dim() and index.dtype is not torch.bool:
            return self[int(index)]
        return self.take(index)

    def take(self, index: Tensor | NDArray[Any] | Sequence[Any]) -> Jagged:
        """The rows of an index of numbers, or a mask; they share the values."""
        index = row_numbers(index, len(self))
        # Several times as fast as indexing with a tensor.
        return self._part(self.starts.index_select(0, index), self.ends.index_select(0, index))

    def _row(self, values: Tensor) -> Any:
        if self.kind == "tensor":
            return values
        content = values.numpy().tobytes()
        return content.decode("utf-8", "surrogatepass") if self.kind == "str" else content

    def __iter__(self) -> Iterator[Any]:
        values = self.values
        for start, end in zip(self.starts.tolist(), self.ends.tolist()):
            yield self._row(values[start:end])

    def tolist(self) -> list[Any]:
        """A list of strings or bytes, or of lists of numbers."""
        if self.kind == "tensor":
            return [row.tolist() for row in self]
        if not len(self):
            return []
        flat, ends = self.flat().numpy().tobytes(), self.offsets.tolist()
        parts = [flat[start:end] for start, end in zip(ends, ends[1:])]
        return [part.decode("utf-8", "surrogatepass") for part in parts] if self.kind == "str" else parts

    def as_column_of_objects(self) -> list[Any]:
        """A list of strings or bytes, for a TensorDict.

        Raises:
            TypeError: its rows are tensors of different lengths.
        """
        if self.kind == "tensor":
            raise TypeError(
                "its rows have different lengths. Pad them (`pad`), or map a Jagged or a Table of tdmap.datasets, "
                "whose results may be jagged."
            )
        return self.tolist()

    def flat(self) -> Tensor:
        """`[total, ...]`: the elements of these rows one after the other; shares memory where they lie so."""
        if not len(self):
            return self.values[:0]
        if self.is_compact:
            return self.values[int(self.starts[0]) : int(self.ends[-1])]
        out = self.values.new_empty((self.total, *self.row_shape))
        gather_rows(self.values, self.starts, self.ends, out)
        return out

    def compact(self) -> Jagged:
        """These rows with values of their own, one after the other."""
        return Jagged(self.flat().clone(), self.offsets, self.kind)

    def to_nested(self) -> Tensor:
        """A nested tensor of jagged layout, which shares the values where rows lie one after the other."""
        if self.kind != "tensor":
            raise TypeError(f"rows are {self.kind}, and a nested tensor holds numbers: see flat() for their bytes.")
        return torch.nested.nested_tensor_from_jagged(self.flat(), self.offsets)

    def pad(self, to: int | None = None, value: float = 0, left: bool = False) -> tuple[Tensor, Tensor]:
        """Rows of one length.

        Args:
            to: that length: longer rows lose their end. Default: of the longest row.
            value: what is put behind shorter rows.
            left: put it before them.

        Returns:
            `[n, to, ...]` of the dtype of the values, and a bool mask `[n, to]` that is True where elements are.

        Example:
            >>> Jagged.from_list([[1, 2, 3], [4]]).pad(2)
            (tensor([[1, 2],
                    [4, 0]]), tensor([[ True,  True],
                    [ True, False]]))
        """
        lengths = self.lengths
        if to is None:
            to = int(lengths.max()) if len(self) else 0
        kept = lengths.clamp(max=to)
        columns = torch.arange(to)
        mask = columns >= (to - kept)[:, None] if left else columns < kept[:, None]
        out = torch.full((len(self), to, *self.row_shape), value, dtype=self.dtype)
        out[mask] = Jagged.of_spans(self.values, self.starts, self.starts + kept).flat()
        return out, mask

    def equals(self, other: Jagged) -> bool:
        """Whether the other has the same rows, whatever their memory."""
        same = self.kind == other.kind and self.dtype is other.dtype and self.row_shape == other.row_shape
        return same and bool(torch.equal(self.lengths, other.lengths) and torch.equal(self.flat(), other.flat()))

    def __repr__(self) -> str:
        what = (
            self.kind
            if self.kind != "tensor"
            else f"{str(self.dtype)[6:]} [*{''.join(f', {n}' for n in self.row_shape)}]"
        )
        return f"Jagged({len(self):,} rows of {what}, {self.total:,} values)"

    def __reduce__(self) -> Any:
        return _rebuilt, (self.values, self.starts, self.ends, self.kind)

    # -- many rows ---------------------------------------------------------------------------------------------

    __tdmap_operations__ = frozenset(
        {"map", "filter", "flat_map", "sort", "shuffle", "join", "group_by", "unique", "value_counts", "sample"}
    )

    def buckets(self, batch_size: int, *, seed: int | None = None, window: int = 100) -> Iterator[Tensor]:
        """Numbers of rows in batches of about one length, for batches with little padding.

        Rows are shuffled, sorted by length within windows of `window` batches, cut into batches, and the batches of a
        window are shuffled again.

        Args:
            batch_size: rows in a batch; the last one of all may have fewer.
            seed: the same seed, the same batches. None: no shuffling.
            window: batches that are sorted together.

        Yields:
            int64 `[batch_size]`: rows to take, as in `jagged[rows].pad()`.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        order = (
            torch.arange(len(self), device="cpu")
            if generator is None
            else torch.randperm(len(self), generator=generator, device="cpu")
        )
        for part in order.split(batch_size * window):
            lengths = self.lengths[part] if len(self) < 1 << 16 else self.ends[part] - self.starts[part]
            batches = part[torch.sort(lengths, stable=True).indices].split(batch_size)
            full = len(batches) - (len(batches[-1]) < batch_size)
            picks = (
                torch.randperm(full, generator=generator, device="cpu").tolist()
                if generator is not None
                else range(full)
            )
            yield from (batches[pick] for pick in picks)
            yield from batches[full:]


def _rebuilt(values: Tensor, starts: Tensor, ends: Tensor, kind: str) -> Jagged:
    return Jagged.of_spans(values, starts, ends, kind)


# -- elements --------------------------------------------------------------------------------------------------


def bytes_tensor(content: bytes) -> Tensor:
    """uint8 `[len(content)]`, a copy."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _as_tensor(number: int, row: Any) -> Tensor:
    require_unmasked(row, f"row {number}")
    try:
        tensor = row if isinstance(row, Tensor) else torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"row {number} cannot be a tensor: {error}") from None
    if not tensor.dim():
        raise TypeError(f"row {number} is one number, and rows are sequences of them.")
    return tensor.detach().cpu()


def _from_tensors(cls: type[Jagged], rows: list[Tensor]) -> Jagged:
    full = [row for row in rows if row.numel()] or rows
    dtype, shape = full[0].dtype, full[0].shape[1:]
    for number, row in enumerate(rows):
        if row.numel() and (row.dtype is not dtype or row.shape[1:] != shape):
            raise TypeError(
                f"row {number} is {row.dtype} {list(row.shape)}, where others are {dtype} "
                f"{['*', *shape]}: rows differ in their first dimension only."
            )
    lengths = torch.tensor([len(row) for row in rows])
    return cls(torch.cat(full) if full else torch.empty(0), offsets_of(lengths))
