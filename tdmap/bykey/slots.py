"""Few keys: every row gets the number of its key's slot, so that a chunk is reduced without being sorted.

    dense     keys of a chunk lie close together: slot = key - smallest key          a subtraction a row
    hashed    keys of the sample, and hardly any other: slot = table[hash of key]    a product, a load and a comparison

A hash that no two keys of the table share is searched for among fixed multipliers, so a row looks at one entry alone;
what is found there is compared with the key, and a chunk with any key that is not in the table is sorted instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdmap.bykey.order import Words, group_starts, stable_order, take
from tdmap.data.columns import columns_of, gather
from tdmap.data.kinds import Data

DENSE = 1 << 16
"""Slots of a chunk with dense keys, at most: sums and counts of them stay in the cache."""

FEW = 1 << 10
"""Keys of a table."""

_BITS = 16
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd: Knuth, vol. 3, 6.4."""
_TRIES = 64


class Slots(NamedTuple):
    """The slots of a chunk's rows."""

    numbers: NDArray[np.int64]
    """Of each row."""
    words: Words
    """The key of each slot, in ascending order; of those that are used."""
    used: NDArray[np.int64]
    """Slots that have rows, in ascending order."""
    sizes: NDArray[np.int64]
    """Rows of each slot, empty ones among them."""

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

    def slots(self, words: Words) -> Slots | None:
        """The slots of rows; None where they have to be sorted."""
        if len(words) == 1:
            low, high = int(words[0].min()), int(words[0].max())
            if high - low < min(DENSE, 4 * len(words[0])):
                numbers = (words[0] - np.uint64(low)).view(np.int64)
                sizes = _counted(numbers, high - low + 1)
                used = np.flatnonzero(sizes)
                return Slots(numbers, [used.view(np.uint64) + np.uint64(low)], used, sizes)
        if self.table is None:
            return None
        numbers = self.table.take(_hash(words, self.factors))
        if not all(bool((keys.take(numbers) == word).all()) for keys, word in zip(self.keys, words)):
            return None
        sizes = _counted(numbers, len(self.keys[0]))
        used = np.flatnonzero(sizes)
        return Slots(numbers, take(self.keys, used), used, sizes)


def _counted(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    sizes = np.zeros(count, dtype=np.int64)
    np.add.at(sizes, numbers, 1)  # two thirds of the time of numpy.bincount, which looks for their range first
    return sizes


def _hash(words: Words, factors: tuple[int, ...]) -> NDArray[np.int64]:
    mixed: Any = words[0] * np.uint64(factors[0])
    for word, factor in zip(words[1:], factors[1:]):
        mixed ^= word * np.uint64(factor)
    mixed >>= np.uint64(64 - _BITS)
    hashes: NDArray[np.int64] = mixed.view(np.int64)
    return hashes


class Slotted:
    """The rows of a chunk with their slots; what several reducers need is computed once.

    Args:
        rows: a columnar collection.
        slots: of the rows.
    """

    def __init__(self, rows: Data, slots: Slots) -> None:
        self.rows = rows
        self.slots = slots
        self._known: dict[Any, Any] = {}
        self._sorted: Data | None = None

    def once(self, name: Any, make: Any) -> Any:
        """What `make()` returned for a name."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def add_up(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Sums of one number a row, in float64 and in the order of the rows, of each slot."""
        sums = np.zeros(len(self.slots.sizes))
        np.add.at(sums, self.slots.numbers, values.astype(np.float64, copy=False))
        return sums

    def sorted_rows(self) -> Data:
        """The rows by slot, for reducers that take runs."""
        if self._sorted is None:
            small = self.slots.numbers.astype(np.uint16 if len(self.slots.sizes) > 256 else np.uint8)
            order = np.argsort(small, kind="stable")  # of so few bits it is a radix sort
            self._sorted = gather(self.rows, order) if columns_of(self.rows) else self.rows
        return self._sorted


def distinct(words: Words) -> Words:
    """The different keys of rows, sorted."""
    _, ordered = stable_order(words)
    return take(ordered, group_starts(ordered))
