"""Indexing a lazy stack: the members that an index selects, and the remaining index for each of them.

The index is split once into the part on the stack dimension and the rest. Three cases:

- *one*: an int selects a member, the rest indexes it;
- *many*: a slice selects several, the rest indexes each, and the results are stacked at the resulting stack
  dimension;
- *each*: a tensor on the stack dimension (alone or broadcast against others) selects element by element, and the
  results are nested stacks of the shape of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import InplaceWriteError
from tensordict_lite.indexing import index_batch_size, rows_mismatch
from tensordict_lite.lazy.storage import Stacked
from tensordict_lite.lazy.write import copy_whole
from tensordict_lite.ops.put import as_rows
from tensordict_lite.views import is_leaf_nontensor

_FULL = slice(None)
_MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True)
class IndexPlan:
    """The meaning of an index for a stack of ``length`` members."""

    kind: str
    """``"one"``, ``"many"`` or ``"each"``."""
    members: Any
    """one: the member; many: range of members; each: the broadcast long tensor of members."""
    rest: tuple[Any, ...]
    """Index for the members; each: with ``None`` slots filled from ``tensors``."""
    at: int = 0
    """many: stack dimension of the result; each: position of the dimensions of the tensors."""
    squeeze: bool = False
    """many: the rest keeps an axis of size 1 at the stack dimension."""
    tensors: tuple[tuple[int, Tensor], ...] = ()
    """each: positions in ``rest`` and broadcast tensors that fill them."""


def plan_index(index: Any, batch_size: torch.Size, stack_dim: int) -> IndexPlan:
    """Split a normalised index (see ``indexing.normalise_index``) at the stack dimension.

    Raises:
        IndexError: an int on the stack dimension is out of range, or a mask has another size than its dimensions.
    """
    parts = _expand(index, batch_size)
    length = batch_size[stack_dim]
    where = _position_of(parts, stack_dim)
    tensors = [i for i, part in enumerate(parts) if isinstance(part, Tensor)]
    rest = (*parts[:where], *parts[where + 1 :])
    part = parts[where]
    if not tensors:
        if isinstance(part, int):
            return IndexPlan("one", _checked(part, length), rest)
        return IndexPlan("many", range(length)[part], rest, sum(not isinstance(p, int) for p in parts[:where]))
    if isinstance(part, int):  # torch applies ints first: they do not broadcast with tensors
        return IndexPlan("one", _checked(part, length), rest)
    kept_before = sum(not isinstance(p, (int, Tensor)) for p in parts[: tensors[0]])
    adjacent = _adjacent(parts)
    if isinstance(part, Tensor):
        return _plan_each(parts, where, tensors, kept_before if adjacent else 0)
    block = max(parts[i].ndim for i in tensors)
    kept = sum(not isinstance(p, (int, Tensor)) for p in parts[:where])
    at = kept + (block if not adjacent or where > tensors[0] else 0)
    first = next(i for i, p in enumerate(rest) if isinstance(p, Tensor))
    moves = not adjacent and _adjacent(rest) and any(not isinstance(p, int) for p in rest[:first])
    if moves:  # without the stack dimension between them the tensors would be adjacent: keep an axis there
        rest = (*parts[:where], None, *parts[where + 1 :])
    return IndexPlan("many", range(length)[part], rest, at, squeeze=moves)


def _adjacent(parts: Sequence[Any]) -> bool:
    """Whether two tensors are adjacent, without slice or new axis; otherwise their dimensions go to the front."""
    kinds = [isinstance(p, Tensor) for p in parts if not isinstance(p, int)]
    first, last = kinds.index(True), len(kinds) - 1 - kinds[::-1].index(True)
    return all(kinds[first : last + 1])


def _plan_each(parts: list[Any], where: int, advanced: list[int], at: int) -> IndexPlan:
    if len(advanced) == 1:
        return IndexPlan("each", parts[where], (*parts[:where], *parts[where + 1 :]), at)
    values = [parts[i] for i in advanced]
    broadcast = torch.broadcast_tensors(*values)
    members = broadcast[advanced.index(where)]
    slots = tuple((i - (i > where), t) for i, t in zip(advanced, broadcast) if i != where)
    return IndexPlan("each", members, (*parts[:where], *parts[where + 1 :]), at, tensors=slots)


def _expand(index: Any, batch_size: torch.Size) -> list[Any]:
    """The index as a list with a part for each dimension: masks as positions, missing slices added."""
    parts: list[Any] = []
    used = 0
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, Tensor):
            if part.dtype in _MASKS:
                if part.ndim == 0:
                    part = bool(part)
                else:
                    covered = batch_size[used : used + part.ndim]
                    if any(n not in (m, -1) for m, n in zip(part.shape, covered)):
                        raise IndexError(
                            f"the shape of the mask {list(part.shape)} at dimension {used} does not match the batch "
                            f"size {list(batch_size)}"
                        )
                    used += part.ndim
                    parts.extend(part.nonzero().unbind(1))
                    continue
            elif part.ndim == 0:
                part = int(part)
        if part is True:
            part = None
        elif part is False:
            raise _NoRows("False cannot be combined with tensors in an index of a lazy stack: use an empty slice")
        if part is not None:
            used += 1
        parts.append(part)
    parts.extend([_FULL] * (len(batch_size) - used))
    return parts


def _position_of(parts: list[Any], dim: int) -> int:
    at = -1
    for position, part in enumerate(parts):
        if part is not None:
            at += 1
            if at == dim:
                return position
    raise IndexError(f"the index has no part for dimension {dim}")


def _checked(member: int, length: int) -> int:
    if not -length <= member < length:
        raise IndexError(f"index {member} is out of bounds for the stack dim of size {length}")
    return member


def _is_trivial(rest: tuple[Any, ...]) -> bool:
    return all(type(part) is slice and part == _FULL for part in rest)


def _simple(rest: tuple[Any, ...]) -> Any:
    """An index of one part without its tuple, for faster indexing."""
    return rest[0] if len(rest) == 1 else rest


class _NoRows(IndexError):
    """An index contains ``False``, which stands for a new dimension of size 0."""


def _is_false(part: Any) -> bool:
    return part is False or (isinstance(part, Tensor) and not part.ndim and part.dtype in _MASKS and not part)


class LazyIndexOps(Stacked):
    """Reading and writing rows of a lazy stack."""

    __slots__ = ()

    def _index(self, index: Any) -> Any:
        if index is False:
            return self._index(None)._index(slice(0, 0))
        members = self._source
        if type(index) is int and not self._stack_dim:
            return members[_checked(index, len(members))]
        try:
            plan = plan_index(index, self._batch_size, self._stack_dim)
        except _NoRows:
            return self._without_rows(index)
        if plan.kind == "one":
            member = members[plan.members]
            if _is_trivial(plan.rest):
                return member
            return member._index(_simple(plan.rest))
        if not (len(plan.members) if plan.kind == "many" else plan.members.numel()):
            out = self._empty_like(index)
            if self._names is not None and out is not self:
                out.names = self._index_names(index, out.batch_dims)
            return out
        if plan.kind == "many":
            return self._index_many(plan, index)
        out = self._index_each(plan)
        if self._names is not None and isinstance(out, LazyIndexOps):
            out._names = self._index_names(index, out.batch_dims)
        return out

    def _without_rows(self, index: Any) -> Any:
        """The result of an index with ``False``: a new dimension of size 0."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor) and part.ndim for part in parts):
            plan_index(index, self._batch_size, self._stack_dim)  # raises the error
        first = next(at for at, part in enumerate(parts) if _is_false(part))
        ahead = parts[:first]
        behind = (
            part for part in parts[first + 1 :] if part is not True and getattr(part, "dtype", None) not in _MASKS
        )
        parts = (*ahead, None, *(part for part in behind if part is not False))
        at = sum(not isinstance(part, int) for part in ahead)
        return self._index(parts)._index((*[_FULL] * at, slice(0, 0)))

    def _index_many(self, plan: IndexPlan, index: Any) -> Any:
        members = self._source
        rest = plan.rest
        if _is_trivial(rest):
            picked = [members[k] for k in plan.members]
        else:
            rest = _simple(rest)
            picked = [members[k]._index(rest) for k in plan.members]
            if plan.squeeze:
                picked = [row.squeeze(plan.at) for row in picked]
        names = None
        if self._names is not None and -1 not in self._batch_size:
            names = self._index_names(index, picked[0].batch_dims + 1)
        return self._restacked(picked, plan.at, names)

    def _index_each(self, plan: IndexPlan) -> Any:
        members = self._source
        numbers = plan.members.tolist()
        length = len(members)
        if not plan.tensors:
            rest = plan.rest
            if _is_trivial(rest):
                return self._nest(numbers, plan.at, lambda k: members[_checked(k, length)])
            return self._nest(numbers, plan.at, lambda k: members[_checked(k, length)]._index(rest))
        tensors = [(slot, tensor.tolist()) for slot, tensor in plan.tensors]

        def element(where: tuple[int, ...]) -> Any:
            rest = list(plan.rest)
            for slot, values in tensors:
                rest[slot] = _at(values, where)
            return members[_checked(_at(numbers, where), length)]._index(tuple(rest))

        positions = _positions(plan.members.shape)
        return self._nest(positions, plan.at, element)

    def _nest(self, picks: Any, at: int, pick: Callable[[Any], Any]) -> Any:
        """Nested stacks with the structure of nested lists of members."""
        if not isinstance(picks, list):
            return pick(picks)
        rows = [self._nest(inner, at, pick) for inner in picks]
        names = rows[0]._names if rows else None
        return self._restacked(rows, at, None if names is None else [*names[:at], None, *names[at:]])

    def _empty_like(self, index: Any) -> Any:
        """A dense collection without rows, with the keys that the members share."""
        keys = self._key_list()
        if not self._source:
            return self
        first = self._source[0].select(*keys)
        row = first._index((*[_FULL] * self._stack_dim, None))
        parts = _expand(index, self._batch_size)
        where = _position_of(parts, self._stack_dim)
        if isinstance(parts[where], slice):
            parts[where] = slice(0, 0)
        return row._index(tuple(parts))

    def _select_rows(self, rows: Tensor) -> Any:
        return self._index(rows)

    # -- writing ------------------------------------------------------------------------------------------

    def _set_index(self, index: Any, value: Any) -> None:
        """Write rows: a collection of their shape, a scalar, or a tensor for every entry."""
        if index is False:  # no rows
            return
        try:
            plan = plan_index(index, self._batch_size, self._stack_dim)
        except _NoRows:
            return
        known = -1 not in self._batch_size
        size = index_batch_size(self._batch_size, index) if known else None
        if isinstance(value, (dict, Mapping)) and not isinstance(value, TensorCollection):
            size = self._ragged_size(plan) if size is None else size
            value = self._plain_class()(value, batch_size=size, device=self._device)
        if isinstance(value, TensorCollection):
            if size is not None and value._batch_size[: len(size)] != size:
                value = _expanded(value, size, index, self._batch_size)
        elif isinstance(value, (list, tuple, np.ndarray)) and (leaves := self._leaves()):
            value = as_rows(value, leaves[0], "")
        if isinstance(value, Tensor) and value.numel() != 1:
            size = self._ragged_size(plan) if size is None else size
            value = self._spread_tensor(plan, value, size)
        if not isinstance(value, TensorCollection):
            self._restricted()._write(plan, value)
        else:
            self._write(plan, value)

    def _restricted(self) -> Any:
        """The stack without the leaves that only some members have: the target of a plain value."""
        if _same_tensors(self._source):
            return self
        leaves = [set(member.keys(True, True, is_leaf_nontensor)) for member in self._source]
        common = set.intersection(*leaves) if leaves else set()
        if all(len(found) == len(common) for found in leaves):
            return self
        return self.select(*common)

    def _ragged_size(self, plan: IndexPlan) -> torch.Size:
        if plan.kind == "one":
            return index_batch_size(self._source[plan.members]._batch_size, plan.rest)
        raise RuntimeError(
            f"the members of this stack have different batch sizes (it has {list(self._batch_size)}): rows of several "
            "members can be written from a lazy stack only"
        )

    def _write(self, plan: IndexPlan, value: Any) -> None:
        scalar = not isinstance(value, TensorCollection)
        if plan.kind == "one":
            self._assign_member(plan.members, plan.rest, value)
        elif plan.kind == "many":
            pieces = [value] * len(plan.members) if scalar else value.unbind(plan.at)
            for member, piece in zip(plan.members, pieces):
                if plan.squeeze and not scalar:
                    piece = piece.unsqueeze(plan.at)
                self._assign_member(member, plan.rest, piece)
        elif plan.members.ndim == 1 and not plan.tensors:
            numbers, rest = plan.members.tolist(), tuple(plan.rest)
            for number, piece in zip(numbers, [value] * len(numbers) if scalar else value.unbind(plan.at)):
                self._assign_member(_checked(number, self._batch_size[self._stack_dim]), rest, piece)
        else:
            for where in product(*(range(n) for n in plan.members.shape)):
                parts = list(plan.rest)
                for slot, tensor in plan.tensors:
                    parts[slot] = int(tensor[where])
                piece = value if scalar else value._index((*[_FULL] * plan.at, *where))
                member = _checked(int(plan.members[where]), self._batch_size[self._stack_dim])
                self._assign_member(member, tuple(parts), piece)

    def _assign_member(self, member: int, rest: tuple[Any, ...], value: Any) -> None:
        members = self._source
        old = members[member]
        if _is_trivial(rest) and isinstance(value, TensorCollection) and copy_whole((old,), (value,)):
            return
        try:
            new = old._assign_rows(_simple(rest), value)
        except RuntimeError as err:
            if type(err) is not RuntimeError or not _is_trivial(rest):
                raise
            raise InplaceWriteError(f"member {member} of the stack cannot take the rows: {err}") from err
        if new is not old:  # non-tensor data that became another object
            members[member] = new

    def _spread_tensor(self, plan: IndexPlan, value: Tensor, size: torch.Size) -> Any:
        """A collection that holds the tensor under every leaf, broadcast to the rows."""
        picked = self._source[0] if plan.kind != "one" else self._source[plan.members]
        dims = picked.batch_dims
        out = self._plain_class()._trusted({}, size, self._device)
        for path, leaf in picked.items(True, True):
            out.set(path, value.expand(*size, *leaf.shape[dims:]))
        return out


def _expanded(value: Any, size: torch.Size, index: Any, batch_size: torch.Size) -> Any:
    try:
        if torch.broadcast_shapes(value._batch_size, size) == size:
            return value.expand(*size)
    except RuntimeError:
        pass
    raise rows_mismatch(size, value._batch_size, batch_size, index)


def _at(values: Any, where: tuple[int, ...]) -> Any:
    for k in where:
        values = values[k]
    return values


def _positions(shape: torch.Size, prefix: tuple[int, ...] = ()) -> Any:
    """Nested lists of the multi-indices of a shape."""
    if not shape:
        return prefix
    return [_positions(shape[1:], (*prefix, k)) for k in range(shape[0])]


def _same_tensors(members: list[Any]) -> bool:
    """Whether all members have plain tensors under the same keys, and nothing else: a quick test."""
    first = members[0]._source.keys() if members and type(members[0]._source) is dict else None
    if first is None:
        return False
    for member in members:
        source = member._source
        if type(source) is not dict or source.keys() != first or member._is_non_tensor:
            return False
        for value in source.values():
            if not isinstance(value, Tensor):
                return False
    return True
