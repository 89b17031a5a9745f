"""Ragged results in spill files, copied by workers to their places once all lengths are known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tdmap.data.kinds import Data
from tdmap.data.objects import (
    Each,
    KeyPath,
    One,
    Piece,
    RaggedPiece,
    Spilled,
    blank_rows,
    column_of,
    describe_form,
    entry_at,
    piece_of,
    spilled,
    unspilled,
)
from tdmap.data.schema import join_objects, key_name
from tdmap.data.store import RaggedRows
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.execution import Execution
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.output.copying import CopyTable
from tdmap.output.ragged import lies_flat
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log
from tensordict_lite import Ragged


class SpilledColumn:
    """The ragged rows of a column, in spill files.

    Args:
        parts: consecutive rows, of one kind, dtype and shape.
        spill: where they are.
    """

    def __init__(self, parts: Sequence[Spilled], spill: Spill) -> None:
        self.parts = parts
        self.spill = spill
        self.kind, self.dtype, shape = parts[0][:3]
        self.row_shape: Sequence[int] = shape
        self.total = sum(part.total for part in parts)
        """Values of all rows."""
        self._rows = sum(part.rows for part in parts)

    def __len__(self) -> int:
        return self._rows

    def loaded(self) -> Ragged:
        """The rows in memory of this process."""
        joined: Ragged = join_objects([unspilled(part, self.spill).entry for part in self.parts])
        return joined

    def allocate(self) -> Ragged:
        """Shared memory of exactly the size of the rows."""
        arena = Arena()
        values = arena.empty(self.dtype, torch.Size((self.total, *self.row_shape)))
        made: Ragged = Ragged._over(self.kind, values, arena.empty(torch.int64, torch.Size((len(self) + 1,))))
        return made

    def fill(self, made: Ragged, execution: Execution, log: Log | None = None) -> None:
        """Write the rows into shared memory, or files, of exactly their size."""
        column, table = made.column, CopyTable()
        assert column is not None
        (offsets,) = table.target([column.offsets])
        (values,) = table.target([column.values]) if len(column.values) else (None,)
        item = column.values.itemsize * column.values.shape[1:].numel()
        row = total = 0
        for part in self.parts:
            table.add_up(offsets, (row + 1) * 8, part.file, part.lengths, part.rows * 8, total)
            if values is not None:
                table.copy(values, total * item, part.file, part.values, part.nbytes)
            row, total = row + part.rows, total + part.total
        table.run(self.spill, execution.light(self.total * item + self._rows * 8), log)


class PlaceSpilled:
    """Brings ragged results that wait in spill files to their places (a `Placer`).

    Args:
        spill: where they wait.
        execution: who copies them.
        files: makes the files of an entry; None: rows go to shared memory.
    """

    def __init__(
        self, spill: Spill, execution: Execution, files: Callable[[Data, KeyPath, RaggedRows], Ragged] | None = None
    ) -> None:
        self.spill = spill
        self.shares = execution.owns_workers
        self.execution = replace(execution, profile=False)
        self.files = files

    def __call__(self, path: KeyPath, data: Data, pieces: list[tuple[int, Piece]]) -> Any:
        rows = _joined(path, pieces, self.spill, entry_at(data, path[:-1]).batch_size)
        if not isinstance(rows, SpilledColumn):
            return rows
        if self.files is None:
            made = rows.allocate()
        elif lies_flat(rows):
            made = self.files(data, path, rows)
        else:
            return rows.loaded()
        rows.fill(made, self.execution)
        return made


@contextlib.contextmanager
def placing(execution: Execution) -> Iterator[PlaceSpilled | None]:
    """Around a job whose ragged results go to memory: what brings them there.

    None where the function runs in this process, whose memory its results are in already.
    """
    if not execution.in_processes and not execution.is_foreign:
        yield None
        return
    with Spill(later=True) as spill:
        yield PlaceSpilled(spill, execution)


def joined_rows(path: KeyPath, parts: Sequence[tuple[int, Any]], spill: Spill) -> Any:
    """The entries of consecutive rows as one: `SpilledColumn` where some of them wait in files, otherwise an entry.

    Args:
        path: of the entry, for messages.
        parts: how many rows there are, and their entry or `Spilled`.
        spill: where they wait.
    """
    if not any(isinstance(part, Spilled) for _, part in parts):
        return join_objects([entry for _, entry in parts])
    pieces: list[tuple[int, Piece]] = [
        (rows, part if isinstance(part, Spilled) else piece_of(part, ChunkPlan(rows, rows))) for rows, part in parts
    ]
    return _joined(path, pieces, spill, torch.Size((sum(rows for rows, _ in parts),)))


def _joined(path: KeyPath, pieces: Sequence[tuple[int, Piece]], spill: Spill, size: torch.Size) -> Any:
    """`SpilledColumn` of all pieces; a column of objects where some are other objects than strings or bytes.

    Raises:
        OutputMismatch: rows of numbers are not of one dtype and shape.
    """
    parts = _parts(path, pieces, spill)
    if parts is not None:
        return SpilledColumn(parts, spill)
    loaded: list[tuple[int, Piece]] = [
        (count, unspilled(piece, spill) if isinstance(piece, Spilled) else piece) for count, piece in pieces
    ]
    rows = sum(count for count, _ in pieces)
    return column_of(loaded, ChunkPlan(rows, max(rows, 1)), size)


def _parts(path: KeyPath, pieces: Sequence[tuple[int, Piece]], spill: Spill) -> list[Spilled] | None:
    """The rows of all pieces in spill files; None where some are other objects than strings or bytes."""
    first = next(piece for _, piece in pieces if isinstance(piece, Spilled))
    found: list[Spilled] = []
    row = 0
    for count, piece in pieces:
        part = piece if isinstance(piece, Spilled) or not count else _spilled(count, piece, first, spill)
        if count and not (isinstance(part, Spilled) and part[:3] == first[:3]):
            if first.kind == "tensor":
                found_here = describe_form(part) if isinstance(part, Spilled) else "no ragged column"
                raise OutputMismatch(
                    f"{describe_rows(row, row + count)}: {key_name(path)} is {found_here}, and {describe_form(first)} "
                    "elsewhere: results of all chunks must be of one dtype and shape."
                )
            return None
        if isinstance(part, Spilled):
            found.append(part)
        row += count
    return found


def _spilled(rows: int, piece: Piece, like: Spilled, spill: Spill) -> Spilled | None:
    """Rows that have come with a report, in a spill file as well; those that are missing are empty, or None."""
    entry: Any
    if piece is None:
        entry = blank_rows(unspilled(like._replace(rows=0, total=0), spill).entry, rows)
    elif isinstance(piece, RaggedPiece):
        entry = piece.entry
    elif isinstance(piece, One) and piece.entry is None and type(piece.value) in (str, bytes):
        entry = Ragged.from_list([piece.value] * rows)
    elif isinstance(piece, Each) and set(map(type, piece.values)) <= {str, type(None)} and like.kind == "str":
        entry = Ragged.from_list([*piece.values, ""])[:rows]
    elif isinstance(piece, Each) and set(map(type, piece.values)) == {bytes}:
        entry = Ragged.from_list(piece.values)
    else:
        return None
    return spilled(entry, ChunkPlan(rows, rows), spill)
