"""Pages that a function is about to write are mapped for writing many at a time.

A page of a file that is mapped, and clean, is protected: the first store into it enters the kernel, which notes that
it will be dirty. For a pass in place that is one entry for every 4096 bytes, and half of the time where the function
does little else. `MADV_POPULATE_WRITE` does the same for a range of pages in one call.

Pages that would stay as they are must not be made dirty, for they would be written to the disk. So some pages are
compared before and after the first chunk, and a tensor is treated so where most of them have changed.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tensordict_lite.memmap.disk.mapping import region_of

WINDOW = 1 << 20
"""Bytes of a tensor that are mapped in one call, if the lease has so many."""

MOST = 16 << 20
"""Bytes that are mapped ahead of the function, at most: those of a chunk may not fit into memory."""

SAMPLED = 64
"""Pages that are compared, of all tensors together; a few of each."""

CHANGED = 0.75
"""Share of these that has changed in a tensor that is written throughout."""

_MADV_POPULATE_WRITE = 23


class WriteAhead:
    """For the tensors of a dataset, in the process that runs its chunks.

    Args:
        leaves: the tensors, with rows in dimension 0.
        base: the row of the plan that is their first.
    """

    def __init__(self, leaves: Sequence[Tensor], base: int = 0) -> None:
        self._base = base
        self._spans = [_span(leaf) for leaf in leaves if _is_mapped(leaf)]
        self._looked: list[dict[int, bytes]] = []
        self._is_known = False
        self._ready = range(0)
        self._madvise: Any = _madvise() if self._spans else None
        self.is_of_use = self._madvise is not None
        """False once it is known that there is nothing to do."""

    def before(self, start: int, stop: int, end: int) -> None:
        """The function is about to be called with the rows `start..stop`, and then with others up to `end`."""
        if self._is_known:
            if start not in self._ready or stop > self._ready.stop:
                self._map(start, stop, end)
        else:
            each = max(SAMPLED // len(self._spans), 1)
            self._looked = [_pages(*self._bytes(span, start, stop), each) for span in self._spans[:SAMPLED]]

    def after(self) -> None:
        """The function has come back from the first chunk."""
        if self._is_known:
            return
        kept = []
        for span, pages in zip(self._spans, self._looked):
            changed = sum(ctypes.string_at(at, len(old)) != old for at, old in pages.items())
            if pages and changed >= CHANGED * len(pages):
                kept.append(span)
        self._spans, self._looked, self._is_known = kept, [], True
        self.is_of_use = bool(kept)

    def _bytes(self, span: tuple[int, int], start: int, stop: int) -> tuple[int, int]:
        address, row_bytes = span
        return address + (start - self._base) * row_bytes, address + (stop - self._base) * row_bytes

    def _map(self, start: int, stop: int, end: int) -> None:
        widest = max(row_bytes for _, row_bytes in self._spans)
        stop = min(max(stop, start + WINDOW // widest), end)
        for span in self._spans:
            first, last = self._bytes(span, start, stop)
            first -= first % mmap.PAGESIZE
            nbytes = min(last - first, MOST)
            if nbytes and self._madvise(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE):
                self.is_of_use = False  # an older kernel, or memory that may not be written: the function will tell
        self._ready = range(start, stop)


def _is_mapped(leaf: Tensor) -> bool:
    return leaf.device.type == "cpu" and leaf.numel() > 0 and leaf.is_contiguous() and region_of(leaf) is not None


def _span(leaf: Tensor) -> tuple[int, int]:
    """The address of its first row, and the bytes of a row."""
    return leaf.data_ptr(), leaf.numel() // len(leaf) * leaf.element_size()


def _pages(first: int, last: int, count: int) -> dict[int, bytes]:
    """Copies of some evenly spread pages of a range of addresses, or of all of it."""
    nbytes, size = last - first, mmap.PAGESIZE
    if nbytes <= count * size:
        return {at: ctypes.string_at(at, min(size, last - at)) for at in range(first, last, size)}
    step = (nbytes - size) // max(count - 1, 1)
    return {first + at * step: ctypes.string_at(first + at * step, size) for at in range(count)}


def _madvise() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):  # another system
        return None
