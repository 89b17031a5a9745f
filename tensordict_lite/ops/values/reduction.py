"""Reductions of every leaf over all elements, over batch dimensions, or over feature dimensions.

==============  ============================================================================================
no ``dim``      each leaf becomes a scalar, the batch size ``[]``
an int, tuple   these batch dimensions are removed; further ones of nested collections are kept
``"feature"``   the dimensions after the batch size of the collection that holds the leaf are removed
==============  ============================================================================================

``reduce=True`` reduces all leaves together, to one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from tensordict_lite.ops.values.extreme import ExtremeOps
from tensordict_lite.ops.values.operands import fused
from tensordict_lite.ops.values.reduce_tree import (
    KeyTransform,
    along_dims,
    dense,
    of_one_dim,
    reduction,
    scalar,
    walk,
    with_options,
    written,
)

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    Dim = int | Sequence[int] | Literal["feature"] | None


class ReductionOps(ExtremeOps):
    """Mixin of the reduction family. Results are unlocked; remaining dimensions keep their names."""

    __slots__ = ()

    # -- truth -----------------------------------------------------------------------------------------------

    def all(self, dim: int | None = None) -> bool | Any:
        """Whether every element of every tensor is nonzero; with ``dim``, bool tensors without that dimension.

        Args:
            dim: batch dimension; negative counts from the last one.

        Raises:
            RuntimeError: ``dim`` is not a batch dimension.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.tensor([[True, False], [True, True]])}, [2, 2])
            >>> td.all(), td.all(dim=1)["a"]
            (False, tensor([False,  True]))
        """
        if dim is None:  # entry by entry: stops at the first zero
            if self._is_unbatched:
                return bool(self._leaves()[0].all())
            source = self._source
            for value in source.values() if type(source) is dict else source:
                if not (_all_of_few(value) if type(value) is Tensor else value.all()):
                    return False
            return True
        return self._truth(torch.all, dim)

    def any(self, dim: int | None = None) -> bool | Any:
        """Whether any element of any tensor is nonzero; with ``dim``, bool tensors without that dimension.

        Args:
            dim: batch dimension; negative counts from the last one.

        Raises:
            RuntimeError: ``dim`` is not a batch dimension.
        """
        if dim is None:
            if self._is_unbatched:
                return bool(self._leaves()[0].any())
            source = self._source
            for value in source.values() if type(source) is dict else source:
                if _any_of_few(value) if type(value) is Tensor else value.any():
                    return True
            return False
        return self._truth(torch.any, dim)

    def _truth(self, fn: Callable[..., Tensor], dim: Any) -> Any:
        ndim = len(self._batch_size)
        if isinstance(dim, (tuple, list)):
            raise TypeError(f"{fn.__name__}() takes one batch dimension (an int), got {dim!r}")
        if not -ndim <= dim < ndim:
            raise RuntimeError(
                "dim must be greater than or equal to -tensordict.batch_dims and smaller than "
                f"tensordict.batch_dims; got {dim} for {ndim} batch dimension(s)"
            )
        return along_dims(self, fn, (dim % ndim,), False, None)

    # -- sums ------------------------------------------------------------------------------------------------

    def sum(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
        key_transform: KeyTransform = None,
    ) -> Self | Tensor:
        """Sum of every tensor.

        Args:
            dim: batch dimension(s) to reduce, or ``"feature"`` for all dimensions after them. All by default.
            keepdim: keep reduced dimensions with size 1.
            dtype: cast to this dtype first.
            reduce: reduce all tensors together, to one: over everything, over the features, or, with batch dimensions,
                after concatenation along the first of them.
            key_transform: function that renames the entries.

        Raises:
            IndexError: ``dim`` is not a batch dimension.
            TypeError: ``keepdim`` with ``"feature"``.
            ValueError: ``reduce=True`` without tensors.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.ones(2, 3), "b": torch.ones(2)}, [2])
            >>> td.sum(0)["a"], td.sum("feature")["a"], td.sum(reduce=True)
            (tensor([2., 2., 2.]), tensor([3., 3.]), tensor(8.))
        """
        return reduction(self, "sum", with_options(torch.sum, dtype=dtype), dim, keepdim, reduce, key_transform)

    def mean(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
        key_transform: KeyTransform = None,
    ) -> Self | Tensor:
        """Mean of every tensor. Arguments as in :meth:`sum`; integers need a ``dtype``."""
        return reduction(self, "mean", with_options(torch.mean, dtype=dtype), dim, keepdim, reduce, key_transform)

    def nansum(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Sum of every tensor with NaN counted as zero. Arguments as in :meth:`sum`."""
        return reduction(self, "nansum", with_options(torch.nansum, dtype=dtype), dim, keepdim, reduce, None)

    def nanmean(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Mean of the elements of every tensor, ignoring NaN. Arguments as in :meth:`sum`."""
        return reduction(self, "nanmean", with_options(torch.nanmean, dtype=dtype), dim, keepdim, reduce, None)

    def std(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: KeyTransform = None,
    ) -> Self | Tensor:
        """Standard deviation of every tensor. Arguments as in :meth:`sum`.

        Args:
            correction: subtracted from the number of elements in the divisor.
        """
        fn = with_options(torch.std, correction=correction)
        return reduction(self, "std", fn, dim, keepdim, reduce, key_transform)

    def var(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        correction: int = 1,
        reduce: bool | None = None,
        key_transform: KeyTransform = None,
    ) -> Self | Tensor:
        """Variance of every tensor. Arguments as in :meth:`sum`.

        Args:
            correction: subtracted from the number of elements in the divisor.
        """
        fn = with_options(torch.var, correction=correction)
        return reduction(self, "var", fn, dim, keepdim, reduce, key_transform)

    def prod(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Product of every tensor. Arguments as in :meth:`sum`.

        ``keepdim`` without ``dim`` gives every tensor and nested collection only its batch dimensions, of size 1.
        """
        fn = of_one_dim(with_options(torch.prod, dtype=dtype))
        if keepdim and not reduce and (dim is None or dim == ()):
            ones = torch.Size([1] * len(self._batch_size))
            return walk(dense(self), lambda leaf, _: fn(leaf).reshape(ones), lambda node: (ones, None))
        return reduction(self, "prod", fn, dim, keepdim, reduce, None)

    def quantile(
        self,
        q: float | Tensor,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: KeyTransform = None,
    ) -> Self | Tensor:
        """Quantile of every tensor, see :func:`torch.quantile`. Other arguments as in :meth:`sum`.

        Args:
            q: between 0 and 1, or a one-dimensional tensor of such values, which becomes the first dimension of every
                tensor and, with ``dim``, of the batch.
            interpolation: between two elements: linear, lower, higher, midpoint or nearest.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> TensorDict({"a": torch.arange(5.0)}, [5]).quantile(0.5, 0)["a"]
            tensor(2.)
        """

        def along(leaf: Tensor, *dims: Any) -> Tensor:
            return torch.quantile(leaf, q, *dims, interpolation=interpolation)

        lead = q.shape[0] if isinstance(q, Tensor) and q.ndim else None
        fn = of_one_dim(along, lead is not None)
        return reduction(self, "quantile", fn, dim, keepdim, reduce, key_transform, lead)

    def logsumexp(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, out: TensorCollection | None = None
    ) -> Self:
        """Logarithm of the sum of exponentials, over batch dimensions only.

        Args:
            dim: batch dimension(s); all of them by default. With no dimension, each tensor is reduced whole, as by
                `torch.sum`.
            keepdim: keep reduced dimensions with size 1.
            out: collection whose tensors receive the result, and which is returned.

        Raises:
            ValueError: ``dim`` is not a batch dimension.
        """
        ndim = len(self._batch_size)
        dims = tuple(range(ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        if not all(-ndim <= d < ndim for d in dims):
            raise ValueError(
                f"The dimension {dim} is incompatible with a tensordict with batch_size {self._batch_size}."
            )
        new = along_dims(self, _logsumexp, tuple(d % ndim for d in dims), keepdim, None)
        return new if out is None else written(out, new)

    def norm(
        self,
        *,
        out: TensorCollection | None = None,
        dtype: torch.dtype | None = None,
        key_transform: KeyTransform = None,
    ) -> Self:
        """Euclidean norm of every tensor, over all of its elements. Keeps the lock.

        Args:
            out: collection whose tensors receive the result, and which is returned.
            dtype: dtype of the result.
            key_transform: function that renames the entries.

        Raises:
            RuntimeError: a tensor is neither floating point nor complex.
        """
        tree = _all_dense(self)
        leaves = tree._leaves()
        each = with_options(torch.linalg.vector_norm, dtype=dtype)
        norms = iter(fused(with_options(torch._foreach_norm, dtype=dtype), each, leaves) if leaves else ())
        new = walk(tree, lambda leaf, node: next(norms), scalar, key_transform)
        if self._lock is not None:
            new._propagate_lock(None)
        return new if out is None else written(out, new)


def _all_dense(node: Any) -> Any:
    """The same tree without lazy stacks, so that its leaves are those of a walk."""
    node = dense(node)
    if all(isinstance(value, Tensor) for value in node._source.values()):
        return node
    source = {key: value if isinstance(value, Tensor) else _all_dense(value) for key, value in node._source.items()}
    return node._rebuild(source, node._batch_size, node._names)


def _logsumexp(leaf: Tensor, dims: Any, keepdim: bool) -> Tensor:
    dims = tuple(range(leaf.ndim)) if dims == () else dims
    return leaf.clone() if dims == () else torch.logsumexp(leaf, dims, keepdim)


_FEW = 32


def _all_of_few(value: Tensor) -> bool:
    numbers = _few_numbers(value)
    return bool(value.all()) if numbers is None else all(numbers)


def _any_of_few(value: Tensor) -> bool:
    numbers = _few_numbers(value)
    return bool(value.any()) if numbers is None else any(numbers)


def _few_numbers(value: Tensor) -> list[Any] | None:
    """The elements of a small CPU tensor, faster than a reduction by torch; else ``None``."""
    if value.numel() > _FEW or not value.is_cpu or value.is_nested or value.layout is not torch.strided:
        return None
    return value.tolist() if value.ndim == 1 else value.ravel().tolist()
