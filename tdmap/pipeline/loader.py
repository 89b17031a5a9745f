"""Iterating a pipeline: elements one by one, on a device if wanted, with a position that can be saved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from tdmap.memory.links import open_link
from tdmap.ops.iteration.prefetch import prefetch_over
from tdmap.pipeline.epochs import RunSettings, chunk_sizes
from tdmap.pipeline.iterators import ElementIterator, State, open_iterator
from tdmap.pipeline.planning import Plan, with_chunks
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import ENDLESS, STAGES
from tdmap.pipeline.torchloader import divided
from tdmap.process_state import on_host, one_thread
from tdmap.run.operation import hide_engine

VERSION = 4

NO_SHARE = Share()


@on_host
class PipelineIterator(Iterator[Any]):
    """Yields rows, or batches after `.batch`, in order.

    `state_dict()` holds its position, at any element. `load_state_dict()` of an iterator of an equal pipeline, also in
    a later program, resumes at this position with the same bits. After an exception or Ctrl-C, the iterator keeps its
    position: the next call retries the same element. With `.shuffle(buffer=n)` the next call raises.

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
        settings: RunSettings,
        description: str,
        device: torch.device | None = None,
        prefetch: int = 0,
        share: Share = NO_SHARE,
        elements: int | None = None,
    ) -> None:
        self.at_first: Callable[[], None] | None = None
        """Called before the first element, unless a position is loaded before."""
        self._used = 0
        self._all = elements
        self._share = share
        chunks, self._every = divided(plan, share)
        # Positions are numbers of chunks, so what a chunk is goes with them.
        self._chunks = chunk_sizes(plan, settings)
        self._plan = with_chunks(plan, iter(self._chunks))
        self._settings = replace(settings, share=chunks, shared={})
        self._description = description
        self._device = device
        self._prefetch = prefetch
        self._begin(None)

    def _begin(self, state: State | None) -> None:
        link = None if self._device is None else open_link(self._device)
        pieces = open_iterator(self._plan, replace(self._settings, link=link))
        elements = ElementIterator(pieces, self._plan.batched, self._every)
        if state is not None:
            elements.load(state)
        self._positional = elements.positional
        self._state: Callable[[], State] = elements.state
        self._last_state = elements.state
        self._close = elements.close
        self._elements: Iterator[Any] = elements
        self._is_closed = False
        if link is not None:
            # Elements are asked for ahead of their turn, so each one carries its own place; unless that is costly.
            depth = self._prefetch if self._positional else 0
            places = self._positional
            self._elements = prefetch_over(link, _placed(elements, places), depth)
            if places:
                self._first = self._state()
                self._state = lambda: self._first

    def __iter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        if self.at_first is not None:
            first, self.at_first = self.at_first, None
            first()
        execution = self._settings.execution
        alone = execution is None or execution.executor == "serial"
        before = self._state() if self._positional else None
        try:
            with contextlib.nullcontext() if alone else one_thread():
                element = next(self._elements)
        except StopIteration:
            # A last round that has no element for this rank is used up too.
            self._state, self._used = self._last_state, max(self._used, self._all or 0)
            raise
        except BaseException as error:
            self._go_back(before)
            if isinstance(error, (Exception, KeyboardInterrupt)):
                hide_engine(error)
            raise
        self._used += self._share.step
        if self._device is None:
            return element
        value, place = element
        if place.state is not None:
            self._state = lambda: place.state
        return value

    def _go_back(self, state: State | None) -> None:
        """Be where the iterator was: what was on its way from stage to stage when an exception came is lost."""
        self.close()
        if state is not None:
            self._begin(state)
        else:
            self._elements, self._state = iter(_cannot_go_back, None), _cannot_go_back
            self._is_closed = False

    def __len__(self) -> int:
        """Elements that are left, where that is known."""
        if self._all is None or self._all >= ENDLESS // 2:
            raise TypeError("the number of remaining elements is unknown: use pipeline.count().")
        return self._share.count(max(self._all - self._used, 0))

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name in STAGES:
            raise AttributeError(f".iter() ends a pipeline: write .{name}(...) before it, on the pipeline.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Stop the work and release the workers. No element comes after it, unless a position is loaded."""
        close = getattr(self._elements, "close", None)
        if close is not None:
            close()
        self._close()
        self._is_closed = True

    def state_dict(self) -> dict[str, Any]:
        """The position of the iterator: plain numbers, and with `.shuffle(buffer=n)` the rows of the buffer."""
        return {
            "version": VERSION,
            "pipeline": self._description,
            "seed": self._settings.seed,
            "epoch": self._settings.epoch,
            "share": [self._share.world_size, self._share.worker, self._share.workers],
            "chunks": list(self._chunks),
            "used": self._used,
            "position": self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position of `state`, with its seed, epoch and chunks. The position of this iterator is
        discarded.

        Args:
            state: a `state_dict` of an iterator of a pipeline with the same stages and number of rows. If the stages
                end with `.shard()` after `.batch()`, all ranks load the state of any rank, and the number of ranks may
                change.

        Raises:
            ValueError: `state` is of another pipeline, or invalid; the iterator does not change.
        """
        self.at_first = None
        own = self.state_dict()
        if state.get("version", VERSION) != VERSION:
            raise ValueError(f"the state has version {state['version']}, and this library reads {VERSION}.")
        missing = [key for key in own if key not in state]
        if missing:
            raise ValueError(f"this is not a state of a pipeline: it lacks {', '.join(missing)}.")
        if state["pipeline"] != own["pipeline"]:
            raise ValueError(
                f"the state is of another pipeline:\n  it was  {state['pipeline']}\n  this is {own['pipeline']}"
            )
        self._check_share(list(state["share"]))
        chunks = [int(size) for size in state["chunks"]]
        if len(chunks) != len(self._chunks):
            raise ValueError(
                f"the state is of {len(chunks)} sources of rows, and this pipeline has {len(self._chunks)}."
            )
        self.close()
        self._chunks, self._plan = chunks, with_chunks(self._plan, iter(chunks))
        self._settings = replace(self._settings, seed=state["seed"], epoch=state["epoch"])
        self._used = int(state["used"])
        self._begin(state["position"])

    def _check_share(self, share: list[int]) -> None:
        world_size, worker, workers = share
        if (worker, workers) != (self._share.worker, self._share.workers):
            raise ValueError("the state is of another worker of a DataLoader, or of another number of them.")
        if world_size != self._share.world_size and workers > 1:
            raise ValueError(
                f"the state of a DataLoader worker is of {world_size} ranks with {workers} workers each, and "
                f"cannot be loaded by {self._share.world_size} ranks. Save the state of "
                "pipeline.iter(num_workers=...), which any number of ranks can load."
            )


def _cannot_go_back() -> Any:
    raise RuntimeError(
        "an exception ended this iteration, and .shuffle(buffer=) cannot step back to the last element: load "
        "a state_dict() that was saved before, or start again."
    )


class _Carried:
    """Any object that the copies to a device pass on as it is."""

    def __init__(self, state: State | None) -> None:
        self.state = state


def _placed(elements: ElementIterator, places: bool) -> Iterator[Any]:
    try:
        for value in elements:
            yield [value, _Carried(elements.state() if places else None)]
    finally:
        elements.close()
