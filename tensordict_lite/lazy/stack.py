"""A stack of collections that is not materialised.

:class:`LazyStackedTensorDict` keeps its members in a list and stacks an entry when it is read. Members may have
different keys (the common ones are visible on the stack), and an entry may have a different shape in each. A value
operation runs on the leaves of all members at once; a shape operation adjusts the stack dimension and runs on each
member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense.combine import cat, stacked
from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.indexing import normalise_index
from tensordict_lite.kernel import DeviceLike, Flat, as_size, stacked_names
from tensordict_lite.keys import missing_key_error, path_of, require_path
from tensordict_lite.lazy.index import LazyIndexOps
from tensordict_lite.lazy.ragged import member_tensors, nested, padded
from tensordict_lite.lazy.shape import LazyShapeOps
from tensordict_lite.lazy.storage import (
    member_device,
    member_names,
    member_size,
    stack_error,
    stack_position,
)
from tensordict_lite.lazy.values import LazyValueOps
from tensordict_lite.lazy.write import LazyWriteOps
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.views import public


class LazyStackedTensorDict(LazyWriteOps, LazyIndexOps, LazyShapeOps, LazyValueOps, TensorDictBase):
    """A stack of collections along a new dimension, whose entries are stacked when they are read.

    Args:
        *tensordicts: the members, all with the same number of batch dimensions. Dimensions in which their batch sizes
            differ are -1 in the batch size of the stack.
        stack_dim: position of the new dimension in the batch size of the stack; negative counts from its end.
        batch_size: batch size of the members, for an empty stack.
        device: device of an empty stack.
        names: names of all batch dimensions of the stack.
        stack_dim_name: name of the new dimension.
        strict_shape: raise for members of different batch sizes.

    Raises:
        RuntimeError: batch sizes or devices are incompatible, or ``stack_dim`` is out of range.
        ValueError: the names of the members differ.

    Example:
        >>> stack = LazyStackedTensorDict(
        ...     TensorDict(a=torch.zeros(2), b=torch.ones(3)), TensorDict(a=torch.ones(2), b=torch.ones(4))
        ... )
        >>> stack["a"].shape, stack[1]["b"].shape, [b.shape[0] for b in stack.get("b", as_list=True)]
        (torch.Size([2, 2]), torch.Size([4]), [3, 4])
    """

    __slots__ = ()
    _stack_priority: float = 2

    def __init__(
        self,
        *tensordicts: TensorCollection,
        stack_dim: int = 0,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: DeviceLike | None = None,
        names: Sequence[str | None] | None = None,
        stack_dim_name: str | None = None,
        strict_shape: bool = False,
    ) -> None:
        members = list(tensordicts)
        require_collections(members)
        size = member_size(members, strict_shape) if members else as_size(() if batch_size is None else batch_size)
        dim = stack_position(stack_dim, len(size))
        self._source = members
        self._stack_dim = dim
        self._batch_size = torch.Size((*size[:dim], len(members), *size[dim:]))
        self._device = member_device(members, device)
        self._names = member_names(members, dim, stack_dim_name)
        self._types = None
        self._lock = None
        if names is not None:
            self.names = names

    # -- members ------------------------------------------------------------------------------------------

    @property
    def tensordicts(self) -> list[Any]:
        """The members, in order (a copy of the list, not of the members)."""
        return list(self._source)

    @tensordicts.setter
    def tensordicts(self, members: Sequence[Any]) -> None:
        self._require_unlocked()
        new = self._class_for(members)(*members, stack_dim=self._stack_dim)
        self._source, self._batch_size, self._device = new._source, new._batch_size, new._device
        self._names = new._names

    @property
    def stack_dim(self) -> int:
        """Position of the stack dimension in the batch size."""
        return self._stack_dim

    def insert(self, index: int, tensordict: Any) -> None:
        """Insert a member before position ``index`` along the stack dimension, as :meth:`list.insert`.

        Raises:
            TypeError: not a tensor collection.
            ValueError: its batch size or device differs from that of the members.
            RuntimeError: the stack is locked.
        """
        self._require_unlocked()
        tensordict = self._check_member(tensordict)
        members = self._source
        if not members:  # an empty stack takes the shape of its first member
            size = tensordict._batch_size
            if self._stack_dim > len(size):
                raise ValueError(f"a member of batch size {list(size)} cannot have the stack dim {self._stack_dim}")
            self._device = tensordict._device if self._device is None else self._device
        else:
            size = self._member_batch_size()
        members.insert(index, tensordict)
        dim = self._stack_dim
        self._batch_size = torch.Size((*size[:dim], len(members), *size[dim:]))

    def _check_member(self, value: Any) -> Any:
        if not isinstance(value, TensorCollection):
            raise TypeError(
                f"Expected new value to be TensorDictBase instance but got {type(value)} instead: the members of a "
                "lazy stack are tensor collections"
            )
        if self._source:
            size = self._member_batch_size()
            if value._batch_size != size and not (-1 in size and len(value._batch_size) == len(size)):
                raise ValueError(
                    f"Batch sizes in tensordicts differs: stack has batch_size={size}, new_value has "
                    f"batch_size={value._batch_size}."
                )
        if value._device != self._device and self._source:
            raise ValueError(f"Devices differ: stack has device={self._device}, new value has device={value._device}.")
        return value

    def append(self, tensordict: Any) -> None:
        """Add a member at the end of the stack dimension, see :meth:`insert`."""
        self.insert(len(self._source), tensordict)

    def extend(self, tensordicts: Iterable[Any]) -> None:
        """Add several members at the end of the stack dimension, see :meth:`insert`."""
        for member in list(tensordicts):
            self.insert(len(self._source), member)

    # -- primitives ---------------------------------------------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        out: list[Tensor] = []
        for member in self._source:
            out.extend(member._leaves(ragged))
        return out

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Self:
        return self._with_members([member._with_leaves(leaves, ragged) for member in self._source])

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Self:
        return self._with_members([member._map_leaves(fn, ragged) for member in self._source])

    def _nested(self) -> Iterable[TensorCollection]:
        return self._source

    def _key_list(self) -> list[str]:
        members = self._source
        if not members:
            return []
        keys = members[0]._key_list()
        first = members[0]._source
        for member in members[1:]:
            source = member._source
            if type(source) is not dict:
                source = dict.fromkeys(member._key_list())
            if type(first) is not dict or source.keys() != first.keys():
                keys = [key for key in keys if key in source]
        return keys

    def _column(self, key: str) -> list[Any]:
        """The entries of the members under a key; KeyError if one of them lacks it."""
        try:
            return [member._source[key] for member in self._source]
        except TypeError:  # a member is a lazy stack itself
            return [member._get_str(key) for member in self._source]

    def _get_str(self, key: str) -> Any:
        if not self._source:
            raise KeyError(key)
        return self._stack_column(self._column(key), key)

    def _stack_column(self, values: list[Any], key: str) -> Any:
        try:
            if isinstance(values[0], Tensor):
                return torch.stack(values, self._stack_dim)
        except (RuntimeError, TypeError) as err:
            raise stack_error(values, key, err) from None
        for value in values:
            if not isinstance(value, TensorCollection):
                raise stack_error(values, key, None)
        stack = registry.stack_lazily(values, self._stack_dim)
        if self._names is not None:
            stack._names = stack.names
            stack._names[self._stack_dim] = self._names[self._stack_dim]
        if self._lock is not None:
            stack._lock = []
        return stack

    def _set_str(self, key: str, value: Any) -> None:
        for member, piece in zip(self._source, self._pieces(value)):
            member._set_str(key, piece)

    def _del_str(self, key: str) -> None:
        """Remove an entry from every member that has it; KeyError if none has."""
        found = False
        for member in self._source:
            try:
                member._del_str(key)
                found = True
            except KeyError:
                continue
        if not found:
            raise KeyError(key)

    def _pieces(self, value: Any) -> Sequence[Any]:
        """A fitting value cut into the parts of the members."""
        if isinstance(value, (list, tuple)):
            return value
        return value.unbind(self._stack_dim)

    # -- reading ------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        cls = type(index)
        if cls is str:
            try:
                value = self._get_str(index)
            except KeyError:
                raise missing_key_error(index, self._key_list(), type(self).__name__) from None
            return value if isinstance(value, Tensor) else value._as_value()
        if cls is int and self._stack_dim == 0:
            try:
                return self._source[index]
            except IndexError:
                raise IndexError(
                    f"index {index} is out of bounds for the stack dim of size {len(self._source)}"
                ) from None
        if cls is tuple:
            path = path_of(index)
            if path:
                value = self._get_path_slowly(path)
                return value if isinstance(value, Tensor) else value._as_value()
        return self._index(normalise_index(index, len(self._batch_size)))

    def get(
        self,
        key: Any,
        default: Any = MISSING,
        *,
        as_list: bool = False,
        as_nested_tensor: bool = False,
        as_padded_tensor: bool = False,
        layout: torch.layout | None = None,
        padding_side: str = "right",
        padding_value: float = 0.0,
    ) -> Any:
        """Entry at a nested key, stacked along the stack dimension.

        Args:
            key: string or (nested) tuple of strings that every member has.
            default: returned if a member lacks the key, or the key continues below a tensor. Without it a missing key
                gives ``None``, or KeyError under ``set_get_defaults_to_none(False)``.
            as_list: a list of the tensors of the members; for stacks of stacks, nested lists.
            as_nested_tensor: a nested tensor of them, members first; ``layout`` is ``torch.jagged`` or
                ``torch.strided`` (default: the first that can hold them).
            as_padded_tensor: one tensor, members first; shorter ones are filled with ``padding_value`` at the
                ``padding_side`` (``"right"`` or ``"left"``).

        Raises:
            RuntimeError: the shapes differ and none of the forms above is requested.
            KeyThroughLeafError: (a ValueError) the key continues below a tensor, and there is no default.
        """
        if type(key) is str:
            if not (as_list or as_nested_tensor or as_padded_tensor):
                try:
                    return public(self._get_str(key))
                except KeyError:
                    pass
            path: tuple[str, ...] = (key,)
        else:
            path = require_path(key)
        try:
            if as_list or as_nested_tensor or as_padded_tensor:
                values = member_tensors(self, path)
                if values is None:  # not tensors: the lazy stack itself
                    return public(self._get_path_slowly(path))
                if as_list:
                    return values
                if as_nested_tensor:
                    return nested(values, layout)
                return padded(values, padding_side, padding_value, key)
            return public(self._get_path_slowly(path))
        except (KeyError, KeyThroughLeafError) as error:
            if default is not MISSING:
                return default
            if isinstance(error, KeyThroughLeafError):
                with suppress(KeyError):  # raises if a member has no entry at all
                    self._raise_missing(path)
            if settings.get_defaults_to_none:
                return None
            raise missing_key_error(path, self._key_list(), type(self).__name__) from None

    def __contains__(self, key: Any) -> bool:
        if isinstance(key, TensorCollection):
            return any(member is key for member in self._source)
        if isinstance(key, tuple) and not path_of(key):
            return TensorCollection.__contains__(self, key)
        return bool(self._source) and all(key in member for member in self._source)

    _get_path = TensorCollection._get_path_slowly

    # -- batch size, names, lock --------------------------------------------------------------------------

    def _change_batch_size(self, new: torch.Size) -> None:
        if new != self._batch_size:
            raise RuntimeError(
                f"the batch size {list(self._batch_size)} of a lazy stack is that of its members: it cannot become "
                f"{list(new)}. Make it dense first with to_tensordict()."
            )

    def _set_names(self, names: list[str | None] | None) -> None:
        self._names = names
        dim = self._stack_dim
        for member in self._source:
            if names is None:
                member._set_names(None)
                continue
            own = [*names[:dim], *names[dim + 1 :]]
            member._set_names(None if all(name is None for name in own) else own)

    @property
    def is_locked(self) -> bool:
        """Whether entries can only be modified in place: the stack was locked, or every member is."""
        if self._lock is not None:
            return True
        return bool(self._source) and all(member.is_locked for member in self._source)

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    def unlock_(self) -> Self:
        """:meth:`TensorDict.unlock_`; members that were locked on their own are unlocked as well."""
        if self._lock is None and self.is_locked:
            self._propagate_lock(None)
        return super().unlock_()

    def is_memmap(self) -> bool:
        """Whether the stack or every member was memory-mapped; also true for a nested stack of a mapped stack."""
        return super().is_memmap() or self._every_member(lambda member: member.is_memmap())

    def is_shared(self) -> bool:
        """Whether :meth:`share_memory_` was called on the stack or on every member, since the last unlock."""
        return super().is_shared() or self._every_member(lambda member: member.is_shared())

    def _every_member(self, holds: Callable[[Any], bool]) -> bool:
        return not self._is_non_tensor and bool(self._source) and all(map(holds, self._source))

    # -- pickling -----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {
            "members": self._source,
            "stack_dim": self._stack_dim,
            "batch_size": tuple(self._batch_size),
            "device": self._device,
            "names": self._names,
            "locked": self._lock is not None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source = state["members"]
        self._stack_dim = state["stack_dim"]
        self._batch_size = torch.Size(state["batch_size"])
        self._device = state["device"]
        self._names = state["names"]
        self._types = None
        self._lock = None
        if state["locked"]:
            self._propagate_lock(None)

    # -- combining ----------------------------------------------------------------------------------------

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        """``torch.stack`` of lazy stacks, member by member, so that shapes may differ."""
        kinds = [isinstance(item, LazyStackedTensorDict) for item in items]
        if not all(kinds) or any(item._stack_dim != items[0]._stack_dim for item in items):
            dense = [item._dense_or_none() if lazy else item for item, lazy in zip(items, kinds)]
            if all(item is not None for item in dense):
                return stacked(dense, dim)
        model, columns = member_columns(items)
        at = model._stack_dim
        inner = dim - (dim > at)
        members = [stacked(column, inner) for column in columns]
        return model._restacked(members, at + (dim <= at), stacked_names(items, dim), locked=False)

    @classmethod
    def _cat_entries(cls, items: Sequence[Any], dim: int) -> Any:
        model = next(item for item in items if isinstance(item, LazyStackedTensorDict))
        at = model._stack_dim
        if dim == at:
            return model._restacked([member for item in items for member in item.unbind(at)], at, model._names, False)
        model, columns = member_columns(items)
        return model._restacked([cat(column, dim - (dim > at)) for column in columns], at, model._names, locked=False)


def require_collections(members: Sequence[Any]) -> None:
    """Raise TypeError for a member that is not a tensor collection."""
    for member in members:
        if not isinstance(member, TensorCollection):
            raise TypeError(f"the members of a lazy stack are tensor collections, got a {type(member).__name__}")


def member_columns(items: Sequence[Any]) -> tuple[Any, Iterable[Any]]:
    """A lazy stack among the items, and for each of its members the matching parts of all items."""
    model = next(item for item in items if isinstance(item, LazyStackedTensorDict))
    at = model._stack_dim
    for item in items:
        if len(item._batch_size) != len(model._batch_size) or item._batch_size[at] != len(model._source):
            raise RuntimeError(
                "stacking tensordicts requires them to have congruent batch sizes, and lazy stacks the same number of "
                f"stacked tensordicts, got {list(item._batch_size)} and {list(model._batch_size)}"
            )
    return model, [list(column) for column in zip(*(item.unbind(at) for item in items))]
