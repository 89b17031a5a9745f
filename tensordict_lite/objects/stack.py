"""One Python object per element: :class:`NonTensorStack`, and stacking and joining of non-tensor data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import EntryKindError, InplaceWriteError
from tensordict_lite.indexing import index_batch_size
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.lazy.stack import LazyStackedTensorDict
from tensordict_lite.objects.column import ObjectRows
from tensordict_lite.objects.data import (
    DEFERRED,
    NonTensorData,
    NonTensorDataBase,
    copied,
    filled,
    holds_collections,
    is_non_tensor,
    no_entries_error,
    same_payload,
    spread,
)
from tensordict_lite.objects.metadata import joined
from tensordict_lite.ops.operands import check_out
from tensordict_lite.ops.rows import check_gather_out, check_pad
from tensordict_lite.registry import register


def stack_non_tensors(items: Sequence[Any], dim: int) -> Any:
    first = items[0]
    for item in items:
        if not is_non_tensor(item):
            raise RuntimeError(f"non-tensor data cannot be stacked with a {type(item).__name__}")
        if item._batch_size != first._batch_size:
            raise RuntimeError(
                "stacking tensordicts requires them to have congruent batch sizes, got "
                f"{list(first._batch_size)} and {list(item._batch_size)}"
            )
    one = joined(items, dim)
    if one is not None:
        return one
    if not first._batch_size and {NonTensorData}.issuperset(map(type, items)):
        return NonTensorStack._of_objects([item._payload for item in items], dim, first._batch_size, first._device)
    return NonTensorStack._of([copied(item) for item in items], dim, first._batch_size, first._device)


def cat_non_tensors(items: Sequence[Any], dim: int) -> Any:
    first = items[0]
    if _one_value(items):
        size = first._batch_size
        length = sum(item._batch_size[dim] for item in items)
        return first._rebuild({}, torch.Size((*size[:dim], length, *size[dim + 1 :])), first._names)
    columns: list[Any] = [
        item._payloads() for item in items if isinstance(item, NonTensorStack) and item._stack_dim == dim
    ]
    if len(columns) == len(items) and all(column is not None for column in columns):
        values = list(chain.from_iterable(columns))
        return NonTensorStack._of_objects(values, dim, first._member_batch_size(), first._device)
    size = first._batch_size
    full = torch.Size((*size[:dim], sum(item._batch_size[dim] for item in items), *size[dim + 1 :]))
    if 0 in full:
        return spread(NonTensorData(None, batch_size=full, device=first._device))
    rows = [copied(row) for item in items for row in item.unbind(dim)]
    return NonTensorStack._of(rows, dim, torch.Size((*size[:dim], *size[dim + 1 :])), first._device)


def _one_value(items: Sequence[Any]) -> bool:
    """Whether all items hold one object each, and these are equal."""
    if not all(isinstance(item, NonTensorDataBase) for item in items):
        return False
    return all(same_payload(item._payload, items[0]._payload) for item in items[1:])


class NonTensorStack(ObjectRows):
    """One Python object per element: a lazy stack of :class:`NonTensorData`.

    A list of strings assigned to a key becomes one. ``td[key]`` returns the objects as (nested) lists.

    Args:
        *values: objects, or non-tensor data of the same batch size.
        stack_dim: position of the new dimension.
        **kwargs: passed to :class:`LazyStackedTensorDict`.

    Raises:
        RuntimeError: a value is a collection with tensors, or batch sizes differ.

    Example:
        >>> words = NonTensorStack("a", "b", "c")
        >>> words[1:].tolist()
        ['b', 'c']
    """

    __slots__ = ()

    _is_non_tensor = True
    _stack_priority = 3

    def __init__(self, *values: Any, stack_dim: int = 0, device: DeviceLike | None = None, **kwargs: Any) -> None:
        members = [self._member(value, device) for value in values]
        sizes = {len(member._batch_size) for member in members}
        if len(sizes) > 1:
            raise RuntimeError(
                f"the values of a NonTensorStack have one number of batch dimensions, got {sorted(sizes)}"
            )
        super().__init__(*members, stack_dim=stack_dim, device=device, **kwargs)

    @staticmethod
    def _member(value: Any, device: DeviceLike | None = None) -> Any:
        if is_non_tensor(value):
            return value
        if isinstance(value, TensorCollection):
            raise RuntimeError(f"the values of a NonTensorStack are non-tensor data, got a {type(value).__name__}")
        return NonTensorData(value, device=device)

    @classmethod
    def from_list(cls, values: Sequence[Any], **kwargs: Any) -> Any:  # type: ignore[override]  # of values
        """A stack of the elements of nested lists, with one dimension per level.

        Example:
            >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]]).batch_size
            torch.Size([2, 2])
        """
        return cls(*[cls.from_list(v) if isinstance(v, list) else v for v in values], **kwargs)

    @classmethod
    def from_nontensordata(cls, data: NonTensorDataBase) -> Any:
        """The object of a :class:`NonTensorData` once per element."""
        return data.maybe_to_stack()

    def _blank(self, size: torch.Size, repeat: bool) -> Any:
        """A stack of this batch size with the first object, or None, in every row."""
        value = self._row(0) if repeat and self._batch_size[self._stack_dim] else None
        while isinstance(value, NonTensorStack):
            value = value._row(0) if value._batch_size[value._stack_dim] else None
        blank = NonTensorData(None if value is None else value._payload, batch_size=size, device=self._device)
        return spread(blank)

    @property
    def data(self) -> Any:
        """The object that all elements share.

        Raises:
            AttributeError: there are several.
        """
        values = _flat_payloads(self)
        if not values or any(not same_payload(value, values[0]) for value in values[1:]):
            raise AttributeError("a NonTensorStack holds several objects, so it has no single .data: use tolist()")
        return values[0]

    def maybe_to_stack(self) -> Any:
        return self

    def tolist(self, *, convert_nodes: bool = True, convert_tensors: Any = False, tolist_first: bool = False) -> Any:
        """The objects in nested lists of the shape of the batch."""
        return _nested_payloads(self)

    def to_dict(self, **kwargs: Any) -> Any:
        return self.tolist()

    def to_tensordict(self, **kwargs: Any) -> Any:
        return self.clone()

    def _as_value(self) -> Any:
        return _nested_payloads(self)

    def is_empty(self) -> bool:
        return False

    def _like_rows(self, value: Any, size: torch.Size) -> Any:
        """A plain object as non-tensor data of a batch size: one list item per row, unless the rows hold lists.

        Raises:
            InplaceWriteError: a list whose length is not the number of rows.
        """
        if isinstance(value, list) and size and len(value) != size[0] and not self._holds_lists():
            raise InplaceWriteError(
                f"a list of {len(value)} objects cannot be written into rows of batch size {list(size)} in place: give "
                "one object per row, or one that is not a list for all rows. set() replaces an entry."
            )
        if (
            isinstance(value, Tensor)
            and size
            and value.dim() > 1
            and len(value) == size[0]
            and self._holds_type_of(value)
        ):
            value = list(value.unbind(0))
        return rows_of(value, size, self._device)

    def _holds_lists(self) -> bool:
        return all(isinstance(item, (list, tuple, np.ndarray)) for item in _flat_payloads(self))

    def _densified(self) -> Any:
        return self

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Any:
        return copied(self)

    def _dense_or_none(self) -> Any:
        return None

    def _empty_like(self, index: Any) -> Any:
        return _without_rows(index_batch_size(self._batch_size, index), self._device)

    @classmethod
    def _class_for(cls, members: Sequence[Any]) -> Any:
        return cls if all(is_non_tensor(member) for member in members) else LazyStackedTensorDict

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        return self

    def to_lazystack(self, dim: int = 0) -> Any:
        return self

    def _apply_level(self, call: Any, others: list[Any], prefix: tuple[str, ...]) -> Any:
        return copied(self)

    def _apply_into(self, call: Any, others: list[Any], prefix: tuple[str, ...], out: Any) -> None:
        return

    def _change_batch_size(self, new: torch.Size) -> None:
        if new != self._batch_size[: len(new)]:
            super()._change_batch_size(new)

    def _fit_into(self, parent: TensorCollection, key: str, non_blocking: bool) -> Any:
        dims = parent.batch_dims
        if -1 not in self._batch_size and self._batch_size[:dims] != parent._batch_size:
            raise parent._misfit(self, key)
        if parent._device is not None and parent._device != self._device:
            return self.to(parent._device)
        return self

    def _holds_type_of(self, value: Any) -> bool:
        held = {type(item) for item in _flat_payloads(self)}
        return type(value) in held or (isinstance(value, list) and {type(item) for item in _flat(value)} <= held)

    def _set_index(self, index: Any, value: Any) -> None:
        if isinstance(value, TensorCollection) and not is_non_tensor(value):
            raise EntryKindError("", self, value)
        if not is_non_tensor(value):
            value = self._like_rows(value, self._rows_size(index))
        with self._writing():
            super()._set_index(index, value)

    def _rows_size(self, index: Any) -> torch.Size:
        size = index_batch_size(self._batch_size, index)
        if -1 in size:  # the stack may be a temporary one, whose new members would be lost
            raise InplaceWriteError(
                f"rows of different lengths (batch size {list(self._batch_size)}) take no plain object in place: set "
                "the entry of the member, stack[0].set(key, value), or give one index a dimension"
            )
        return size

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Around writes into rows: the file of the memory-mapped stack that they belong to is rewritten once."""
        home = self._saved_by()
        if home is None or id(home) in DEFERRED:
            yield
            return
        DEFERRED.add(id(home))
        try:
            yield
        finally:
            DEFERRED.discard(id(home))
        home._save()

    _save = NonTensorDataBase._save

    def update_(self, input_dict_or_td: Any = None, **kwargs: Any) -> Any:
        with self._writing():
            super().update_(input_dict_or_td, **kwargs)
        return self

    def _overwrite(self, item: Any, parent: TensorCollection) -> TensorCollection:
        self.update_(item if is_non_tensor(item) else self._like_rows(item, self._batch_size))
        return self

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Any:
        if self._lock is not None and not inplace:
            raise self._locked_error()
        return self.update_(input_dict_or_td)

    def __repr__(self) -> str:
        return f"NonTensorStack(\n    {self.tolist()},\n    batch_size={self._batch_size},\n    device={self._device})"

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        return stack_non_tensors(items, dim)

    @classmethod
    def _cat_entries(cls, items: Sequence[Any], dim: int) -> Any:
        return cat_non_tensors(items, dim)

    # -- rows in another order: found out on their positions ------------------------------------------------

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Any:
        """The objects at the positions that ``move`` selects from a tensor of all positions; -1 is ``None``."""
        values = _flat_rows(self.tolist(), self.batch_dims)
        positions = torch.arange(len(values), device="cpu").reshape(self._batch_size)
        return _picked(values, move(positions).tolist(), self._device)

    def gather(self, dim: int, index: Tensor, out: Any = None, *, inplace: bool = False) -> Any:
        check_gather_out(out, inplace)
        self._refuse_inplace("gather", inplace)
        new = self._moved(lambda positions: positions.gather(dim, index))
        if out is None:
            return new
        check_out(out, new)
        return out.update_(new)

    def _rolled(self, shifts: Any, dims: Any) -> Any:
        return self._moved(lambda positions: positions.roll(shifts, dims if dims is not None else ()))

    def flip(self, dims: Any, *more: int) -> Any:
        return self._moved(lambda positions: positions.flip(dims, *more))

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
        return self._moved(lambda positions: positions.rot90(k, tuple(dims)))

    def set(self, key: Any, item: Any, inplace: bool = False, **kwargs: Any) -> Self:
        """Raise KeyError: objects have no entries.

        Raises:
            KeyError: always.
        """
        raise no_entries_error(self, key)

    def flatten_keys(self, *args: Any, **kwargs: Any) -> Self:
        return self

    unflatten_keys = flatten_keys

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.tolist()

    def pad(self, pad_size: Sequence[int], value: Any = None, inplace: bool = False) -> Any:
        """More rows before and after, which hold ``None``."""
        check_pad(self, pad_size)
        if inplace and self._lock is not None:
            raise self._locked_error()
        spec = [0, 0] * (self.batch_dims - len(pad_size) // 2)
        for pair in reversed(range(0, len(pad_size), 2)):
            spec += pad_size[pair : pair + 2]
        new = self._moved(lambda positions: torch.nn.functional.pad(positions, spec, value=-1))
        if not inplace:
            return new
        self._source, self._batch_size, self._stack_dim = new._source, new._batch_size, new._stack_dim
        return self

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        return self


def _flat_rows(values: list[Any], dims: int) -> list[Any]:
    return values if dims == 1 else [item for row in values for item in _flat_rows(row, dims - 1)]


def _picked(values: list[Any], positions: Any, device: Any) -> Any:
    if not isinstance(positions, list):
        return NonTensorData(values[positions] if positions >= 0 else None, device=device)
    if positions and not isinstance(positions[0], list) and not holds_collections(values):
        picked = [values[position] if position >= 0 else None for position in positions]
        return NonTensorStack._of_objects(picked, device=device)
    rows = [_picked(values, position, device) for position in positions]
    return NonTensorStack._of(rows, 0, rows[0]._batch_size if rows else torch.Size(()), device)


def _without_rows(size: torch.Size, device: Any) -> Any:
    rows = [_without_rows(size[1:], device) for _ in range(size[0])]
    return NonTensorStack._of(rows, 0, size[1:], device)


def rows_of(value: Any, size: torch.Size, device: Any) -> Any:
    """A plain value as non-tensor data of the given batch size: one list item per row, other values for all rows."""
    if isinstance(value, list) and size and len(value) == size[0]:
        if len(size) == 1 and not holds_collections(value):
            return NonTensorStack._of_objects(list(value), device=device)
        rows = [rows_of(row, size[1:], device) for row in value]
        return NonTensorStack._of(rows, 0, size[1:], device)
    return NonTensorData(value, batch_size=size, device=device)


def _nested_payloads(data: Any) -> Any:
    if isinstance(data, NonTensorDataBase):
        return data.tolist()
    alike = not data._stack_dim and (data.batch_dims == 1 or -1 not in data._batch_size)
    values = data._payloads() if alike else None
    if values is None:  # each row has its own length
        return [_nested_payloads(row) for row in data.unbind(0)]
    return [filled(value, tuple(data._batch_size[1:])) for value in values] if data.batch_dims > 1 else values


def _flat(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (_flat(value) if isinstance(value, list) else [value])]


def _flat_payloads(data: Any) -> list[Any]:
    if isinstance(data, NonTensorDataBase):
        return [data._payload]
    values = data._payloads()
    return values if values is not None else [value for member in data._source for value in _flat_payloads(member)]


def _of_no_rows(name: str) -> Callable[..., Any]:
    """A method of lazy stacks, which use their members; without elements, a tensor gives the shape."""
    method = getattr(NonTensorStack, name)

    @functools.wraps(method)
    def shaped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if 0 not in self._batch_size:
            return method(self, *args, **kwargs)
        tensor = torch.empty(self._batch_size)
        shape = tensor[args[0]].shape if name == "_index" else getattr(tensor, name)(*args, **kwargs).shape
        return self._blank(shape, False)

    return shaped


_SHAPING = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "permute", "repeat", "flip")
for _name in (*_SHAPING, "roll", "_index"):
    setattr(NonTensorStack, _name, _of_no_rows(_name))

register(
    NonTensorStack=NonTensorStack, rows_of=rows_of, stack_non_tensors=stack_non_tensors, cat_non_tensors=cat_non_tensors
)
