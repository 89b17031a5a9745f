"""Results that are values, and no rows of an output: kept in order, merged, or handed to a consumer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tdmap.job import Job
from tdmap.memory.links import PageLocker
from tdmap.memory.rowfiles import RowFiles
from tdmap.memory.spill import Spill
from tdmap.plan import ChunkPlan
from tdmap.reducers.base import MergeTree, Node, Reducer, merged, nodes
from tdmap.sink import Allocate, Demands, Kind, Sink

S = TypeVar("S")


class Collect(Sink[list[Any]]):
    """Keeps one value a chunk: counts, extents, errors. Its result is their list, None where there is none.

    Attributes:
        restored: the values of chunks that an earlier session has done, by their number.
    """

    def __init__(self) -> None:
        self._values: list[Any] = []
        self.restored: dict[int, Any] = {}

    def open(self, plan: ChunkPlan, allocate: Allocate) -> None:
        self._values = [None] * plan.num_known
        for chunk, value in self.restored.items():
            self._values[chunk] = value

    def replan(self, plan: ChunkPlan) -> None:
        self._values += [None] * (plan.num_chunks - len(self._values))

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        if kind is Kind.PARCEL:
            self._values[start:stop] = values

    def lasts(self, job: Job) -> bool:
        where = getattr(job.fn, "places", None) or getattr(job.fn, "spill", None)
        return isinstance(where, (RowFiles, Spill)) and where.lasts

    def restore(self, values: dict[int, Any], is_there: Callable[[str, int], bool]) -> None:
        """Take over the values of chunks that an earlier session has done; those that refer to lost files run again.

        Args:
            values: by chunk.
            is_there: whether an intermediate file of that name has so many bytes.
        """
        for chunk, value in values.items():
            extents = getattr(value, "extents", ())
            if all(is_there(extent.file, extent.offset + extent.nbytes) for extent in extents):
                self.restored[chunk] = value

    def of(self, start: int, stop: int) -> tuple[Any, ...]:
        """What is known of the chunks `start..stop`."""
        return tuple(self._values[start:stop])

    def result(self) -> list[Any]:
        return self._values


class Fold(Sink[S]):
    """Merges the states of a reduction by the tree over the chunk numbers, as they arrive: the same neighbours whatever
    the workers and their order.

    The function of the job has `merge_states`, by which workers begin: what comes are states of nodes of the tree.

    A handful of states wait for a neighbour at any time, one a level of the tree and worker in the usual order.
    """

    def __init__(self, reducer: Reducer[S]) -> None:
        self.reducer = reducer
        self.restored: list[Node] = []
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

    def lasts(self, job: Job) -> bool:
        return True

    def result(self) -> S:
        """The merged state."""
        assert self._tree is not None
        state: S = self._tree.result()
        return state


class Stream(Sink[None]):
    """Hands results to a consumer in the order of their chunks. Keeps the few that are ahead of their turn.

    Args:
        ahead: chunks that may be under way or done before they are wanted; None leaves it to the engine.
        link: what page-locks the slots of results that go on to a device.
    """

    def __init__(self, ahead: int | None = None, link: PageLocker | None = None) -> None:
        self.ahead = ahead
        self.link = link
        self._waiting: dict[int, Any] = {}

    def demands(self, plan: ChunkPlan) -> Demands:
        return Demands(ordered=self, ahead=self.ahead, locker=self.link)

    def accept(self, start: int, stop: int, kind: Kind, values: tuple[Any, ...]) -> None:
        self._waiting.update(zip(range(start, stop), values or (None,) * (stop - start)))

    def take(self, chunk: int) -> Any:
        """The result of `chunk`, which is not kept any longer."""
        return self._waiting.pop(chunk)

    def result(self) -> None:
        return None
