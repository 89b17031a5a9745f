"""Rows of different lengths as one entry of a TensorDict: strings, bytes, JSON values, and tensors that differ in one
dimension.

    values     [total, ...]   the rows one after the other; uint8 for strings (None as the byte 0xFF), bytes and JSON
    offsets    int64 [n + 1]  row i is values[offsets[i] : offsets[i + 1]]

A :class:`Ragged` is a :class:`~tensordict_lite.NonTensorStack` that creates its objects from these two tensors when
they are read. Slices share the tensors, which may be mapped from files; selections share them until one is written.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of
from tensordict_lite.building.arrays import require_unmasked
from tensordict_lite.errors import DatasetError, InplaceWriteError
from tensordict_lite.gathering import gather_rows, offsets_of
from tensordict_lite.indexing import index_batch_size
from tensordict_lite.memmap.disk.mapping import file_of, is_anonymous, region_of
from tensordict_lite.memmap.disk.placed import is_placed
from tensordict_lite.objects.column import PayloadColumn, numbers_of
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.objects.stack import NonTensorStack, cat_non_tensors
from tensordict_lite.ops.put import signed_view
from tensordict_lite.paths import paths_as_text
from tensordict_lite.raggednumbers import RaggedNumbers

KINDS = ("tensor", "str", "bytes", "json")

READ_ROWS = 1 << 15
"""Number of rows that are decoded at a time."""

_NO_SIZE = torch.Size(())
_ERRORS = "surrogatepass"  # Python strings may contain lone surrogates, which strict UTF-8 cannot encode
_NONE = b"\xff"  # never part of a UTF-8 string


def text_of(rows: Sequence[Any]) -> tuple[str, Tensor, Tensor] | None:
    """Kind, values and offsets of strings or bytes; ``None`` for other objects.

    Strings may be missing (None).

    Example:
        >>> text_of(["ant", None])
        ('str', tensor([ 97, 110, 116, 255], dtype=torch.uint8), tensor([0, 3, 4]))
    """
    kinds = set(map(type, rows))
    if kinds == {str}:
        rows = [row.encode("utf-8", _ERRORS) for row in rows]
    elif kinds == {str, type(None)}:
        rows = [_NONE if row is None else row.encode("utf-8", _ERRORS) for row in rows]
    elif kinds != {bytes}:
        return None
    lengths = torch.from_numpy(np.fromiter(map(len, rows), np.int64, len(rows)))
    return "bytes" if bytes in kinds else "str", bytes_tensor(b"".join(rows)), offsets_of(lengths)


def json_of(rows: Sequence[Any]) -> tuple[str, Tensor, Tensor]:
    """Kind, values and offsets of JSON values.

    Raises:
        TypeError: JSON cannot represent a row; the message names it.
    """
    parts = [_as_json(number, row) for number, row in enumerate(rows)]
    lengths = torch.from_numpy(np.fromiter(map(len, parts), np.int64, len(parts)))
    return "json", bytes_tensor(b"".join(parts)), offsets_of(lengths)


def bytes_tensor(content: bytes) -> Tensor:
    """uint8 ``[len(content)]``."""
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8))


class RaggedColumn(PayloadColumn):
    """Values and offsets, and the members that were created for some of the rows.

    Args:
        kind: ``"tensor"``, ``"str"``, ``"bytes"`` or ``"json"``.
        values: ``[total, ...]``; uint8 ``[total]`` unless the kind is ``"tensor"``.
        offsets: int64 ``[n + 1]``, checked when a row is read.
        size: batch size of each member.
        device: of each member.
    """

    __slots__ = ("kind", "offsets", "values")

    _cells: dict[int, NonTensorData]  # type: ignore[assignment]

    def __init__(
        self,
        kind: str,
        values: Tensor,
        offsets: Tensor,
        size: torch.Size = _NO_SIZE,
        device: torch.device | None = None,
    ) -> None:
        super().__init__({}, size, device)  # type: ignore[arg-type]
        self.kind, self.values, self.offsets = kind, values, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self._picked is None else len(self._picked)

    # -- as a column -----------------------------------------------------------------------------------------

    def member(self, row: int) -> NonTensorData:
        """The wrapper of a row, the same object in every collection that shares the column."""
        cell = self._cells.get(row)
        if cell is None:
            cell = NonTensorData(self._read((row,))[0], batch_size=self._size, device=self.device)
            cell = self._cells.setdefault(row, cell)
            self._has_members = True
        return cell

    def made(self, rows: Sequence[int]) -> list[NonTensorData]:
        """The members of some rows, as far as they were created."""
        return [self._cells[row] for row in self._asked(rows)]

    def objects(self, rows: Sequence[int]) -> list[Any]:
        """The objects of some rows, in a new list."""
        found = self._read(rows)
        if self._has_members:
            for place, row in enumerate(rows) if len(self._cells) > len(rows) else self._places(rows):
                cell = self._cells.get(row)
                if cell is not None:
                    found[place] = cell._payload
        return found

    def _asked(self, rows: Sequence[int]) -> list[int]:
        """The rows whose members were created."""
        if not self._has_members:
            return []
        cells = self._cells
        if len(cells) > len(rows):
            return [row for row in rows if row in cells]
        known = rows if type(rows) is range else set(rows)
        return [row for row in list(cells) if row in known]

    def _places(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Positions in ``rows`` of the rows whose members were created, and these rows; may contain others."""
        if type(rows) is range:
            return [(rows.index(row), row) for row in self._asked(rows)]
        return list(enumerate(rows))

    # -- reading -----------------------------------------------------------------------------------------------

    def _read(self, rows: Sequence[int]) -> list[Any]:
        """The objects that the values encode."""
        if self.kind == "tensor" and len(rows):
            if type(self._picked) is not range:  # else all rows, of the result of an operation: reading copies none
                self._settle()
            self._has_members = True  # the tensors may be written by their holders
        return self._read_numbers(self.numbers(rows))

    def _read_numbers(self, rows: Sequence[int]) -> list[Any]:
        if not len(rows):
            return []
        if len(rows) > READ_ROWS:  # the positions of short rows take more memory than the rows
            blocks = [rows[first : first + READ_ROWS] for first in range(0, len(rows), READ_ROWS)]
            return [value for block in blocks for value in self._read_numbers(block)]
        starts, ends = self._spans(rows)
        if self.kind == "tensor":
            values = self.values.as_subclass(Tensor)
            return [values[start:end] for start, end in zip(starts.tolist(), ends.tolist())]
        flat: Any = self.values.as_subclass(Tensor).numpy()
        first, last = int(starts.min()), int(ends.max())
        if last - first > 4 * int((ends - starts).sum()) + 4096:  # rows far apart
            view = memoryview(flat)
            return self._decoded([view[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist())], rows)
        content = flat[first:last].tobytes()
        begins, stops = (starts - first).tolist(), (ends - first).tolist()
        if self.kind == "str" and content.isascii():
            text = content.decode("ascii")
            return [text[begin:stop] for begin, stop in zip(begins, stops)]
        return self._decoded([content[begin:stop] for begin, stop in zip(begins, stops)], rows)

    def _decoded(self, parts: list[bytes], rows: Sequence[int]) -> list[Any]:
        """The objects of some rows, from their bytes.

        Raises:
            DatasetError: a string is not UTF-8; the message names the file and the row.
        """
        if self.kind == "bytes":
            return parts
        if self.kind == "json":
            return [self._parsed(part, row) for part, row in zip(parts, rows)]
        try:
            return [None if part == _NONE else part.decode("utf-8", _ERRORS) for part in parts]
        except UnicodeDecodeError as error:
            row = rows[parts.index(error.object)]
            raise DatasetError(_name_of(self.values, "values"), f"string {row} is not UTF-8 ({error})") from None

    def _parsed(self, part: bytes, row: int) -> Any:
        try:
            return json.loads(part) if part else None  # empty for a skipped row
        except (ValueError, RecursionError) as error:
            raise DatasetError(_name_of(self.values, "values"), f"row {row} is not JSON ({error})") from None

    def _spans(self, rows: Sequence[int]) -> tuple[Any, Any]:
        """Start and end of each row in the values, as arrays.

        Raises:
            DatasetError: a row exceeds the values; the message names the file and the row.
        """
        bounds: Any = self.offsets.as_subclass(Tensor).numpy()
        if type(rows) is range and rows.step == 1:
            if len(rows) and (rows.start < 0 or rows.stop >= len(self.offsets)):
                raise IndexError(f"rows {rows.start} to {rows.stop} of {len(self.offsets) - 1}")
            bounds = bounds[rows.start : rows.stop + 1]
            starts, ends = bounds[:-1], bounds[1:]
        else:
            index = numbers_of(rows)
            starts, ends = bounds[index], bounds[index + 1]
        if starts.min(initial=0) < 0 or ends.max(initial=0) > len(self.values) or (ends < starts).any():
            place = int(((starts < 0) | (ends < starts) | (ends > len(self.values))).argmax())
            raise DatasetError(
                _name_of(self.offsets, "offsets"),
                f"row {rows[place]} has the values {int(starts[place])} to {int(ends[place])} of {len(self.values)}: "
                "the file is damaged",
            )
        return starts, ends

    def spans(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Start and end of each row in the values, int64 ``[n]`` each; raises the errors of reading the rows."""
        starts, ends = self._spans(self.numbers(rows))
        return torch.from_numpy(starts), torch.from_numpy(ends)

    def flat(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The values of some rows, concatenated, and their offsets from 0; adjacent rows share memory."""
        return self._flat(self.numbers(rows))

    def _flat(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        starts, ends = map(torch.from_numpy, self._spans(rows))
        values = self.values.as_subclass(Tensor)
        if not len(rows):
            return values[:0], torch.zeros(1, dtype=torch.int64, device="cpu")
        if rows == range(len(self.offsets) - 1) and not starts[0] and int(ends[-1]) == len(values):
            return self.values, self.offsets
        if type(rows) is range and rows.step == 1:
            bounds = self.offsets.as_subclass(Tensor)[rows.start : rows.stop + 1]
            return values[int(starts[0]) : int(ends[-1])], bounds - starts[0]
        offsets = offsets_of(ends - starts)
        if torch.equal(starts[1:], ends[:-1]):
            return values[int(starts[0]) : int(ends[-1])], offsets
        out = values.new_empty((int(offsets[-1]), *values.shape[1:]))
        gather_rows(values, starts, ends, out)
        return out, offsets

    # -- copies, and other processes -----------------------------------------------------------------------------

    def copied(self, rows: Sequence[int]) -> tuple[PayloadColumn, Sequence[int]]:
        """A new column with copies of the values of some rows, and their positions in it."""
        new, rows = self.selected(rows) if not self.is_changed(rows) else super().copied(rows)
        if isinstance(new, RaggedColumn):
            new._own()
        return new, rows

    def selected(self, rows: Sequence[int]) -> tuple[PayloadColumn, Sequence[int]]:
        """A copy of some rows, which shares the values until either is written, and their positions in it."""
        if self.is_changed(rows):
            return PayloadColumn(self.objects(rows), self._size, self.device), range(len(rows))
        new = RaggedColumn(self.kind, self.values, self.offsets, self._size, self.device)
        new._picked = self.numbers(rows)
        if self.kind == "tensor":  # bytes of text are replaced, and not written
            self._lend(new)
            if self._has_members:
                new._own()
        return new, range(len(rows))

    def _own(self) -> None:
        """Copy the values that a selection shares."""
        if self._picked is not None:
            values, offsets = self.flat(range(len(self)))
            if values.untyped_storage().data_ptr() == self.values.untyped_storage().data_ptr():
                values = values.clone()
            self.values, self.offsets, self._picked, self._lent = values, offsets, None, None

    def is_changed(self, rows: Sequence[int]) -> bool:
        """Whether another object was assigned to one of these rows."""
        asked = self._asked(rows)
        return any(not self._is_row(self._cells[row]._payload, old) for row, old in zip(asked, self._read(asked)))

    def _is_row(self, payload: Any, row: Any) -> bool:
        if type(payload) is not type(row):
            return False
        if self.kind != "tensor":
            return bool(payload == row)
        return payload is row or (
            payload.data_ptr() == row.data_ptr() and payload.shape == row.shape and payload.dtype is row.dtype
        )

    @property
    def is_placed(self) -> bool:
        """Whether the values are numbers in a file or in shared memory, which are overwritten in place."""
        storage = self.values.untyped_storage()
        here = self.kind == "tensor" and self._picked is None
        return here and (storage.filename is not None or storage.is_shared())

    def assign(self, rows: Sequence[int], values: Tensor, offsets: Tensor) -> None:
        """Write rows, for every collection that shares the column.

        Numbers in a file or in shared memory are overwritten there, and others where no length changes, as tensors are;
        anything else is replaced.

        Raises:
            InplaceWriteError: the numbers are in a file or in shared memory, and the lengths differ.
        """
        self._settle()
        starts, ends = self.spans(rows)
        if self.is_placed or (self.kind == "tensor" and torch.equal(ends - starts, offsets.diff())):
            self._overwrite(rows, values, offsets)
        else:
            self.replace(rows, values, offsets)

    def replace(self, rows: Sequence[int], values: Tensor, offsets: Tensor) -> None:
        """Replace rows, for every collection that shares the column. Copies all values, unless all rows change."""
        made = [row for row in list(self._cells) if not self.is_changed((row,))]
        if not is_range(rows, 0, len(self)):
            own, bounds = self.flat(range(len(self)))
            starts, ends, index = bounds[:-1].clone(), bounds[1:].clone(), torch.from_numpy(numbers_of(rows))
            starts[index], ends[index] = offsets[:-1] + len(own), offsets[1:] + len(own)
            both = torch.cat([own.as_subclass(Tensor), values])
            offsets = offsets_of(ends - starts)
            values = both.new_empty((int(offsets[-1]), *both.shape[1:]))
            gather_rows(both, starts, ends, values)
        self.values, self.offsets, self._picked, self._lent = values, offsets, None, None
        for row in made:
            self._cells[row]._payload = self._read((row,))[0]

    def _overwrite(self, rows: Sequence[int], values: Tensor, offsets: Tensor) -> None:
        starts, ends = self.spans(rows)
        lengths = offsets.diff()
        if not torch.equal(ends - starts, lengths):
            row = int((ends - starts != lengths).nonzero()[0])
            raise InplaceWriteError(
                f"row {rows[row]} of ragged numbers in a file or in shared memory has {int(ends[row] - starts[row])} "
                f"elements, got {int(lengths[row])}: pass rows of the same lengths, or set the entry in a copy in "
                "memory and save that copy"
            )
        index = torch.arange(len(values)) + torch.repeat_interleave(starts - offsets[:-1], lengths)
        self.values.as_subclass(Tensor).index_copy_(0, index, values.to(self.values.dtype))

    def pickled(self, rows: Sequence[int]) -> Any:
        """The tensors; the objects if one was assigned to a row."""
        return self.objects(rows) if self.is_changed(rows) else self.part(rows)

    def part(self, rows: Sequence[int]) -> RaggedPart:
        """Some rows, to be pickled: shared memory by its name, other memory without the other rows."""
        values, offsets, index, rows = self.values, self.offsets, None, self.numbers(rows)
        if not len(rows) or not (values.is_shared() or region_of(values) is not None):
            if type(rows) is not range or len(rows) < len(offsets) - 1:
                values, offsets = self._flat(rows)
                if values.untyped_storage().nbytes() > values.nbytes:
                    values = values.clone()
        elif type(rows) is range and rows.step == 1 and (self._picked is None or self.kind != "tensor"):
            offsets = offsets[rows.start : rows.stop + 1]
        else:
            index = torch.from_numpy(numbers_of(rows))
        is_copy = index is not None and self._picked is not None
        return RaggedPart(self.kind, values, offsets, index, (_stamp(values), _stamp(offsets)), is_copy)

    def share_memory_(self) -> None:
        """Move both tensors to shared memory; those in files are shared already."""
        if not self.values.is_shared() and region_of(self.values) is None:
            self._own()
            self.values = self.values.clone().share_memory_()
            self.offsets = self.offsets.clone().share_memory_()


def is_range(rows: Sequence[int], start: int, stop: int) -> bool:
    """Whether ``rows`` is ``range(start, stop)``."""
    return type(rows) is range and rows == range(start, stop)


class RaggedPart(NamedTuple):
    """Rows of a column for another process."""

    kind: str
    values: Tensor
    offsets: Tensor
    index: Tensor | None  # type: ignore[assignment]  # hides tuple.index()
    """int64 ``[n]``, the rows; None for all."""
    stamps: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)
    """Identity of the files from which the two tensors are mapped."""
    is_copy: bool = False
    """Whether the rows are a selection, whose values are copied when they are written."""

    @property
    def rows(self) -> Sequence[int]:
        """The numbers of the rows."""
        if self.index is None or self.is_copy:
            return range(len(self.offsets) - 1 if self.index is None else len(self.index))
        return self._numbers()

    def _numbers(self) -> Sequence[int]:
        assert self.index is not None
        return array("q", self.index.numpy().tobytes())

    def opened(self, size: torch.Size, device: torch.device | None) -> RaggedColumn:
        """The column, in the receiving process.

        Raises:
            DatasetError: a file was replaced meanwhile; the message names it.
        """
        for tensor, stamp in zip((self.values, self.offsets), self.stamps):
            file = file_of(tensor.untyped_storage())  # None: a copy
            if stamp is not None and file is not None and _stamp(tensor) != stamp:
                raise DatasetError(file, "has been replaced since its rows were sent to this process")
        column = RaggedColumn(self.kind, self.values, self.offsets, size, device)
        if self.is_copy:
            column._picked = self._numbers()
        return column

    def alone(self) -> RaggedPart:
        """The same rows without the values of others."""
        return RaggedPart(self.kind, *self.opened(_NO_SIZE, None).flat(self.rows), None)


def _name_of(tensor: Tensor, otherwise: str) -> str:
    """The file from which a tensor is mapped, for messages."""
    storage = tensor.untyped_storage()
    return storage.filename or file_of(storage) or otherwise


def _stamp(tensor: Tensor) -> tuple[int, int] | None:
    """Identity of the file from which a tensor is mapped; None for other memory, or if the file was replaced."""
    storage = tensor.untyped_storage()
    file = file_of(storage)
    if file is None or is_anonymous(file) or not is_placed(storage, file):
        return None
    info = os.stat(file)
    return info.st_dev, info.st_ino


class Ragged(RaggedNumbers):
    """Rows of different lengths: strings, bytes, JSON values, or tensors that differ in their first dimension.

    ``td.get(key)`` returns the column. ``td[key]`` returns a list for strings and JSON values, as for any
    :class:`NonTensorStack`, and the column for tensors and bytes. ``td[i]`` holds a tensor, a string, bytes or an
    object. JSON values (lists, dicts with string keys, strings, numbers, bools and None, such as the messages of a
    chat) are parsed on each access: changing one does not change the column. Slices share the values; masks and lists
    of rows copy them, not before one of the two is written. Moves of the TensorDict to another device leave the column
    on the CPU.

    Numbers compute element by element (``x * 2``, ``x > 1``, ``torch.log(x)``, casts), with a number, a tensor
    ``[rows]`` or a column of the same lengths; reductions (``x.mean()``) are by row. Strings, bytes and JSON values
    raise TypeError.

    A column has one batch dimension. Reshaping, unsqueezing, permuting, expanding or stacking it, or assigning another
    object to a row, turns it into a :class:`NonTensorStack` of objects. You can assign ragged rows of the same kind and
    dtype, also with ``update_``; all holders of the column see them. Strings and JSON values can be None.

    Args:
        values: the concatenated rows, ``[total, ...]``; uint8 ``[total]`` for strings and JSON (UTF-8) and bytes.
        offsets: int64 ``[n + 1]``, ascending: row i is ``values[offsets[i] : offsets[i + 1]]``.
        kind: type of a row: ``"tensor"``, ``"str"``, ``"bytes"`` or ``"json"``.

    Raises:
        TypeError: ``values`` or ``offsets`` has a wrong dtype or number of dimensions.
        ValueError: offsets are not ascending, or exceed the values.

    Example:
        >>> td = TensorDict({"v": Ragged.from_list([[1, 2], [], [3]]), "w": Ragged.from_list(["ant", "", "bee"])}, [3])
        >>> td[1:]["v"].flat()
        (tensor([3]), tensor([0, 0, 1]))
        >>> td["v"][0], td["w"][2], td.get("w").lengths
        (tensor([1, 2]), 'bee', tensor([3, 0, 3]))
    """

    __slots__ = ("_origin",)

    _stack_priority = 4
    _origin: tuple[Any, Sequence[int]] | None
    """The column and rows from which the members were created."""

    def __init__(self, values: Tensor, offsets: Tensor, kind: str = "tensor") -> None:
        _check(values, offsets, kind)
        self._set_rows(RaggedColumn(kind, values, offsets), range(len(offsets) - 1), 0, _NO_SIZE, None)

    @classmethod
    def _over(cls, kind: str, values: Tensor, offsets: Tensor, device: torch.device | None = None) -> Any:
        """Trusted constructor: the offsets of a row are checked when it is read."""
        column = RaggedColumn(kind, values, offsets, _NO_SIZE, device)
        return cls._of_rows(column, range(len(offsets) - 1), 0, _NO_SIZE, device)

    @classmethod
    def from_list(cls, rows: Sequence[Any], **kwargs: Any) -> Any:  # type: ignore[override]  # of rows
        """From strings, bytes, or tensors, arrays and lists of numbers that differ in their first dimension.

        Raises:
            TypeError: the kinds of rows differ, or a row of bytes or numbers is None; the message names a row.
            ValueError: the list is empty, so the kind is unknown.

        Example:
            >>> Ragged.from_list([b"ant", b""]).tolist()
            [b'ant', b'']
        """
        rows = paths_as_text([bytes(row) if type(row) is bytearray else row for row in rows])
        if not rows:
            raise ValueError(
                "got no rows, so their kind is unknown: use Ragged(values[:0], torch.zeros(1).long(), kind)"
            )
        if all(type(row) is Tensor and row.dim() for row in rows):  # by far the most, and there are many
            return cls._of_tensors(rows)
        text = text_of(rows)
        if text is not None:
            return cls(text[1], text[2], text[0])
        first = next((row for row in rows if row is not None), None)
        for number, row in enumerate(rows):
            if row is None and not isinstance(first, str):
                raise TypeError(
                    f"row {number} is None, and {_kind_name(first)} cannot be missing: use an empty row and a bool "
                    "entry that marks missing rows, or a plain list of objects"
                )
            if isinstance(row, (str, bytes)) or isinstance(first, (str, bytes)):
                if type(row) is not type(first):
                    raise TypeError(f"row {number} is a {type(row).__name__}, but others are {_kind_name(first)}")
        tensors = [_as_tensor(number, row) for number, row in enumerate(rows)]
        return cls._of_tensors(tensors)

    @classmethod
    def from_objects(cls, rows: Sequence[Any]) -> Any:
        """From JSON values: lists, dicts with string keys, strings, numbers, bools and None.

        Raises:
            TypeError: JSON cannot represent a row; the message names it.

        Example:
            >>> Ragged.from_objects([[{"role": "user", "content": "Hi"}], []]).tolist()
            [[{'role': 'user', 'content': 'Hi'}], []]
        """
        kind, values, offsets = json_of(rows)
        return cls(values, offsets, kind)

    @classmethod
    def _of_tensors(cls, tensors: list[Tensor]) -> Any:
        if len({tensor.dtype for tensor in tensors}) == 1 and all(tensor.dim() == 1 for tensor in tensors):
            lengths = torch.from_numpy(np.fromiter((tensor.shape[0] for tensor in tensors), np.int64, len(tensors)))
            return cls(torch.cat(tensors).detach(), offsets_of(lengths))
        model = next((tensor for tensor in tensors if tensor.numel()), tensors[0])
        for number, tensor in enumerate(tensors):
            if not tensor.numel() and tensor.dim() == 1:  # an empty list has no shape beyond its length
                tensors[number] = model.new_empty((0, *model.shape[1:]))
            elif tensor.shape[1:] != model.shape[1:]:
                raise TypeError(
                    f"rows may differ only in their first dimension: row {number} has the shape {list(tensor.shape)}, "
                    f"another one {list(model.shape)}"
                )
        dtype = tensors[0].dtype
        for tensor in tensors:
            dtype = torch.promote_types(dtype, tensor.dtype)
        lengths = torch.tensor([len(tensor) for tensor in tensors], dtype=torch.int64, device="cpu")
        return cls(torch.cat([tensor.to(dtype) for tensor in tensors]).detach(), offsets_of(lengths))

    @classmethod
    def from_nested(cls, tensor: Tensor) -> Any:
        """From a nested tensor whose elements differ in their first dimension; a jagged one shares its values.

        Example:
            >>> Ragged.from_nested(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])).lengths
            tensor([2, 1])
        """
        jagged: Any = tensor
        if tensor.layout is torch.jagged and jagged._ragged_idx == 1 and jagged._lengths is None:
            return cls(jagged.values().detach(), jagged.offsets().to("cpu", torch.int64))
        return cls._of_tensors(list(tensor.unbind()))

    @classmethod
    def _of_list(cls, kind: str, rows: Sequence[Any], device: torch.device | None) -> Any:
        """A column of strings, bytes or JSON values, also an empty one; None if a row is of another kind."""
        if kind == "json":
            return cls._over(*json_of(rows), device)
        found = text_of(["" if kind == "str" else b"", *rows])  # the first one determines the kind
        return None if found is None else cls._over(kind, found[1], found[2][1:], device)

    def _hold(self, values: Tensor, offsets: Tensor) -> None:
        """Replace the tensors by others with the same rows; collections that share the column keep theirs."""
        kind, names, lock = self.kind, self._names, self._lock
        column = RaggedColumn(kind, values, offsets, _NO_SIZE, self._device)
        self._set_rows(column, range(len(column)), 0, _NO_SIZE, self._device)
        self._names, self._lock = names, lock

    # -- attributes --------------------------------------------------------------------------------------------

    @property
    def column(self) -> RaggedColumn | None:
        """The two tensors; None if another object was assigned to a row."""
        column: Any = self._plain_column()
        return None if column is None or column.is_changed(self._rows) else column

    @property
    def kind(self) -> str:
        """``"tensor"``, ``"str"``, ``"bytes"`` or ``"json"``."""
        return self._ragged().kind

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the values."""
        return self._ragged().values.dtype

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one element of a row."""
        return self._ragged().values.shape[1:]

    @property
    def lengths(self) -> Tensor:
        """int64 ``[n]``: number of elements of each row, for strings of bytes."""
        starts, ends = self.spans()
        return ends - starts

    @property
    def has_none(self) -> bool:
        """Whether a string is None."""
        column = self._ragged()
        if column.kind != "str":
            return False
        starts, ends = self.spans()
        starts = starts[ends - starts == 1]
        return bool((column.values.as_subclass(Tensor).index_select(0, starts) == _NONE[0]).any())

    def _ragged(self) -> RaggedColumn:
        column = self.column
        if column is None:
            raise TypeError(
                "another object was assigned to a row, so this is a stack of objects: use tolist(), or convert the "
                "list with Ragged.from_list(...)"
            )
        return column

    def spans(self) -> tuple[Tensor, Tensor]:
        """Start and end of each row in the values of its column, int64 ``[n]`` each."""
        return self._ragged().spans(self._rows)

    def flat(self) -> tuple[Tensor, Tensor]:
        """The values of the rows, concatenated, and their offsets from 0; adjacent rows share memory."""
        return self._ragged().flat(self._rows)

    def to_nested(self) -> Tensor:
        """A jagged nested tensor, which shares the values of adjacent rows.

        Raises:
            TypeError: the rows are strings or bytes.
        """
        if self.kind != "tensor":
            raise TypeError(f"a nested tensor holds numbers, but the rows are {self.kind}: use flat() for their bytes")
        return torch.nested.nested_tensor_from_jagged(*self.flat())

    def pad(  # type: ignore[override]  # the rows, not the batch
        self, length: Any = None, value: Any = 0, left: bool = False, **kwargs: Any
    ) -> Any:
        """Pad or cut the rows to one length.

        Args:
            length: length of the rows; longer ones lose their end. Default: that of the longest. A sequence of numbers
                adds rows before and after, as :meth:`TensorDict.pad` does.
            value: fills shorter rows.
            left: fill in front of the row instead of behind it.

        Returns:
            A tensor ``[n, length, ...]``, and a bool mask ``[n, length]``, True at the elements of rows.

        Raises:
            ValueError: the dtype of the rows does not hold ``value``, or ``length`` leaves nothing of them.

        Example:
            >>> Ragged.from_list([[1, 2, 3], [4]]).pad(2)
            (tensor([[1, 2],
                    [4, 0]]), tensor([[ True,  True],
                    [ True, False]]))
        """
        if isinstance(length, Sequence) or "pad_size" in kwargs:
            return super().pad(kwargs.pop("pad_size", length), value=value, **kwargs)
        column = self._ragged()
        starts, ends = column.spans(self._rows)
        lengths = ends - starts
        longest = int(lengths.max()) if len(lengths) else 0
        if length is None:
            length = longest
        if length < min(1, longest):
            raise ValueError(
                f"pad({length}) cuts rows of up to {longest} elements to nothing: the first argument is the length of "
                f"the rows. Omit it for that of the longest row, and pass what fills shorter rows as value={value!r}"
            )
        kept = lengths.clamp(max=length)
        places = torch.arange(length, device="cpu")
        mask = places >= (length - kept)[:, None] if left else places < kept[:, None]
        values = column.values.as_subclass(Tensor)
        require_fill(value, values.dtype)
        out = values.new_full((len(kept), length, *values.shape[1:]), value)
        flat = values.new_empty((int(kept.sum()), *values.shape[1:]))
        gather_rows(values, starts, starts + kept, flat)
        signed_view(out)[mask] = signed_view(flat)
        return out, mask

    def buckets(self, batch_size: int, *, seed: int | None = None, window: int = 100) -> Iterator[Tensor]:
        """Batches of row numbers of similar lengths, so that little padding is needed.

        Rows are shuffled, sorted by length within windows of ``window`` batches, cut into batches, and the batches of a
        window are shuffled again.

        Args:
            batch_size: number of rows in a batch; the last one may have fewer.
            seed: seed of the shuffling, which makes the batches reproducible. None: no shuffling.
            window: number of batches that are sorted together.

        Yields:
            int64 ``[batch_size]``: row numbers.

        Example:
            >>> rows = Ragged.from_list([[1, 2, 3], [4], [5, 6, 7], [8]])
            >>> [batch.tolist() for batch in rows.buckets(2)]
            [[1, 3], [0, 2]]
        """
        lengths, generator = self.lengths, None
        order = torch.arange(len(lengths), device="cpu")
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(lengths), generator=generator, device="cpu")
        for part in order.split(batch_size * window):
            batches = part[torch.sort(lengths[part], stable=True).indices].split(batch_size)
            full = len(batches) - (len(batches[-1]) < batch_size)
            picks: Any = range(full)
            if generator is not None:
                picks = torch.randperm(full, generator=generator, device="cpu").tolist()
            yield from (batches[pick] for pick in picks)
            yield from batches[full:]

    def tolist(self, *, convert_nodes: bool = True, convert_tensors: Any = False, tolist_first: bool = False) -> Any:
        """A list of strings, bytes, lists of numbers, or JSON values."""
        rows = super().tolist()
        return [row.tolist() for row in rows] if self._is_ragged_numbers else rows

    def _as_value(self) -> Any:
        return super()._as_value() if self.column is None or self.kind in ("str", "json") else self

    def _row(self, index: int) -> Any:
        row = super()._row(index)
        return row._payload if self._is_ragged_numbers else row

    def unbind(self, dim: int = 0) -> Any:
        """The rows: tensors, or :class:`NonTensorData` of strings and bytes."""
        column = self.column
        if column is None or column.kind != "tensor" or dim not in (0, -1):
            return super().unbind(dim)
        return tuple(column.objects(self._rows))

    def unsqueeze(self, dim: int) -> Any:
        objects = NonTensorStack._of(self._source, 0, _NO_SIZE, self._device, self._names)
        return objects.unsqueeze(dim)

    def __iter__(self) -> Iterator[Any]:
        column = self.column
        return (
            super().__iter__() if column is None or column.kind in ("str", "json") else iter(column.objects(self._rows))
        )

    def __repr__(self) -> str:
        column = self.column
        if column is None:
            return super().__repr__()
        what = form_name(column.kind, self.dtype, self.row_shape)
        return f"Ragged({len(self._rows):,} rows of {what}, device={self._device})"

    # -- rows ------------------------------------------------------------------------------------------------

    def _take_column(self, column: RaggedColumn) -> None:
        """Use another column, which holds exactly these rows."""
        self._members, self._origin = None, None
        self._objects, self._rows = column, range(len(column))

    def _set_rows(self, column: PayloadColumn, rows: Sequence[int], *args: Any) -> None:
        self._origin = None
        super()._set_rows(column, rows, *args)

    def update_(self, input_dict_or_td: Any = None, **kwargs: Any) -> Any:
        """Copy the rows of other non-tensor data of the same batch size, also to a locked column.

        Rows of another kind or dtype, and other objects, convert this to a stack of objects.
        """
        column = self.column
        if column is not None:
            new = self._as_rows(input_dict_or_td, len(self._rows))
            if new is not None:
                values, offsets = new.flat()
                with self._writing():
                    column.assign(self._rows, values.as_subclass(Tensor).clone(), offsets.as_subclass(Tensor).clone())
                return self
        return super().update_(input_dict_or_td, **kwargs)

    def _as_rows(self, other: Any, count: int) -> Any:
        """``count`` ragged rows of the same form from an entry or a list; None if it does not have them.

        Raises:
            InplaceWriteError: it does not, and these rows are numbers in a file or in shared memory.
        """
        is_placed = self._ragged().is_placed
        if is_placed and not is_ragged(other):
            rows = other._payloads() if isinstance(other, NonTensorStack) else other
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                other = Ragged.from_list(rows or ())
        if is_ragged(other) and len(other._rows) == count:
            if (other.kind, other.row_shape) == (self.kind, self.row_shape):
                if is_placed or other.dtype == self.dtype:  # writes in place convert numbers, as for tensors
                    return other
        if is_placed:
            what = repr(other) if is_ragged(other) else f"a {type(other).__name__}"
            raise InplaceWriteError(
                f"{count:,} rows of {form_name(self.kind, self.dtype, self.row_shape)} in a file or in shared memory "
                f"need as many rows of the same form, got {what}"
            )
        return None

    def _like_rows(self, value: Any, size: torch.Size) -> Any:
        """One row of a tensor per row, if the rows are tensors."""
        if isinstance(value, Tensor) and value.dim() > 1 and value.shape[:1] == size and self.column is not None:
            return Ragged._of_tensors(list(value.unbind(0)))
        return super()._like_rows(value, size)

    def _set_index(self, index: Any, value: Any) -> None:
        column = self.column
        if type(index) is tuple and len(index) == 1:
            index = index[0]
        if isinstance(value, Tensor) and type(index) is not int:
            value = self._like_rows(value, self._rows_size(index))
        if column is not None and isinstance(value, Tensor) and type(index) is int and not column.is_placed:
            row = self._row(index)
            if isinstance(row, Tensor) and row.shape == value.shape and row.dtype is value.dtype:
                row.copy_(value)
                return
            value = value.clone()  # else a later write into the source would be one into this row
        elif column is not None and (isinstance(value, Ragged) or column.is_placed):
            if type(index) is int:
                index, value = slice(index, index + 1 or None), value if is_ragged(value) else [value]
            rows = self._rows_at(index)
            if rows is not None:
                view = self._view(column, rows)
                if view._as_rows(value, len(rows)) is not None:
                    view.update_(value)
                    return
        super()._set_index(index, value)

    @property
    def _source(self) -> list[Any]:
        if self._objects is not None:
            self._origin = self._objects, self._rows
        return NonTensorStack._source.fget(self)  # type: ignore[attr-defined]

    @_source.setter
    def _source(self, members: list[Any]) -> None:
        self._origin = None
        NonTensorStack._source.fset(self, members)  # type: ignore[attr-defined]

    def _plain_column(self) -> PayloadColumn | None:
        """The column, also after all members were read, unless one was replaced."""
        if self._objects is None and self._origin is not None:
            (column, rows), self._origin = self._origin, None
            members = self._members or ()
            if len(members) == len(rows) and all(column._cells.get(r) is member for r, member in zip(rows, members)):
                self._rows = rows
                self._objects = column
        return self._objects

    def _payloads(self) -> list[Any] | None:
        self._plain_column()
        return super()._payloads()

    def _nested(self) -> Any:
        return () if self._plain_column() is not None else super()._nested()

    def _set_names(self, names: list[str | None] | None) -> None:
        self._names = names

    def _index(self, index: Any) -> Any:
        if not self._batch_size[0]:
            return self._empty_like(index)
        found = super()._index(index)
        if type(found) is NonTensorData and not found._batch_size and self._is_ragged_numbers:
            return found._payload
        return found

    def _empty_like(self, index: Any) -> Any:
        size = index_batch_size(self._batch_size, index)
        column = self._plain_column()
        if column is None or len(size) != 1 or size[0]:
            return super()._index(index) if not self._batch_size[0] else super()._empty_like(index)
        return self._view(column, range(0))

    def _moved(self, move: Any) -> Any:
        values: Any = self._payloads()
        if self._is_ragged_numbers:
            values = [row.clone() for row in values]
        return NonTensorStack._of_objects(values, 0, _NO_SIZE, self._device)._moved(move)

    def __reduce_ex__(self, protocol: Any) -> Any:
        make, args, *state = super().__reduce_ex__(protocol)
        return make, (NonTensorStack,) if args == (Ragged,) and self.column is None else args, *state

    @classmethod
    def _of(cls, *args: Any, **kwargs: Any) -> Any:
        return NonTensorStack._of(*args, **kwargs)

    @classmethod
    def _class_for(cls, members: Sequence[Any]) -> Any:
        return NonTensorStack._class_for(members)

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        if type(source) is dict:
            return super()._rebuild(source, batch_size, names)
        return NonTensorStack._of(source, self._stack_dim, _NO_SIZE, self._device, names, batch_size)

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        """Rows that are tensors become objects of the stack."""
        rows = [item._source if is_ragged(item) and item.kind == "tensor" else None for item in items]
        of = NonTensorStack._of
        return super()._stack_entries(
            [i if r is None else of(r, 0, _NO_SIZE, i._device) for i, r in zip(items, rows)], dim
        )

    @classmethod
    def _cat_entries(cls, items: Sequence[Any], dim: int) -> Any:
        columns = [_part_of(item) for item in items]
        first = next((column for column in columns if column is not None), None)
        if first is None or any(column is None or not _is_like(column, first) for column in columns):
            return cat_non_tensors(items, dim)
        values = torch.cat([column[1] for column in columns if column is not None])
        lengths = torch.cat([column[2].diff() for column in columns if column is not None])
        new = RaggedColumn(first[0], values, offsets_of(lengths), _NO_SIZE, items[0]._device)
        return cls._of_rows(new, range(len(lengths)), 0, _NO_SIZE, items[0]._device)


