"""A plan as it runs: the streams of `pieces` over those where pieces come from, which run jobs and call functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tdmap.data.trees import FreshResults
from tdmap.ops.iteration.streams import stream_values
from tdmap.pipeline.pieces import (
    BatchStream,
    BufferStream,
    EvenStream,
    JoinedStream,
    Over,
    ShardStream,
    SkipStream,
    State,
    Stream,
    TakeStream,
    ZippedStream,
)
from tdmap.pipeline.planning import ENDLESS, Again, Both, Head, Local, Plan, heads_of, shares_of
from tdmap.pipeline.rounds import Rounds, Settings, apart, chunk_rows, default_ahead, head_job, run_here
from tdmap.pipeline.rows import epoch_seed
from tdmap.pipeline.stages import Batch, Concat, Shard, Shuffle, Skip, Take, Unbatch
from tdmap.pipeline.work import NOTHING, apply_stage, run_stages
from tdmap.seeding import Captured, derive, seeded

VAIN_ROWS = 1000
"""Of so many rows, and of a whole epoch, nothing is left by chance only: `.repeat()` without a number ends there."""


def patience(rows: int) -> int:
    """How many epochs of so many rows may be empty, one after the other, before those to come are taken to be, too."""
    return min(max(VAIN_ROWS // max(rows, 1), 1), 100)


def open_stream(plan: Plan, settings: Settings, batch: int | None = None) -> Stream:
    """The stream of a plan.

    Args:
        plan: what to run.
        settings: how.
        batch: rows of the batches that will be made of the pieces.
    """
    if isinstance(plan, Head):
        return HeadStream(plan, settings, batch)
    if isinstance(plan, Again):
        return AgainStream(plan, settings, batch)
    if isinstance(plan, Both):
        sources = [open_stream(plan.sources[0], settings, batch), open_stream(plan.sources[1], settings.other(), batch)]
        return JoinedStream(sources) if isinstance(plan.stage, Concat) else ZippedStream(sources, plan.batched)
    stage = plan.stage
    below = open_stream(plan.source, settings, stage.size if isinstance(stage, Batch) else batch)
    batched = plan.source.batched
    if isinstance(stage, Take):
        return TakeStream(below, stage.count, batched)
    if isinstance(stage, Skip):
        return SkipStream(below, stage.count, batched)
    if isinstance(stage, Shard):
        return ShardStream(below, stage, batched) if stage.even is None else EvenStream(below, stage, batched)
    if isinstance(stage, Batch):
        return BatchStream(below, stage)
    if isinstance(stage, Shuffle):
        return BufferStream(below, stage, epoch_seed(stage.seed, settings.epoch))
    return CallStream(below, plan, settings)


class HeadStream(Stream):
    """What workers make of chunks."""

    def __init__(self, head: Head, settings: Settings, batch: int | None) -> None:
        self._settings = settings
        self._rounds = Rounds(head, chunk_rows(head, settings.chunk_of(head), batch))
        self._share = settings.share
        self._at = self._rounds.start
        self._values: Iterator[Any] | None = None
        self._patience = 0 if head.epochs < ENDLESS else self._rounds.first(patience(self._rounds.rows))
        self._in_vain = 0

    def next(self) -> Any:
        while (chunk := self._share.element(self._at, self._rounds.stop)) is not None:
            if self._values is None:
                self._values = self._run(chunk)
            value = next(self._values, self)
            if value is self:  # this round is over
                self._values = None
                continue
            self._at += self._share.step
            if value is not NOTHING:
                self._in_vain = 0
                return value
            self._in_vain += self._share.step
            if 0 < self._patience <= self._in_vain:
                break
        else:
            if self._at < self._rounds.stop:  # the last round has elements for other processes only
                self._at += self._share.step
        raise StopIteration

    def _run(self, chunk: int) -> Iterator[Any]:
        """The rest of the epoch that the next chunk is in, as far as this process has it."""
        rounds, settings, only = self._rounds, self._settings, None
        epoch = rounds.epoch_of(chunk)
        start = chunk - rounds.first(epoch)
        if self._share.step > 1:
            only = self._own(chunk, epoch)
        if settings.execution is None:
            job = head_job(rounds, epoch, settings, given=True)
            return run_here(job, iter(range(start, job.plan.num_chunks) if only is None else only))
        job = head_job(rounds, epoch, settings, only=only, given=True)
        ahead = settings.prefetch or default_ahead(rounds.head, rounds.size, settings.execution.workers)
        return stream_values(job, settings.execution, start if only is None else 0, ahead, settings.link)

    def _own(self, chunk: int, epoch: int) -> range:
        """The chunks of this process from one on to the end of the epoch, numbered in it.

        An element that fills up the last round is out of step, and comes by itself.
        """
        step, first = self._share.step, self._rounds.first(epoch)
        stop = min(self._rounds.first(epoch + 1), self._rounds.stop)
        count = -(-(stop - chunk) // step)
        last = self._share.element(self._at + (count - 1) * step, self._rounds.stop)
        if count > 1 and last != chunk + (count - 1) * step:
            count -= 1
        return range(chunk - first, chunk - first + count * step, step)

    def state(self) -> State:
        return {"chunk": self._at}

    def load(self, state: State) -> None:
        self.close()
        self._at = state["chunk"]

    def close(self) -> None:
        if self._values is not None:
            self._values.close()  # type: ignore[attr-defined]
            self._values = None


class AgainStream(Stream):
    """A stream anew for each epoch."""

    def __init__(self, plan: Again, settings: Settings, batch: int | None) -> None:
        self._epochs = plan.epochs
        self._open: Callable[[int], Stream] = lambda epoch: open_stream(
            plan.source, settings.epoch_of(epoch, plan.epochs), batch
        )
        self._epoch = 0
        self._below = self._open(0)
        self.positional = self._below.positional
        rows = sum(head.view.rows or 0 for head in heads_of(plan.source))
        self._patience = plan.epochs if plan.epochs < ENDLESS else patience(rows) if rows else 1
        self._in_vain = 0

    def next(self) -> Any:
        while True:
            try:
                piece = self._below.next()
            except StopIteration:
                self._in_vain += 1
                if self._epoch + 1 >= self._epochs or self._in_vain > self._patience:
                    raise
                self._epoch += 1
                self._below = self._open(self._epoch)
            else:
                self._in_vain = 0
                return piece

    def state(self) -> State:
        return {"epoch": self._epoch, "below": self._below.state()}

    def load(self, state: State) -> None:
        self.close()
        self._epoch = state["epoch"]
        self._below = self._open(self._epoch)
        self._below.load(state["below"])

    def close(self) -> None:
        self._below.close()


class CallStream(Over):
    """A function of rows or batches, called here because what comes before is in order only here."""

    def __init__(self, below: Stream, plan: Local, settings: Settings) -> None:
        super().__init__(below, plan.source.batched)
        self._stage = plan.stage
        seed = settings.seed_of(settings.epoch)
        self._seed = None if seed is None else derive(apart(seed, shares_of(plan.source)), 1 << 41)
        self._number = 0
        self._fresh, self._captured = FreshResults(), Captured(plan.stage)

    def next(self) -> Any:
        while True:
            piece = self.below.next()
            with seeded(self._seed, self._number, self._captured):
                piece = self._fresh(self._apply(piece))
            self._number += 1
            if piece is not NOTHING:
                return piece

    def _apply(self, piece: Any) -> Any:
        try:
            if isinstance(self._stage, Unbatch):
                return run_stages([self._stage], piece)
            return apply_stage(self._stage, piece, self.batched)
        except StopIteration as error:  # which would end the iteration, and its rows would be missed by nobody
            raise RuntimeError(f"the function of .{self._stage} raised StopIteration") from error

    def state(self) -> State:
        return {"number": self._number, "below": self.below.state()}

    def load(self, state: State) -> None:
        self._number = state["number"]
        self.below.load(state["below"])
