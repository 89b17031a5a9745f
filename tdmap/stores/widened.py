"""Members of a dataset of several parts with columns besides, which lie in memory: numbers that stand for strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tdmap.data.entries import with_types
from tdmap.data.kinds import Data, is_dense, is_opened_by_row
from tdmap.data.reader import narrow
from tdmap.stores.members import Member, Rows
from tensordict_lite import TensorDict


def as_tensordict(data: Data) -> TensorDict:
    """The entries of a collection in a TensorDict: one that has room for more, which a tensorclass has not."""
    made: TensorDict = with_types(TensorDict({key: data.get(key) for key in data.keys()}, data.shape[:1]), data)
    return made


def with_room(data: Data) -> Data:
    """The same entries, where they can be had, in a collection of its own that takes more of them, one value a row.

    A copy of another kind has an object of its own for each string.
    """
    if is_dense(data) or len(data.shape) > 1:
        return as_tensordict(data)
    return data.clone(False) if data.is_locked else data.copy()


def with_columns(data: Data, columns: TensorDict) -> Data:
    """A dataset with more entries, or with these in the place of others.

    Args:
        data: of any kind; its own entries stay where they are.
        columns: batch size `[rows]`.
    """
    if is_opened_by_row(data):
        return data.with_columns(columns)
    wider = with_room(data)
    for name, column in columns.items():
        wider.set(name, column)
    return wider


class WidenedMember:
    """Rows of a member, with more columns.

    Args:
        member: the member.
        first: its row that is the first of these.
        data: the columns, batch size `[rows]`. They travel as all data of jobs do.
    """

    def __init__(self, member: Member, first: int, data: TensorDict) -> None:
        self.member = member
        self.first = first
        self.data = data
        self.name = member.name
        self.rows = int(data.shape[0])

    def open(self) -> WidenedRows:
        return WidenedRows(self.member.open(), self.first, self.data)

    def identity(self) -> Any:
        return self.member.identity()

    def files(self) -> list[str]:
        return list(getattr(self.member, "files", list)())

    @property
    def prefetch(self) -> Any:
        """Whether rows are fetched, where the member says so."""
        return self.member.prefetch  # type: ignore[attr-defined]


class WidenedRows:
    """The rows of a `WidenedMember`. Of the member itself, no more is read than is asked for."""

    def __init__(self, rows: Rows, first: int, columns: TensorDict) -> None:
        self._rows = rows
        self._first = first
        self._columns = columns

    def read(self, first: int, last: int) -> Data:
        rows = self._rows.read(self._first + first, self._first + last)
        return self._wide(rows, narrow(self._columns, 0, first, last))

    def read_keys(self, first: int, last: int, keys: Sequence[Any] | None) -> Data:
        columns = narrow(self._columns, 0, first, last)
        theirs = self._theirs(keys)
        if theirs is not None and not theirs:
            return columns.clone()
        begin, end = self._first + first, self._first + last
        if theirs is None or not hasattr(self._rows, "read_keys"):
            rows = self._rows.read(begin, end)
            return self._wide(rows if theirs is None else rows.select(*theirs), columns)
        return self._wide(self._rows.read_keys(begin, end, theirs), columns)

    def take(self, rows: Tensor) -> Data:
        return self._wide(self._rows.take(rows + self._first), self._columns[rows])

    def take_keys(self, rows: Tensor, keys: Sequence[Any] | None) -> Data:
        theirs = self._theirs(keys)
        if theirs is not None and not theirs:
            return self._columns[rows]
        if theirs is None or not hasattr(self._rows, "take_keys"):
            return self.take(rows)
        return self._wide(self._rows.take_keys(rows + self._first, theirs), self._columns[rows])

    def like(self) -> Data:
        return self._wide(self._rows.read(self._first, self._first), self._columns[:0])

    @property
    def prefetch(self) -> Any:
        """Begins to fetch rows, where the member can."""
        ahead: Any = self._rows.prefetch  # type: ignore[attr-defined]

        def prefetch(first: int, last: int, keys: Sequence[Any] | None) -> None:
            theirs = self._theirs(keys)
            if theirs is None or theirs:
                ahead(self._first + first, self._first + last, theirs)

        return prefetch

    def _theirs(self, keys: Sequence[Any] | None) -> list[Any] | None:
        """Those of some keys that the member has; None for all."""
        return None if keys is None else [key for key in keys if key not in self._columns.keys()]

    def _wide(self, rows: Data, columns: Data) -> Data:
        wide = with_room(rows)
        for name, column in columns.items():
            wide.set(name, column)
        return wide
