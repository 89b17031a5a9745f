"""How rows are cut into chunks: pure arithmetic, a function of the data alone.

Neither the number of workers nor the executor enters here. Seeds, retries, resumption and ordering all derive
from the number of a chunk, so the same data must give the same chunks everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from tdmap.arguments import require_integer
from tdmap.errors import describe_rows

Ranges: TypeAlias = "list[tuple[int, int]]"
"""Runs of chunks, ascending: from the first to behind the last."""

CACHE_BYTES = 1 << 20
"""Input and output bytes of a default chunk: about one core's second-level cache."""

ENTRY_BYTES = 32 << 10
"""Input and output bytes of a default chunk for each entry: with fewer, the calls take longer than the copies."""

WIDE_BYTES = 16 << 20
"""Input and output bytes of a default chunk of rows with many entries, at most."""

MIN_CHUNKS = 64
"""A default plan has at least so many chunks (rows permitting), so that small data still spread over workers."""


LEAD_CHUNKS = 32
"""First chunks of a plan that waits for a result: about as many as there are workers, so that all have one."""

LEAD_ROWS = 4
"""Rows in each of them."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Rows `0..length` along `dim`, cut every `size` rows: chunk *k* is rows `[k * size, (k + 1) * size)`.

    Where the size of results is unknown, the first `LEAD_CHUNKS` chunks are small ones of `lead` rows, and the
    result of the first of them settles the size of the others. So the chunks depend on the data and the function
    alone.

    Example:
        >>> plan = ChunkPlan(length=10, size=4)
        >>> [plan.rows(k) for k in range(plan.num_chunks)]
        [(0, 4), (4, 8), (8, 10)]
        >>> plan = ChunkPlan(length=100, size=50, lead=2)
        >>> plan.rows(0), plan.rows(31), plan.rows(32), plan.num_chunks
        ((0, 2), (62, 64), (64, 100), 33)
    """

    length: int
    """Number of rows along `dim`."""
    size: int
    """Rows in a chunk; the last one may be shorter."""
    dim: int = 0
    """The dimension that is cut, counted from the front."""
    unbind: bool = False
    """Each row is passed without its dimension, and results are stacked (`chunksize=0`)."""
    lead: int = 0
    """Rows in each of the first chunks; 0 where they are as large as the others."""
    origin: int = 0
    """The row of a larger dataset that row 0 is: random streams and reports of rows count from there."""
    stride: int = 1
    """Chunk *k* is chunk `stride * k` of the larger dataset, counted from that row."""
    most: int = 0
    """Where `size` is a guess, and only the first chunks count (see `settled`): what it will be at most. Else 0."""
    chunk_bytes: int = CACHE_BYTES
    """While the plan is open: input and output bytes of a chunk."""
    min_chunks: int = MIN_CHUNKS
    """While the plan is open: minimum number of chunks, if there are as many rows."""
    unit: str = "row"
    """What messages call a row: some jobs count blocks, or ranges of keys."""

    @property
    def num_chunks(self) -> int:
        rest = self.length - self.lead * LEAD_CHUNKS
        if self.lead and rest <= 0:
            return -(-self.length // self.lead)
        return (LEAD_CHUNKS if self.lead else 0) + -(-rest // self.size)

    @property
    def is_open(self) -> bool:
        """Whether the first result has yet to settle the size of chunks."""
        return self.most > 0

    @property
    def num_known(self) -> int:
        """How many chunks are known: the first ones, as long as the plan is open."""
        return min(LEAD_CHUNKS, self.num_chunks) if self.is_open else self.num_chunks

    @property
    def most_rows(self) -> int:
        """Rows of the largest chunk that there may be."""
        return min(max(self.size, self.lead, self.most), self.length)

    def size_for(self, row_bytes: int) -> int:
        """Rows of the later chunks of an open plan, for `row_bytes` of input and output in a row."""
        return min(default_chunk_size(self.length, row_bytes, self.chunk_bytes, self.min_chunks), self.most)

    def settled(self, size: int) -> ChunkPlan:
        """The plan with chunks of `size` rows after the first ones."""
        return replace(self, size=max(size, 1), most=0)

    def first_row(self, chunk: int) -> int:
        """First row of `chunk`."""
        if not self.lead:
            return chunk * self.size
        if chunk <= LEAD_CHUNKS:
            return chunk * self.lead
        return self.lead * LEAD_CHUNKS + (chunk - LEAD_CHUNKS) * self.size

    def chunk_from(self, row: int) -> int:
        """The first chunk that begins at `row` or after it.

        Example:
            >>> ChunkPlan(length=10, size=4).chunk_from(5)
            2
        """
        lead_rows = self.lead * LEAD_CHUNKS
        if row <= lead_rows:
            return -(-row // self.lead) if self.lead else -(-row // self.size)
        return (LEAD_CHUNKS if self.lead else 0) + -(-(row - lead_rows) // self.size)

    def rows(self, chunk: int) -> tuple[int, int]:
        """First and one-past-last row of `chunk`."""
        return self.span(chunk, chunk + 1)

    def original_row(self, chunk: int) -> int:
        """First row of `chunk`, as the larger dataset numbers it."""
        return self.origin + self.first_row(chunk) * self.stride

    def original_rows(self, chunk: int) -> tuple[int, int]:
        """The rows of `chunk`, as the larger dataset numbers them."""
        first = self.original_row(chunk)
        return first, first + self.count(chunk, chunk + 1)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """First and one-past-last row of the chunks `start..stop`."""
        return self.first_row(start), min(self.first_row(stop), self.length)

    def describe(self, start: int, stop: int | None = None) -> str:
        """The rows of chunk `start`, or of the chunks `start..stop`, for messages, as the larger dataset numbers them.

        Example:
            >>> ChunkPlan(length=10, size=4).describe(1), ChunkPlan(length=10, size=4, origin=100).describe(0, 3)
            ('rows 4:8', 'rows 100:110')
        """
        last = start if stop is None else max(stop - 1, start)
        return describe_rows(self.original_row(start), self.original_rows(last)[1], self.unit)

    def count(self, start: int, stop: int) -> int:
        """Number of rows in the chunks `start..stop`."""
        first, last = self.span(start, stop)
        return max(last - first, 0)

    def runs(self, start: int, stop: int, most: int) -> Iterator[tuple[int, int, int]]:
        """The chunks `start..stop` as runs of equal chunks, at most so many: (first row, last row, rows in a chunk)."""
        while start < stop:
            size = self.lead if self.lead and start < LEAD_CHUNKS else self.size
            end = min(start + most, stop, LEAD_CHUNKS if size != self.size and start < LEAD_CHUNKS else stop)
            yield (*self.span(start, end), size)
            start = end


def default_chunk_bytes(entries: int) -> int:
    """Input and output bytes of a chunk of rows with so many entries.

    Example:
        >>> [default_chunk_bytes(entries) >> 20 for entries in (1, 32, 128, 10_000)]
        [1, 1, 4, 16]
    """
    return max(min(entries * ENTRY_BYTES, WIDE_BYTES), CACHE_BYTES)


def default_chunk_size(
    length: int, row_bytes: int, chunk_bytes: int = CACHE_BYTES, min_chunks: int = MIN_CHUNKS
) -> int:
    """Rows of a chunk whose input and output together are about `chunk_bytes`, and at least one.

    Args:
        length: number of rows.
        row_bytes: bytes of one row, input and output together.
        chunk_bytes: bytes of a chunk.
        min_chunks: chunks that there are at least, rows permitting.

    Example:
        >>> default_chunk_size(1_000_000, row_bytes=4096)
        256
        >>> default_chunk_size(100, row_bytes=4096)
        2
    """
    enough = chunk_bytes // max(row_bytes, 1)
    spread = -(-length // min_chunks)
    return max(min(enough, spread), 1)


def make_plan(
    length: int,
    *,
    dim: int = 0,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    row_bytes: int = 0,
    result_bytes: int = 0,
    is_guess: bool = False,
    chunk_bytes: int = CACHE_BYTES,
    min_chunks: int = MIN_CHUNKS,
) -> ChunkPlan:
    """The plan for `length` rows.

    Args:
        length: number of rows along `dim`.
        dim: the dimension that is cut, not negative.
        chunksize: rows in a chunk; 0 passes rows one by one without `dim`.
        num_chunks: how many chunks at most; their size is the quotient rounded up, as in `torch.chunk`.
        row_bytes: bytes of a row. This and what follows is used only when neither size is given.
        result_bytes: bytes of the result of a row.
        is_guess: `result_bytes` is a guess: the plan is open until the first result is known.
        chunk_bytes: input and output bytes of a chunk.
        min_chunks: minimum number of chunks, if there are as many rows.

    Raises:
        ValueError: both sizes are given, or one is out of range.

    Example:
        >>> make_plan(10, num_chunks=4).size
        3
    """
    if chunksize is not None and num_chunks is not None:
        raise ValueError(
            f"map takes chunksize or num_chunks, not both: got chunksize={chunksize} and num_chunks={num_chunks}. "
            "Drop one of them."
        )
    if chunksize is not None:
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 0:
            raise ValueError(
                f"chunksize must be a number of rows, or 0 for single rows without their dimension: got {chunksize!r}."
            )
        return ChunkPlan(length, max(chunksize, 1), dim, unbind=chunksize == 0)
    if num_chunks is not None:
        require_integer("num_chunks", num_chunks, 1)
        return ChunkPlan(length, max(-(-length // num_chunks), 1), dim)
    size = default_chunk_size(length, row_bytes + result_bytes, chunk_bytes, min_chunks)
    if not is_guess or length <= MIN_CHUNKS:
        return ChunkPlan(length, size, dim)
    lead, most = min(LEAD_ROWS, size), default_chunk_size(length, row_bytes, chunk_bytes, min_chunks)
    return ChunkPlan(length, size, dim, lead=lead, most=most, chunk_bytes=chunk_bytes, min_chunks=min_chunks)


# -- runs of chunks, as pairs of a first one and the one after the last ----------------------------------------


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted runs that neither touch nor overlap.

    Example:
        >>> merge_ranges([(4, 6), (0, 2), (2, 3), (5, 8)])
        [(0, 3), (4, 8)]
    """
    merged: Ranges = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif stop > start:
            merged.append((start, stop))
    return merged


def subtract_ranges(ranges: Ranges, others: Ranges) -> Ranges:
    """What is in `ranges` and not in `others`; both as `merge_ranges` gives them.

    Example:
        >>> subtract_ranges([(0, 10), (12, 14)], [(2, 4), (9, 13)])
        [(0, 2), (4, 9), (13, 14)]
    """
    left = []
    for start, stop in ranges:
        for first, last in others:
            if last > start and first < stop:
                if first > start:
                    left.append((start, first))
                start = last
        if start < stop:
            left.append((start, stop))
    return left
