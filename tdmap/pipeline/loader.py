"""Iterating a pipeline: elements one by one, on a device if wanted, with a position that can be saved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tdmap.operation import hide_engine
from tdmap.pipeline.planning import ENDLESS, Plan, with_chunks
from tdmap.pipeline.rounds import Context, chunk_sizes
from tdmap.pipeline.stages import STAGES
from tdmap.pipeline.streams import State, Stream, open_stream
from tdmap.prefetch import prefetch_over
from tdmap.runtime.device import open_link
from tdmap.runtime.resources import one_thread

VERSION = 2


class PipelineIterator(Iterator[Any]):
    """Yields rows, or batches after `.batch`, in order.

    `state_dict()` says where it is, at any element; `load_state_dict()` of an iterator of an equal pipeline, in a
    later program too, goes on there with the same bits.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
        >>> batches = data.pipeline().shuffle(seed=1).batch(2)
        >>> epoch = batches.iter(num_workers=0)
        >>> first, saved = next(epoch), epoch.state_dict()
        >>> rest = [batch["x"].tolist() for batch in epoch]
        >>> later = batches.iter(num_workers=0)
        >>> later.load_state_dict(saved)
        >>> [batch["x"].tolist() for batch in later] == rest
        True
    """

    def __init__(
        self,
        plan: Plan,
        context: Context,
        description: str,
        device: torch.device | None = None,
        prefetch: int = 0,
        every: tuple[int, int] = (0, 1),
        elements: int | None = None,
    ) -> None:
        self._left = elements
        self._all = elements
        # Positions are numbers of chunks, so what a chunk is goes with them.
        self._chunks = chunk_sizes(plan, context)
        self._plan = with_chunks(plan, iter(self._chunks))
        self._context = context.keeping()
        self._description = description
        self._device = device
        self._prefetch = prefetch
        self._every = every
        self._begin(None)

    def _begin(self, state: State | None) -> None:
        link = None if self._device is None else open_link(self._device)
        self._stream = open_stream(self._plan, self._context.over(link))
        self._elements: Iterator[Any]
        if self._plan.batched:
            elements = _Batches(self._stream, self._every)
        else:
            elements = _Rows(self._stream, self._every)
        if state is not None:
            elements.load(state)
        self._state: Callable[[], State] = elements.state
        self._elements = elements
        if link is not None:
            # Elements are asked for ahead of their turn, so each one carries its own place; unless that is costly.
            depth = self._prefetch if self._stream.positional else 0
            places = self._stream.positional
            self._elements = prefetch_over(link, _placed(elements, places), depth)
            if places:
                self._first = self._state()
                self._state = lambda: self._first

    def __iter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Any:
        execution = self._context.execution
        alone = execution is None or execution.executor == "serial"
        try:
            with contextlib.nullcontext() if alone else one_thread():
                element = next(self._elements)
        except Exception as error:
            hide_engine(error)
            raise
        if self._left is not None:
            self._left -= 1
        if self._device is None:
            return element
        value, place = element
        if place.state is not None:
            self._state = lambda: place.state
        return value

    def __len__(self) -> int:
        """Elements that are left, where that is known."""
        if self._left is None or self._left >= ENDLESS // 2:
            raise TypeError("how many elements are left is not known before they are yielded: use pipeline.count().")
        return max(self._left, 0)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name in STAGES:
            raise AttributeError(f".iter() ends a pipeline: write .{name}(...) before it, on the pipeline.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Stop the work; the workers are free again."""
        close = getattr(self._elements, "close", None)
        if close is not None:
            close()
        self._stream.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the iterator is: plain numbers, and with `.shuffle(buffer=n)` the rows of the buffer."""
        return {
            "version": VERSION,
            "pipeline": self._description,
            "seed": self._context.seed,
            "epoch": self._context.epoch,
            "every": list(self._every),
            "share": list(self._context.share),
            "chunks": list(self._chunks),
            "yielded": 0 if self._all is None or self._left is None else self._all - self._left,
            "position": self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with its seed, epoch and chunks, whatever this iterator has yielded so far.

        Args:
            state: what `state_dict` gave, of an iterator of a pipeline with the same stages over as many rows.

        Raises:
            ValueError: it is of another pipeline, or no state at all; the iterator stays as it was.
        """
        own, state = self.state_dict(), {"yielded": 0, **state}
        if state.get("version", VERSION) != VERSION:
            raise ValueError(f"the state has version {state['version']}, and this library reads {VERSION}.")
        missing = [key for key in own if key not in state]
        if missing:
            raise ValueError(f"this is not a state of a pipeline: it lacks {', '.join(missing)}.")
        if state["pipeline"] != own["pipeline"]:
            raise ValueError(
                f"the state is of another pipeline:\n  it was  {state['pipeline']}\n  this is {own['pipeline']}"
            )
        if list(state["share"]) != own["share"] or list(state["every"]) != own["every"]:
            raise ValueError("the state is of another worker of a DataLoader, or of another number of them.")
        chunks = [int(size) for size in state["chunks"]]
        if len(chunks) != len(self._chunks):
            raise ValueError(
                f"the state is of {len(chunks)} sources of rows, and this pipeline has {len(self._chunks)}."
            )
        self.close()
        self._chunks, self._plan = chunks, with_chunks(self._plan, iter(chunks))
        self._context = self._context.starting(state["seed"], state["epoch"])
        self._left = None if self._all is None else self._all - int(state.get("yielded", 0))
        self._begin(state["position"])


class _Carried:
    """Any object that the copies to a device pass on as it is."""

    def __init__(self, state: State | None) -> None:
        self.state = state


def _placed(elements: Any, places: bool) -> Iterator[Any]:
    try:
        for value in elements:
            yield [value, _Carried(elements.state() if places else None)]
    finally:
        elements.close()


class _Batches(Iterator[Any]):
    """Batches of a stream, or every so manieth of them."""

    def __init__(self, stream: Stream, every: tuple[int, int]) -> None:
        self._stream = stream
        self._index, self._count = every
        self._number = 0

    def __next__(self) -> Any:
        while True:
            piece = self._stream.next()
            self._number += 1
            if (self._number - 1) % self._count == self._index:
                return piece

    def state(self) -> State:
        return {"number": self._number, "stream": self._stream.state()}

    def load(self, state: State) -> None:
        self._number = state["number"]
        self._stream.load(state["stream"])

    def close(self) -> None:
        self._stream.close()


class _Rows(_Batches):
    """Rows of a stream, without their dimension."""

    def __init__(self, stream: Stream, every: tuple[int, int]) -> None:
        super().__init__(stream, every)
        self._rows: list[Any] = []
        self._used = 0
        self._before: State = stream.state() if stream.positional else {}

    def __next__(self) -> Any:
        while True:
            while self._used >= len(self._rows):
                if self._stream.positional:
                    self._before = self._stream.state()
                skipped = self._used - len(self._rows) if not self._rows else 0
                self._rows = list(self._stream.next().unbind(0))
                self._used = skipped
            row = self._rows[self._used]
            self._used += 1
            self._number += 1
            if (self._number - 1) % self._count == self._index:
                return row

    def state(self) -> State:
        if self._stream.positional:
            return {"number": self._number, "used": self._used, "stream": self._before}
        rows = [row.clone() for row in self._rows[self._used :]]
        return {"number": self._number, "rows": rows, "stream": self._stream.state()}

    def load(self, state: State) -> None:
        super().load(state)
        self._before = state["stream"]
        self._rows = list(state.get("rows", ()))
        self._used = state.get("used", 0)
