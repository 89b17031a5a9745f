"""Rows at random access: the part of a pipeline whose rows can be numbered before anything runs.

    Index  =  over            a dataset, a cache, or others side by side (Zip) or after one another (Concat)
           +  picks           take, skip, shard, shuffle: arithmetic on row numbers, no data is moved
           +  stages          map, map_rows, select: functions of rows

The order of picks and stages does not matter, because the stages are row-wise; so all picks become one index into
what is below. Everything about order, resuming and sharing out work then is arithmetic.

Rows are described without an epoch. `at` gives those of an epoch, whose order is known: they can be read, and the
engine's `Reader` takes them for a dataset.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.data.kinds import Ahead, Data, Rows, data_length, tensors_of
from tdmap.data.reader import narrow, row_bytes_of, rows_of
from tdmap.data.schema import join_pieces
from tdmap.data.store import folder_of
from tdmap.pipeline.stages import Call, Shard, Shuffle, Skip, Stage, Take
from tdmap.pipeline.work import run_stages
from tdmap.plan import LEAD_ROWS
from tdmap.seeding import Captured, derive, permutation, seeded
from tensordict_lite import is_tensor_collection

Picks: TypeAlias = "range | Tensor"
"""Row numbers: a run of them, or int64 in any order."""

Keep: TypeAlias = "Callable[[Data], Data]"
"""Gives a dataset a place where workers can read it."""


class NumberedRows(Rows, ABC):
    """Rows of a pipeline, at random access.

    Attributes:
        parts: what they are made of.
        seed: of the random streams of the parts' functions, which run before the chunk has streams of its own.
    """

    parts: tuple[NumberedRows, ...] = ()
    seed: int | None = None

    @property
    @abstractmethod
    def length(self) -> int | None:
        """How many; None while that is not known."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes that are read for one row."""

    @abstractmethod
    def at(self, epoch: int, keep: Keep) -> NumberedRows:
        """The rows of an epoch."""

    @abstractmethod
    def few(self) -> NumberedRows:
        """Some of them, in no particular order: enough to see how large they are."""

    @abstractmethod
    def example(self, count: int) -> Data:
        """What the stages make of the first so many rows of a dataset."""

    @abstractmethod
    def read(self, rows: Picks) -> Data:
        """Rows of an epoch, as a collection or a tensor in new memory."""

    @property
    def folders(self) -> set[str]:
        """Where the datasets lie that are read."""
        return set().union(*(part.folders for part in self.parts))

    @property
    def files(self) -> list[str]:
        return [file for part in self.parts for file in part.files]

    @property
    def in_memory(self) -> list[Data]:
        return [data for part in self.parts for data in part.in_memory]

    @property
    def shares(self) -> tuple[int, ...]:
        """The index of each share that was taken, of parts too."""
        return tuple(index for part in self.parts for index in part.shares)

    @property
    def shuffles(self) -> bool:
        """Whether rows are others, or in another order, in another epoch."""
        return any(part.shuffles for part in self.parts)

    @functools.cached_property
    def call(self) -> Stage | None:
        """A stage that calls a function of the user's while rows are read."""
        return next((part.call for part in self.parts if part.call is not None), None)

    # -- as the engine's reader sees the rows of an epoch ---------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.length or 0])

    def _leaves(self) -> list[Tensor]:
        return [leaf for part in self.parts for leaf in tensors_of(part)]

    def __getitem__(self, index: Any) -> Any:
        (wanted,) = index if isinstance(index, tuple) else (index,)
        if isinstance(wanted, slice):
            return self.window(*wanted.indices(self.length or 0)[:2])
        return self.draw(wanted)

    def window(self, first: int, last: int) -> Index:
        return Index(self, order=range(first, last))

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        return iter([self.draw(range(start, min(start + size, last))) for start in range(first, last, size)])

    def draw(self, rows: Picks) -> Data:
        """`read`, with random streams that the seed and the first row decide."""
        if self.seed is None or not len(rows) or self.call is None:
            return self.read(rows)
        with seeded(self.seed, int(rows[0]), self._captured):
            return self.read(rows)

    @functools.cached_property
    def _captured(self) -> Captured:
        return Captured(self)


