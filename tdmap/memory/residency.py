"""Keeps what a worker has mapped out of its memory.

Rows that a worker has read or written stay in its page table, and count as its memory, until they are taken
out; after a pass over a dataset that is the whole dataset. So a worker lets go of the pages of its shared mappings
whenever they have become many. The bytes stay where they are, in the page cache or in shared memory: for a shared
mapping `MADV_DONTNEED` drops the entries of this process only, and a page that is needed again is mapped again.

A source that is read in another order is not watched: its pages are needed again by every batch, and to map them one by
one takes many times as long as to copy their rows. They are clean pages of the page cache, which the system takes back
when memory is short.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from tensordict_lite.memmap.disk.mapping import region_of

LIMIT = 24 << 20
"""Bytes of mapped pages that a worker keeps."""

_MADV_DONTNEED = getattr(mmap, "MADV_DONTNEED", 4)


class Residency:
    """The shared mappings of one job in one worker."""

    def __init__(self) -> None:
        self._ranges: dict[int, int] = {}
        self._base: int | None = None
        self._madvise: Any
        try:
            self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        except (OSError, AttributeError):  # another system: nothing is trimmed
            self._madvise = None

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Add the mappings that these tensors lie in. Ordinary memory, which would be lost, is left alone."""
        for tensor in tensors:
            if region_of(tensor) is None:
                continue
            storage = tensor.untyped_storage()
            start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
            if stop > start:
                self._ranges[start] = max(stop - start, self._ranges.get(start, 0))
        self._base = None if self._madvise is None else _memory(MAPPED)

    def trim(self) -> None:
        """Let go of all pages when there are many. Called between leases: the cost is some microseconds."""
        if self._base is None or not self._ranges:
            return
        mapped = _memory(MAPPED)
        if mapped - self._base < LIMIT:
            self._base = min(self._base, mapped)
            return
        for start, length in self._ranges.items():
            self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED)
        self._base = _memory(MAPPED)  # pages of other mappings stay resident

    def forget(self) -> None:
        """Forget the mappings of a job that is over."""
        self._ranges.clear()
        self._base = None


class Growth:
    """The memory that a process has gained, looked at between leases: that costs some microseconds."""

    def __init__(self) -> None:
        self._before: int | None = None

    def begin(self) -> None:
        """Count from now on."""
        self._before = None

    def is_large(self) -> bool:
        """Whether it is `LIMIT` or more."""
        memory = _memory(RESIDENT)
        self._before = memory if self._before is None else min(self._before, memory)
        return memory - self._before >= LIMIT


RESIDENT, MAPPED = 1, 2
"""Fields of `/proc/self/statm`: all pages in the page table, and those of files and shared memory."""


def _memory(field: int) -> int:
    """Bytes of this process, by the field; 0 where there is no `/proc`."""
    try:
        fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.pread(fd, 128, 0).split()[field]) * mmap.PAGESIZE
    finally:
        os.close(fd)
