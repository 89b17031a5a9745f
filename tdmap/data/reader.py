"""Rows of a dataset, as chunks: views wherever that can be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from tdmap.data.entries import with_room, with_types
from tdmap.data.kinds import (
    Ahead,
    Data,
    Picks,
    Rows,
    has_members,
    is_dense,
    stored_entry,
    tensors_of,
    with_tensors,
)
from tdmap.data.sizes import row_bytes_of
from tdmap.memory.mapped import copies_on_write
from tdmap.plan import ChunkPlan
from tensordict_lite import TensorDict
from tensordict_lite.base import TensorCollection
from tensordict_lite.objects.column import ObjectRows
from tensordict_lite.ragged import ragged_in
from tensordict_lite.views import is_leaf_nontensor

BLOCK = 256
"""Chunks whose views are made in one call."""


class Reader:
    """Rows of a dataset as the chunks of a plan.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        order: int64 permutation of the rows, or None for their own order.
        base: the row of the plan that is the first of `data`: a worker may have only some of the rows.
        private: what is written into a chunk must not reach the files, or the shared memory, of `data`. What is
            written into ragged numbers never does.

    Attributes:
        exposed: the tensors of `data` that are changed all the same by who writes into a chunk.
    """

    def __init__(
        self, data: Data, plan: ChunkPlan, order: Tensor | None = None, base: int = 0, private: bool = False
    ) -> None:
        self.base = base
        self._given = self.data = private_ragged(plain_tensors(data))
        self.private = private
        self.exposed = tensors_of(self.data)
        self.plan = plan
        self.order = order
        self.rows = rows_of(self.data, plan.dim)
        if private:
            self.renew()
        self.follow: Ahead | None = None
        """With rows that are fetched: which rows come after those that were read last, to fetch them ahead."""

    def renew(self) -> None:
        """Map private data anew. Pages that were written to are memory of this process, as long as they are mapped."""
        self.data, self.exposed = rows_of(self._given).private()
        self.rows = rows_of(self.data, self.plan.dim)

    def read(self, start: int, stop: int) -> Iterator[Data]:
        """The chunks `start..stop`; views of the dataset unless there is an order."""
        plan, base = self.plan, self.base
        for begin, end, size in plan.runs(start, stop, BLOCK):
            if self.order is not None:
                yield from self._gather(begin, end, size)
            else:
                ahead = None if self.follow is None else self._ahead
                yield from self.rows.chunks(begin - base, end - base, 0 if plan.unbind else size, ahead)

    def _ahead(self, first: int, last: int) -> tuple[int, int] | None:
        assert self.follow is not None
        found = self.follow(first + self.base, last + self.base)
        return None if found is None else (found[0] - self.base, found[1] - self.base)

    @property
    def gives_views(self) -> bool:
        """Whether chunks are views of the dataset, and not rows that were read or gathered for them."""
        return self.order is None and self.rows.is_view

    @property
    def fetches(self) -> bool:
        """Whether rows come from a store, so that it pays to say which come next."""
        return self.rows.is_remote

    def in_order(self, first: int, last: int) -> tuple[int, int] | None:
        """A `follow` for a reader of all rows, one after another."""
        end = int(self.data.shape[0])
        return (last, min(2 * last - first, end)) if last < end else None

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan

    def _gather(self, begin: int, end: int, size: int) -> Iterator[Data]:
        plan, order, before = self.plan, self.order, (slice(None),) * self.plan.dim
        assert order is not None
        chunks = (order[first : first + size] for first in range(begin, end, size))
        parts = (self.data[(*before, rows[0].item() if plan.unbind else rows)] for rows in chunks)
        yield from _own_trees(parts, self.data)


def plain_tensors(data: Data) -> Data:
    """`data`, unlocked, with memory-mapped tensors as plain views of the same memory, whose slices are cheaper."""
    if isinstance(data, Tensor):
        return data.as_subclass(Tensor) if type(data) is not Tensor else data
    if isinstance(data, ObjectRows):
        return data._without_file()
    if not is_dense(data):
        return data
    source = {key: plain_tensors(value) for key, value in data._source.items()}
    return data._rebuild(source, data._batch_size, data._names)


class InMemory(Rows):
    """A tensor or a collection.

    Args:
        data: the dataset.
        dim: the dimension of its rows.
    """

    __slots__ = ("data", "dim")

    is_view = is_mapped = True

    def __init__(self, data: Data, dim: int = 0) -> None:
        self.data = data
        self.dim = dim

    @property
    def selects(self) -> bool:
        return is_dense(self.data)  # a column of a lazy stack is a copy

    @property
    def in_memory(self) -> Sequence[Data]:
        return (self.data,)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.data.shape)

    @property
    def row_bytes(self) -> int:
        return row_bytes_of(self.data, self.data.shape[self.dim])

    @property
    def like(self) -> Data:
        return self.data

    def sample(self) -> Data:
        return self.data

    outline = load = sample

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        if not size:
            return iter(_own_trees(narrow(self.data, self.dim, first, last).unbind(self.dim), self.data))
        return iter(cut(self.data, self.dim, first, last, size))

    def take(self, index: Picks) -> Data:
        if isinstance(index, range):
            return narrow(self.data, self.dim, index.start, index.stop).clone()
        return self.data[(slice(None),) * self.dim + (index,)]

    def window(self, first: int, last: int) -> Data:
        return narrow(self.data, self.dim, first, last)

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> Rows:
        return InMemory(keep(self.data), self.dim)

    def select(self, *keys: str | tuple[str, ...]) -> Data:
        found = TensorDict({}, self.data.shape[:1])
        for key in keys:
            entry = stored_entry(self.data, key)
            found.set(key, self.data.get(key) if entry is None else entry)  # get() raises, and lists the entries
        return with_types(found, self.data)

    def with_columns(self, columns: TensorCollection) -> Data:
        wider = with_room(self.data)
        for name, column in columns.items():
            wider.set(name, column)
        return wider

    def private(self) -> tuple[Data, list[Tensor]]:
        data = self.data
        leaves = tensors_of(data)
        own = copies_on_write(leaves)
        exposed = [leaf for leaf, copied in zip(leaves, own) if copied is None and leaf.numel()]
        if len(exposed) == len(leaves):
            return data, exposed
        return with_tensors(data, [leaf if copied is None else copied for leaf, copied in zip(leaves, own)]), exposed

    def identities(self) -> Iterator[tuple[str, Any]]:
        yield "", self.data

    def _leaves(self) -> list[Tensor]:
        return tensors_of(self.data)


def private_ragged(data: Data) -> Data:
    """The dataset with memory of its own for what functions write into ragged numbers, which no undo covers."""
    if isinstance(data, (Tensor, Rows)) or not (found := ragged_in(data)):
        return data
    own = copies_on_write([entry._ragged().values for entry in found])
    if all(values is None for values in own):
        return data
    view = with_tensors(data, tensors_of(data))
    for entry, values in zip(ragged_in(view), own, strict=True):
        if values is not None:
            entry._ragged().values = values
    return view


def rows_of(data: Data, dim: int = 0) -> Rows:
    """A dataset as the engine reads it, with rows along `dim`."""
    return data if isinstance(data, Rows) else InMemory(data, dim)


def require_entry(data: Data, name: str | tuple[str, ...], what: str, of: object = None) -> None:
    """Raise KeyError that names the entries there are, unless `name` is one; TypeError for a tensor, which has none.

    The message begins with `what`, and the `repr` of `of`: that of a formula with a list may be long, or fail.
    """
    if not isinstance(data, Tensor):
        data = rows_of(data).like  # no column is read for its name
        if name in data.keys(include_nested=True):
            return
    if of is not None:
        what = f"{what} {of!r}"
    if isinstance(data, Tensor):
        raise TypeError(f"{what} is {name!r}, and a plain tensor has no entries: use TensorDict({{{name!r}: tensor}}).")
    keys = list(data.keys(True, True, is_leaf=is_leaf_nontensor))
    there = ", ".join(repr(key) for key in sorted(keys, key=str)) or "none"
    close = difflib.get_close_matches(str(name), [str(key) for key in keys], 1)
    hint = f" Did you mean {next(key for key in keys if str(key) == close[0])!r}?" if close else ""
    if isinstance(name, tuple) and all(data.get(part, None) is not None for part in name):
        hint = f" A tuple is one nested entry; for several keys pass the list {list(name)!r}."
    raise KeyError(f"{what} is {name!r}, which is not an entry of the data. Entries: {there}.{hint}")


def select(data: Data, names: Sequence[str | tuple[str, ...]] | None) -> Data:
    """The entries that are wanted, in a collection of their own; None for the data as they are."""
    return data if names is None else rows_of(data).select(*names)


def narrow(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` of `data` along `dim`, as a view."""
    if isinstance(data, Tensor):
        return data.narrow(dim, begin, end - begin)
    return data[(slice(None),) * dim + (slice(begin, end),)]


