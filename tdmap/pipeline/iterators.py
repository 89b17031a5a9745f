"""A plan as it runs: iterators over pieces, each of which can say where it is, and go on there later.

A piece is some rows, or one batch. An iterator pulls pieces from those below it, down to the jobs that compute chunks.
Its position is a few attributes, which its class names, and the positions below. Where it keeps rows for later (the
rest of a piece that was cut), these are not its position, but where the iterator below was before it gave the piece,
and how many rows of it are used up. So the position of a whole chain is a handful of numbers. Only a shuffle buffer
keeps its rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch

from tdmap.data.combine import merge
from tdmap.data.kinds import Data, is_data, leaves_hold_rows
from tdmap.data.schema import join_pieces
from tdmap.data.trees import FreshResults
from tdmap.ops.iteration.streams import stream_values
from tdmap.pipeline.epochs import EpochChunks, RunSettings, apart, chunk_rows, default_ahead, head_job, run_here
from tdmap.pipeline.planning import Head, Local, Plan, heads_of, shares_of
from tdmap.pipeline.rows import epoch_seed
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import ENDLESS, Batch, ConcatWith, Repeat, Shard, Shuffle, Skip, Take, Unbatch, ZipWith
from tdmap.pipeline.work import NOTHING, apply_stage, run_stages
from tdmap.seeding import Captured, derive, permutation, seeded

State = dict[str, Any]

VAIN_ROWS = 1000
"""Of so many rows, and of a whole epoch, nothing is left by chance only: `.repeat()` without a number ends there."""


def patience(rows: int) -> int:
    """How many epochs of so many rows may be empty, one after the other, before those to come are taken to be, too."""
    return min(max(VAIN_ROWS // max(rows, 1), 1), 100)


def open_iterator(plan: Plan, settings: RunSettings, batch: int | None = None) -> PieceIterator:
    """The iterator of a plan.

    Args:
        plan: what to run.
        settings: how.
        batch: rows of the batches that will be made of the pieces.
    """
    if isinstance(plan, Head):
        return JobIterator(plan, settings, batch)
    stage, batched = plan.stage, plan.source.batched
    if isinstance(stage, Repeat):
        return RepeatIterator(plan, stage, settings, batch)
    below = open_iterator(plan.source, settings, stage.size if isinstance(stage, Batch) else batch)
    if isinstance(stage, (ConcatWith, ZipWith)):
        second = open_iterator(plan.sources[1], settings.other(), batch)
        return ConcatIterator(below, second) if isinstance(stage, ConcatWith) else ZipIterator(below, second, batched)
    if isinstance(stage, Take):
        return TakeIterator(below, stage.count, batched)
    if isinstance(stage, Skip):
        return SkipIterator(below, stage.count, batched)
    if isinstance(stage, Shard):
        return ShardIterator(below, stage, batched) if stage.even is None else EvenIterator(below, stage, batched)
    if isinstance(stage, Batch):
        return BatchIterator(below, stage)
    if isinstance(stage, Shuffle):
        return BufferIterator(below, stage.buffer or 1, epoch_seed(stage.seed, settings.epoch))
    return CallIterator(below, plan, settings)


class PieceIterator(Iterator[Any]):
    """Pieces in order.

    Args:
        below: where they come from.

    Attributes:
        position: the attributes that say where it is, beside the positions below.
        positional: the position is numbers only, and cheap to get.
    """

    position: ClassVar[tuple[str, ...]] = ()
    positional: bool

    def __init__(self, *below: PieceIterator) -> None:
        self.below = below
        self.positional = all(one.positional for one in below)

    @abstractmethod
    def __next__(self) -> Any:
        """The next piece."""

    def state(self) -> State:
        """Where it is."""
        state: State = {"below": [one.state() for one in self.below]}
        for name in self.position:
            value = getattr(self, name)
            state[name] = value if self.positional else _apart(value)
        return state

    def load(self, state: State) -> None:
        """Go on where a state was taken."""
        for name in self.position:
            setattr(self, name, _apart(state[name]))
        self.reopen()
        for one, its in zip(self.below, state["below"]):
            one.load(its)

    def reopen(self) -> None:
        """The position is another one."""

    def close(self) -> None:
        """Stop the work below."""
        for one in self.below:
            one.close()


def _apart(value: Any) -> Any:
    """A value that no other iterator has: rows as a copy."""
    return value.clone() if is_data(value) else value


def count_of(piece: Any, batched: bool) -> int:
    """Elements of a piece."""
    return 1 if batched else int(piece.shape[0])


# -- which elements ------------------------------------------------------------------------------------


class TakeIterator(PieceIterator):
    """The first elements."""

    position = ("left",)

    def __init__(self, below: PieceIterator, count: int, batched: bool) -> None:
        super().__init__(below)
        self.left = count
        self._batched = batched

    def __next__(self) -> Any:
        if self.left <= 0:
            self.close()
            raise StopIteration
        piece = next(self.below[0])
        count = count_of(piece, self._batched)
        if count > self.left:
            piece, count = piece[: self.left], self.left
        self.left -= count
        return piece


class SkipIterator(TakeIterator):
    """All but the first elements."""

    def __next__(self) -> Any:
        while True:
            piece = next(self.below[0])
            count = count_of(piece, self._batched)
            skipped = min(count, self.left)
            self.left -= skipped
            if skipped < count:
                return piece[skipped:] if skipped else piece


class ShardIterator(PieceIterator):
    """Every so manieth element."""

    position = ("seen",)

    def __init__(self, below: PieceIterator, stage: Shard, batched: bool) -> None:
        super().__init__(below)
        self._index, self._count, self._batched = stage.index, stage.count, batched
        self.seen = 0

    def __next__(self) -> Any:
        while True:
            piece = next(self.below[0])
            count = count_of(piece, self._batched)
            first = (self._index - self.seen) % self._count
            self.seen += count
            if first < count:
                return piece if self._batched else piece[first :: self._count]


class EvenIterator(PieceIterator):
    """Every so manieth element, as many of them for each share.

    Elements come in rounds, one for each share. What is left at the end makes no round: it is dropped, or the round is
    filled up with the elements that it has, once more.
    """

    def __init__(self, below: PieceIterator, stage: Shard, batched: bool) -> None:
        self._share = stage.share
        self._cutter = None if batched else Cutter(below)
        super().__init__(below if self._cutter is None else self._cutter)

    def __next__(self) -> Any:
        cutter, count = self._cutter, self._share.world_size
        if cutter is None:
            return next_of_round(self.below[0], self._share)
        cutter.fill(count)
        rounds = cutter.rows // count
        if rounds:
            return cutter.take(rounds * count)[self._share.rank :: count]
        own = self._share.of_round(cutter.rows)
        if own is None:
            raise StopIteration
        return cutter.take(cutter.rows)[own : own + 1]


def next_of_round(below: Iterator[Any], share: Share) -> Any:
    """The element that a rank has in the next round; StopIteration where it has none."""
    there: list[Any] = []
    while len(there) < share.world_size:
        try:
            there.append(next(below))
        except StopIteration:
            break
    own = share.of_round(len(there))
    if own is None:
        raise StopIteration
    return there[own]


# -- rows in any number --------------------------------------------------------------------------------


class Cutter(PieceIterator):
    """Gives rows in any number, out of pieces.

    Attributes:
        rows: how many are there.
    """

    def __init__(self, below: PieceIterator) -> None:
        super().__init__(below)
        self._held: deque[tuple[State | None, Data]] = deque()
        """State of the iterator below before it gave a piece, and the piece."""
        self._used = 0
        """Rows of the first piece that are used up: of the next one, where none is held."""
        self._singles: list[Any] = []
        """The rows of the first piece, one by one."""
        self.rows = 0

    def __next__(self) -> Data:
        self.fill(1)
        if not self.rows:
            raise StopIteration
        return self.take(self.rows)

    def pull(self) -> bool:
        """Get one more piece; False when there is none."""
        before = self.below[0].state() if self.positional else None
        try:
            piece = next(self.below[0])
        except StopIteration:
            return False
        used = 0 if self._held else self._used
        self._held.append((before, piece))
        self.rows += int(piece.shape[0]) - used
        return True

    def fill(self, count: int) -> None:
        """Have so many rows, or all that are left."""
        while self.rows < count and self.pull():
            pass

    def take(self, count: int) -> Data:
        """So many rows of those that are there; a view where they come from one piece."""
        parts, self.rows = [], self.rows - count
        while count:
            piece, used = self._held[0][1], self._used
            have = int(piece.shape[0]) - used
            if have > count:
                self._used += count
                parts.append(piece[used : used + count])
                break
            parts.append(piece[used:] if used else piece)
            self._held.popleft()
            self._used = 0
            count -= have
        return join_pieces(parts)

    def take_one(self) -> Any:
        """The next row, without its dimension."""
        while not self._singles:
            self.fill(1)
            if not self._held:
                raise StopIteration
            self._singles = list(self._held[0][1].unbind(0))
            if not self._singles:
                self._held.popleft()
        singles = self._singles
        row = singles[self._used]
        self._used += 1
        self.rows -= 1
        if self._used == len(singles):
            self._held.popleft()
            self._singles, self._used = [], 0
        return row

    def state(self) -> State:
        (below,) = self.below
        if not self.positional:
            rows = [piece[0 if number else self._used :].clone() for number, (_, piece) in enumerate(self._held)]
            return {"rows": rows, "below": below.state()}
        return {"used": self._used, "below": self._held[0][0] if self._held else below.state()}

    def load(self, state: State) -> None:
        self.below[0].load(state["below"])
        self._used, self._singles = state.get("used", 0), []
        self._held = deque((None, piece) for piece in state.get("rows", ()))
        self.rows = sum(int(piece.shape[0]) for _, piece in self._held)


class BatchIterator(PieceIterator):
    """Rows to batches."""

    def __init__(self, below: PieceIterator, stage: Batch) -> None:
        self._stage, self._cutter = stage, Cutter(below)
        super().__init__(self._cutter)

    def __next__(self) -> Any:
        size = self._stage.size
        self._cutter.fill(size)
        count = min(size, self._cutter.rows)
        if count == 0 or (count < size and self._stage.drop_last):
            raise StopIteration
        return self._cutter.take(count)


class BufferIterator(PieceIterator):
    """A shuffle of a part at a time: each row is replaced in the buffer by one that comes later."""

    position = ("drawn", "over", "buffer")

    def __init__(self, below: PieceIterator, size: int, seed: int) -> None:
        self._size, self._seed, self._cutter = size, seed, Cutter(below)
        super().__init__(self._cutter)
        self.positional = False
        self.drawn = 0
        self.buffer: Data | None = None
        self.over = False

    def __next__(self) -> Any:
        if self.over:
            raise StopIteration
        cutter = self._cutter
        if self.buffer is None:
            cutter.fill(self._size)
            if cutter.rows == 0:
                raise StopIteration
            self.buffer = cutter.take(min(cutter.rows, self._size)).clone()
            if int(self.buffer.shape[0]) < self._size:
                return self._drain()
        cutter.fill(1)
        return self._exchange() if cutter.rows else self._drain()

    def _draw(self) -> torch.Tensor:
        assert self.buffer is not None
        self.drawn += 1
        return permutation(int(self.buffer.shape[0]), derive(self._seed, self.drawn) >> 1)

    def _exchange(self) -> Data:
        rows = self._cutter.take(min(self._cutter.rows, self._size))
        order = self._draw()
        slots, others = order[: rows.shape[0]], order[rows.shape[0] :]
        buffer: Any = self.buffer
        assert buffer is not None
        out = buffer[slots]
        if leaves_hold_rows(buffer):
            buffer[slots] = rows
        else:  # the members of a lazy stack are now those of `out`, too, and may differ in shape
            self.buffer = join_pieces([buffer[others], rows.clone()]) if len(others) else rows.clone()
        return out

    def _drain(self) -> Data:
        order = self._draw()
        assert self.buffer is not None
        out, self.buffer, self.over = self.buffer[order], None, True
        return out


# -- several -------------------------------------------------------------------------------------------


class ConcatIterator(PieceIterator):
    """One after another."""

    position = ("at",)

    def __init__(self, *below: PieceIterator) -> None:
        super().__init__(*below)
        self.at = 0

    def __next__(self) -> Any:
        while self.at < len(self.below):
            try:
                return next(self.below[self.at])
            except StopIteration:
                self.at += 1
        raise StopIteration


class ZipIterator(PieceIterator):
    """Two side by side, which must end together."""

    position = ("row",)

    def __init__(self, first: PieceIterator, second: PieceIterator, batched: bool) -> None:
        self._batched = batched
        self._cutters = () if batched else (Cutter(first), Cutter(second))
        super().__init__(*(self._cutters or (first, second)))
        self.row = 0

    def __next__(self) -> Any:
        if self._batched:
            pieces = [piece for piece in (next(one, NOTHING) for one in self.below) if piece is not NOTHING]
            count = min(len(pieces), 1)
            if len(pieces) == 1:
                raise self._uneven()
        else:
            for cutter in self._cutters:
                cutter.fill(1)
            count = min(cutter.rows for cutter in self._cutters)
            if count == 0 and any(cutter.rows for cutter in self._cutters):
                raise self._uneven()
            pieces = [cutter.take(count) for cutter in self._cutters] if count else []
        if not pieces:
            raise StopIteration
        self.row += count
        return merge(pieces)

    def _uneven(self) -> Exception:
        unit = "batches" if self._batched else "rows"
        return ValueError(
            f".zip() needs the same number of {unit} on both sides, and one side ended after {self.row}. Use "
            f".take({self.row}) on the longer one."
        )


class RepeatIterator(PieceIterator):
    """A plan anew for each epoch."""

    position = ("epoch",)

    def __init__(self, plan: Local, stage: Repeat, settings: RunSettings, batch: int | None) -> None:
        self._epochs = stage.epochs
        self._open: Callable[[int], PieceIterator] = lambda epoch: open_iterator(
            plan.source, settings.epoch_of(epoch, stage.epochs), batch
        )
        super().__init__(self._open(0))
        self.epoch = 0
        rows = sum(head.view.length or 0 for head in heads_of(plan.source))
        self._patience = self._epochs if self._epochs < ENDLESS else patience(rows) if rows else 1
        self._in_vain = 0

    def __next__(self) -> Any:
        while True:
            try:
                piece = next(self.below[0])
            except StopIteration:
                self._in_vain += 1
                if self.epoch + 1 >= self._epochs or self._in_vain > self._patience:
                    raise
                self.epoch += 1
                self.below = (self._open(self.epoch),)
            else:
                self._in_vain = 0
                return piece

    def reopen(self) -> None:
        self.close()
        self.below = (self._open(self.epoch),)


# -- where pieces come from ----------------------------------------------------------------------------


class JobIterator(PieceIterator):
    """What workers make of chunks."""

    position = ("chunk",)

    def __init__(self, head: Head, settings: RunSettings, batch: int | None) -> None:
        super().__init__()
        self._settings = settings
        self._chunks = EpochChunks(head, chunk_rows(head, settings.chunk_of(head), batch))
        self._share = settings.share
        self.chunk = self._chunks.start
        self._values: Iterator[Any] | None = None
        self._patience = 0 if head.epochs < ENDLESS else self._chunks.first(patience(self._chunks.rows))
        self._in_vain = 0

    def __next__(self) -> Any:
        while (chunk := self._share.element(self.chunk, self._chunks.stop)) is not None:
            if self._values is None:
                self._values = self._run(chunk)
            value = next(self._values, self)
            if value is self:  # this epoch is over
                self._values = None
                continue
            self.chunk += self._share.step
            if value is not NOTHING:
                self._in_vain = 0
                return value
            self._in_vain += self._share.step
            if 0 < self._patience <= self._in_vain:
                break
        else:
            if self.chunk < self._chunks.stop:  # the last round has elements for other processes only
                self.chunk += self._share.step
        raise StopIteration

    def _run(self, chunk: int) -> Iterator[Any]:
        """The rest of the epoch that the next chunk is in, as far as this process has it."""
        chunks, settings, only = self._chunks, self._settings, None
        head, epoch = chunks.head, chunks.epoch_of(chunk)
        if settings.execution is not None and head.view.is_mapped and not head.calls:
            # A process would send back what a thread copies in the same time.
            settings = replace(settings, execution=settings.execution.near(chunks.size * head.view.row_bytes))
        start = chunk - chunks.first(epoch)
        if self._share.step > 1:
            only = self._own(chunk, epoch)
        if settings.execution is None:
            job = head_job(chunks, epoch, settings, given=True)
            return run_here(job, iter(range(start, job.plan.num_chunks) if only is None else only))
        job = head_job(chunks, epoch, settings, only=only, given=True)
        ahead = settings.prefetch or default_ahead(chunks.head, chunks.size, settings.execution.workers)
        return stream_values(job, settings.execution, start if only is None else 0, ahead, settings.link)

    def _own(self, chunk: int, epoch: int) -> range:
        """The chunks of this process from one on to the end of the epoch, numbered in it.

        An element that fills up the last round is out of step, and comes by itself.
        """
        step, first = self._share.step, self._chunks.first(epoch)
        stop = min(self._chunks.first(epoch + 1), self._chunks.stop)
        count = -(-(stop - chunk) // step)
        last = self._share.element(self.chunk + (count - 1) * step, self._chunks.stop)
        if count > 1 and last != chunk + (count - 1) * step:
            count -= 1
        return range(chunk - first, chunk - first + count * step, step)

    def reopen(self) -> None:
        self.close()

    def close(self) -> None:
        if self._values is not None:
            self._values.close()  # type: ignore[attr-defined]
            self._values = None


class CallIterator(PieceIterator):
    """A function of rows or batches, called here because what comes before is in order only here."""

    position = ("number",)

    def __init__(self, below: PieceIterator, plan: Local, settings: RunSettings) -> None:
        super().__init__(below)
        self._stage, self._batched = plan.stage, plan.source.batched
        seed = settings.seed_of(settings.epoch)
        self._seed = None if seed is None else derive(apart(seed, shares_of(plan.source)), 1 << 41)
        self.number = 0
        self._fresh, self._captured = FreshResults(), Captured(plan.stage)

    def __next__(self) -> Any:
        while True:
            piece = next(self.below[0])
            with seeded(self._seed, self.number, self._captured):
                piece = self._fresh(self._apply(piece))
            self.number += 1
            if piece is not NOTHING:
                return piece

    def _apply(self, piece: Any) -> Any:
        try:
            if isinstance(self._stage, Unbatch):
                return run_stages([self._stage], piece)
            return apply_stage(self._stage, piece, self._batched)
        except StopIteration as error:  # it would end the iteration early, without an error
            raise RuntimeError(f"the function of .{self._stage} raised StopIteration") from error


# -- what the user gets --------------------------------------------------------------------------------


class ElementIterator(PieceIterator):
    """Elements: batches, or rows without their dimension; those of a share.

    Args:
        below: the pieces.
        batched: they are batches.
        share: of the elements.
    """

    position = ("number",)

    def __init__(self, below: PieceIterator, batched: bool, share: Share) -> None:
        self._share, self._cutter = share, None if batched else Cutter(below)
        super().__init__(below if self._cutter is None else self._cutter)
        self.number = 0
        """Of rounds, which have an element for each rank."""

    def __next__(self) -> Any:
        share = self._share
        while True:
            if self._cutter is not None:
                element = self._cutter.take_one()
            else:
                below = self.below[0]
                element = next(below) if share.world_size == 1 else next_of_round(below, share)
            self.number += 1
            if (self.number - 1) % share.workers == share.worker:
                return element
