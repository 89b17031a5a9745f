"""Reductions: every leaf over all of its elements, over batch dimensions, or over its feature dimensions.

==============  ============================================================================================
no ``dim``      each leaf becomes a scalar, the batch size ``[]``
an int, tuple   these batch dimensions go, those of nested collections beyond them stay
``"feature"``   the dimensions behind the batch size of the collection that holds the leaf go
==============  ============================================================================================

``reduce=True`` reduces all leaves together, to one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tensordict_lite.ops.generated import inplace
from tensordict_lite.ops.operands import fused, is_object, pair_leaves

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensordict_lite.base import TensorCollection

    Dim = int | Sequence[int] | Literal["feature"] | None
    KeyTransform = Callable[[str], str] | None
    Along = Callable[[Tensor, Any, bool], Tensor]

__all__ = ["ReductionOps"]


class ReductionOps:
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
        if dim is None:
            for leaf in self._leaves():
                if not leaf.all():
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
            for leaf in self._leaves():
                if leaf.any():
                    return True
            return False
        return self._truth(torch.any, dim)

    def _truth(self, fn: Callable[..., Tensor], dim: int) -> Any:
        ndim = len(self._batch_size)
        if isinstance(dim, (tuple, list)):
            raise TypeError(f"{fn.__name__}() takes one batch dimension (an int), got {dim!r}")
        if not -ndim <= dim < ndim:
            raise RuntimeError(
                "dim must be greater than or equal to -tensordict.batch_dims and smaller than "
                f"tensordict.batch_dims; got {dim} for {ndim} batch dimension(s)"
            )
        return _along_dims(self, fn, (dim % ndim,), False, None)

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
            dim: batch dimension(s) to reduce, or ``"feature"`` for all that are behind them. All by default.
            keepdim: keep reduced dimensions with size 1.
            dtype: cast to it first.
            reduce: reduce all tensors together, to one: over everything, over the features, or, with batch
                dimensions, after concatenation along the first of them.
            key_transform: new name of every entry.

        Raises:
            IndexError: ``dim`` is not a batch dimension.
            TypeError: ``keepdim`` with ``"feature"``.
            ValueError: ``reduce=True`` without any tensor.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.ones(2, 3), "b": torch.ones(2)}, [2])
            >>> td.sum(0)["a"], td.sum("feature")["a"], td.sum(reduce=True)
            (tensor([2., 2., 2.]), tensor([3., 3.]), tensor(8.))
        """
        return _reduction(self, "sum", _with(torch.sum, dtype=dtype), dim, keepdim, reduce, key_transform)

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
        return _reduction(self, "mean", _with(torch.mean, dtype=dtype), dim, keepdim, reduce, key_transform)

    def nansum(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Sum of every tensor with NaN counted as zero. Arguments as in :meth:`sum`."""
        return _reduction(self, "nansum", _with(torch.nansum, dtype=dtype), dim, keepdim, reduce, None)

    def nanmean(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Mean of the elements of every tensor that are not NaN. Arguments as in :meth:`sum`."""
        return _reduction(self, "nanmean", _with(torch.nanmean, dtype=dtype), dim, keepdim, reduce, None)

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
        fn = _with(torch.std, correction=correction)
        return _reduction(self, "std", fn, dim, keepdim, reduce, key_transform)

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
        fn = _with(torch.var, correction=correction)
        return _reduction(self, "var", fn, dim, keepdim, reduce, key_transform)

    def prod(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Self | Tensor:
        """Product of every tensor. Arguments as in :meth:`sum`."""
        return _reduction(self, "prod", _one_dim(_with(torch.prod, dtype=dtype)), dim, keepdim, reduce, None)

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
            q: between 0 and 1, or a one-dimensional tensor of such values. Those become the first dimension of
                every tensor and, with ``dim``, of the batch.
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
        fn = _one_dim(along, lead is not None)
        return _reduction(self, "quantile", fn, dim, keepdim, reduce, key_transform, lead)

    def logsumexp(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, out: TensorCollection | None = None
    ) -> Self:
        """Logarithm of the sum of exponentials, over batch dimensions only.

        Args:
            dim: batch dimension(s); all of them by default.
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
        new = _along_dims(self, _logsumexp, tuple(d % ndim for d in dims), keepdim, None)
        return new if out is None else _written(out, new)

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
            dtype: of the result.
            key_transform: new name of every entry.

        Raises:
            RuntimeError: a tensor is neither floating point nor complex.
        """
        leaves = self._leaves()
        each = _with(torch.linalg.vector_norm, dtype=dtype)
        norms = iter(fused(_with(torch._foreach_norm, dtype=dtype), each, leaves) if leaves else ())
        new = _walk(self, lambda leaf, node: next(norms), _scalar, key_transform)
        if self._lock is not None:
            new._propagate_lock(None)
        return new if out is None else _written(out, new)

    # -- extremes --------------------------------------------------------------------------------------------

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
            A named tuple ``(values, indices)`` of collections with ``dim``, one collection without. A tensor, or
            what :func:`torch.min` returns, with ``reduce=True``.

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
        """Running minimum of every tensor along a batch dimension, and where it was reached.

        Args:
            dim: batch dimension.
            reduce: concatenate all tensors along ``dim`` first, and return what :func:`torch.cummin` does.
            return_indices: ``False`` returns the values only.

        Returns:
            A named tuple ``(values, indices)`` of collections of the same batch size.
        """
        return _running(self, torch.cummin, dim, reduce, return_indices)

    def cummax(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Running maximum of every tensor along a batch dimension. See :meth:`cummin`."""
        return _running(self, torch.cummax, dim, reduce, return_indices)


# -- functions of one tensor ----------------------------------------------------------------------------------


def _with(fn: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """``fn`` with keyword options; those that are ``None`` are left out, which is how torch spells a default."""
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return fn

    def call(*args: Any) -> Tensor:
        return fn(*args, **options)

    # torch.std and torch.var take keepdim by name once correction is given
    def keyworded(leaf: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return fn(leaf, dim=dim, keepdim=keepdim, **options)

    return keyworded if "correction" in options else call


def _one_dim(fn: Callable[..., Tensor], leads: bool = False) -> Callable[..., Tensor]:
    """Lets a torch function of one dimension reduce several, by merging them at the end.

    ``leads``: the result of ``fn`` has a dimension of its own in front.
    """

    def call(leaf: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
        if dims is None:
            return fn(leaf)
        if isinstance(dims, int):
            return fn(leaf, dims, keepdim)
        if len(dims) == 1:
            return fn(leaf, dims[0], keepdim)
        dims = [d % leaf.ndim for d in dims]
        rest = [d for d in range(leaf.ndim) if d not in dims]
        out = fn(leaf.permute(*rest, *dims).flatten(len(rest)), len(rest), False)
        if keepdim:
            for d in sorted(dims):
                out = out.unsqueeze(d + leads)
        return out

    return call


def _logsumexp(leaf: Tensor, dims: Any, keepdim: bool) -> Tensor:
    return leaf.clone() if dims == () else torch.logsumexp(leaf, dims, keepdim)


# -- trees ----------------------------------------------------------------------------------------------------


def _walk(node: Any, fn: Callable[[Tensor, Any], Any], after: Any, key_transform: KeyTransform = None) -> Any:
    """``fn(leaf, its collection)`` in place of every leaf; ``after(collection)`` is its new size and names."""
    if type(node._source) is not dict:
        node = node.contiguous()  # a lazy stack: reduced as the dense collection that it stands for
    out = {}
    for key, value in node._source.items():
        new = fn(value, node) if isinstance(value, Tensor) else _walk(value, fn, after, key_transform)
        out[key if key_transform is None else key_transform(key)] = new
    return node._rebuild(out, *after(node))


def _scalar(node: Any) -> tuple[torch.Size, None]:
    return torch.Size(()), None


def _kept(node: Any) -> tuple[torch.Size, Any]:
    return node._batch_size, node._names


def _ones(node: Any) -> tuple[torch.Size, Any]:
    return torch.Size([1] * len(node._batch_size)), node._names


def _without(dims: tuple[int, ...], keepdim: bool) -> Callable[[Any], tuple[torch.Size, Any]]:
    """Size and names of a collection without (or with ones for) its dimensions ``dims``."""

    def after(node: Any) -> tuple[torch.Size, Any]:
        size, names = node._batch_size, node._names
        if keepdim:
            return torch.Size([1 if i in dims else n for i, n in enumerate(size)]), names
        new = torch.Size([n for i, n in enumerate(size) if i not in dims])
        return new, None if names is None else _named([x for i, x in enumerate(names) if i not in dims])

    return after


def _named(names: list[str | None]) -> list[str | None] | None:
    return names if any(name is not None for name in names) else None


def _led(after: Callable[[Any], tuple[torch.Size, Any]], lead: int) -> Callable[[Any], tuple[torch.Size, Any]]:
    """The same with a dimension in front."""

    def call(node: Any) -> tuple[torch.Size, Any]:
        size, names = after(node)
        return torch.Size((lead, *size)), None if names is None else [None, *names]

    return call


def _along_dims(
    node: Any,
    fn: Along,
    dims: tuple[int, ...],
    keepdim: bool,
    key_transform: KeyTransform,
    lead: int | None = None,
) -> Any:
    after = _without(dims, keepdim)
    where = dims[0] if len(dims) == 1 else dims
    return _walk(
        node,
        lambda leaf, _: fn(leaf, where, keepdim),
        after if lead is None else _led(after, lead),
        key_transform,
    )


def _batch_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """The batch dimensions that a user names, from the front."""
    given = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    for d in given:
        if isinstance(d, bool) or not isinstance(d, int):
            raise TypeError(
                f'dim is a batch dimension, a tuple of them or "feature"; got {dim!r} of type {type(dim).__name__}'
            )
        if not -ndim <= d < ndim:
            raise IndexError(f"Incompatible dim {d} for tensordict with batch dims {ndim}.")
    return tuple(d % ndim for d in given)


def _features(leaf: Tensor, ndim: int) -> Tensor:
    """Everything behind the first ``ndim`` dimensions in one dimension."""
    return leaf.flatten(ndim) if leaf.ndim > ndim else leaf.unsqueeze(-1)


# -- the forms ------------------------------------------------------------------------------------------------


def _reduction(
    node: Any,
    name: str,
    fn: Callable[..., Tensor],
    dim: Any,
    keepdim: bool,
    reduce: bool | None,
    key_transform: KeyTransform,
    lead: int | None = None,
) -> Any:
    """All that sum and its kin share; ``fn(leaf)`` or ``fn(leaf, dims, keepdim)``."""
    if isinstance(dim, (tuple, list)) and not dim:
        dim = None
    if reduce:
        return _together(node, name, fn, dim, keepdim)
    if dim is None:
        if not keepdim:
            return _walk(node, lambda leaf, _: fn(leaf), _scalar, key_transform)
        return _walk(node, lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), True), _ones, key_transform)
    if isinstance(dim, str):
        if dim != "feature":
            raise TypeError(f'dim is a batch dimension, a tuple of them or "feature"; got {dim!r}')
        if keepdim:
            raise TypeError("dim='feature' is incompatible with keepdim=True.")
        after = _kept if lead is None else _led(_kept, lead)
        return _walk(
            node, lambda leaf, owner: fn(_features(leaf, len(owner._batch_size)), -1, False), after, key_transform
        )
    dims = _batch_dims(dim, len(node._batch_size))
    return _along_dims(node, fn, dims, keepdim, key_transform, lead)


def _together(node: Any, name: str, fn: Callable[..., Any], dim: Any, keepdim: bool) -> Any:
    leaves = node._leaves() if type(node._source) is dict else node.contiguous()._leaves()
    if not leaves:
        raise ValueError(
            f"{name}(reduce=True) reduces the tensor leaves together, and this tensordict has no tensor leaves."
        )
    if dim is None:
        return fn(torch.cat([leaf.reshape(-1) for leaf in leaves]))
    if dim == "feature":
        ndim = len(node._batch_size)
        return fn(torch.cat([_features(leaf, ndim) for leaf in leaves], -1), -1, False)
    if isinstance(dim, (tuple, list)):
        return fn(torch.cat(leaves, dim[0]), tuple(dim), keepdim)
    return fn(torch.cat(leaves, dim), dim, keepdim)


def _written(out: Any, new: Any) -> Any:
    inplace(torch._foreach_copy_, Tensor.copy_, *pair_leaves(out, new))
    return out


def _flat(size: torch.Size, names: Any, root: Any, nested_names: Any = None) -> Callable[[Any], tuple[Any, Any]]:
    """One size for the whole tree: extremes give nested collections the batch size of the root."""

    def after(node: Any) -> tuple[Any, Any]:
        return size, names if node is root else nested_names

    return after


def _extreme(node: Any, fn: Callable[..., Tensor], dim: Any, keepdim: bool, reduce: bool | None) -> Any:
    if dim == "feature":
        raise RuntimeError(f'{fn.__name__}() has no dim="feature": reduce batch dimensions, or use min() and max()')
    if reduce:
        return _together(node, fn.__name__, fn, dim, keepdim)
    root = node = node if type(node._source) is dict else node.contiguous()
    if dim is None or dim == ():
        size, names = _ones(node) if keepdim else _scalar(node)
        every = _flat(size, names, root)
        return _walk(node, lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), keepdim) if keepdim else fn(leaf), every)
    dims = _batch_dims(dim, len(node._batch_size))
    size, names = _without(dims, keepdim)(node)
    return _walk(node, lambda leaf, _: fn(leaf, dims, keepdim), _flat(size, names, root))


def _located(
    node: Any, fn: Any, value_fn: Any, dim: Any, keepdim: bool, reduce: bool | None, return_indices: bool
) -> Any:
    name = fn.__name__
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"{name}() locates along one dimension, got {dim!r}: a{name}() reduces several")
    if dim == "feature":
        raise RuntimeError(f'{name}() has no dim="feature": reduce a batch dimension')
    if reduce:
        return _together(node, name, fn, dim, keepdim)
    if dim is None:
        if keepdim:
            raise TypeError(f"{name}() keeps dimensions along a batch dimension only: got keepdim=True without dim")
        return _extreme(node, value_fn, None, False, None)
    (at,) = _batch_dims(dim, len(node._batch_size))
    if not return_indices:
        return _extreme(node, value_fn, at, keepdim, None)
    size, names = _without((at,), keepdim)(node)
    return _pair(node, getattr(torch.return_types, name), lambda leaf: fn(leaf, at, keepdim), size, names)


def _running(node: Any, fn: Any, dim: Any, reduce: bool | None, return_indices: bool) -> Any:
    name = fn.__name__
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        dim = dim[0]
    if isinstance(dim, (tuple, list)):
        raise TypeError(f"{name}() runs along one dimension, got {dim!r}")
    if reduce:
        return _together(node, name, lambda leaf, at, _: fn(leaf, at), dim, False)
    (at,) = _batch_dims(dim, len(node._batch_size))
    node = node if type(node._source) is dict else node.contiguous()
    size, names = _kept(node)
    if return_indices:
        return _pair(node, getattr(torch.return_types, name), lambda leaf: fn(leaf, at), size, names)
    return _walk(node, lambda leaf, _: fn(leaf, at)[0], _flat(size, names, node))


def _pair(node: Any, result: Any, fn: Callable[[Tensor], Any], size: torch.Size, names: Any) -> Any:
    """Two trees, of the values and of the indices; only entries that hold tensors are in them."""

    def split(node: Any) -> tuple[Any, Any]:
        values, indices = {}, {}
        for key, value in (node if type(node._source) is dict else node.contiguous())._source.items():
            if isinstance(value, Tensor):
                values[key], indices[key] = fn(value)
            elif not is_object(value) and value._leaves():
                values[key], indices[key] = split(value)
        return node._rebuild(values, size, names), node._rebuild(indices, size, names)

    return result(split(node))
