"""Rows on their way from chunks to partitions: every chunk leaves a run in files, ordered by partition.

    chunk 0 ──► | p0 | p1 ... | pn |   a run: for each column one extent
    chunk 1 ──► | p0 |  p1 ... |pn |
                  └────┬───┘
                partition 0 = its part of each run, in the order of the chunks

So a partition has its rows in the order of the dataset, whichever worker wrote the runs, and however often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import Order, Shape, reordered
from tdmap.keys.order import Words, order_of_numbers
from tdmap.keys.splits import Splits
from tdmap.memory.spill import Extent, Spill
from tdmap.run.values import Codec
from tensordict_lite.gathering import bytes_of


class Run(NamedTuple):
    """What one chunk left."""

    counts: NDArray[np.int64]
    """Rows of each partition."""
    extents: tuple[Extent, ...]
    """One a column."""


def pack_runs(values: Sequence[Run | Kept | None]) -> dict[str, Any]:
    """What consecutive chunks left, as data for a log: numbers of all runs in two tensors."""
    runs = [value for value in values if isinstance(value, Run)]
    files = {extent.file: 0 for run in runs for extent in run.extents}
    files = {file: number for number, file in enumerate(files)}
    extents = [[(files[file], offset, nbytes) for file, offset, nbytes in run.extents] for run in runs]
    return {
        "values": ["run" if isinstance(value, Run) else value and tuple(value) for value in values],
        "counts": torch.from_numpy(np.stack([run.counts for run in runs])) if runs else None,
        "extents": torch.tensor(extents, dtype=torch.int64) if runs else None,
        "files": list(files),
    }


def unpack_runs(packed: dict[str, Any]) -> list[Run | Kept | None]:
    """What `pack_runs` was given. Raises ValueError, TypeError or LookupError for other data."""
    files = packed["files"]
    runs: Iterator[Run] = iter(())
    if packed["counts"] is not None:
        extents = [tuple(Extent(files[f], o, n) for f, o, n in run) for run in packed["extents"].tolist()]
        runs = iter([Run(counts, found) for counts, found in zip(packed["counts"].numpy(), extents, strict=True)])
    values = [next(runs) if value == "run" else value and Kept(*value) for value in packed["values"]]
    if next(runs, None) is not None:
        raise ValueError("more runs than chunks")
    return values


RUNS = Codec(pack_runs, unpack_runs)
"""How a log keeps what chunks left."""


class Kept(NamedTuple):
    """What one chunk left of few keys: the bytes themselves, which travel to the driver."""

    rows: int
    parts: tuple[bytes, ...]
    """One a column, words first."""

    def read(self, num_words: int, shapes: Sequence[Shape]) -> tuple[Words, list[Tensor]]:
        """The words and the other columns."""
        words = [np.frombuffer(part, dtype=np.uint64) for part in self.parts[:num_words]]
        columns = []
        for part, shape in zip(self.parts[num_words:], shapes):
            column = shape.empty(self.rows)
            bytes_of(column)[:] = part
            columns.append(column)
        return words, columns


def keep(words: Words, columns: Sequence[Tensor]) -> Kept:
    """Rows as they are."""
    return Kept(len(words[0]), (*(word.tobytes() for word in words), *(_bytes(column) for column in columns)))


def _bytes(column: Tensor) -> bytes:
    return bytes(bytes_of(column.detach().contiguous()))


def by_partition(ids: NDArray[Any], count: int) -> tuple[Order | None, NDArray[np.int64]]:
    """The order that puts rows by partition, None when they are already, and the rows of each partition."""
    counts = np.bincount(ids, minlength=count).astype(np.int64)
    if count == 1 or not bool((ids[1:] < ids[:-1]).any()):
        return None, counts
    return order_of_numbers(ids, count), counts


def write_run(spill: Spill, splits: Splits, words: Words, columns: Sequence[Tensor]) -> Run:
    """Write rows by partition: their words, and their other columns."""
    order, counts = by_partition(splits.ids(words), splits.count)
    tensors = [torch.from_numpy(word.view(np.int64)) for word in words]
    tensors += [column.detach() for column in columns]
    if order is not None:
        tensors = [reordered(tensor, order) for tensor in tensors]
    return Run(counts, tuple(spill.append([tensor.contiguous() for tensor in tensors])))


class Partitions:
    """All runs of a job, read by partition; travels to workers as numbers and names of files.

    Args:
        spill: where they are.
        runs: one a chunk, in order; chunks without rows may lack one.
        num_words: words of a key.
        shapes: of the other columns.
    """

    def __init__(self, spill: Spill, runs: Sequence[Run | None], num_words: int, shapes: Sequence[Shape]) -> None:
        kept = [run for run in runs if run is not None]
        self.spill = spill
        self.num_words = num_words
        self.shapes = [*(Shape(torch.int64, ()) for _ in range(num_words)), *shapes]
        self.extents = [run.extents for run in kept]
        counts = np.stack([run.counts for run in kept]) if kept else np.zeros((0, 1), dtype=np.int64)
        self.rows: NDArray[np.int64] = counts.sum(0)
        """Rows of each partition."""
        ends = np.cumsum(counts, axis=1)
        self._starts = ends - counts
        self._counts = counts

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, words included."""
        return sum(shape.nbytes for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(self.rows.sum()) * self.row_bytes

    def batches(self, partition: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Consecutive runs whose parts of a partition are of about so many bytes together."""
        counts = self._counts[:, partition]
        first, rows, most = 0, 0, max(max_bytes // max(self.row_bytes, 1), 1)
        for run, count in enumerate(counts.tolist()):
            if rows and rows + count > most:
                yield first, run
                first, rows = run, 0
            rows += count
        if rows:
            yield first, len(counts)

    def read(self, partition: int, first: int = 0, last: int | None = None) -> tuple[Words, list[Tensor]]:
        """Words and other columns of a partition, from the runs `first..last`, in the order of the dataset."""
        columns = self._read(partition, first, last, slice(None))
        return _as_words(columns[: self.num_words]), columns[self.num_words :]

    def read_words(self, partition: int, first: int = 0, last: int | None = None) -> Words:
        """The words of a partition alone."""
        return _as_words(self._read(partition, first, last, slice(self.num_words)))

    def read_column(self, partition: int, number: int) -> Tensor:
        """One of the other columns of a partition."""
        number += self.num_words
        return self._read(partition, 0, None, slice(number, number + 1))[0]

    def only_key(self, partition: int, max_bytes: int) -> Words | None:
        """The words that all rows of a partition have; None when they differ. Reads about so many bytes at a time."""
        one: Words | None = None
        for first, last in self.batches(partition, max_bytes):
            words = self.read_words(partition, first, last)
            one = [word[:1].copy() for word in words] if one is None else one
            if not all(bool((word == key).all()) for word, key in zip(words, one)):
                return None
        return one

    def _read(self, partition: int, first: int, last: int | None, wanted: slice) -> list[Tensor]:
        last = len(self.extents) if last is None else last
        rows = int(self._counts[first:last, partition].sum())
        columns = [shape.empty(rows) for shape in self.shapes[wanted]]
        self.spill.read_many(list(self._pieces(partition, first, last, wanted, columns)))
        return columns

    def _pieces(
        self, partition: int, first: int, last: int, wanted: slice, columns: list[Tensor]
    ) -> Iterator[tuple[Extent, Tensor]]:
        at = 0
        for run in range(first, last):
            count = int(self._counts[run, partition])
            if not count:
                continue
            start = int(self._starts[run, partition])
            for shape, extent, column in zip(self.shapes[wanted], self.extents[run][wanted], columns):
                piece = Extent(extent.file, extent.offset + start * shape.nbytes, count * shape.nbytes)
                yield piece, column[at : at + count]
            at += count


def _as_words(columns: list[Tensor]) -> Words:
    return [column.numpy().view(np.uint64) for column in columns]
