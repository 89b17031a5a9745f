"""Blocks of rows go into a mapped file through its descriptor, where that is faster than storing into the mapping.

A store into a page that this process has not touched yet is a fault: the kernel is entered once for every few pages,
and again to allocate them. `pwrite` enters it once for a whole block, copies straight into the page cache and leaves
nothing in this process's page table. One process or a few gain a third to a half of the time by it. Many that write
into one file may not, because most file systems let one of them in at a time; nor when there are so many dirty pages
that writers have to wait for the disk, which may begin in the middle of a job. So every block is timed, the way changes
when the other one was quicker when it was last used, and that is tried again now and then.

Both reach the same page cache, so readers of the mapping see the rows at once either way.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable

from torch import Tensor

from tdmap.processes import Owner
from tensordict_lite.gathering import bytes_of
from tensordict_lite.memmap.disk.files import write_all
from tensordict_lite.memmap.disk.mapping import region_of
from tensordict_lite.memmap.disk.placed import inodes_of_mappings

SMALLEST = 16 << 10
"""Bytes of a block from which `pwrite` pays for its call; measured on ext4 and on shared memory."""

RUN = 4
"""Blocks that are written one way before the ways are compared, by the quickest: others wait for a processor too,"""

PROBE = 2
"""and by which the other way is tried."""

SOON, LATE = 8, 128
"""Runs until the other way is tried again: after a change of the way, twice as many each time, and at most."""

MARGIN = 1.2
"""The mapping is taken when the descriptor takes so many times as long."""

MOST_FILES = 128
"""Columns of one job that a worker holds descriptors for."""


class FileColumn:
    """Writes blocks of one contiguous tensor that lies in a file.

    Args:
        fd: descriptor of the file, for writing; closed with this object.
        path: how messages name the file.
    """

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._through_map = False
        self._left = PROBE
        self._least = math.inf
        # Seconds of the quickest block of the last run, through the file and through the map; 0: of none yet.
        self._cost = [0.0, 0.0]
        self._chosen = False
        self._pause = self._wait = SOON
        self._owner = Owner()

    def __del__(self) -> None:
        if self._owner.is_here:  # a fork may have closed everything, and use the number for something else
            os.close(self._fd)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Copy `values` into `rows`, a part of the tensor with the same shape and dtype; both are contiguous.

        Raises:
            OSError: the file system is full.
        """
        if not self._left:
            self._choose()
        self._left -= 1
        began = time.perf_counter()
        if self._through_map:
            rows.copy_(values)
        else:
            self._pwrite(rows, values)
        seconds = time.perf_counter() - began
        if seconds < self._least:
            self._least = seconds

    def _choose(self) -> None:
        """Which way the next blocks go."""
        self._cost[self._through_map] = self._least
        through_file, through_map = self._cost
        better = through_file >= MARGIN * through_map
        if better is not self._chosen:
            self._pause = self._wait = SOON
        self._chosen, self._least = better, math.inf
        self._wait -= 1
        if self._wait:
            self._through_map, self._left = better, RUN if through_map else PROBE
        else:
            self._through_map, self._left = not better, PROBE
            self._pause = self._wait = min(2 * self._pause, LATE)

    def _pwrite(self, rows: Tensor, values: Tensor) -> None:
        write_all(self._fd, bytes_of(values), int(rows.storage_offset()) * rows.element_size(), self._path)


def columns_behind(leaves: Iterable[Tensor], block_rows: int) -> dict[int, FileColumn]:
    """A column for each tensor whose blocks of `block_rows` rows are worth one, by the address of its storage."""
    found: dict[int, FileColumn] = {}
    mapped: dict[int, int] | None = None
    for leaf in leaves:
        block = block_rows * (leaf.numel() // max(len(leaf), 1)) * leaf.element_size() if leaf.dim() else 0
        if block < SMALLEST or not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg() or len(found) >= MOST_FILES:
            continue
        region = region_of(leaf)
        if region is None or not region.writable:
            continue
        if mapped is None:
            mapped = inodes_of_mappings()
        storage = leaf.untyped_storage()
        fd = _open(region.handle.path, mapped.get(storage.data_ptr()))
        if fd is not None:
            found[storage.data_ptr()] = FileColumn(fd, region.handle.path)
    return found


def _open(path: str, inode: int | None) -> int | None:
    """A descriptor of the very file that is mapped, not of one that has its name now; None when there is none."""
    if inode is None:
        return None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_ino == inode:
        return fd
    os.close(fd)
    return None
