"""What every operation by key begins with: the key is found, a sample is read, and the work is cut."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.arguments import require_integer
from tdmap.data.entries import with_room
from tdmap.data.kinds import Data, is_dense, stored_entry, tensors_of
from tdmap.data.objects import text_column
from tdmap.data.reader import narrow, rows_of, select
from tdmap.data.sizes import row_bytes_of
from tdmap.keys.codec import KeyCodec
from tdmap.keys.keys import KeyReader, KeySpec, sample_rows
from tdmap.keys.order import Words, group_starts, stable_order
from tdmap.keys.ranks import ranks_of
from tdmap.keys.splits import Splits
from tdmap.memory.mapped import READ_AHEAD, check_mapped_files, will_need
from tdmap.memory.shm import anonymous_tensor
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import Key
from tdmap.run.context import Context
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.ragged import is_ragged

CHUNK_ROWS = 1 << 18
"""Rows of a chunk: sorting so many stays in the second-level cache."""

LARGE_CHUNK_ROWS = 1 << 20
"""Of a dataset with so many rows that its runs would be cut into small pieces."""

CHUNK_BYTES = 32 << 20
"""Bytes of a chunk, at most."""

MANY_PARTITIONS = 256
"""From here on partitions grow,"""

LARGE_PARTITION_BYTES = 64 << 20
"""up to so many bytes."""

SAMPLE_RUNS, SAMPLE_RUN = 256, 64
"""Rows that are sampled: so many runs of so many."""

PART_ROWS = 1 << 16
"""Rows of a chunk that are sorted to find how many keys it has."""

SAMPLE_BYTES = 32 << 20
"""And the bytes of them, at most, where a function needs whole rows."""


def plan_rows(length: int, row_bytes: int, chunksize: int | None = None) -> ChunkPlan:
    """Large chunks, of bounded bytes; a function of the data alone.

    Raises:
        ValueError: `chunksize` is out of range.
    """
    if chunksize is not None:
        require_integer("chunksize", chunksize, 1)
        return ChunkPlan(length, chunksize)
    most = LARGE_CHUNK_ROWS if length >= 64 * LARGE_CHUNK_ROWS else CHUNK_ROWS
    spread = max(-(-length // 16), 1024)
    return ChunkPlan(length, max(min(most, spread, CHUNK_BYTES // max(row_bytes, 1)), 1))


def count_partitions(ctx: Context, nbytes: int, at_least: int = 1) -> int:
    """How many partitions for so many bytes."""
    parts = -(-nbytes // ctx.tuning.partition_bytes)
    if parts > MANY_PARTITIONS:
        parts = max(-(-nbytes // LARGE_PARTITION_BYTES), MANY_PARTITIONS)
    return max(parts, at_least, 1)


def expected_groups(groups: int, seen: int, rows: float) -> float:
    """Distinct keys of so many rows, when `seen` of them have `groups`, if all keys are equally frequent.

    That is k (1 - exp(-rows / k)) for k keys, of which k follows from the rows that were seen.
    An estimate: what is done for many keys, or for few, is right for any.

    Example:
        >>> expected_groups(10, 1000, 4000), expected_groups(1000, 1000, 4000), round(expected_groups(632, 1000, 4000))
        (10.0, 4000, 981)
    """
    if groups >= seen or rows <= seen:
        return rows if groups >= seen else float(groups)
    low, high = float(groups), float(groups) * max(seen, 2) ** 2
    for _ in range(64):
        keys = math.sqrt(low * high)
        low, high = (keys, high) if keys * -math.expm1(-seen / keys) < groups else (low, keys)
    return high * -math.expm1(-rows / high)


@dataclass(frozen=True)
class KeyedData:
    """A dataset whose keys can be read."""

    data: Data
    reader: KeyReader
    sample: Words
    """Of evenly spread rows; those with a NaN that is to be left out are not among them."""
    labels: tuple[Ragged | None, ...]
    """For each column of strings, the strings that the numbers of the column stand for."""
    names: tuple[Key, ...]
    """What the columns are called in a result."""

    @property
    def codec(self) -> KeyCodec:
        """How keys are encoded."""
        return self.reader.codec

    def splits(self, parts: int, alone: float = 1.0) -> Splits:
        """At most `parts` ranges of keys with about as many rows each; see `Splits.of_sample`."""
        return Splits.of_sample(self.sample, parts, alone)

    def unseen_share(self) -> float:
        """The chance that a row has a key that is not in the sample (Good and Turing: the share of keys seen once)."""
        rows = len(self.sample[0])
        if not rows:
            return 0.0
        starts = group_starts(stable_order(self.sample)[1])
        return float((np.diff(starts, append=rows) == 1).sum()) / rows

    def distinct_share(self, plan: ChunkPlan) -> tuple[float, int]:
        """The share and the number of distinct keys in a chunk from the middle, as far as a part of it tells."""
        begin, end = plan.rows(plan.num_chunks // 2)
        part = min(end, begin + (SAMPLE_RUNS * SAMPLE_RUN if self.reader.spec.fn is not None else PART_ROWS))
        words = self._words(narrow(self.data, 0, begin, part), begin)
        seen = len(words[0])
        if not seen:
            return 0.0, 0
        groups = len(group_starts(stable_order(words)[1]))
        rows = seen * (end - begin) / (part - begin)
        found = expected_groups(groups, seen, rows)
        return found / rows, math.ceil(found)

    def resampled(self) -> KeyedData:
        """The same with a sample of evenly spread rows."""
        data, spec = self.data, self.reader.spec
        length = int(data.shape[0])
        if spec.fn is None:
            data, runs = select(data, spec.names), SAMPLE_RUNS
        else:
            affordable = SAMPLE_BYTES // max(row_bytes_of(data, length), 1)
            runs = max(min(SAMPLE_RUNS, affordable // SAMPLE_RUN), 2)
        rows = sample_rows(length, runs, SAMPLE_RUN)
        for tensor in tensors_of(data):
            if tensor.nbytes > runs * READ_AHEAD:
                will_need(tensor, ((first, first + SAMPLE_RUN) for first in rows[::SAMPLE_RUN].tolist()))
        return replace(self, sample=self._words(data[rows], 0))

    def _words(self, rows: Data, start: int) -> Words:
        """The words of a sample; the worker that meets a NaN reports it."""
        quiet = replace(self.reader, dropna=True if self.reader.dropna is None else self.reader.dropna)
        return quiet.read(_own(rows, self.reader.spec), start)[0]


def prepare(
    ctx: Context,
    data: Data,
    spec: KeySpec,
    what: str,
    *,
    dropna: bool | None = None,
    descending: tuple[bool, ...] = (),
) -> KeyedData:
    """Find the key of a dataset, encode strings, and read a sample.

    Raises:
        KeyError, TypeError, ValueError: there is no such key, or it cannot be one.
    """
    spec.require(data, what)
    check_mapped_files(tensors_of(data))  # a sample of them is read here
    names = spec.names
    first = _first_key(data, spec)
    labels: tuple[Ragged | None, ...] = (None,) * len(first)
    none: tuple[int | None, ...] = ()
    if any(isinstance(value, list) for value in first):
        data, spec, labels = _number_strings(ctx, data, spec)
        first = _first_key(data, spec)
        none = tuple(len(label) - 1 if label is not None and label.has_none else None for label in labels)
    reader = KeyReader(spec, spec.codec(first, descending, none), dropna, what, none)
    return KeyedData(data, reader, [], labels, names).resampled()


def _first_key(data: Data, spec: KeySpec) -> list[Any]:
    """The key of the first row, if there is one."""
    return spec.values(_own(narrow(data, 0, 0, min(int(data.shape[0]), 1)), spec))


def _own(rows: Data, spec: KeySpec) -> Data:
    """Rows that are read in the caller: a key function gets a copy, which it may write into."""
    return rows if spec.fn is None else rows.clone()


# -- strings -----------------------------------------------------------------------------------------

NUMBERED = "__key_{}__"
"""Entry that stands for a column of strings."""


def _has_ranks(entry: object) -> bool:
    """Whether rows of an entry can be ranked where they lie: strings or bytes."""
    return is_ragged(entry) and entry.kind in ("str", "bytes")


def _ranked(data: Data, spec: KeySpec, entries: list[Any]) -> tuple[Data, KeySpec, tuple[Ragged | None, ...]]:
    """The dataset with a number for each row of each ragged column, in the order of its text; no string is made."""
    wider = with_room(data)
    names: list[Key] = []
    labels: list[Ragged | None] = []
    for index, (name, entry) in enumerate(zip(spec.names, entries)):
        if isinstance(entry, Tensor):
            names.append(name)
            labels.append(None)
            continue
        column = anonymous_tensor(8 * len(entry)).view(torch.int64)
        column.copy_(ranks_of([entry])[0])
        labels.append(_of_ranks(entry, column))
        names.append(NUMBERED.format(index))
        wider.set(NUMBERED.format(index), column)
    return wider, KeySpec(tuple(names)), tuple(labels)


def _of_ranks(entry: Ragged, ranks: Tensor) -> Ragged:
    """The row of each rank, in their order."""
    numbers = ranks.numpy()
    rows = np.empty(int(numbers.max(initial=-1)) + 1, dtype=np.int64)
    for first in range(0, len(numbers), PART_ROWS):  # what is counted stays in the cache
        some = numbers[first : first + PART_ROWS]
        rows[some] = np.arange(first, first + len(some))
    found: Ragged = entry[torch.from_numpy(rows)]
    return found


def _numbered_rows(entry: Ragged) -> tuple[list[Any], Tensor]:
    (ranks,) = ranks_of([entry])
    return _of_ranks(entry, ranks).tolist(), torch.from_numpy(ranks.numpy().astype(np.int32))


class NumberChunk:
    """What a worker calls: the distinct strings of a chunk, and which of them each row has."""

    takes_start = True

    def __init__(self, spec: KeySpec) -> None:
        self.spec = spec

    def __call__(self, chunk: Data, start: int = 0) -> list[tuple[list[Any], Tensor] | Tensor]:
        columns = [stored_entry(chunk, name) for name in self.spec.names] if self.spec.fn is None else []
        if columns and all(isinstance(column, Tensor) or _has_ranks(column) for column in columns):
            return [column if isinstance(column, Tensor) else _numbered_rows(column) for column in columns]
        return [_numbered(value) if isinstance(value, list) else value for value in self.spec.values(chunk)]


def _texts(strings: list[Any]) -> Ragged:
    """Strings and None, or bytes, as a column; strings of a subclass of `str` become plain ones."""
    if strings and isinstance(strings[0], bytes):
        found: Ragged = Ragged.from_list(strings)
        return found
    return text_column([one if one is None else str.__str__(one) for one in strings])


def _numbered(values: list[Any]) -> tuple[list[Any], Tensor]:
    numbers: defaultdict[Any, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new string gets the next number, without a step of the interpreter
    rows = np.fromiter(map(numbers.__getitem__, values), np.int32, len(values))
    return list(numbers), torch.from_numpy(rows)


def _number_strings(ctx: Context, data: Data, spec: KeySpec) -> tuple[Data, KeySpec, tuple[Ragged | None, ...]]:
    """The dataset with an int64 column for each column of strings: their numbers in sorted order, that of None last."""
    length = int(data.shape[0])
    entries = [stored_entry(data, name) for name in spec.names] if spec.fn is None and is_dense(data) else []
    if entries and all(isinstance(entry, Tensor) or _has_ranks(entry) for entry in entries):
        return _ranked(data, spec, entries)
    plan = plan_rows(length, row_bytes_of(data, length))
    source = data if spec.fn is not None else select(data, spec.names)
    # Strings of an entry are objects of this process: to send them all to others costs far more than to number them.
    theirs = spec.fn is not None or not rows_of(data).in_memory
    where = ctx if theirs and plan.num_chunks > 1 else ctx.light(0)
    chunks = where.step(source, plan, NumberChunk(spec)) if length else [NumberChunk(spec)(source)]
    added: dict[str, Tensor] = {}
    names: list[Key] = []
    labels: list[Ragged | None] = []
    for index, parts in enumerate(zip(*chunks)):
        name = NUMBERED.format(index)
        if isinstance(parts[0], Tensor):
            labels.append(None)
            names.append(name if spec.fn is not None else spec.names[index])
            if spec.fn is not None:
                added[name] = torch.cat(parts)
            continue
        distinct = {value for strings, _ in parts for value in strings}
        known = [*sorted(distinct - {None}), *({None} & distinct)]
        numbers = {value: number for number, value in enumerate(known)}
        column = anonymous_tensor(8 * length).view(torch.int64)
        at = 0
        for strings, rows in parts:
            table = np.array([numbers[value] for value in strings], dtype=np.int64)
            column[at : at + len(rows)] = torch.from_numpy(table[rows.numpy()])
            at += len(rows)
        added[name] = column
        names.append(name)
        labels.append(_texts(known))
    if isinstance(data, Tensor):
        raise TypeError("a plain tensor cannot be grouped by strings: make it an entry of a TensorDict.")
    return rows_of(data).with_columns(TensorDict(added, [length])), KeySpec(tuple(names)), tuple(labels)
