"""The iterator of `map_iter`: it knows how far it is, and can begin there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tdmap.plan import ChunkPlan
from tdmap.process_state import on_host
from tdmap.run.operation import hide_engine

Result = TypeVar("Result")

VERSION = 1

Begin = Callable[[int, "int | None", "int | None", ChunkPlan, Callable[[ChunkPlan], None]], Iterator[Any]]
"""Starts at a chunk, with the seed of the chunks' random streams, that of the order, how the rows are cut, and what to
call when that is settled."""


class _Rows:
    """How the rows of an iteration are cut, as far as it is known.

    Workers may hold what tells it: not the iterator, which ends them when its last reference goes.
    """

    def __init__(self, plan: ChunkPlan) -> None:
        self.plan = plan

    def settle(self, plan: ChunkPlan) -> None:
        self.plan = plan


@on_host
class MapIterator(Iterator[Result], Generic[Result]):
    """Yields the results of `map_iter` in order.

    You can save its position and load it into an iterator over the same rows, also in a later program. That iterator
    continues with the next chunk, in the same shuffled order and with the same random streams.

    Example:
        >>> import torch, tdmap
        >>> def rows():
        ...     return tdmap.map_iter(torch.arange(6), lambda x: x.tolist(), num_workers=1, chunksize=2, shuffle=True)
        >>> epoch = rows()
        >>> first, saved = next(epoch), epoch.state_dict()
        >>> rest = list(epoch)
        >>> later = rows()
        >>> later.load_state_dict(saved)
        >>> list(later) == rest
        True
    """

    def __init__(self, begin: Begin, plan: ChunkPlan, seed: int | None, order_seed: int | None) -> None:
        self._begin = begin
        self._given, self._rows = plan, _Rows(plan)
        self._position = 0
        self._seed = seed
        self._order_seed = order_seed
        self._stream = begin(0, seed, order_seed, plan, self._rows.settle)

    def __iter__(self) -> MapIterator[Result]:
        return self

    def __next__(self) -> Result:
        try:
            value: Result = next(self._stream)
        except (Exception, KeyboardInterrupt) as error:
            hide_engine(error)
            raise
        self._position += 1
        return value

    def close(self) -> None:
        """Stop the work and release the workers."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def state_dict(self) -> dict[str, Any]:
        """The position of the iterator: plain numbers, for JSON or `torch.save`."""
        plan = self._rows.plan
        return {
            "version": VERSION,
            "position": self._position,
            "seed": self._seed,
            "order_seed": self._order_seed,
            "rows": plan.length,
            "chunk_rows": None if plan.is_open else plan.size,
            "first_chunk_rows": plan.lead,
            "dim": plan.dim,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position of `state`, with its seeds. The position of this iterator is discarded.

        Args:
            state: a `state_dict` of an iterator over the same number of rows with the same chunk size. A default chunk
                size is taken from `state`.

        Raises:
            ValueError: `state` is invalid, or of another number of rows, chunk size or shuffling; names the difference.
                The iterator does not change.
        """
        own, state = self.state_dict(), {"first_chunk_rows": 0, **state}
        missing = [key for key in own if key not in state]
        if missing:
            raise ValueError(f"this is not a state of map_iter: it lacks {', '.join(missing)}.")
        plan, size = self._given, state["chunk_rows"]
        if plan.is_open and size is not None:
            plan = plan.settled(size)
        own["chunk_rows"] = size if self._given.is_open else own["chunk_rows"]
        keys = ("version", "rows", "chunk_rows", "first_chunk_rows", "dim")
        differing = [key for key in keys if state[key] != own[key]]
        wrong = [f"{key} was {state[key]} and is {own[key]}" for key in differing]
        if (state["order_seed"] is None) is not (self._order_seed is None):
            wrong.append(f"shuffle was {state['order_seed'] is not None} and is {self._order_seed is not None}")
        if not wrong and not 0 <= state["position"] <= plan.num_known:
            wrong.append(f"position {state['position']} is not one of {plan.num_known} chunks")
        if wrong:
            raise ValueError(f"the state is of another iteration: {'; '.join(wrong)}.")
        self.close()
        self._rows = _Rows(plan)
        self._position, self._seed, self._order_seed = state["position"], state["seed"], state["order_seed"]
        self._stream = self._begin(self._position, self._seed, self._order_seed, plan, self._rows.settle)
