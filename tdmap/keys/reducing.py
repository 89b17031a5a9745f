"""What workers do for `group_by(...).reduce(...)`: cut chunks into runs, and reduce partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.columns import Shape, columns_of, gather, reordered, with_columns
from tdmap.data.entries import path_of
from tdmap.data.kinds import Data, is_data
from tdmap.data.reader import narrow, select
from tdmap.keys.aggregates import Grouped, Starts, States, join_states, pick
from tdmap.keys.codec import KeyCodec
from tdmap.keys.keys import KeyReader
from tdmap.keys.order import Words, equal, group_starts, joined, search, stable_order, take
from tdmap.keys.slots import KeyTable, Slots, Slotted
from tdmap.keys.spilling import RUNS, Kept, Partitions, Run, keep, write_run
from tdmap.keys.splits import Splits
from tdmap.memory.rowfiles import Blocks
from tdmap.memory.spill import Spill
from tdmap.output.output import Step
from tdmap.reducers.base import Key
from tensordict_lite import TensorDict
from tensordict_lite.ops.arrow_types import name_type

PARTITION_SLOTS = 1 << 18
"""Keys of a partition that lie within so many numbers are counted, not sorted: sums of them fit into the cache."""


class CutChunk(Step):
    """What a worker calls with each chunk.

    Args:
        reader: finds the keys.
        spill: where the run goes.
        splits: the ranges of keys.
        payload: entries that are kept of a row; None for all.
        by_number: rows are their numbers in the dataset, an int64 tensor.

    Attributes:
        forms: reduce the chunk to states, one row a key; None keeps the rows themselves.
        table: finds the states of few keys without sorting.
        most: states of so few keys go to the driver, without a file.
    """

    value_codec = RUNS

    def __init__(
        self,
        reader: KeyReader,
        spill: Spill,
        splits: Splits,
        payload: Sequence[Key] | None,
        by_number: bool,
    ) -> None:
        super().__init__("group_by")
        self.reader = reader
        self.spill = spill
        self.splits = splits
        self.payload = payload
        self.by_number = by_number
        self.forms: Mapping[str, Grouped] | None = None
        self.table: KeyTable | None = None
        self.most = 0
        self.room = Blocks()

    def __call__(self, chunk: Data, start: int = 0) -> Run | Kept | None:
        values = self.reader.values(chunk, start)
        if self.forms is not None and self.table is not None and len(values[0]):
            integers = self.reader.integers(values)
            slots = None if integers is None else self.table.dense(*integers, self.room)
            if slots is not None:  # without words of all rows
                states = self._states_of(self._rows(chunk, start), slots)
                return self._left(slots.words, states)
        words, kept = self.reader.encode(values, start)
        if not len(words[0]):
            return None
        rows = self._rows(chunk, start)
        if kept is not None:
            rows = gather(rows, kept)
        if self.forms is None:
            return write_run(self.spill, self.splits, words, columns_of(rows))
        slots = None if self.table is None else self._slots(words, self.table)
        if slots is not None:
            return self._left(slots.words, self._states_of(rows, slots))
        order, words = stable_order(words)
        starts = group_starts(words)
        return self._left(take(words, starts), update_all(self.forms, gather(rows, order), starts))

    def _rows(self, chunk: Data, start: int) -> Data:
        if self.by_number:
            return torch.from_numpy(np.arange(start, start + len(chunk)))  # in one thread
        return select(chunk, self.payload)

    def _slots(self, words: Words, table: KeyTable) -> Slots | None:
        packed = len(words) == 1 and len(self.reader.codec.columns) > 1  # another one was tried as it is
        found = table.dense(words[0], 0, self.room) if packed else None
        return table.hashed(words, self.room) if found is None else found

    def _states_of(self, rows: Data, slots: Slots) -> list[States]:
        return states_by_slot(self.forms or {}, rows, slots, self.room)

    def _left(self, keys: Words, states: Sequence[States]) -> Run | Kept:
        columns = [column for state in states for column in state]
        if len(keys[0]) <= self.most:
            return keep(keys, columns)
        return write_run(self.spill, self.splits, keys, columns)


def states_by_slot(forms: Mapping[str, Grouped], rows: Data, slots: Slots, room: Blocks) -> list[States]:
    """The states of each reducer for the slots that are used."""
    chunk = Slotted(rows, slots, room)
    states = []
    for form in forms.values():
        state = form.update_slots(chunk)
        states.append(form.update(chunk.sorted_rows(), slots.starts) if state is None else state)
    return states


def update_all(forms: Mapping[str, Grouped], rows: Data, starts: Starts) -> list[States]:
    """The states of groups, for each reducer."""
    return [form.update(rows, starts) for form in forms.values()]


def one_row(rows: Data) -> Data:
    """The first row, to try reducers on before anything is sent; zeros where there is none."""
    if rows.shape[0]:
        return narrow(rows, 0, 0, 1)
    columns = [torch.zeros((1, *column.shape[1:]), dtype=column.dtype) for column in columns_of(rows)]
    return with_columns(rows, columns, 1)


def try_forms(forms: Mapping[str, Grouped], row: Data) -> list[States]:
    """The states of one row, for those reducers that work on many groups; others keep what they raise to workers."""
    return [form.update(row, np.zeros(1, dtype=np.int64)) for form in forms.values() if not form.objects]


def empty_answer(
    names: tuple[Key, ...], codec: KeyCodec, forms: Mapping[str, Grouped], row: Data, types: Mapping[Any, str]
) -> Data:
    """The answer for no groups at all, from that for one row."""
    states = update_all(forms, row, np.zeros(1, dtype=np.int64))
    words = [np.zeros(1, dtype=np.uint64) for _ in range(codec.num_words)]
    return narrow(answer_of(key_entries(names, codec, words), forms, states, 1, types), 0, 0, 0)


def types_of_answer(data: Data, names: Mapping[Key, Key], forms: Mapping[str, Grouped]) -> dict[Any, str]:
    """The types of Arrow's that key columns and answers keep, by their names.

    Args:
        data: the dataset.
        names: what its keys are called in the result, and there.
        forms: the reducers.
    """
    known = getattr(data, "arrow_types", {})
    found = {result: known.get(name) for result, name in names.items()}
    found |= {result: known.get(form.key) for result, form in forms.items() if form.keeps_type and form.key}
    return {name: kind for name, kind in found.items() if kind is not None}


def answer_of(
    keys: Mapping[Any, Tensor],
    forms: Mapping[str, Grouped],
    states: Sequence[States],
    groups: int,
    types: Mapping[Any, str],
) -> Data:
    """Key columns and answers as one collection, with these types of dates and times."""
    answer = TensorDict({}, [groups])
    for name, column in keys.items():
        answer.set(name, column)
    for (result, form), state in zip(forms.items(), states):
        found = form.finish(state)
        if not is_data(found) or not len(found.shape) or found.shape[0] != groups:
            raise ValueError(
                f"the reducer {result!r}: finish() must return one row a group ({groups}), as a tensor or a "
                f"collection: got {type(found).__name__} {list(getattr(found, 'shape', []))}."
            )
        answer.set(result, found)
    for name, kind in types.items():
        value = answer.get(name)
        parts = [path_of(name)] if isinstance(value, Tensor) else [(*path_of(name), key) for key in value.keys()]
        for path in parts:
            name_type(answer, path, kind)
    return answer


class ReducePartition:
    """What a worker calls with the number of a partition.

    Args:
        names: what key columns are called.
        codec: of the keys.
        partitions: the runs.
        forms: the reducers.
        example: no rows of the payload.
        widths: how many columns the states of each reducer have, when runs hold states instead of rows.
        batch_bytes: a partition is reduced in batches of so many bytes.
        types: of dates and times among the key columns and answers.
    """

    def __init__(
        self,
        names: tuple[Key, ...],
        codec: KeyCodec,
        partitions: Partitions,
        forms: Mapping[str, Grouped],
        example: Data,
        widths: list[int] | None,
        batch_bytes: int,
        types: Mapping[Any, str],
    ) -> None:
        self.__qualname__ = "group_by.reduce"
        self.types = types
        self.names = names
        self.codec = codec
        self.partitions = partitions
        self.forms = forms
        self.example = example
        self.widths = widths
        self.batch_bytes = batch_bytes
        self.room = Blocks()
        # Others ask how many rows of each group came before.
        self.by_slot = widths is None and all(type(f).update_after is Grouped.update_after for f in forms.values())

    def __call__(self, numbers: Tensor) -> Data | None:
        partition = int(numbers[0])
        found: tuple[Words, list[States]] | None = None
        seen = _Seen()
        for first, last in self.partitions.batches(partition, self.batch_bytes):
            batch = self._batch(partition, first, last, seen)
            found = batch if found is None else self._merge(found, batch)
        if found is None:
            return None
        words, states = found
        keys = key_entries(self.names, self.codec, words)
        return answer_of(keys, self.forms, states, len(words[0]), self.types)

    def _batch(self, partition: int, first: int, last: int, seen: _Seen) -> tuple[Words, list[States]]:
        words, columns = self.partitions.read(partition, first, last)
        if self.by_slot and len(words) == 1:
            slots = KeyTable.dense(words[0], 0, self.room, min(PARTITION_SLOTS, 2 * len(words[0])))
            if slots is not None:
                rows = with_columns(self.example, columns, len(words[0]))
                return slots.words, states_by_slot(self.forms, rows, slots, self.room)
        order, words = stable_order(words)
        starts = group_starts(words)
        columns = [reordered(column, order) for column in columns]
        keys = take(words, starts)
        if self.widths is not None:
            return keys, self._fold(states_of(columns, self.widths), starts)
        rows = with_columns(self.example, columns, len(order))
        before = seen.add(keys, np.diff(starts, append=len(order)))
        return keys, [form.update_after(rows, starts, before) for form in self.forms.values()]

    def _fold(self, states: list[States], starts: Starts) -> list[States]:
        return [form.fold(state, starts) for form, state in zip(self.forms.values(), states)]

    def _merge(self, a: tuple[Words, list[States]], b: tuple[Words, list[States]]) -> tuple[Words, list[States]]:
        order, words = stable_order(joined([a[0], b[0]]))
        starts = group_starts(words)
        order = order.astype(np.int64)
        states = [pick(join_states(pair), order) for pair in zip(a[1], b[1])]
        return take(words, starts), self._fold(states, starts)


def states_of(columns: Sequence[Tensor], widths: Sequence[int]) -> list[States]:
    """The states of each reducer from their columns, one after the other."""
    at = iter(columns)
    return [tuple(next(at) for _ in range(width)) for width in widths]


def fold_kept(
    kept: Sequence[Kept], num_words: int, shapes: Sequence[Shape], forms: Mapping[str, Grouped], widths: Sequence[int]
) -> tuple[Words, list[States]]:
    """The keys and states of all chunks from those of each, in the order of the chunks."""
    parts = [one.read(num_words, shapes) for one in kept]
    order, words = stable_order(joined([words for words, _ in parts]))
    starts = group_starts(words)
    columns = [reordered(torch.cat(column), order) for column in zip(*(columns for _, columns in parts))]
    states = [form.fold(state, starts) for form, state in zip(forms.values(), states_of(columns, widths))]
    return take(words, starts), states


class _Seen:
    """How many rows of each group came in batches so far."""

    def __init__(self) -> None:
        self.words: Words | None = None
        self.counts = np.zeros(0, dtype=np.int64)

    def add(self, words: Words, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count rows of groups, whose words are sorted and distinct; how many there were before."""
        before = np.zeros(len(counts), dtype=np.int64)
        if self.words is None:
            self.words, self.counts = words, counts
            return before
        at = np.minimum(search(self.words, words), len(self.counts) - 1)
        known = equal(take(self.words, at), words)
        before[known] = self.counts[at[known]]
        order, both = stable_order(joined([self.words, words]))
        starts = group_starts(both)
        self.words = take(both, starts)
        self.counts = np.add.reduceat(np.concatenate([self.counts, counts])[order], starts)
        return before


def key_entries(names: tuple[Key, ...], codec: KeyCodec, words: Words) -> dict[Any, Tensor]:
    """The key columns of a result."""
    return dict(zip(names, codec.decode(words))) if names else {}
