"""Streams of pieces, each of which can say where it is, and go on there later.

A piece is some rows, or one batch. A stream above another one pulls pieces from it. Where a stream keeps rows for
later (the rest of a piece that was cut), its state is not these rows, but where the stream below was before it gave
the piece, and how many rows of it are used up. So the state of a whole chain is a handful of numbers. Only a shuffle
buffer keeps its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import torch

from tdmap.data.kinds import Data, leaves_hold_rows
from tdmap.data.schema import join_pieces
from tdmap.pipeline.rows import merge
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import Batch, Shard, Shuffle
from tdmap.seeding import derive, permutation

State = dict[str, Any]


class Stream(ABC):
    """Pieces in order."""

    positional = True
    """The state is numbers only, and cheap to get."""

    @abstractmethod
    def next(self) -> Any:
        """The next piece; StopIteration when there is none."""

    @abstractmethod
    def state(self) -> State:
        """Where the stream is."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Go on where a state was taken."""

    @abstractmethod
    def close(self) -> None:
        """Stop the work below."""


def count_of(piece: Any, batched: bool) -> int:
    """Elements of a piece."""
    return 1 if batched else int(piece.shape[0])


class Over(Stream):
    """A stream over one other."""

    def __init__(self, below: Stream, batched: bool = False) -> None:
        self.below = below
        self.batched = batched
        self.positional = below.positional

    def close(self) -> None:
        self.below.close()


class TakeStream(Over):
    """The first elements."""

    def __init__(self, below: Stream, count: int, batched: bool) -> None:
        super().__init__(below, batched)
        self._left = count

    def next(self) -> Any:
        if self._left <= 0:
            self.close()
            raise StopIteration
        piece = self.below.next()
        count = count_of(piece, self.batched)
        if count > self._left:
            piece, count = piece[: self._left], self._left
        self._left -= count
        return piece

    def state(self) -> State:
        return {"left": self._left, "below": self.below.state()}

    def load(self, state: State) -> None:
        self._left = state["left"]
        self.below.load(state["below"])


class SkipStream(TakeStream):
    """All but the first elements."""

    def next(self) -> Any:
        while True:
            piece = self.below.next()
            count = count_of(piece, self.batched)
            skipped = min(count, self._left)
            self._left -= skipped
            if skipped < count:
                return piece[skipped:] if skipped else piece


class ShardStream(Over):
    """Every so manieth element."""

    def __init__(self, below: Stream, stage: Shard, batched: bool) -> None:
        super().__init__(below, batched)
        self._index, self._count = stage.index, stage.count
        self._seen = 0

    def next(self) -> Any:
        while True:
            piece = self.below.next()
            count = count_of(piece, self.batched)
            first = (self._index - self._seen) % self._count
            self._seen += count
            if first < count:
                return piece if self.batched else piece[first :: self._count]

    def state(self) -> State:
        return {"seen": self._seen, "below": self.below.state()}

    def load(self, state: State) -> None:
        self._seen = state["seen"]
        self.below.load(state["below"])


class EvenStream(Over):
    """Every so manieth element, as many of them for each share.

    Elements come in rounds, one for each share. What is left at the end makes no round: it is dropped, or the round is
    filled up with the elements that it has, once more.
    """

    def __init__(self, below: Stream, stage: Shard, batched: bool) -> None:
        super().__init__(below, batched)
        self._share = Share(stage.index, stage.count, stage.even)
        self._cutter = Cutter(below)

    def next(self) -> Any:
        if self.batched:
            return next_of_round(self.below, self._share)
        count = self._share.world_size
        while self._cutter.rows < count and self._cutter.pull():
            pass
        rounds = self._cutter.rows // count
        if rounds:
            return self._cutter.take(rounds * count)[self._share.rank :: count]
        own = self._share.of_round(self._cutter.rows)
        if own is None:
            raise StopIteration
        return self._cutter.take(self._cutter.rows)[own : own + 1]

    def state(self) -> State:
        return {"below": self.below.state() if self.batched else self._cutter.state()}

    def load(self, state: State) -> None:
        if self.batched:
            self.below.load(state["below"])
        else:
            self._cutter.load(state["below"])


