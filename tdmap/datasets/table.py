"""Columns of any kind with the same rows: tensors, and strings, bytes and lists of different lengths."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdmap.data.entries import row_number, row_numbers
from tdmap.data.objects import stack_of
from tdmap.data.store import destination
from tdmap.datasets.columns import JAGGED, ROWS, Columns, write_columns
from tdmap.datasets.extras import no_column
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.jaggedfile import jagged_of
from tdmap.datasets.tables.about import Types, in_order, joined, names_of, read_types, require_same
from tdmap.datasets.tables.doors import TableDoors
from tdmap.ops.describe import describe
from tdmap.ops.train_test_split import train_test_split
from tdmap.process_state import on_host
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.paths import absolute_path
from tensordict_lite.views import is_leaf_nontensor

BATCH_ROWS = 1 << 16
"""Rows that go through memory at a time."""

NO_TEXT = b"\xff"
"""Stands for None among strings in files; no byte of UTF-8."""


@on_host
class Table(TableDoors):
    """Columns with the same rows, in memory or in a folder.

    Args:
        rows: the columns of tensors, batch size `[n]`; may be without entries.
        jagged: the other columns, of `n` rows each.
        types: names of columns in their order, each with the name of Arrow's type where it is more than the dtype, such
            as `"timestamp[us]"` or `"date32[day]"`, else `""`. Columns that it leaves out come last.

    Raises:
        ValueError: columns have different numbers of rows, or one name.
        TypeError: one of `rows` is no tensor.

    Example:
        >>> table = Table(TensorDict({"x": torch.arange(2)}, [2]), {"word": Jagged.from_list(["ant", "bee"])})
        >>> table[1]
        {'x': tensor(1), 'word': 'bee'}
    """

    def __init__(
        self, rows: TensorDict, jagged: Mapping[str, Jagged] | None = None, types: Types | None = None
    ) -> None:
        other = next((key for key in rows.keys(True, True, is_leaf_nontensor) if not _is_tensor(rows, key)), None)
        if other is not None:
            raise TypeError(
                f"the column {joined(other)!r} is no tensor: Table.of(rows) makes columns of strings and bytes."
            )
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
        self._types = dict(types or {})

    @property
    def types(self) -> dict[str, str]:
        """The columns in their order, each with the name of Arrow's type that its numbers stand for, or `""`.

        Example:
            >>> rows = TensorDict({"x": torch.arange(2), "seen": torch.arange(2)}, [2])
            >>> Table(rows, types={"seen": "timestamp[s]"}).types
            {'seen': 'timestamp[s]', 'x': ''}
        """
        return in_order([*names_of(self.rows), *self.jagged], self._types)

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
        if isinstance(data, Mapping) and not hasattr(data, "batch_size"):
            jagged = {name: column for name, column in data.items() if isinstance(column, Jagged)}
            others = {name: column for name, column in data.items() if name not in jagged}
            if not data:
                raise ValueError("a table needs a column: the dict is empty.")
            count = len(next(iter(data.values())))
            found = cls.of(TensorDict(others, [count]))
            return cls(found.rows, {**found.jagged, **jagged}, dict.fromkeys(data, ""))
        if not hasattr(data, "batch_size") or len(data.batch_size) < 1:
            raise TypeError(f"a TensorDict with rows, a Table or a Jagged is needed, got a {type(data).__name__}.")
        tensors, jagged, order = {}, {}, []
        for key in data.keys(True, True, is_leaf_nontensor):
            value, name = data.get(key), joined(key)
            order.append(name)
            if isinstance(value, Tensor):
                tensors[key] = value
                continue
            try:
                jagged[name] = _text_of(value, len(data))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"the column {name!r} cannot be one of a table, which has tensors, strings, bytes and lists of "
                    f"numbers ({error}): fill or convert it, or leave it out with data.exclude({name!r})."
                ) from None
        return cls(TensorDict(tensors, data.batch_size[:1]), jagged, dict.fromkeys(order, ""))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Table:
        """Open what was saved or read into a folder; any dataset with rows is a table."""
        path = Path(absolute_path(folder))
        data = TensorDict.load_memmap(path)
        if len(data.batch_size):
            found = cls.of(data)
            return cls(found.rows, found.jagged, read_types(path) or found.types)
        if "offsets" in data.keys():
            return cls.of(jagged_of(data, path))
        if JAGGED not in data.keys():
            raise DatasetError(str(path), "has no rows: it is neither a table nor a dataset with a batch dimension")
        jagged = {name: jagged_of(data[JAGGED, name], path) for name in data[JAGGED].keys()}
        for column in jagged.values():
            column.folder = None  # rows are not appended to one column alone
        count = len(next(iter(jagged.values())))
        return cls(data[ROWS] if ROWS in data.keys() else TensorDict({}, [count]), jagged, read_types(path))

    def save(self, folder: str | os.PathLike[str], batch_rows: int = BATCH_ROWS, *, overwrite: bool = False) -> Table:
        """Write it to a new folder, and open it there.

        Args:
            folder: it must not hold anything.
            batch_rows: rows that go through memory at a time.
            overwrite: it may hold a dataset, which the new one replaces when it is whole.

        Raises:
            FileExistsError: the folder holds something.
        """
        parts = (Columns(part.rows, part.jagged, part.types) for part in self.batches(batch_rows))
        write_columns(parts, sorted(self.jagged), destination(folder, overwrite))
        return Table.open(folder)

    # -- columns ---------------------------------------------------------------------------------------------------

    def select(self, *names: str) -> Table:
        """These columns alone, which share memory with those here; `table[["a", "b"]]` is the same.

        Args:
            *names: of columns; those of nested ones joined by dots, and a name before a dot stands for all behind it.

        Raises:
            KeyError: there is no such column; lists those that there are.

        Example:
            >>> table = Table.of({"x": torch.arange(2), "y": torch.zeros(2), "word": ["ant", "bee"]})
            >>> table.select("x", "word")[1]
            {'x': tensor(1), 'word': 'bee'}
        """
        return self._columns(_names_of("select", names))

    def exclude(self, *names: str) -> Table:
        """All columns but these, sharing memory. Arguments and errors as `select`.

        Example:
            >>> Table.of({"x": torch.arange(2), "word": ["ant", "bee"]}).exclude("x").keys()
            ['word']
        """
        without = _names_of("exclude", names)
        for name in without:
            self._column(name)  # raises where it is none
        jagged = {name: column for name, column in self.jagged.items() if name not in without}
        rows = TensorDict({key: self.rows.get(key) for key in self.rows.keys()}, [len(self)])
        kept = rows.exclude(*(self._key(name) for name in without if name not in self.jagged))
        return Table(kept, jagged, {name: kind for name, kind in self.types.items() if name not in without})

    def rename(self, names: Mapping[str, str]) -> Table:
        """The same columns under other names, sharing memory.

        Args:
            names: new names by the old ones. Names may be swapped.

        Raises:
            KeyError: there is no such column; lists those that there are.
            ValueError: two columns would have one name.

        Example:
            >>> Table.of({"x": torch.arange(2), "word": ["ant", "bee"]}).rename({"word": "animal"}).keys()
            ['x', 'animal']
        """
        if not isinstance(names, Mapping):
            raise TypeError(f"rename takes a dict of new names by the old ones, got a {type(names).__name__}.")
        for name in names:
            self._column(name)  # raises where it is none
        keys = {key: _renamed(key, names) for key in self.rows.keys(True, True)}
        new_names = {joined(old): joined(new) for old, new in keys.items()}
        new_names |= {name: names.get(name, name) for name in self.jagged}
        found = list(new_names.values())
        above = {
            ".".join(key[:depth]) for key in keys.values() if isinstance(key, tuple) for depth in range(1, len(key))
        }
        twice = next((name for name in found if found.count(name) > 1 or name in above), None)
        if twice is not None:
            raise ValueError(
                f"two columns would have the name {twice!r}: give the other one another name in the same call, or "
                "leave it out before, by exclude."
            )
        rows: dict[Any, Any] = {new: self.rows.get(old) for old, new in keys.items()}
        jagged = {new_names[name]: column for name, column in self.jagged.items()}
        types = {new_names[name]: kind for name, kind in self.types.items()}
        return Table(TensorDict(rows, [len(self)]), jagged, types)

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
            ValueError: there are none, or they have different columns, or a column of different types.
            TypeError: a column is of another kind in another part.

        Example:
            >>> Table.cat([Table.of({"x": torch.arange(2)}), Table.of({"x": torch.arange(3)})])["x"].tolist()
            [0, 1, 0, 1, 2]
        """
        found = list(parts)
        if not found:
            raise ValueError("cat takes at least one table.")
        for parts_of_kind in ([part.rows for part in found], [part.jagged for part in found]):
            names = [set(part.keys()) for part in parts_of_kind]
            if any(others != names[0] for others in names):
                odd = set.union(*names) - set.intersection(*names)
                raise ValueError(f"the column {min(odd, key=str)!r} is not in every table, or of another kind in one.")
        for part in found:
            require_same(found[0].types, part.types, "tables")
            _require_alike(found[0].rows, part.rows)
        parts_of_rows: Any = [part.rows for part in found]
        rows: Any = torch.cat(parts_of_rows) if len(list(found[0].rows.keys())) else None
        jagged = {name: Jagged.cat([part.jagged[name] for part in found]) for name in found[0].jagged}
        count = sum(map(len, parts_of_rows)) if rows is None else len(rows)
        return Table(TensorDict({}, [count]) if rows is None else rows, jagged, found[0].types)

    def __len__(self) -> int:
        return self._length

    def keys(self) -> list[str]:
        """Names of the columns; those of nested ones joined by dots."""
        return list(self.types)

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
            found = {**self.rows[row].to_dict(), **{name: column[row] for name, column in self.jagged.items()}}
            return {name: found[name] for name in self._entries(found)}
        if not isinstance(index, slice):
            index = row_numbers(index, len(self))
        elif (index.step or 1) < 0:
            index = torch.tensor(range(len(self))[index], dtype=torch.int64)
        jagged = {name: column[index] for name, column in self.jagged.items()}
        if len(list(self.rows.keys())):
            return Table(self.rows[index], jagged, self._types)
        count = len(range(len(self))[index]) if isinstance(index, slice) else len(index)
        return Table(TensorDict({}, [count]), jagged, self._types)

    def _column(self, name: str) -> Any:
        if name in self.jagged:
            return self.jagged[name]
        key = self._key(name)
        if key not in self.rows.keys(True):
            raise KeyError(f"there is {no_column(name, self.keys())}")
        return self.rows[key]

    def _key(self, name: str) -> str | tuple[str, ...]:
        """Where a column of tensors is: dots lead to nested ones."""
        if name in self.rows.keys():
            return name
        return next((key for key in self.rows.keys(True, True) if joined(key) == name), tuple(name.split(".")))

    def _entries(self, there: Iterable[str]) -> list[str]:
        """The names that columns have in a TensorDict, or what they are nested in, in their order."""
        known = dict.fromkeys(there)
        order = (name if name in known else name.partition(".")[0] for name in self._types)
        return [name for name in dict.fromkeys([*order, *known]) if name in known]

    def _columns(self, names: list[str]) -> Table:
        found = {name: self._column(name) for name in names}
        jagged = {name: column for name, column in found.items() if isinstance(column, Jagged)}
        tensors = {self._key(name): column for name, column in found.items() if name not in jagged}
        types = self.types
        return Table(TensorDict(tensors, [len(self)]), jagged, {name: types.get(name, "") for name in found})

    def to_tensordict(self) -> TensorDict:
        """One TensorDict: strings and bytes as one Python object a row.

        Raises:
            TypeError: a column has lists of different lengths, which have no place there; names it.
        """
        data = self.rows.copy()
        for name, column in self.jagged.items():
            if column.kind == "tensor":
                raise TypeError(f"the rows of {name!r} have different lengths: table[{name!r}].pad(), or leave it out.")
            data[name] = column.tolist() or stack_of([])  # an empty list would be a tensor
        return data.select(*self._entries(data.keys()))

    def __repr__(self) -> str:
        columns = []
        for name in self.keys():
            column = self[name]
            kind = self.types[name] or str(column.dtype).removeprefix("torch.")
            if isinstance(column, Jagged):
                columns.append(f"{name}: {f'{kind} [*]' if column.kind == 'tensor' else column.kind}")
            else:
                columns.append(f"{name}: {kind} {list(column.shape[1:])}")
        return f"Table({', '.join([f'{len(self):,} rows', *columns])})"


