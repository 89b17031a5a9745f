"""Sorting keys that are words: unsigned 64-bit numbers, most significant word first.

`numpy.sort` of plain integers is several times as fast as `numpy.argsort`. So an order is found by sorting numbers
that hold the key in their upper bits and the number of the row in the lower ones. Equal keys then stay in the order of
their rows, for nothing. A key that does not fit beside a row number is sorted digit by digit, least significant first
(Knuth, vol. 3, 5.2.5); but first its most significant digit alone, which is enough as long as no two keys share it.

Keys that differ in their lowest 16 bits alone are sorted faster by counting: `numpy.argsort` of 16-bit numbers is a
radix sort. How many such passes are still faster than `numpy.sort` depends on the machine: one or two where that is
vectorised well, four on an AMD Zen 4, whose AVX-512 has a slow instruction that it needs.
"""

from __future__ import annotations

import functools
import timeit
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tdmap.data.columns import Order

Words: TypeAlias = list[NDArray[np.uint64]]
"""Keys of rows: one array a word, most significant first."""

DIGIT = 16
"""Bits that a pass of a radix sort takes."""

FEW = 4096
"""Fewer rows are sorted as fast by `numpy.sort`."""


def stable_order(words: Words) -> tuple[Order, Words]:
    """The order that sorts rows by their words, and the sorted words; rows with equal words stay in order.

    Example:
        >>> order, (sorted_words,) = stable_order([np.array([7, 3, 7, 0], dtype=np.uint64)])
        >>> order.tolist(), sorted_words.tolist()
        ([3, 1, 0, 2], [0, 3, 7, 7])
    """
    rows = len(words[0])
    if is_sorted(words):
        return np.arange(rows), words
    bits = (rows - 1).bit_length()
    if len(words) == 1:
        word = words[0]
        low = word.min()
        key_bits = int(word.max() - low).bit_length()
        if key_bits + bits <= 64:
            return _sort_whole(word, low, key_bits, bits)
        order = _sorted_rows((word - low) >> np.uint64(key_bits + bits - 64), bits)
        ordered = [word[order]]
        if is_sorted(ordered):
            return order, ordered
    order = _by_digits(words, bits)
    return order, [word[order] for word in words]


