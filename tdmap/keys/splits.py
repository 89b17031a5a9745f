"""Where the space of keys is cut, so that partitions are consecutive ranges of keys of about as many rows.

Cuts come from a sample. The id of a row's partition is looked up in a table by the leading bits of its key, which
costs a shift and a load a row; keys that crowd together below those bits are searched for among the cuts instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdmap.keys.order import Words, group_starts, joined, search, stable_order, take

BINS = 4096
"""Entries of the table: it stays in the first-level cache."""

KEY_RANGE = "range of keys"
"""What messages call a row of a job over partitions."""

SKEW = 2.0
"""The table is good enough when no partition of the sample is so many times as large as it should be."""


@dataclass(frozen=True)
class Splits:
    """Cuts keys into `count` ranges.

    Args:
        count: partitions.
        cuts: the first key of each partition but the first one.
        low, shift, table: partition by the bits of the first word from `shift` on, counted from `low`.
    """

    count: int
    cuts: Words
    low: int = 0
    shift: int = 0
    table: NDArray[np.uint32] | None = None

    @classmethod
    def of_sample(cls, words: Words, parts: int, alone: float = 1.0) -> Splits:
        """At most `parts` ranges that have about as many rows of the sample each.

        Args:
            words: the sample.
            parts: how many.
            alone: a key with a larger share of the rows gets a range of its own, besides.
        """
        _, words = stable_order(words)
        rows = len(words[0])
        heavy = _heavy_keys(words, alone)
        if len(heavy[0]):
            cuts = take(words, np.arange(1, max(parts, 1)) * rows // max(parts, 1))
            _, cuts = stable_order(joined([cuts, heavy, _after(heavy)]))
            cuts = take(cuts, group_starts(cuts))
            return cls(len(cuts[0]) + 1, cuts)
        if parts <= 1 or rows < 2:
            return cls(1, [])
        at = np.unique(np.arange(1, parts) * rows // parts)
        cuts = take(words, at)
        cuts = take(cuts, group_starts(cuts))
        found = cls(len(cuts[0]) + 1, cuts)
        table = _tabulate(words, parts)
        if table is None:
            return found
        largest, other = (int(np.bincount(one.ids(words)).max()) for one in (table, found))
        return table if largest <= SKEW * max(other, rows / parts) else found

    def ids(self, words: Words) -> NDArray[Any]:
        """The partition of each row, as uint32."""
        if self.table is not None:
            word, low = words[0], np.uint64(self.low)
            bins = np.maximum(word, low)
            bins -= low
            bins >>= np.uint64(self.shift)
            np.minimum(bins, np.uint64(BINS - 1), out=bins)
            # As signed numbers, and clipped, which none is: they would be copied otherwise.
            found: NDArray[Any] = self.table.take(bins.view(np.int64), mode="clip")
            return found
        if self.count == 1:
            return np.zeros(len(words[0]), dtype=np.uint32)
        return search(self.cuts, words, right=True).astype(np.uint32)


def _heavy_keys(words: Words, share: float) -> Words:
    """The keys that more than a share of the sorted rows have."""
    starts = group_starts(words)
    lengths = np.diff(starts, append=len(words[0]))
    return take(words, starts[lengths > share * len(words[0])])


def _after(words: Words) -> Words:
    """The next larger key of each."""
    found, carry = [], np.ones(len(words[0]), dtype=bool)
    for word in reversed(words):
        found.append(word + carry.astype(np.uint64))
        carry &= found[-1] == 0
    # Nothing comes after the largest key: it stands for itself.
    return [np.where(carry, word, new) for word, new in zip(words, reversed(found))]


def _tabulate(words: Words, parts: int) -> Splits | None:
    """The table, from a sorted sample; None when the first word tells nothing."""
    first = words[0]
    low, span = int(first[0]), int(first[-1] - first[0])
    if not span:
        return None
    shift = max(span.bit_length() - (BINS.bit_length() - 1), 0)
    counts = np.bincount(((first - np.uint64(low)) >> np.uint64(shift)).astype(np.int64), minlength=BINS)
    before = np.cumsum(counts) - counts
    parts_of_bins = np.minimum((before + counts // 2) * parts // len(first), parts - 1)  # no rows after the last one
    _, ids = np.unique(parts_of_bins, return_inverse=True)
    table = ids.astype(np.uint32)
    return Splits(int(table[-1]) + 1, [], low, shift, table)
