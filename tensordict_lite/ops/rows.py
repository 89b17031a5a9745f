"""Operations on rows: split, unbind, gather, masks, padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.indexing import index_names
from tensordict_lite.kernel import Kernel
from tensordict_lite.ops.operands import check_out
from tensordict_lite.ops.shape import ShapeOps, positive_dim
from tensordict_lite.strided import indexed


def _align(condition: Tensor, ndim: int) -> Tensor:
    """A condition over leading dimensions, with trailing dimensions of size 1 up to ``ndim``."""
    extra = ndim - condition.ndim
    return condition[(...,) + (None,) * extra] if extra > 0 else condition


def check_pad(td: Any, pad_size: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of ``pad_size``, one for each of the first batch dimensions.

    Raises:
        RuntimeError: there are too many pairs, or a dimension would get a negative size.
    """
    size = td._batch_size
    if len(pad_size) > 2 * len(size) or len(pad_size) % 2:
        raise RuntimeError(
            "pad_size must hold a pair (before, after) for at most each of the batch dimensions: got "
            f"{len(pad_size)} values for {len(size)} dimension(s)"
        )
    pairs = [(pad_size[i], pad_size[i + 1]) for i in range(0, len(pad_size), 2)]
    for dim, ((before, after), n) in enumerate(zip(pairs, size)):
        if n >= 0 and n + before + after < 0:
            raise RuntimeError(f"Pad ({before}, {after}) on dim {dim} (size {n}) would produce a negative output size.")
    return pairs


def sizes_along(size: torch.Size, dim: int, lengths: Sequence[int]) -> list[torch.Size]:
    """Sizes of parts that differ along a dimension."""
    sizes: list[torch.Size] = []
    last: int | None = None
    for length in lengths:
        if length != last:
            made, last = torch.Size((*size[:dim], length, *size[dim + 1 :])), length
        sizes.append(made)
    return sizes


def check_condition(condition: Tensor, size: torch.Size) -> None:
    if condition.ndim > len(size):
        raise RuntimeError(
            f"where: the condition has {condition.ndim} dimension(s), more than the {len(size)} of the batch size"
        )


def check_gather_out(out: Any, inplace: bool) -> None:
    if out is not None and inplace:
        raise ValueError("`out` and `inplace=True` are mutually exclusive in gather: the result goes to one place")


def _parts_of(value: Any, cut: Any, sizes: Sequence[torch.Size]) -> Any:
    """The parts of an entry; a jagged tensor is split row by row, which torch does not do."""
    if not isinstance(value, Tensor) or value.layout is not torch.jagged:
        return cut(value)
    stops = itertools.accumulate(size[0] for size in sizes)
    return [indexed(value, slice(stop - size[0], stop)) for size, stop in zip(sizes, stops)]


