"""A column of objects, stored as a list until a wrapper of one is needed.

A :class:`~tensordict_lite.NonTensorStack` of a million strings would be a million collections. Instead, its objects are
in a :class:`PayloadColumn`, and rows of it (a slice, selected rows) are positions in the same column::

    stack ─────────► Column: ["a", "b", NonTensorData("c"), "d", ...]
    stack[1:3] ────►              1 ─────────────── 3

A member is created on first access and then replaces its object in the column, so that each later access to that row
gives the same member: a write through a slice is visible in the whole, as with tensors. An operation that does not
support columns uses the list of all members, like that of any lazy stack.
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
from tensordict_lite.objects.data import IMMUTABLE, NonTensorData

_NO_SIZE = torch.Size(())


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

    __slots__ = ("_cells", "_has_members", "_size", "device")

    def __init__(self, objects: list[Any], size: torch.Size, device: torch.device | None) -> None:
        self._cells = objects
        self._size = size
        self.device = device
        self._has_members = False

    def member(self, row: int) -> NonTensorData:
        """The wrapper of an object; the same one on every access."""
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
        cells = self._cells
        if type(rows) is range and rows.step > 0:
            found = cells[rows.start : rows.stop : rows.step]
        else:
            found = [cells[row] for row in rows]
        if self._has_members:
            found = [cell._payload if isinstance(cell, NonTensorData) else cell for cell in found]
        return found

    def copied(self, rows: Sequence[int], deep: bool) -> tuple[PayloadColumn, Sequence[int]]:
        """A separate column with the objects of some rows (``deep``: copies), and their positions in it."""
        values = self.objects(rows)
        if deep:
            values = [value if type(value) in IMMUTABLE else copy.deepcopy(value) for value in values]
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
        """Other rows of its column."""
        new = self._of_rows(column, rows, self._stack_dim, self._member_batch_size(), self._device)
        new._names = self._names
        if self._lock is not None:
            new._lock = []
        return new

    # -- primitives -----------------------------------------------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        return [] if self._objects is not None else super()._leaves()

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Any:
        column = self._plain_column()
        return super()._with_leaves(leaves) if column is None else self._copied(column, False)

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Any:
        column = self._plain_column()
        return super()._map_leaves(fn) if column is None else self._copied(column, fn is Tensor.clone)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Any:
        column = self._plain_column()
        return super().clone(recurse, **kwargs) if column is None else self._copied(column, recurse)

    def _plain_column(self) -> PayloadColumn | None:
        """Its column, if all rows are objects; read once, as another thread may create the members."""
        return self._objects if self._names is None else None

    def _copied(self, column: PayloadColumn, deep: bool) -> Any:
        new, rows = column.copied(self._rows, deep)
        cls = type(self) if type(new) is type(column) else self._class_for(())
        out = cls._of_rows(new, rows, self._stack_dim, self._member_batch_size(), self._device)
        out._names = self._names
        return out

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
        if self._lock is not None:
            self._lock_made((member,))
        return member

    def _index(self, index: Any) -> Any:
        column = self._plain_column()
        if column is not None and not self._stack_dim:
            if type(index) is tuple and len(index) == 1:
                index = index[0]
            kind = type(index)
            if kind is int:
                return self._row(index)
            rows = None
            if kind is slice:
                rows = self._rows[index]
            elif isinstance(index, Tensor) and index.dim() == 1:
                rows = self._picked_rows(index)
            if rows is not None:
                return self._view(column, rows) if rows else self._empty_like(index)
        return super()._index(index)

    def _picked_rows(self, index: Tensor) -> Sequence[int] | None:
        """The rows that a tensor selects; None if it cannot be read directly or is invalid."""
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
