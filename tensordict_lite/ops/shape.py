"""Shape operations: every leaf and every nested collection is reshaped along the batch dimensions.

An operation on the batch dimensions ``[0, batch_dims)`` has the same meaning on an entry of shape ``[*batch_size,
...]``. So an entry is transformed by the method of the same name with non-negative dimensions, and the batch size of
the result is computed once, here.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel, names_or_none
from tensordict_lite.views import entry_of


class Shapes(dict[torch.Size, "tuple[int, ...]"]):
    """Shapes of entries under another batch size, cached by their present shapes."""

    __slots__ = ("find",)

    find: Callable[[torch.Size], tuple[int, ...]]

    def __missing__(self, shape: torch.Size) -> tuple[int, ...]:
        self[shape] = found = self.find(shape)
        return found


def viewed_entry(value: Any, shape: tuple[int, ...]) -> Any:
    """``view``. Separate sizes are a fifth faster in torch than a tuple; without dimensions only a tuple works."""
    return value.view(*shape) if shape else value.view(shape)


def reshaped_entry(value: Any, shape: tuple[int, ...]) -> Any:
    """``reshape``; for a tensor subclass a view if possible, which is a third faster.

    Functions of torch accept a tuple of sizes a third faster than methods do.
    """
    if type(value) is Tensor:
        return torch.reshape(value, shape)
    if isinstance(value, Tensor) and value.is_contiguous():
        return value.view(shape)
    return value.reshape(shape)


def expanded_entry(value: Any, shape: tuple[int, ...]) -> Any:
    return torch.broadcast_to(value, shape) if type(value) is Tensor else value.expand(shape)


def positive_dim(dim: int, ndim: int, shape: torch.Size) -> int:
    """``dim`` counted from the front; IndexError outside of the batch dimensions."""
    if 0 <= dim < ndim:
        return dim
    if -ndim <= dim < 0:
        return dim + ndim
    raise IndexError(f"Incompatible dim {dim} for tensordict with shape {shape}.")


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> tuple[int, ...]:
    if not args and set(kwargs) == {"size"} and kwargs["size"] is not None:
        args = (kwargs["size"],)
    elif kwargs or not args:
        raise TypeError(
            f"{name}() takes integers, one sequence of integers, or size=; got args={args} and kwargs={kwargs}"
        )
    if len(args) == 1 and not isinstance(args[0], int):
        return tuple(args[0])
    return args


def expand_sizes(args: tuple[Any, ...], kwargs: dict[str, Any], old: torch.Size) -> tuple[tuple[int, ...], int]:
    """The sizes passed to ``expand`` (no arguments are the scalar shape), and the number of new dimensions."""
    if "shape" in kwargs and len(kwargs) == 1 and not args:
        kwargs = {"size": kwargs["shape"]}
    sizes = _sizes(args, kwargs, "expand") if args or kwargs else ()
    if len(sizes) < len(old):
        raise RuntimeError(
            f"the number of sizes provided ({len(sizes)}) must be greater or equal to the number of dimensions in the "
            f"TensorDict ({len(old)})"
        )
    return sizes, len(sizes) - len(old)


def repeats_of(repeats: tuple[Any, ...], size: torch.Size) -> tuple[int, ...]:
    """The arguments of ``repeat``, one for each dimension."""
    if len(repeats) == 1 and not isinstance(repeats[0], int):
        repeats = tuple(repeats[0])
    if len(repeats) != len(size):
        raise ValueError(
            "The number of repeat elements must match the number of dimensions of the tensordict. "
            f"Got {len(repeats)} but ndim={len(size)}."
        )
    return repeats


def permutation(args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> list[int]:
    """The order in ``permute(1, 0)``, ``permute((1, 0))`` or ``permute(dims=(1, 0))``, trailing ones added."""
    if "dims" in kwargs and len(kwargs) == 1 and not args:
        args, kwargs = (kwargs["dims"],), {}
    if kwargs:
        raise TypeError(
            f"permute() takes integers, one sequence of integers, or dims=; got args={args} and kwargs={kwargs}"
        )
    dims = tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else args
    order = [d + ndim if d < 0 else d for d in dims]
    if sorted(order) == list(range(len(order))):
        order += range(len(order), ndim)
    if sorted(order) != list(range(ndim)):
        raise ValueError(
            f"Cannot compute the permutation, got dims={list(dims)} but expected a permutation of {list(range(ndim))}."
        )
    return order


def swapped_dims(dim0: int, dim1: int, ndim: int) -> tuple[int, int]:
    """The dimensions of ``transpose``, counted from the front."""
    a = dim0 + ndim if dim0 < 0 else dim0
    b = dim1 + ndim if dim1 < 0 else dim1
    if not (0 <= a < ndim and 0 <= b < ndim):
        raise ValueError(
            f"dim0 and dim1 must be within the range of the number of dimensions: got {dim0} and {dim1} for "
            f"{ndim} batch dimension(s)."
        )
    return a, b


def new_dim(dim: int, size: torch.Size) -> int:
    """The position of ``unsqueeze(dim)``, counted from the front."""
    at = dim + len(size) + 1 if dim < 0 else dim
    if not 0 <= at <= len(size):
        raise RuntimeError(
            "unsqueezing is allowed for dims comprised between `-td.batch_dims - 1` and `td.batch_dims` only. "
            f"Got dim={dim} with a batch size of {size}."
        )
    return at


def infer_size(sizes: tuple[int, ...], numel: int) -> torch.Size:
    """``sizes`` with a -1 filled in; RuntimeError when they do not hold ``numel`` elements."""
    if torch.compiler.is_compiling():
        return _inferred(sizes, numel)
    try:
        return _known_sizes(sizes, numel)
    except TypeError:  # symbolic sizes of traced tensors, which cannot be cached
        return _inferred(sizes, numel)


def _inferred(sizes: tuple[int, ...], numel: int) -> torch.Size:
    known = 1
    unknown = None
    for at, size in enumerate(sizes):
        if size == -1 and unknown is None:
            unknown = at
        elif size < 0:
            raise RuntimeError(f"invalid shape {list(sizes)}: sizes are non-negative, with at most one -1")
        else:
            known *= size
    if unknown is not None:
        if known == 0 or numel % known:
            raise RuntimeError(f"invalid shape {list(sizes)} for a batch of {numel} elements")
        return torch.Size((*sizes[:unknown], numel // known, *sizes[unknown + 1 :]))
    if known != numel:
        raise RuntimeError(f"invalid shape {list(sizes)} for a batch of {numel} elements")
    return torch.Size(sizes)


_known_sizes = functools.lru_cache(maxsize=4096)(_inferred)


_MANY = 5  # number of entries from which caching their shapes is faster


class ShapeOps(Kernel):
    """Mixin of the shape family; see the module docstring."""

    __slots__ = ()

    def _reshaped(
        self,
        fn: Callable[[Any], Any],
        size: torch.Size,
        names: list[str | None] | None = None,
        inverse: Callable[[Any], Any] | None = None,
    ) -> Self:
        """``fn`` over the entries. A view of a locked collection is locked; ``inverse`` undoes it in a `with`."""
        out = self._rebuild({key: fn(value) for key, value in self._source.items()}, size, names)
        if self._lock is not None:
            out._propagate_lock(None)
        if inverse is not None:
            out._last_op = (weakref.ref(self), inverse)
        return out

    def _fitting(self, new: torch.Size, give: Callable[[Any, tuple[int, ...]], Any]) -> Callable[[Any], Any]:
        """A function that gives an entry its shape under the batch size ``new``, by ``give(entry, shape)``."""
        dims = len(self._batch_size)
        if len(self._source) < _MANY or torch.compiler.is_compiling():
            return lambda value: give(value, (*new, *value.shape[dims:]))
        known = Shapes()

        def find(shape: torch.Size) -> tuple[int, ...]:
            return (*new, *shape[dims:])

        known.find = find

        def fitted(value: Any) -> Any:
            try:
                shape = known[value.shape]
            except TypeError:  # symbolic sizes cannot be dict keys
                shape = find(value.shape)
            return give(value, shape)

        return fitted

    # -- same elements, other shape -----------------------------------------------------------------------

    def view(self, *shape: Any, size: Sequence[int] | None = None, batch_size: torch.Size | None = None) -> Self:
        """Same elements under another batch size, without a copy; one size may be -1.

        A single dtype argument reinterprets the bits of every leaf, as :meth:`torch.Tensor.view`.
        As a context manager, changes in the block are written back.

        Raises:
            RuntimeError: the sizes do not hold the batch, or a leaf cannot be viewed without a copy.

        Example:
            >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).view(-1)["a"].shape
            torch.Size([6, 4])
        """
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            dtype = shape[0]
            out = self._map_leaves(lambda leaf: leaf.view(dtype))
            if batch_size is not None:
                out._change_batch_size(torch.Size(batch_size))
            return out
        if not shape or size is not None:
            shape = _sizes(shape, {} if size is None else {"size": size}, "view") if shape or size is not None else ()
        elif len(shape) == 1 and not isinstance(shape[0], int):
            shape = tuple(shape[0])
        return self._viewed(shape, "view")

    def reshape(self, *args: Any, inplace: bool = False, **kwargs: Any) -> Self:
        """Same elements under another batch size, copied only where a view is impossible; one size may be -1.

        Args:
            *args: the sizes, as ints or one sequence (also ``size=``).
            inplace: reshape this collection and the nested ones, and return it.

        Example:
            >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).reshape(3, 2)["a"].shape
            torch.Size([3, 2, 4])
        """
        return self._inplace_or(inplace, self._viewed(_sizes(args, kwargs, "reshape"), "reshape"), "reshape")

    def _viewed(self, sizes: tuple[int, ...], method: str) -> Self:
        old = self._batch_size
        new = infer_size(sizes, math.prod(old))
        if new == old:
            return self._unchanged()
        if method == "view":
            return self._reshaped(self._fitting(new, viewed_entry), new, None, lambda out: out.view(*old))
        return self._reshaped(self._fitting(new, reshaped_entry), new)

    def flatten(self, start_dim: int | None = None, end_dim: int | None = None, *, inplace: bool = False) -> Self:
        """One dimension instead of the batch dimensions ``start_dim`` to ``end_dim`` (inclusive)."""
        size = self._batch_size
        ndim = len(size)
        start = 0 if start_dim is None else start_dim + ndim if start_dim < 0 else start_dim
        end = ndim - 1 if end_dim is None else end_dim + ndim if end_dim < 0 else end_dim
        if not ndim:
            for dim in (start_dim, end_dim):
                if dim not in (None, 0, -1):
                    raise IndexError(f"Dimension out of range (expected to be in range of [-1, 0], but got {dim})")
            return self._inplace_or(inplace, self.unsqueeze(0), "flatten")
        if end < start:
            raise ValueError(
                "The end dimension must be greater or equal to the start dim: got "
                f"start_dim={start_dim}, end_dim={end_dim} for {ndim} batch dimension(s)."
            )
        if start < 0 or end >= ndim:
            raise IndexError(f"flatten: dims {start_dim} to {end_dim} leave the {ndim} batch dimension(s)")
        middle = size[start : end + 1]
        new = torch.Size((*size[:start], math.prod(middle), *size[end + 1 :]))
        names = None
        if self._names is not None:
            names = names_or_none([*self._names[:start], None, *self._names[end + 1 :]])

        def flat(value: Any) -> Any:  # one dimension: the tensor itself, which torch returns slowly
            return value if start == end and isinstance(value, Tensor) else value.flatten(start, end)

        out = self._regrouped(flat, new, names, lambda out: out.unflatten(start, middle))
        return self._inplace_or(inplace, out, "flatten")

    def unflatten(self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False) -> Self:
        """The batch dimension ``dim`` split into ``unflattened_size``; one size may be -1."""
        size = self._batch_size
        dim = positive_dim(dim, len(size), size)
        middle = infer_size(tuple(unflattened_size), size[dim])
        new = torch.Size((*size[:dim], *middle, *size[dim + 1 :]))
        names = None
        if self._names is not None:
            names = [*self._names[:dim], *([None] * (len(middle) - 1)), *self._names[dim:]]
        out = self._regrouped(
            lambda value: value.unflatten(dim, middle),
            new,
            names,
            lambda out: out.flatten(dim, dim + len(middle) - 1),
        )
        return self._inplace_or(inplace, out, "unflatten")

    # A lazy stack has another way to merge and split dimensions.
    _regrouped = _reshaped

    def _inplace_or(self, inplace: bool, out: Any, name: str) -> Self:
        """``out``; or this collection with the content of ``out``, if it is not locked."""
        if not inplace or out is self:
            return out
        self._require_unlocked()
        self._become(out)
        return self

    def _become(self, out: Any) -> None:
        """Take over entries, batch size and names of ``out``; nested collections take over those of its nested ones."""
        entries = dict(out._source)
        for key, value in entries.items():
            mine = self._source.get(key)
            if not isinstance(value, Tensor) and type(mine) is type(value) and mine._lock is None:
                if type(value._source) is dict and not value._is_non_tensor:
                    mine._become(value)
                    entries[key] = mine
        self._source = entries
        self._batch_size = out._batch_size
        self._names = out._names

    def squeeze(self, dim: int | None = None) -> Self:
        """Remove the batch dimension ``dim`` if its size is 1; without ``dim``, all dimensions of size 1."""
        size = self._batch_size
        if dim is None:
            if 1 not in size:
                return self._unchanged()
            new = torch.Size([n for n in size if n != 1])
            names = None
            if self._names is not None:
                names = names_or_none([name for name, n in zip(self._names, size) if n != 1])
            return self._reshaped(
                self._fitting(new, reshaped_entry),
                new,
                names,
                _implicit_squeeze,
            )
        dim = positive_dim(dim, len(size), size)
        if size[dim] != 1:
            return self._unchanged()
        names = None
        if self._names is not None:
            names = names_or_none([*self._names[:dim], *self._names[dim + 1 :]])
        return self._reshaped(
            lambda value: value.squeeze(dim),
            size[:dim] + size[dim + 1 :],
            names,
            lambda out: out.unsqueeze(dim),
        )

    def unsqueeze(self, dim: int) -> Self:
        """Insert a batch dimension of size 1 at ``dim`` (``-batch_dims - 1`` to ``batch_dims``)."""
        size = self._batch_size
        at = new_dim(dim, size)
        names = None if self._names is None else [*self._names[:at], None, *self._names[at:]]
        return self._reshaped(
            lambda value: value.unsqueeze(at),
            torch.Size((*size[:at], 1, *size[at:])),
            names,
            lambda out: out.squeeze(at),
        )

    def _at_least(self, ndim: int) -> Self:
        out = self
        for _ in range(ndim - len(self._batch_size)):
            out = out.unsqueeze(0)
        return out

    def atleast_1d(self) -> Self:
        """With at least one batch dimension."""
        return self._at_least(1)

    def atleast_2d(self) -> Self:
        """With at least two batch dimensions; new ones come first."""
        return self._at_least(2)

    def atleast_3d(self) -> Self:
        """With at least three batch dimensions; new ones come first (torch adds one at the end)."""
        return self._at_least(3)

    # -- expansion ---------------------------------------------------------------------------------------------

    def expand(self, *args: Any, **kwargs: Any) -> Self:
        """A view with dimensions of size 1 repeated, and new ones in front; -1 keeps a size.

        Example:
            >>> TensorDict({"a": torch.zeros(3, 4)}, [3]).expand(1_000_000, 3)["a"].shape
            torch.Size([1000000, 3, 4])
        """
        old = self._batch_size
        sizes, ahead = expand_sizes(args, kwargs, old)
        new = torch.Size((*sizes[:ahead], *[o if s == -1 else s for s, o in zip(sizes[ahead:], old)]))
        for size, existing in zip(new[ahead:], old):
            if existing not in (1, size):
                raise RuntimeError(
                    "Incompatible expanded shape: The expanded shape length at non-singleton dimension should be same "
                    f"as the original length. target_shape = {tuple(sizes)}, existing_shape = {old}"
                )
        names = None if self._names is None else [*([None] * ahead), *self._names]
        return self._reshaped(self._fitting(new, expanded_entry), new, names)

    def expand_as(self, other: Any) -> Self:
        """:meth:`expand` to the shape of a tensor.

        With a collection, each tensor is expanded to its counterpart, and each nested collection to its own; entries
        without a counterpart to the batch size. The result is then not locked.

        Raises:
            RuntimeError: a shape does not expand to the other.

        Example:
            >>> column = TensorDict({"a": torch.zeros(3, 1)}, [3])
            >>> column.expand_as(TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]))["a"].shape
            torch.Size([2, 3, 4])
        """
        if not isinstance(other, Kernel) or not self._source:
            return self.expand(*other.shape)
        size, whole, out = other._batch_size, None, {}
        for key, value in self._source.items():
            theirs = entry_of(other, (key,))
            if isinstance(value, Tensor) and isinstance(theirs, Tensor):
                out[key] = value.expand(theirs.shape)
            elif _is_level(value) and _is_level(theirs):
                out[key] = value.expand_as(theirs)
            else:
                whole = self.copy().expand(*size) if whole is None else whole
                out[key] = whole._source[key]
        ahead = len(size) - len(self._batch_size)
        names = None if self._names is None or ahead < 0 else [*([None] * ahead), *self._names]
        return self._rebuild(out, size, names)

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """:meth:`expand` to ``shape``, as :func:`torch.broadcast_to`."""
        out = self.expand(*shape)
        out = out.clone(recurse=False) if out is self else out
        out._names = None
        return out

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        """The content repeated ``repeats[d]`` times along each batch dimension ``d``."""
        size = self._batch_size
        repeats = repeats_of(repeats, size)
        dims = len(size)
        new = torch.Size([n * r for n, r in zip(size, repeats)])
        out = self._reshaped(lambda value: value.repeat(*repeats, *([1] * (value.ndim - dims))), new, self._names)
        return self._inplace_or(inplace, out, "repeat")

    def tile(self, dims: Sequence[int]) -> Self:
        """Like :func:`torch.tile`: ``dims`` may be longer or shorter than the batch dimensions."""
        repeats = tuple(dims) if not isinstance(dims, int) else (dims,)
        ndim = len(self._batch_size)
        td: Any = self
        if len(repeats) < ndim:
            repeats = (1,) * (ndim - len(repeats)) + repeats
        for _ in range(len(repeats) - ndim):
            td = td.unsqueeze(0)
        out = td.repeat(*repeats)
        out._names = None
        return out

    def repeat_interleave(
        self,
        repeats: Tensor | int,
        dim: int | None = None,
        *,
        output_size: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Every row repeated, next to itself; over the flattened batch when ``dim`` is ``None``."""
        td: Any = self
        if dim is None:
            if inplace:
                raise RuntimeError(
                    "repeat_interleave(inplace=True) requires an explicit dim: without one the batch is flattened first"
                )
            td = self.reshape(-1) if len(self._batch_size) != 1 else self
            td = td if td is not self else self.clone(recurse=False)
            td._names = None
            dim = 0
        size = td._batch_size
        if not size and dim in (0, -1):  # one row, as for a torch tensor without dimensions
            td, size = td.unsqueeze(0), torch.Size((1,))
        dim = positive_dim(dim, len(size), size)
        if isinstance(repeats, Tensor):
            total = int(repeats.sum()) if repeats.numel() > 1 else int(repeats.reshape(-1)[0]) * size[dim]
        else:
            total = repeats * size[dim]
        new = torch.Size((*size[:dim], total, *size[dim + 1 :]))
        out = td._reshaped(lambda value: value.repeat_interleave(repeats, dim, output_size=total), new, td._names)
        if self._lock is not None and out._lock is None:
            out._propagate_lock(None)
        return self._inplace_or(inplace, out, "repeat_interleave")

    # -- order of dimensions and rows ---------------------------------------------------------------------------

    def permute(self, *args: Any, **kwargs: Any) -> Self:
        """Reorder the batch dimensions; omitted trailing ones are kept."""
        size = self._batch_size
        ndim = len(size)
        order = permutation(args, kwargs, ndim)
        if order == list(range(ndim)):
            return self._unchanged()
        names = None if self._names is None else [self._names[d] for d in order]
        back = [order.index(d) for d in range(ndim)]
        return self._reshaped(
            lambda value: value.permute(*order, *range(ndim, value.ndim)),
            torch.Size([size[d] for d in order]),
            names,
            lambda out: out.permute(*back),
        )

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Swap two batch dimensions."""
        size = self._batch_size
        ndim = len(size)
        a, b = swapped_dims(dim0, dim1, ndim)
        if a == b:
            return self._unchanged()
        order = list(range(ndim))
        order[a], order[b] = b, a
        names = None if self._names is None else [self._names[d] for d in order]
        return self._reshaped(
            lambda value: value.transpose(a, b),
            torch.Size([size[d] for d in order]),
            names,
            lambda out: out.transpose(a, b),
        )

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Alias of :meth:`transpose`."""
        return self.transpose(axis0, axis1)

    def swapdims(self, axis0: int, axis1: int) -> Self:
        """Alias of :meth:`transpose`."""
        return self.transpose(axis0, axis1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move batch dimensions to other positions, like :func:`torch.movedim`."""
        ndim = len(self._batch_size)
        given = [(dims,) if isinstance(dims, int) else tuple(dims) for dims in (source, destination)]
        if len(given[0]) != len(given[1]):
            raise ValueError(
                f"movedim: source and destination must have the same number of elements, got {len(given[0])} and "
                f"{len(given[1])}"
            )
        # A stand-in tensor whose strides tell where each dimension moved.
        probe = torch.empty((), device="meta").expand(ndim * (1,)).as_strided((1,) * ndim, tuple(range(1, ndim + 1)))
        order = [stride - 1 for stride in torch.movedim(probe, *given).stride()]
        return self.permute(*order) if order else self

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Alias of :meth:`movedim`."""
        return self.movedim(source, destination)

    def roll(self, shifts: Any, dims: Any = None, *, inplace: bool = False) -> Self:
        """Shift rows along batch dimensions; rows shifted out reappear at the other end."""
        size = self._batch_size
        if dims is None:
            if not isinstance(shifts, int) and len(shifts) != 1:
                raise RuntimeError(
                    f"roll: shifts and dims must align, got {len(shifts)} shifts for the flattened batch. Pass dims=."
                )
            flat = self.reshape(-1)
            shift = shifts if isinstance(shifts, int) else shifts[0]
            out = flat._reshaped(lambda value: value.roll(shift, 0), flat._batch_size).reshape(*size)
            out = out.clone(recurse=False) if out is self else out
            out._names = self._names
            return self._inplace_or(inplace, out, "roll")
        axes = [positive_dim(d, len(size), size) for d in ((dims,) if isinstance(dims, int) else dims)]
        out = self._reshaped(lambda value: value.roll(shifts, axes), size, self._names)
        return self._inplace_or(inplace, out, "roll")

    def flip(self, dims: Any, *more: int) -> Self:
        """Rows in reverse order along the given batch dimensions."""
        size = self._batch_size
        axes = (dims, *more) if isinstance(dims, int) else tuple(dims)
        axes = tuple(positive_dim(d, len(size), size) for d in axes)
        return self._reshaped(lambda value: value.flip(axes), size, self._names)

    def fliplr(self) -> Self:
        """:meth:`flip` along dimension 1."""
        self._need_dims(2, "fliplr")
        return self.flip(1)

    def flipud(self) -> Self:
        """:meth:`flip` along dimension 0."""
        self._need_dims(1, "flipud")
        return self.flip(0)

    def _need_dims(self, ndim: int, name: str) -> None:
        if len(self._batch_size) < ndim:
            raise RuntimeError(f"{name} requires at least {ndim} batch dimensions, got {len(self._batch_size)}")

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Rotate ``k`` times by 90 degrees in the plane of two batch dimensions."""
        self._need_dims(2, "rot90")
        size = self._batch_size
        a, b = (positive_dim(d, len(size), size) for d in dims)
        order = list(range(len(size)))
        if k % 2:
            order[a], order[b] = b, a
        names = None if self._names is None else [self._names[d] for d in order]
        return self._reshaped(lambda value: value.rot90(k, (a, b)), torch.Size([size[d] for d in order]), names)

    def refine_names(self, *names: Any) -> Self:
        """Name unnamed batch dimensions, in place; ``...`` stands for dimensions to leave unchanged.

        Raises:
            RuntimeError: a dimension already has another name.
        """
        current: list[str | None] = self.names
        wanted = list(names)
        if Ellipsis in wanted:
            at = wanted.index(Ellipsis)
            fill = len(current) - (len(wanted) - 1)
            wanted[at : at + 1] = current[at : at + fill]
        if len(wanted) != len(current):
            raise RuntimeError(f"refine_names: got {len(wanted)} names for {len(current)} batch dimensions")
        for old, new in zip(current, wanted):
            if old is not None and new != old:
                raise RuntimeError(
                    f"refine_names: cannot coerce TensorDict names {current} with {list(names)}: {old!r} is already set"
                )
        self._assign_names(wanted)
        return self._unchanged()

    def _renamed(self, names: tuple[Any, ...], rename_map: dict[str, str]) -> list[str | None]:
        current: list[str | None] = self.names
        if rename_map:
            if names:
                raise ValueError("rename() takes either positional names or a mapping, not both")
            missing = [name for name in rename_map if name not in current]
            if missing:
                raise ValueError(
                    f"Some names to be renamed were not part of the tensordict names: {list(rename_map)} vs {current}."
                )
            return [rename_map.get(name, name) if name is not None else None for name in current]
        if len(names) == 1 and names[0] is None:
            return [None] * len(current)
        return list(names)

    def rename(self, *names: Any, **rename_map: str) -> Self:
        """A shallow copy with other dimension names, positional or as ``old="new"``."""
        out = self.clone(recurse=False)
        out._assign_names(self._renamed(names, rename_map))
        return out

    def rename_(self, *names: Any, **rename_map: str) -> Self:
        """Rename batch dimensions, in place."""
        self._assign_names(self._renamed(names, rename_map))
        return self._unchanged()

    # -- from the entries ------------------------------------------------------------------------------------------

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        """Set the batch size to the longest leading shape that all entries share, in nested collections first.

        Args:
            batch_dims: maximum number of dimensions, at every level.
            keep_compliant_size: nested collections with ``batch_dims`` dimensions or more keep theirs.

        Returns:
            self

        Example:
            >>> td = TensorDict({"a": torch.zeros(3, 4, 5), "b": {"c": torch.zeros(3, 4)}})
            >>> td.auto_batch_size_().batch_size
            torch.Size([3, 4])
        """
        common: torch.Size | None = None
        followers = []
        for _, value in self._entries():
            if isinstance(value, Tensor):
                shape = torch.Size((value.size(0),)) if value.is_nested else value.shape
            elif type(value._source) is not dict:
                shape = value.batch_size
            elif value._follows_batch:
                followers.append(value)
                continue
            elif value._is_non_tensor or value.is_empty():
                followers.append(value)  # fits any batch size
                shape = value.batch_size
                if not shape:
                    continue
            else:
                if not (keep_compliant_size and batch_dims is not None and value.batch_dims >= batch_dims):
                    value.auto_batch_size_(batch_dims, keep_compliant_size)
                shape = value.batch_size
            common = shape if common is None else _common_prefix(common, shape)
        if common is None:
            common = self._batch_size
        size = torch.Size(common if batch_dims is None else common[:batch_dims])
        for value in followers:
            value._change_batch_size(size)
        if size != self._batch_size:
            self._change_batch_size(size)
        return self


def _is_level(entry: Any) -> bool:
    return isinstance(entry, Kernel) and not entry._is_non_tensor


def _implicit_squeeze(out: Any) -> Any:
    raise RuntimeError("squeeze() cannot write back at the end of a `with` block: name the dimension, squeeze(dim)")


def _common_prefix(a: torch.Size, b: torch.Size) -> torch.Size:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return a[:n]
