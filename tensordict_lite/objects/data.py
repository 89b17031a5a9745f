"""Any Python object as an entry: one value for the whole batch, or one value per element.

:class:`NonTensorData` is a collection without entries and with a payload, so shape operations only change its batch
size. Values that differ per row are a :class:`NonTensorStack`, a lazy stack of them.
"""

from __future__ import annotations

import copy
import functools
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.errors import EntryKindError
from tensordict_lite.kernel import DeviceLike, Flat, Kernel, as_size, check_names, normalise_device
from tensordict_lite.ops.cast import SHARING
from tensordict_lite.ops.rows import check_pad
from tensordict_lite.registry import register
from tensordict_lite.settings import MISSING, settings

DEFERRED: set[int] = set()
"""Identities of memory-mapped stacks that rewrite their file once, when a write into several rows ends."""


class NonTensorDataBase(DenseCollection):
    """One Python object under a batch size: the base of :class:`NonTensorData` and :class:`MetaData`.

    Args:
        data: the object; of another instance, its content.
        batch_size: the batch size. Defaults to ``[]``.
        device: stored, for consistency with the collection that holds it.
        names: names of the batch dimensions.
    """

    __slots__ = ()

    _is_non_tensor = True

    def __init__(
        self,
        data: Any,
        *,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: DeviceLike | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
    ) -> None:
        size = torch.Size(()) if batch_size is None else as_size(batch_size)
        self._cell = [data._payload if isinstance(data, NonTensorDataBase) else data]
        self._source = {}
        self._batch_size = size
        self._device = None if device is None else normalise_device(device)
        self._names = None if names is None else check_names(names, len(size))
        self._types = None
        self._lock = None
        if lock:
            self._propagate_lock(None)

    # -- every result keeps the payload; a view of all elements also gets what is written later ---------------

    @property
    def _payload(self) -> Any:
        return self._cell[0]

    @_payload.setter
    def _payload(self, payload: Any) -> None:
        self._cell[0] = payload

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Self:
        new = Kernel._rebuild(self, source, batch_size, names)  # super() would search every family
        new._cell = [self._cell[0]]
        return new

    def _sharing(self, view: Any) -> Any:
        """``view``, a result of all elements, with the object and the file of this entry."""
        view._cell = self._cell
        home = self._saved_by()
        if home is not None and home is not view:
            view._home = home
        return view

    def _saved_by(self: Any) -> Any:  # of rows with an object each as well
        """The memory-mapped entry whose file holds the objects, itself or the one that it is a view of; or None."""
        return self if getattr(self, "_memmap_path", None) else getattr(self, "_home", None)

    def _save(self: Any) -> None:
        """Rewrite the file of a memory-mapped entry."""
        folder = getattr(self, "_memmap_path", None)  # None: it was unlocked
        if folder:
            registry.rewrite(self, folder)

    def _whole(self, view: Any) -> Any:
        """``view``, of some of the elements; one of all of them is written with this entry."""
        return self._sharing(view) if view._batch_size.numel() == self._batch_size.numel() else view

    def _cut_entries(self, *args: Any) -> Any:
        return tuple([self._whole(part) for part in super()._cut_entries(*args)])

    def _narrowed(self, dim: int, start: int, length: int) -> Any:
        return self._whole(super()._narrowed(dim, start, length))

    def _index(self, index: Any) -> Any:
        found = super()._index(index)
        parts = index if type(index) is tuple else (index,)
        return self._whole(found) if VIEWS.issuperset(map(type, parts)) else found

    def _slice_rows(self, index: slice) -> Any:
        return self._whole(super()._slice_rows(index))

    @property
    def data(self) -> Any:
        """The object. Assignable, unless the collection is locked."""
        return self._payload

    @data.setter
    def data(self, value: Any) -> None:
        self._require_unlocked()
        self._replace(value)

    def _replace(self, payload: Any) -> None:
        """Replace the object, here and in the file of a memory-mapped entry."""
        old, self._payload = self._payload, payload
        home = self._saved_by()
        try:
            if home is not None and id(home) not in DEFERRED:
                home._save()
        except BaseException:
            self._payload = old
            raise

    def _as_value(self) -> Any:
        return self._payload

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        new = self._rebuild({}, self._batch_size, self._names)
        if not recurse:
            return self._sharing(new)
        if type(self._payload) not in IMMUTABLE:
            new._payload = copy.deepcopy(self._payload)
        return new

    def to_tensordict(self, **kwargs: Any) -> Self:
        return self.clone()

    def to_dict(self, **kwargs: Any) -> Any:
        """The object."""
        return self._payload

    def tolist(self, *, convert_nodes: bool = True, convert_tensors: Any = False, tolist_first: bool = False) -> Any:
        """The object once per element, in nested lists of the shape of the batch."""
        return filled(self._payload, tuple(self._batch_size))

    def is_empty(self) -> bool:
        return False

    def get(self, key: Any, default: Any = MISSING, **stacked_as: Any) -> Any:
        """The object for ``"data"``, else the default (``None``), whatever form is requested."""
        if key == "data":
            return self._payload
        return super().get(key) if default is MISSING else super().get(key, default)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise ValueError(
                f"invalid index {index!r}: non-tensor data is indexed along its batch dimensions, its object is `.data`"
            )
        found = super().__getitem__(index)
        return self._whole(found) if type(index) is int else found

    # -- writing -------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, NonTensorDataBase) and same_payload(value._payload, self._payload):
            self[index]  # an index out of range still raises
            return
        raise ValueError(
            "a NonTensorData holds one value for all of its elements, so none can be assigned at an index. "
            "Call maybe_to_stack() for a NonTensorStack, which holds one value per element."
        )

    def _set_index(self, index: Any, value: Any) -> None:
        self[index] = value

    def _holds_type_of(self, value: Any) -> bool:
        return type(value) is type(self._payload)

    def _assign_rows(self, index: Any, item: Any) -> TensorCollection:
        if isinstance(item, TensorCollection) and not item._is_non_tensor:
            raise EntryKindError("", self, item)
        if isinstance(item, NonTensorDataBase) and same_payload(item._payload, self._payload):
            return self
        if not self._batch_size:
            return self._overwrite(item, self)
        stack = self.maybe_to_stack()
        folder = getattr(self, "_memmap_path", None)
        if folder is not None:
            stack._memmap_path = folder
        stack._set_index(index, item)
        if self._lock is not None:
            stack._propagate_lock(None)
            stack._lock = list(self._lock)
        return stack

    def _overwrite(self, item: Any, parent: TensorCollection) -> TensorCollection:
        if isinstance(item, list) and settings.list_to_stack:
            item = _stacked(item, self._device)
        if isinstance(item, TensorCollection) and not isinstance(item, NonTensorDataBase):
            if item._is_non_tensor and self._batch_size and item._batch_size == self._batch_size:
                return self._assign_rows((slice(None),) * len(self._batch_size), item)  # one object per row
            raise EntryKindError("", self, item)
        self._replace(item._payload if isinstance(item, NonTensorDataBase) else item)
        return self

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        """Take the object of another :class:`NonTensorData`.

        Raises:
            RuntimeError: the source is of another class, or this collection is locked.
        """
        if self._lock is not None and not inplace and not kwargs.get("ignore_lock"):
            raise self._locked_error()
        if not isinstance(input_dict_or_td, NonTensorDataBase):
            raise RuntimeError(
                f"a NonTensorData is updated with a NonTensorData, not with a {type(input_dict_or_td).__name__}"
            )
        payload = input_dict_or_td._payload
        self._replace(copy.deepcopy(payload) if clone else payload)
        return self

    def update_(self, input_dict_or_td: Any = None, **kwargs: Any) -> Self:
        return self.update(input_dict_or_td, inplace=True)

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        return self.update(tensordict, False, True)

    def where(self, condition: Tensor, other: Any, **kwargs: Any) -> Any:
        """The object where ``condition`` holds, and that of ``other`` elsewhere: a stack if they differ."""
        if other is None or isinstance(other, (Tensor, bool, int, float, complex)):
            return copied(self)  # a number is for tensors, not for objects
        other = other if is_non_tensor(other) else NonTensorData(other, batch_size=self._batch_size)
        if isinstance(other, NonTensorDataBase) and same_payload(other._payload, self._payload):
            return copied(self)
        if not condition.ndim:
            return copied(self if bool(condition) else other)
        return self.maybe_to_stack().where(condition, other)

    def set(self, key: Any, item: Any, inplace: bool = False, **kwargs: Any) -> Self:
        """Replace the object, under the key ``"data"``.

        Raises:
            KeyError: any other key.
        """
        if key != "data":
            raise no_entries_error(self, key)
        self.data = item
        return self

    def flatten_keys(self, *args: Any, **kwargs: Any) -> Self:
        return self

    unflatten_keys = flatten_keys

    def pad(self, pad_size: Sequence[int], value: Any = None, inplace: bool = False) -> Any:
        """More rows before and after, which hold ``None``: a stack, unless no rows are added.

        Raises:
            RuntimeError: ``inplace``, since this cannot become a stack.
        """
        check_pad(self, pad_size)
        if not any(pad_size):
            return self
        if inplace:
            raise RuntimeError(
                f"pad(..., inplace=True) cannot preserve the identity of a {type(self).__name__}: the rows that are "
                "added hold None, so the result is a NonTensorStack"
            )
        return self.maybe_to_stack().pad(pad_size)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object.

        Raises:
            TypeError: it is not callable.
        """
        if not callable(self._payload):
            raise TypeError(f"this {type(self).__name__} holds a {type(self._payload).__name__}, which is not callable")
        return self._payload(*args, **kwargs)

    def maybe_to_stack(self) -> Any:
        """A :class:`NonTensorStack` with the object once per element; ``self`` without batch dimensions."""
        return spread(self)

    def _like_rows(self, value: Any, size: torch.Size) -> Any:
        """A plain object as non-tensor data of a batch size: one list item per row, unless this holds a list."""
        if isinstance(value, list) and not isinstance(self._payload, (list, tuple, np.ndarray)):
            return registry.rows_of(value, size, self._device)
        return NonTensorData(value, batch_size=size, device=self._device)

    # -- representation ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(data={self._payload}, batch_size={self._batch_size}, device={self._device})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "payload": self._payload}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cell = [state["payload"]]

    # -- primitives ----------------------------------------------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        return []

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Self:
        if fn is Tensor.clone:
            return self.clone()
        new = self._rebuild({}, self._batch_size, self._names)
        return self._sharing(new) if fn in SHARING else new

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Self:
        new = self._rebuild({}, self._batch_size, self._names)
        if isinstance(self._payload, Tensor):  # a row of numbers, which may be written in place
            new._payload = self._payload.clone()
        return new

    # -- stacking ------------------------------------------------------------------------------------------

    _stack_priority = 1

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        return registry.stack_non_tensors(items, dim)

    @classmethod
    def _cat_entries(cls, items: Sequence[Any], dim: int) -> Any:
        return registry.cat_non_tensors(items, dim)


class NonTensorData(NonTensorDataBase):
    """One Python object for all elements of a batch.

    ``td["note"] = "a string!"`` creates one; ``td["note"]`` is the object, ``td.get("note")`` the wrapper. Slicing,
    stacking and reshaping change its batch size and never the object.

    Args:
        data: the object; of another :class:`NonTensorData`, its content.
        batch_size: the batch size. Defaults to ``[]``.
        device: stored, for consistency with the collection that holds it.
        names: names of the batch dimensions.

    Example:
        >>> note = NonTensorData("a string!", batch_size=[3])
        >>> note[:2]
        NonTensorData(data=a string!, batch_size=torch.Size([2]), device=None)
        >>> note.tolist()
        ['a string!', 'a string!', 'a string!']
    """

    __slots__ = ()


def _viewing(name: str) -> Callable[..., Any]:
    """A method whose result is a view of all elements, of the object as well."""
    method = getattr(NonTensorDataBase, name)

    @functools.wraps(method)
    def view(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._sharing(method(self, *args, **kwargs))

    return view


for _name in ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "permute", "transpose"):
    setattr(NonTensorDataBase, _name, _viewing(_name))

VIEWS = frozenset((int, slice, type(None), type(...)))
"""Types of indices that select a view."""
IMMUTABLE = frozenset((str, int, float, bool, bytes, complex, type(None), type))


def copied(data: Any) -> Any:
    """The same objects in rows of their own: what is written into these does not reach ``data``."""
    return data._with_leaves(iter(()))


def holds_collections(values: Sequence[Any]) -> bool:
    """Whether some of the values are collections or wrappers, not plain objects."""
    return any(issubclass(cls, TensorCollection) for cls in set(map(type, values)))


def no_entries_error(data: TensorCollection, key: Any) -> KeyError:
    """The error for writing a key into non-tensor data."""
    return KeyError(f"{key!r} cannot be set: a {type(data).__name__} holds objects, and has no entries")


def is_non_tensor(value: Any) -> bool:
    """Whether ``value`` wraps non-tensor data: :class:`NonTensorData`, :class:`MetaData` or :class:`NonTensorStack`.

    Example:
        >>> is_non_tensor(NonTensorData("a")), is_non_tensor("a")
        (True, False)
    """
    return isinstance(value, TensorCollection) and bool(type(value)._is_non_tensor)


def same_payload(a: Any, b: Any) -> bool:
    """Equality of two objects as one bool, including arrays and tensors; ``False`` if they cannot be compared."""
    if a is b:
        return True
    if type(a) is not type(b) and not isinstance(a, numbers.Number):
        return False
    try:
        if isinstance(a, Tensor):
            return bool(a.shape == b.shape and torch.equal(a, b))
        if isinstance(a, np.ndarray):
            return bool(np.array_equal(a, b))
        return bool(a == b)
    except Exception:  # a user-defined __eq__, or nested arrays: not known to be equal
        return False


def filled(value: Any, shape: tuple[int, ...]) -> Any:
    if not shape:
        return value
    return [filled(value, shape[1:]) for _ in range(shape[0])]


def spread(data: NonTensorDataBase) -> Any:
    """A nested :class:`NonTensorStack` with one :class:`NonTensorData` per element."""
    size = data._batch_size
    if not size:
        return data
    names = data._names[1:] if data._names is not None else None
    rows = [spread(data._whole(data._rebuild({}, size[1:], names))) for _ in range(size[0])]
    return registry.NonTensorStack._of(rows, 0, size[1:], data._device)


# -- lists as values ---------------------------------------------------------------------------------------


def from_sequence(item: Any, batch_size: torch.Size, device: DeviceLike | None = None) -> Any:
    """Convert a list or a tuple to an entry.

    Regular nested numbers become a tensor, tensors of the same shape and collections are stacked, and other lists
    become a :class:`NonTensorStack` with an element per row. Tuples, and lists under ``set_list_to_stack(False)``, are
    one object (an array) for the whole batch unless they hold numbers.

    Args:
        item: list or tuple.
        batch_size: batch size of the collection that will hold the result.
        device: its device.
    """
    if not isinstance(item, list) or not settings.list_to_stack:
        return _as_one_value(item, batch_size, device)
    value = _stacked(item, device)
    if isinstance(value, NonTensorDataBase):  # an empty leading dimension
        value._batch_size = batch_size
    return value


def _as_one_value(item: Any, batch_size: torch.Size, device: Any) -> Any:
    if item and isinstance(item[0], (Tensor, TensorCollection)):
        return _stacked(list(item), device)
    try:
        array = np.asarray(item)
    except ValueError:
        raise ValueError(
            f"a ragged {type(item).__name__} has no array form: assign a list under set_list_to_stack(True), or "
            "set_non_tensor(key, value) to keep the object as it is"
        ) from None
    if array.dtype.kind in "biuf":
        return torch.as_tensor(item, device=device) if item else torch.as_tensor(array, device=device)
    return NonTensorData(array, batch_size=batch_size, device=device)


def _stacked(item: list[Any], device: Any) -> Any:
    first = item[0] if item else 0
    if isinstance(first, Tensor):
        if all(isinstance(part, Tensor) and part.shape == first.shape for part in item):
            stack = _stack_tensors(item)
            return stack if device is None else stack.to(device)
    elif isinstance(first, TensorCollection) and not first._is_non_tensor:
        if not all(isinstance(part, TensorCollection) and not part._is_non_tensor for part in item):
            raise RuntimeError("a list of tensordicts and other values cannot be stacked: all must be tensordicts")
        return torch.stack(item)
    elif isinstance(_innermost(first), (bool, int, float)):
        try:
            return torch.as_tensor(item, device=device)
        except (TypeError, ValueError, RuntimeError):
            pass  # mixed or ragged
    nests = all(isinstance(part, list) for part in item)
    parts = [_stacked(part, device) for part in item] if nests else item
    if nests and item and _same_tensors(parts):
        return _stack_tensors(parts)
    if parts is item and not holds_collections(item):
        return registry.NonTensorStack._of_objects(
            list(item), device=None if device is None else normalise_device(device)
        )
    wrapped = [part if is_non_tensor(part) else NonTensorData(part, device=device) for part in parts]
    return registry.NonTensorStack(*wrapped, device=device)


def _innermost(value: Any) -> Any:
    """The first element of the first element of nested lists."""
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _same_tensors(parts: list[Any]) -> bool:
    first = parts[0]
    return isinstance(first, Tensor) and all(isinstance(p, Tensor) and p.shape == first.shape for p in parts)


def _stack_tensors(parts: list[Tensor]) -> Tensor:
    dtype = parts[0].dtype
    if any(part.dtype is not dtype for part in parts):
        for part in parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        parts = [part.to(dtype) for part in parts]
    return torch.stack(parts)


register(
    NonTensorData=NonTensorData,
    from_sequence=from_sequence,
    holds_collections=holds_collections,
    is_non_tensor=is_non_tensor,
    same_payload=same_payload,
)


class TupleEntry(NonTensorData):
    """Non-tensor data that holds a tuple of tensors or collections, which are its children as a pytree."""

    __slots__ = ()
    _is_tuple = True


register(TupleEntry=TupleEntry)
