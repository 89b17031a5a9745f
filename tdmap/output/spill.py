"""Ragged results wait in spill files, and workers copy them to their places once all lengths are known.

SpilledColumn   the rows of a column, in spill files
PlaceSpilled    allocates room of exactly their size, and has them copied there
CopyTable       what is to be copied, as a table of numbers:

    copy      bytes of a file ──copy_file_range──► their place
    add up    lengths in a file ──running sum, from a base on──► offsets in their place
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.kinds import Data, KeyPath, concatenated
from tdmap.data.objects import (
    Each,
    One,
    Piece,
    RaggedPiece,
    Spilled,
    are_bytes,
    blank_rows,
    column_of,
    entry_at,
    form_of,
    piece_of,
    ragged_rows,
    spilled,
    two_forms,
    unspilled,
)
from tdmap.errors import OutputMismatch, describe_rows
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.hidden import open_file
from tdmap.memory.rowfiles import RowFile, RowFiles
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Extent, Spill
from tdmap.output.outputfolder import RaggedRows
from tdmap.output.ragged import lies_flat
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log, run_logged
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
        joined: Ragged = concatenated([unspilled(part, self.spill).entry for part in self.parts])
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
        self.execution = execution
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
    if not execution.in_processes:
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
        return concatenated([entry for _, entry in parts])
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
        form = form_of(part) if count else first[:3]
        if form != first[:3]:
            wrong = two_forms(path, form, first[:3])
            if wrong is not None:
                raise OutputMismatch(f"{describe_rows(row, row + count)}: {wrong}")
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
        entry = ragged_rows(piece.values, "str")
    elif isinstance(piece, Each) and are_bytes(piece.values):
        entry = Ragged.from_list(piece.values)
    else:
        return None
    return spilled(entry, ChunkPlan(rows, rows), spill)


# -- copying -------------------------------------------------------------------------------------------

TASK_BYTES = 4 << 20
"""Bytes that a worker copies between two looks at its messages."""

MOST_BYTES = 32 << 20
"""Bytes that are copied in one go."""

_COPY = -1


_copies_in_kernel = hasattr(os, "copy_file_range")


def copy_bytes(source: int, start: int, target: int, at: int, nbytes: int) -> None:
    """Copy bytes from one file to another, within the kernel where the file systems allow it."""
    if _copies_in_kernel:
        with contextlib.suppress(OSError):  # other file systems, or one that cannot
            while nbytes:
                done = os.copy_file_range(source, target, nbytes, start, at)
                if not done:
                    break
                start, at, nbytes = start + done, at + done, nbytes - done
    while nbytes:
        block = os.pread(source, min(nbytes, 4 << 20), start)
        if not block:
            raise OSError(f"intermediate results end {nbytes} bytes too early: their file was cut.")
        done = os.pwrite(target, block, at)
        start, at, nbytes = start + done, at + done, nbytes - done


class CopyTarget(NamedTuple):
    """A tensor that bytes are copied to."""

    number: int
    row_bytes: int


class CopyTable:
    """Collects what is to be copied, and has it done."""

    def __init__(self) -> None:
        self._places: list[RowFile | None] = []
        self._files: dict[str, int] = {}
        self._tasks: list[tuple[int, int, int, int, int, int]] = []

    def target(self, tensors: Sequence[Tensor]) -> list[CopyTarget]:
        """Tensors in files, which bytes are copied to."""
        places = RowFiles.of(tensors)
        assert places is not None
        first = len(self._places)
        self._places += places.files
        return [CopyTarget(first + n, 0 if place is None else place.row_bytes) for n, place in enumerate(places.files)]

    def copy(self, target: CopyTarget, at: int, file: str, offset: int, nbytes: int) -> int:
        """Have bytes of a file copied to byte `at` of the target; returns how many."""
        for skip in range(0, nbytes, MOST_BYTES):
            self._add(target, at + skip, file, offset + skip, min(MOST_BYTES, nbytes - skip), _COPY)
        return nbytes

    def add_up(self, target: CopyTarget, at: int, file: str, offset: int, nbytes: int, base: int) -> None:
        """Have the running sum of int64 numbers in a file, from `base` on, written to byte `at` of the target."""
        if nbytes:
            self._add(target, at, file, offset, nbytes, base)

    def _add(self, target: CopyTarget, at: int, file: str, offset: int, nbytes: int, base: int) -> None:
        number = self._files.setdefault(file, len(self._files))
        self._tasks.append((target.number, at, number, offset, nbytes, base))

    def run(self, spill: Spill, execution: Execution, log: Log | None = None) -> None:
        """Do all of it."""
        if not self._tasks:
            return
        table = torch.tensor(self._tasks, dtype=torch.int64)
        each = max(int(table[:, 4].sum()) // len(table), 1)
        plan = ChunkPlan(len(table), max(min(TASK_BYTES // each, -(-len(table) // 4)), 1))
        fn = CopyTasks(spill, list(self._files), RowFiles(self._places))
        run_logged(log, execution, Job(Source(table), plan, fn, Policy(undo=False)), Collect())


class CopyTasks:
    """Its chunks are rows of the table: target, first byte there, file, first byte there, bytes, base or -1."""

    takes_start = True

    def __init__(self, spill: Spill, files: list[str], places: RowFiles) -> None:
        self.__qualname__ = "place_columns"
        self.spill = spill
        self.files = files
        self.places = places

    def __call__(self, tasks: Tensor, start: int = 0) -> int:
        sources: dict[int, int] = {}
        try:
            targets = self.places.descriptors
            for target, at, file, offset, nbytes, base in tasks.tolist():
                place = self.places.files[target]
                assert place is not None
                if base != _COPY:
                    lengths = self.spill.read(Extent(self.files[file], offset, nbytes), torch.int64, [nbytes // 8])
                    lengths[0] += base
                    with targets.at(target) as fd:
                        self.places.write(target, fd, at // 8, lengths.cumsum_(0))
                    continue
                if file not in sources:
                    sources[file] = open_file(self.spill.folder / self.files[file])
                with targets.at(target) as fd:
                    copy_bytes(sources[file], offset, fd, place.offset + at, nbytes)
        finally:
            for fd in sources.values():
                os.close(fd)
        return len(tasks)
