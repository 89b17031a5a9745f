"""Strings and bytes as numbers in the same order, without a Python object a row.

Rows are compared eight bytes at a time, as big-endian words; only rows that are equal so far are looked at further.
UTF-8 has the order of code points, so strings are in the order that Python gives them. Short rows that have few values
are looked up in a table of these values instead (`tdmap.keys.slots`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.keys.order import Words, joined, search
from tdmap.keys.slots import EARLY, KeyTable, distinct
from tdmap.memory.rowfiles import Blocks
from tensordict_lite import Ragged

WORD = 8
"""Bytes that are compared at a time."""

ROWS = 1 << 20
"""Rows whose words are read at a time."""

SHORT, FEW_ROWS = 8, 1 << 16
"""Words of rows that are looked up whole, and rows that are looked up at a time, which stay in the cache."""

TIED = 16
"""Words in which rows are equal before the rest of them is compared as a whole: documents that are there twice."""

WHOLE_BYTES = 64 << 20
"""Bytes of such rows that may be in memory at a time; more of them are compared word by word."""


class TextRows(NamedTuple):
    """Rows of a ragged entry, which lie anywhere in flat values: row i is `values[starts[i] : ends[i]]`."""

    values: Tensor
    starts: Tensor
    ends: Tensor


def _rows_of(entry: Ragged) -> TextRows:
    column = entry.column
    assert column is not None
    return TextRows(column.values, *entry.spans())


def ranks_of(entries: Sequence[Ragged], whole_bytes: int = WHOLE_BYTES) -> list[Tensor]:
    """A number for each row of each entry: equal rows have equal numbers, larger ones larger numbers.

    Args:
        entries: of strings, or all of bytes.
        whole_bytes: see `WHOLE_BYTES`.

    Returns:
        int64 `[n]` for each entry, from 0 without gaps over all of them.

    Raises:
        TypeError: rows are neither strings nor bytes, or not of one kind.

    Example:
        >>> words = [Ragged.from_list(["bee", "ant", "bee"]), Ragged.from_list(["", "cat"])]
        >>> ranks_of(words)
        [tensor([2, 1, 2]), tensor([0, 3])]
    """
    kinds = [entry.kind for entry in entries]
    if "tensor" in kinds or len(set(kinds)) > 1:
        raise TypeError(f"keys are strings, or bytes, on all sides: got {kinds}.")
    columns = list(map(_rows_of, entries))
    lengths = np.concatenate([(column.ends - column.starts).numpy() for column in columns])
    few = _ranks_of_few(columns, lengths)
    if few is not None:
        return list(torch.from_numpy(few).split([len(column.starts) for column in columns]))
    ranks = np.zeros(len(lengths), np.int64)
    rows = np.arange(len(lengths))  # rows that are not yet told apart from all others
    depth = 0
    while len(rows):
        words = np.concatenate(list(_words(columns, rows, depth)))
        left = np.minimum(np.maximum(lengths[rows] - depth * WORD, 0), WORD + 1)  # "a" comes before "a\0"
        order = np.lexsort((left, words, ranks[rows]))
        rows, words, left = rows[order], words[order], left[order]
        old = ranks[rows]
        new = np.ones(len(rows), bool)
        new[1:] = (old[1:] != old[:-1]) | (words[1:] != words[:-1]) | (left[1:] != left[:-1])
        starts = np.flatnonzero(new)
        sizes = np.diff(np.append(starts, len(rows)))
        # A group that was one has the number of its first place, so that numbers of others stay as they are.
        first_of_old = np.maximum.accumulate(np.where(np.append(True, old[1:] != old[:-1]), np.arange(len(rows)), 0))
        ranks[rows] = old + np.repeat(starts, sizes) - first_of_old
        rows = rows[np.repeat(sizes > 1, sizes) & (left > WORD)]
        rows.sort()
        depth += 1
        if depth == TIED:
            rows = _rank_whole(columns, lengths, ranks, rows, depth, whole_bytes)
    dense = _without_gaps(ranks)
    ends = np.cumsum([len(column.starts) for column in columns])[:-1]
    return [torch.from_numpy(part.copy()) for part in np.split(dense, ends)]


def _without_gaps(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    used = np.zeros(len(ranks) + 1, np.int64)
    used[ranks + 1] = 1
    return np.cumsum(used)[ranks + 1] - 1


def _rank_whole(
    columns: Sequence[TextRows],
    lengths: NDArray[np.int64],
    ranks: NDArray[np.int64],
    rows: NDArray[np.int64],
    depth: int,
    whole_bytes: int,
) -> NDArray[np.int64]:
    """Tell rows apart by their remaining bytes, one group of equal prefixes at a time.

    Returns:
        The rows of groups that are too large for memory, ascending.
    """
    grouped = rows[np.argsort(ranks[rows], kind="stable")]
    large = [rows[:0]]
    for group in np.split(grouped, np.flatnonzero(np.diff(ranks[grouped])) + 1):
        if (lengths[group] - depth * WORD).sum() > whole_bytes:
            large.append(group)
            continue
        texts = [_rest(columns, row, depth) for row in group.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        first = 0
        for place, number in enumerate(order):
            if texts[number] != texts[order[first]]:
                first = place
            ranks[group[number]] += first
    return np.sort(np.concatenate(large))


def _rest(columns: Sequence[TextRows], row: int, depth: int) -> bytes:
    """The bytes of a row behind the first `depth` words; rows are counted over all columns."""
    for column in columns:
        if row < len(column.starts):
            return column.values[int(column.starts[row]) + depth * WORD : int(column.ends[row])].numpy().tobytes()
        row -= len(column.starts)
    raise IndexError(row)


def _ranks_of_few(columns: Sequence[TextRows], lengths: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The ranks of short rows that have few values, found without sorting rows; None for other rows."""
    depths = range(-(-int(lengths.max(initial=0)) // WORD))
    if len(depths) > SHORT:
        return None
    table, room = KeyTable(), Blocks()
    parts: list[tuple[Words, NDArray[np.int16]]] = []
    for column in columns:
        for some in zip(column.starts.split(FEW_ROWS), column.ends.split(FEW_ROWS)):
            starts, ends = (one.numpy() for one in some)
            words = [_word(column.values, starts + WORD * depth, ends) for depth in depths]
            words.append((ends - starts).view(np.uint64))
            slots = table.hashed(words, room)
            for rows in (EARLY, FEW_ROWS):
                if slots is None:
                    known = joined([table.keys or [word[:0] for word in words], [word[:rows] for word in words]])
                    table = KeyTable.of_sample(distinct(known))
                    slots = table.hashed(words, room)
            if slots is None:
                return None
            parts.append((table.keys, slots.numbers.astype(np.int16)))  # there are at most 1024
    ranks = [numbers if keys is table.keys else search(table.keys, keys)[numbers] for keys, numbers in parts]
    return np.concatenate(ranks, dtype=np.int64) if ranks else np.zeros(0, np.int64)


def _words(columns: Sequence[TextRows], rows: NDArray[np.int64], depth: int) -> Iterator[NDArray[np.uint64]]:
    """The word number `depth` of some rows, zeros behind their end; rows ascend over all columns."""
    first = 0
    for column in columns:
        low, high = np.searchsorted(rows, [first, first + len(column.starts)])
        for start in range(low, high, ROWS):
            some = rows[start : min(start + ROWS, high)] - first
            yield _word(column.values, column.starts.numpy()[some] + depth * WORD, column.ends.numpy()[some])
        first += len(column.starts)
    yield np.zeros(0, np.uint64)


def _word(values: Tensor, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first eight bytes of spans as big-endian words, zeros behind their end; a span may start behind its end."""
    data = values.numpy()
    if len(data) < WORD:
        data = np.append(data, np.zeros(WORD, np.uint8))
    windows = np.ndarray(len(data) - WORD + 1, np.dtype("<u8"), data, strides=(1,))  # one begins at each byte
    places = np.minimum(starts, len(windows) - 1)
    words: NDArray[np.uint64] = windows[places].astype(np.uint64, copy=False)
    if sys.byteorder == "little":
        words.byteswap(inplace=True)
    words <<= ((starts - places) * 8).view(np.uint64)
    empty = np.maximum(WORD - (ends - starts), 0)
    words &= np.uint64((1 << 64) - 1) << (np.minimum(empty, WORD) * 8).view(np.uint64)
    return words