def next_of_round(below: Stream, share: Share) -> Any:
    """The element that a rank has in the next round; StopIteration where it has none."""
    there: list[Any] = []
    while len(there) < share.world_size:
        try:
            there.append(below.next())
        except StopIteration:
            break
    own = share.of_round(len(there))
    if own is None:
        raise StopIteration
    return there[own]


class JoinedStream(Stream):
    """One stream after another."""

    def __init__(self, sources: list[Stream]) -> None:
        self._sources = sources
        self._at = 0
        self.positional = all(source.positional for source in sources)

    def next(self) -> Any:
        while self._at < len(self._sources):
            try:
                return self._sources[self._at].next()
            except StopIteration:
                self._at += 1
        raise StopIteration

    def state(self) -> State:
        return {"at": self._at, "below": [source.state() for source in self._sources]}

    def load(self, state: State) -> None:
        self._at = state["at"]
        for source, own in zip(self._sources, state["below"]):
            source.load(own)

    def close(self) -> None:
        for source in self._sources:
            source.close()


class Cutter:
    """Gives rows in any number, out of pieces, and says where it is."""

    def __init__(self, below: Stream) -> None:
        self._below = below
        self._held: deque[tuple[State | None, Data, int]] = deque()
        """State of the stream below before it gave the piece, the piece, and how many rows of it are used up."""
        self.rows = 0
        self._skip = 0

    def pull(self) -> bool:
        """Get one more piece; False when there is none."""
        before = self._below.state() if self._below.positional else None
        try:
            piece = self._below.next()
        except StopIteration:
            return False
        used, self._skip = self._skip, 0
        self._held.append((before, piece, used))
        self.rows += int(piece.shape[0]) - used
        return True

    def take(self, count: int) -> Data:
        """So many rows of those that are there; a view where they come from one piece."""
        parts, self.rows = [], self.rows - count
        while count:
            before, piece, used = self._held.popleft()
            have = int(piece.shape[0]) - used
            if have > count:
                self._held.appendleft((before, piece, used + count))
                parts.append(piece[used : used + count])
                break
            parts.append(piece[used:] if used else piece)
            count -= have
        return join_pieces(parts)

    def state(self) -> State:
        if not self._below.positional:
            rows = [piece[used:].clone() for _, piece, used in self._held]
            return {"rows": rows, "below": self._below.state()}
        if self._held:
            before, _, used = self._held[0]
            return {"used": used, "below": before}
        return {"used": self._skip, "below": self._below.state()}

    def load(self, state: State) -> None:
        self._held.clear()
        self._below.load(state["below"])
        self._skip = state.get("used", 0)
        self._held.extend((None, piece, 0) for piece in state.get("rows", ()))
        self.rows = sum(int(piece.shape[0]) for _, piece, _ in self._held)


class BatchStream(Over):
    """Rows to batches."""

    def __init__(self, below: Stream, stage: Batch) -> None:
        super().__init__(below)
        self._stage = stage
        self._cutter = Cutter(below)

    def next(self) -> Any:
        size = self._stage.size
        while self._cutter.rows < size and self._cutter.pull():
            pass
        count = min(size, self._cutter.rows)
        if count == 0 or (count < size and self._stage.drop_last):
            raise StopIteration
        return self._cutter.take(count)

    def state(self) -> State:
        return self._cutter.state()

    def load(self, state: State) -> None:
        self._cutter.load(state)


