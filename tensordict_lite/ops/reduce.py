"""Reductions of every leaf over all elements, over batch dimensions, or over feature dimensions.

==============  ============================================================================================
no ``dim``      each leaf becomes a scalar, the batch size ``[]``
an int, tuple   these batch dimensions are removed; further ones of nested collections are kept
``"feature"``   the dimensions after the batch size of the collection that holds the leaf are removed
==============  ============================================================================================

``reduce=True`` reduces all leaves together, to one tensor. Extremes (``min``, ``cummax``, ...) give nested collections
the batch size of the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel, names_or_none
from tensordict_lite.ops.generated import inplace
from tensordict_lite.ops.operands import check_out, fused, is_object, pair_leaves
from tensordict_lite.views import entry_of

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

    Dim = int | Sequence[int] | Literal["feature"] | None


KeyTransform = Callable[[str], str] | None
Along = Callable[[Tensor, Any, bool], Tensor]


class ReductionOps(Kernel):
    """Reductions and extremes. Results are unlocked; remaining dimensions keep their names."""

    __slots__ = ()

    # -- truth -----------------------------------------------------------------------------------------------

    def all(self, dim: int | None = None) -> bool | Any:
        """Whether every element of every tensor is nonzero; with ``dim``, bool tensors without that dimension.

        Args:
            dim: batch dimension; negative counts from the last one.

        Raises:
            RuntimeError: ``dim`` is not a batch dimension.

        Example:
            >>> td = TensorDict({"a": torch.tensor([[True, False], [True, True]])}, [2, 2])
            >>> td.all(), td.all(dim=1)["a"]
            (False, tensor([False,  True]))
        """
        if dim is None:  # entry by entry: stops at the first zero
            if self._is_non_tensor:
                return all(bool(leaf.all()) for leaf in self._leaves(True))
            source = self._source
            for value in source.values() if type(source) is dict else source:
                if not (_all_of_few(value) if isinstance(value, Tensor) else ReductionOps.all(value)):
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
            if self._is_non_tensor:
                return any(bool(leaf.any()) for leaf in self._leaves(True))
            source = self._source
            for value in source.values() if type(source) is dict else source:
                if _any_of_few(value) if isinstance(value, Tensor) else ReductionOps.any(value):
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
        leaves = tree._leaves(True)
        each = with_options(torch.linalg.vector_norm, dtype=dtype)
        norms = iter(fused(with_options(torch._foreach_norm, dtype=dtype), each, leaves) if leaves else ())
        new = walk(tree, lambda leaf, node: next(norms), scalar, key_transform, lambda column: next(norms))
        self._keep_lock(new)
        return new if out is None else written(out, new)

    # -- extremes ----------------------------------------------------------------------------------------------------

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


def _all_dense(node: Any) -> Any:
    """The same tree without lazy stacks, so that its leaves are those of a walk."""
    node = dense(node)
    if all(isinstance(value, Tensor) for value in node._source.values()):
        return node
    source = {
        key: value if isinstance(value, Tensor) or value._is_ragged_numbers else _all_dense(value)
        for key, value in node._source.items()
    }
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


def _flat(size: torch.Size, names: Any, root: Any, nested_names: Any = None) -> Callable[[Any], tuple[Any, Any]]:
    """The same size for the whole tree: extremes give nested collections the batch size of the root."""

    def after(node: Any) -> tuple[Any, Any]:
        return size, names if node is root else nested_names

    return after


def _extreme(node: Any, fn: Callable[..., Tensor], dim: Any, keepdim: bool, reduce: bool | None) -> Any:
    if reduce:
        return together(node, fn.__name__, fn, dim, keepdim)
    if node._is_ragged_numbers:
        return node._by_row(fn.__name__, fn, dim, keepdim)
    if dim == "feature":
        raise RuntimeError(f'{fn.__name__}() has no dim="feature" without reduce=True: reduce batch dimensions')
    root = node = dense(node)
    if dim is None or dim == ():
        size, names = ones(node) if keepdim else scalar(node)
        every = _flat(size, names, root)
        whole = None if keepdim else lambda column: fn(*column._leaves(True))
        each = lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), keepdim) if keepdim else fn(leaf)  # noqa: E731
        return walk(node, each, every, ragged=whole)
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
    if node._is_ragged_numbers:
        if dim is not None and return_indices:
            raise TypeError(f"{name}() of {node!r} finds no positions: use a{name}() for the values of each row")
        return node._by_row(name, value_fn, dim, keepdim)
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


# -- functions of one tensor ----------------------------------------------------------------------------------


def with_options(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``fn`` with keyword options; options that are ``None`` are omitted, which torch treats as the default."""
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return fn

    def call(*args: Any) -> Any:
        return fn(*args, **options)

    # torch.std and torch.var take keepdim by keyword if correction is given
    def keyworded(leaf: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        return fn(leaf, dim=dim, keepdim=keepdim, **options)

    return keyworded if "correction" in options else call


def of_one_dim(fn: Callable[..., Tensor], leads: bool = False) -> Callable[..., Tensor]:
    """Make a torch function of one dimension reduce several, by merging them at the end.

    ``leads``: the result of ``fn`` has an additional first dimension.
    """

    def call(leaf: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
        if dims is None or dims == ():  # a leaf without dimensions keeps none
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


# -- trees ----------------------------------------------------------------------------------------------------


def walk(
    node: Any,
    fn: Callable[[Tensor, Any], Any],
    after: Any,
    key_transform: KeyTransform = None,
    ragged: Callable[[Any], Tensor] | None = None,
) -> Any:
    """Replace every leaf by ``fn(leaf, its collection)``; ``after(collection)`` is the new size and names.

    ``ragged``: reduces a ragged column of numbers, which is an error by default.
    """
    if type(node._source) is not dict:
        node = dense(node)
    out = {}
    for key, value in node._source.items():
        if isinstance(value, Tensor):
            new = fn(value, node)
        elif value._is_ragged_numbers:
            if ragged is None:
                raise RuntimeError(
                    f"the rows of the ragged entry {key!r} differ in length and cannot be reduced together: reduce "
                    f"each row with get({key!r}) and its method, or leave it out with exclude() first"
                )
            new = ragged(value)
        else:
            new = walk(value, fn, after, key_transform, ragged)
        out[key if key_transform is None else key_transform(key)] = new
    return node._rebuild(out, *after(node))


def dense(node: Any) -> Any:
    """The dense form of a lazy stack; a dense collection unchanged.

    Raises:
        RuntimeError: a stack of objects, which cannot be reduced.
    """
    if type(node._source) is dict:
        return node
    if is_object(node):
        raise RuntimeError(
            f"a {type(node).__name__} of {len(node)} objects cannot be reduced: leave it out with "
            "filter_non_tensor_data() or exclude() first"
        )
    return node._densified()


def scalar(node: Any) -> tuple[torch.Size, None]:
    return torch.Size(()), None


def kept(node: Any) -> tuple[torch.Size, Any]:
    return node._batch_size, node._names


def ones(node: Any) -> tuple[torch.Size, Any]:
    return torch.Size([1] * len(node._batch_size)), node._names


def without(dims: tuple[int, ...], keepdim: bool) -> Callable[[Any], tuple[torch.Size, Any]]:
    """Size and names of a collection with the dimensions ``dims`` removed (or of size 1)."""

    def after(node: Any) -> tuple[torch.Size, Any]:
        size, names = node._batch_size, node._names
        if keepdim:
            return torch.Size([1 if i in dims else n for i, n in enumerate(size)]), names
        new = torch.Size([n for i, n in enumerate(size) if i not in dims])
        return new, None if names is None else names_or_none([x for i, x in enumerate(names) if i not in dims])

    return after


def _led(after: Callable[[Any], tuple[torch.Size, Any]], lead: int) -> Callable[[Any], tuple[torch.Size, Any]]:
    """The same with an additional first dimension."""

    def call(node: Any) -> tuple[torch.Size, Any]:
        size, names = after(node)
        return torch.Size((lead, *size)), None if names is None else [None, *names]

    return call


def along_dims(
    node: Any,
    fn: Along,
    dims: tuple[int, ...],
    keepdim: bool,
    key_transform: KeyTransform,
    lead: int | None = None,
) -> Any:
    after = without(dims, keepdim)
    where = dims[0] if len(dims) == 1 else dims
    return walk(
        node,
        lambda leaf, _: fn(leaf, where, keepdim),
        after if lead is None else _led(after, lead),
        key_transform,
    )


def batch_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """The given batch dimensions, counted from the front."""
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
    """All dimensions after the first ``ndim`` merged into one."""
    return leaf.flatten(ndim) if leaf.ndim > ndim else leaf.unsqueeze(-1)


# -- the forms ------------------------------------------------------------------------------------------------


def reduction(
    node: Any,
    name: str,
    fn: Callable[..., Tensor],
    dim: Any,
    keepdim: bool,
    reduce: bool | None,
    key_transform: KeyTransform,
    lead: int | None = None,
) -> Any:
    """The common part of the reductions; ``fn(leaf)`` or ``fn(leaf, dims, keepdim)``."""
    if isinstance(dim, (tuple, list)) and not dim:
        dim = None
    if reduce:
        return together(node, name, fn, dim, keepdim)
    if node._is_ragged_numbers:
        return node._by_row(name, fn, dim, keepdim, lead)
    if dim is None:
        if not keepdim:
            return walk(node, lambda leaf, _: fn(leaf), scalar, key_transform, lambda column: fn(*column._leaves(True)))
        return walk(node, lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), True), ones, key_transform)
    if isinstance(dim, str):
        if dim != "feature":
            raise TypeError(f'dim is a batch dimension, a tuple of them or "feature"; got {dim!r}')
        if keepdim:
            raise TypeError("dim='feature' is incompatible with keepdim=True.")
        after = kept if lead is None else _led(kept, lead)
        return walk(
            node,
            lambda leaf, owner: fn(_features(leaf, len(owner._batch_size)), -1, False),
            after,
            key_transform,
            lambda column: column._by_row(name, fn, None, False, lead),
        )
    dims = batch_dims(dim, len(node._batch_size))
    return along_dims(node, fn, dims, keepdim, key_transform, lead)


def together(node: Any, name: str, fn: Callable[..., Any], dim: Any, keepdim: bool) -> Any:
    # Reducing everything does not need members of the same shape in lazy stacks.
    leaves = node._leaves(True) if dim is None else dense(node)._leaves()
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


def written(out: Any, new: Any) -> Any:
    """Copy a result into ``out``: into existing entries; others are added. Remaining entries are kept."""
    check_out(out, new)
    try:
        pairs = pair_leaves(out, new)
    except KeyError:
        _fill(out, new)
    else:
        inplace(torch._foreach_copy_, Tensor.copy_, *pairs)
    return out


def _fill(out: Any, new: Any) -> None:
    for key, value in new._entries():
        old = entry_of(out, (key,))
        if old is None:
            out.set(key, value)
        elif isinstance(value, Tensor) or isinstance(old, Tensor) or value._is_non_tensor:
            out.set_(key, value)
        else:
            _fill(old, value)
