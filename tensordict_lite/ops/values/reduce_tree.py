"""Implementation of reductions: trees, sizes and names after removing dimensions, all leaves as one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.ops.values.generated import inplace
from tensordict_lite.ops.values.operands import is_object, pair_leaves
from tensordict_lite.views import entry_of

KeyTransform = Callable[[str], str] | None
Along = Callable[[Tensor, Any, bool], Tensor]

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


def walk(node: Any, fn: Callable[[Tensor, Any], Any], after: Any, key_transform: KeyTransform = None) -> Any:
    """Replace every leaf by ``fn(leaf, its collection)``; ``after(collection)`` is the new size and names."""
    if type(node._source) is not dict:
        node = dense(node)
    out = {}
    for key, value in node._source.items():
        new = fn(value, node) if isinstance(value, Tensor) else walk(value, fn, after, key_transform)
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
            f"a {type(node).__name__} of {len(node._nested())} objects cannot be reduced: leave it out with "
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
        return new, None if names is None else _named([x for i, x in enumerate(names) if i not in dims])

    return after


def _named(names: list[str | None]) -> list[str | None] | None:
    return names if any(name is not None for name in names) else None


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
    if dim is None:
        if not keepdim:
            return walk(node, lambda leaf, _: fn(leaf), scalar, key_transform)
        return walk(node, lambda leaf, _: fn(leaf, tuple(range(leaf.ndim)), True), ones, key_transform)
    if isinstance(dim, str):
        if dim != "feature":
            raise TypeError(f'dim is a batch dimension, a tuple of them or "feature"; got {dim!r}')
        if keepdim:
            raise TypeError("dim='feature' is incompatible with keepdim=True.")
        after = kept if lead is None else _led(kept, lead)
        return walk(
            node, lambda leaf, owner: fn(_features(leaf, len(owner._batch_size)), -1, False), after, key_transform
        )
    dims = batch_dims(dim, len(node._batch_size))
    return along_dims(node, fn, dims, keepdim, key_transform, lead)


def together(node: Any, name: str, fn: Callable[..., Any], dim: Any, keepdim: bool) -> Any:
    # Reducing everything does not need members of the same shape in lazy stacks.
    leaves = (node if dim is None else dense(node))._leaves()
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
