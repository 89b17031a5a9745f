"""Pairs of rows as collections, chunk by chunk: for entries that are more than plain columns.

Objects of single rows cannot be shared, so each worker has those of the second dataset (ragged columns are shared as
tensors are); and rows of a lazy stack are asked for. What the workers make waits in files until it is known how many
rows there are (`tdmap.output.append`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data import kinds
from tdmap.data.columns import columns_of, is_columnar, reordered, schema_of, with_columns
from tdmap.data.entries import with_types
from tdmap.data.kinds import Data, concatenated, is_dense, signed_view, with_entries
from tdmap.data.objects import ObjectColumn, blank_rows, object_paths
from tdmap.data.reader import narrow, select
from tdmap.data.schema import Schema, take_apart
from tdmap.data.sizes import row_bytes_of
from tdmap.keys.joins.placing import FindRows
from tdmap.memory.rowfiles import SharedTensors
from tdmap.output.output import Step
from tdmap.reducers.base import Key
from tensordict_lite import Ragged, TensorDict, is_non_tensor
from tensordict_lite.objects.column import numbers_of
from tensordict_lite.ragged import is_ragged


def _has_columns(value: Data, left: bool) -> bool:
    """Whether an entry consists of tensors only; one object for all rows counts too, where every row has a partner."""
    return is_columnar(value) and not (left and (is_non_tensor(value) or object_paths(value)))


class SharedRagged:
    """Ragged rows of the second dataset, which workers share.

    Args:
        entry: the column.
        share: workers are other processes.
    """

    def __init__(self, entry: Ragged, share: bool) -> None:
        column = entry.column
        assert column is not None
        rows = column.numbers(entry._rows)
        self.kind, self.length = column.kind, len(rows)
        self.first = rows.start if type(rows) is range and rows.step == 1 else None
        index = [] if self.first is not None else [torch.from_numpy(numbers_of(rows))]
        self.shared = SharedTensors([column.values, column.offsets, *index], share)

    def take(self, rows: NDArray[np.int64], missing: Tensor | None) -> Ragged:
        """These rows; empty ones, or None among strings, where they are missing."""
        values, offsets, *index = self.shared.tensors
        column: Ragged = Ragged._over(self.kind, values, offsets)
        if not self.length:
            return blank_rows(column, len(rows))
        numbers = torch.from_numpy(rows)
        numbers = index[0].index_select(0, numbers) if self.first is None else numbers + self.first
        if not len(rows) or missing is None or not bool(missing.any()):
            return column[numbers]  # type: ignore[no-any-return]
        found: Ragged = concatenated([column[numbers[~missing]], blank_rows(column, 1)])
        places = (~missing).cumsum(0) - 1
        places[missing] = len(found) - 1
        return found[places]  # type: ignore[no-any-return]


def object_columns(value: Data, share: bool) -> Any:
    """An entry of the second dataset, made ready to have rows taken."""
    if is_ragged(value):
        return SharedRagged(value, share)
    if is_non_tensor(value):
        return ObjectColumn(value)
    if isinstance(value, Tensor) or not is_dense(value):
        return value
    return value[:0], {key: object_columns(entry, share) for key, entry in kinds.entries_of(value).items()}


def rows_of_entry(value: Any, rows: NDArray[np.int64], missing: Tensor | None) -> Any:
    """Rows of an entry; zeros, empty ragged rows and None where they are missing."""
    if isinstance(value, SharedRagged):
        return value.take(rows, missing)
    if isinstance(value, ObjectColumn):
        return value.take(rows.tolist(), None if missing is None else missing.tolist())
    if isinstance(value, tuple):
        example, entries = value
        source = {key: rows_of_entry(entry, rows, missing) for key, entry in entries.items()}
        return with_entries(example, source, len(rows))
    if not isinstance(value, Tensor):
        return value[torch.from_numpy(rows)]
    if not len(value):
        return torch.zeros((len(rows), *value.shape[1:]), dtype=value.dtype)
    found = reordered(value, rows)
    if missing is not None:
        signed_view(found)[missing] = 0
    return found


class JoinChunk(Step):
    """What a worker calls with each chunk of the first dataset.

    Args:
        names: what its entries are called in the result, and what in the chunks.
        find: finds the partners of its rows.
        others: entries of the second dataset.
        share: workers are other processes.
        indicator: entry that marks rows with a partner; empty to leave out the others.
        forms: dtype, and shape in a row, of the keys of a result that has rows of either dataset alone.
        block_bytes: of the result, made at a time.
    """

    def __init__(
        self,
        names: Mapping[Key, Key],
        find: FindRows,
        others: Data,
        share: bool,
        indicator: str,
        forms: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]],
        block_bytes: int,
    ) -> None:
        super().__init__("join")
        self.names = dict(names)
        self.find = find
        self.indicator = indicator
        self.forms = dict(forms)
        self.block_bytes = block_bytes
        self.row_bytes = row_bytes_of(others, len(others))
        plain = [key for key in others.keys() if _has_columns(others.get(key), bool(indicator))]
        kept = select(others, plain)
        self.example = schema_of(kept)
        self.columns = SharedTensors(columns_of(kept), share=share)
        # Objects of single rows cannot be shared: each worker has them all.
        self.objects = {key: object_columns(others.get(key), share) for key in others.keys() if key not in plain}

    def __call__(self, chunk: Data, start: int = 0) -> Iterator[Data]:
        found, lookup = self.find(chunk, start), self.find.lookup
        firsts = found["at"].numpy().astype(np.int64)
        counts = (firsts >= 0 if lookup.is_unique else found["count"].numpy()).astype(np.int64)
        matched = counts > 0
        if self.indicator:
            counts = np.maximum(counts, 1)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        # The row of each pair, unless a search among the ends is needed to find it.
        single = np.flatnonzero(counts) if len(counts) and counts.max() == 1 else None
        row_bytes = row_bytes_of(chunk, max(len(chunk), 1)) + self.row_bytes
        size = max(self.block_bytes // max(row_bytes, 1), 1)
        index = None if lookup.is_unique else lookup.index
        for begin in range(0, total, size):
            pairs = np.arange(begin, min(begin + size, total))
            ours = np.searchsorted(ends, pairs, side="right") if single is None else single[pairs]
            theirs = firsts[ours] + pairs - (ends[ours] - counts[ours])
            has = matched[ours]
            if index is not None:
                theirs = index.take(np.where(has, theirs, 0)) if len(index) else np.zeros(len(pairs), dtype=np.int64)
            else:
                theirs = np.maximum(theirs, 0)
            yield self.rows_of(chunk, ours, theirs, has if self.indicator else None)
        self.columns.trim()

    def schema_of(self, data: Data) -> Schema:
        """What the result looks like."""
        none = np.empty(0, dtype=np.int64)
        return take_apart(self.rows_of(narrow(data, 0, 0, 0), none, none, none > 0 if self.indicator else None)).schema

    def rows_of(
        self, chunk: Data, ours: NDArray[np.int64], theirs: NDArray[np.int64], has: NDArray[np.bool_] | None
    ) -> Data:
        """Rows of both datasets side by side; `has` tells which have a partner."""
        numbers = torch.from_numpy(ours)
        joined = TensorDict({}, [len(ours)])
        for key, name in self.names.items():
            value = chunk.get(name)
            simple = isinstance(value, Tensor) and is_columnar(value)
            joined.set(key, reordered(value.detach(), ours) if simple else value[numbers])
        with_types(joined, chunk, {name: key for key, name in self.names.items()})
        for key, (dtype, shape) in self.forms.items():
            joined.set(key, joined.get(key).to(dtype).reshape(-1, *shape))
        missing = None if has is None else torch.from_numpy(~has)
        columns = [rows_of_entry(column, theirs, missing) for column in self.columns.tensors]
        placed = with_columns(self.example, columns, len(ours))
        for key in placed.keys():
            joined.set(key, placed.get(key))
        with_types(joined, placed)
        for key, value in self.objects.items():
            joined.set(key, rows_of_entry(value, theirs, missing))
        if has is not None:
            joined.set(self.indicator, torch.from_numpy(has))
        return joined
