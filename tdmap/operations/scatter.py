"""The two sequential passes of `permute`, for data that is larger than memory.

Rows of the source come in chunks of some tens of megabytes, rows of the output in buckets of as much:

    count      how many rows of chunk c go to bucket b                        from the order alone
    list       for each chunk, its rows in the order of the output            8 bytes a row, in a file
    pass 1     chunk c: read it; write what goes to bucket b at start[b, c]   spill: sorted by (bucket, chunk, place)
    pass 2     bucket b: read it; put its rows into their order; write it     output, from beginning to end

Every write has one place that follows from the order. So a chunk or bucket that a worker died in is done again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.columns import words_of
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.resources import available_memory
from tdmap.memory.rowfiles import Blocks, Places, SharedTensors
from tdmap.memory.spill import Spill
from tdmap.operations.output import Step, travels
from tdmap.plan import ChunkPlan
from tdmap.runtime.commits import settled
from tdmap.sinks import Collect

SMALLEST, LARGEST = 16 << 20, 512 << 20
"""Bytes of a chunk and of a bucket, which a worker holds twice or more."""

LEAST = 4 << 20
"""Where there is hardly any memory."""

SHARE = 1 / 8
"""Of the available memory that the blocks of all workers are, at most."""

SEGMENT = 128 << 10
"""Bytes that a chunk should have for a bucket, so that the disk sees few and large writes."""


def block_bytes(nbytes: int, workers: int) -> int:
    """Bytes of a chunk and of a bucket, for rows of so many bytes."""
    affordable = max(int(available_memory() * SHARE) // workers, min(LEAST, SMALLEST))
    return min(max(math.isqrt(nbytes * SEGMENT), SMALLEST), LARGEST, affordable)


def scatter_rows(
    source: SharedTensors,
    order: Tensor,
    places: Places,
    row_bytes: list[int],
    execution: Execution,
    spill: Spill,
    size: int | None = None,
) -> None:
    """Write `source[order]` to its places, in two passes over the disk.

    Args:
        source: contiguous tensors with rows in dimension 0.
        order: int64, each a row of the source.
        places: of `len(order)` rows.
        row_bytes: bytes of one row of each tensor.
        execution: who does it.
        spill: folder for intermediate files: as many bytes as the output, and 8 a row.
        size: bytes of a chunk and of a bucket. Default: from the size of the data.
    """
    rows, width = len(source.tensors[0]), max(sum(row_bytes), 1)
    size = size or settled("bucket", lambda: block_bytes(len(order) * width, execution.workers))
    chunk_rows = bucket_rows = max(size // width, 1)
    chunks = -(-rows // chunk_rows)
    order = SharedTensors([order], share=travels(execution)).tensors[0]  # moved once, for three jobs
    buckets = ChunkPlan(len(order), bucket_rows)

    def run(data: Tensor, plan: ChunkPlan, fn: Any) -> list[Any]:
        result: list[Any] = execution.run(Job(Source(data), plan, fn, Policy(undo=False)), Collect())
        return result

    counts = np.stack(run(order, buckets, _Count(chunk_rows, chunks)))
    listed = spill.mapped("rows", len(order) * 8).view(torch.int64)
    # Where the rows of a chunk begin in the list, and those of a bucket within them.
    starts = (counts.sum(0).cumsum() - counts.sum(0))[None, :] + counts.cumsum(0) - counts
    run(order, buckets, _List(chunk_rows, bucket_rows, starts, SharedTensors([listed], False)))
    waiting = [spill.mapped(f"rows-{number}", len(order) * width) for number, width in enumerate(row_bytes)]
    segments = np.arange(len(counts))[:, None] * bucket_rows + counts.cumsum(1) - counts
    first = _Spread(
        chunk_rows, counts, segments, SharedTensors([listed], False), source, _places_of(waiting, row_bytes)
    )
    run(torch.arange(chunks), ChunkPlan(chunks, 1), first)
    shared = SharedTensors([tensor.view(len(order), -1) for tensor in waiting], False)
    run(order, buckets, _Settle(chunk_rows, chunks, shared, places))


def _places_of(tensors: list[Tensor], row_bytes: list[int]) -> Places:
    places = Places.of([tensor.view(-1, max(width, 1)) for tensor, width in zip(tensors, row_bytes)])
    assert places is not None
    return places


def sort_by_chunk(order: Tensor, chunk_rows: int, chunks: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The chunk of each element of an order, and the stable permutation that sorts by it."""
    ids = order.numpy() // chunk_rows
    # The sort of 16-bit numbers is a radix sort.
    ids = ids.astype(np.uint16 if chunks <= 1 << 16 else np.int64)
    return ids, np.argsort(ids, kind="stable")


