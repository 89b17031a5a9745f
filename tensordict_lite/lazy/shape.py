"""Shape operations of a lazy stack: the same operation on each member, and arithmetic on the stack dimension.

A member has the batch dimensions of the stack without the stack dimension; ``_inner(dim)`` translates. Operations that
mix the stack dimension with others (such as a reshape that merges it) split the members into rows and nest these, or
use the dense form if it exists.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import names_or_none
from tensordict_lite.lazy.storage import Stacked, through_dense
from tensordict_lite.ops.rows import check_condition, check_gather_out, check_pad
from tensordict_lite.ops.shape import (
    expand_sizes,
    infer_size,
    new_dim,
    permutation,
    positive_dim,
    repeats_of,
    swapped_dims,
)


def _sequence(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and not isinstance(args[0], int) else args


class LazyShapeOps(Stacked):
    """Overrides of the shape and row families for stacks."""

    __slots__ = ()

    rot90 = through_dense("rot90")

    def _inner(self, dim: int) -> int:
        """The dimension of a member for a dimension of the stack (other than the stack dimension)."""
        return dim - (dim > self._stack_dim)

    def _positive(self, dim: int) -> int:
        return positive_dim(dim, len(self._batch_size), self._batch_size)

    def _undoable(self, out: Any, inverse: Callable[[Any], Any]) -> Any:
        """``out``, written back through ``inverse`` when used as a context manager."""
        if out is not self:
            out._last_op = (weakref.ref(self), inverse)
        return out

    def _dense_or_none(self) -> Any:
        """The dense form if it holds everything: members with the same keys and shapes."""
        keys = self._key_list()
        if any(len(member._key_list()) != len(keys) for member in self._source):
            return None
        try:
            return self._densified()
        except (RuntimeError, TypeError):
            return None

    # -- order of dimensions --------------------------------------------------------------------------------

    def permute(self, *args: Any, **kwargs: Any) -> Self:
        ndim = len(self._batch_size)
        order = permutation(args, kwargs, ndim)
        if order == list(range(ndim)):
            return self._unchanged()
        at = order.index(self._stack_dim)
        inner = [self._inner(d) for d in order if d != self._stack_dim]
        members = self._source
        if inner != sorted(inner):
            members = [member.permute(*inner) for member in members]
        else:
            members = list(members)
        names = None if self._names is None else [self._names[d] for d in order]
        back = [order.index(d) for d in range(ndim)]
        return self._undoable(self._restacked(members, at, names), lambda out: out.permute(*back))

    def transpose(self, dim0: int, dim1: int) -> Self:
        ndim = len(self._batch_size)
        a, b = swapped_dims(dim0, dim1, ndim)
        order = list(range(ndim))
        order[a], order[b] = b, a
        return self.permute(*order)

    # -- dimensions of size 1 -------------------------------------------------------------------------------

    def unsqueeze(self, dim: int) -> Self:
        at = new_dim(dim, self._batch_size)
        stack_dim = self._stack_dim
        names = None if self._names is None else [*self._names[:at], None, *self._names[at:]]
        members = [member.unsqueeze(at if at <= stack_dim else at - 1) for member in self._source]
        out = self._restacked(members, stack_dim + (at <= stack_dim), names)
        return self._undoable(out, lambda result: result.squeeze(at))

    def squeeze(self, dim: int | None = None) -> Self:
        size = self._batch_size
        if dim is None:
            out: Any = self
            for d in reversed(range(len(size))):
                if size[d] == 1:
                    out = out.squeeze(d)
            return out if out is self else self._undoable(out, lambda result: result.reshape(tuple(size)))
        dim = self._positive(dim)
        if size[dim] != 1:
            return self._unchanged()
        if dim == self._stack_dim:
            return self._source[0]
        names = None if self._names is None else names_or_none([*self._names[:dim], *self._names[dim + 1 :]])
        members = [member.squeeze(self._inner(dim)) for member in self._source]
        out = self._restacked(members, self._inner_position(dim), names)
        return self._undoable(out, lambda result: result.unsqueeze(dim))

    def _inner_position(self, removed: int) -> int:
        return self._stack_dim - (removed < self._stack_dim)

    # -- same elements, other shape ---------------------------------------------------------------------------

    def _viewed(self, sizes: tuple[int, ...], method: str) -> Any:
        old = self._batch_size
        if -1 in old:
            raise RuntimeError(
                f"a stack of members of different batch sizes ({list(old)}) cannot be reshaped: pad the members first"
            )
        new = old if sizes == old else infer_size(sizes, old.numel())
        if new == old:
            return self._unchanged()
        out = self._rearranged(old, new, method)
        return self._undoable(out, lambda result: result.view(tuple(old))) if method == "view" else out

    def _rearranged(self, old: torch.Size, new: torch.Size, method: str) -> Any:
        stack_dim, length = self._stack_dim, len(self._source)
        before, after = math.prod(old[:stack_dim]), math.prod(old[stack_dim + 1 :])
        for at, n in enumerate(new):  # the stack dimension survives: only the members change shape
            if n == length and math.prod(new[:at]) == before and math.prod(new[at + 1 :]) == after:
                rest = (*new[:at], *new[at + 1 :])
                return self._restacked([getattr(member, method)(rest) for member in self._source], at)
        split = len(new) - len(old) + 1  # into that many dimensions, for members that keep their shape
        if (
            length
            and split > 1
            and (new[:stack_dim], new[stack_dim + split :]) == (old[:stack_dim], old[stack_dim + 1 :])
        ):
            return self._nest_rows(self._source, new[stack_dim : stack_dim + split], stack_dim)
        # A view is made of rows of the members: what is written to a dense copy would not arrive in them.
        if not length or not before * after or (len(new) > 1 and method != "view"):
            dense = self._dense_or_none()
            if dense is not None:
                return dense.reshape(tuple(new))
        rows = self._rows_in_order(before)
        outer, inner = _split_shape(new, after, len(rows))
        if inner is None:
            rows = [part for row in rows for part in (row.reshape(-1).unbind(0) if row.batch_dims else (row,))]
            outer, inner = new, torch.Size(())
        else:
            rows = [row.reshape(tuple(inner)) for row in rows]
        return self._nest_rows(rows, outer)

    def _rows_in_order(self, before: int) -> list[Any]:
        """The parts of the members after the dimensions in front of the stack dimension, in row-major order."""
        stack_dim = self._stack_dim
        if not stack_dim:
            return list(self._source)
        flat = [member.flatten(0, stack_dim - 1) if stack_dim > 1 else member for member in self._source]
        columns = [member.unbind(0) for member in flat]
        return [column[row] for row in range(before) for column in columns]

    def _nest_rows(self, rows: list[Any], shape: Sequence[int], at: int = 0) -> Any:
        """Stacks of stacks of the rows, their dimensions at ``at``; of no dimension, the one row."""
        if not shape:
            return rows[0]
        if len(shape) == 1:
            return self._restacked(rows, at)
        step = len(rows) // shape[0] if shape[0] else 0
        parts = [self._nest_rows(rows[k * step : (k + 1) * step], shape[1:], at) for k in range(shape[0])]
        return self._restacked(parts, at)

    def _refuse_inplace(self, name: str, inplace: bool) -> None:
        if inplace:
            raise NotImplementedError(
                f"{name}(inplace=True) is not supported on {type(self).__name__}, whose members keep their shape: use "
                f"td = td.{name}(...)"
            )

    def _regrouped(
        self, fn: Any, size: torch.Size, names: Any = None, inverse: Callable[[Any], Any] | None = None
    ) -> Any:
        out = self._viewed(size, "reshape")
        if out is not self and names is not None:
            out._assign_names(names)
        return out if inverse is None else self._undoable(out, inverse)

    def _inplace_or(self, inplace: bool, out: Any, name: str) -> Self:
        self._refuse_inplace(name, inplace)
        return out

    def expand(self, *args: Any, **kwargs: Any) -> Self:
        shape, ahead = expand_sizes(args, kwargs, self._batch_size)
        at = self._stack_dim + ahead
        length = len(self._source)
        wanted = shape[at] if shape[at] != -1 else length
        names = None if self._names is None else [*([None] * ahead), *self._names]
        inner = (*shape[:at], *shape[at + 1 :])
        if wanted == length:
            same = self._is_non_tensor and self._member_batch_size() == inner  # views of rows are the rows
            return self._restacked([m if same else m.expand(inner) for m in self._source], at, names)
        if length != 1:
            raise RuntimeError(
                f"the stack dimension of size {length} cannot be expanded to {wanted}: incompatible expanded shape "
                f"{list(shape)} for the batch size {list(self._batch_size)}"
            )
        member = self._source[0].expand(*inner).unsqueeze(at)
        full = [n if n != -1 else m for n, m in zip(shape, member.batch_size)]
        return member.expand(*full)

    # -- cutting ----------------------------------------------------------------------------------------------

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """One collection for each row along ``dim``: the members themselves along the stack dimension."""
        dim = self._positive(dim)
        if dim == self._stack_dim:
            return tuple(self._source)
        names = None if self._names is None else names_or_none([*self._names[:dim], *self._names[dim + 1 :]])
        if self._batch_size[dim] == -1:
            raise RuntimeError(f"the members have different lengths along dim {dim}: they cannot be unbound there")
        columns = [member.unbind(self._inner(dim)) for member in self._source]
        at = self._inner_position(dim)
        return tuple(self._restacked(list(row), at, names, locked=False) for row in zip(*columns))

    def _parts(self, cut: Any, lengths: Sequence[int], dim: int) -> tuple[Any, ...]:
        members, size, start = self._source, self._batch_size, 0
        if dim != self._stack_dim or 0 in lengths:
            starts = itertools.accumulate(lengths, initial=0)
            return tuple([self._narrowed(dim, start, length) for start, length in zip(starts, lengths)])
        parts: list[Any] = []
        if -1 in size or self._lock is not None:
            for length in lengths:
                parts.append(self._restacked(members[start : start + length], dim, self._names))
                start += length
            return tuple(parts)
        of, device, names, whole = type(self)._of, self._device, self._names, size
        for length in lengths:
            if length != whole[dim]:
                whole = torch.Size((*size[:dim], length, *size[dim + 1 :]))
            parts.append(of(members[start : start + length], dim, size, device, names, whole))
            start += length
        return tuple(parts)

    def _narrowed(self, dim: int, start: int, length: int) -> Any:
        return self._index((*[slice(None)] * dim, slice(start, start + length)))

    # -- repeating and moving rows ----------------------------------------------------------------------------

    def _take_members(self, order: Sequence[int], dim_fn: Callable[[Any], Any]) -> Any:
        """Members in another order or number, each under ``dim_fn``."""
        return self._restacked([dim_fn(self._source[k]) for k in order], self._stack_dim, self._names)

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        self._refuse_inplace("repeat", inplace)
        repeats = repeats_of(repeats, self._batch_size)
        at = self._stack_dim
        inner = (*repeats[:at], *repeats[at + 1 :])
        order = list(range(len(self._source))) * repeats[at]
        return self._take_members(order, lambda member: member.repeat(*inner) if inner else member.clone())

    def repeat_interleave(
        self, repeats: Tensor | int, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Self:
        self._refuse_inplace("repeat_interleave", inplace)
        if dim is None:
            return self.reshape(-1).repeat_interleave(repeats, 0)
        dim = self._positive(dim)
        if dim == self._stack_dim:
            order = torch.arange(len(self._source), device="cpu").repeat_interleave(repeats).tolist()
            return self._take_members(order, lambda member: member.clone())
        inner = self._inner(dim)
        members = [member.repeat_interleave(repeats, inner) for member in self._source]
        return self._restacked(members, self._stack_dim, self._names)

    def flip(self, dims: Any, *more: int) -> Self:
        axes = [self._positive(d) for d in _sequence((dims, *more))]
        dense = self._dense_or_none()
        if dense is not None:
            return self._keep_lock(dense.flip(axes))
        order = list(range(len(self._source)))
        if self._stack_dim in axes:
            order.reverse()
        inner = [self._inner(d) for d in axes if d != self._stack_dim]
        return self._take_members(order, lambda member: member.flip(inner) if inner else member.clone())

    def roll(self, shifts: Any, dims: Any = None, *, inplace: bool = False) -> Self:
        out = self._rolled(shifts, dims)
        if not inplace:
            return out
        self._require_unlocked()
        self._become(out)
        return self

    def _become(self, out: Any) -> None:
        """Take over the content of a collection of the same batch size: members take that of their rows."""
        alone = len({id(member) for member in self._source}) == len(self._source)
        for at, row in enumerate(out.unbind(self._stack_dim)):
            member = self._source[at]
            if alone and type(member) is type(row) and member._lock is None and not row._is_non_tensor:
                member._become(row)
            else:
                self._source[at] = row

    def _rolled(self, shifts: Any, dims: Any) -> Any:
        if dims is None:
            return self.reshape(-1).roll(shifts, 0).reshape(tuple(self._batch_size))
        dense = self._dense_or_none()
        if dense is not None:
            return self._keep_lock(dense.roll(shifts, dims))
        shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
        axes = [self._positive(d) for d in ((dims,) if isinstance(dims, int) else dims)]
        order = list(range(len(self._source)))
        inner_shifts, inner_axes = [], []
        for shift, axis in zip(shifts, axes):
            if axis == self._stack_dim:
                cut = -shift % len(order) if order else 0
                order = order[cut:] + order[:cut]
            else:
                inner_shifts.append(shift)
                inner_axes.append(self._inner(axis))
        fn = (lambda member: member.roll(inner_shifts, inner_axes)) if inner_axes else (lambda member: member.clone())
        return self._take_members(order, fn)

    # -- choosing -----------------------------------------------------------------------------------------------

    def _mask_rows(self, mask: Tensor) -> Sequence[Any]:
        """The part of a mask over the leading batch dimensions that each member sees."""
        if mask.ndim <= self._stack_dim:
            return [mask] * len(self._source)
        return mask.unbind(self._stack_dim)

    def masked_fill_(self, mask: Tensor, value: float | bool) -> Self:
        for member, rows in zip(self._source, self._mask_rows(mask)):
            if rows.ndim:
                member.masked_fill_(rows, value)
            elif rows:
                for leaf in member._leaves():
                    leaf.fill_(value)
        return self

    def expand_as(self, other: Any) -> Any:
        dense = self._dense_or_none() if isinstance(other, TensorCollection) else None
        return self.expand(*other.shape) if dense is None else dense.expand_as(other)

    def masked_fill(self, mask: Tensor, value: float | bool) -> Self:
        return self.clone().masked_fill_(mask, value)

    def masked_select(self, mask: Tensor, *, inplace: bool = False) -> Self:
        self._refuse_inplace("masked_select", inplace)
        dense = self._dense_or_none()
        return self._index(mask) if dense is None else dense.masked_select(mask)

    def where(
        self,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        check_condition(condition, self._batch_size)
        count = len(self._source)
        if hasattr(other, "_leaves"):
            others: Sequence[Any] = other.unbind(self._stack_dim)
        elif isinstance(other, Tensor) and other.ndim:
            others = other.expand(*self._batch_size, *other.shape[len(self._batch_size) :]).unbind(self._stack_dim)
        else:
            others = [other] * count
        rows = self._mask_rows(condition)
        members = [member.where(row, value, pad=pad) for member, row, value in zip(self._source, rows, others)]
        result = self._restacked(members, self._stack_dim, self._names, locked=False)
        if out is None:
            return result
        return out.update(result, inplace=True) if out._lock is None else out.update_(result)

    def gather(self, dim: int, index: Tensor, out: Any = None, *, inplace: bool = False) -> Self:
        check_gather_out(out, inplace)
        self._refuse_inplace("gather", inplace)
        return self._densified().gather(dim, index, out)

    def pad(self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False) -> Self:
        """Batch dimensions padded; see :meth:`TensorDict.pad`.

        The result is dense where it can be. With ``inplace`` the members themselves are padded, and new members of
        nothing but ``value`` are added at the ends of the stack dimension.
        """
        pairs = check_pad(self, pad_size)
        dense = None if inplace else self._dense_or_none()
        if dense is not None:
            return dense.pad(pad_size, value)
        if inplace and self._lock is not None:
            raise self._locked_error()
        at = self._stack_dim
        before, after = pairs[at] if at < len(pairs) else (0, 0)
        inner = [n for d, pair in enumerate(pairs) if d != at for n in pair]
        members = self._source[max(0, -before) : len(self._source) - max(0, -after)]
        if any(inner):  # each once: one collection may be a member several times
            distinct = {id(member): member for member in members}
            distinct = {key: member.pad(inner, value, inplace) for key, member in distinct.items()}
            members = [distinct[id(member)] for member in members]
        if members:
            members = [*_blank(members[0], before, value), *members, *_blank(members[-1], after, value)]
        padded = self._restacked(list(members), at, self._names)
        if not inplace:
            return padded
        self._source, self._batch_size = padded._source, padded._batch_size
        return self


def _blank(member: Any, count: int, value: float) -> list[Any]:
    """``count`` members of the shape of another one, filled with one value."""
    if count <= 0:
        return []
    lead = member.unsqueeze(0).pad([0, count], value)
    return list(lead.unbind(0)[1:])


def _split_shape(shape: torch.Size, after: int, rows: int) -> tuple[Sequence[int], torch.Size | None]:
    """``shape`` cut in two, rows in front and what a row holds behind; ``None`` where no cut fits."""
    for cut in range(len(shape), 0, -1):
        if math.prod(shape[cut:]) == after and math.prod(shape[:cut]) == rows:
            return shape[:cut], shape[cut:]
    return shape, None
