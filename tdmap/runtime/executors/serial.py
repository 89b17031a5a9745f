"""One worker: the caller itself, without threads or processes."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from tdmap.job import Job
from tdmap.runtime.executors.base import LocalWorkers, Seat, run_lease
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.wire.messages import Joined, Message
from tdmap.seeding import own_streams
from tdmap.sink import Sink


class SerialWorkers(LocalWorkers):
    """Runs a lease whenever the driver waits. The caller's random streams are put back."""

    kind = "serial"
    forks = True
    size = 1

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._inbox: deque[tuple[int, Message]] = deque([(0, Joined())])
        self._leases: deque[Lease] = deque()

    def open(self, sink: Sink[Any]) -> None:
        self._loop = self.add_loop(self._emit, in_caller=True)
        if self._loop.reader.fetches:
            self._loop.reader.follow = self._loop.reader.in_order
        if sink.writer is not None:
            self.output(sink.writer)

    def _emit(self, message: Message) -> None:
        self._inbox.append((0, message))

    def grant(self, worker: int, lease: Lease) -> None:
        self._leases.append(lease)

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        if not self._inbox and self._leases:
            lease = self._leases.popleft()
            with own_streams() if self._loop.policy.seed is not None else contextlib.nullcontext():
                self._emit(run_lease(self._loop, lease.id, lease.start, lease.stop))
        events = list(self._inbox)
        self._inbox.clear()
        return events

    def seat(self, worker: int) -> Seat:
        return Seat(worker, "in the calling process")

    def close(self, ok: bool, changed: bool) -> None:
        self._leases.clear()
