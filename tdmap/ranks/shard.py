"""Which rank this program is."""

from __future__ import annotations

import os
from typing import TypeAlias

import torch.distributed

from tdmap.ranks.rank import Rank

AUTO = "auto"

ShardLike: TypeAlias = "tuple[int, int] | str | None"
"""What users pass as `shard`."""


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