class RowOps(ShapeOps):
    """Mixin of the row family."""

    __slots__ = ()

    # -- cutting --------------------------------------------------------------------------------------------------

    def _cuttable(self, dim: int) -> tuple[int, int]:
        """A batch dimension, counted from the front, and its length."""
        size = self._batch_size
        dim = positive_dim(dim, len(size), size)
        if size[dim] < 0:
            raise RuntimeError(f"the rows have different lengths along dim {dim}: they cannot be cut there")
        return dim, size[dim]

    def _parts(self, cut: Any, lengths: Sequence[int], dim: int) -> tuple[Self, ...]:
        """Consecutive parts of these lengths, which ``cut`` makes of each entry."""
        return self._cut_entries(cut, sizes_along(self._batch_size, dim, lengths), self._names, True)

    def _cut_entries(self, cut: Any, sizes: list[torch.Size], names: list[str | None] | None, locked: bool) -> Any:
        """One collection for each element of the tuples that ``cut`` makes of the entries."""
        keys = list(self._source)
        rebuild = self._rebuild
        if not keys:
            parts = tuple(rebuild({}, size, names) for size in sizes)
        else:
            try:
                columns = [cut(value) for value in self._source.values()]
            except RuntimeError:
                columns = [_parts_of(value, cut, sizes) for value in self._source.values()]
            parts = tuple(rebuild(dict(zip(keys, row)), size, names) for row, size in zip(zip(*columns), sizes))
        if locked and self._lock is not None:
            for part in parts:
                part._propagate_lock(None)
        return parts

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Consecutive parts of ``split_size`` rows (the last one shorter), or of the given sizes; views.

        Raises:
            ValueError: a non-positive ``split_size``.
            RuntimeError: sizes that do not sum to the length.

        Example:
            >>> [part.batch_size[0] for part in TensorDict({"a": torch.zeros(5)}, [5]).split(2)]
            [2, 2, 1]
        """
        dim, length = self._cuttable(dim)
        if isinstance(split_size, int):
            if split_size <= 0:
                raise ValueError(f"split: split_size must be positive, got {split_size}.")
            full, rest = length // split_size, length % split_size  # torch.compile cannot trace divmod of symbols
            lengths = [split_size] * full
            if full and not rest:  # Tensor.split is a Python function; this gives the same parts faster
                return self._parts(lambda value: value.chunk(int(full), dim), lengths, dim)
            if rest or not length:
                lengths.append(rest)
        else:
            split_size = lengths = list(split_size)
            if any(n < 0 for n in split_size):
                raise RuntimeError(
                    "split_with_sizes expects split_sizes have only non-negative entries, but got "
                    f"split_sizes={split_size}"
                )
            if sum(split_size) != length:
                raise RuntimeError(
                    f"split_with_sizes expects split_sizes to sum exactly to {length} (input tensor's size at "
                    f"dimension {dim}), but got split_sizes={split_size}"
                )
        return self._parts(lambda value: value.split(split_size, dim), lengths, dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most ``chunks`` consecutive parts of equal size (the last one shorter); views."""
        if not isinstance(chunks, int) or chunks <= 0:
            raise ValueError(f"chunks must be a strictly positive integer, got {chunks}.")
        dim, length = self._cuttable(dim)
        rows = max(1, -(-length // chunks))
        full, rest = length // rows, length % rows
        lengths = [rows] * full
        if not length:  # torch returns as many empty parts as requested
            lengths = [0] * chunks
        elif rest:
            lengths.append(rest)
        return self._parts(lambda value: value.chunk(chunks, dim), lengths, dim)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Parts as :func:`torch.tensor_split` cuts them; views."""
        dim, length = self._cuttable(dim)
        probe = torch.empty((), dtype=torch.bool).expand(length)
        lengths = [len(part) for part in probe.tensor_split(indices_or_sections)]
        return self._parts(lambda value: value.tensor_split(indices_or_sections, dim), lengths, dim)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """One collection for each row along ``dim``; views."""
        size = self._batch_size
        dim = positive_dim(dim, len(size), size)
        rest = size[:dim] + size[dim + 1 :]
        names = None if self._names is None else [*self._names[:dim], *self._names[dim + 1 :]]
        return self._cut_entries(lambda value: value.unbind(dim), [rest] * size[dim], names, False)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Rows ``start`` to ``start + length`` along ``dim``, as a view.

        Raises:
            RuntimeError: the range exceeds the dimension.
        """
        dim, total = self._cuttable(dim)
        if start < 0:
            start += total
        if start < 0 or length < 0 or start + length > total:
            raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({total}).")
        return self._narrowed(dim, start, length)

    def _narrowed(self, dim: int, start: int, length: int) -> Self:
        (new,) = sizes_along(self._batch_size, dim, (length,))
        return self._reshaped(lambda value: value.narrow(dim, start, length), new, self._names)

    # -- choosing ---------------------------------------------------------------------------------------------------

    def gather(self, dim: int, index: Tensor, out: Any = None, *, inplace: bool = False) -> Self:
        """Rows gathered along ``dim``, like :func:`torch.gather`.

        Args:
            dim: batch dimension.
            index: int64, with the batch dimensions or only the first ones; then one row along ``dim`` is selected for
                all of the rest. Its shape is the batch size of the result.
            out: collection to write to.
            inplace: store the gathered rows in this collection and return it.

        Raises:
            RuntimeError: ``dim`` is not a batch dimension, the index has too many, or ``out`` has another batch size or
                would need gradients.
            NotImplementedError: ``inplace`` with an index that has fewer dimensions than the batch.
            ValueError: both ``out`` and ``inplace``.
        """
        check_gather_out(out, inplace)
        size = self._batch_size
        ndim = len(size)
        if not -ndim <= dim < ndim:
            raise RuntimeError(f"Cannot gather tensordict with shape {size} along dim {dim}.")
        dim = dim % ndim
        if index.ndim > ndim or not index.ndim:
            raise RuntimeError(
                f"gather: the index has {index.ndim} dimension(s), the batch size {list(size)} has {ndim}"
            )
        if inplace and index.ndim != ndim:
            raise NotImplementedError(
                f"gather(inplace=True) requires index.ndim == batch_dims, got {index.ndim} and {ndim}: the result has "
                "another number of batch dimensions"
            )

        def pick(value: Any) -> Any:
            tail = list(value.shape[index.ndim :])
            if dim >= index.ndim:
                tail[dim - index.ndim] = 1
            full = _align(index, value.ndim).expand(*index.shape, *tail)
            return torch.gather(value, dim, full) if isinstance(value, Tensor) else value.gather(dim, full)

        names = self._names if index.ndim == ndim else None
        new: Any = self._rebuild({k: pick(v) for k, v in self._source.items()}, index.shape, names)
        if out is not None:
            if torch.is_grad_enabled() and new.requires_grad:
                raise RuntimeError(
                    "gather(): functions with out=... arguments don't support automatic differentiation, but one of "
                    "the entries requires grad. Call it under torch.no_grad()."
                )
            check_out(out, new)
            out.update_(new)
            return out
        return self._inplace_or(inplace, new, "gather")

    def masked_select(self, mask: Tensor, *, inplace: bool = False) -> Self:
        """The rows where ``mask`` (over all or the first batch dimensions) is true, with one batch dimension.

        Args:
            mask: a bool tensor.
            inplace: store the rows in this collection and the nested ones, and return it.

        Example:
            >>> td = TensorDict({"a": torch.arange(3)}, [3])
            >>> td.masked_select(torch.tensor([True, False, True]))["a"]
            tensor([0, 2])
        """
        return self._inplace_or(inplace, self[mask], "masked_select")

    def _index_names(self, index: Any, result_dims: int) -> list[str | None] | None:
        return None if self._names is None else index_names(self._names, index, result_dims)

    # -- filling ----------------------------------------------------------------------------------------------------

    def masked_fill_(self, mask: Tensor, value: float | bool) -> Self:
        """Fill the rows where ``mask`` is true, in place. ``mask`` covers the leading batch dimensions."""
        for entry in self._source.values():
            if isinstance(entry, Tensor):
                entry.masked_fill_(_align(mask, entry.ndim), value)
            else:
                entry.masked_fill_(mask, value)
        return self

    def masked_fill(self, mask: Tensor, value: float | bool) -> Self:
        """A copy with the rows where ``mask`` is true filled."""

        def fill(entry: Any) -> Any:
            if isinstance(entry, Tensor):
                return entry.masked_fill(_align(mask, entry.ndim), value)
            return entry.masked_fill(mask, value)

        return self._rebuild({k: fill(v) for k, v in self._source.items()}, self._batch_size, self._names)

    def where(
        self,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        """Entries of this collection where ``condition`` is true, of ``other`` elsewhere.

        Args:
            condition: bool, over the leading batch dimensions.
            other: a scalar, a tensor, or a collection with the same keys.
            out: collection to write the result into.
            pad: value for keys that only one side has. By default these raise KeyError.
            update_batch_size: set the batch size of ``out`` to that of the result.
        """
        check_condition(condition, self._batch_size)
        mine = self._source
        if isinstance(other, Kernel):
            theirs = {key: other._get_str(key) for key in other._key_list()}
            odd = sorted(key for key in mine.keys() ^ theirs.keys() if _has_rows(mine.get(key, theirs.get(key))))
            if pad is None and odd:
                raise KeyError(
                    f"where: Key {odd[0]} not found and no pad value provided. {odd} are in one collection only: pass "
                    "pad= to fill them."
                )
        else:
            theirs = None

        fill: Any = pad  # a number, in the dtype of the entry

        def choose(key: str) -> Any:
            a = mine.get(key)
            b: Any = theirs.get(key) if theirs is not None else other
            if theirs is not None and (a is None or b is None) and not _has_rows(b if a is None else a):
                return b if a is None else a  # objects of only one side are kept: there is no padding for them
            if a is None:
                return _where(condition, torch.full_like(b, fill) if isinstance(b, Tensor) else b * 0 + fill, b, pad)
            if b is not None:
                return _where(condition, a, b, pad)
            new = _where(condition, a, fill, pad)
            return new if isinstance(new, Tensor) else new.unlock_()  # as the result that it is part of

        keys = list(mine) if theirs is None else [*mine, *[k for k in theirs if k not in mine]]
        result = self._rebuild({key: choose(key) for key in keys}, self._batch_size, self._names)
        if out is not None:
            if update_batch_size:
                out.batch_size = result._batch_size
            return out.update(result, inplace=True) if out._lock is None else out.update_(result)
        if self._lock is not None and theirs is None:
            result._propagate_lock(None)
        return result

    def pad(self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False) -> Self:
        """Batch dimensions padded: ``pad_size`` is ``(before_0, after_0, before_1, after_1, ...)``.

        Args:
            pad_size: a pair for each of the first batch dimensions; negative numbers remove rows.
            value: value of the new rows (``None`` in non-tensor data).
            inplace: pad this collection and the nested ones, and return it.

        Raises:
            RuntimeError: an odd number of pads, more than there are batch dimensions, a negative output size, or
                ``inplace`` on a locked collection.

        Example:
            >>> TensorDict({"a": torch.ones(2, 3)}, [2]).pad([0, 1])["a"].shape
            torch.Size([3, 3])
        """
        pairs = check_pad(self, pad_size)
        if inplace and self._lock is not None:
            raise self._locked_error()
        size = self._batch_size
        new = torch.Size([n + sum(pairs[d]) if d < len(pairs) else n for d, n in enumerate(size)])

        def grow(entry: Any) -> Any:
            if not isinstance(entry, Tensor):  # rows of non-tensor values are padded with None
                return entry.pad(pad_size) if entry._is_non_tensor else entry.pad(pad_size, value)
            # torch counts from the last dimension: zeros for the feature dimensions, then the pads in reverse.
            spec = [0, 0] * (entry.ndim - len(pairs))
            for before, after in reversed(pairs):
                spec += [before, after]
            return torch.nn.functional.pad(entry, spec, value=value)

        out = self._rebuild({k: grow(v) for k, v in self._source.items()}, new, self._names)
        return self._inplace_or(inplace, out, "pad")

    def to_padded_tensor(self, padding: float = 0.0, mask_key: Any = None) -> Self:
        """Nested (ragged) tensors as dense ones, padded with ``padding``.

        A batch dimension of unknown size, ``-1``, gets the size of the longest row.

        Args:
            padding: value of the padding.
            mask_key: name of a new bool entry, true for real elements: over the batch if that has a ragged dimension,
                else over the first nested tensor.
        """
        mask: list[Tensor] = []

        def dense(leaf: Tensor) -> Tensor:
            if not leaf.is_nested:
                return leaf
            if mask_key is not None and not mask:
                ones = torch.nested.nested_tensor([torch.ones_like(t, dtype=torch.bool) for t in leaf.unbind()])
                mask.append(torch.nested.to_padded_tensor(ones, False))
            return torch.nested.to_padded_tensor(leaf, padding)

        out = self._map_leaves(dense)
        _settle_sizes(out)
        if mask:
            ragged = -1 in self._batch_size
            out.set(mask_key, mask[0].flatten(out.ndim).any(-1) if ragged and mask[0].ndim > out.ndim else mask[0])
        return out


def _settle_sizes(node: Any) -> None:
    """Set dimensions of unknown size, ``-1``, of a padded tree to the size of its tensors."""
    if type(node._source) is not dict:
        return
    if -1 in node._batch_size:
        size = list(node._batch_size)
        for leaf in node._leaves():
            size = [max(n, m) for n, m in zip(size, leaf.shape)]
        node._batch_size = torch.Size(size)
    for sub in node._nested():
        _settle_sizes(sub)


def _has_rows(entry: Any) -> bool:
    return isinstance(entry, Tensor) or bool(not entry._is_non_tensor and entry._leaves())


def _where(condition: Tensor, a: Any, b: Any, pad: float | bool | None) -> Any:
    if not isinstance(a, Tensor):
        return a.where(condition, b, pad=pad)
    return torch.where(_align(condition, a.ndim), a, b)
