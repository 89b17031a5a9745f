"""Pipelines over tables: jagged columns travel as where their rows lie, until a stage makes tensors of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdmap.datasets.jagged import Jagged
from tdmap.datasets.table import Table
from tdmap.datasets.tables.ops import columns_of_result
from tdmap.errors import OutputMismatch
from tdmap.job import function_name
from tdmap.memory.rowfiles import SharedTensors
from tdmap.pipeline import Pipeline
from tdmap.pipeline.stages import Batch
from tdmap.process_state import on_host
from tdmap.run.fingerprint import function_parts, source_parts
from tensordict_lite import TensorDict

SPANS = "__spans__"
"""The entry that says where jagged rows lie: int64 `[n, 3]` for each column, start, end and number of the row."""


class Column:
    """A jagged column, as workers read it."""

    def __init__(self, name: str, column: Jagged) -> None:
        self.name = name
        self.kind = column.kind
        self.shared = SharedTensors([column.values], True)
        self._source = column.values

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {f"{self.name} {key}": text for key, text in source_parts(self._source).items()}

    def rows(self, chunk: Any) -> Jagged:
        """The rows of a chunk."""
        spans = chunk[SPANS, self.name]
        return Jagged.of_spans(self.shared.tensors[0].as_subclass(Tensor), spans[:, 0], spans[:, 1], self.kind)


@on_host
class TablePipeline(Pipeline):
    """A `Pipeline` over the rows of a table.

    Chunks have an entry `"__spans__"` instead of the jagged columns that no stage has made tensors of; `select` leaves
    it out.

    Args:
        table: the table.
        seed: as `Pipeline`.

    Example:
        >>> words = Jagged.from_list([[1, 2, 3], [4], [5, 6]])
        >>> for batch in words.pipeline().pad("rows", to=2).batch(2).iter(num_workers=0):
        ...     print(batch["rows"].tolist(), batch["rows_mask"].tolist())
        [[1, 2], [4, 0]] [[True, True], [True, False]]
        [[5, 6]] [[True, True]]
    """

    def __init__(self, table: Table, *, seed: int | None = None) -> None:
        entries: dict[Any, Any] = {key: table.rows.get(key) for key in table.rows.keys()}
        numbers = torch.arange(len(table))
        spans = {name: torch.stack([column.starts, column.ends, numbers], 1) for name, column in table.jagged.items()}
        entries[SPANS] = TensorDict(spans, [len(table)])
        super().__init__(TensorDict(entries, [len(table)]), seed=seed)
        self._columns = {name: Column(name, column) for name, column in table.jagged.items()}

    def _column(self, key: str) -> Column:
        if key not in self._columns:
            raise KeyError(
                f"there is no jagged column {key!r}; there are {', '.join(map(repr, self._columns)) or 'none'}."
            )
        return self._columns[key]

    @property
    def _has_batches(self) -> bool:
        return any(isinstance(stage, Batch) for stage in self._stages)

    def pad(self, key: str, to: int | None = None, *, value: float = 0, left: bool = False) -> TablePipeline:
        """Make a tensor of a jagged column, and a mask.

        Args:
            key: the column. It becomes `[n, to, ...]`, and the bool entry `f"{key}_mask"` `[n, to]` is True where
                elements are.
            to: that length: longer rows lose their end. None, after `.batch`: that of the longest row of a batch.
            value, left: as `Jagged.pad`.

        Raises:
            KeyError: there is no such column.
            ValueError: `to` is missing where there are no batches.
        """
        column = self._column(key)
        if to is None and not self._has_batches:
            raise ValueError(f"rows of {key!r} need one length before .batch(n): pass to=, or call .pad after it.")
        if to is not None and to < 1:
            raise ValueError(f"to must be at least 1: got {to}.")
        return self.map(PadRows(column, to, value, left))  # type: ignore[return-value]

    def pack(self, key: str, n: int, *, window: int = 1024, value: float = 0) -> TablePipeline:
        """Make blocks of `n` elements of a jagged column, whose rows lie in them one after the other.

        So many rows at a time, `window`, are packed together, and what is left of them fills up a last block with
        `value`. `Jagged.pack` packs all rows together, in the order that they have.

        Args:
            key: the column. It becomes `[blocks, n, ...]`; other columns are left out. `document` int64 `[blocks, n]`
                is the number of the row that an element is of, -1 behind the last one; `position` its place there.
            n: elements of a block.
            window: rows that are packed together.
            value: behind the last element.

        Raises:
            KeyError: there is no such column.
            ValueError: a size is out of range, or there are batches already.
        """
        column = self._column(key)
        if n < 1 or window < 1:
            raise ValueError(f"n and window must be at least 1: got {n} and {window}.")
        self._require_rows("pack")
        return self.batch(window).map(PackRows(column, n, value)).unbatch()  # type: ignore[return-value]

    def bucket(self, key: str, n: int, *, window: int = 100, shuffle: bool = True) -> TablePipeline:
        """Batches of `n` rows whose jagged rows are of about one length, so that `.pad(key)` adds little.

        Args:
            key: the column whose lengths count.
            n: rows in a batch; the last one may have fewer.
            window: so many batches are sorted together.
            shuffle: put the batches of a window into a random order, another one in each epoch.

        Raises:
            KeyError: there is no such column.
            ValueError: a size is out of range, or there are batches already.
        """
        self._column(key)
        if n < 1 or window < 1:
            raise ValueError(f"n and window must be at least 1: got {n} and {window}.")
        self._require_rows("bucket")
        return self.batch(n * window).map(SortByLength(key, n, shuffle)).unbatch().batch(n)  # type: ignore[return-value]

    def map_table(self, fn: Callable[[Table], Any]) -> TablePipeline:
        """Apply a function to chunks of rows which are tables, jagged columns included.

        Args:
            fn: returns a TensorDict or a dict of tensors with as many rows, which take the place of all columns.
        """
        return self.map(OnTables(fn, dict(self._columns)))  # type: ignore[return-value]

    def _require_rows(self, stage: str) -> None:
        if self._has_batches:
            raise ValueError(f".{stage} makes batches of rows, and there is .batch before it: leave that out.")


def _without(chunk: Any, name: str) -> Any:
    spans = chunk[SPANS].exclude(name)
    rest = chunk.exclude(SPANS)
    if len(list(spans.keys())):
        rest[SPANS] = spans
    return rest


class PadRows:
    """See `TablePipeline.pad`."""

    def __init__(self, column: Column, to: int | None, value: float, left: bool) -> None:
        self.column = column
        self.to = to
        self.value = value
        self.left = left
        self.__qualname__ = f"pad({column.name})"

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {**self.column.identity_parts(), "pad": f"{self.to} {self.value} {self.left}"}

    def __call__(self, chunk: Any) -> Any:
        padded, mask = self.column.rows(chunk).pad(self.to, self.value, self.left)
        result = _without(chunk, self.column.name)
        result[self.column.name], result[f"{self.column.name}_mask"] = padded, mask
        self.column.shared.trim()
        return result


class PackRows:
    """See `TablePipeline.pack`."""

    def __init__(self, column: Column, n: int, value: float) -> None:
        self.column = column
        self.n = n
        self.value = value
        self.__qualname__ = f"pack({column.name})"

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        return {**self.column.identity_parts(), "pack": f"{self.n} {self.value}"}

    def __call__(self, chunk: Any) -> TensorDict:
        rows, numbers = self.column.rows(chunk), chunk[SPANS, self.column.name][:, 2]
        lengths, total = rows.lengths, rows.total
        blocks = -(-total // self.n)
        values = torch.full((blocks * self.n, *rows.row_shape), self.value, dtype=rows.dtype)
        document = torch.full((blocks * self.n,), -1)
        position = torch.zeros(blocks * self.n, dtype=torch.int64)
        values[:total] = rows.flat()
        document[:total] = torch.repeat_interleave(numbers, lengths)
        first = torch.repeat_interleave(rows.offsets[:-1], lengths)
        position[:total] = torch.arange(total) - first
        self.column.shared.trim()
        return TensorDict(
            {
                self.column.name: values.reshape(blocks, self.n, *rows.row_shape),
                "document": document.reshape(blocks, self.n),
                "position": position.reshape(blocks, self.n),
            },
            [blocks],
        )


class SortByLength:
    """See `TablePipeline.bucket`."""

    def __init__(self, key: str, n: int, shuffle: bool) -> None:
        self.key = key
        self.n = n
        self.shuffle = shuffle
        self.__qualname__ = f"bucket({key})"

    def __call__(self, rows: Any) -> Any:
        spans = rows[SPANS, self.key]
        batches = list(torch.sort(spans[:, 1] - spans[:, 0], stable=True).indices.split(self.n))
        full = sum(len(batch) == self.n for batch in batches)
        picks = torch.randperm(full).tolist() if self.shuffle else range(full)
        return rows[torch.cat([*(batches[pick] for pick in picks), *batches[full:]])]


class OnTables:
    """See `TablePipeline.map_table`."""

    def __init__(self, fn: Callable[[Table], Any], columns: dict[str, Column]) -> None:
        self.fn = fn
        self.columns = columns
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        parts = function_parts(self.fn)
        for column in self.columns.values():
            parts.update(column.identity_parts())
        return parts

    def __call__(self, chunk: Any) -> TensorDict:
        present = set(chunk[SPANS].keys()) if SPANS in chunk.keys() else set()
        # Copies: the function must not write into the column.
        jagged = {name: column.rows(chunk).compact() for name, column in self.columns.items() if name in present}
        rows = chunk.exclude(SPANS)
        table = Table(TensorDict({key: rows.get(key) for key in rows.keys()}, [len(chunk)]), jagged)
        found, ragged, _ = columns_of_result(self.fn(table))
        if ragged:
            name = sorted(ragged)[0]
            raise OutputMismatch(
                f"the column {name!r} that the function returned has rows of different lengths, which have no place in "
                f"a batch: return {name}.pad(to=...), or make a dataset of them before (Table.map(fn, out))."
            )
        for column in self.columns.values():
            column.shared.trim()
        return found
