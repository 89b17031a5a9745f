"""Ragged results in spill files, copied by workers to their places in a folder once all lengths are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdmap.data.kinds import Data
from tdmap.data.objects import (
    Column,
    Each,
    KeyPath,
    One,
    Piece,
    Spilled,
    blank_rows,
    column_of,
    entry_at,
    spilled,
    unspilled,
)
from tdmap.data.schema import key_name
from tdmap.data.store import OutputFolder
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.execution import Execution
from tdmap.memory.spill import Spill
from tdmap.output.copying import CopyTable
from tdmap.plan import ChunkPlan
from tensordict_lite import Ragged
from tensordict_lite.memmap import text


class PlaceSpilled:
    """Brings ragged results that wait in spill files to the folder of an output (a `Placer`).

    Args:
        store: the folder.
        spill: where they wait.
        execution: who copies them.
    """

    def __init__(self, store: OutputFolder, spill: Spill, execution: Execution) -> None:
        self.store = store
        self.spill = spill
        self.execution = execution

    def __call__(self, path: KeyPath, data: Data, pieces: list[tuple[int, Piece]]) -> Any:
        rows = sum(count for count, _ in pieces)
        parts = self._parts(path, pieces)
        if parts is None or text.is_short(parts[0].kind, rows):
            loaded: list[tuple[int, Piece]] = [
                (count, unspilled(piece, self.spill) if isinstance(piece, Spilled) else piece)
                for count, piece in pieces
            ]
            return column_of(loaded, ChunkPlan(rows, max(rows, 1)), entry_at(data, path[:-1]).batch_size)
        like = parts[0]
        total = sum(part.total for part in parts)
        made = self.store.ragged(data, path, like.kind, like.dtype, (total, *like.row_shape), rows)
        self._copy(parts, made)
        return made

    def _parts(self, path: KeyPath, pieces: Sequence[tuple[int, Piece]]) -> list[Spilled] | None:
        """The rows of all pieces in spill files; None where some are other objects than strings or bytes.

        Raises:
            OutputMismatch: rows of numbers are not of one dtype and shape.
        """
        first = next(piece for _, piece in pieces if isinstance(piece, Spilled))
        found: list[Spilled] = []
        row = 0
        for count, piece in pieces:
            part = piece if isinstance(piece, Spilled) or not count else self._spilled(count, piece, first)
            if count and not (isinstance(part, Spilled) and part[:3] == first[:3]):
                if first.kind == "tensor":
                    found_here = _described(part) if isinstance(part, Spilled) else "no ragged column"
                    raise OutputMismatch(
                        f"{describe_rows(row, row + count)}: {key_name(path)} is {found_here}, and {_described(first)} "
                        "elsewhere: results of all chunks must be of one dtype and shape."
                    )
                return None
            if isinstance(part, Spilled):
                found.append(part)
            row += count
        return found

    def _spilled(self, rows: int, piece: Piece, like: Spilled) -> Spilled | None:
        """Rows that have come with a report, in a spill file as well; those that are missing are empty, or None."""
        entry: Any
        if piece is None:
            entry = blank_rows(unspilled(like._replace(rows=0, total=0), self.spill).entry, rows)
        elif isinstance(piece, Column):
            entry = piece.entry
        elif isinstance(piece, One) and piece.entry is None and type(piece.value) in (str, bytes):
            entry = Ragged.from_list([piece.value] * rows)
        elif isinstance(piece, Each) and set(map(type, piece.values)) <= {str, type(None)} and like.kind == "str":
            entry = Ragged.from_list([*piece.values, ""])[:rows]
        elif isinstance(piece, Each) and set(map(type, piece.values)) == {bytes}:
            entry = Ragged.from_list(piece.values)
        else:
            return None
        return spilled(entry, ChunkPlan(rows, rows), self.spill)

    def _copy(self, parts: Sequence[Spilled], made: Ragged) -> None:
        column, table = made.column, CopyTable()
        assert column is not None
        (offsets,) = table.target([column.offsets])
        (values,) = table.target([column.values]) if len(column.values) else (None,)
        item = column.values.itemsize * column.values.shape[1:].numel()
        row = total = 0
        for part in parts:
            table.add_up(offsets, (row + 1) * 8, part.file, part.lengths, part.rows * 8, total)
            if values is not None:
                table.copy(values, total * item, part.file, part.values, part.total * item)
            row, total = row + part.rows, total + part.total
        table.run(self.spill, self.execution)


def _described(part: Spilled) -> str:
    """What the rows of a piece are, in words."""
    rest = "".join(f", {n}" for n in part.row_shape)
    return f"{str(part.dtype).removeprefix('torch.')} [*{rest}]" if part.kind == "tensor" else part.kind
