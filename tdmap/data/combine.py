"""Rows that are made of other rows: after one another, side by side, or some of them in another order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import Ahead, Data, Picks, Rows, tensors_of
from tdmap.data.schema import join_pieces
from tensordict_lite import is_tensor_collection


class Combined(Rows):
    """Rows that are made of others. Each chunk is put together in new memory.

    Attributes:
        parts: the others.
    """

    parts: Sequence[Rows]

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

    def window(self, first: int, last: int) -> Index:
        return Index(self, range(first, last))

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        return iter([self.take(range(start, min(start + size, last))) for start in range(first, last, size)])


@dataclass(frozen=True, eq=False)
class Concat(Combined):
    """Rows of parts after one another."""

    parts: tuple[Rows, ...]

    @functools.cached_property
    def _ends(self) -> list[int]:
        """One-past-last row of each part, behind a 0."""
        ends = [0]
        for part in self.parts:
            ends.append(ends[-1] + (part.length or 0))
        return ends

    @property
    def length(self) -> int | None:
        return None if any(part.length is None for part in self.parts) else self._ends[-1]

    @property
    def row_bytes(self) -> int:
        return max(part.row_bytes for part in self.parts)

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> Concat:
        return Concat(tuple(part.at(epoch, keep) for part in self.parts))

    def take(self, index: Picks) -> Data:
        ends, pieces = self._ends, []
        if isinstance(index, range):
            for part, first, last in zip(self.parts, ends, ends[1:]):
                start, stop = max(index.start, first), min(index.stop, last)
                if start < stop:
                    pieces.append(part.take(range(start - first, stop - first)))
            return join_pieces(pieces)
        return take_from_parts(index, ends[1:], lambda part, rows: self.parts[part].take(rows), join_pieces)


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

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> Zip:
        return Zip(tuple(part.at(epoch, keep) for part in self.parts))

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

    def window(self, first: int, last: int) -> Index:
        return replace(self, order=self.numbers(range(first, last)))

    def take(self, index: Picks) -> Data:
        return self.over.take(self.numbers(index))

    def numbers(self, index: Picks) -> Picks:
        """The numbers in `over` of some of the rows."""
        return index if self.order is None else chosen(self.order, index)


def take_from_parts(
    rows: Tensor,
    ends: Sequence[int],
    take: Callable[[int, Tensor], Data],
    join: Callable[[list[Data]], Data] = torch.cat,
) -> Data:
    """Rows in any order, each of one of several parts that come after one another.

    Args:
        rows: int64, at least one.
        ends: one-past-last row of each part.
        take: gives rows of a part, by their numbers in it.
        join: puts rows of several parts after one another.
    """
    owners = torch.bucketize(rows, torch.tensor(ends), right=True)
    order = torch.argsort(owners, stable=True)
    parts, counts = torch.unique_consecutive(owners[order], return_counts=True)
    groups = zip(parts.tolist(), rows[order].split(counts.tolist()))
    pieces = [take(part, group - (ends[part - 1] if part else 0)) for part, group in groups]
    if len(pieces) == 1:
        return pieces[0]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return join(pieces)[back]


def chosen(order: Picks, index: Picks) -> Picks:
    """Row numbers at some places."""
    if isinstance(index, range):
        return order[index.start : index.stop]
    return index + order.start if isinstance(order, range) else order[index]


def merge(pieces: list[Data]) -> Data:
    """Entries side by side.

    Raises:
        TypeError: a piece has no entries.
        ValueError: two pieces have an entry of the same name.
    """
    merged: Data = None
    for piece in pieces:
        if not is_tensor_collection(piece):
            raise TypeError(
                f".zip() puts entries side by side, and got rows that are a {type(piece).__name__}: use "
                ".map(lambda x: TensorDict({'name': x}, batch_size=x.shape[:1])) first."
            )
        if merged is None:
            merged = piece.copy()
            continue
        both = sorted(map(str, set(merged.keys()) & set(piece.keys())))
        if both:
            raise ValueError(f".zip(): both pipelines have {', '.join(map(repr, both))}: use .select() on one of them.")
        for key, value in piece.items():
            merged.set(key, value)
    return merged
