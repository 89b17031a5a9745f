"""Extremes: smallest and largest elements, their positions, and running extremes along a dimension.

Unlike in other reductions, nested collections get the batch size of the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.ops.values.operands import is_object
from tensordict_lite.ops.values.reduce_tree import batch_dims, dense, kept, ones, scalar, together, walk, without


class ExtremeOps(Kernel):
    """Mixin of the extremes. Results are unlocked; remaining dimensions keep their names."""

    __slots__ = ()

    def amin(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, reduce: bool | None = None
    ) -> Self | Tensor:
        """Smallest element of every tensor, without its position. Arguments as in :meth:`sum`."""
        return _extreme(self, torch.amin, dim, keepdim, reduce)

    def amax(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, reduce: bool | None = None
    ) -> Self | Tensor:
        """Largest element of every tensor, without its position. Arguments as in :meth:`sum`."""
        return _extreme(self, torch.amax, dim, keepdim, reduce)

    def min(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        """Smallest element of every tensor; along a batch dimension, with its position.

        Args:
            dim: batch dimension. Without it the result holds one value for each tensor.
            keepdim: keep the dimension with size 1.
            reduce: reduce all tensors together, after concatenation along ``dim``.
            return_indices: ``False`` returns the values only.

        Returns:
            A named tuple ``(values, indices)`` of collections with ``dim``, one collection without. With
            ``reduce=True`` a tensor, or the result of :func:`torch.min`.

        Raises:
            IndexError: ``dim`` is not a batch dimension.
            TypeError: ``keepdim`` without ``dim``.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> values, indices = TensorDict({"a": torch.tensor([3.0, 1.0])}, [2]).min(0)
            >>> values["a"], indices["a"]
            (tensor(1.), tensor(1))
        """
        return _located(self, torch.min, torch.amin, dim, keepdim, reduce, return_indices)

    def max(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        """Largest element of every tensor; along a batch dimension, with its position. See :meth:`min`."""
        return _located(self, torch.max, torch.amax, dim, keepdim, reduce, return_indices)

    def cummin(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Running minimum of every tensor along a batch dimension, and its positions.

        Args:
            dim: batch dimension.
            reduce: concatenate all tensors along ``dim`` first, and return the result of :func:`torch.cummin`.
            return_indices: ``False`` returns the values only.

        Returns:
            A named tuple ``(values, indices)`` of collections of the same batch size.
        """
        return _running(self, torch.cummin, dim, reduce, return_indices)

    def cummax(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Running maximum of every tensor along a batch dimension. See :meth:`cummin`."""
        return _running(self, torch.cummax, dim, reduce, return_indices)


def _flat(size: torch.Size, names: Any, root: Any, nested_names: Any = None) -> Callable[[Any], tuple[Any, Any]]:
    """The same size for the whole tree: extremes give nested collections the batch size of the root."""

    def after(node: Any) -> tuple[Any, Any]:
        return size, names if node is root else nested_names

    return after


def _extreme(node: Any, fn: Callable[..., Tensor], dim: Any, keepdim: bool, reduce: bool | None) -> Any:
    if reduce:
        return together(node, fn.__name__, fn, dim, keepdim)
    if dim == "feature":
        raise RuntimeError(f'{fn.__name__}() has no dim="feature" without reduce=True: reduce batch dimensions')
    root = node = dense(node)
    if dim is None or dim == ():
        size, names = ones(node) if keepdim else scalar(node)
        every = _flat(size, names, root)
        return walk(node, lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), keepdim) if keepdim else fn(leaf), every)
    dims = batch_dims(dim, len(node._batch_size))
    size, names = without(dims, keepdim)(node)
    return walk(node, lambda leaf, _: fn(leaf, dims, keepdim), _flat(size, names, root))


def _located(
    node: Any, fn: Any, value_fn: Any, dim: Any, keepdim: bool, reduce: bool | None, return_indices: bool
) -> Any:
    name = fn.__name__
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"{name}() locates along one dimension, got {dim!r}: a{name}() reduces several")
    if reduce:
        return together(node, name, fn, dim, keepdim)
    if dim == "feature":
        raise RuntimeError(f'{name}() has no dim="feature" without reduce=True: reduce a batch dimension')
    if dim is None:
        if keepdim:
            raise TypeError(f"{name}() keeps dimensions along a batch dimension only: got keepdim=True without dim")
        return _extreme(node, value_fn, None, False, None)
    node = dense(node)
    (at,) = batch_dims(dim, len(node._batch_size))
    if not return_indices:
        return _extreme(node, value_fn, at, keepdim, None)
    size, names = without((at,), keepdim)(node)
    return _pair(node, getattr(torch.return_types, name), lambda leaf: fn(leaf, at, keepdim), size, names)


def _running(node: Any, fn: Any, dim: Any, reduce: bool | None, return_indices: bool) -> Any:
    name = fn.__name__
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"{name}() runs along one dimension, got {dim!r}")
    if reduce:
        return together(node, name, lambda leaf, at, _: fn(leaf, at), dim, False)
    (at,) = batch_dims(dim, len(node._batch_size))
    node = dense(node)
    size, names = kept(node)
    if return_indices:
        return _pair(node, getattr(torch.return_types, name), lambda leaf: fn(leaf, at), size, names)
    return walk(node, lambda leaf, _: fn(leaf, at)[0], _flat(size, names, node))


def _pair(node: Any, result: Any, fn: Callable[[Tensor], Any], size: torch.Size, names: Any) -> Any:
    """Two trees, of the values and of the indices, with only tensor entries."""

    def split(node: Any) -> tuple[Any, Any]:
        values, indices = {}, {}
        for key, value in dense(node)._source.items():
            if isinstance(value, Tensor):
                values[key], indices[key] = fn(value)
            elif not is_object(value) and value._leaves():
                values[key], indices[key] = split(value)
        return node._rebuild(values, size, names), node._rebuild(indices, size, names)

    return result(split(node))