def is_ragged(entry: Any) -> TypeGuard[Ragged]:
    """Whether an entry is a :class:`Ragged` without objects assigned to its rows."""
    return isinstance(entry, Ragged) and entry.column is not None


def require_fill(value: Any, dtype: torch.dtype) -> None:
    """Raise ValueError for a number that an integer dtype does not hold: torch cuts fractions off, and wraps -100."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return
    limits = torch.iinfo(dtype)
    if not limits.min <= value <= limits.max or value != int(value):
        raise ValueError(f"rows of {dtype} cannot be filled with value={value!r}: cast them to a wider dtype first.")


def form_name(kind: str, dtype: torch.dtype, shape: Sequence[int]) -> str:
    """The form of ragged rows, for messages: ``"str"``, or ``"float32 [*, 3]"``."""
    return kind if kind != "tensor" else f"{str(dtype).removeprefix('torch.')} [*{''.join(f', {n}' for n in shape)}]"


def ragged_in(node: Any) -> list[Any]:
    """The ragged entries of a tree, in its order, except those with objects assigned to their rows."""
    if node._is_non_tensor:
        return []
    found: list[Any] = []
    source = node._source
    for value in source.values() if type(source) is dict else source:
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, Ragged):
            found += ragged_in(value)
        elif type(source) is dict and value.column is not None:
            found.append(value)
    return found


def _part_of(item: Any) -> tuple[str, Tensor, Tensor] | None:
    """Kind, values and offsets of a column, also of a list of strings; None for others."""
    if isinstance(item, Ragged):
        column = item.column
        return None if column is None else (column.kind, *column.flat(item._rows))
    values = item._payloads() if isinstance(item, NonTensorStack) and item.batch_dims == 1 else None
    return None if not values else text_of(values)


def _is_like(part: tuple[str, Tensor, Tensor], other: tuple[str, Tensor, Tensor]) -> bool:
    return part[0] == other[0] and part[1].dtype is other[1].dtype and part[1].shape[1:] == other[1].shape[1:]


def _kind_name(row: Any) -> str:
    return "bytes" if isinstance(row, bytes) else "strings" if isinstance(row, str) else "numbers"


def _as_json(number: int, row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", _ERRORS)
    except (TypeError, ValueError) as error:
        raise TypeError(f"JSON cannot represent row {number}: {error}") from None


def _as_tensor(number: int, row: Any) -> Tensor:
    require_unmasked(row, f"row {number}")
    try:
        tensor = row if isinstance(row, Tensor) else tensor_of(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"row {number}, a {type(row).__name__}, cannot be converted to a tensor: {error}") from None
    if not tensor.dim():
        raise TypeError(f"row {number} is a single number, but a row needs a first dimension, its length")
    return tensor


def _check(values: Tensor, offsets: Tensor, kind: str) -> None:
    """Raise TypeError or ValueError unless these are the parts of a column."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}: got {kind!r}")
    if not isinstance(offsets, Tensor) or offsets.dtype is not torch.int64 or offsets.dim() != 1 or not len(offsets):
        found = f"{offsets.dtype} {list(offsets.shape)}" if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"offsets must be int64 [n + 1], got {found}")
    if not isinstance(values, Tensor) or not values.dim() or values.layout is not torch.strided:
        found = f"{values.layout} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a strided tensor [total, ...], got {found}")
    if kind != "tensor" and (values.dtype is not torch.uint8 or values.dim() != 1):
        raise TypeError(f"values must be uint8 [total] for {kind!r}, got {values.dtype} {list(values.shape)}")
    if not values.is_cpu or not offsets.is_cpu:
        raise TypeError(f"values and offsets must be on the CPU, got {values.device} and {offsets.device}")
    if int(offsets[0]) < 0 or int(offsets[-1]) > len(values):
        raise ValueError(f"the offsets run from {int(offsets[0])} to {int(offsets[-1])}, past the {len(values)} values")
    falls = offsets[1:] < offsets[:-1]
    if bool(falls.any()):
        raise ValueError(f"offsets must ascend, but row {int(falls.nonzero()[0])} ends before it begins")
