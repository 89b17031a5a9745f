"""Columns of any kind with the same rows: tensors, and strings, bytes and lists of different lengths."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdmap.data.entries import row_number, row_numbers
from tdmap.datasets.columns import JAGGED, ROWS, Columns, write_columns
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import jagged_of
from tdmap.datasets.tables.doors import TableDoors
from tdmap.operations.summary import describe, train_test_split
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.views import is_leaf_nontensor

BATCH_ROWS = 1 << 16
"""Rows that go through memory at a time."""


class Table(TableDoors):
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
            ValueError: the dict has no columns.
        """
        if isinstance(data, Table):
            return data
        if isinstance(data, Jagged):
            return cls(TensorDict({}, [len(data)]), {"rows": data})
        if isinstance(data, Mapping) and not isinstance(data, TensorDict):
            jagged = {name: column for name, column in data.items() if isinstance(column, Jagged)}
            others = {name: column for name, column in data.items() if name not in jagged}
            if not data:
                raise ValueError("a table needs a column: the dict is empty.")
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

    __tdmap_operations__ = frozenset(
        {
            "map",
            "filter",
            "flat_map",
            "sort",
            "shuffle",
            "join",
            "group_by",
            "unique",
            "value_counts",
            "top_k",
            "sample",
        }
    )

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

    def batches(self, rows: int) -> Iterator[Table]:
        """Parts of so many rows, which share memory with this one."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]
        if not len(self):
            yield self

    @staticmethod
    def cat(parts: Iterable[Table | Columns]) -> Table:
        """The rows of several tables, one after the other, in new memory.

        Args:
            parts: tables, or pairs of the columns of tensors and the others, with the same columns in each.

        Raises:
            ValueError: there are none, or they have different columns.
            TypeError: a column is of another kind in another part.

        Example:
            >>> Table.cat([Table.of({"x": torch.arange(2)}), Table.of({"x": torch.arange(3)})])["x"].tolist()
            [0, 1, 0, 1, 2]
        """
        found = [(part.rows, part.jagged) if isinstance(part, Table) else part for part in parts]
        if not found:
            raise ValueError("cat takes at least one table.")
        for columns in (0, 1):
            names = [set(part[columns].keys()) for part in found]
            if any(others != names[0] for others in names):
                odd = set.union(*names) - set.intersection(*names)
                raise ValueError(f"the column {min(odd, key=str)!r} is not in every table, or of another kind in one.")
        parts_of_rows: Any = [rows for rows, _ in found]
        rows: Any = torch.cat(parts_of_rows) if len(list(found[0][0].keys())) else None
        jagged = {name: Jagged.cat([columns[name] for _, columns in found]) for name in found[0][1]}
        count = sum(map(len, parts_of_rows)) if rows is None else len(rows)
        return Table(TensorDict({}, [count]) if rows is None else rows, jagged)

    def __len__(self) -> int:
        return self._length

    def keys(self) -> list[str]:
        """Names of the columns; those of nested ones joined by dots."""
        names = [key if isinstance(key, str) else ".".join(key) for key in self.rows.keys(True, True)]
        return [*names, *self.jagged]

    def __getitem__(self, index: Any) -> Any:
        """A column for its name, a dict for the number of a row, and a table for anything else.

        Args:
            index: a list of names gives those columns; a slice, a list of numbers, a tensor, an array or a mask
                (a bool a row) gives those rows.

        Raises:
            KeyError: there is no such column; lists those that there are.
            IndexError: there is no such row, or these are no numbers of rows.
        """
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, list) and index and all(isinstance(name, str) for name in index):
            return self._columns(index)
        if hasattr(index, "__index__") and not isinstance(index, bool) and not getattr(index, "ndim", 0):
            row = row_number(operator.index(index), len(self))
            return {**self.rows[row].to_dict(), **{name: column[row] for name, column in self.jagged.items()}}
        if not isinstance(index, slice):
            index = row_numbers(index, len(self))
        elif (index.step or 1) < 0:
            index = torch.tensor(range(len(self))[index], dtype=torch.int64)
        jagged = {name: column[index] for name, column in self.jagged.items()}
        if len(list(self.rows.keys())):
            return Table(self.rows[index], jagged)
        count = len(range(len(self))[index]) if isinstance(index, slice) else len(index)
        return Table(TensorDict({}, [count]), jagged)

    def _column(self, name: str) -> Any:
        if name in self.jagged:
            return self.jagged[name]
        key = self._key(name)
        if key not in self.rows.keys(True):
            close = difflib.get_close_matches(name, self.keys(), 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise KeyError(f"there is no column {name!r}: there are {', '.join(map(repr, self.keys()))}.{hint}")
        return self.rows[key]

    def _key(self, name: str) -> str | tuple[str, ...]:
        """Where a column of tensors is: dots lead to nested ones."""
        return name if name in self.rows.keys() else tuple(name.split("."))

    def _columns(self, names: list[str]) -> Table:
        found = {name: self._column(name) for name in names}
        jagged = {name: column for name, column in found.items() if isinstance(column, Jagged)}
        tensors = {self._key(name): column for name, column in found.items() if name not in jagged}
        return Table(TensorDict(tensors, [len(self)]), jagged)

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
