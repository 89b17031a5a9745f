"""A rank, its chunks, and the folders in which ranks keep their state. Imports neither torch nor numpy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from tdmap.plan import ChunkPlan, Ranges, merge_ranges, subtract_ranges

_HOME = re.compile(r"rank-(\d{1,9})-of-(\d{1,9})")


class Rank(NamedTuple):
    """One of several programs that share the rows of a dataset.

    Example:
        >>> plan = ChunkPlan(length=100, size=10)
        >>> [Rank(r, 4).chunks(plan) for r in range(4)]
        [(0, 2), (2, 5), (5, 7), (7, 10)]
        >>> Rank(1, 4).rows(plan)
        (20, 50)
    """

    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    def chunks(self, plan: ChunkPlan) -> tuple[int, int]:
        """First and one-past-last of its chunks: consecutive ones, as many as the others have, give or take one."""
        count = plan.num_chunks
        return count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size

    def rows(self, plan: ChunkPlan) -> tuple[int, int]:
        """First and one-past-last of its rows."""
        return plan.span(*self.chunks(plan))

    def elsewhere(self, plan: ChunkPlan) -> Ranges:
        """The chunks of the other ranks."""
        return subtract_ranges(merge_ranges([(0, plan.num_chunks)]), merge_ranges([self.chunks(plan)]))


def homes_in(folder: Path) -> list[tuple[Rank, Path]]:
    """The ranks that have worked in a dataset with this hidden folder, sorted, each with its folder."""
    found = [(match, name) for name in os.listdir(folder) if (match := _HOME.fullmatch(name))]
    return sorted((Rank(int(match[1]), int(match[2])), folder / name) for match, name in found)
