"""Which workers the driver gives something to do, and when."""

from typing import Any

import pytest
import torch

from tdmap.events import CallbackList
from tdmap.job import Job, Source
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.runtime.driver import Driver
from tdmap.runtime.executors.base import Workers
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.wire.messages import Done, Joined, Left, Segment
from tdmap.sink import Kind


class Asleep(Workers):
    """Workers who are there at once, and never finish anything."""

    kind = "asleep"
    forks = True

    def __init__(self, workers: int) -> None:
        self.size = workers
        self.granted: list[tuple[int, int, int]] = []
        self._joined = False

    def open(self, sink: Any) -> None: ...

    def allocate(self, dtype: Any, shape: Any) -> Any: ...

    def close(self, ok: bool, changed: bool) -> None: ...

    def grant(self, worker: int, lease: Lease) -> None:
        self.granted.append((worker, lease.start, lease.stop))

    def output(self, writer: Any) -> None: ...

    def replan(self, plan: Any) -> None: ...

    def wait(self, timeout: float) -> list[Any]:
        if self._joined:
            raise KeyboardInterrupt  # nothing else will ever happen
        self._joined = True
        return [(worker, Joined()) for worker in range(self.size)]


@pytest.mark.parametrize(("chunks", "workers"), [(1, 3), (2, 3), (3, 3), (40, 3), (40, 16)])
def test_every_worker_has_a_chunk_before_the_first_result(chunks: int, workers: int) -> None:
    job, team = Job(Source(torch.arange(chunks * 10)), ChunkPlan(chunks * 10, 10), len), Asleep(workers)
    with pytest.raises(KeyboardInterrupt):
        list(Driver(job, Collect(), team, CallbackList([]), row_bytes=8).run())
    busy = min(chunks, workers)
    assert sorted(team.granted) == [(worker, worker, worker + 1) for worker in range(busy)]


class Worn(Asleep):
    """Each worker runs one lease and leaves; another one takes its place."""

    def __init__(self) -> None:
        super().__init__(1)
        self.events: list[Any] = [(0, Joined())]
        self.asked = 0

    def limit(self, worker: int) -> int | None:
        self.asked += 1
        return 1

    def grant(self, worker: int, lease: Lease) -> None:
        super().grant(worker, lease)
        segment = Segment(0, lease.id, lease.start, lease.stop, Kind.NONE, ())
        done = Done(0, lease.id, lease.stop, 0.01, False, segment, 0)
        self.events += [(worker, done), (worker, Left()), (worker + 1, Joined())]

    def wait(self, timeout: float) -> list[Any]:
        events, self.events = self.events, []
        return events


def test_a_worker_that_has_left_is_not_asked_again() -> None:
    job, team = Job(Source(torch.arange(300)), ChunkPlan(300, 1), len), Worn()
    list(Driver(job, Collect(), team, CallbackList([]), row_bytes=8).run())
    assert len(team.granted) == 300
    assert team.asked < 3 * 300
