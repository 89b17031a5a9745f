"""Which rank this program is, and which chunks are its own."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

import torch.distributed

from tdmap.plan import ChunkPlan, Ranges, merge_ranges, subtract_ranges

AUTO = "auto"

ShardLike: TypeAlias = "tuple[int, int] | str | None"
"""What users pass as `shard`."""


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


def rank_of(shard: ShardLike) -> Rank:
    """The rank that `shard` stands for.

    Args:
        shard: `(rank, world_size)`; or `"auto"`: that of the default group of `torch.distributed` where there is one,
            else of the variables `RANK` and `WORLD_SIZE`, which torchrun sets.

    Raises:
        ValueError: it is neither, or nothing tells what `"auto"` means.

    Example:
        >>> rank_of((1, 4))
        Rank(rank=1, world_size=4)
    """
    if isinstance(shard, str):
        if shard != AUTO:
            raise ValueError(f"shard must be (rank, world_size), 'auto' or None: got {shard!r}.")
        return _automatic()
    if not isinstance(shard, (tuple, list)) or len(shard) != 2 or not all(map(_is_whole, shard)):
        raise ValueError(f"shard must be two integers (rank, world_size), 'auto' or None: got {shard!r}.")
    rank, world_size = shard
    if not 0 <= rank < world_size:
        raise ValueError(f"shard must have 0 <= rank < world_size: got rank {rank} of {world_size}.")
    return Rank(int(rank), int(world_size))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _automatic() -> Rank:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ValueError(
            f"shard='auto' takes RANK and WORLD_SIZE from the environment, and {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} not set: start the program with torchrun, or pass "
            "shard=(rank, world_size); (0, 1) is one program alone."
        )
    try:
        rank, world_size = (int(str(value)) for value in found.values())
    except ValueError:
        raise ValueError(f"shard='auto': RANK and WORLD_SIZE must be integers, and are {found}.") from None
    if not 0 <= rank < world_size:
        raise ValueError(f"shard='auto': RANK must be below WORLD_SIZE, and they are {rank} and {world_size}.")
    return Rank(rank, world_size)
