"""Rows at random access: the part of a pipeline whose rows can be numbered before anything runs.

    View   =  over            a dataset, a cache, or others side by side (Zip) or after one another (Concat)
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tdmap.data.combine import Combined, Concat, Index, Zip, chosen
from tdmap.data.kinds import Ahead, Data, Picks, Rows
from tdmap.data.reader import rows_of
from tdmap.output.outputfolder import folder_of
from tdmap.pipeline.stages import Call, Shard, Shuffle, Skip, Stage, Take
from tdmap.pipeline.work import run_stages
from tdmap.seeding import Captured, derive, permutation, seeded


@dataclass(frozen=True, eq=False)
class View(Index):
    """Some rows of others, in some order, with functions of rows.

    Attributes:
        picks: which rows, and their order: of a description, whose `order` follows from the epoch.
        stages: the functions.
        seed: of the random streams of all functions, which run before the chunk has streams of its own.
    """

    picks: tuple[Stage, ...] = ()
    stages: tuple[Stage, ...] = ()
    seed: int | None = None

    @property
    def length(self) -> int | None:
        rows = super().length
        for pick in self.picks:
            rows = None if rows is None else len(_picked(range(rows), pick))
        return rows

    @property
    def shares(self) -> tuple[int, ...]:
        """The index of each share that was taken, of parts too."""
        views = [rows for rows in tree_of(self) if isinstance(rows, View)]
        return tuple(pick.index for view in views for pick in view.picks if isinstance(pick, Shard))

    @property
    def read_folders(self) -> set[str]:
        """Where the datasets lie that are read."""
        mapped = [folder for data in self.in_memory if (folder := folder_of(data)) is not None]
        return {*self.folders, *map(os.path.abspath, mapped)}

    @functools.cached_property
    def _captured(self) -> Captured | None:
        return None if call_in(self) is None else Captured(self)

    def picking(self, pick: Stage) -> View:
        """The rows with one more pick."""
        return replace(self, picks=(*self.picks, pick))

    def order_in(self, epoch: int) -> Picks:
        """The numbers of the rows in an epoch, in order."""
        rows = self.over.length
        assert rows is not None
        order: Picks = range(rows)
        for pick in self.picks:
            if isinstance(pick, Shuffle):
                order = chosen(order, permutation(len(order), epoch_seed(pick.seed, epoch)))
            else:
                order = _picked(order, pick)
        return order

    def at(self, epoch: int, keep: Callable[[Data], Data]) -> View:
        return View(self.over.at(epoch, keep), self.order_in(epoch), (), self.stages)

    def chunks(self, first: int, last: int, size: int, ahead: Ahead | None = None) -> Iterator[Data]:
        if self.seed is not None:  # functions below have the streams of each chunk, too
            return Combined.chunks(self, first, last, size, ahead)
        rows = Index(self.over, self.order).chunks(first, last, size, ahead)
        return map(functools.partial(run_stages, self.stages), rows)

    def take(self, index: Picks) -> Data:
        numbers = self.numbers(index)
        if self.seed is None or not len(numbers) or self._captured is None:
            return run_stages(self.stages, self.over.take(numbers))
        with seeded(self.seed, int(numbers[0]), self._captured):
            return run_stages(self.stages, self.over.take(numbers))


@dataclass(frozen=True, eq=False)
class UnwrittenCache(Combined):
    """Those of a cache that is not written yet: how many it will have is known sometimes."""

    path: str
    count: int | None
    bytes_each: int
    parts = ()

    def with_parts(self, parts: tuple[Rows, ...]) -> UnwrittenCache:
        return self

    @property
    def length(self) -> int | None:
        return self.count

    @property
    def row_bytes(self) -> int:
        return self.bytes_each

    @property
    def folders(self) -> set[str]:
        return {os.path.abspath(self.path)}

    def window(self, first: int, last: int) -> Index:
        raise FileNotFoundError(f"the cache {self.path} is not written yet")


def tree_of(rows: Rows) -> Iterator[Rows]:
    """Rows, and those that they are made of."""
    yield rows
    for part in rows.parts if isinstance(rows, Combined) else ():
        yield from tree_of(part)


def is_shuffled(rows: Rows) -> bool:
    """Whether rows are others, or in another order, in another epoch."""
    views = [one for one in tree_of(rows) if isinstance(one, View)]
    return any(isinstance(pick, Shuffle) for view in views for pick in view.picks)


def call_in(rows: Rows) -> Stage | None:
    """A stage that calls a function of the user's while rows are read."""
    views = [one for one in tree_of(rows) if isinstance(one, View)]
    return next((stage for view in views for stage in view.stages if isinstance(stage, Call)), None)


def few(rows: Rows, count: int) -> Rows:
    """At most so many rows, in no particular order: what all are like."""
    if isinstance(rows, View):
        return replace(rows, over=few(rows.over, count), picks=())
    if isinstance(rows, Concat):
        return few(rows.parts[0], count)
    if isinstance(rows, Zip):
        return Zip(tuple(few(part, count) for part in rows.parts))
    return rows_of(rows.window(0, min(count, rows.length or 0)))


def _picked(index: Picks, pick: Stage) -> Picks:
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
        size = shard.share.count(rows)
        return size * shard.index, size * (shard.index + 1)
    return rows * shard.index // shard.count, rows * (shard.index + 1) // shard.count


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch; that of the first one is the seed itself.

    Example:
        >>> epoch_seed(7, 0), epoch_seed(7, 1) == epoch_seed(7, 2)
        (7, False)
    """
    return seed if epoch == 0 else derive(seed, epoch) >> 1
