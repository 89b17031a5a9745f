"""What workers do for `group_by(...).map_groups(fn)`: call the function with each group of a partition."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.alike import not_alike
from tdmap.data.columns import Shape, reordered, split_rows
from tdmap.data.kinds import Data, concatenated, entries_of, is_data, is_dense, signed_view
from tdmap.data.objects import Forms, as_chunk, forms_of, with_ragged_rows
from tdmap.data.schema import Schema, take_apart
from tdmap.errors import add_note
from tdmap.functions import plain_rows
from tdmap.job import function_name
from tdmap.keys.codec import KeyCodec
from tdmap.keys.order import Words, group_starts, is_sorted, stable_order, take
from tdmap.keys.spilling import Partitions
from tdmap.memory.files import mapped_file
from tdmap.memory.residency import Residency
from tensordict_lite import Ragged

BLOCK_BYTES = 8 << 20
"""Results are handed on when they are so many bytes."""


class MapPartition:
    """What a worker calls with the number of a partition.

    Args:
        fn: the user's function; it may have a method `shown_keys`, of a group's rows and its keys as text, that gives
            the keys for messages.
        codec: of the keys, for messages.
        labels: the strings that numbers of key columns stand for.
        partitions: the runs.
        rows: no rows of the dataset; or the dataset, when runs hold the numbers of rows.
        whole: runs hold rows.
        heap_bytes: a partition of more bytes is put in order in a file, and mapped.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        codec: KeyCodec,
        labels: tuple[Ragged | None, ...],
        partitions: Partitions,
        rows: Data,
        whole: bool,
        heap_bytes: int,
    ) -> None:
        self.fn = fn
        self.codec = codec
        self.labels = labels
        self.partitions = partitions
        self.rows = rows
        self.whole = whole
        self.heap_bytes = heap_bytes
        self.__qualname__ = f"map_groups({function_name(fn)})"

    def __call__(self, numbers: Tensor) -> Iterator[Data]:
        partition = int(numbers[0])
        rows = int(self.partitions.rows[partition])
        if not rows:
            return
        if self.whole and rows * self.partitions.row_bytes > self.heap_bytes:
            keys, starts, columns = self._mapped(partition)
        else:
            words, columns = self.partitions.read(partition)
            order, words = stable_order(words)
            columns = [reordered(column, order) for column in columns]
            starts = group_starts(words)
            keys = take(words, starts)
            del words, order
        yield from self._results(columns, starts.tolist(), [*starts[1:].tolist(), rows], keys)

    def _results(self, columns: list[Tensor], starts: list[int], stops: list[int], keys: Words) -> Iterator[Data]:
        """Results of consecutive groups, several at a time."""
        waiting: list[Data] = []
        look: object = None
        schema: Schema | None = None
        forms: Forms | None = None
        nbytes = row_bytes = 0
        for group, rows in enumerate(self._groups(columns, starts, stops)):
            forms = forms_of(rows) if forms is None else forms
            try:
                result = plain_rows(self.fn(rows), rows, "group")
                if result is None:
                    continue
                if is_data(result) and not len(result.shape):
                    result = as_chunk(with_ragged_rows(result, forms), 0)
                if schema is None or _look_of(result) != look:
                    schema, look = _same_schema(schema, result), _look_of(result)
                    row_bytes = sum(schema.row_bytes)
            except Exception as error:
                count = stops[group] - starts[group]
                add_note(error, f"in the group of the key {self._key(keys, group, rows)} ({count} rows)")
                raise
            waiting.append(result)
            nbytes += row_bytes * int(result.shape[0])
            if nbytes > BLOCK_BYTES:
                yield concatenated(waiting)
                waiting, nbytes = [], 0
        if waiting:
            yield concatenated(waiting)

    def _groups(self, columns: list[Tensor], starts: list[int], stops: list[int]) -> Iterator[Data]:
        if not self.whole:
            for start, stop in zip(starts, stops):
                yield self.rows[columns[0][start:stop]].clone()  # of a lazy stack, these are the caller's members
            return
        yield from split_rows(self.rows, columns, [stop - start for start, stop in zip(starts, stops)])

    def _key(self, keys: Words, group: int, rows: Data) -> str:
        values = []
        for column, labels in zip(self.codec.decode([word[group : group + 1] for word in keys]), self.labels):
            value: Any = column.reshape(-1).tolist()
            value = value[0] if len(value) == 1 else bytes(value)
            values.append(repr(value if labels is None else labels[value].data))
        shown = getattr(self.fn, "shown_keys", None)  # of a table, whose words are numbers here
        return ", ".join(values if shown is None else shown(rows, values))

    def _mapped(self, partition: int) -> tuple[Words, NDArray[np.int64], list[Tensor]]:
        """Keys, first rows of groups, and columns of a partition in order, in private files.

        Words and places of rows are in memory, unless all rows have one key: then nothing is that grows with them.
        """
        batch_bytes = max(self.heap_bytes // 4, 1)
        count = int(self.partitions.rows[partition])
        place: NDArray[np.int64] | None = None
        keys = self.partitions.only_key(partition, batch_bytes)
        starts = np.zeros(1, dtype=np.int64)
        if keys is None:
            words = self.partitions.read_words(partition)
            if not is_sorted(words):
                order, words = stable_order(words)
                place = np.empty(count, dtype=np.int64)
                place[order] = np.arange(count)
                del order
            starts = group_starts(words)
            keys = take(words, starts)
            del words
        shapes = self.partitions.shapes[self.partitions.num_words :]
        spill = self.partitions.spill
        name = str(spill.folder / f"{spill.prefix}{os.getpid()}-{partition}")
        columns = [_file_column(Path(f"{name}-{n}.group"), shape, count) for n, shape in enumerate(shapes)]
        residency = Residency()
        residency.watch(columns)
        at = 0
        for first, last in self.partitions.batches(partition, batch_bytes):
            part_words, parts = self.partitions.read(partition, first, last)
            end = at + len(part_words[0])
            rows: slice | Tensor = slice(at, end) if place is None else torch.from_numpy(place[at:end])
            for column, part in zip(columns, parts):
                signed_view(column)[rows] = signed_view(part)
            residency.trim()
            at = end
        return keys, starts, columns


def _file_column(path: Path, shape: Shape, rows: int) -> Tensor:
    """A column in a file that has no name any more, so that it goes with its last user."""
    memory = mapped_file(path, rows * shape.nbytes)
    os.unlink(path)
    return memory.view(shape.dtype).view(rows, *shape.row)


def _look_of(value: Data) -> object:
    """What tells two results that have one schema, at little cost; equal schemas may look different."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape[1:]
    if is_dense(value):
        return [(key, _look_of(entry)) for key, entry in entries_of(value).items()]
    return type(value)


def _same_schema(schema: Schema | None, result: Data) -> Schema:
    """The schema of a result, if it is that of the others.

    Raises:
        OutputMismatch: it is not, or the result is no rows.
    """
    found = take_apart(result).schema
    if schema is not None and found.fields != schema.fields:
        raise not_alike(schema.difference(found))
    return found
