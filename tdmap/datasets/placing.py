"""Columns of tensors whose rows have their places before they are read: bytes are written once.

    chunk k ──fn──► rows ──pwrite──► a file for each column, at the place of chunk k ──link──► the file in the output

Other results wait in spill files until the length of those before is known (see `append`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tdmap.data.schema import KeyPath
from tdmap.data.store import OutputFolder
from tdmap.errors import OutputMismatch
from tdmap.memory.hidden import replace_file
from tdmap.memory.spill import Spill
from tdmap.output.append import Piece, SpillRows
from tdmap.output.copying import CopyTable
from tdmap.output.output import create_anew
from tensordict_lite import TensorDict
from tensordict_lite.gathering import offsets_of
from tensordict_lite.memmap.plan import Plan, SaveOptions, plan_for


class SpillColumns(SpillRows):
    """What a worker calls: the last of the datasets that the function returns goes to its place, the others wait.

    Args:
        fn: returns datasets; the last one has as many rows as is known.
        spill: where rows wait, and where the files of the columns lie.
        counts: rows of the result for each row of the data, int64 `[n]`; or one number for all.
    """

    def __init__(self, fn: Callable[..., Any], spill: Spill, counts: Tensor | int) -> None:
        super().__init__(fn, spill)
        self._firsts = counts if isinstance(counts, int) else offsets_of(counts)

    def _first(self, row: int) -> int:
        return row * self._firsts if isinstance(self._firsts, int) else int(self._firsts[row])

    def __call__(self, chunk: Any, start: int = 0) -> tuple[Piece, ...]:
        *others, rows = self.call(chunk, start)
        first, end = self._first(start), self._first(start + len(chunk))
        if len(rows) != end - first:
            raise OutputMismatch(
                f"a result with {end - first} rows was expected, and it has {len(rows)}: has its file changed?"
            )

        def put(columns: list[Tensor]) -> tuple[str, int]:
            name = f"{self.spill.prefix}column"
            for number, column in enumerate(columns):
                self.spill.put(f"{name}{number}", column, first * (column.nbytes // len(column)))
            return name, first

        return (*self.pieces(others, self._append), *self.pieces([rows], put))


class ColumnFiles:
    """The files that `SpillColumns` has written, on their way to an output.

    A run that was interrupted has several of them for a column: they are copied. So are those of a file system that
    cannot link.

    Args:
        pieces: of their rows, all of them.
        paths: the keys of the columns in the output, in the order of the schema.
        spill: where the files lie.
    """

    def __init__(self, pieces: Sequence[Piece], paths: Sequence[KeyPath], spill: Spill) -> None:
        self._pieces = pieces
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._folder = spill.folder
        self._linked = False

    def create(self, store: OutputFolder, example: TensorDict, small: TensorDict) -> TensorDict:
        """Make the output in a folder, with the files as its columns where that can be.

        Args:
            store: the folder.
            example: the schema of the output.
            small: the same where the columns have no rows.
        """
        if self._numbers and len({piece.file for piece in self._pieces}) == 1:
            made: TensorDict = create_anew(
                store, small
            )  # without files for columns: they would be reserved, and removed
            options = SaveOptions(reference_format=True)
            with contextlib.suppress(OSError):
                self._link(str(made._memmap_path), plan_for(example, options), plan_for(small, options))
                self._linked = True
                return made
        made = create_anew(store, example)
        return made

    def _link(self, folder: str, plan: Plan, made: Plan) -> None:
        for leaf in plan.leaves:
            number = self._numbers.get(leaf.path)
            if number is not None and leaf.nbytes:
                source = self._folder / f"{self._pieces[0].file}{number}"
                if source.stat().st_size != leaf.nbytes:
                    raise OSError(f"{source} does not have the {leaf.nbytes} bytes of its column.")
                os.link(source, f"{folder}/{leaf.file}")
        for whole, part in zip(plan.folders, made.folders):
            if whole.json() != part.json():
                replace_file(Path(folder, whole.join("meta.json")), whole.json(), durable=False)

    def copy(self, made: TensorDict, table: CopyTable) -> None:
        """Have what could not be linked copied into the output."""
        for path, number in self._numbers.items() if not self._linked else ():
            column = made.get(path)
            if not column.numel():
                continue
            (target,) = table.target([column])
            for piece in self._pieces:
                at = piece.offset * target.row_bytes
                table.copy(target, at, f"{piece.file}{number}", at, piece.rows * target.row_bytes)
