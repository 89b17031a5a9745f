"""Few keys: every row gets the number of its key's slot, so that a chunk is reduced without being sorted.

    dense     keys of a chunk lie close together: slot = key - smallest key          a subtraction a row
    hashed    keys of the sample, and hardly any other: slot = table[hash of key]    a product, a load and a comparison

A hash that no two keys of the table share is searched for among fixed multipliers, so a row looks at one entry alone;
what is found there is compared with the key, and a chunk with any key that is not in the table is sorted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdmap.data.columns import columns_of, gather
from tdmap.data.kinds import Data
from tdmap.keys.codec import distances
from tdmap.keys.order import Words, group_starts, order_of_numbers, stable_order, take
from tdmap.memory.rowfiles import Blocks

DENSE = 1 << 16
"""Slots of a chunk with dense keys, at most: sums and counts of them stay in the cache."""

FEW = 1 << 10
"""Keys of a table."""

EARLY = 1 << 12
"""Rows that tell whether a few dense slots are all used: then nothing has to be counted."""

_BITS = 16
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd: Knuth, vol. 3, 6.4."""
_TRIES = 64


@dataclass(frozen=True)
class Slots:
    """The slots of a chunk's rows.

    Args:
        numbers: of each row; in memory that the next chunk will use.
        count: slots, the empty ones included.
        keys: words of each slot, in ascending order; None where they follow each other from `low` on.
        low: the word of the first slot.
    """

    numbers: NDArray[np.int64]
    count: int
    keys: Words | None = None
    low: int = 0

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each slot."""
        sizes = np.zeros(self.count, dtype=np.int64)
        np.add.at(sizes, self.numbers, 1)  # two thirds of the time of numpy.bincount, which looks for their range first
        return sizes

    def longest(self, enough: int) -> int:
        """No slot has more rows; counted only where the chunk has more than `enough`."""
        return len(self.numbers) if len(self.numbers) <= enough else int(self.sizes.max())

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """Slots that have rows, in ascending order."""
        if self.count <= EARLY // 16:
            seen = np.zeros(self.count, dtype=bool)
            seen[self.numbers[:EARLY]] = True
            if seen.all():
                return np.arange(self.count)
        return np.flatnonzero(self.sizes)

    @property
    def words(self) -> Words:
        """The key of each slot that is used."""
        if self.keys is None:
            return [self.used.view(np.uint64) + np.uint64(self.low)]
        return take(self.keys, self.used)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the groups begin once rows are sorted by slot."""
        sizes = self.sizes[self.used]
        starts: NDArray[np.int64] = np.cumsum(sizes) - sizes
        return starts


@dataclass(frozen=True)
class KeyTable:
    """Finds the slots of rows.

    Args:
        keys: words of the keys that are expected, sorted; or nothing.
        factors: of each word, for the hash.
        table: slot by hash.
    """

    keys: Words = field(default_factory=list)
    factors: tuple[int, ...] = ()
    table: NDArray[np.int64] | None = None

    @classmethod
    def of_sample(cls, words: Words) -> KeyTable:
        """For keys like those of a sample, sorted and distinct."""
        if not len(words[0]) or len(words[0]) > FEW:
            return cls()
        for number in range(_TRIES):
            factors = tuple((_GOLDEN * (2 * (number * len(words) + at) + 1)) % (1 << 64) for at in range(len(words)))
            hashes = _hash(words, factors)
            if len(np.unique(hashes)) == len(hashes):
                table = np.zeros(1 << _BITS, dtype=np.int64)
                table[hashes] = np.arange(len(hashes))
                return cls(words, factors, table)
        return cls()

    @staticmethod
    def dense(integers: NDArray[Any], offset: int, room: Blocks, most: int | None = None) -> Slots | None:
        """The slots of rows whose keys lie close together; None where they do not.

        Args:
            integers: the keys, of any dtype that numpy has for integers; bool as uint8.
            offset: what makes a word of a key, if it is added.
            room: for the numbers.
            most: slots. Default: `DENSE`, or four a row where that is less.
        """
        low, high = int(integers.min()), int(integers.max())
        if high - low >= (min(DENSE, 4 * len(integers)) if most is None else most):
            return None
        numbers = room.array("numbers", len(integers), np.int64)
        distances(integers, low, numbers.view(np.uint64))
        return Slots(numbers, high - low + 1, None, low + offset)

    def hashed(self, words: Words, room: Blocks) -> Slots | None:
        """The slots of rows whose keys are in the table; None where one is not."""
        if self.table is None:
            return None
        numbers, found = (room.array(name, len(words[0]), np.int64) for name in ("numbers", "found"))
        # An index that is clipped, which none is, is looked up without a buffer in between.
        self.table.take(_hash(words, self.factors, room), out=numbers, mode="clip")
        for keys, word in zip(self.keys, words):
            if not (keys.take(numbers, out=found.view(np.uint64), mode="clip") == word).all():
                return None
        return Slots(numbers, len(self.keys[0]), self.keys)


def _hash(words: Words, factors: tuple[int, ...], room: Blocks | None = None) -> NDArray[np.int64]:
    mixed: NDArray[np.uint64] = (
        np.empty_like(words[0]) if room is None else room.array("hashes", len(words[0]), np.uint64)
    )
    np.multiply(words[0], np.uint64(factors[0]), out=mixed)
    for word, factor in zip(words[1:], factors[1:]):
        mixed ^= word * np.uint64(factor)
    mixed >>= np.uint64(64 - _BITS)
    hashes: NDArray[np.int64] = mixed.view(np.int64)
    return hashes


T = TypeVar("T")


class Slotted:
    """The rows of a chunk with their slots; what several reducers need is computed once.

    Args:
        rows: a columnar collection.
        slots: of the rows.
        room: for what is needed for a moment.
    """

    def __init__(self, rows: Data, slots: Slots, room: Blocks) -> None:
        self.rows = rows
        self.slots = slots
        self.room = room
        self._known: dict[Any, Any] = {}
        self._sorted: Data | None = None

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What `make()` returned for a name."""
        if name not in self._known:
            self._known[name] = make()
        found: T = self._known[name]
        return found

    def add_up(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Sums of one number a row, in float64 and in the order of the rows, of each slot."""
        sums = np.zeros(self.slots.count)
        wide = values
        if values.dtype != np.float64:
            wide = self.room.array("values", len(values), np.float64)
            wide[:] = values
        with np.errstate(all="ignore"):  # sums of infinities are NaN, as those of torch
            np.add.at(sums, self.slots.numbers, wide)
        return sums

    def sorted_rows(self) -> Data:
        """The rows by slot, for reducers that take runs."""
        if self._sorted is None:
            order = order_of_numbers(self.slots.numbers, self.slots.count)
            self._sorted = gather(self.rows, order) if columns_of(self.rows) else self.rows
        return self._sorted


def distinct(words: Words) -> Words:
    """The different keys of rows, sorted."""
    _, ordered = stable_order(words)
    return take(ordered, group_starts(ordered))
