"""The kernel: slots and primitives of every collection of tensors with a shared batch size.

A collection consists of its slots. ``_source`` holds the entries, raw: tensors, nested collections, and non-tensor
values wrapped as :class:`NonTensorData`. Nested collections have the same shape methods as tensors, so an operation
over all entries is one comprehension at any depth.

The families of operations in ``ops/`` and ``api/`` are written over these primitives:

==========================  ===============================================================
``_rebuild(source, bs)``    same type, device and extras around new entries, no validation
``_leaves()``               the tensor leaves of the whole tree, as a flat list
``_with_leaves(leaves)``    the same tree around other leaves of the same batch size
``_map_leaves(fn)``         both in one step, where no fused call exists
``_get_str/_set_str``       one entry by its plain name, without unravelling or validation
==========================  ===============================================================

With ``ragged``, the flat values ``[total, ...]`` of ragged columns of numbers are leaves too: for operations on each
element. ``"own"``, before a write in place, gives scattered rows memory of their own.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

from tensordict_lite import registry

LOCKED_MESSAGE = (
    "Cannot modify locked {name}. For in-place modification, consider using the `set_()` method and make "
    "sure the key is present; to add, remove or rename entries, do it in a `copy()`, which is "
    "unlocked and has the same tensors, or call `unlock_()` first."
)

DeviceLike: TypeAlias = "torch.device | str | int"
Flat: TypeAlias = bool | Literal["own"]


class Lock(list[weakref.ref["Kernel"]]):
    """A lock that caches values made of the locked collection; the cache ends with the lock.

    A lock is first a plain list of the locked parents, and becomes a Lock when there is something to cache.
    """

    __slots__ = ("detached",)

    detached: tuple[Kernel, list[weakref.ref[Kernel]]]
    """The last result of ``detach()``, and the lock that it had then."""


class Kernel:
    """Slots, lock, names, sizes and primitives; ``base.TensorCollection`` adds the operations."""

    # `_cell`, `_consolidated`, `_entered`, `_home`, `_last_op` and `_memmap_path` stay unset until needed: an unset
    # slot costs nothing.
    __slots__ = (
        "__weakref__",
        "_batch_size",
        "_cell",
        "_consolidated",
        "_device",
        "_entered",
        "_home",
        "_last_op",
        "_lock",
        "_memmap_path",
        "_names",
        "_source",
        "_types",
    )

    _kind_name = "tensordict"
    """Its name in error messages."""
    _source: Any
    _batch_size: torch.Size
    _device: torch.device | None
    _names: list[str | None] | None
    _lock: list[weakref.ref[Kernel]] | None
    _types: dict[str, str] | None
    """Arrow types of entries that hold dates and times; replaced, never changed."""
    _last_op: tuple[Any, Any]
    """Undoes the operation that made or changed this collection."""
    _entered: list[tuple[Any, Any] | None]
    """The same for each enclosing ``with``, the innermost last."""

    # -- trusted construction ------------------------------------------------------------------------

    @classmethod
    def _trusted(
        cls,
        source: Any,
        batch_size: torch.Size,
        device: torch.device | None = None,
        names: list[str | None] | None = None,
    ) -> Self:
        """A collection around entries that are known to fit, without checks, moves or copies."""
        new = object.__new__(cls)
        new._source = source
        new._batch_size = batch_size
        new._device = device
        new._names = names
        new._types = None
        new._lock = None
        return new

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Self:
        """Same type and device around entries that are known to fit ``batch_size``."""
        new = object.__new__(type(self))
        new._source = source
        new._batch_size = batch_size
        new._device = self._device
        new._names = names
        new._types = self._types
        new._lock = None
        return new

    @staticmethod
    def _plain_class() -> Any:
        """The class of levels created on the path of a nested key."""
        return registry.TensorDict

    @classmethod
    def _check_kinds(cls, items: Sequence[Any]) -> None:
        """Raise if the classes of some collections cannot be combined; by default all can."""

    @classmethod
    def _free_class(cls) -> Any:
        """The class of similar collections with arbitrary keys."""
        return cls._plain_class()

    @classmethod
    def _as_own(cls, made: Any) -> Any:
        """Convert a TensorDict made by another constructor to this class where possible."""
        return made

    # -- primitives (storage classes implement them) --------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        raise NotImplementedError

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Self:
        raise NotImplementedError

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Self:
        raise NotImplementedError

    def _get_str(self, key: str) -> Any:
        raise NotImplementedError

    def _set_str(self, key: str, value: Any) -> None:
        raise NotImplementedError

    def _del_str(self, key: str) -> None:
        raise NotImplementedError

    def _leaves_unset(self, key: Any, value: Any) -> bool:
        """Whether a missing entry stands for the None of an unset field, as in `to_dict`."""
        return value is None and key in getattr(self, "_field_specs", ())

    def _key_list(self) -> list[str]:
        raise NotImplementedError

    def _nested(self) -> Iterable[Kernel]:
        raise NotImplementedError

    # -- what storage classes and the families of operations offer each other ------------------------------------

    if TYPE_CHECKING:
        _is_non_tensor: bool
        _is_unbatched: bool
        _follows_batch: bool
        _is_ragged_numbers: bool
        _cell: Any
        _payload: Any
        _consolidated: Any
        _memmap_path: str | None
        _stack_dim: int
        keys: Callable[..., Any]
        values: Callable[..., Any]
        update_at_: Callable[..., Any]

        def _key_entries(self) -> Iterable[tuple[str, Any]]: ...
        def _entries(self) -> Iterable[tuple[str, Any]]: ...
        def _get_path(self, path: tuple[str, ...]) -> Any: ...
        def _parent_for(self, path: tuple[str, ...], made: list[tuple[Any, str]] | None = None) -> Any: ...
        def _raise_missing(self, path: tuple[str, ...]) -> None: ...
        def _misfit(self, value: Any, key: str) -> RuntimeError: ...
        def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any: ...
        def _wrap(self, item: Any) -> Any: ...
        def _new_child(self) -> Any: ...
        def _plain(self) -> Any: ...
        def _write_in_place(self, key: str, item: Any, non_blocking: bool = False) -> None: ...
        def _set_index(self, index: Any, value: Any) -> None: ...
        def _assign_rows(self, index: Any, item: Any) -> Any: ...
        def _adopt_names(self, names: list[str | None], key: str) -> None: ...
        def _set_device(self, device: torch.device | None) -> None: ...
        def _replace_leaves(self, leaves: Sequence[Tensor], ragged: bool = False) -> Any: ...
        def _swap_leaves(self, leaves: Sequence[Tensor], ragged: bool = False) -> Self: ...
        def _keep(self, kept: dict[str, Any]) -> None: ...
        def _with_members(self, members: list[Any]) -> Any: ...

        def __getitem__(self, index: Any) -> Any: ...
        def __contains__(self, key: Any) -> bool: ...
        def get(self, key: Any, default: Any = ...) -> Any: ...
        def set(self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Self: ...
        def set_(self, key: Any, item: Any, *, non_blocking: bool = False) -> Self: ...
        def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self: ...
        def set_non_tensor(self, key: Any, value: Any) -> Self: ...
        def del_(self, key: Any) -> Self: ...
        def pop(self, key: Any, default: Any = ...) -> Any: ...
        def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False) -> Self: ...
        def update_(self, input_dict_or_td: Any = None, *, non_blocking: bool = False) -> Self: ...
        def select(self, *keys: Any, inplace: bool = False, strict: bool = True) -> Self: ...
        def exclude(self, *keys: Any, inplace: bool = False) -> Self: ...
        def filter_empty_(self) -> Self: ...
        def empty(self, recurse: bool = False, *, batch_size: Sequence[int] | None = None) -> Self: ...
        def to(self, *args: Any, **kwargs: Any) -> Self: ...
        def copy(self) -> Self: ...
        def clone(self, recurse: bool = True) -> Self: ...
        def unbind(self, dim: int = 0) -> Any: ...
        def is_empty(self) -> bool: ...
        def is_memmap(self) -> bool: ...
        def is_shared(self) -> bool: ...
        @property
        def depth(self) -> int: ...

    # -- shape, device, names --------------------------------------------------------------------------

    @property
    def batch_size(self) -> torch.Size:
        """Leading shape that every entry shares (``torch.Size``). Assignable: entries must fit."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, new: Sequence[int] | torch.Size) -> None:
        if isinstance(new, int):
            raise TypeError(f"a batch size is a sequence of ints, got the int {new}: write [{new}]")
        self._change_batch_size(as_size(new))

    def _change_batch_size(self, new: torch.Size) -> None:
        raise NotImplementedError

    @property
    def shape(self) -> torch.Size:
        """Same as :attr:`batch_size`."""
        return self._batch_size

    @shape.setter
    def shape(self, new: Sequence[int] | torch.Size | int) -> None:
        self.batch_size = new  # type: ignore[assignment]

    @property
    def batch_dims(self) -> int:
        """Number of batch dimensions."""
        return len(self._batch_size)

    ndim = batch_dims

    def dim(self) -> int:
        """Number of batch dimensions, as :meth:`torch.Tensor.dim`."""
        return len(self._batch_size)

    def ndimension(self) -> int:
        """Number of batch dimensions, as :meth:`torch.Tensor.ndimension`."""
        return len(self._batch_size)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The batch size, or one of its dimensions.

        Example:
            >>> TensorDict({}, [3, 4]).size(1)
            4
        """
        return self._batch_size if dim is None else self._batch_size[dim]

    def numel(self) -> int:
        """Number of elements of the batch (at least 1, as the reference counts a scalar batch)."""
        return max(1, self._batch_size.numel())

    @property
    def device(self) -> torch.device | None:
        """Device that entries are moved to when they are written; ``None`` for no device."""
        return self._device

    @device.setter
    def device(self, value: Any) -> None:
        raise RuntimeError(
            f"device cannot be set using {self._kind_name}.device = device: use to(device) for a copy there, or "
            "clear_device_() to drop the rule"
        )

    @property
    def names(self) -> list[str | None]:
        """Names of the batch dimensions, ``None`` for the unnamed ones."""
        return list(self._names) if self._names is not None else [None] * len(self._batch_size)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        self._assign_names(value)

    def _assign_names(self, value: Sequence[str | None] | None) -> None:
        names = check_names(value, len(self._batch_size))
        if names is not None:
            for name in _names_below(self, len(names)):
                if name is not None and name in names:
                    raise ValueError(
                        f"Some dimension names are non-unique: {names}. The dimension name {name} is already taken by "
                        "a further dimension of a nested collection."
                    )
        self._set_names(names)

    def _set_names(self, names: list[str | None] | None) -> None:
        self._changed_under_lock()
        self._names = names
        lead = [None] * len(self._batch_size) if names is None else names
        for sub in self._nested():
            own = sub._names
            rest = own[len(lead) :] if own is not None else [None] * (sub.batch_dims - len(lead))
            sub._set_names(names_or_none([*lead, *rest]) if names is None else [*lead, *rest])

    def __len__(self) -> int:
        size = self._batch_size
        return size[0] if size else 0

    def __getitems__(self, rows: Any) -> Any:
        """The rows of a batch, for the ``DataLoader`` of torch, which asks for all of them at once."""
        # A batch sampler may yield tuples, which would otherwise index one row in several dimensions.
        return self[list(rows) if isinstance(rows, tuple) else rows]

    def __bool__(self) -> bool:
        raise RuntimeError(
            f"Converting a {self._kind_name} to boolean value is not permitted. Use td.is_empty() to test for entries, "
            "or (a == b).all() / .any() to reduce a comparison."
        )

    def __iter__(self) -> Iterator[Any]:
        if not self._batch_size:
            raise TypeError(f"iteration over a {type(self).__name__} without batch dimensions: use its items()")
        return iter(self.unbind(0))

    def clear_refs_for_compile_(self) -> Self:
        """Forget the operations that made this collection and the nested ones, which ``with`` would invert.

        They hold weak references, and ``torch.compile`` cannot return a collection that has one.
        """
        nodes: list[Kernel] = [self, *self._nested()]
        for each in nodes:
            each._last_op = ("nothing", None)
            if each is not self:
                each.clear_refs_for_compile_()
        return self

    # -- lock --------------------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether entries can only be modified in place."""
        return self._lock is not None

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    def lock_(self) -> Self:
        """Lock this collection and the nested ones: entries can only be written in place.

        Also a context manager: ``with td.lock_(): ...`` unlocks on exit.

        Returns:
            self

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.set_("a", torch.ones(3))["a"].sum()
            tensor(3.)
        """
        self._last_op = ("unlock" if self._lock is None else "nothing", None)
        if self._lock is None:
            self._propagate_lock(None)
        return self

    def _propagate_lock(self, parent: weakref.ref[Kernel] | None) -> None:
        if self._lock is None:
            self._lock = []
        if parent is not None:
            self._lock.append(parent)
        me: weakref.ref[Kernel] | None = None
        for sub in self._lockable():
            me = me or weakref.ref(self)
            sub._propagate_lock(me)

    def unlock_(self) -> Self:
        """Unlock this collection and the nested ones. As a context manager, lock again on exit.

        Raises:
            RuntimeError: a collection that still exists holds this one under its own lock.

        Returns:
            self
        """
        self._last_op = ("lock" if self._lock is not None else "nothing", None)
        if self._lock is not None:
            self._check_unlockable(None)
            self._drop_lock(None)
            self._consolidated = None
        return self

    def _check_unlockable(self, releasing: Kernel | None) -> None:
        """Raise before anything has changed if a locked parent elsewhere still holds a node."""
        for ref in self._lock or ():
            parent = ref()
            if parent is not None and parent is not releasing and parent._lock is not None:
                raise RuntimeError(
                    "Cannot unlock a tensordict that is part of a locked graph. Unlock the root tensordict first. "
                    "If the tensordict is part of multiple graphs, group the graphs under a common tensordict "
                    f"and unlock this root. self: {self!r}"
                )
        for sub in self._lockable():
            sub._check_unlockable(self)

    def _drop_lock(self, releasing: Kernel | None) -> None:
        self._lock = None
        if getattr(self, "_memmap_path", None) is not None:
            self._memmap_path = None
        for sub in self._lockable():
            sub._drop_lock(self)

    def _changed_under_lock(self) -> None:
        """Drop the caches of the locks of this collection and its parents, after a change that a lock allows.

        The lock becomes another object, so that holders of the old one notice the change.
        """
        lock = self._lock
        if lock is None:
            return
        self._lock = type(lock)(lock)
        for ref in lock:
            parent = ref()
            if parent is not None:
                parent._changed_under_lock()

    def _lockable(self) -> Iterable[Kernel]:
        """The collections that are locked and unlocked with this one."""
        return self._nested()

    def _locked_error(self) -> RuntimeError:
        return RuntimeError(LOCKED_MESSAGE.format(name=type(self).__name__))

    def _require_unlocked(self) -> None:
        if self._lock is not None:
            raise self._locked_error()

    def _keep_lock(self, new: Any) -> Any:
        """``new``, the result of an operation, locked if this collection is."""
        if self._lock is not None:
            new._propagate_lock(None)
        return new

    # -- values and pickles ----------------------------------------------------------------------------

    def _as_value(self) -> Any:
        """The result of ``td[key]`` for this entry: itself, or the payload of a non-tensor wrapper."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if getattr(self, "_consolidated", None) is not None:
            reduced = registry.reduce_tree(self)
            if reduced is not None:
                return reduced
        return blank, (type(self),), self.__getstate__()

    # -- context manager: undo the last operation -------------------------------------------------------

    def _unchanged(self) -> Self:
        """Return this collection from an operation that changed nothing or that cannot be undone.

        In a ``with`` block there is then nothing to undo, in particular not an earlier ``lock_()`` or ``float()``.
        """
        self._last_op = ("nothing", None)
        return self

    def __enter__(self) -> Self:
        last = getattr(self, "_last_op", None)
        if last is not None:
            del self._last_op
        try:
            self._entered.append(last)
        except AttributeError:
            self._entered = [last]
        return self

    def __exit__(self, exc_type: Any, exc: Any, tb: Any) -> None:
        last = self._entered.pop()
        if last is None:  # an operation without inverse: nothing to write back
            return
        op, argument = last
        if op == "lock":
            self.lock_()
            del self._last_op
        elif op == "unlock":
            self.unlock_()
            del self._last_op
        elif op == "undo":  # for example the tensors that to_module() replaced: restored in any case
            undo, *arguments = argument
            undo(self, *arguments)
        elif callable(op) and exc_type is None:
            # Write back: apply the inverse operation to the result of the block, into the original collection.
            origin, inverse = op, argument
            target = origin()
            if target is not None:
                changed = inverse(self)
                target.update(changed, inplace=target._lock is not None)


def blank(cls: Any) -> Any:
    """An instance with unset slots, to be unpickled."""
    return object.__new__(cls)


def as_size(value: Any) -> torch.Size:
    """``torch.Size`` from a size, a sequence of ints, one int or a one-dimensional tensor."""
    cls = type(value)
    if cls is torch.Size:
        return value
    if cls is list or cls is tuple:
        try:
            return torch.Size(value)
        except TypeError:  # such as numpy integers
            pass
    elif isinstance(value, int):
        return torch.Size((value,))
    elif isinstance(value, Tensor):
        return torch.Size(value.reshape(-1).tolist())
    try:
        return torch.Size([operator.index(n) for n in value])
    except TypeError:
        raise ValueError(
            f"a batch size is an int, a sequence of ints or a torch.Size; got {value!r} of type {cls.__name__}"
        ) from None


def _names_below(node: Any, dims: int) -> Iterator[str | None]:
    """Names of the dimensions of nested collections after the first ``dims``."""
    stacked = type(node._source) is list
    if stacked:
        dims -= node._stack_dim < dims
    for sub in node._nested():
        if not stacked and sub._names is not None:
            yield from sub._names[dims:]
        yield from _names_below(sub, dims)


def check_names(value: Sequence[str | None] | None, batch_dims: int) -> list[str | None] | None:
    """Names as a list, ``None`` if all are ``None``; ValueError if they do not fit."""
    if value is None:
        return None
    names = list(value)
    if len(names) != batch_dims:
        raise ValueError(
            "the length of the dimension names must equate the tensordict batch_dims attribute. "
            f"Got {names} for batch_dims {batch_dims}."
        )
    given = [name for name in names if name is not None]
    if len(set(given)) != len(given):
        raise ValueError(f"Some dimension names are non-unique: {names}")
    return names if given else None


def stacked_names(items: Sequence[Any], dim: int) -> list[str | None] | None:
    """The names of a stack along ``dim``: those that all items share."""
    names: list[str | None] | None = items[0]._names
    if names is None or any(item._names != names for item in items):
        return None
    return [*names[:dim], None, *names[dim:]]


def names_or_none(names: list[str | None]) -> list[str | None] | None:
    return names if any(name is not None for name in names) else None


def normalise_device(device: Any) -> torch.device:
    """``torch.device`` with an index where the type has several devices."""
    device = torch.device(device)
    if device.index is None and device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
        if module is not None and hasattr(module, "current_device") and module.is_available():
            return torch.device(device.type, module.current_device())
    return device
