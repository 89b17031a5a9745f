"""Where the rows with a key are: tables in memory that all workers map.

    index     rows of the second dataset in the order of their keys       words  a a b d d d
    direct    keys that lie close together: table[key - lowest]           position of the first row with the key
    hashed    any other: table[leading bits of a hash] ──► a few keys to compare with
    sorted    so many that tables would crowd out the data: the keys of a chunk, sorted, are searched for in the index

Each gives for a key the position of its first row in the index, and how many rows there are. Where every key has one
row, the position is already replaced by the number of that row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tdmap.data.reader import select
from tdmap.keys.codec import distances
from tdmap.keys.index import KeyIndex, sorted_rows
from tdmap.keys.order import Words, equal, group_starts, search, stable_order, take
from tdmap.keys.prepare import KeyedData
from tdmap.keys.slots import distinct
from tdmap.memory.rowfiles import Blocks, SharedTensors
from tdmap.memory.shm import Arena
from tdmap.memory.spill import Spill
from tdmap.run.context import Context

Found = tuple[NDArray[Any], "NDArray[Any] | None"]
"""For each key: the number of its row, -1 for none; or, with a second array, where its rows begin and how many."""

DIRECT_SHARE = 16
"""A direct table has at most so many entries a row."""

DIRECT_LEAST = 1 << 16
"""But so many at least are always allowed."""

BLOCK = 1 << 18
"""Keys that are entered at a time."""

_GOLDEN = 0x9E3779B97F4A7C15


class Lookup:
    """Finds the rows of the second dataset; travels to workers by the names of its memory.

    Args:
        rows: of the second dataset in the order of their keys.
        words: their sorted keys.
        share: workers are other processes.
    """

    def __init__(self, rows: NDArray[np.int64], words: Words, share: bool) -> None:
        starts = group_starts(words)
        self.num_rows = len(rows)
        self.is_unique = len(starts) == len(rows)
        self.num_words = len(words)
        self.is_sorted = False
        self.room = Blocks()
        self.low = 0
        self.span = -1
        self.shift = 64
        counted = np.int32 if len(rows) < (1 << 31) - 1 else np.int64
        numbers = rows.astype(counted) if self.is_unique else starts.astype(counted)
        lengths = None if self.is_unique else np.diff(starts, append=len(rows)).astype(counted)
        keys = words if self.is_unique else take(words, starts)
        tables = self._direct(keys, numbers, lengths) or self._hashed(keys, numbers, lengths)
        self.tables = SharedTensors([torch.from_numpy(table) for table in (rows, *tables)], share)

    @classmethod
    def of_index(cls, index: KeyIndex, share: bool, most_bytes: int) -> Lookup:
        """From an index in memory or in files, in which keys are searched for where it has more bytes than that."""
        words = [word.numpy().view(np.uint64) for word in index.words]
        if len(index.rows) * 8 * (1 + len(words)) <= most_bytes:
            return cls(index.rows.numpy(), words, share)
        found = cls(np.zeros(0, dtype=np.int64), [word[:0] for word in words], False)
        found.is_unique, found.is_sorted, found.num_rows = index.is_unique, True, len(index.rows)
        found.tables = SharedTensors([index.rows, *index.words], share)
        return found

    @classmethod
    def of_integers(cls, integers: NDArray[Any], offset: int, share: bool, most_bytes: int) -> Lookup | None:
        """From keys in the order of their rows, without sorting; None where they are far apart, or occur twice.

        Args:
            integers: the keys, of any dtype that numpy has for integers; bool as uint8.
            offset: what makes a word of a key, if it is added.
            share: workers are other processes.
            most_bytes: of the table.
        """
        rows = len(integers)
        low, high = (int(integers.min()), int(integers.max())) if rows else (0, 1 << 64)
        span = high - low
        if span >= max(DIRECT_SHARE * rows, DIRECT_LEAST) or span < rows - 1:
            return None
        counted = torch.int32 if rows < (1 << 31) - 1 else torch.int64
        if (span + 2) * counted.itemsize > most_bytes:
            return None
        shape = torch.Size([span + 2])
        table = Arena().empty(counted, shape) if share else torch.empty(shape, dtype=counted)
        array = table.numpy()
        array.fill(-1)
        for first in range(0, rows, BLOCK):
            block = integers[first : first + BLOCK]
            slots = np.empty(len(block), dtype=np.int64)
            distances(block, low, slots.view(np.uint64))
            array[slots] = np.arange(first, first + len(block))
        if np.count_nonzero(array >= 0) < rows:
            return None
        none = np.zeros(0, dtype=np.int64)
        found = cls(none, [none.view(np.uint64)], False)
        found.is_unique, found.num_rows, found.low, found.span = True, rows, low + offset, span
        found.tables = SharedTensors([torch.from_numpy(none), table], share)
        return found

    @classmethod
    def of_rows(cls, rows: NDArray[np.int64], share: bool) -> Lookup:
        """Of rows alone, in the order of keys that are no longer needed."""
        none = np.zeros(0, dtype=np.int64)
        found = cls(none, [none.view(np.uint64)], False)
        found.is_unique, found.num_rows = False, len(rows)
        found.tables = SharedTensors([torch.from_numpy(rows)], share)
        return found

    @property
    def index(self) -> NDArray[np.int64]:
        """Rows of the second dataset in the order of their keys."""
        array: NDArray[np.int64] = self.tables.tensors[0].numpy()
        return array

    def find(self, words: Words) -> Found:
        """Where the rows with these keys are."""
        arrays = [tensor.numpy() for tensor in self.tables.tensors[1:]]
        if self.is_sorted:
            return self._search(words, [array.view(np.uint64) for array in arrays])
        if self.span >= 0:
            return self.find_integers(words[0], 0)
        ids = self._probe(words, arrays[0], [array.view(np.uint64) for array in arrays[1 : 1 + len(words)]])
        numbers, *lengths = arrays[1 + len(words) :]
        # The last entries stand for no key at all.
        return numbers.take(ids), None if self.is_unique else lengths[0].take(ids)

    def find_integers(self, integers: NDArray[Any], offset: int) -> Found:
        """As `find`, in a direct table, for keys as they are; as `of_integers`."""
        slots = self.room.array("slots", len(integers), np.uint64)
        distances(integers, self.low - offset, slots)
        np.minimum(slots, np.uint64(self.span + 1), out=slots)
        at = slots.view(np.int64)
        numbers, *lengths = (tensor.numpy() for tensor in self.tables.tensors[1:])
        return numbers.take(at), lengths[0].take(at) if lengths else None

    def _search(self, words: Words, table: Words) -> Found:
        order, words = stable_order(words)
        starts = group_starts(words)
        distinct = take(words, starts)
        low, high = search(table, distinct), search(table, distinct, right=True)
        lengths = np.diff(starts, append=len(order))
        first, count = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
        first[order], count[order] = np.repeat(low, lengths), np.repeat(high - low, lengths)
        self.tables.trim()
        if not self.is_unique:
            return first, count
        return np.where(count > 0, self.index.take(np.minimum(first, len(self.index) - 1)), -1), None

    def _direct(
        self, keys: Words, numbers: NDArray[Any], lengths: NDArray[Any] | None
    ) -> tuple[NDArray[Any], ...] | None:
        if len(keys) > 1 or not len(numbers):
            return None
        self.low = int(keys[0][0])
        span = int(keys[0][-1]) - self.low
        if span >= max(DIRECT_SHARE * len(numbers), DIRECT_LEAST):
            return None
        self.span = span
        slots = (keys[0] - np.uint64(self.low)).view(np.int64)
        found = []
        for column, nothing in ((numbers, -1), (lengths, 0)):
            if column is not None:
                table = np.full(span + 2, nothing, dtype=column.dtype)
                table[slots] = column
                found.append(table)
        return tuple(found)

    def _hashed(self, keys: Words, numbers: NDArray[Any], lengths: NDArray[Any] | None) -> tuple[NDArray[Any], ...]:
        bits = max(len(numbers).bit_length() + 1, 4)
        self.shift = 64 - bits
        hashes = self._hash(keys)
        order, _ = stable_order([hashes])
        order = order.astype(np.int64)
        buckets = np.bincount(hashes.view(np.int64), minlength=(1 << bits) + 1)
        begins = (np.cumsum(buckets) - buckets).astype(numbers.dtype)
        found = [begins, *(word[order].view(np.int64) for word in keys), np.append(numbers[order], -1)]
        if lengths is not None:
            found.append(np.append(lengths[order], 0))
        return tuple(found)

    def _hash(self, words: Words) -> NDArray[np.uint64]:
        mixed: NDArray[np.uint64] = words[0] * np.uint64(_GOLDEN)
        for number, word in enumerate(words[1:], 1):
            mixed = (mixed ^ word) * np.uint64((_GOLDEN * (2 * number + 1)) % (1 << 64))
        # Keys that differ in their upper bits alone would differ in few bits of the product.
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_GOLDEN)
        hashes: NDArray[np.uint64] = mixed >> np.uint64(self.shift)
        return hashes

    def _probe(self, words: Words, begins: NDArray[Any], keys: Words) -> NDArray[Any]:
        """The place of each key in the hashed order; -1, the last place, where there is none."""
        hashes = self._hash(words).view(np.int64)
        at, ends = begins.take(hashes).astype(np.int64), begins.take(hashes + 1)
        found = np.full(len(at), -1, dtype=np.int64)
        rows: NDArray[np.int64] = np.flatnonzero(at < ends)
        at, ends, words = at[rows], ends[rows], take(words, rows)
        while len(rows):
            same = equal([key.take(at) for key in keys], words)
            found[rows[same]] = at[same]
            at += 1
            left = np.flatnonzero(~same & (at < ends))
            rows, at, ends, words = rows[left], at[left], ends[left], take(words, left)
        return found


def lookup_of(ctx: Context, keyed: KeyedData, spill: Spill) -> Lookup:
    """The table of a dataset's keys."""
    rows, tuning, shares = int(keyed.data.shape[0]), ctx.tuning, ctx.execution.in_processes
    spec = keyed.reader.spec
    is_small = rows * 8 * (keyed.codec.num_words + 1) <= tuning.lookup_here_bytes
    source = select(keyed.data, spec.names)
    if (is_small or not spec.casts) and len(distinct(keyed.sample)[0]) == len(keyed.sample[0]):  # none occurs twice
        integers = keyed.reader.integers(keyed.reader.values(source, 0))
        found = None if integers is None else Lookup.of_integers(*integers, shares, tuning.lookup_bytes)
        if found is not None:
            return found
    if is_small:  # sooner done here than sent
        words, kept = keyed.reader.read(source, 0)
        order, words = stable_order(words)
        numbers = order.astype(np.int64) if kept is None else kept[order]
        return Lookup(numbers, words, shares)
    index = sorted_rows(ctx, keyed, spill, with_words=True)
    return Lookup.of_index(index, shares, tuning.lookup_bytes)