@dataclass(frozen=True, eq=False)
class Dataset(NumberedRows):
    """Those of a dataset."""

    data: Data

    @property
    def length(self) -> int:
        return data_length(self.data, 0)

    @property
    def row_bytes(self) -> int:
        return row_bytes_of(self.data, self.length)

    @property
    def folders(self) -> set[str]:
        folder = folder_of(self.data)
        return set(rows_of(self.data).folders) if folder is None else {os.path.abspath(folder)}

    @property
    def files(self) -> list[str]:
        return list(rows_of(self.data).files)

    @property
    def in_memory(self) -> list[Data]:
        return list(rows_of(self.data).in_memory)

    def at(self, epoch: int, keep: Keep) -> Dataset:
        return Dataset(keep(self.data))

    def few(self) -> Dataset:
        return Dataset(window(self.data, range(min(LEAD_ROWS, self.length))))

    def example(self, count: int) -> Data:
        return narrow(self.data, 0, 0, min(count, self.length)).clone()

    def read(self, rows: Picks) -> Data:
        if isinstance(rows, range):
            return narrow(self.data, 0, rows.start, rows.stop).clone()
        return self.data[rows]

    def _leaves(self) -> list[Tensor]:
        return tensors_of(self.data)


@dataclass(frozen=True, eq=False)
class UnwrittenCache(NumberedRows):
    """Those of a cache that is not written yet: how many it will have is known sometimes."""

    path: str
    count: int | None
    bytes_each: int

    @property
    def length(self) -> int | None:
        return self.count

    @property
    def row_bytes(self) -> int:
        return self.bytes_each

    @property
    def folders(self) -> set[str]:
        return {os.path.abspath(self.path)}

    def _missing(self, *args: Any) -> Any:
        raise FileNotFoundError(f"the cache {self.path} is not written yet")

    at = few = example = read = _missing  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Concat(NumberedRows):
    """Those of parts after one another."""

    parts: tuple[NumberedRows, ...]
    seed: int | None = None

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

    def at(self, epoch: int, keep: Keep) -> Concat:
        return Concat(tuple(part.at(epoch, keep) for part in self.parts), self.seed)

    def few(self) -> Concat:
        return Concat((self.parts[0].few(),))

    def example(self, count: int) -> Data:
        return self.parts[0].example(count)

    def read(self, rows: Picks) -> Data:
        ends, pieces = self._ends, []
        if isinstance(rows, range):
            for part, first, last in zip(self.parts, ends, ends[1:]):
                start, stop = max(rows.start, first), min(rows.stop, last)
                if start < stop:
                    pieces.append(part.read(range(start - first, stop - first)))
            return join_pieces(pieces)
        owner = torch.bucketize(rows, torch.tensor(ends[1:-1]), right=True)
        order = owner.argsort(stable=True)
        for number in owner.unique().tolist():
            pieces.append(self.parts[number].read(rows[owner == number] - ends[number]))
        return join_pieces(pieces)[order.argsort()]


@dataclass(frozen=True, eq=False)
class Zip(NumberedRows):
    """Those of parts side by side."""

    parts: tuple[NumberedRows, ...]
    seed: int | None = None

    @property
    def length(self) -> int | None:
        return self.parts[0].length

    @property
    def row_bytes(self) -> int:
        return sum(part.row_bytes for part in self.parts)

    def at(self, epoch: int, keep: Keep) -> Zip:
        return Zip(tuple(part.at(epoch, keep) for part in self.parts), self.seed)

    def few(self) -> Zip:
        return Zip(tuple(part.few() for part in self.parts))

    def example(self, count: int) -> Data:
        return merge([part.example(count) for part in self.parts])

    def read(self, rows: Picks) -> Data:
        return merge([part.read(rows) for part in self.parts])


