"""The two sequential passes of `permute`, for data that is larger than memory.

Rows of the source come in chunks of some tens of megabytes, rows of the output in buckets of as much:

    count      how many rows of chunk c go to bucket b                        from the order alone
    list       for each chunk, its rows in the order of the output            8 bytes a row, in a file
    pass 1     chunk c: read it; write what goes to bucket b at start[b, c]   sorted by (bucket, chunk, place)
    pass 2     bucket b: read it; put its rows into their order; write it     sorted by place

A bucket is a run of rows of the output, so its rows wait where they will be: pass 1 writes the output, and pass 2 puts
each bucket of it into order. Every write has one place that follows from the order, and a chunk that a worker died in
is written again. A bucket that it died in may be half in order: a mark tells so, and its rows are fetched from the
source, one by one. Where a mark and the rows may arrive in another order than they were written, rows wait in files
between the passes: of an operation that can be resumed, whose machine may go down, and on machines of a cluster.

Neighbours in a job are far apart on the disk: with as many streams as there are workers the kernel reads ahead of each,
where workers side by side wait for what it reads for the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import words_of
from tdmap.memory.rowfiles import Blocks, RowFiles, SharedTensors
from tdmap.memory.spill import Spill
from tdmap.output.output import Step
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context

LARGEST = 512 << 20
"""Bytes of a chunk and of a bucket at most: a worker holds both, twice or more."""

LEAST = 4 << 20
"""Where there is hardly any memory."""

SHARE = 1 / 8
"""Of the available memory that the blocks of all workers are, at most."""

SEGMENT = 128 << 10
"""Bytes that a chunk should have for a bucket, so that the disk sees few and large writes."""


def block_bytes(nbytes: int, ctx: Context) -> int:
    """Bytes of a chunk and of a bucket, for rows of so many bytes."""
    smallest = ctx.tuning.bucket_bytes
    affordable = max(int(ctx.execution.available_memory() * SHARE) // ctx.execution.workers, min(LEAST, smallest))
    return min(max(math.isqrt(nbytes * SEGMENT), smallest), LARGEST, affordable)


def scatter_rows(
    ctx: Context,
    source: SharedTensors,
    order: Tensor,
    places: RowFiles,
    row_bytes: list[int],
    spill: Spill,
) -> None:
    """Write `source[order]` to its places, in two passes over the disk.

    Args:
        source: contiguous tensors with rows in dimension 0.
        order: int64, each a row of the source.
        places: of `len(order)` rows.
        row_bytes: bytes of one row of each tensor.
        spill: folder for intermediate files: as many bytes as the output, and 8 a row.
    """
    rows, width = len(source.tensors[0]), max(sum(row_bytes), 1)
    size = ctx.decide("bucket", lambda: block_bytes(len(order) * width, ctx))  # of a chunk, and of a bucket, in bytes
    streams = ctx.decide("streams", lambda: ctx.execution.workers)
    block_rows = max(size // width, 1)
    chunks = -(-rows // block_rows)
    ordered = ctx.shared([order])  # moved once, for three jobs
    order = ordered.tensors[0]
    buckets = ChunkPlan(len(order), block_rows)

    def run_each(count: int, fn: Callable[..., int]) -> None:
        ctx.step(apart(count, streams), ChunkPlan(count, 1, unit="block"), fn)

    counts = np.stack(ctx.step(order, buckets, _Count(block_rows, chunks)))
    listed = spill.mapped("rows", len(order) * 8).view(torch.int64)
    # Where the rows of a chunk begin in the list, and those of a bucket within them.
    starts = (counts.sum(0).cumsum() - counts.sum(0))[None, :] + counts.cumsum(0) - counts
    ctx.step(order, buckets, _List(block_rows, starts, SharedTensors([listed], False)))
    waiting, marks = places, None
    if ctx.execution.owns_workers and not spill.lasts and places.are_apart(len(order)):
        marks = SharedTensors([spill.mapped("begun", len(counts))], False)
    else:
        waiting = _waiting(places, len(order), spill)
    segments = np.arange(len(counts))[:, None] * block_rows + counts.cumsum(1) - counts
    run_each(chunks, _Spread(block_rows, counts, segments, SharedTensors([listed], False), source, waiting))
    run_each(len(counts), _Settle(block_rows, chunks, ordered, source, waiting, places, marks))


def apart(count: int, streams: int) -> Tensor:
    """The numbers `0..count`, so that workers who take them in turns go through parts of their own.

    Example:
        >>> apart(5, 2).tolist()
        [0, 3, 1, 4, 2]
    """
    part = -(-count // streams)
    numbers = torch.arange(streams * part).view(streams, part).T.flatten()
    return numbers[numbers < count]


def _waiting(places: RowFiles, rows: int, spill: Spill) -> RowFiles:
    """Files for rows that do not wait where they will be."""
    files = [
        None if place is None else spill.mapped(f"rows-{number}", rows * place.row_bytes).view(rows, place.row_bytes)
        for number, place in enumerate(places.files)
    ]
    waiting = RowFiles.of(files)
    assert waiting is not None
    return waiting


def sort_by_chunk(order: Tensor, block_rows: int, chunks: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The chunk of each element of an order, and the stable permutation that sorts by it."""
    ids = order.numpy() // block_rows
    # The sort of 16-bit numbers is a radix sort.
    ids = ids.astype(np.uint16 if chunks <= 1 << 16 else np.int64)
    return ids, np.argsort(ids, kind="stable")