def sorted_words(words: Words) -> Words:
    """The sorted words of rows, without their order: rows of few first words are sorted within each of them.

    Example:
        >>> [word.tolist() for word in sorted_words([np.uint64([1, 0, 1]), np.uint64([9, 3, 7])])]
        [[0, 1, 1], [3, 7, 9]]
    """
    rows = len(words[0])
    if len(words) == 1 or is_sorted(words):
        return words if len(words) > 1 else [np.sort(words[0])]
    low = words[0].min()
    span = int(words[0].max() - low) + 1
    if len(words) > 2 or span > min(1 << DIGIT, rows // 64):
        return stable_order(words)[1]
    order = order_of_numbers(words[0] - low, span)
    first, second = (word[order] for word in words)
    ends = [*group_starts([first]).tolist(), rows]
    for begin, end in zip(ends, ends[1:]):
        second[begin:end].sort()
    return [first, second]


def _sort_whole(word: NDArray[np.uint64], low: np.uint64, key_bits: int, bits: int) -> tuple[Order, Words]:
    """Key and row number in one integer, so that the sorted keys come out of it too."""
    if key_bits <= DIGIT and len(word) >= FEW:
        order = order_of_numbers(word - low, 1 << key_bits)
        return order, [word[order]]
    if key_bits + bits <= 32:
        small = (word - low).astype(np.uint32)
        small <<= np.uint32(bits)
        small |= np.arange(len(word), dtype=np.uint32)
        small.sort()
        keys = (small >> np.uint32(bits)).astype(np.uint64)
        small &= np.uint32((1 << bits) - 1)
        keys += low
        return small, [keys]
    packed = word - low
    packed <<= np.uint64(bits)
    packed |= np.arange(len(word), dtype=np.uint64)
    packed = sort_numbered(packed, bits)
    keys = packed >> np.uint64(bits)
    keys += low
    packed &= np.uint64((1 << bits) - 1)
    return packed.astype(np.uint32 if bits <= 32 else np.int64), [keys]


def sort_numbered(numbers: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """Sort numbers that hold a key above their lowest `bits` bits. These bits ascend already where keys are equal.

    Returns:
        The same array, sorted, or a new one.

    Example:
        >>> sort_numbered(np.array([0x20, 0x11, 0x22], dtype=np.uint64), 4).tolist() == [0x11, 0x20, 0x22]
        True
    """
    if len(numbers) >= FEW:
        shift = np.uint64(bits)
        low = numbers.min() >> shift
        passes = -(-int((numbers.max() >> shift) - low).bit_length() // DIGIT)
        if passes <= 1 or passes <= _fast_passes():
            for number in range(passes):
                key = numbers >> shift
                key -= low
                key >>= np.uint64(number * DIGIT)
                digit = key.astype(np.uint16)  # the digits above are cut off
                numbers = numbers[order_of_numbers(digit, 1 << DIGIT)]
            return numbers
    numbers.sort()
    return numbers


@functools.cache
def _fast_passes() -> int:
    """Passes of a radix sort that are faster than `numpy.sort` on this machine."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 1 << 14, dtype=np.uint64)

    def radix_pass() -> None:
        numbers[order_of_numbers(numbers.astype(np.uint16), 1 << DIGIT)]

    seconds = [min(timeit.repeat(fn, number=1, repeat=3)) for fn in (lambda: np.sort(numbers), radix_pass)]
    return int(seconds[0] / seconds[1])


def _sorted_rows(digit: NDArray[np.uint64], bits: int) -> Order:
    """Row numbers in the order of a digit that leaves `bits` bits free. The digit is overwritten."""
    digit <<= np.uint64(bits)
    digit |= np.arange(len(digit), dtype=np.uint64)
    digit = sort_numbered(digit, bits)
    digit &= np.uint64((1 << bits) - 1)
    return digit.astype(np.uint32 if bits <= 32 else np.int64)


def _by_digits(words: Words, bits: int) -> Order:
    room = 64 - bits
    order: Order | None = None
    for word in reversed(words):
        low = word.min()
        span = int(word.max() - low).bit_length()
        for shift in range(0, span, room):
            digit = word if order is None else word[order]
            digit = ((digit - low) >> np.uint64(shift)) & np.uint64((1 << room) - 1)
            step = _sorted_rows(digit, bits)
            order = step if order is None else order[step]
    return np.arange(len(words[0])) if order is None else order


def order_of_numbers(numbers: NDArray[Any], count: int) -> Order:
    """The order that sorts rows by small numbers, all of them less than `count`; equal ones stay in order.

    Example:
        >>> order_of_numbers(np.array([2, 0, 2, 1]), 3).tolist()
        [1, 3, 0, 2]
    """
    if count > 1 << DIGIT:
        return stable_order([numbers.astype(np.uint64)])[0]
    small = numbers.astype(np.uint16 if count > 1 << 8 else np.uint8, copy=False)
    return np.argsort(small, kind="stable")  # of so few bits it is a radix sort


def is_sorted(words: Words) -> bool:
    """Whether rows are in the order of their words already."""
    if len(words) == 1:
        return not bool((words[0][1:] < words[0][:-1]).any())
    less: NDArray[np.bool_] | bool = False
    for word in reversed(words):  # what later words say counts where this one is equal
        less = (word[1:] < word[:-1]) | ((word[1:] == word[:-1]) & less)
    return not bool(np.any(less))


def group_starts(words: Words) -> NDArray[np.int64]:
    """The first row of each run of equal words.

    Example:
        >>> group_starts([np.array([2, 2, 5], dtype=np.uint64)]).tolist()
        [0, 2]
    """
    rows = len(words[0])
    if not rows:
        return np.empty(0, dtype=np.int64)
    new = words[0][1:] != words[0][:-1]
    for word in words[1:]:
        new |= word[1:] != word[:-1]
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(new) + 1])


def take(words: Words, rows: NDArray[np.int64]) -> Words:
    """Some rows of words."""
    return [word[rows] for word in words]


def search(table: Words, words: Words, right: bool = False) -> NDArray[np.int64]:
    """Where `words` would be inserted into the sorted `table`: before equal ones, or after them.

    Example:
        >>> table = [np.array([1, 1, 4], dtype=np.uint64)]
        >>> search(table, [np.array([1, 9], dtype=np.uint64)], right=True).tolist()
        [2, 3]
    """
    if len(table) == 1:
        return np.searchsorted(table[0], words[0], side="right" if right else "left").astype(np.int64)
    low = np.zeros(len(words[0]), dtype=np.int64)
    high = np.full(len(words[0]), len(table[0]), dtype=np.int64)
    for _ in range(len(table[0]).bit_length()):
        open_ = low < high
        middle = np.minimum((low + high) // 2, max(len(table[0]) - 1, 0))
        before = _is_before(take(table, middle), words, right)
        low = np.where(open_ & before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
    return low


def _is_before(a: Words, b: Words, or_equal: bool) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] | bool = or_equal
    for one, other in zip(reversed(a), reversed(b)):
        result = (one < other) | ((one == other) & result)
    return np.asarray(result, dtype=bool)


def equal(a: Words, b: Words) -> NDArray[np.bool_]:
    """Where the rows of `a` and `b` have the same words."""
    same: NDArray[np.bool_] = a[0] == b[0]
    for one, other in zip(a[1:], b[1:]):
        same &= one == other
    return same


def joined(parts: Sequence[Words]) -> Words:
    """Words of several blocks of rows as one."""
    if len(parts) == 1:
        return list(parts[0])
    return [np.concatenate(columns) for columns in zip(*parts)]
