"""Stacks that are not materialised: :class:`LazyStackedTensorDict`, and the functions that make one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.dense.combine import joined_into
from tensordict_lite.kernel import DeviceLike, stacked_names
from tensordict_lite.lazy.ragged import nested, padded
from tensordict_lite.lazy.stack import LazyStackedTensorDict, member_columns, require_collections
from tensordict_lite.lazy.storage import member_size, stack_position
from tensordict_lite.objects.metadata import joined
from tensordict_lite.registry import register
from tensordict_lite.settings import settings

__all__ = ["LazyStackedTensorDict", "lazy_stack", "maybe_dense_stack", "stack_lazily"]


def stack_class(values: Sequence[Any]) -> type[LazyStackedTensorDict]:
    """The class of a lazy stack of these collections: that of their kind, if they have the same one."""
    if all(value._is_non_tensor for value in values):
        return registry.NonTensorStack
    kind = getattr(values[0], "_member_class", type(values[0]))
    if hasattr(kind, "_field_specs") and all(getattr(v, "_member_class", type(v)) is kind for v in values):
        return registry.typed_stack_class(kind)
    return LazyStackedTensorDict


def stack_lazily(values: list[Any], dim: int) -> Any:
    """The lazy stack of compatible collections, in the class for their kind."""
    one = joined(values, dim)
    if one is not None:
        return one
    first = values[0]
    if first._is_unbatched:
        return first._stack_entries(values, dim)
    cls = stack_class(values)
    return cls._of(values, dim, member_size(values, False), first._device, stacked_names(values[:1], dim))


def lazy_stack(
    items: Sequence[Any],
    dim: int = 0,
    *,
    device: DeviceLike | None = None,
    out: Any = None,
    stack_dim_name: str | None = None,
    strict_shape: bool = False,
    **kwargs: Any,
) -> Any:
    """Stack collections along a new dimension without copying them.

    Args:
        items: non-empty sequence of collections. Tensors are stacked by ``torch.stack``.
        dim: position of the new dimension.
        device: move the members to this device first.
        out: collection to write the stack into.
        stack_dim_name: name of the new dimension.
        strict_shape: raise for members of different batch sizes.

    Raises:
        RuntimeError: an empty sequence, or members that are not compatible.

    Example:
        >>> stack = lazy_stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3), b=torch.ones(1))])
        >>> stack.batch_size, list(stack.keys()), stack[1]["a"].shape
        (torch.Size([2]), ['a'], torch.Size([3]))
    """
    items = list(items)
    if not items:
        raise RuntimeError(
            "items cannot be empty: a lazy stack without members is LazyStackedTensorDict(batch_size=...)"
        )
    if isinstance(items[0], Tensor):
        return _stack_tensors(items, dim, **kwargs)
    require_collections(items)
    if kwargs:
        raise TypeError(f"lazy_stack() of collections got unexpected keyword arguments {sorted(kwargs)}")
    if device is not None:
        items = [item.to(device) for item in items]
    at = stack_position(dim, items[0].batch_dims)
    if out is not None and joined_into(torch.stack, items, at, out):
        return out
    one = joined(items, at) if out is None else None
    if one is not None:
        return one
    stack = stack_class(items)(*items, stack_dim=dim, stack_dim_name=stack_dim_name, strict_shape=strict_shape)
    if out is None:
        return stack
    return out.update_(stack) if out.is_locked else out.update(stack, inplace=True)


def _stack_tensors(
    items: list[Any],
    dim: int,
    as_list: bool = False,
    as_nested_tensor: bool = False,
    as_padded_tensor: bool = False,
    layout: torch.layout | None = None,
    padding_side: str = "right",
    padding_value: float = 0.0,
) -> Any:
    if not all(isinstance(item, Tensor) for item in items):
        require_collections(items)
    if as_list:
        return items
    if as_nested_tensor:
        return nested(items, layout)
    if as_padded_tensor:
        return padded(items, padding_side, padding_value, "tensors")
    try:
        return torch.stack(items, dim)
    except RuntimeError as err:
        raise RuntimeError(
            f"failed to stack tensors of shapes {[tuple(item.shape) for item in items]}: pass as_padded_tensor=True, "
            "as_nested_tensor=True or as_list=True for different shapes"
        ) from err


def maybe_dense_stack(items: Sequence[Any], dim: int = 0, out: Any = None, **kwargs: Any) -> Any:
    """A dense stack where keys and shapes agree, at every level, and a lazy one where they differ.

    Args:
        items: non-empty sequence of collections.
        dim: position of the new dimension.
        out: collection to write the stack into.
        **kwargs: for :func:`lazy_stack`, if the stack is lazy.

    Raises:
        RuntimeError: an empty sequence, or members with incompatible batch sizes.

    Example:
        >>> type(maybe_dense_stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))])).__name__
        'LazyStackedTensorDict'
    """
    items = list(items)
    if not items:
        raise RuntimeError("items cannot be empty")
    if isinstance(items[0], Tensor):
        return _stack_tensors(items, dim, **kwargs)
    require_collections(items)
    if not {"device", "stack_dim_name", "strict_shape"}.issuperset(kwargs):
        raise TypeError(f"maybe_dense_stack() of collections got unexpected keyword arguments {sorted(kwargs)}")
    at = stack_position(dim, items[0].batch_dims)
    if out is not None and joined_into(torch.stack, items, at, out):
        return out
    stack = lazy_stack(items, at, **kwargs) if settings.lazy_legacy and out is None else _densest(items, at, kwargs)
    if out is None:
        return stack
    return out.update_(stack) if out.is_locked else out.update(stack, inplace=True)


def _densest(items: list[Any], dim: int, kwargs: dict[str, Any]) -> Any:
    first = items[0]
    if any(type(item._source) is list and not item._is_non_tensor for item in items):
        return _densest_stacks(items, dim, kwargs)
    if first._is_unbatched:
        return first._stack_entries(items, dim)
    same = all(type(item) is type(first) and item._batch_size == first._batch_size for item in items)
    if not same or type(first._source) is not dict or type(first)._is_non_tensor:
        return lazy_stack(items, dim, **kwargs)
    names = set(first._source)
    if any(item._source.keys() != names for item in items):
        return lazy_stack(items, dim, **kwargs)
    out: dict[str, Any] = {}
    for key in first._source:
        column = [item._source[key] for item in items]
        tensors = [isinstance(value, Tensor) for value in column]
        if all(tensors):
            if any(value.shape != column[0].shape for value in column):
                return lazy_stack(items, dim, **kwargs)
            out[key] = torch.stack(column, dim)
        elif any(tensors):
            return lazy_stack(items, dim, **kwargs)
        else:
            out[key] = _densest(column, dim, {})
    size = first._batch_size
    return first._rebuild(out, torch.Size((*size[:dim], len(items), *size[dim:])), stacked_names(items, dim))


def _densest_stacks(items: list[Any], dim: int, kwargs: dict[str, Any]) -> Any:
    """Stack lazy stacks member by member, densely where all members have an entry in the same shape."""
    if not all(type(item._source) is list for item in items):
        dense = [item._dense_or_none() if type(item._source) is list else item for item in items]
        if all(item is not None for item in dense):
            return _densest(dense, dim, kwargs)
    try:
        model, columns = member_columns(items)
    except RuntimeError:  # of different sizes
        return lazy_stack(items, dim, **kwargs)
    at = model._stack_dim
    inner = dim - (dim > at)
    members = [_densest(column, inner, kwargs) for column in columns]
    return model._restacked(members, at + (dim <= at), stacked_names(items, dim), locked=False)


register(
    LazyStackedTensorDict=LazyStackedTensorDict,
    lazy_stack=lazy_stack,
    maybe_dense_stack=maybe_dense_stack,
    stack_lazily=stack_lazily,
)
