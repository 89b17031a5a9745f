"""``torch.vmap`` over collections: a collection is mapped as a whole, by its batch dimensions.

torch maps the leaves of a pytree one by one. To it, ``in_dims=-1`` is the last dimension of each leaf, the dims
``out_dims=(0,)`` do not fit a tree, and a lazy stack is what its stacked entries are. So the three functions through
which values enter and leave ``torch.vmap`` are replaced by ones that look for collections first, and are torch's own
where there are none::

    _process_batched_inputs   arguments and in_dims, flat    collections stay whole
    _create_batched_inputs    one row of each                add_batch_dim()
    _unwrap_batched           the results of all rows        remove_batch_dim()

A lazy stack that is mapped along its stack dimension shows its rows as a :class:`StackRow`, a TensorDict whose
results become a lazy stack again; mapped along another dimension it shows a lazy stack of rows. What is written in
place into a row goes back to the members when the call ends.

Inside ``torch.compile`` torch's own functions are traced, and collections are the pytrees of ``pytree.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch import vmap as _torch_vmap
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils import _pytree

from tensordict_lite.base import TensorCollection
from tensordict_lite.pytree import resized
from tensordict_lite.tensordict import TensorDict

__all__ = ["StackRow", "add_batch_dim", "install", "remove_batch_dim"]


class StackRow(TensorDict):
    """A row of a lazy stack inside ``torch.vmap``; what is made of it leaves as a lazy stack."""

    __slots__ = ()


_ROW_OF = {TensorDict: StackRow}
_active = threading.local()


def _is_collection(value: Any) -> bool:
    return isinstance(value, TensorCollection)


# -- one row ---------------------------------------------------------------------------------------------------


def add_batch_dim(td: Any, dim: int, level: int) -> Any:
    """What a mapped function sees of ``td``: a row along batch dimension ``dim``, for all rows at once."""
    if td._is_non_tensor:
        size = _without(td._batch_size, dim)
        return _resized(td, size, lambda part: _row_of(part, dim, level))
    out = _stack_row(td, dim, level) if hasattr(td, "_stack_dim") else _dense_row(td, dim, level)
    if td._lock is not None:
        out._propagate_lock(None)
    return out


def _row_of(value: Any, dim: int, level: int) -> Any:
    if not isinstance(value, Tensor):
        return add_batch_dim(value, dim, level)
    if isinstance(value, UninitializedTensorMixin):
        from tensordict_lite.nn.uninitialized import row_of_uninitialized

        return row_of_uninitialized(value, dim, level)
    return _torch_vmap._add_batch_dim(value, dim, level)


def _rows_of(value: Any, level: int, rows: int, dim: int) -> Any:
    if isinstance(value, Tensor):
        return _torch_vmap._remove_batch_dim(value, level, rows, dim)
    return remove_batch_dim(value, level, rows, dim)


def _resized(entry: Any, size: torch.Size, each: Callable[[Any], Any]) -> Any:
    """Non-tensor data under another batch size; the tensors of a tuple take part."""
    if getattr(entry, "_is_tuple", False):
        return type(entry)(tuple(map(each, entry._payload)), batch_size=size, device=entry._device)
    return resized(entry, size)


def _dense_row(td: Any, dim: int, level: int) -> Any:
    entries = {key: _row_of(value, dim, level) for key, value in td._entries()}
    names = None if td._names is None else [*td._names[:dim], *td._names[dim + 1 :]]
    return td._rebuild(entries, _without(td._batch_size, dim), names)


def _stack_row(td: Any, dim: int, level: int) -> Any:
    from tensordict_lite.lazystack import LazyStackedTensorDict

    stack_dim = td._stack_dim
    if dim != stack_dim:
        members = [add_batch_dim(member, dim - (dim > stack_dim), level) for member in td._source]
        return LazyStackedTensorDict(*members, stack_dim=stack_dim - (dim < stack_dim))
    entries = {}
    for key in td._key_list():
        try:
            entries[key] = td._get_str(key)
        except RuntimeError as error:
            raise RuntimeError(
                f"torch.vmap along the stack dimension of a lazy stack needs entries of one shape, and {key!r} has "
                "another in each member: leave it out, stack.exclude(...), or map another dimension"
            ) from error
    cls = td._plain_class()
    dense = _ROW_OF.get(cls, cls)._trusted(entries, td._batch_size, td._device, td._names)
    _remember(td, dense, level)
    return _dense_row(dense, dim, level)


def _without(size: torch.Size, dim: int) -> torch.Size:
    return torch.Size((*size[:dim], *size[dim + 1 :]))


# -- all rows ----------------------------------------------------------------------------------------------------


def remove_batch_dim(td: Any, level: int, rows: int, dim: int) -> Any:
    """The results of all rows as one collection, with the mapped dimension at batch dimension ``dim``."""
    size = torch.Size((*td._batch_size[:dim], rows, *td._batch_size[dim:]))
    if td._is_non_tensor:
        return _resized(td, size, lambda part: _rows_of(part, level, rows, dim))
    if hasattr(td, "_stack_dim"):
        stack_dim = td._stack_dim
        members = [remove_batch_dim(member, level, rows, dim - (dim > stack_dim)) for member in td._source]
        return type(td)._of(
            members, stack_dim + (dim <= stack_dim), _without(size, stack_dim + (dim <= stack_dim)), td._device
        )
    entries = {key: _rows_of(value, level, rows, dim) for key, value in td._entries()}
    names = None if td._names is None else [*td._names[:dim], None, *td._names[dim:]]
    if isinstance(td, StackRow):
        from tensordict_lite.lazystack import LazyStackedTensorDict

        dense = TensorDict._trusted(entries, size, td._device, names)
        return LazyStackedTensorDict(*dense.unbind(dim), stack_dim=dim)
    return td._rebuild(entries, size, names)


# -- what is written in place into the rows of a stack -------------------------------------------------------------


def _remember(stack: Any, dense: Any, level: int) -> None:
    """Notes the stacked entries of a lazy stack: they are copies, whose changes belong into the members."""
    leaves = dense._leaves()
    if not any(torch._C._functorch.is_functorch_wrapped_tensor(leaf) for leaf in leaves):
        _written(level).append((stack, dense, [leaf._version for leaf in leaves]))


def _written(level: int) -> list[Any]:
    levels: dict[int, list[Any]] = _active.__dict__.setdefault("levels", {})
    return levels.setdefault(level, [])


def _write_back(level: int) -> None:
    for stack, dense, versions in _active.__dict__.get("levels", {}).pop(level, ()):
        leaves = dense._leaves()
        if any(leaf._version != version for leaf, version in zip(leaves, versions)):
            for member, row in zip(stack._source, dense.unbind(stack._stack_dim)):
                member.update_(row)


# -- in the place of torch's functions -------------------------------------------------------------------------------


def _process_batched_inputs(in_dims: Any, args: tuple[Any, ...], func: Any) -> Any:
    if torch.compiler.is_compiling() or not _has_collections(args):
        return _ORIGINAL["_process_batched_inputs"](in_dims, args, func)
    flat_args, spec = _pytree.tree_flatten(args, is_leaf=_is_collection)
    flat_dims = _pytree._broadcast_to_and_flatten(in_dims, spec)
    if flat_dims is None or any(_is_collection(dim) for dim in flat_dims):
        return _ORIGINAL["_process_batched_inputs"](in_dims, args, func)
    name = getattr(func, "__name__", repr(func))
    for place, (arg, dim) in enumerate(zip(flat_args, flat_dims)):
        if dim is None:
            continue
        if not isinstance(dim, int) or not isinstance(arg, (Tensor, TensorCollection)):
            # torch words this error
            return _ORIGINAL["_process_batched_inputs"](in_dims, args, func)
        if not -arg.ndim <= dim < arg.ndim:
            kind = "batch dimensions" if _is_collection(arg) else "dimensions"
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={dim} for a {type(arg).__name__} with "
                f"{arg.ndim} {kind}, so expected in_dim to satisfy -{arg.ndim} <= in_dim < {arg.ndim}."
            )
        flat_dims[place] = dim % arg.ndim
    return _torch_vmap._validate_and_get_batch_size(flat_dims, flat_args), flat_dims, flat_args, spec


def _create_batched_inputs(flat_in_dims: Any, flat_args: Any, vmap_level: int, args_spec: Any) -> Any:
    if torch.compiler.is_compiling() or not any(_is_collection(arg) for arg in flat_args):
        return _ORIGINAL["_create_batched_inputs"](flat_in_dims, flat_args, vmap_level, args_spec)
    _active.__dict__.setdefault("levels", {}).pop(vmap_level, None)  # of a call that raised
    rows = []
    for dim, arg in zip(flat_in_dims, flat_args):
        if dim is None:
            rows.append(_shared(arg) if _is_collection(arg) else arg)
        elif _is_collection(arg):
            rows.append(add_batch_dim(arg, dim, vmap_level))
        else:
            rows.append(_torch_vmap._add_batch_dim(arg, dim, vmap_level))
    return _pytree.tree_unflatten(rows, args_spec)


def _shared(td: Any) -> Any:
    """The same entries in another collection: what a row writes is no entry of the caller's."""
    if td._is_non_tensor:
        return td
    new = td.copy()
    if td._lock is not None:
        new._propagate_lock(None)
    return new


