"""The rows of a dataset in the order of their keys: numbers of rows, and the sorted keys if they are wanted.

job 1   chunk ──► (key, number of row), cut into ranges of keys ──► run
job 2   range of keys ──► sorted ──► its place in the index, which follows from the rows of the ranges before it

Where a key and the number of its row fit into 64 bits together, and the keys are not wanted, they travel as one number:
half the bytes, and what is sorted is plain numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import Shape
from tdmap.data.kinds import Data
from tdmap.data.reader import select
from tdmap.data.sizes import row_bytes_of
from tdmap.keys.keys import KeyReader
from tdmap.keys.order import Words, group_starts, is_sorted, sort_numbered, sorted_words, stable_order
from tdmap.keys.prepare import KeyedData, count_partitions, plan_rows
from tdmap.keys.reducing import CutChunk
from tdmap.keys.spilling import RUNS, Partitions, Run, by_partition
from tdmap.keys.splits import KEY_RANGE, Splits
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.output.output import Step
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context

BOUNDED_BYTES = 256 << 20
"""A column of keys of so many bytes is read once more, for its smallest and its largest key."""


class KeyIndex(NamedTuple):
    """Rows in the order of their keys, in shared memory, or in files when there are many."""

    rows: Tensor
    """Their numbers, int64, or nothing."""
    words: list[Tensor]
    """Their sorted words as the bits of int64, or nothing."""
    is_unique: bool
    """No two rows have the same key."""


class PartitionWork:
    """What a worker calls with the number of a partition; it returns how many distinct keys there are, if it knows.

    Args:
        partitions: the runs.
        firsts: where each partition begins in the index.
        places: of the row numbers, and of each word; or of whole rows.
        name: how messages call it.
        whole_bytes: more rows than these, which have one key, are not sorted, but copied piece by piece.
    """

    def __init__(
        self, partitions: Partitions, firsts: list[int], places: RowFiles, name: str, whole_bytes: int
    ) -> None:
        self.partitions = partitions
        self.firsts = firsts
        self.places = places
        self.whole_bytes = whole_bytes
        self.__qualname__ = name

    def __call__(self, chunk: Tensor) -> int:
        partition = int(chunk[0])
        count = int(self.partitions.rows[partition])
        return self.sort(partition, self.firsts[partition], count) if count else 0

    def sort(self, partition: int, first: int, count: int) -> int:
        """Write the index of a partition of `count` rows from `first` on."""
        raise NotImplementedError


class SortPartition(PartitionWork):
    """Keys of words, beside row numbers if these are wanted."""

    def sort(self, partition: int, first: int, count: int) -> int:
        large = count * self.partitions.row_bytes > self.whole_bytes
        if large and self.partitions.only_key(partition, self.whole_bytes) is not None:
            for begin, end in self.partitions.batches(partition, self.whole_bytes):
                words, rows = self.partitions.read(partition, begin, end)
                self._write(first, rows, words)
                first += len(words[0])
            return 1
        words, rows = self.partitions.read(partition)
        if not rows:
            words = sorted_words(words)
        elif not is_sorted(words):
            order, words = stable_order(words)
            rows = [torch.from_numpy(rows[0].numpy()[order])]
        self._write(first, rows, words)
        return len(group_starts(words))

    def _write(self, first: int, rows: Sequence[Tensor], words: Words) -> None:
        blocks = [*rows, *(torch.from_numpy(word.view(np.int64)) for word in words)]
        for number, (file, block) in enumerate(zip(self.places.descriptors, blocks)):
            if file >= 0:
                self.places.write(number, file, first, block)


class CutPacked(Step):
    """What a worker calls with each chunk: keys and row numbers as one number, by partition.

    Args:
        reader: finds the keys.
        spill: where the run goes.
        splits: the ranges of keys.
        low: the smallest key.
        bits: of a row number, which has the lower ones.
    """

    value_codec = RUNS

    def __init__(self, reader: KeyReader, spill: Spill, splits: Splits, low: int, bits: int) -> None:
        super().__init__(reader.what)
        self.reader = reader
        self.spill = spill
        self.splits = splits
        self.low = low
        self.bits = bits

    def __call__(self, chunk: Data, start: int = 0) -> Run | None:
        (word,), kept = self.reader.read(chunk, start)
        if not len(word):
            return None
        order, counts = by_partition(self.splits.ids([word]), self.splits.count)
        packed = word - np.uint64(self.low)
        packed <<= np.uint64(self.bits)
        packed |= (np.arange(len(chunk)) if kept is None else kept).view(np.uint64) + np.uint64(start)
        if order is not None:
            packed = packed[order]
        return Run(counts, tuple(self.spill.append([torch.from_numpy(packed.view(np.int64))])))


class SortPacked(PartitionWork):
    """Keys and row numbers that are one number, of which the row number has the lower `bits`."""

    def __init__(
        self, partitions: Partitions, firsts: list[int], places: RowFiles, name: str, whole_bytes: int, bits: int
    ) -> None:
        super().__init__(partitions, firsts, places, name, whole_bytes)
        self.bits = bits

    def sort(self, partition: int, first: int, count: int) -> int:
        if count * 8 > self.whole_bytes and self._has_one_key(partition):
            for begin, end in self.partitions.batches(partition, self.whole_bytes):
                (packed,) = self.partitions.read_words(partition, begin, end)
                self._write(first, packed)
                first += len(packed)
            return 0
        (packed,) = self.partitions.read_words(partition)  # in the order of their row numbers
        self._write(first, sort_numbered(packed, self.bits))
        return 0

    def _has_one_key(self, partition: int) -> bool:
        """Whether all rows have it; they are in their order then."""
        found: set[int] = set()
        for begin, end in self.partitions.batches(partition, self.whole_bytes):
            keys = self.partitions.read_words(partition, begin, end)[0] >> np.uint64(self.bits)
            found |= {int(keys.min()), int(keys.max())}
        return len(found) == 1

    def _write(self, first: int, packed: NDArray[np.uint64]) -> None:
        packed &= np.uint64((1 << self.bits) - 1)
        (file,) = self.places.descriptors
        self.places.write(0, file, first, torch.from_numpy(packed.view(np.int64)))


def _bounds(keyed: KeyedData) -> tuple[int, int] | None:
    """The smallest and the largest word that a key may have; None where that is not known cheaply."""
    codec, spec = keyed.codec, keyed.reader.spec
    if codec.num_words > 1 or spec.fn is not None or not len(keyed.data):
        return None
    bits = sum(bits for column in codec.columns for bits in column.pieces)
    if bits <= 32:
        return 0, (1 << bits) - 1
    source = select(keyed.data, spec.names)
    if len(keyed.data) * row_bytes_of(source, len(keyed.data)) > BOUNDED_BYTES or len(spec.names) > 1:
        return None
    (values,) = spec.values(source)
    if values.dtype not in (torch.int64, torch.float64) or (values.is_floating_point() and values.isnan().any()):
        return None
    words = codec.encode(
        [torch.stack(values.detach().reshape(len(values), -1).aminmax())[:, None].reshape(2, *values.shape[1:])]
    )
    return min(words[0].tolist()), max(words[0].tolist())


def sorted_rows(
    ctx: Context,
    keyed: KeyedData,
    spill: Spill,
    *,
    with_words: bool,
    with_rows: bool = True,
    chunksize: int | None = None,
) -> KeyIndex:
    """The rows in the order of their keys. Rows whose key is a NaN that is to be left out are not among them."""
    spill.make()
    length = int(keyed.data.shape[0])
    words = keyed.codec.num_words
    row_bytes = 8 * (words + with_rows)
    source = keyed.data if keyed.reader.spec.fn is not None else select(keyed.data, keyed.reader.spec.names)
    plan_bytes = row_bytes_of(source, length)
    plan = plan_rows(length, plan_bytes, chunksize)
    nbytes = length * row_bytes
    whole = max(ctx.tuning.heap_bytes // 2, 1)
    splits = keyed.splits(count_partitions(ctx, nbytes), alone=min(whole / max(nbytes, 1), 1.0))
    bounds, bits = None if with_words else _bounds(keyed), max(length - 1, 1).bit_length()
    packs = bounds is not None and (bounds[1] - bounds[0]).bit_length() + bits <= 64
    cut: CutChunk | CutPacked
    if bounds is not None and packs:
        cut = CutPacked(keyed.reader, spill, splits, bounds[0], bits)
    else:
        cut = CutChunk(keyed.reader, spill, splits, None if with_rows else (), by_number=with_rows)
        cut.__qualname__ = keyed.reader.what
    nbytes_read = length * plan_bytes if keyed.reader.spec.fn is None else sys.maxsize  # which may do anything
    runs: list[Any] = ctx.light(0 if plan.num_chunks <= 1 else nbytes_read).step(source, plan, cut) if length else []
    partitions = Partitions(spill, runs, words, [Shape(torch.int64, ())] if with_rows and not packs else [])
    counts = partitions.rows
    total = int(counts.sum())
    columns = _room(total, with_rows + (words if with_words else 0), spill, ctx.tuning.heap_bytes)
    distinct = 0
    if total:
        places = RowFiles.of([*columns, *([None] * (0 if with_words or packs else words))])
        assert places is not None
        firsts = (counts.cumsum() - counts).tolist()
        name = keyed.reader.what
        work: PartitionWork = SortPartition(partitions, firsts, places, name, whole)
        if packs:
            work = SortPacked(partitions, firsts, places, name, whole, bits)
        numbers = torch.arange(len(counts))
        distinct = sum(ctx.light(partitions.nbytes).step(numbers, ChunkPlan(len(counts), 1, unit=KEY_RANGE), work))
    rows = columns.pop(0) if with_rows else torch.empty(0, dtype=torch.int64)
    return KeyIndex(rows, columns, distinct == total)


def _room(rows: int, count: int, spill: Spill, heap_bytes: int) -> list[Tensor]:
    """Shared tensors of int64, in files where they are large."""
    if rows * 8 * count <= heap_bytes and not spill.lasts:
        arena = Arena()
        return [arena.empty(torch.int64, torch.Size([rows])) for _ in range(count)]
    return [spill.mapped(f"index-{number}", rows * 8).view(torch.int64) for number in range(count)]
