"""Columns of any kind with the same rows: tensors, and strings, bytes and lists of different lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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

    def shuffle(self, out: str | os.PathLike[str] | None = None, *, seed: int | None = None, **options: Any) -> Table:
        """The rows in a random order, which a seed fixes. Arguments as `Jagged.shuffle`."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator), out, **options)

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
