"""Rows at random access: the part of a pipeline whose rows can be numbered before anything runs.

    View  =  leaf            a dataset, or views side by side (Zipped) or after one another (Joined)
          +  picks           take, skip, shard, shuffle: arithmetic on row numbers, no data is moved
          +  stages          map, map_rows, select: functions of rows

The order of picks and stages does not matter, because the stages are row-wise; so all picks become one index into
the leaf. Everything about order, resuming and sharing out work then is arithmetic, as long as rows can be numbered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.data.kinds import Data, data_length, is_data, tensors_of
from tdmap.data.reader import narrow
from tdmap.data.schema import join_pieces
from tdmap.data.store import folder_of
from tdmap.pipeline.stages import Call, Shard, Shuffle, Skip, Stage, Take
from tdmap.pipeline.work import run_stages
from tdmap.seeding import Captured, derive, permutation, seeded
from tensordict_lite import is_tensor_collection

Picks: TypeAlias = "range | Tensor"
"""Row numbers: a run of them, or int64 in any order."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Views after one another."""

    parts: tuple[View, ...]


@dataclass(frozen=True, eq=False)
class Zipped:
    """Views side by side."""

    parts: tuple[View, ...]


@dataclass(frozen=True, eq=False)
class Pending:
    """A cache that is not written yet: how many rows it will have is known sometimes."""

    path: str
    rows: int | None
    row_bytes: int


Leaf: TypeAlias = "Data | Joined | Zipped | Pending"


@dataclass(frozen=True, eq=False)
class View:
    """Numbered rows."""

    leaf: Leaf
    picks: tuple[Stage, ...] = ()
    stages: tuple[Stage, ...] = ()

    @property
    def folders(self) -> set[str]:
        """Where the datasets lie that are read."""
        leaf = self.leaf
        if isinstance(leaf, (Joined, Zipped)):
            return set().union(*(part.folders for part in leaf.parts))
        folder = leaf.path if isinstance(leaf, Pending) else folder_of(leaf)
        return set() if folder is None else {os.path.abspath(folder)}

    @property
    def leaf_rows(self) -> int | None:
        """Rows of the leaf; None while that is not known."""
        leaf = self.leaf
        if isinstance(leaf, Pending):
            return leaf.rows
        if isinstance(leaf, Joined):
            counts = [part.rows for part in leaf.parts]
            return None if None in counts else sum(count for count in counts if count is not None)
        if isinstance(leaf, Zipped):
            return leaf.parts[0].rows
        return data_length(leaf, 0)

    @property
    def rows(self) -> int | None:
        """Rows of the view; None while that is not known."""
        rows = self.leaf_rows
        for pick in self.picks:
            rows = None if rows is None else len(_picked(range(rows), pick))
        return rows

    @property
    def shares(self) -> tuple[int, ...]:
        """The index of each share that was taken, of parts of the leaf too."""
        parts = self.leaf.parts if isinstance(self.leaf, (Joined, Zipped)) else ()
        own = (pick.index for pick in self.picks if isinstance(pick, Shard))
        return (*own, *(index for part in parts for index in part.shares))

    @property
    def part_call(self) -> Stage | None:
        """A stage of a part of the leaf that calls a function of the user's, while rows are read."""
        parts = self.leaf.parts if isinstance(self.leaf, (Joined, Zipped)) else ()
        stages = (stage for part in parts for stage in (*part.stages, part.part_call))
        return next((stage for stage in stages if isinstance(stage, Call)), None)

    def picking(self, pick: Stage) -> View:
        """The view with one more pick."""
        return replace(self, picks=(*self.picks, pick))

    def index(self, epoch: int) -> Picks:
        """The rows of the leaf that the view has in an epoch, in order."""
        rows = self.leaf_rows
        assert rows is not None
        index: Picks = range(rows)
        for pick in self.picks:
            if isinstance(pick, Shuffle):
                order = permutation(len(index), epoch_seed(pick.seed, epoch))
                index = order + index.start if isinstance(index, range) else index[order]
            else:
                index = _picked(index, pick)
        return index

    def table(self, epoch: int, keep: Callable[[Data], Data]) -> Data:
        """The leaf in an epoch, as something that the engine can read rows of; `keep` gives its datasets a place."""
        if isinstance(self.leaf, Joined):
            return JoinedTable([_Part.of(part, epoch, keep) for part in self.leaf.parts])
        if isinstance(self.leaf, Zipped):
            return ZippedTable([_Part.of(part, epoch, keep) for part in self.leaf.parts])
        assert is_data(self.leaf)
        return keep(self.leaf)


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
        return _tensor_of(index)[torch.arange(start, stop) % len(index)]  # padded: the first rows once more
    return index


