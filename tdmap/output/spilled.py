"""Ragged results in spill files, copied by workers to their places in a folder once all lengths are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tdmap.data.kinds import Data
from tdmap.data.objects import Column, Each, KeyPath, One, Piece, Spilled, column_of, entry_at, spilled, unspilled
from tdmap.data.store import OutputFolder
from tdmap.execution import Execution
from tdmap.memory.spill import Spill
from tdmap.output.copying import CopyTable
from tdmap.plan import ChunkPlan
from tensordict_lite import Ragged
from tensordict_lite.memmap import text


class PlaceSpilled:
    """Brings ragged results that wait in spill files to the folder of an output (a `Place`).

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
        parts = self._parts(pieces)
        if parts is None or (parts[0].kind == "str" and rows < text.TEXT_ROWS):
            loaded = [(n, unspilled(p, self.spill) if isinstance(p, Spilled) else p) for n, p in pieces]
            return column_of(loaded, ChunkPlan(rows, max(rows, 1)), entry_at(data, path[:-1])._batch_size)
        like = parts[0]
        total = sum(part.total for part in parts)
        made = self.store.ragged(data, path, like.kind, like.dtype, (total, *like.row_shape), rows)
        self._copy(parts, made)
        return made

    def _parts(self, pieces: Sequence[tuple[int, Piece]]) -> list[Spilled] | None:
        """The rows of all pieces in spill files; None where they are of several kinds."""
        first = next(piece for _, piece in pieces if isinstance(piece, Spilled))
        found: list[Spilled] = []
        for count, piece in pieces:
            part = piece if isinstance(piece, Spilled) else self._spilled(count, piece, first) if count else None
            if part is not None:
                if part[:3] != first[:3]:
                    return None
                found.append(part)
            elif count:
                return None
        return found

    def _spilled(self, rows: int, piece: Piece, like: Spilled) -> Spilled | None:
        """Rows that have come with a report, in a spill file as well; those that are missing are empty, or None."""
        if piece is None:
            if like.kind == "str":
                entry: Any = Ragged.from_list([None] * rows + [""])[:rows]
            else:
                none = torch.empty((0, *like.row_shape), dtype=like.dtype)
                entry = Ragged(none, torch.zeros(rows + 1, dtype=torch.int64), like.kind)
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
