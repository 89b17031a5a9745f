"""Tensors of a tree without its batch dimensions, such as a lookup table or weights shared by all rows.

In a tree, an :class:`UnbatchedTensor` is held by an :class:`UnbatchedEntry`: a collection without entries, like
non-tensor data, so that shape operations change only its batch size. Reading it from a tree returns the tensor, which
knows the batch size of that tree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of
from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import EntryKindError, InplaceWriteError
from tensordict_lite.kernel import Flat, as_size, stacked_names
from tensordict_lite.objects.data import NonTensorDataBase
from tensordict_lite.settings import settings

_BASE = Tensor._base.__get__  # type: ignore[union-attr]  # of the class, it is a descriptor


class UnbatchedTensor(Tensor):
    """A tensor that a tree holds once for its whole batch, with any shape.

    Indexing, reshaping, stacking and other operations on the batch of the tree leave it unchanged, as do reductions
    over batch dimensions. Arithmetic, ``apply``, casts and copies act on it as on any tensor; combined with a tensor
    that has dimensions, it gives an ordinary tensor, which may have rows. Assigning a row (``td[0] = other``)
    overwrites all of it if ``other`` has it, and otherwise leaves it unchanged.

    Args:
        data: tensor, or anything that :func:`torch.as_tensor` takes.
        batch_size: batch size of the tree that holds it; set by the tree.

    Example:
        >>> td = TensorDict({"x": torch.zeros(3, 4), "table": UnbatchedTensor(torch.rand(7, 11))}, [3])
        >>> td[0]["table"].shape, td.expand(2, 3)["table"].batch_size
        (torch.Size([7, 11]), torch.Size([2, 3]))
        >>> td[0]["table"].data_ptr() == td["table"].data_ptr()
        True
    """

    _batch_size: torch.Size = torch.Size(())

    def __new__(cls, data: Any, batch_size: Sequence[int] | torch.Size | None = None) -> UnbatchedTensor:
        tensor = data if isinstance(data, Tensor) else tensor_of(data)
        new = tensor.as_subclass(cls)
        new._batch_size = torch.Size(()) if batch_size is None else as_size(batch_size)
        return new

    @property
    def batch_size(self) -> torch.Size:
        """Batch size of the tree that the tensor was read from, ``[]`` outside of a tree."""
        return self._batch_size

    def _as_entry(self, size: torch.Size, device: torch.device | None, non_blocking: bool) -> UnbatchedEntry:
        """The tensor as an entry of a tree of that batch size on that device."""
        held = self if device is None or self.device == device else self.to(device, non_blocking=non_blocking)
        return UnbatchedEntry(UnbatchedTensor(held, size), size, device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if type(out) is Tensor:
            source = _unbatched_among(args)
            if source is not None and func != _BASE:  # a view of a view: torch.compile needs its base
                return UnbatchedTensor(out, source._batch_size)
        return out

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]  # of torch's options
        return f"UnbatchedTensor({self.as_subclass(Tensor)!r})"


def _unbatched_among(args: Sequence[Any]) -> UnbatchedTensor | None:
    """The first unbatched argument, unless another tensor with dimensions takes part, which may have rows."""
    found = None
    for arg in args:
        if type(arg) is UnbatchedTensor:
            found = arg if found is None else found
        elif isinstance(arg, Tensor):
            if arg.ndim:
                return None
        elif isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor):
            first = _unbatched_among(arg)
            if first is None:
                return None
            found = first if found is None else found
    return found


class UnbatchedEntry(NonTensorDataBase):
    """An :class:`UnbatchedTensor` as an entry of a tree."""

    __slots__ = ()
    _is_unbatched = True
    _follows_batch = True
    _stack_priority = 1

    def __init__(self, data: Tensor, batch_size: torch.Size, device: torch.device | None = None) -> None:
        super().__init__(data, batch_size=batch_size, device=device)
        settings.unbatched = True  # from now on, reads check for such entries

    # -- the tensor ----------------------------------------------------------------------------------------

    def _as_value(self) -> UnbatchedTensor:
        held = self._payload
        if type(held) is not UnbatchedTensor or held._batch_size != self._batch_size:
            held = UnbatchedTensor(held, self._batch_size)
            if not held.requires_grad:  # an alias of an autograd leaf would be another node
                self._payload = held
        return held

    def _plain(self) -> Tensor:
        """The tensor without its class, over the same memory."""
        held: Tensor = self._payload
        return held.detach().as_subclass(Tensor)

    def _sharing(self, view: Any) -> Any:
        return view  # the memory of the tensor is shared

    def _around(self, tensor: Tensor) -> Self:
        new = self._rebuild({}, self._batch_size, self._names)
        new._payload = tensor
        return new

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        return [self._payload]

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Self:
        return self._around(fn(self._payload))

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Self:
        return self._around(next(leaves))

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        return self._around(self._payload.clone() if recurse else self._payload)

    def _apply_entry(self, call: Callable[[Any], Any], result: Any) -> Any:
        """Apply a function to the tensor and return the result as an entry (or ``None``)."""
        new = call(self._as_value())
        return None if new is None else _as_entry(new, result._batch_size, result._device)

    # -- as an entry ---------------------------------------------------------------------------------------

    def _change_batch_size(self, new: torch.Size) -> None:
        self._batch_size = new
        if self._names is not None:
            self._names = None

    def _fit_into(self, parent: TensorCollection, key: str, non_blocking: bool) -> Any:
        lead, dims = parent._batch_size, parent.batch_dims
        size = self._batch_size if self._batch_size[:dims] == lead else lead
        new = self._rebuild({}, size, None)
        device = parent._device
        if device is not None:
            new._payload = self._payload.to(device, non_blocking=non_blocking)
            new._device = device
        if parent._names is not None:
            new._names = [*parent._names, *([None] * (len(size) - dims))]
        return new

    def _holds_type_of(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def _like_rows(self, value: Any, size: torch.Size) -> Any:
        return _as_entry(value, size, self._device)

    def _overwrite(self, item: Any, parent: TensorCollection) -> TensorCollection:
        if isinstance(item, UnbatchedEntry):
            item = item._payload
        if not isinstance(item, Tensor):
            raise EntryKindError("", self._payload, item)
        if item.shape != self._payload.shape:
            raise InplaceWriteError(
                f"Failed to update an unbatched entry of shape {list(self._payload.shape)} in place with a value of "
                f"shape {list(item.shape)}"
            )
        with torch.no_grad():
            self._plain().copy_(item)
        return self

    def _assign_rows(self, index: Any, item: Any) -> TensorCollection:
        """All rows share the tensor: overwrite all of it."""
        return self._overwrite(item, self)

    def _set_index(self, index: Any, value: object) -> None:
        self._assign_rows(index, value)

    def _empty_rows(self, lead: torch.Size, index_dims: int, device: torch.device | None) -> Any:
        return self._rebuild({}, torch.Size((*lead, *self._batch_size[index_dims:])))

    def where(self, condition: Tensor, other: Any, **kwargs: Any) -> Any:
        """``self``, if the other side shares the tensor or has an equal one.

        Raises:
            RuntimeError: the tensors differ, and one tensor for all rows cannot be chosen by row.
        """
        theirs = other._payload if isinstance(other, UnbatchedEntry) else other
        if isinstance(theirs, Tensor) and theirs.shape == self._payload.shape:
            if theirs.data_ptr() == self._payload.data_ptr() or torch.equal(theirs, self._payload):
                return self.clone(False)
        raise RuntimeError(
            "where() cannot choose row by row between unbatched entries that differ: leave them out with exclude()"
        )

    def masked_fill(self, mask: Tensor, value: Any) -> Any:
        """``self``: only rows are filled."""
        return self.clone(False)

    def masked_fill_(self, mask: Tensor, value: Any) -> Any:
        """``self``: only rows are filled."""
        return self

    def pad(self, pad_size: Sequence[int], value: Any = None, inplace: bool = False) -> Any:
        """``self`` under the padded batch size."""
        size = list(self._batch_size)
        for dim in range(len(pad_size) // 2):
            size[dim] += pad_size[2 * dim] + pad_size[2 * dim + 1]
        new = self if inplace else self.clone(False)
        new._batch_size = torch.Size(size)
        return new

    def maybe_to_stack(self) -> Any:
        """``self``."""
        return self

    def to_dict(self, **kwargs: Any) -> Any:
        return self._as_value()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        settings.unbatched = True

    # -- combining -----------------------------------------------------------------------------------------

    @classmethod
    def _joined(cls, items: Sequence[Any], size: torch.Size, names: Any) -> Any:
        first = items[0]
        for item in items:
            if not isinstance(item, UnbatchedEntry):
                raise RuntimeError(f"cannot combine an unbatched tensor with a {type(item).__name__}")
        # While torch.compile traces there are no addresses, and a graph that ends here fails under torch 2.11.
        if not torch.compiler.is_compiling() and any(
            item._payload.data_ptr() != first._payload.data_ptr() for item in items[1:]
        ):
            warnings.warn(
                "Stacking UnbatchedTensors with different data storage: only the first element's data is kept. Give "
                "all trees the same tensor, or make it a batched entry.",
                UserWarning,
                stacklevel=2,
            )
        return first._rebuild({}, size, names)

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        size = items[0]._batch_size
        return cls._joined(items, torch.Size((*size[:dim], len(items), *size[dim:])), stacked_names(items[:1], dim))

    @classmethod
    def _cat_entries(cls, items: Sequence[Any], dim: int) -> Any:
        size = items[0]._batch_size
        length = sum(item._batch_size[dim] for item in items)
        return cls._joined(items, torch.Size((*size[:dim], length, *size[dim + 1 :])), items[0]._names)


def _as_entry(value: Any, size: torch.Size, device: torch.device | None) -> UnbatchedEntry:
    if isinstance(value, UnbatchedEntry):
        value = value._payload
    if not isinstance(value, Tensor):
        value = tensor_of(value)
    return UnbatchedEntry(value, size, device)