@dataclass(frozen=True, eq=False)
class Index(NumberedRows):
    """Some rows of others, in some order, with functions of rows."""

    over: NumberedRows
    picks: tuple[Stage, ...] = ()
    stages: tuple[Stage, ...] = ()
    order: Picks | None = None
    """In an epoch: the numbers of the rows in `over`."""

    @property
    def parts(self) -> tuple[NumberedRows, ...]:  # type: ignore[override]
        return (self.over,)

    @property
    def length(self) -> int | None:
        if self.order is not None:
            return len(self.order)
        rows = self.over.length
        for pick in self.picks:
            rows = None if rows is None else len(_picked(range(rows), pick))
        return rows

    @property
    def row_bytes(self) -> int:
        return self.over.row_bytes

    @property
    def shares(self) -> tuple[int, ...]:
        return (*(pick.index for pick in self.picks if isinstance(pick, Shard)), *self.over.shares)

    @property
    def shuffles(self) -> bool:
        return any(isinstance(pick, Shuffle) for pick in self.picks) or self.over.shuffles

    @functools.cached_property
    def call(self) -> Stage | None:
        return next((stage for stage in self.stages if isinstance(stage, Call)), self.over.call)

    def picking(self, pick: Stage) -> Index:
        """The rows with one more pick."""
        return replace(self, picks=(*self.picks, pick))

    def order_in(self, epoch: int) -> Picks:
        """The numbers of the rows in an epoch, in order."""
        rows = self.over.length
        assert rows is not None
        order: Picks = range(rows)
        for pick in self.picks:
            if isinstance(pick, Shuffle):
                shuffled = permutation(len(order), epoch_seed(pick.seed, epoch))
                order = _chosen(order, shuffled)
            else:
                order = _picked(order, pick)
        return order

    def at(self, epoch: int, keep: Keep) -> Index:
        return Index(self.over.at(epoch, keep), (), self.stages, self.order_in(epoch))

    def few(self) -> Index:
        return replace(self, over=self.over.few(), picks=())

    def example(self, count: int) -> Data:
        return run_stages(self.stages, self.over.example(count))

    def read(self, rows: Picks) -> Data:
        assert self.order is not None
        wanted = self.order[rows.start : rows.stop] if isinstance(rows, range) else _chosen(self.order, rows)
        return run_stages(self.stages, self.over.read(wanted) if self.over.seed is None else self.over.draw(wanted))


def _chosen(order: Picks, rows: Tensor) -> Tensor:
    return rows + order.start if isinstance(order, range) else order[rows]


def _picked(index: Any, pick: Stage) -> Any:
    """What take, skip and shard leave of an index; a shuffle leaves everything."""
    if isinstance(pick, Take):
        return index[: pick.count]
    if isinstance(pick, Skip):
        return index[min(pick.count, len(index)) :]
    if isinstance(pick, Shard):
        start, stop = share(len(index), pick)
        if stop <= len(index) or not len(index):
            return index[start : min(stop, len(index))]
        return tensor_of(index)[torch.arange(start, stop) % len(index)]  # padded: the first rows once more
    return index


def tensor_of(index: Picks) -> Tensor:
    """Row numbers, int64."""
    return torch.arange(index.start, index.stop) if isinstance(index, range) else index


def window(data: Data, rows: range) -> Data:
    """Some rows of a dataset, as a dataset that chunks may be changed of."""
    found = rows_of(data).window(rows.start, rows.stop)
    # A part of a locked dataset is locked too, and its chunks would be.
    return found.copy() if is_tensor_collection(found) and found.is_locked else found


def share(rows: int, shard: Shard) -> tuple[int, int]:
    """First and one-past-last of the rows that a shard has: consecutive ones, sizes differ by one at most.

    With `even`, they do not: the last rows are left out, or numbers beyond the last row stand for the first ones again.

    Example:
        >>> [share(10, Shard(i, 3)) for i in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        >>> [share(10, Shard(i, 3, "drop")) for i in range(3)], share(10, Shard(2, 3, "pad"))
        ([(0, 3), (3, 6), (6, 9)], (8, 12))
    """
    if shard.even is not None:
        size = shard.size(rows)
        return size * shard.index, size * (shard.index + 1)
    return rows * shard.index // shard.count, rows * (shard.index + 1) // shard.count


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch; that of the first one is the seed itself.

    Example:
        >>> epoch_seed(7, 0), epoch_seed(7, 1) == epoch_seed(7, 2)
        (7, False)
    """
    return seed if epoch == 0 else derive(seed, epoch) >> 1


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
