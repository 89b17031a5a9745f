"""Rows of a dataset, as chunks: views wherever that can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data, is_dense
from tdmap.plan import ChunkPlan

BLOCK = 256
"""Chunks whose views are made in one call."""


class Reader:
    """Rows of a dataset as the chunks of a plan.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        order: int64 permutation of the rows, or None for their own order.
        base: the row of the plan that is the first of `data`: a worker may have only some of the rows.
    """

    def __init__(self, data: Data, plan: ChunkPlan, order: Tensor | None = None, base: int = 0) -> None:
        self.base = base
        self.data = plain_tensors(data)
        self.plan = plan
        self.order = order

    def read(self, start: int, stop: int) -> Iterator[Data]:
        """The chunks `start..stop`; views of the dataset unless there is an order."""
        plan, base = self.plan, self.base
        for begin, end, size in plan.runs(start, stop, BLOCK):
            if self.order is not None:
                yield from self._gather(begin, end, size)
            elif plan.unbind:
                yield from narrow(self.data, plan.dim, begin - base, end - base).unbind(plan.dim)
            else:
                yield from cut(self.data, plan.dim, begin - base, end - base, size)

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan

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


def narrow(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` of `data` along `dim`, as a view."""
    if isinstance(data, Tensor):
        return data.narrow(dim, begin, end - begin)
    return data[(slice(None),) * dim + (slice(begin, end),)]


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
