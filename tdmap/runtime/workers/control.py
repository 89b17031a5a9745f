"""A few numbers that a worker and its driver share, so that a death tells exactly what was running.

The worker writes, the driver reads; only the two requests go the other way. Each slot is an aligned 64-bit
integer, which x86-64 and AArch64 read and write whole. For workers in the same process the block is a plain list.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import MutableSequence
from typing import Any, TypeAlias

from tdmap.memory.shm import anonymous_file, map_path
from tensordict_lite.memmap.disk.mapping import release

CANCEL = 0
"""Request: stop between chunks."""
GIVE_BACK = 1
"""Request: give back chunks that have not begun."""
LEASE = 2
"""Lease in hand."""
RUNNING = 3
"""Chunk that runs, or -1."""
SINCE = 4
"""`time.monotonic_ns()` when it began."""
COMMITTED = 5
"""Chunks of the lease below this one are safe."""
KIND = 6
"""Kind of the results since the last reported segment."""
PEAK = 7
"""Largest resident set so far, in bytes."""
UNDO = 8
"""One more than the chunk whose rows are in the undo buffer, or 0."""
OWN_MEMORY = 9
"""Bytes that the worker has gained since it started, after its last lease: what a leak in the function leaves."""
RANK = 10
"""Which of the job's workers this is, from 0; set by the driver."""
SLOTS = 11

Control: TypeAlias = MutableSequence[int]


def local_control() -> Control:
    """A block for a worker in this process."""
    control = [0] * SLOTS
    control[RUNNING] = -1
    return control


class ControlBlock:
    """The driver's side of a block that a worker process maps by `path`."""

    def __init__(self) -> None:
        self._fd, self.path, self._unlink = anonymous_file(mmap.PAGESIZE)
        self._owner = os.getpid()
        self.slots = map_control(self.path)
        self.slots[RUNNING] = -1

    def close(self) -> None:
        """Give up the descriptor; the mapping stays readable."""
        if self._fd >= 0:
            release(self._owner, self._fd, self._unlink)
            self._fd = -1


def map_control(path: str) -> Any:
    """The slots of the block at `path`."""
    return memoryview(map_path(path, mmap.PAGESIZE)).cast("q")