class BufferStream(Over):
    """A shuffle of a part at a time: each row is replaced in the buffer by one that comes later."""

    def __init__(self, below: Stream, stage: Shuffle, seed: int) -> None:
        super().__init__(below)
        self.positional = False
        assert stage.buffer is not None
        self._size = stage.buffer
        self._seed = seed
        self._drawn = 0
        self._buffer: Data | None = None
        self._cutter = Cutter(below)
        self._over = False

    def next(self) -> Any:
        if self._buffer is None and not self._over:
            while self._cutter.rows < self._size and self._cutter.pull():
                pass
            if self._cutter.rows == 0:
                raise StopIteration
            full = self._cutter.rows >= self._size
            self._buffer = self._cutter.take(min(self._cutter.rows, self._size)).clone()
            if full and (self._cutter.rows or self._cutter.pull()):
                return self._exchange()
            return self._drain()
        if self._buffer is None:
            raise StopIteration
        if self._cutter.rows or self._cutter.pull():
            return self._exchange()
        return self._drain()

    def _draw(self) -> torch.Tensor:
        assert self._buffer is not None
        self._drawn += 1
        return permutation(int(self._buffer.shape[0]), derive(self._seed, self._drawn) >> 1)

    def _exchange(self) -> Data:
        rows = self._cutter.take(min(self._cutter.rows, self._size))
        order = self._draw()
        slots, others = order[: rows.shape[0]], order[rows.shape[0] :]
        assert self._buffer is not None
        out = self._buffer[slots]
        if leaves_hold_rows(self._buffer):
            self._buffer[slots] = rows
        else:  # the members of a lazy stack are now those of `out`, too, and may differ in shape
            self._buffer = join_pieces([self._buffer[others], rows.clone()]) if len(others) else rows.clone()
        return out

    def _drain(self) -> Data:
        order = self._draw()
        assert self._buffer is not None
        out, self._buffer, self._over = self._buffer[order], None, True
        return out

    def state(self) -> State:
        buffer = None if self._buffer is None else self._buffer.clone()
        return {"drawn": self._drawn, "over": self._over, "buffer": buffer, "below": self._cutter.state()}

    def load(self, state: State) -> None:
        self._drawn, self._over = state["drawn"], state["over"]
        self._buffer = None if state["buffer"] is None else state["buffer"].clone()
        self._cutter.load(state["below"])


class ZippedStream(Stream):
    """Two streams side by side, which must end together."""

    def __init__(self, sources: list[Stream], batched: bool) -> None:
        self._sources = sources
        self._batched = batched
        self._cutters = [Cutter(source) for source in sources]
        self.positional = all(source.positional for source in sources)
        self._row = 0

    def next(self) -> Any:
        if self._batched:
            pieces = []
            for source in self._sources:
                try:
                    pieces.append(source.next())
                except StopIteration:
                    break
            if len(pieces) == 0:
                ended = [self._ended(source) for source in self._sources]
                if all(ended):
                    raise StopIteration
            if len(pieces) < 2:
                raise self._uneven()
            self._row += 1
            return merge(pieces)
        for cutter in self._cutters:
            if not cutter.rows:
                cutter.pull()
        count = min(cutter.rows for cutter in self._cutters)
        if count == 0:
            if any(cutter.rows for cutter in self._cutters):
                raise self._uneven()
            raise StopIteration
        self._row += count
        return merge([cutter.take(count) for cutter in self._cutters])

    @staticmethod
    def _ended(source: Stream) -> bool:
        try:
            source.next()
        except StopIteration:
            return True
        return False

    def _uneven(self) -> Exception:
        unit = "batches" if self._batched else "rows"
        return ValueError(
            f".zip() needs as many {unit} on both sides, and one of them has ended after {self._row}. Use "
            f".take({self._row}) on the longer one."
        )

    def state(self) -> State:
        sources = self._sources if self._batched else self._cutters
        return {"row": self._row, "below": [source.state() for source in sources]}

    def load(self, state: State) -> None:
        self._row = state["row"]
        sources: list[Any] = self._sources if self._batched else self._cutters
        for source, own in zip(sources, state["below"]):
            source.load(own)

    def close(self) -> None:
        for source in self._sources:
            source.close()
