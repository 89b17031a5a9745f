"""A column of strings that stays in its file: a string is made when somebody asks for its row.

    offsets    int64 [n + 1]     row i is values[offsets[i] : offsets[i + 1]]
    values     uint8 [total]     the rows one after the other; strings as UTF-8, None among them as the byte 0xFF

Ten million strings are ten million objects of some seventy bytes each in a list, and minutes of JSON; in two mapped
files they are their bytes, and nothing is read before it is asked for. To whoever holds rows of it, it is a
:class:`~tensordict_lite.objects.column.Column` like any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.errors import DatasetError
from tensordict_lite.objects.column import Column
from tensordict_lite.objects.data import NonTensorData

__all__ = ["KINDS", "TextColumn", "text_of"]

KINDS: dict[str, type] = {"str": str, "bytes": bytes}

_BLOCK = 1 << 14
_NO_SIZE = torch.Size(())
_ERRORS = "surrogatepass"  # Python strings may hold lone surrogates, which UTF-8 proper has no bytes for
_NONE = b"\xff"  # which no string has in UTF-8


def text_of(values: list[Any]) -> tuple[str, bytes, Tensor] | None:
    """Strings, or bytes, as they lie in files: their kind, values and offsets; ``None`` for any other objects.

    Some of the strings may be None, a missing value.

    Example:
        >>> text_of(["ant", "", "bee"])
        ('str', b'antbee', tensor([0, 3, 3, 6]))
        >>> text_of(["ant", None])
        ('str', b'ant\\xff', tensor([0, 3, 4]))
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        values = [value.encode("utf-8", _ERRORS) for value in values]
    elif kinds == {str, type(None)}:
        values = [_NONE if value is None else value.encode("utf-8", _ERRORS) for value in values]
    elif kinds != {bytes}:
        return None
    offsets = torch.zeros(len(values) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(torch.tensor([len(value) for value in values], device="cpu"), 0, out=offsets[1:])
    return "bytes" if bytes in kinds else "str", b"".join(values), offsets


class TextColumn(Column):
    """Strings, or bytes, in two tensors, and the members that were made of some of them.

    Args:
        kind: ``"str"`` or ``"bytes"``.
        values: uint8 ``[total]``, a tensor or an array.
        offsets: int64 ``[n + 1]``, a tensor or an array; looked at row by row, when a row is asked for.
        size: batch size of each member.
        device: of each member.
        files: where the two tensors are mapped from; None: they are in memory.

    Example:
        >>> kind, values, offsets = text_of(["ant", "", "bee"])
        >>> column = TextColumn(kind, torch.frombuffer(bytearray(values), dtype=torch.uint8), offsets)
        >>> column.objects(range(1, 3))
        ['', 'bee']
    """

    __slots__ = ("_offsets", "_stamps", "_values", "files", "kind")

    _cells: dict[int, NonTensorData]  # type: ignore[assignment]

    def __init__(
        self,
        kind: str,
        values: Any,
        offsets: Any,
        size: torch.Size = _NO_SIZE,
        device: torch.device | None = None,
        files: tuple[str, str] | None = None,
    ) -> None:
        super().__init__({}, size, device)  # type: ignore[arg-type]
        self.kind = kind
        self._values = _array(values)
        self._offsets = _array(offsets)
        self.files = files
        self._stamps = None if files is None else tuple(map(_stamp, files))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    # -- as a column -----------------------------------------------------------------------------------------

    def member(self, row: int) -> NonTensorData:
        """The wrapper of a string: the one that everybody else has who asked for this row."""
        cell = self._cells.get(row)
        if cell is None:
            cell = NonTensorData(self._read((row,))[0], batch_size=self._size, device=self.device)
            cell = self._cells.setdefault(row, cell)
            self._has_members = True
        return cell

    def made(self, rows: Sequence[int]) -> list[NonTensorData]:
        """The members that have been asked for among some rows."""
        return [self._cells[row] for row in self._asked(rows)]

    def objects(self, rows: Sequence[int]) -> list[Any]:
        """The strings of some rows, in a new list."""
        found = self._read(rows)
        if self._has_members:
            for place, row in enumerate(rows) if len(self._cells) > len(rows) else self._places(rows):
                cell = self._cells.get(row)
                if cell is not None:
                    found[place] = cell._payload
        return found

    def _asked(self, rows: Sequence[int]) -> list[int]:
        """Rows whose members have been made."""
        if not self._has_members:
            return []
        cells = self._cells
        if len(cells) > len(rows):
            return [row for row in rows if row in cells]
        known = rows if type(rows) is range else set(rows)
        return [row for row in list(cells) if row in known]

    def _places(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Where rows whose members have been made are among some rows."""
        if type(rows) is range:
            return [(rows.index(row), row) for row in self._asked(rows)]
        return list(enumerate(rows))

    # -- reading -----------------------------------------------------------------------------------------------

    def _read(self, rows: Sequence[int]) -> list[Any]:
        """What the files hold."""
        if not len(rows):
            return []
        starts, ends = self._bounds(rows)
        first = int(starts.min())
        last = int(ends.max())
        if last - first > 4 * int((ends - starts).sum()) + 4096:  # rows that lie far apart
            view = memoryview(self._values)
            return self._decoded([bytes(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist())], rows)
        content = self._values[first:last].tobytes()
        begins, stops = (starts - first).tolist(), (ends - first).tolist()
        if self.kind == "str" and content.isascii():
            text = content.decode("ascii")
            return [text[begin:stop] for begin, stop in zip(begins, stops)]
        return self._decoded([content[begin:stop] for begin, stop in zip(begins, stops)], rows)

    def _decoded(self, parts: list[bytes], rows: Sequence[int]) -> list[Any]:
        """The strings of some rows, from their bytes.

        Raises:
            DatasetError: one is not UTF-8; names the file and the row.
        """
        if self.kind != "str":
            return parts
        try:
            return [None if part == _NONE else part.decode("utf-8", _ERRORS) for part in parts]
        except UnicodeDecodeError as error:
            file, row = self.files[0] if self.files else "values", rows[parts.index(error.object)]
            raise DatasetError(file, f"string {row} is not UTF-8 ({error})") from None

    def _bounds(self, rows: Sequence[int]) -> tuple[Any, Any]:
        """Where rows start and end in the values."""
        if type(rows) is range and rows.step == 1 and len(rows):
            if rows.start < 0 or rows.stop > len(self):
                raise IndexError(f"rows {rows.start} to {rows.stop} of {len(self)} strings")
            bounds = self._offsets[rows.start : rows.stop + 1]
            starts, ends = bounds[:-1], bounds[1:]
        else:
            index = np.fromiter(rows, np.int64, len(rows))
            starts, ends = self._offsets[index], self._offsets[index + 1]
        self._check(starts, ends, rows)
        return starts, ends

    def _check(self, starts: Any, ends: Any, rows: Sequence[int]) -> None:
        wrong = (starts < 0) | (ends < starts) | (ends > len(self._values))
        if wrong.any():
            place = int(wrong.argmax())
            raise DatasetError(
                self.files[1] if self.files else "offsets",
                f"string {rows[place]} would be bytes {int(starts[place])} to {int(ends[place])} of "
                f"{len(self._values)}; the file is damaged",
            )

    # -- writing and travelling --------------------------------------------------------------------------------

    def content(self, rows: Sequence[int]) -> tuple[str, Any, Tensor] | None:
        """As :func:`text_of` of the rows, without making a string of each; ``None`` where one is something else now."""
        if self._is_changed(rows):
            return text_of(self.objects(rows))
        starts, ends = self._bounds(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        if len(rows) and type(rows) is range and rows.step == 1:
            content = memoryview(self._values[int(starts[0]) : int(ends[-1])])
        else:
            content = b"".join(self._blocks(starts, ends))
        return self.kind, content, torch.from_numpy(offsets)

    def _blocks(self, starts: Any, ends: Any) -> Iterator[bytes]:
        """Bytes of rows that lie anywhere, some thousands of rows at a time."""
        view = memoryview(self._values)
        for at in range(0, len(starts), _BLOCK):
            bounds = zip(starts[at : at + _BLOCK].tolist(), ends[at : at + _BLOCK].tolist())
            yield b"".join([view[start:end] for start, end in bounds])

    def copied(self, rows: Sequence[int], deep: bool) -> tuple[Column, Sequence[int]]:
        """A column of its own, and where the rows are in it; ``deep``: with the bytes in memory."""
        text = self.content(rows) if deep else None
        if text is not None:
            kind, content, offsets = text
            values = np.frombuffer(bytes(content), np.uint8)
            return TextColumn(kind, values, offsets, self._size, self.device), range(len(rows))
        if deep or self._is_changed(rows):
            return super().copied(rows, deep)
        return TextColumn(self.kind, self._values, self._offsets, self._size, self.device, self.files), rows

    def _is_changed(self, rows: Sequence[int]) -> bool:
        """Whether another object has been put in the place of a string."""
        asked = self._asked(rows)
        return any(self._cells[row]._payload != text for row, text in zip(asked, self._read(asked)))

    def pickled(self, rows: Sequence[int]) -> Any:
        """The names of the files and the rows, where that says all; otherwise the strings."""
        if self.files is None or self._is_changed(rows) or tuple(map(_stamp, self.files)) != self._stamps:
            return self.objects(rows)
        return _TextFiles(self.kind, self.files, self._stamps, len(self), len(self._values), rows)


class _TextFiles:
    """A part of a text column on its way to another process."""

    def __init__(self, kind: str, files: tuple[str, str], stamps: Any, count: int, total: int, rows: Any) -> None:
        self.kind, self.files, self.stamps, self.count, self.total = kind, files, stamps, count, total
        self.rows = rows

    def opened(self, size: torch.Size, device: torch.device | None) -> TextColumn:
        """The column, mapped here.

        Raises:
            DatasetError: another file is there now.
        """
        values, offsets = (
            torch.from_file(path, False, length, dtype=dtype) if length else torch.empty(0, dtype=dtype, device="cpu")
            for path, length, dtype in zip(self.files, (self.total, self.count + 1), (torch.uint8, torch.int64))
        )
        column = TextColumn(self.kind, values, offsets, size, device, self.files)
        if column._stamps != self.stamps:
            raise DatasetError(self.files[0], "has been replaced since its strings were sent to this process")
        return column


def _array(values: Any) -> Any:
    return values.as_subclass(Tensor).numpy() if isinstance(values, Tensor) else values


def _stamp(path: str) -> tuple[int, int] | None:
    """Which file is there: another one with the same name has another stamp."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
