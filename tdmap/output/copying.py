"""Bytes from intermediate files to their places in an output, by workers: what is to be done, as a table of numbers.

copy      bytes of a file ──copy_file_range──► their place
add up    lengths in a file ──running sum, from a base on──► offsets in their place
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.hidden import open_file
from tdmap.memory.rowfiles import Place, Places
from tdmap.memory.spill import Extent, Spill
from tdmap.plan import ChunkPlan
from tdmap.run.log import Log, run_logged
from tdmap.sinks import Collect

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
        self._places: list[Place | None] = []
        self._files: dict[str, int] = {}
        self._tasks: list[tuple[int, int, int, int, int, int]] = []

    def target(self, tensors: Sequence[Tensor]) -> list[CopyTarget]:
        """Tensors in files, which bytes are copied to."""
        places = Places.of(tensors)
        assert places is not None
        first = len(self._places)
        self._places += places.places
        return [CopyTarget(first + n, 0 if place is None else place.row_bytes) for n, place in enumerate(places.places)]

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
        fn = CopyTasks(spill, list(self._files), Places(self._places))
        run_logged(log, execution, Job(Source(table), plan, fn, Policy(undo=False)), Collect())


class CopyTasks:
    """Its chunks are rows of the table: target, first byte there, file, first byte there, bytes, base or -1."""

    takes_start = True

    def __init__(self, spill: Spill, files: list[str], places: Places) -> None:
        self.__qualname__ = "place_columns"
        self.spill = spill
        self.files = files
        self.places = places

    def __call__(self, tasks: Tensor, start: int = 0) -> int:
        sources: dict[int, int] = {}
        try:
            with self.places.opened() as targets:
                for target, at, file, offset, nbytes, base in tasks.tolist():
                    place = self.places.places[target]
                    assert place is not None
                    if base != _COPY:
                        lengths = self.spill.read(Extent(self.files[file], offset, nbytes), torch.int64, [nbytes // 8])
                        lengths[0] += base
                        self.places.write(target, targets[target], at // 8, lengths.cumsum_(0))
                        continue
                    if file not in sources:
                        sources[file] = open_file(self.spill.folder / self.files[file])
                    copy_bytes(sources[file], offset, targets[target], place.offset + at, nbytes)
        finally:
            for fd in sources.values():
                os.close(fd)
        return len(tasks)
