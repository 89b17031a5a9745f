"""Rows that are made of other rows: after one another, side by side, or some of them in another order."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.entries import with_room, with_types
from tdmap.data.kinds import Ahead, Data, Picks, Rows, tensors_of
from tdmap.data.reader import rows_of
from tdmap.data.schema import join_pieces
from tdmap.plan import CACHE_BYTES
from tensordict_lite import is_tensor_collection


class Combined(Rows):
    """Rows that are made of others. Each chunk is put together in new memory.

    What is asked of rows before they are read (where they lie, how they are stored) is what the others answer.

    Attributes:
        parts: the others.
    """

    parts: Sequence[Rows]

    def with_parts(self, parts: tuple[Rows, ...]) -> Rows:
        """The same rows of other parts, which have the rows of these."""
        raise NotImplementedError

    @property
    def is_remote(self) -> bool:
        return any(part.is_remote for part in self.parts)

    @property
    def is_mapped(self) -> bool:
        return all(part.is_mapped for part in self.parts)

    @property
    def chunk_bytes(self) -> int:
        return max((part.chunk_bytes for part in self.parts), default=CACHE_BYTES)

    @property
    def folders(self) -> set[str]:
        return set().union(*(part.folders for part in self.parts))

    @property
    def files(self) -> list[str]:
        return [file for part in self.parts for file in part.files]

    @property
    def in_memory(self) -> list[Data]:
        return [data for part in self.parts for data in part.in_memory]

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.length or 0])

    def _leaves(self) -> list[Tensor]:
        return [leaf for part in self.parts for leaf in tensors_of(part)]

    def __getitem__(self, index: Any) -> Any:
        (wanted,) = index if isinstance(index, tuple) else (index,)
        if isinstance(wanted, slice):
            return self.window(*wanted.indices(self.length or 0)[:2])
        return self.take(wanted)

    def window(self, first: int, last: int) -> Rows:
        return Index(self, range(first, last))

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> Rows:
        return self.with_parts(tuple(part.at(epoch, keep) for part in self.parts))

    def private(self) -> tuple[Data, list[Tensor]]:
        # What is taken of views are copies.
        return self.with_parts(tuple(p if p.is_view else rows_of(p.private()[0]) for p in self.parts)), []

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        for start in range(first, last, max(size, 1)):
            stop = min(start + max(size, 1), last)
            rows = self.take(range(start, stop))
            if ahead is not None:
                following = (stop, min(stop + size, last)) if stop < last else ahead(start, stop)
                if following is not None:
                    self.prefetch(*following)
            yield rows if size else rows[0]


@dataclass(frozen=True, eq=False)
class Concat(Combined):
    """Rows of parts after one another."""

    parts: tuple[Rows, ...]
    join: Callable[[list[Any]], Data] = join_pieces
    """Puts rows of several parts after one another."""

    @functools.cached_property
    def ends(self) -> list[int]:
        """One-past-last row of each part."""
        return list(itertools.accumulate(part.length or 0 for part in self.parts))

    @property
    def length(self) -> int | None:
        return None if any(part.length is None for part in self.parts) else self.ends[-1]

    @property
    def row_bytes(self) -> int:
        return max(part.row_bytes for part in self.parts)

    @property
    def borders(self) -> list[int]:
        starts = (0, *self.ends)
        inner = (start + row for start, part in zip(starts, self.parts) for row in part.borders)
        return sorted({*self.ends[:-1], *inner})

    @property
    def blocks(self) -> list[int]:
        return [start + row for start, part in zip((0, *self.ends), self.parts) for row in part.blocks]

    def with_parts(self, parts: tuple[Rows, ...]) -> Concat:
        return replace(self, parts=parts)

    def runs(self, first: int, last: int) -> Iterator[tuple[Rows, int, int]]:
        """The parts that have the rows `first..last`, each with its first and one-past-last of them."""
        place = bisect.bisect_right(self.ends, first)
        while first < last and place < len(self.parts):
            start = self.ends[place - 1] if place else 0
            stop = min(self.ends[place], last)
            if stop > first:
                yield self.parts[place], first - start, stop - start
            first, place = max(first, stop), place + 1

    def aligned(self, first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
        """Chunks of `size` rows from `first` on, as runs that lie in one part, and chunks between two by themselves.

        Example:
            >>> from tdmap.data.reader import InMemory
            >>> list(Concat((InMemory(torch.zeros(5)), InMemory(torch.ones(5)))).aligned(0, 10, 2))
            [(0, 4), (4, 6), (6, 10)]
        """
        while first < last:
            border = self.ends[bisect.bisect_right(self.ends, first)]
            stop = last if border >= last else first + (border - first) // size * size
            if stop == first:  # the chunk lies across
                stop = min(first + size, last)
            yield first, stop
            first = stop

    def window(self, first: int, last: int) -> Concat:
        runs = list(self.runs(first, last)) or [(self.parts[0], 0, 0)]
        return replace(self, parts=tuple(rows_of(part.window(begin, end)) for part, begin, end in runs))

    def prefetch(self, first: int, last: int) -> None:
        for part, begin, end in self.runs(first, last):
            part.prefetch(begin, end)

    def take(self, index: Picks) -> Data:
        if isinstance(index, range):
            pieces = [part.take(range(begin, end)) for part, begin, end in self.runs(index.start, index.stop)]
            return pieces[0] if len(pieces) == 1 else self.join(pieces)
        return take_from_parts(index, self.ends, lambda part, rows: self.parts[part].take(rows), self.join)


@dataclass(frozen=True, eq=False)
class Zip(Combined):
    """Rows of parts side by side."""

    parts: tuple[Rows, ...]

    @property
    def length(self) -> int | None:
        return self.parts[0].length

    @property
    def row_bytes(self) -> int:
        return sum(part.row_bytes for part in self.parts)

    @property
    def borders(self) -> list[int]:
        return sorted(set().union(*(part.borders for part in self.parts)))

    @property
    def blocks(self) -> list[int]:
        return sorted(set().union(*(part.blocks for part in self.parts)))

    def with_parts(self, parts: tuple[Rows, ...]) -> Zip:
        return Zip(parts)

    def window(self, first: int, last: int) -> Zip:
        return Zip(tuple(rows_of(part.window(first, last)) for part in self.parts))

    def prefetch(self, first: int, last: int) -> None:
        for part in self.parts:
            part.prefetch(first, last)

    def take(self, index: Picks) -> Data:
        return merge([part.take(index) for part in self.parts])


@dataclass(frozen=True, eq=False)
class Index(Combined):
    """Some rows of others, in some order."""

    over: Rows
    order: Picks | None = None
    """The numbers that the rows have in `over`; None: all of them."""

    @property
    def parts(self) -> tuple[Rows, ...]:  # type: ignore[override]
        return (self.over,)

    @property
    def length(self) -> int | None:
        return self.over.length if self.order is None else len(self.order)

    @property
    def row_bytes(self) -> int:
        return self.over.row_bytes

    @property
    def borders(self) -> Sequence[int]:
        return self._within(self.over.borders)

    @property
    def blocks(self) -> Sequence[int]:
        return self._within(self.over.blocks)

    def _within(self, rows: Sequence[int]) -> Sequence[int]:
        """Numbers of rows of `over` as those of these rows; none where these are in another order."""
        if self.order is None:
            return rows
        if not isinstance(self.order, range):
            return ()
        return [row - self.order.start for row in rows if self.order.start < row < self.order.stop]

    def with_parts(self, parts: tuple[Rows, ...]) -> Index:
        return replace(self, over=parts[0])

    def window(self, first: int, last: int) -> Index:
        return replace(self, order=self.numbers(range(first, last)))

    def prefetch(self, first: int, last: int) -> None:
        numbers = self.numbers(range(first, last))
        if isinstance(numbers, range):
            self.over.prefetch(numbers.start, numbers.stop)

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        numbers = self.numbers(range(first, last))
        if self.over.is_view or not isinstance(numbers, range):
            yield from super().chunks(first, last, size, ahead)
            return
        shift = numbers.start - first

        def follow(start: int, stop: int) -> tuple[int, int] | None:
            found = None if ahead is None else ahead(start - shift, stop - shift)
            return None if found is None else (found[0] + shift, found[1] + shift)

        yield from self.over.chunks(numbers.start, numbers.stop, size, None if ahead is None else follow)

    def take(self, index: Picks) -> Data:
        return self.over.take(self.numbers(index))

    def numbers(self, index: Picks) -> Picks:
        """The numbers in `over` of some of the rows."""
        return index if self.order is None else chosen(self.order, index)


def take_from_parts(
    rows: Tensor,
    ends: Sequence[int],
    take: Callable[[int, Tensor], Data],
    join: Callable[[list[Any]], Data] = torch.cat,
) -> Data:
    """Rows in any order, each of one of several parts that come after one another.

    Args:
        rows: int64, at least one.
        ends: one-past-last row of each part.
        take: gives rows of a part, by their numbers in it.
        join: puts rows of several parts after one another.
    """
    numbers = rows.numpy()  # torch would wake its threads for few numbers, which takes ten times as long
    owners = np.searchsorted(ends, numbers, side="right")
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    groups = zip(counts.nonzero()[0].tolist(), torch.from_numpy(numbers[order]).split(counts[counts > 0].tolist()))
    pieces = [take(part, group - (ends[part - 1] if part else 0)) for part, group in groups]
    if len(pieces) == 1:
        return pieces[0]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return join(pieces)[torch.from_numpy(back)]


def chosen(order: Picks, index: Picks) -> Picks:
    """Row numbers at some places."""
    if isinstance(index, range):
        return order[index.start : index.stop]
    if isinstance(order, range):
        return index + order.start if order.start else index
    return order[index]


def merge(pieces: list[Data]) -> Data:
    """Entries side by side.

    Raises:
        TypeError: a piece has no entries.
        ValueError: two pieces have an entry of the same name.
    """
    for piece in pieces:
        if not is_tensor_collection(piece):
            raise TypeError(
                f".zip() puts entries side by side, and got rows that are a {type(piece).__name__}: use "
                ".map(lambda x: TensorDict({'name': x}, batch_size=x.shape[:1])) first."
            )
    first, *others = pieces
    alike = len(first.shape) > 1 and all(piece.shape == first.shape for piece in others)
    merged = first.copy() if alike else with_room(first)
    for piece in others:
        both = sorted(map(str, set(merged.keys()) & set(piece.keys())))
        if both:
            raise ValueError(f".zip(): both pipelines have {', '.join(map(repr, both))}: use .select() on one of them.")
        for key, value in piece.items():
            merged.set(key, value)
        with_types(merged, piece)
    return merged