def _tensor_of(index: Picks) -> Tensor:
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


# -- reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """A view in one epoch."""

    table: Data
    index: Picks
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, view: View, epoch: int, keep: Callable[[Data], Data]) -> _Part:
        return cls(view.table(epoch, keep), view.index(epoch), view.stages)

    def read(self, rows: Picks) -> Data:
        """These rows of the view, in new memory."""
        rows = self.index[rows.start : rows.stop] if isinstance(rows, range) else _at(self.index, rows)
        chunk = narrow(self.table, 0, rows.start, rows.stop).clone() if isinstance(rows, range) else self.table[rows]
        return run_stages(self.stages, chunk)


def _at(index: Picks, rows: Tensor) -> Tensor:
    return rows + index.start if isinstance(index, range) else index[rows]


class Table:
    """Rows that are put together when they are read. To the engine's `Reader` it looks like a dataset.

    Args:
        parts: where the rows come from.
    """

    rows: int
    seed: int | None = None
    """Of the random streams of the parts' functions, which run before the chunk has streams of its own."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self._captured: Captured | None = None

    def read(self, rows: Picks) -> Data:
        """These rows, as a collection or a tensor in new memory."""
        raise NotImplementedError

    def draw(self, rows: Picks) -> Data:
        """`read`, with random streams that the seed and the first row decide."""
        if self.seed is None or not len(rows) or not self.calls:
            return self.read(rows)
        if self._captured is None:
            self._captured = Captured(self)
        with seeded(self.seed, int(rows[0]), self._captured):
            return self.read(rows)

    @property
    def calls(self) -> bool:
        """Whether a part calls a function of the user's."""
        own = any(isinstance(stage, Call) for part in self.parts for stage in part.stages)
        return own or any(isinstance(part.table, Table) and part.table.calls for part in self.parts)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.rows])

    def _leaves(self) -> list[Tensor]:
        return [leaf for part in self.parts for leaf in tensors_of(part.table)]

    def __getitem__(self, index: Any) -> Any:
        (wanted,) = index if isinstance(index, tuple) else (index,)
        if isinstance(wanted, slice):
            return Window(self, range(self.rows)[wanted])
        return self.draw(wanted)


@dataclass(frozen=True)
class Window:
    """Some consecutive rows of a table, not read yet."""

    table: Table
    rows: range

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self.rows)])

    def split(self, size: int, dim: int = 0) -> Iterator[Data]:
        """Read piece by piece."""
        return (self.table.draw(self.rows[start : start + size]) for start in range(0, len(self.rows), size))

    def clone(self) -> Data:
        """Read."""
        return self.table.draw(self.rows)


class JoinedTable(Table):
    """Parts after one another."""

    def __init__(self, parts: list[_Part]) -> None:
        super().__init__(parts)
        self.starts = [0]
        for part in self.parts:
            self.starts.append(self.starts[-1] + len(part.index))
        self.rows = self.starts[-1]

    def read(self, rows: Picks) -> Data:
        if isinstance(rows, range):
            pieces = []
            for part, first, last in zip(self.parts, self.starts, self.starts[1:]):
                start, stop = max(rows.start, first), min(rows.stop, last)
                if start < stop:
                    pieces.append(part.read(range(start - first, stop - first)))
            return join_pieces(pieces)
        owner = torch.bucketize(rows, torch.tensor(self.starts[1:-1]), right=True)
        order = owner.argsort(stable=True)
        pieces = []
        for number in owner.unique().tolist():
            pieces.append(self.parts[number].read(rows[owner == number] - self.starts[number]))
        return join_pieces(pieces)[order.argsort()]


class ZippedTable(Table):
    """Parts side by side."""

    def __init__(self, parts: list[_Part]) -> None:
        super().__init__(parts)
        self.rows = len(self.parts[0].index)

    def read(self, rows: Picks) -> Data:
        return merge([part.read(rows) for part in self.parts])


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