def _unwrap_batched(batched_outputs: Any, out_dims: Any, vmap_level: int, batch_size: int, func: Any) -> Any:
    if _is_collection(batched_outputs) and type(out_dims) is tuple and len(out_dims) == 1:
        out_dims = out_dims[0]
    if torch.compiler.is_compiling():
        return _ORIGINAL["_unwrap_batched"](batched_outputs, out_dims, vmap_level, batch_size, func)
    if _active.__dict__.get("levels"):
        _write_back(vmap_level)
    if not _has_collections(batched_outputs):
        return _ORIGINAL["_unwrap_batched"](batched_outputs, out_dims, vmap_level, batch_size, func)
    flat, spec = _pytree.tree_flatten(batched_outputs, is_leaf=_is_collection)
    flat_dims = _pytree._broadcast_to_and_flatten(out_dims, spec)
    if flat_dims is None:
        return _ORIGINAL["_unwrap_batched"](batched_outputs, out_dims, vmap_level, batch_size, func)
    name = getattr(func, "__name__", repr(func))
    results = [
        _unwrapped(value, dim, vmap_level, batch_size, name) if _is_collection(value) else
        _torch_vmap._maybe_remove_batch_dim(name, value, vmap_level, batch_size, dim)
        for value, dim in zip(flat, flat_dims)
    ]  # fmt: skip
    return _pytree.tree_unflatten(results, spec)