class _Count(Step):
    def __init__(self, block_rows: int, chunks: int) -> None:
        super().__init__("permute")
        self.block_rows = block_rows
        self.chunks = chunks

    def __call__(self, order: Tensor, start: int = 0) -> Any:
        return np.bincount(order.numpy() // self.block_rows, minlength=self.chunks)


class _List(Step):
    """Puts the rows of each chunk one after the other, those of the first bucket first."""

    def __init__(self, block_rows: int, starts: NDArray[np.int64], listed: SharedTensors) -> None:
        super().__init__("permute")
        self.block_rows = block_rows
        self.starts = starts
        self.listed = listed

    def __call__(self, order: Tensor, start: int = 0) -> int:
        ids, by_chunk = sort_by_chunk(order, self.block_rows, self.starts.shape[1])
        ids = ids[by_chunk]
        starts = self.starts[start // self.block_rows]
        counts = np.bincount(ids, minlength=len(starts))
        within = np.arange(len(ids)) - (counts.cumsum() - counts)[ids]
        self.listed.tensors[0].numpy()[starts[ids] + within] = order.numpy()[by_chunk]
        self.listed.trim()
        return len(ids)


class _Spread(Step):
    """The first pass: a chunk is read, and a segment of it goes to each bucket."""

    def __init__(
        self,
        block_rows: int,
        counts: NDArray[np.int64],
        segments: NDArray[np.int64],
        listed: SharedTensors,
        source: SharedTensors,
        places: RowFiles,
    ) -> None:
        super().__init__("permute")
        self.block_rows = block_rows
        self.counts = counts
        self.segments = segments
        self.listed = listed
        self.source = source
        self.places = places
        self.blocks = Blocks()

    def __call__(self, numbers: Tensor, start: int = 0) -> int:
        return sum(self._spread(number) for number in numbers.tolist())

    def _spread(self, chunk: int) -> int:
        counts, segments = self.counts[:, chunk], self.segments[:, chunk]
        begin, first = int(self.counts[:, :chunk].sum()), chunk * self.block_rows
        rows = self.listed.tensors[0][begin : begin + int(counts.sum())] - first
        ends = counts.cumsum()
        for number, file in enumerate(self.places.descriptors):
            if file < 0 or not len(rows):
                continue
            tensor = self.source.tensors[number]
            count = min(self.block_rows, len(tensor) - first)
            read = self.blocks.room("read", count * (tensor[:1].numel() * tensor.element_size()))
            self.source.read(number, first, first + count, read)
            block = _picked(self.blocks, read, count, rows)
            for bucket in np.flatnonzero(counts).tolist():
                segment = block[ends[bucket] - counts[bucket] : ends[bucket]]
                self.places.write(number, file, int(segments[bucket]), segment)
        self.listed.trim()
        return len(rows)


class _Settle(Step):
    """The second pass: the rows of a bucket are put into their order, and written.

    Args:
        marks: a byte for each bucket that waits where it will be, not 0 once it is being written. None where buckets
            wait elsewhere.
    """

    def __init__(
        self,
        block_rows: int,
        chunks: int,
        order: SharedTensors,
        source: SharedTensors,
        waiting: RowFiles,
        places: RowFiles,
        marks: SharedTensors | None,
    ) -> None:
        super().__init__("permute")
        self.block_rows = block_rows
        self.chunks = chunks
        self.order = order
        self.source = source
        self.waiting = waiting
        self.places = places
        self.marks = marks
        self.blocks = Blocks()

    def __call__(self, numbers: Tensor, start: int = 0) -> int:
        rows = sum(self._settle(number) for number in numbers.tolist())
        self.order.trim()
        return rows

    def _settle(self, bucket: int) -> int:
        start = bucket * self.block_rows
        order = self.order.tensors[0][start : start + self.block_rows]
        began = self._began(bucket)
        wanted = torch.empty(0) if began else self._places_in_bucket(order)
        for number, (source, target) in enumerate(zip(self.waiting.descriptors, self.places.descriptors)):
            place = self.places.files[number]
            if place is None:
                continue
            width = place.row_bytes
            if began:
                block = self.blocks.room("picked", len(order) * width)
                self.source.gather(number, order, block)
            else:
                read = self.blocks.room("read", len(order) * width)
                self.waiting.read(number, source, start, read)
                block = _picked(self.blocks, read, len(order), wanted)
            self.places.write(number, target, start, block)
        return len(order)

    def _began(self, bucket: int) -> bool:
        """Whether a worker that is no more has begun to write a bucket; marks it before this one does."""
        if self.marks is None:
            return False
        marks = self.marks.tensors[0].numpy()
        began = bool(marks[bucket])
        marks[bucket] = 1
        return began

    def _places_in_bucket(self, order: Tensor) -> Tensor:
        """Where each row of a bucket waits, counted from its first one."""
        _, by_chunk = sort_by_chunk(order, self.block_rows, self.chunks)
        place = np.empty_like(by_chunk)
        place[by_chunk] = np.arange(len(by_chunk))
        return torch.from_numpy(place)


def _picked(blocks: Blocks, read: Tensor, count: int, rows: Tensor) -> Tensor:
    """Some of `count` rows, in memory that is used again; they lie there one after the other."""
    width = len(read) // count
    block = words_of(blocks.room("picked", len(rows) * width), len(rows), width)
    torch.index_select(words_of(read, count, width), 0, rows, out=block)
    return block
