"""Copies of the rows that an in-place function is about to change.

    worker                                             driver, when the worker has died
    ──────                                             ────────────────────────────────
    UNDO := 0          nothing to put back
    copy rows ──► buffer (shared, owned by the driver)
    UNDO := chunk + 1  the copy is complete
    run the function                                   UNDO names the chunk that ran: buffer ──► rows
    COMMITTED := chunk + 1                             then the chunk may run again

Whether a function works in place is only known once it has run. So every worker copies the rows of its first
chunk, and goes on as long as results are None or rows were changed; a function that returns new values costs one
copy in all. When all processes die, the same protocol over files puts rows back at the next run (see `ledger`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from tdmap.data.kinds import Data, leaves_hold_rows, tensor_bytes, tensors_of
from tdmap.job import Job
from tdmap.memory.hidden import NO_LOCKS, open_file
from tdmap.memory.mapped import is_private
from tdmap.plan import ChunkPlan

MAX_BYTES = 1 << 28
"""Chunks larger than this are not copied, unless in files: a worker that dies in one ends the job instead."""


COMPARED_BYTES = 1 << 18
"""Rows of so many bytes are compared with what they were, to find functions that write through NumPy."""

MOST_COMPARED = 8
"""And chunks, at most."""


class Comparisons:
    """Finds in the first chunks of a job what no version counter shows: writes through NumPy, `.data` and C code."""

    def __init__(self) -> None:
        self._left = COMPARED_BYTES

    def copies(self, chunk: Data) -> list[tuple[Tensor, Tensor]]:
        """Tensors of a chunk and their copies; none for later chunks, and none of private mappings."""
        if self._left <= 0:
            return []
        tensors = [tensor for tensor in tensors_of(chunk) if not is_private(tensor)]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        self._left -= max(nbytes, COMPARED_BYTES // MOST_COMPARED)
        return [(tensor, tensor.clone()) for tensor in tensors] if nbytes <= MAX_BYTES else []


def have_changed(copies: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether a tensor differs from its copy."""
    return not all(same_bits(tensor, copy) for tensor, copy in copies)


class Room(NamedTuple):
    """Where a worker keeps the rows of the chunk that it runs."""

    buffers: Sequence[Tensor]
    """Room for one chunk of each tensor of the dataset."""
    mark: Tensor | None = None
    """int64 `[1]`: one more than the chunk whose rows are in `buffers`, or 0. None: the control block tells."""
    done: Tensor | None = None
    """uint8 `[chunks]`: 1 for chunks that are done; None for a call without a log."""
    lock: str | None = None
    """A file that the worker locks, shared, as long as it may write rows."""
    skipped: str | None = None
    """The log, to which the worker appends rows on which the function raises."""
    objects: str | None = None
    """Where it notes entries of results that are no tensors (see `tdmap.data.objectlog`)."""


class Undo:
    """Keeps the rows of one chunk.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        room: room for one chunk of each of its tensors.
        base: the row of the plan that is the first of `data`.

    Attributes:
        done: bytes, one a chunk, that are to be 1 when it is done; None for a call without a log.
    """

    def __init__(self, data: Data, plan: ChunkPlan, room: Room, base: int = 0) -> None:
        self.plan = plan
        self.room = room
        self._base = base
        self._mark = _slots(room.mark)
        self.done = _slots(room.done)
        self.look_at(data)

    def look_at(self, data: Data) -> None:
        """Go on with another mapping of the rows."""
        self._leaves = tensors_of(data)
        self._spans = _spans(self._leaves, self.room.buffers) if self.plan.dim == 0 else None

    def save(self, chunk: int) -> None:
        """Copy the rows of `chunk` into the buffers."""
        self.release()
        start, stop = self.plan.rows(chunk)
        if self._spans is not None:
            for source, target, row_bytes in self._spans:
                ctypes.memmove(target, source + (start - self._base) * row_bytes, (stop - start) * row_bytes)
        else:
            dim, count = self.plan.dim, stop - start
            for leaf, buffer in zip(self._leaves, self.room.buffers):
                buffer.narrow(dim, 0, count).copy_(leaf.narrow(dim, start - self._base, count))
        if self._mark is not None:
            self._mark[0] = chunk + 1

    def restore(self, chunk: int, first: int = 0, last: int | None = None) -> None:
        """Put the rows of `chunk` back, or those from `first` to `last` of it.

        Rows that have not changed are not written: their file keeps its time, and they do not look changed.
        """
        start, stop = self.plan.rows(chunk)
        dim, count = self.plan.dim, (stop - start if last is None else last) - first
        for leaf, buffer in zip(self._leaves, self.room.buffers):
            rows, copy = leaf.narrow(dim, start + first - self._base, count), buffer.narrow(dim, first, count)
            if not same_bits(rows, copy):
                rows.copy_(copy)

    def release(self) -> None:
        """The buffers hold nothing that is to be put back."""
        if self._mark is not None:
            self._mark[0] = 0


def undo_room(job: Job, empty: Callable[[torch.dtype, torch.Size], Tensor]) -> Room | None:
    """Room for the rows of one chunk of a job; None where chunks are copies, too large, or not to be kept."""
    data, plan = job.source.data, job.plan
    if job.ledger is not None:
        room: Room = job.ledger.room()
        return room
    chunk_bytes = tensor_bytes(data, plan.length) * plan.most_rows
    if not job.policy.undo or job.source.order is not None or chunk_bytes > MAX_BYTES or not leaves_hold_rows(data):
        return None
    return allocate_room(data, plan, empty)


def allocate_room(data: Data, plan: ChunkPlan, empty: Callable[[torch.dtype, torch.Size], Tensor]) -> Room:
    """Room for one chunk, in memory: that of `empty`, or of the device where rows are."""
    buffers = []
    for leaf in tensors_of(data):
        shape = torch.Size((*leaf.shape[: plan.dim], plan.most_rows, *leaf.shape[plan.dim + 1 :]))
        here = leaf.device.type == "cpu"
        buffers.append(empty(leaf.dtype, shape) if here else torch.empty(shape, dtype=leaf.dtype, device=leaf.device))
    return Room(buffers)


def _spans(leaves: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[tuple[int, int, int]] | None:
    """Of each leaf its address, that of its buffer, and the bytes of a row; None unless rows lie one after the other.

    What the C library copies costs two thirds of what torch takes: it does not read the memory that it overwrites.
    """
    spans = []
    for leaf, buffer in zip(leaves, buffers):
        if not all(one.device.type == "cpu" and one.layout is torch.strided for one in (leaf, buffer)):
            return None
        if not (leaf.is_contiguous() and buffer.is_contiguous()) or leaf.is_conj() or leaf.is_neg():
            return None
        row_bytes = leaf.numel() // max(len(leaf), 1) * leaf.element_size()
        spans.append((leaf.data_ptr(), buffer.data_ptr(), row_bytes))
    return spans


def lock_shared(path: str) -> int:
    """Hold a file as one of many; the descriptor, which is to be closed."""
    descriptor = open_file(Path(path), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of the same shape and dtype hold the same bits, NaN and signed zeros included."""
    a, b = (x.resolve_conj().resolve_neg() for x in (a, b))
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    bits = _BITS[a.element_size()]
    return torch.equal(a.view(bits), b.view(bits))


def _slots(numbers: Tensor | None) -> Any:
    return None if numbers is None else memoryview(cast("Any", numbers.numpy()))
