"""Workers that are ready at the same time all get work at once, before any of them has an answer."""

from __future__ import annotations

from typing import Any

import torch

from tdmap.events import CallbackList
from tdmap.job import Job, Policy, Source
from tdmap.plan import ChunkPlan
from tdmap.runtime.driver import Driver
from tdmap.runtime.executors.base import LocalWorkers
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.wire.messages import Done, Joined, Segment
from tdmap.sinks import Collect, Sink
from tdmap.sinks.base import Kind


class ReadyAtOnce(LocalWorkers):
    """Workers that join together; whoever waits for them is told who has work by then."""

    kind = "scripted"
    forks = True

    def __init__(self, job: Job, size: int) -> None:
        super().__init__(job)
        self.size = size
        self.busy: list[list[int]] = []
        self._leases: list[tuple[int, Lease]] = []
        self._joined = False

    def open(self, sink: Sink) -> None: ...

    def grant(self, worker: int, lease: Lease) -> None:
        self._leases.append((worker, lease))

    def wait(self, timeout: float) -> list[tuple[int, Any]]:
        if not self._joined:
            self._joined = True
            return [(worker, Joined()) for worker in range(self.size)]
        self.busy.append(sorted(worker for worker, _ in self._leases))
        worker, lease = self._leases.pop(0)
        values = tuple(range(lease.start, lease.stop))
        segment = Segment(self.job.number, lease.id, lease.start, lease.stop, Kind.PARCEL, values)
        return [(worker, Done(self.job.number, lease.id, lease.stop, 0.01, False, segment, 0, None))]

    def close(self, ok: bool, changed: bool) -> None:
        pass


def test_every_worker_has_a_chunk_before_the_first_answer() -> None:
    job = Job(Source(torch.arange(64)), ChunkPlan(64, 1), lambda x: x, Policy(undo=False))
    for size in (1, 2, 5):
        team, sink = ReadyAtOnce(job, size), Collect()
        assert list(Driver(job, sink, team, CallbackList([]), 8).run()) == []
        assert team.busy[0] == list(range(size))
        assert sink.result() == list(range(64))
