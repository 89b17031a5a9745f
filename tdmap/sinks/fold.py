"""Results are states of a reduction; they merge in a fixed tree as they arrive."""

from __future__ import annotations

import functools
from typing import Any

from tdmap.data.writer import RowWriter
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import MergeTree, Node, Reducer, merged, nodes
from tdmap.sinks.base import Allocate, Kind, PlainSink


class Fold(PlainSink):
    """Merges states by the tree over the chunk numbers: the same neighbours whatever the workers and their order.

    The function of the job has `merge_states`, by which workers begin: what comes are states of nodes of the tree.

    A handful of states wait for a neighbour at any time, one a level of the tree and worker in the usual order.
    """

    writer: RowWriter | None = None

    def __init__(self, reducer: Reducer[Any], restored: list[Node] | None = None) -> None:
        self.reducer = reducer
        self.restored = restored or []
        self._tree: MergeTree | None = None

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._tree = MergeTree(plan.num_chunks, functools.partial(merged, self.reducer))
        for start, stop, state in self.restored:
            self._tree.add(start, stop, state)

    def nodes(self) -> list[Node]:
        """The states that wait, with their chunks: all that is known so far."""
        return self.restored if self._tree is None else self._tree.nodes()

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        assert self._tree is not None
        if kind is Kind.PARCEL:  # merged by the worker, as far as its chunks are neighbours in the tree
            for (first, end), state in zip(nodes(start, stop, self._tree.num_chunks), values, strict=True):
                self._tree.add(first, end, state)
        else:
            for chunk in range(start, stop):
                self._tree.add(chunk, chunk + 1, None)

    def result(self) -> Any:
        """The merged state."""
        assert self._tree is not None
        return self._tree.result()