def _unwrapped(td: Any, dim: int | None, level: int, rows: int, name: str) -> Any:
    if dim is None:
        if any(torch._C._functorch.is_batchedtensor(leaf) for leaf in td._leaves()):
            raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
        return td
    dims = td.batch_dims + 1
    if not -dims <= dim < dims:
        raise ValueError(
            f"vmap({name}, ..., out_dims={dim}): the result of a row is a {type(td).__name__} with {td.batch_dims} "
            f"batch dimensions, so expected out_dim to satisfy -{dims} <= out_dim < {dims}."
        )
    return remove_batch_dim(td, level, rows, dim % dims)


def _has_collections(tree: Any) -> bool:
    """Whether there is a collection in a tree of tuples, lists and dicts."""
    if isinstance(tree, TensorCollection):
        return True
    if isinstance(tree, Tensor):
        return False
    if isinstance(tree, (tuple, list)):
        return any(map(_has_collections, tree))
    if isinstance(tree, dict):
        return any(map(_has_collections, tree.values()))
    return False


_REPLACED = {
    "_process_batched_inputs": _process_batched_inputs,
    "_create_batched_inputs": _create_batched_inputs,
    "_unwrap_batched": _unwrap_batched,
}
_ORIGINAL: dict[str, Any] = {}


def install() -> None:
    """Puts the functions in the place of torch's, once; where a version of torch has others, pytrees remain."""
    needed = ("_add_batch_dim", "_remove_batch_dim", "_maybe_remove_batch_dim", "_validate_and_get_batch_size")
    if _ORIGINAL or not all(hasattr(_torch_vmap, name) for name in (*_REPLACED, *needed)):
        return
    for name, function in _REPLACED.items():
        _ORIGINAL[name] = getattr(_torch_vmap, name)
        setattr(_torch_vmap, name, function)
