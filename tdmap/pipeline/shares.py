"""Which elements go to which process, where ranks train together, each with workers of a DataLoader or without.

    round    0      1      2            a round: one element for each rank
    rank 0   0      2      4            of elements that are numbered over all ranks
    rank 1   1      3      5
             └ worker 0    └ worker 0   of 2: every other round of its rank

Ranks go in step, so one number says how far all of them are: the elements that are used up. From there any number of
ranks can go on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Share(NamedTuple):
    """The part of one process.

    Example:
        >>> [[Share(rank, 2, "pad").element(at, 5) for at in (0, 2, 4)] for rank in range(2)]
        [[0, 2, 4], [1, 3, 4]]
        >>> [[Share(rank, 2, "drop").element(at, 5) for at in (0, 2, 4)] for rank in range(2)]
        [[0, 2, None], [1, 3, None]]
    """

    rank: int = 0
    world_size: int = 1
    even: str | None = None
    """What happens to the last round when it is not full: see `Pipeline.shard`."""
    worker: int = 0
    workers: int = 1

    @property
    def step(self) -> int:
        """Elements that all ranks use up from one element of this process to the next."""
        return self.world_size * self.workers

    def element(self, at: int, stop: int) -> int | None:
        """The element of this process in the rounds of all workers that begin at `at`; None where there is none."""
        first = at + self.worker * self.world_size
        there = min(stop - first, self.world_size)
        own = self.of_round(there)
        return None if own is None else first + own

    def of_round(self, there: int) -> int | None:
        """Which of the elements of a round this rank has, where so many are there; None for none.

        A round that is not full is dropped, or the ranks that go away empty-handed get one of those that are there.
        """
        if there <= 0 or (there < self.world_size and self.even == "drop"):
            return None
        if self.rank < there:
            return self.rank
        return self.rank % there if self.even == "pad" else None

    def count(self, elements: int) -> int:
        """How many of so many elements this rank has."""
        if self.even == "drop":
            return elements // self.world_size
        if self.even == "pad":
            return -(-elements // self.world_size)
        return len(range(self.rank, elements, self.world_size))


class EpochNumber:
    """The number of the epoch, shared by a pipeline and all that were made from it.

    Once it was set, it lies in shared memory: workers of a torch DataLoader that stay from one epoch to the next see
    the new number, too.
    """

    def __init__(self) -> None:
        self._shared: torch.Tensor | None = None
        self.times_set = 0

    @property
    def number(self) -> int:
        """Of the next epoch."""
        return 0 if self._shared is None else int(self._shared)

    def set(self, number: int) -> None:
        """The next epoch has this number."""
        if self._shared is None:
            self._shared = torch.zeros((), dtype=torch.int64).share_memory_()
        self._shared.fill_(number)
        self.times_set += 1