def _require_alike(rows: TensorDict, others: TensorDict) -> None:
    """Raise TypeError for a column of another dtype or shape: torch would round whole numbers to floats, for one."""
    for key in rows.keys(True, True):
        one, other = rows.get(key), others.get(key, None)
        if other is not None and (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
            kinds = (f"{str(column.dtype).removeprefix('torch.')} {list(column.shape[1:])}" for column in (one, other))
            raise TypeError(f"the column {joined(key)!r} is {' and '.join(kinds)} in different tables: cast it before.")


def _is_tensor(rows: TensorDict, key: Any) -> bool:
    return isinstance(rows.get(key), Tensor)


def _names_of(call: str, names: Iterable[Any]) -> list[str]:
    """Names of columns; those of nested ones may be tuples, as in a TensorDict.

    Raises:
        TypeError: one is something else.
    """
    found = []
    for name in names:
        if not isinstance(name, (str, tuple)):
            raise TypeError(f"{call} takes names one by one, as in {call}('a', 'b'): got {name!r}.")
        found.append(joined(name))
    return found


def _renamed(key: Any, names: Mapping[str, str]) -> Any:
    """The key of a column of tensors under its new name, which may be that of a collection that it is in."""
    path = key if isinstance(key, tuple) else (key,)
    for depth in range(1, len(path) + 1):
        new = names.get(".".join(path[:depth]))
        if new is not None:
            return (new, *path[depth:])
    return key


def _text_of(entry: Any, count: int) -> Jagged:
    """The rows of an entry that is no tensor, without a Python object a row where it lies in files.

    Raises:
        TypeError: they are not all strings, or all bytes.
        ValueError: there are none.
    """
    if not (hasattr(entry, "_is_non_tensor") and entry._is_non_tensor):
        return Jagged.from_list([entry] * count)
    if isinstance(entry, Ragged) and (column := entry.column) is not None:
        starts, ends = entry.spans()
        rows = Jagged.of_spans(column.values, starts, ends, column.kind)
        if column.kind != "str" or NO_TEXT not in rows.flat().numpy().tobytes():
            return rows
    values = entry.tolist()
    if not count:  # of what may be a column, text is by far the most frequent
        return Jagged.of_no_text("str")
    return Jagged.from_list(list(values) if isinstance(values, list) else [values] * count)
