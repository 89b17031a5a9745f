"""Rows of a dataset, as chunks: views wherever that can be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data, is_data, is_dense, is_opened_by_row, is_remote, tensors_of, with_tensors
from tdmap.memory.mapped import copies_on_write
from tdmap.plan import ChunkPlan

BLOCK = 256
"""Chunks whose views are made in one call."""

FETCHED_BYTES = 64 << 20
"""Bytes of rows that are fetched from a store in one go, unless a chunk has more."""


class Reader:
    """Rows of a dataset as the chunks of a plan.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        order: int64 permutation of the rows, or None for their own order.
        base: the row of the plan that is the first of `data`: a worker may have only some of the rows.
        private: what is written into a chunk must not reach the files, or the shared memory, of `data`.

    Attributes:
        exposed: the tensors of `data` that are changed all the same by who writes into a chunk.
    """

    def __init__(
        self, data: Data, plan: ChunkPlan, order: Tensor | None = None, base: int = 0, private: bool = False
    ) -> None:
        self.base = base
        self._given = self.data = plain_tensors(data)
        self.private = private
        self.exposed = tensors_of(self.data)
        if private:
            self.renew()
        self.plan = plan
        self.order = order
        self._by_row = is_opened_by_row(self.data)
        self.follow: Callable[[int, int], tuple[int, int] | None] | None = None
        """With rows that are fetched: which rows come after those that were read last, to fetch them ahead."""

    def renew(self) -> None:
        """Map private data anew. Pages that were written to are memory of this process, as long as they are mapped."""
        self.data, self.exposed = private_view(self._given)

    def read(self, start: int, stop: int) -> Iterator[Data]:
        """The chunks `start..stop`; views of the dataset unless there is an order."""
        plan, base = self.plan, self.base
        for begin, end, size in plan.runs(start, stop, BLOCK):
            if self.order is not None:
                yield from self._gather(begin, end, size)
            elif self._by_row:
                chunks = self._windows if self.data.is_lazy else self._opened
                yield from chunks(begin - base, end - base, size)
            elif plan.unbind:
                yield from narrow(self.data, plan.dim, begin - base, end - base).unbind(plan.dim)
            else:
                yield from cut(self.data, plan.dim, begin - base, end - base, size)

    @property
    def gives_views(self) -> bool:
        """Whether chunks are views of the dataset, and not rows that were read or gathered for them."""
        return self.order is None and not self._by_row

    @property
    def fetches(self) -> bool:
        """Whether rows come from a store, so that it pays to say which come next."""
        return is_remote(self.data)

    def in_order(self, first: int, last: int) -> tuple[int, int] | None:
        """A `follow` for a reader of all rows, one after another."""
        end = int(self.data.shape[0])
        return (last, min(2 * last - first, end)) if last < end else None

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan

    def _opened(self, begin: int, end: int, size: int) -> Iterator[Data]:
        """Chunks of a dataset of several folders, opened a folder at a time."""
        runs = list(self.data.aligned(begin, end, size))
        if self.data.is_remote:  # rows that are fetched are in memory, all of a run at once
            step = max(FETCHED_BYTES // max(self.data.row_bytes * size, 1), 1) * size
            runs = [(at, min(at + step, last)) for first, last in runs for at in range(first, last, step)]
        for number, (first, last) in enumerate(runs, 1):
            rows = self.data[first:last]
            if self.follow is not None:
                ahead = runs[number] if number < len(runs) else self.follow(first + self.base, last + self.base)
                if ahead is not None:
                    self.data.prefetch(*ahead)
            if self.plan.unbind:
                yield from rows.unbind(0)
            else:
                yield from cut(rows, 0, 0, last - first, size)

    def _windows(self, begin: int, end: int, size: int) -> Iterator[Data]:
        """Chunks that are names of rows, which know how to fetch those of the next one."""
        for first in range(begin, end, size):
            last = min(first + size, end)
            rows = self.data[first:last]
            ahead = None
            if self.follow is not None:
                ahead = (
                    (last, min(last + size, end)) if last < end else self.follow(first + self.base, last + self.base)
                )
            if ahead is not None:
                rows.fetch_next = functools.partial(self.data.prefetch, *ahead)
            yield rows

    def _gather(self, begin: int, end: int, size: int) -> Iterator[Data]:
        plan = self.plan
        assert self.order is not None
        for first in range(begin, end, size):
            rows = self.order[first : min(first + size, end)]
            index: Any = rows[0].item() if plan.unbind else rows
            yield self.data[(slice(None),) * plan.dim + (index,)]


def plain_tensors(data: Data) -> Data:
    """`data` with memory-mapped tensors as plain views of the same memory: their slices are cheaper to make."""
    if isinstance(data, Tensor):
        return data.as_subclass(Tensor) if type(data) is not Tensor else data
    if not is_dense(data):
        return data
    source = {key: plain_tensors(value) for key, value in data._source.items()}
    new = data._rebuild(source, data._batch_size, data._names)
    if data._lock is not None:
        new.lock_()
    return new


def private_view(data: Data) -> tuple[Data, list[Tensor]]:
    """`data` over private mappings of its files, and those of its tensors that lie elsewhere and are as they were."""
    if is_opened_by_row(data):
        if data.is_remote:
            return data, []
        rebuild, parts = data.__reduce__()  # with mappings of its own, as in another process
        return rebuild(*parts), []
    if not is_data(data):  # rows that are put together when they are read
        return data, []
    leaves = tensors_of(data)
    own = copies_on_write(leaves)
    exposed = [leaf for leaf, copied in zip(leaves, own) if copied is None and leaf.numel()]
    if len(exposed) == len(leaves):
        return data, exposed
    view = with_tensors(data, [leaf if copied is None else copied for leaf, copied in zip(leaves, own)])
    if not isinstance(view, Tensor) and data.is_locked:
        view.lock_()
    return view, exposed


def narrow(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` of `data` along `dim`, as a view."""
    if isinstance(data, Tensor):
        return data.narrow(dim, begin, end - begin)
    return data[(slice(None),) * dim + (slice(begin, end),)]


def window(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` as a dataset of their own: a view, or a part of several folders of which nothing is read."""
    return data.window(begin, end) if is_opened_by_row(data) else narrow(data, dim, begin, end)


def cut(data: Data, dim: int, begin: int, end: int, size: int) -> Sequence[Data]:
    """Rows `begin..end` along `dim` as pieces of `size` rows, the last one perhaps shorter."""
    if isinstance(data, Tensor):
        pieces: Sequence[Data] = data.narrow(dim, begin, end - begin).split(size, dim)
        return pieces
    if not is_dense(data):
        return tuple(narrow(data, dim, begin, end).split(size, dim))
    keys = tuple(data._source)
    columns = [cut(value, dim, begin, end, size) for value in data._source.values()]
    count = -(-(end - begin) // size)
    shape = data._batch_size
    full = torch.Size((*shape[:dim], size, *shape[dim + 1 :]))
    rest = torch.Size((*shape[:dim], end - begin - (count - 1) * size, *shape[dim + 1 :]))
    names, locked = data._names, data._lock is not None
    nested = any(not isinstance(value, Tensor) for value in data._source.values())
    rows = zip(*columns) if columns else repeat((), count)
    out = []
    rebuild = data._rebuild
    for number, row in enumerate(rows, 1):
        chunk = rebuild(dict(zip(keys, row)), full if number < count else rest, names)
        if locked:
            if nested:
                chunk.lock_()
            else:
                chunk._lock = []
        out.append(chunk)
    return out