class _Count(Step):
    """Rows that each chunk gives to a bucket."""

    def __init__(self, chunk_rows: int, chunks: int) -> None:
        super().__init__("permute")
        self.chunk_rows = chunk_rows
        self.chunks = chunks

    def __call__(self, order: Tensor, start: int = 0) -> Any:
        return np.bincount(order.numpy() // self.chunk_rows, minlength=self.chunks)


class _List(Step):
    """Puts the rows of each chunk one after the other, those of the first bucket first."""

    def __init__(self, chunk_rows: int, bucket_rows: int, starts: Any, listed: SharedTensors) -> None:
        super().__init__("permute")
        self.chunk_rows = chunk_rows
        self.bucket_rows = bucket_rows
        self.starts = starts
        self.listed = listed

    def __call__(self, order: Tensor, start: int = 0) -> int:
        ids, by_chunk = sort_by_chunk(order, self.chunk_rows, self.starts.shape[1])
        ids = ids[by_chunk]
        starts = self.starts[start // self.bucket_rows]
        counts = np.bincount(ids, minlength=len(starts))
        within = np.arange(len(ids)) - (counts.cumsum() - counts)[ids]
        self.listed.tensors[0].numpy()[starts[ids] + within] = order.numpy()[by_chunk]
        self.listed.trim()
        return len(ids)


class _Spread(Step):
    """The first pass: a chunk is read, and a segment of it goes to each bucket."""

    def __init__(
        self, chunk_rows: int, counts: Any, segments: Any, listed: SharedTensors, source: SharedTensors, places: Places
    ) -> None:
        super().__init__("permute")
        self.chunk_rows = chunk_rows
        self.counts = counts
        self.segments = segments
        self.listed = listed
        self.source = source
        self.places = places
        self.blocks = Blocks()

    def __call__(self, chunks: Tensor, start: int = 0) -> int:
        counts, segments = self.counts[:, start], self.segments[:, start]
        begin = int(self.counts[:, :start].sum())
        rows = self.listed.tensors[0][begin : begin + int(counts.sum())] - start * self.chunk_rows
        ends = counts.cumsum()
        with self.places.opened() as files:
            for number, file in enumerate(files):
                if file < 0 or not len(rows):
                    continue
                first = start * self.chunk_rows
                block = _picked(self.blocks, self.source, number, first, first + self.chunk_rows, rows)
                for bucket in np.flatnonzero(counts).tolist():
                    segment = block[ends[bucket] - counts[bucket] : ends[bucket]]
                    self.places.write(number, file, int(segments[bucket]), segment)
        self.listed.trim()
        return len(rows)


class _Settle(Step):
    """The second pass: the rows of a bucket are put into their order, and written."""

    def __init__(self, chunk_rows: int, chunks: int, waiting: SharedTensors, places: Places) -> None:
        super().__init__("permute")
        self.chunk_rows = chunk_rows
        self.chunks = chunks
        self.waiting = waiting
        self.places = places
        self.blocks = Blocks()

    def __call__(self, order: Tensor, start: int = 0) -> int:
        _, by_chunk = sort_by_chunk(order, self.chunk_rows, self.chunks)
        place = np.empty_like(by_chunk)
        place[by_chunk] = np.arange(len(by_chunk))
        wanted = torch.from_numpy(place)
        with self.places.opened() as files:
            for number, file in enumerate(files):
                if file >= 0:
                    block = _picked(self.blocks, self.waiting, number, start, start + len(order), wanted)
                    self.places.write(number, file, start, block)
        return len(order)


def _picked(blocks: Blocks, source: SharedTensors, number: int, start: int, stop: int, rows: Tensor) -> Tensor:
    """Some of the rows `start:stop` of a tensor, counted from `start`; in memory that is used again."""
    tensor = source.tensors[number]
    count = min(stop, len(tensor)) - start
    width = tensor[:1].numel() * tensor.element_size()
    read, picked = blocks.room("read", count * width), blocks.room("picked", len(rows) * width)
    source.read(number, start, start + count, read)
    block = words_of(picked, len(rows), width)
    torch.index_select(words_of(read, count, width), 0, rows, out=block)
    return block
