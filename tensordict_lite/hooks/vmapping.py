"""``torch.vmap`` over collections: a collection is mapped as a whole, by its batch dimensions.

torch maps the leaves of a pytree one by one. There, ``in_dims=-1`` is the last dimension of each leaf, the dims
``out_dims=(0,)`` do not match a tree, and a lazy stack is its stacked entries. So :func:`vmap_impl`, which replaces
torch's function of that name, takes collections apart before torch and rebuilds them afterwards::

    arguments   -> the tensors of each collection, in a list    -> torch: a row of each tensor
    rows        -> a collection of one row, for the function    -> its result
    result      -> the tensors of each collection, in a list    -> torch: all rows -> the collection of all rows

A lazy stack that is mapped along its stack dimension shows its rows as a :class:`StackRow`, a TensorDict whose results
become a lazy stack again; mapped along another dimension it shows a lazy stack of rows. In-place writes into a row are
copied to the members when the call ends.

Inside ``torch.compile`` torch's own function is traced, and collections are the pytrees of ``pytree.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch._functorch import apis as _apis
from torch.utils import _pytree

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.hooks.pytree import resized
from tensordict_lite.strided import UninitializedTensorMixin


class StackRow(TensorDict):
    """A row of a lazy stack inside ``torch.vmap``; results made of it become a lazy stack."""

    __slots__ = ()


_ROW_OF = {TensorDict: StackRow}


def _is_collection(value: object) -> bool:
    return isinstance(value, TensorCollection)


def vmap_impl(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, *args: Any, **kwargs: Any
) -> Any:
    """torch's function of this name, for collections as well."""
    if torch.compiler.is_compiling():
        if type(out_dims) is tuple and len(out_dims) == 1:  # the same for one result, and fits a tree
            out_dims = out_dims[0]
        return _torch_vmap_impl(func, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
    given = _Arguments(in_dims, args) if _has_collections(args) else None
    if given is None or not given.fits:
        result = _Result(func, out_dims, _name(func), None)
        out = _torch_vmap_impl(result.call, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)
        return result.rebuilt(out)
    count = given.take_apart(func)
    result = _Result(lambda *rows, **options: func(*given.rows(rows), **options), out_dims, _name(func), count)
    # torch puts the rows first; they move to the requested place afterwards: a lazy stack has its tensors in members
    wanted = out_dims if _has_none(out_dims) else 0
    out = _torch_vmap_impl(result.call, given.dims, wanted, randomness, chunk_size, *given.plain, **kwargs)
    given.write_back()
    return result.rebuilt(out, in_front=not _has_none(out_dims))


def _has_none(dims: Any) -> bool:
    return dims is None or (
        not isinstance(dims, int) and None in _pytree.tree_leaves(dims, is_leaf=lambda x: x is None)
    )


def _has_collections(tree: Any) -> bool:
    """Whether a tree of tuples, lists and dicts contains a collection."""
    if isinstance(tree, TensorCollection):
        return True
    if isinstance(tree, Tensor):
        return False
    if isinstance(tree, (tuple, list)):
        return any(map(_has_collections, tree))
    if isinstance(tree, dict):
        return any(map(_has_collections, tree.values()))
    return False


def _flat_dims(dims: Any, tree: Any, leaves: list[Any], spec: Any) -> list[Any] | None:
    """The dim of each leaf, ``None`` if the dims do not match the tree."""
    if isinstance(dims, int):
        return [dims] * len(leaves)
    if type(dims) is tuple and len(dims) == len(leaves) and type(tree) is tuple and len(tree) == len(leaves):
        if all(map(is_, tree, leaves)) and all(dim is None or isinstance(dim, int) for dim in dims):
            return list(dims)  # as the walk below does, which takes a quarter of a call
    return _pytree._broadcast_to_and_flatten(dims, spec)


# -- on the way in ---------------------------------------------------------------------------------------------


class _Arguments:
    """The arguments of one call, with collections replaced by their tensors."""

    def __init__(self, in_dims: Any, args: tuple[Any, ...]) -> None:
        self._args, self._spec = _pytree.tree_flatten(args, is_leaf=_is_collection)
        dims = _flat_dims(in_dims, args, self._args, self._spec)
        self.fits = dims is not None and not any(map(_is_collection, dims))
        """Whether a dim of each argument is known; else torch says what is wrong, or has a tree of dims."""
        self._in_dims = in_dims
        self.dims: Any = tuple(dims or ())
        self.plain: tuple[Any, ...] = ()
        self._copies: list[tuple[Any, Any, list[int | Tensor]]] = []

    def take_apart(self, func: Any) -> int | None:
        """Set ``plain`` to the tensors that torch maps and ``dims`` to their dims; return the number of rows.

        Raises:
            ValueError: a dim is out of the range of batch dimensions.
        """
        pairs: list[tuple[Any, Any]] = []
        rows: list[tuple[Any, Any]] = []  # collections without tensors, which determine the number of rows
        count = None
        args = list(zip(self._args, self.dims))
        within = [_is_collection(arg) and isinstance(dim, int) and _in_leaves(arg, dim) for arg, dim in args]
        for (arg, dim), deep in zip(args, within):
            if deep:  # a dimension of the tensors after the batch dimensions
                tensors = self._tensors(arg, dim)
                count = tensors[0][0].shape[dim]
                pairs += tensors
            elif _is_collection(arg) and isinstance(dim, int):
                if not -arg.batch_dims <= dim < arg.batch_dims:
                    raise ValueError(
                        f"vmap({_name(func)}, in_dims={self._in_dims}, ...)(<inputs>): Got in_dim={dim} for a "
                        f"{type(arg).__name__} with {arg.batch_dims} batch dimensions, so expected in_dim to satisfy "
                        f"-{arg.batch_dims} <= in_dim < {arg.batch_dims}."
                    )
                dim %= arg.batch_dims
                count = arg.batch_size[dim]
                tensors = self._tensors(arg, dim)
                pairs += tensors
                if not tensors:
                    rows.append((torch.empty(count), 0))
            elif dim is not None:
                pairs.append((arg, dim))
        self._batch_dims = tuple(
            dim % arg.batch_dims if _is_collection(arg) and isinstance(dim, int) and not deep else dim
            for (arg, dim), deep in zip(args, within)
        )
        self.plain, self.dims = zip(*(pairs + rows or [((), None)]))
        if len(set(self.dims)) == 1 and self.dims[0] is not None:
            self.dims = self.dims[0]  # for all of them, which torch need not look up one by one
        return count

    def _tensors(self, td: Any, dim: int) -> list[tuple[Tensor, int]]:
        """The tensors of a collection with their mapped dims, in the order expected by :meth:`rows`."""
        if hasattr(td, "_stack_dim") and not td._is_non_tensor:
            if td._stack_dim == dim:
                td = self._stacked(td)
            else:
                at = dim - (dim > td._stack_dim)
                return [pair for member in td._source for pair in self._tensors(member, at)]
        out: list[tuple[Tensor, int]] = []
        for value in _parts(td):
            if not isinstance(value, Tensor):
                out.extend(self._tensors(value, dim))
            elif not isinstance(value, UninitializedTensorMixin):
                out.append((value, dim))
        return out

    def _stacked(self, stack: Any) -> Any:
        """The entries of a lazy stack as tensors: copies, whose changes are written back to the members."""
        for known, dense, _ in self._copies:
            if known is stack:
                return dense
        entries = {}
        for key in stack._key_list():
            try:
                entries[key] = stack._get_str(key)
            except RuntimeError as error:
                raise RuntimeError(
                    f"torch.vmap along the stack dimension of a lazy stack needs entries of one shape, and {key!r} "
                    "has another in each member: leave it out, stack.exclude(...), or map another dimension"
                ) from error
        cls = stack._plain_class()
        dense = _ROW_OF.get(cls, cls)._trusted(entries, stack._batch_size, stack._device, stack._names)
        self._copies.append((stack, dense, [_mark(leaf) for leaf in dense._leaves()]))
        return dense

    def write_back(self) -> None:
        """Copy in-place writes to the members of lazy stacks."""
        for stack, dense, marks in self._copies:
            if any(_is_written(leaf, mark) for leaf, mark in zip(dense._leaves(), marks)):
                for member, row in zip(stack._source, dense.unbind(stack._stack_dim)):
                    member.update_(row)

    def rows(self, plain: tuple[Any, ...]) -> Any:
        """The arguments of the function: collections of one row."""
        out = []
        tensors = iter(plain)
        for arg, dim in zip(self._args, self._batch_dims):
            if not _is_collection(arg):
                out.append(arg if dim is None else next(tensors))
            elif dim is None:
                out.append(_shared(arg))
            else:
                out.append(self._row(arg, dim, tensors))
        return _pytree.tree_unflatten(out, self._spec)

    def _row(self, td: Any, dim: int, tensors: Iterator[Tensor]) -> Any:
        size = _without(td._batch_size, dim)

        def each(value: Any) -> Any:
            return self._row_of(value, dim, tensors)

        if td._is_non_tensor:
            return _resized(td, size, each)
        lock = td._lock
        if hasattr(td, "_stack_dim"):
            stack_dim = td._stack_dim
            if dim != stack_dim:
                at = dim - (dim > stack_dim)
                members = [self._row(member, at, tensors) for member in td._source]
                return _locked(registry.LazyStackedTensorDict(*members, stack_dim=stack_dim - (dim < stack_dim)), lock)
            td = self._stacked(td)
        names = None if td._names is None else [*td._names[:dim], *td._names[dim + 1 :]]
        entries = {key: next(tensors) if type(value) is Tensor else each(value) for key, value in td._entries()}
        return _locked(td._rebuild(entries, size, names), lock)

    def _row_of(self, value: Any, dim: int, tensors: Iterator[Tensor]) -> Any:
        if not isinstance(value, Tensor):
            return self._row(value, dim, tensors)
        if isinstance(value, UninitializedTensorMixin):
            return registry.row_of_uninitialized(value, dim)
        return next(tensors)


def _in_leaves(td: Any, dim: int) -> bool:
    """Whether a dimension is not a batch dimension, and every tensor has it."""
    leaves = [] if dim < td.batch_dims or hasattr(td, "_stack_dim") else td._leaves()
    return bool(leaves) and all(not isinstance(leaf, UninitializedTensorMixin) and leaf.ndim > dim for leaf in leaves)


def _parts(td: Any) -> list[Any]:
    """The tensors and collections directly in a collection; of a tuple, its elements."""
    if td._is_non_tensor:
        return list(td._payload) if getattr(td, "_is_tuple", False) else []
    return [value for _, value in td._entries()]


def _resized(entry: Any, size: torch.Size, each: Callable[[Any], Any]) -> Any:
    """Non-tensor data under another batch size; the tensors of a tuple take part."""
    if getattr(entry, "_is_tuple", False):
        return type(entry)(tuple(map(each, entry._payload)), batch_size=size, device=entry._device)
    return resized(entry, size)


def _shared(td: Any) -> Any:
    """The same entries in another collection, so that a row does not add entries to the caller's collection."""
    return td if td._is_non_tensor else _locked(td.copy(), td._lock)


def _locked(td: Any, lock: Any) -> Any:
    if lock is not None:
        td._propagate_lock(None)
    return td


def _without(size: torch.Size, dim: int) -> torch.Size:
    return torch.Size((*size[:dim], *size[dim + 1 :]))


def _mark(tensor: Tensor) -> int | Tensor:
    """What later reveals an in-place write to the tensor: its version counter, or a copy of its values.

    Tensors of inference mode have no version counter. Writes to tensors that an outer transform wraps are not noticed.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    return tensor.clone() if tensor.is_inference() else tensor._version


def _is_written(tensor: Tensor, mark: int | Tensor) -> bool:
    now = _mark(tensor)
    if isinstance(now, Tensor) and isinstance(mark, Tensor):
        return not torch.equal(now, mark)
    return bool(now != mark)


def _name(func: Any) -> str:
    return getattr(func, "__name__", None) or repr(func)


# -- on the way out ----------------------------------------------------------------------------------------------


class _Result:
    """The results of one row, with collections replaced by their tensors."""

    def __init__(self, func: Callable[..., Any], out_dims: Any, name: str, count: int | None) -> None:
        self._out_dims = out_dims
        self._count = count
        self._rows: list[Any] | None = None
        self._spec: Any = None
        self._dims: Any = None
        self._single = False

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._taken_apart(func(*args, **kwargs), name)

        call.__name__ = name
        self.call = call

    def _taken_apart(self, out: Any, name: str) -> Any:
        if self._count is None and not _has_collections(out):
            return out  # no collections: torch handles it
        if isinstance(out, (Tensor, TensorCollection)) and type(self._out_dims) is tuple and len(self._out_dims) == 1:
            out = (out,)  # as torch does for a single tensor
            self._single = True
        flat, spec = _pytree.tree_flatten(out, is_leaf=_is_collection)
        self._dims = _flat_dims(self._out_dims, out, flat, spec)
        if self._dims is None:
            raise ValueError(
                f"vmap({name}, ..., out_dims={self._out_dims})(<inputs>): out_dims is not compatible with the "
                f"structure of `outputs`. out_dims has structure {_pytree.tree_structure(self._out_dims)} but outputs "
                f"has structure {spec}."
            )
        for value, dim in zip(flat, self._dims):
            count = value.batch_dims + 1 if _is_collection(value) else 0
            if count and isinstance(dim, int) and not -count <= dim < count:
                raise IndexError(
                    f"vmap({name}, ..., out_dims={self._out_dims}): the result of a row is a {type(value).__name__} "
                    f"with {count - 1} batch dimensions, so expected out_dim to satisfy -{count} <= out_dim < {count}."
                )
        self._rows, self._spec = flat, spec
        plain = [_all_tensors(value) if _is_collection(value) else value for value in flat]
        return _pytree.tree_unflatten(plain, spec)

    def rebuilt(self, out: Any, in_front: bool = False) -> Any:
        """The results of all rows, with collections restored.

        Args:
            out: torch's results.
            in_front: whether the rows are dimension 0 of each tensor; otherwise they are at ``out_dims``.
        """
        if self._rows is None:
            return out
        made = []
        for row, dim, values in zip(self._rows, self._dims, self._spec.flatten_up_to(out)):
            if _is_collection(row):
                made.append(row if dim is None else _All(0 if in_front else dim, values, self._count).of(row, dim))
            else:
                made.append(values.movedim(0, dim) if in_front and dim != 0 else values)
        out = _pytree.tree_unflatten(made, self._spec)
        return out[0] if self._single else out


def _all_tensors(td: Any) -> list[Tensor]:
    if hasattr(td, "_stack_dim") and not td._is_non_tensor:
        return [tensor for member in td._source for tensor in _all_tensors(member)]
    out: list[Tensor] = []
    for value in _parts(td):
        out.extend([value] if isinstance(value, Tensor) else _all_tensors(value))
    return out


class _All:
    """All rows of a collection, from tensors that have them at ``place``."""

    def __init__(self, place: int, tensors: list[Tensor], count: int | None) -> None:
        self._place = place
        self._tensors = iter(tensors)
        self._count = tensors[0].shape[place] if tensors else count

    def of(self, td: Any, dim: int) -> Any:
        """The collection with the rows at batch dimension ``dim``."""
        if self._count is None:
            raise RuntimeError(
                f"torch.vmap cannot tell how many rows a {type(td).__name__} without tensors has: give it an entry"
            )
        return self._rows(td, dim % (td.batch_dims + 1))

    def _rows(self, td: Any, dim: int) -> Any:
        size = torch.Size((*td._batch_size[:dim], self._count, *td._batch_size[dim:]))  # type: ignore[arg-type]

        def each(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return self._rows(value, dim)
            tensor = next(self._tensors)
            return tensor if self._place == dim else tensor.movedim(self._place, dim)

        if td._is_non_tensor:
            return _resized(td, size, each)
        if hasattr(td, "_stack_dim"):
            stack_dim = td._stack_dim
            members = [self._rows(member, dim - (dim > stack_dim)) for member in td._source]
            at = stack_dim + (dim <= stack_dim)
            return type(td)._of(members, at, _without(size, at), td._device)
        entries = {key: each(value) for key, value in td._entries()}
        names = None if td._names is None else [*td._names[:dim], None, *td._names[dim:]]
        if isinstance(td, StackRow):
            dense = TensorDict._trusted(entries, size, td._device, names)
            return registry.LazyStackedTensorDict(*dense.unbind(dim), stack_dim=dim)
        return td._rebuild(entries, size, names)


# -- in the place of torch's function --------------------------------------------------------------------------------

_torch_vmap_impl: Any = getattr(_apis, "vmap_impl", None)


def install() -> None:
    """Install :func:`vmap_impl`; in versions of torch without that function, pytrees are used."""
    if _torch_vmap_impl is not None and hasattr(_pytree, "_broadcast_to_and_flatten"):
        _apis.vmap_impl = vmap_impl  # type: ignore[attr-defined]  # imported there from a private module