def cut(data: Data, dim: int, begin: int, end: int, size: int) -> Sequence[Data]:
    """Rows `begin..end` along `dim` as pieces of `size` rows, the last one perhaps shorter."""
    if isinstance(data, Tensor):
        part = data.narrow(dim, begin, end - begin)
        return part.split(size, dim) if end - begin > size else (part,)
    if not is_dense(data):
        return tuple(_own_trees(narrow(data, dim, begin, end).split(size, dim), data))
    keys = tuple(data._source)
    columns = [cut(value, dim, begin, end, size) for value in data._source.values()]
    count = -(-(end - begin) // size)
    shape = data._batch_size
    full = torch.Size((*shape[:dim], size, *shape[dim + 1 :]))
    rest = torch.Size((*shape[:dim], end - begin - (count - 1) * size, *shape[dim + 1 :]))
    names, rebuild = data._names, data._rebuild
    rows = zip(*columns) if columns else repeat((), count)
    return [rebuild(dict(zip(keys, row)), full if n < count else rest, names) for n, row in enumerate(rows, 1)]


def _own_trees(parts: Iterable[Data], data: Data) -> Iterable[Data]:
    """Parts of some data that take new entries; members of lazy stacks, which are the caller's, are copied for them."""
    return (part.clone(False) for part in parts) if _has_stacks(data) else parts


def _has_stacks(data: Data) -> bool:
    return any(map(_has_stacks, data._source.values())) if is_dense(data) else has_members(data)
