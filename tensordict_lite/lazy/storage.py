"""Lazy storage: the members of a stack in a list, and the primitives of its families of operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.fitting import Fitting
from tensordict_lite.kernel import normalise_device


def member_size(members: Sequence[Any], strict: bool) -> torch.Size:
    """The batch size of the members, -1 where they differ."""
    size = members[0]._batch_size
    for member in members[1:]:
        other = member._batch_size
        if other == size:
            continue
        if strict or len(other) != len(size):
            raise RuntimeError(
                f"stacking tensordicts requires them to have congruent batch sizes, got {list(size)} and {list(other)}"
                + ("" if len(other) != len(size) else " (strict_shape=False allows different lengths)")
            )
        size = torch.Size([a if a == b else -1 for a, b in zip(size, other)])
    return size


def stack_position(dim: int, member_dims: int) -> int:
    at = dim + member_dims + 1 if dim < 0 else dim
    if not 0 <= at <= member_dims:
        raise RuntimeError(
            f"stack dim {dim} is out of range for members with {member_dims} batch dimension(s): it may be "
            f"{-member_dims - 1} to {member_dims}"
        )
    return at


def member_device(members: Sequence[Any], device: Any) -> torch.device | None:
    if not members:
        return None if device is None else normalise_device(device)
    first = members[0]._device
    for member in members:
        if member._device != first:
            raise RuntimeError(f"devices differ, got {first} and {member._device}")
    return first


def member_names(members: Sequence[Any], dim: int, stack_name: str | None) -> list[str | None] | None:
    first = members[0]._names if members else None
    for member in members:
        if member._names != first:
            raise ValueError(f"Not all dim names match, got {members[0].names} and {member.names}.")
    if first is None and stack_name is None:
        return None
    names = members[0].names if members else []
    return [*names[:dim], stack_name, *names[dim:]]


def is_ragged(items: Sequence[Any]) -> bool:
    """Whether values of the members are tensors or collections of different shapes."""
    if not all(isinstance(item, (Tensor, TensorCollection)) for item in items):
        return False
    return any(item.shape != items[0].shape for item in items)


def stack_error(values: Sequence[Any], key: str, err: Exception | None) -> Exception:
    if not all(isinstance(value, Tensor) for value in values):
        kinds = sorted({type(value).__name__ for value in values})
        return TypeError(
            f"the entry {key!r} cannot be stacked: it is a {' in one member and a '.join(kinds)} in another"
        )
    shapes = [tuple(value.shape) for value in values]
    if len(set(shapes)) == 1:
        return RuntimeError(f"failed to stack the entry {key!r}: {err}")
    shown = f"{shapes[:8]}{'...' if len(shapes) > 8 else ''}"
    return RuntimeError(
        f"Failed to stack tensors within a tensordict under the key {key!r}: their shapes are {shown}. To read them, "
        "pass as_padded_tensor=True, as_nested_tensor=True or as_list=True to get()."
    )


class Stacked(Fitting):
    """Members in ``_source``, stacked along ``_stack_dim``."""

    __slots__ = ("_stack_dim",)

    _source: list[Any]
    _stack_dim: int

    if TYPE_CHECKING:  # methods that the families use of each other

        def _positive(self, dim: int) -> int: ...
        def _inner(self, dim: int) -> int: ...
        def _refuse_inplace(self, name: str, inplace: bool) -> None: ...
        def _densified(self) -> Any: ...
        def _index(self, index: Any) -> Any: ...
        def _pieces(self, value: Any) -> Sequence[Any]: ...
        def _pieces_of(self, source: Any) -> Sequence[Any]: ...
        def _fitting_pieces(self, item: Any, path: tuple[str, ...], non_blocking: bool = False) -> Sequence[Any]: ...

    @classmethod
    def _of(
        cls,
        members: list[Any],
        dim: int,
        member_size: torch.Size,
        device: torch.device | None = None,
        names: list[str | None] | None = None,
        batch_size: torch.Size | None = None,
    ) -> Self:
        """Trusted constructor: the members are known to be compatible (``batch_size``: of the stack, if known)."""
        new = object.__new__(cls)
        new._source = members
        new._stack_dim = dim
        if batch_size is None:
            batch_size = torch.Size((*member_size[:dim], len(members), *member_size[dim:]))
        new._batch_size = batch_size
        new._device = device
        new._names = names
        new._types = None
        new._lock = None
        return new

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        """The same kind of stack around other members; a dense collection around entries by key."""
        if type(source) is dict:
            return self._plain_class()._trusted(source, batch_size, self._device, names)
        new = TensorCollection._rebuild(self, source, batch_size, names)
        new._stack_dim = self._stack_dim
        return new

    @classmethod
    def _class_for(cls, members: Sequence[Any]) -> Any:
        """The class of a similar stack of other members."""
        return cls

    def _with_members(self, members: list[Any]) -> Any:
        cls, size = self._class_for(members), self._batch_size
        return cls._of(members, self._stack_dim, size, self._device, self._names, size)

    def _restacked(
        self, members: list[Any], dim: int, names: list[str | None] | None = None, locked: bool = True
    ) -> Any:
        """A similar stack around members of another batch size; ``locked`` like this one, or unlocked."""
        size = member_size(members, False) if members else self._member_batch_size()
        new = self._class_for(members)._of(members, dim, size, self._device, names)
        if locked and self._lock is not None:
            new._lock_new_members()
        return new

    def _lock_new_members(self) -> None:
        """Lock this stack and its unlocked members; locked members were locked before."""
        self._lock = []
        me = weakref.ref(self)
        for member in self._source:
            if member._lock is None:
                member._propagate_lock(me)

    def _member_batch_size(self) -> torch.Size:
        size, dim = self._batch_size, self._stack_dim
        return torch.Size((*size[:dim], *size[dim + 1 :]))


def through_dense(name: str) -> Callable[..., Any]:
    """A method that runs on the dense form."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        dense = self._densified()
        if isinstance(dense, Stacked):
            raise RuntimeError(f"{name}() needs tensors: a {type(self).__name__} holds none")
        return getattr(dense, name)(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"LazyStackedTensorDict.{name}"
    method.__doc__ = f"``{name}`` of the dense form; RuntimeError where the shapes of an entry differ."
    return method
