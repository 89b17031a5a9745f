"""The rows of a dataset in the order of their keys: numbers of rows, and the sorted keys if they are wanted.

job 1   chunk ──► (key, number of row), cut into ranges of keys ──► run
job 2   range of keys ──► sorted ──► its place in the index, which follows from the rows of the ranges before it
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.bykey.keys import KeySpec
from tdmap.bykey.order import Words, group_starts, is_sorted, stable_order
from tdmap.bykey.prepare import KeyedData, count_partitions, light, plan_rows
from tdmap.bykey.reducing import CutChunk, select
from tdmap.bykey.spilling import Partitions
from tdmap.data.columns import Shape
from tdmap.data.kinds import data_row_bytes
from tdmap.execution import Execution
from tdmap.job import Job, Policy, Source
from tdmap.memory.files import mapped_file
from tdmap.memory.rowfiles import Places
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.plan import ChunkPlan
from tdmap.sinks import Collect

HEAP_BYTES = 64 << 20
"""An index of more bytes lies in a file."""

WHOLE_BYTES = 32 << 20
"""A key that has so many bytes of rows, in the index, is not sorted with others, but copied piece by piece."""


class Index(NamedTuple):
    """Rows in the order of their keys, in shared memory, or in files when there are many."""

    rows: Tensor
    """Their numbers, int64."""
    words: list[Tensor]
    """Their sorted words as the bits of int64, or nothing."""
    is_unique: bool
    """No two rows have the same key."""


class SortPartition:
    """What a worker calls with the number of a partition; it returns how many distinct keys there are.

    Args:
        partitions: the runs, of words and row numbers.
        firsts: where each partition begins in the index.
        places: of the row numbers, and of each word.
    """

    def __init__(self, partitions: Partitions, firsts: list[int], places: Places, name: str) -> None:
        self.partitions = partitions
        self.firsts = firsts
        self.places = places
        self.whole_bytes = WHOLE_BYTES
        self.__qualname__ = name

    def __call__(self, chunk: Tensor) -> int:
        partition = int(chunk[0])
        first, count = self.firsts[partition], int(self.partitions.rows[partition])
        if not count:
            return 0
        large = count * self.partitions.row_bytes > self.whole_bytes
        if large and self.partitions.only_key(partition, self.whole_bytes) is not None:
            for begin, end in self.partitions.batches(partition, self.whole_bytes):
                words, (rows,) = self.partitions.read(partition, begin, end)
                self._write(first, rows.numpy(), words)
                first += len(rows)
            return 1
        words, (rows,) = self.partitions.read(partition)
        numbers = rows.numpy()
        if not is_sorted(words):
            order, words = stable_order(words)
            numbers = numbers[order]
        self._write(first, numbers, words)
        return len(group_starts(words))

    def _write(self, first: int, rows: NDArray[np.int64], words: Words) -> None:
        blocks = [torch.from_numpy(rows), *(torch.from_numpy(word.view(np.int64)) for word in words)]
        with self.places.opened() as files:
            for number, (file, block) in enumerate(zip(files, blocks)):
                if file >= 0:
                    self.places.write(number, file, first, block)


def sorted_rows(
    keyed: KeyedData, spill: Spill, execution: Execution, policy: Policy, *, chunksize: int | None, with_words: bool
) -> Index:
    """The rows in the order of their keys. Rows whose key is a NaN that is to be left out are not among them."""
    length = int(keyed.data.shape[0])
    words = keyed.codec.num_words
    row_bytes = 8 * (words + 1)
    source = keyed.data if keyed.reader.spec.fn is not None else select(keyed.data, keyed.reader.spec.names)
    plan = plan_rows(length, _chunk_bytes(source, keyed.reader.spec), chunksize)
    nbytes = length * row_bytes
    splits = keyed.splits(count_partitions(nbytes), alone=min(WHOLE_BYTES / max(nbytes, 1), 1.0))
    cut = CutChunk(keyed.reader, spill, splits, None, None, by_number=True)
    cut.__qualname__ = keyed.reader.what
    crew = light(execution, 0) if plan.num_chunks <= 1 else execution
    runs = crew.run(Job(Source(source), plan, cut, policy), Collect()) if length else []
    partitions = Partitions(spill, runs, words, [Shape(torch.int64, ())])
    counts = partitions.rows
    total = int(counts.sum())
    columns = _room(total, 1 + words if with_words else 1, spill)
    distinct = 0
    if total:
        places = Places.of([*columns, *([None] * (0 if with_words else words))])
        assert places is not None
        firsts = (counts.cumsum() - counts).tolist()
        work = SortPartition(partitions, firsts, places, keyed.reader.what)
        numbers = torch.arange(len(counts))
        job = Job(Source(numbers), ChunkPlan(len(counts), 1), work, policy)
        distinct = sum(light(execution, partitions.nbytes).run(job, Collect()))
    return Index(columns[0], columns[1:], distinct == total)


def _chunk_bytes(source: Any, spec: KeySpec) -> int:
    return data_row_bytes(source, int(source.shape[0]))


def _room(rows: int, count: int, spill: Spill) -> list[Tensor]:
    """Shared tensors of int64."""
    if rows * 8 * count <= HEAP_BYTES:
        arena = Arena()
        return [arena.empty(torch.int64, torch.Size([rows])) for _ in range(count)]
    return [mapped_file(spill.folder / f"index-{number}", rows * 8).view(torch.int64) for number in range(count)]
