"""Columns of any kind with the same rows: tensors, and strings, bytes and lists of different lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdmap.datasets.columns import JAGGED, ROWS, Columns, write_columns
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import jagged_of
from tdmap.execution import Execution
from tdmap.operations.summary import describe, train_test_split
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.views import is_leaf_nontensor

if TYPE_CHECKING:
    from tdmap.datasets.tables.ops import TableGroups
    from tdmap.datasets.tables.pipeline import TablePipeline

BATCH_ROWS = 1 << 16
"""Rows that go through memory at a time."""


class Table:
    """Columns with the same rows, in memory or in a folder.

    Args:
        rows: the columns of tensors, batch size `[n]`; may be without entries.
        jagged: the other columns, of `n` rows each.

    Raises:
        ValueError: columns have different numbers of rows, or one name.

    Example:
        >>> table = Table(TensorDict({"x": torch.arange(2)}, [2]), {"word": Jagged.from_list(["ant", "bee"])})
        >>> table[1]
        {'x': tensor(1), 'word': 'bee'}
    """

    def __init__(self, rows: TensorDict, jagged: Mapping[str, Jagged] | None = None) -> None:
        self.rows = rows
        self.jagged = dict(jagged or {})
        counts = {name: len(column) for name, column in self.jagged.items()}
        if len(list(rows.keys())) or not counts:
            counts["rows"] = len(rows)
        if len(set(counts.values())) > 1:
            raise ValueError(f"columns have different numbers of rows: {counts}.")
        both = sorted(set(self.jagged) & set(rows.keys()))
        if both:
            raise ValueError(f"two columns have the name {both[0]!r}.")
        self._length = next(iter(counts.values()))

    @classmethod
    def of(cls, data: Any) -> Table:
        """A table of what has rows: a table, a TensorDict, a `Jagged` (as the column `"rows"`), a dict of columns.

        Entries of a TensorDict that are strings or bytes become jagged columns.

        Raises:
            TypeError: an entry is something else; names it.
        """
        if isinstance(data, Table):
            return data
        if isinstance(data, Jagged):
            return cls(TensorDict({}, [len(data)]), {"rows": data})
        if isinstance(data, Mapping) and not isinstance(data, TensorDict):
            jagged = {name: column for name, column in data.items() if isinstance(column, Jagged)}
            others = {name: column for name, column in data.items() if name not in jagged}
            count = len(next(iter(data.values())))
            found = cls.of(TensorDict(others, [count]))
            return cls(found.rows, {**found.jagged, **jagged})
        if not hasattr(data, "batch_size") or len(data.batch_size) < 1:
            raise TypeError(f"a TensorDict with rows, a Table or a Jagged is needed, got a {type(data).__name__}.")
        tensors, jagged = {}, {}
        for key in data.keys(True, True, is_leaf_nontensor):
            value = data.get(key)
            value = value.tolist() if hasattr(value, "_is_non_tensor") and value._is_non_tensor else value
            if isinstance(value, Tensor):
                tensors[key] = value
                continue
            values = value if isinstance(value, list) else [value] * len(data)
            name = key if isinstance(key, str) else ".".join(key)
            try:
                jagged[name] = Jagged.from_list(list(values))
            except (TypeError, ValueError) as error:
                raise TypeError(f"the column {name!r} cannot be written: {error}") from None
        return cls(TensorDict(tensors, data.batch_size[:1]), jagged)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Table:
        """Open what was saved or read into a folder; any dataset with rows is a table."""
        path = Path(os.path.abspath(os.fspath(folder)))
        data = TensorDict.load_memmap(path)
        if len(data.batch_size):
            return cls(data)
        if "offsets" in data.keys():
            return cls.of(jagged_of(data, path))
        if JAGGED not in data.keys():
            raise DatasetError(str(path), "has no rows: it is neither a table nor a dataset with a batch dimension")
        jagged = {name: jagged_of(data[JAGGED, name], path) for name in data[JAGGED].keys()}
        for column in jagged.values():
            column.folder = None  # rows are not appended to one column alone
        count = len(next(iter(jagged.values())))
        return cls(data[ROWS] if ROWS in data.keys() else TensorDict({}, [count]), jagged)

    def save(self, folder: str | os.PathLike[str], batch_rows: int = BATCH_ROWS) -> Table:
        """Write it to a new folder, and open it there.

        Raises:
            FileExistsError: the folder holds something.
        """
        write_columns(((part.rows, part.jagged) for part in self.batches(batch_rows)), sorted(self.jagged), folder)
        return Table.open(folder)

    # -- operations ------------------------------------------------------------------------------------------------

    __tdmap_operations__ = frozenset({"map", "filter", "flat_map", "sort", "shuffle", "join", "group_by"})

    def map(self, fn: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """Apply a function to chunks of rows, which are tables, on several processes.

        Args:
            fn: returns rows, any number: a `Table`, a TensorDict, or a dict of columns: tensors, arrays, lists of
                numbers, `Jagged`; lists of strings, lists, or tensors become jagged.
            out: folder for the result. None: in memory.
            **options: `resume`, `chunksize`, `on_error` as `tdmap.map`, and those about workers.

        Example:
            >>> table = Table.of({"x": torch.arange(2), "word": ["ant", "bee"]})
            >>> table.map(lambda rows: {"n": rows["x"] + rows["word"].lengths}, num_workers=0).rows["n"]
            tensor([3, 4])
        """
        from tdmap.datasets.tables.ops import map_table

        return map_table(self, fn, out, **options)

    flat_map = map

    def filter(self, predicate: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The rows for which a predicate is true.

        Args:
            predicate: called with chunks of rows, which are tables; returns a bool for each row.
            out: folder for a copy. None: in memory; jagged columns share their values.
            **options: `chunksize`, `on_error` as `tdmap.filter`, and those about workers.
        """
        from tdmap.datasets.tables.ops import filter_table

        return filter_table(self, predicate, out, **options)

    def sort(self, key: Any, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The rows in the order of a column, or of several; rows with equal keys keep their order.

        Args:
            key: names of columns, of numbers, strings or bytes.
            out: as `filter`.
            **options: `descending` as `tdmap.sort`, and those about workers.
        """
        from tdmap.datasets.tables.ops import sort_table

        return sort_table(self, key, out, **options)

    def shuffle(self, out: str | os.PathLike[str] | None = None, *, seed: int | None = None, **options: Any) -> Table:
        """The rows in a random order, which a seed fixes. Arguments as `Jagged.shuffle`."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator), out, **options)

    def take(self, rows: Tensor, out: str | os.PathLike[str] | None = None, **options: Any) -> Table:
        """The rows with these numbers, int64 `[m]`, in their order. `out` and workers as `filter`."""
        from tdmap.datasets.tables.ops import take

        return take(self, torch.as_tensor(rows), out, Execution.of(**options), "take")

    def join(self, other: Any, on: Any, how: str = "inner", out: Any = None, **options: Any) -> Table:
        """Each row beside the rows of another table with the same key.

        Args:
            other: a table, or what `Table.of` takes.
            on: a column of both, several, or a mapping of columns here to columns there.
            how: `"inner"`, or `"left"`: rows without a partner have zeros and empty rows in its columns.
            out: as `filter`.
            **options: `suffix`, `indicator` as `tdmap.join`, and those about workers.
        """
        from tdmap.datasets.tables.ops import join_table

        return join_table(self, Table.of(other), on, how, out, **options)

    def group_by(self, key: Any) -> TableGroups:
        """The groups of rows with equal keys: `.reduce({...})`, `.map_groups(fn)`; see `tdmap.group_by`."""
        from tdmap.datasets.tables.ops import TableGroups

        return TableGroups(self, key)

    def head(self, n: int = 5) -> Table:
        """The first rows."""
        first: Table = self[:n]
        return first

    def describe(self, **options: Any) -> Any:
        """Figures of each column; see `tdmap.describe`."""
        return describe(self, **options)

    def train_test_split(self, test_size: float = 0.25, **options: Any) -> tuple[Table, Table]:
        """Two parts of the rows; see `tdmap.train_test_split`."""
        return train_test_split(self, test_size, **options)

    def pipeline(self, *, seed: int | None = None) -> TablePipeline:
        """A pipeline over the rows, with `.pad`, `.pack` and `.bucket` for jagged columns."""
        from tdmap.datasets.tables.pipeline import TablePipeline

        return TablePipeline(self, seed=seed)

    def batches(self, rows: int) -> Iterator[Table]:
        """Parts of so many rows, which share memory with this one."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]
        if not len(self):
            yield self

    @staticmethod
    def cat(parts: Iterable[Columns]) -> Table:
        """The rows of several, one after the other, in new memory."""
        found = list(parts)
        parts_of_rows: Any = [rows for rows, _ in found]
        rows: Any = torch.cat(parts_of_rows) if len(list(found[0][0].keys())) else None
        jagged = {name: Jagged.cat([columns[name] for _, columns in found]) for name in found[0][1]}
        count = len(next(iter(jagged.values()))) if rows is None else len(rows)
        return Table(TensorDict({}, [count]) if rows is None else rows, jagged)

    def __len__(self) -> int:
        return self._length

    def keys(self) -> list[str]:
        """Names of the columns; those of nested ones joined by dots."""
        names = [key if isinstance(key, str) else ".".join(key) for key in self.rows.keys(True, True)]
        return [*names, *self.jagged]

    def __getitem__(self, index: Any) -> Any:
        """A column for its name, a dict for the number of a row, a table for a slice, a list or a tensor."""
        if isinstance(index, str):
            if index in self.jagged:
                return self.jagged[index]
            return self.rows[index if index in self.rows.keys() else tuple(index.split("."))]
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"row {index} of {len(self)} rows")
            return {**self.rows[index].to_dict(), **{name: column[index] for name, column in self.jagged.items()}}
        if not isinstance(index, (slice, Tensor)):
            index = torch.as_tensor(index)
        if not len(list(self.rows.keys())):  # nothing but a number of rows
            jagged = {name: column[index] for name, column in self.jagged.items()}
            count = len(next(iter(jagged.values()))) if jagged else 0
            return Table(TensorDict({}, [count]), jagged)
        return Table(self.rows[index], {name: column[index] for name, column in self.jagged.items()})

    def to_tensordict(self) -> TensorDict:
        """One TensorDict: strings and bytes as one Python object a row.

        Raises:
            TypeError: a column has lists of different lengths, which have no place there; names it.
        """
        data = self.rows.copy()
        for name, column in self.jagged.items():
            if column.kind == "tensor":
                raise TypeError(f"the rows of {name!r} have different lengths: table[{name!r}].pad(), or leave it out.")
            data[name] = column.tolist()
        return data

    def __repr__(self) -> str:
        columns = []
        for name in self.keys():
            column = self[name]
            kind = str(column.dtype).removeprefix("torch.")
            if isinstance(column, Jagged):
                columns.append(f"{name}: {f'{kind} [*]' if column.kind == 'tensor' else column.kind}")
            else:
                columns.append(f"{name}: {kind} {list(column.shape[1:])}")
        return f"Table({len(self):,} rows, {', '.join(columns)})"
