"""A column of objects, stored as a list until a wrapper of one is needed.

A :class:`~tensordict_lite.NonTensorStack` of a million strings would be a million collections. Instead, its objects are
in a :class:`PayloadColumn`, and a view of its rows (such as a slice) is positions in the same column::

    stack ─────────► Column: ["a", "b", NonTensorData("c"), "d", ...]
    stack[1:3] ────►              1 ─────────────── 3

A member is created on first access and then replaces its object in the column, so that each later access to that row
gives the same member. Objects are written into members, which keep their identity: a write through a slice, a row or a
reshaped stack is visible in the whole, as with tensors. Rows that a tensor selects are in a column of their own. An
operation that does not support columns uses the list of all members, like that of any lazy stack.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.kernel import Flat, Kernel
from tensordict_lite.lazy.stack import LazyStackedTensorDict
from tensordict_lite.objects.data import IMMUTABLE, NonTensorData, NonTensorDataBase, copied
from tensordict_lite.ops.cast import SHARING, same
from tensordict_lite.ops.shape import new_dim

_NO_SIZE = torch.Size(())
_VIEWS = (int, slice, type(None))


def numbers_of(rows: Sequence[int]) -> Any:
    """Numbers of rows as an int64 array."""
    if type(rows) is range:
        return np.arange(rows.start, rows.stop, rows.step)
    return np.frombuffer(rows, np.int64) if type(rows) is array and rows else np.array(rows, np.int64)


class PayloadColumn:
    """Objects, and the members created for some of them.

    Args:
        objects: the objects; the list is taken over.
        size: batch size of each member.
        device: of each member.
    """

    __slots__ = ("__weakref__", "_cells", "_has_members", "_lender", "_lent", "_picked", "_size", "device")

    def __init__(self, objects: list[Any], size: torch.Size, device: torch.device | None) -> None:
        self._cells = objects
        self._size = size
        self.device = device
        self._has_members = False
        self._picked: Sequence[int] | None = None  # of a selection until it is written: its rows in what it shares
        self._lender: PayloadColumn | None = None  # the column whose objects a selection shares
        self._lent: weakref.WeakSet[Any] | None = None  # selections that still share what this column holds

    def __len__(self) -> int:
        return len(self._cells if self._picked is None else self._picked)

    def numbers(self, rows: Sequence[int]) -> Sequence[int]:
        """The numbers that some rows have where they are stored, which a selection shares with another column."""
        if self._picked is None:
            return rows
        if type(rows) is range:
            return self._picked[rows.start : rows.stop if rows.stop >= 0 else None : rows.step]
        return array("q", numbers_of(self._picked)[numbers_of(rows)].tobytes())

    def _lend(self, column: PayloadColumn) -> None:
        column._lent = self._lent = weakref.WeakSet() if self._lent is None else self._lent
        column._lent.add(column)

    def _own(self) -> None:
        """Copy what a selection shares."""
        if self._lender is not None:
            self._cells = self._lender.objects(self._picked or ())
            self._picked = self._lender = self._lent = None

    def _settle(self) -> None:
        """Before a row may be written: copy it for every selection that shares it."""
        if self._picked is not None:
            self._own()
        elif self._lent:
            for column in list(self._lent):
                column._own()
            self._lent.clear()

    def member(self, row: int) -> NonTensorData:
        """The wrapper of an object; the same one on every access."""
        self._settle()
        cell = self._cells[row]
        if not isinstance(cell, NonTensorData):
            self._has_members = True
            cell = self._cells[row] = NonTensorData(cell, batch_size=self._size, device=self.device)
        return cell

    def made(self, rows: Sequence[int]) -> list[NonTensorData]:
        """The members created so far among some rows."""
        if not self._has_members:
            return []
        cells = self._cells
        return [cells[row] for row in rows if isinstance(cells[row], NonTensorData)]

    def objects(self, rows: Sequence[int]) -> list[Any]:
        """The objects of some rows, in a new list."""
        if self._lender is not None:
            return self._lender.objects(self.numbers(rows))
        cells = self._cells
        if type(rows) is range and rows.step > 0:
            found = cells[rows.start : rows.stop : rows.step]
        else:
            found = [cells[row] for row in rows]
        if self._has_members:
            found = [cell._payload if isinstance(cell, NonTensorData) else cell for cell in found]
        return found

    def selected(self, rows: Sequence[int]) -> tuple[PayloadColumn, Sequence[int]]:
        """A copy of some rows, which shares their objects until either is written, and their positions in it."""
        lender = self._lender or self
        if lender._has_members:  # which may be written by their holders
            return PayloadColumn(self.objects(rows), self._size, self.device), range(len(rows))
        new = PayloadColumn([], self._size, self.device)
        new._lender, new._picked = lender, self.numbers(rows)
        self._lend(new)
        return new, range(len(rows))

    def copied(self, rows: Sequence[int]) -> tuple[PayloadColumn, Sequence[int]]:
        """:meth:`selected` with copies of the objects."""
        values = [value if type(value) in IMMUTABLE else copy.deepcopy(value) for value in self.objects(rows)]
        return PayloadColumn(values, self._size, self.device), range(len(values))

    def pickled(self, rows: Sequence[int]) -> Any:
        """The content of some rows for another process: their objects, or an address to open there."""
        return self.objects(rows)


class ObjectRows(LazyStackedTensorDict):
    """A lazy stack whose members are created on first access.

    ``_members`` is its list of members, or None while it is rows ``_rows`` of the column ``_objects``.
    """

    __slots__ = ("_members", "_objects", "_rows")

    _members: list[Any] | None
    _objects: PayloadColumn | None
    _rows: Sequence[int]

    @classmethod
    def _of_objects(
        cls, values: list[Any], dim: int = 0, size: torch.Size = _NO_SIZE, device: torch.device | None = None
    ) -> Any:
        """Trusted constructor: a stack of one object per row. The list is taken over; no object is a collection."""
        return cls._of_rows(PayloadColumn(values, size, device), range(len(values)), dim, size, device)

    @classmethod
    def _of_rows(cls, column: PayloadColumn, rows: Sequence[int], dim: int, size: torch.Size, device: Any) -> Any:
        new = object.__new__(cls)
        new._set_rows(column, rows, dim, size, device)
        return new

    def _set_rows(self, column: PayloadColumn, rows: Sequence[int], dim: int, size: torch.Size, device: Any) -> None:
        self._members = None
        self._objects, self._rows = column, rows
        self._stack_dim = dim
        self._batch_size = torch.Size((*size[:dim], len(rows), *size[dim:]))
        self._device = device
        self._names = None
        self._types = None
        self._lock = None

    # -- all members, for code that does not use the column ---------------------------------------------------

    @property
    def _source(self) -> list[Any]:
        if self._members is None:
            column, rows = self._objects, self._rows
            if column is not None:
                members = [column.member(row) for row in rows]
                self._saves(members)
                if self._lock is not None:
                    self._lock_made(members)
                self._members = members
                self._objects = None
        return self._members  # type: ignore[return-value]  # there is a column or a list

    @_source.setter
    def _source(self, members: list[Any]) -> None:
        self._members = members
        self._objects = None

    def _payloads(self) -> list[Any] | None:
        """The objects of the rows, one per row; None if rows are stacks or hold other values."""
        column = self._objects
        if column is not None:
            return column.objects(self._rows)
        members = self._source
        if {NonTensorData}.issuperset(map(type, members)):
            return [member._payload for member in members]
        return None

    def _view(self, column: PayloadColumn, rows: Sequence[int]) -> Any:
        """Other rows of its column, or rows of a copy of it; locked like this one."""
        new = self._over_rows(column, rows)
        if self._lock is not None:
            new._lock = []
        return new

    def _over_rows(self, column: PayloadColumn, rows: Sequence[int]) -> Any:
        cls = type(self) if type(column) is type(self._objects) else self._class_for(())
        new = cls._of_rows(column, rows, self._stack_dim, self._member_batch_size(), self._device)
        new._names = self._names
        if column is self._objects:
            self._saves((new,))
        return new

    # -- the file of a memory-mapped stack, which writes into its rows rewrite -----------------------------------

    _saved_by = NonTensorDataBase._saved_by

    def _saves(self, parts: Iterable[Any]) -> None:
        """Let writes into rows of this stack rewrite its file."""
        home = self._saved_by()
        if home is not None:
            for part in parts:
                part._home = home

    def _without_file(self) -> Any:
        """The same rows, whose writes reach no file."""
        if self._objects is None:
            return self
        new = self._over_rows(self._objects, self._rows)
        new._home = None
        return new

    # -- primitives -----------------------------------------------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        return [] if self._objects is not None else super()._leaves()

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Any:
        column = self._plain_column()
        if column is None:
            return super()._with_leaves(leaves)
        return self._over_rows(*column.selected(self._rows))

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Any:
        column = self._plain_column()
        if fn in SHARING:
            if column is not None:
                return self._over_rows(column, self._rows)
            return self._with_members(list(self._source)) if self._lock is None else super()._map_leaves(fn)
        if column is None:
            return super()._map_leaves(fn)
        return self._over_rows(*(column.copied(self._rows) if fn is Tensor.clone else column.selected(self._rows)))

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        return self._map_leaves(Tensor.clone if recurse else same)  # without its members

    def _plain_column(self) -> PayloadColumn | None:
        """Its column, if all rows are objects; read once, as another thread may create the members."""
        return self._objects if self._names is None else None

    def _key_list(self) -> list[str]:
        return [] if self._objects is not None else super()._key_list()

    def _get_str(self, key: str) -> Any:
        if self._objects is not None:
            raise KeyError(key)
        return super()._get_str(key)

    def __contains__(self, key: Any) -> bool:
        return False if self._objects is not None and type(key) is str else super().__contains__(key)

    # -- lock -----------------------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        return self._lock is not None if self._objects is not None else super().is_locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        LazyStackedTensorDict.is_locked.fset(self, value)  # type: ignore[attr-defined]  # mypy sees no property

    def _lockable(self) -> Iterable[Kernel]:
        column = self._objects
        return super()._lockable() if column is None else column.made(self._rows)

    def _lock_made(self, members: Iterable[NonTensorData]) -> None:
        me: weakref.ref[Kernel] = weakref.ref(self)
        for member in members:
            if member._lock is None:
                member._propagate_lock(me)

    # -- rows -----------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self._objects is not None and not self._stack_dim:
            return self._row(index)
        return super().__getitem__(index)

    def _row(self, index: int) -> Any:
        column = self._objects
        if column is None:
            return self._source[index]
        try:
            member = column.member(self._rows[index])
        except IndexError:
            raise IndexError(f"index {index} is out of bounds for the stack dim of size {len(self._rows)}") from None
        self._saves((member,))
        if self._lock is not None:
            self._lock_made((member,))
        return member

    def _index(self, index: Any) -> Any:
        if index is None:
            return self.unsqueeze(0)
        if type(index) is tuple and all(type(part) in _VIEWS for part in index) and None in index:
            return self._with_new_axes(index)
        column = self._plain_column()
        if column is not None and not self._stack_dim:
            if type(index) is tuple and len(index) == 1:
                index = index[0]
            if type(index) is int:
                return self._row(index)
            rows = self._rows_at(index)
            if rows is not None and not rows:
                return self._empty_like(index)
            if rows is not None:
                return self._view(*((column, rows) if type(index) is slice else column.selected(rows)))
        return super()._index(index)

    def _with_new_axes(self, index: tuple[Any, ...]) -> Any:
        out = self._index(tuple([part for part in index if part is not None]) or (slice(None),))
        for at, part in enumerate([part for part in index if type(part) is not int]):
            if part is None:
                out = out.unsqueeze(at)
        return out

    def unsqueeze(self, dim: int) -> Any:
        at = new_dim(dim, self._batch_size)
        names = None if self._names is None else [*self._names[:at], None, *self._names[at:]]
        return self._undoable(self._restacked([self], at, names), lambda result: result.squeeze(at))

    def _index_each(self, plan: Any) -> Any:
        return copied(super()._index_each(plan))

    def _assign_member(self, member: int, rest: tuple[Any, ...], value: Any) -> None:
        column = self._plain_column()
        if column is None or column._size:
            super()._assign_member(member, rest, value)
        else:
            column.member(self._rows[member])._assign_rows(rest, value)

    def _rows_at(self, index: Any) -> Sequence[int] | None:
        """The rows of the column that a slice or a tensor selects; None if it cannot be read directly or is invalid."""
        if type(index) is slice:
            return self._rows[index]
        return self._picked_rows(index) if isinstance(index, Tensor) and index.dim() == 1 else None

    def _picked_rows(self, index: Tensor) -> Sequence[int] | None:
        """As :meth:`_rows_at`, of a tensor."""
        rows, count = self._rows, len(self._rows)
        is_mask = index.dtype in (torch.bool, torch.uint8)
        if is_mask:
            if len(index) != count:
                return None
            index = index.nonzero().flatten()
        elif index.dtype.is_floating_point or index.dtype.is_complex:
            return None
        picked: Any = index.to(torch.int64).numpy()
        low = 0
        if not is_mask and len(picked):
            low = picked.min()
            if low < -count or picked.max() >= count:
                return None
        if low < 0 or rows != range(count):
            picked = numbers_of(rows)[picked]
        found = array("q")  # a quarter of the size of a list of numbers
        found.frombytes(np.ascontiguousarray(picked).data.cast("B"))
        return found

    def _parts(self, cut: Any, lengths: Sequence[int], dim: int) -> tuple[Any, ...]:
        column = self._plain_column()
        if column is None or dim != self._stack_dim or 0 in lengths:
            return super()._parts(cut, lengths, dim)
        stops = itertools.accumulate(lengths)
        return tuple([self._view(column, self._rows[stop - n : stop]) for n, stop in zip(lengths, stops)])

    # -- pickling -------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        column = self._plain_column()
        if column is None or not all(map(self._holds_no_more, column.made(self._rows))):
            return super().__getstate__()
        return {
            "objects": column.pickled(self._rows),
            "stack_dim": self._stack_dim,
            "size": tuple(self._member_batch_size()),
            "device": self._device,
            "names": self._names,
            "locked": self._lock is not None,
        }

    def _holds_no_more(self, member: NonTensorData) -> bool:
        """Whether a new member for this object would be equal to this one."""
        return (
            type(member) is NonTensorData
            and member._batch_size == self._member_batch_size()
            and member._device == self._device
            and member._names is None
            and (member._lock is None) is (self._lock is None)
            and getattr(member, "_memmap_path", None) is None
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "objects" not in state:
            super().__setstate__(state)
            return
        size, values, device = torch.Size(state["size"]), state["objects"], state["device"]
        column = PayloadColumn(values, size, device) if type(values) is list else values.opened(size, device)
        self._set_rows(
            column, range(len(values)) if type(values) is list else values.rows, state["stack_dim"], size, device
        )
        self._names = state["names"]
        self._lock = [] if state["locked"] else None
