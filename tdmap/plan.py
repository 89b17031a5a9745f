"""How rows are cut into chunks: pure arithmetic, a function of the data alone.

Neither the number of workers nor the executor enters here. Seeds, retries, resumption and ordering all derive
from the number of a chunk, so the same data must give the same chunks everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

CACHE_BYTES = 1 << 20
"""Input and output bytes of a default chunk: about one core's second-level cache."""

MIN_CHUNKS = 64
"""A default plan has at least so many chunks (rows permitting), so that small data still spread over workers."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Rows `0..length` along `dim`, cut every `size` rows: chunk *k* is rows `[k * size, (k + 1) * size)`.

    Example:
        >>> plan = ChunkPlan(length=10, size=4)
        >>> [plan.rows(k) for k in range(plan.num_chunks)]
        [(0, 4), (4, 8), (8, 10)]
    """

    length: int
    """Number of rows along `dim`."""
    size: int
    """Rows in a chunk; the last one may be shorter."""
    dim: int = 0
    """The dimension that is cut, counted from the front."""
    unbind: bool = False
    """Each row is passed without its dimension, and results are stacked (`chunksize=0`)."""

    @property
    def num_chunks(self) -> int:
        return -(-self.length // self.size)

    def rows(self, chunk: int) -> tuple[int, int]:
        """First and one-past-last row of `chunk`."""
        return self.span(chunk, chunk + 1)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """First and one-past-last row of the chunks `start..stop`."""
        return start * self.size, min(stop * self.size, self.length)

    def count(self, start: int, stop: int) -> int:
        """Number of rows in the chunks `start..stop`."""
        first, last = self.span(start, stop)
        return max(last - first, 0)


def default_chunk_size(length: int, row_bytes: int, chunk_bytes: int = CACHE_BYTES) -> int:
    """Rows of a chunk whose input and output together are about `chunk_bytes`, and at least one.

    Args:
        length: number of rows.
        row_bytes: bytes of one row, input and output together.
        chunk_bytes: bytes of a chunk.

    Example:
        >>> default_chunk_size(1_000_000, row_bytes=4096)
        256
        >>> default_chunk_size(100, row_bytes=4096)
        2
    """
    enough = chunk_bytes // max(row_bytes, 1)
    spread = -(-length // MIN_CHUNKS)
    return max(min(enough, spread), 1)


def make_plan(
    length: int,
    *,
    dim: int = 0,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    row_bytes: int = 0,
) -> ChunkPlan:
    """The plan for `length` rows.

    Args:
        length: number of rows along `dim`.
        dim: the dimension that is cut, not negative.
        chunksize: rows in a chunk; 0 passes rows one by one without `dim`.
        num_chunks: how many chunks at most; their size is the quotient rounded up, as in `torch.chunk`.
        row_bytes: bytes of a row, input and output together; used only when neither size is given.

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
                f"chunksize must be a number of rows, or 0 for rows one by one without their dimension: "
                f"got {chunksize!r}."
            )
        return ChunkPlan(length, max(chunksize, 1), dim, unbind=chunksize == 0)
    if num_chunks is not None:
        if isinstance(num_chunks, bool) or not isinstance(num_chunks, int) or num_chunks < 1:
            raise ValueError(f"num_chunks must be an integer of at least 1: got {num_chunks!r}.")
        return ChunkPlan(length, max(-(-length // num_chunks), 1), dim)
    return ChunkPlan(length, default_chunk_size(length, row_bytes), dim)
