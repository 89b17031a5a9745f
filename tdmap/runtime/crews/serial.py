"""A crew of one: the caller itself, without threads or processes."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import replace
from typing import Any

import torch

from tdmap.data.kinds import data_row_bytes, leaves_hold_rows
from tdmap.data.reader import Reader
from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.memory.cuts import Cuts
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkError, ChunkLoop
from tdmap.runtime.driver import Joined
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.undo import MAX_BYTES, Undo
from tdmap.runtime.wire.messages import Failed, Message
from tdmap.runtime.workers.control import local_control
from tdmap.seeding import preserved_generators
from tdmap.sinks import Allocate, Sink


def empty(dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Ordinary memory: the workers are in this process."""
    return torch.empty(shape, dtype=dtype)


def local_undo(job: Job) -> Undo | None:
    """Room for the rows of a chunk that an in-place function raises on, for a worker in this process."""
    data, plan = job.source.data, job.plan
    if job.ledger is not None:
        return Undo(data, plan, job.ledger.room())
    chunk_bytes = data_row_bytes(data, plan.length) * plan.most_rows
    if not job.policy.undo or job.source.order is not None or chunk_bytes > MAX_BYTES or not leaves_hold_rows(data):
        return None
    return Undo(data, plan, Undo.allocate(data, plan, empty))


class SerialCrew:
    """Runs leases in the caller, one whenever the driver waits. The caller's random streams are put back."""

    kind = "serial"
    forks = True
    size = 1

    def __init__(self) -> None:
        self._inbox: deque[tuple[int, Message | Joined]] = deque([(0, Joined())])
        self._leases: deque[Lease] = deque()
        self._cuts = Cuts()

    def allocate(self) -> Allocate:
        return empty

    def open(self, job: Job, sink: Sink) -> None:
        self._job = job
        reader = Reader(job.source.data, job.plan, job.source.order)
        if reader.fetches:
            reader.follow = reader.in_order
        self._loop = ChunkLoop(
            job.number,
            reader,
            job.fn,
            job.policy,
            local_control(),
            lambda result: result,
            self._emit,
            in_caller=True,
            cuts=self._cuts,
        )
        self._loop.undo = local_undo(job)
        if sink.writer is not None:
            self.output(sink.writer)

    def output(self, writer: RowWriter) -> None:
        self._loop.writer = writer.own()
        self._loop.writer.prepare()

    def replan(self, plan: ChunkPlan) -> None:
        self._job = replace(self._job, plan=plan)
        self._loop.replan(plan)

    def _emit(self, message: Any) -> None:
        self._inbox.append((0, message))

    def limit(self, worker: int) -> int | None:
        return None

    def grant(self, worker: int, lease: Lease) -> None:
        self._leases.append(lease)

    def wait(self, timeout: float) -> list[tuple[int, Message | Joined]]:
        if not self._inbox and self._leases:
            self._run(self._leases.popleft())
        events = list(self._inbox)
        self._inbox.clear()
        return events

    def _run(self, lease: Lease) -> None:
        seeded = self._job.policy.seed is not None
        with preserved_generators() if seeded else contextlib.nullcontext():
            try:
                self._emit(self._loop.run(lease.id, lease.start, lease.stop))
            except ChunkError as failure:
                self._emit(Failed(self._job.number, lease.id, failure.chunk, failure.__cause__, False))

    def ask_back(self, worker: int) -> None:
        pass

    def running(self) -> dict[int, tuple[int, float]]:
        return {}

    def kill(self, worker: int, reason: str) -> None:
        pass

    def describe(self, worker: int) -> str:
        return "in the calling process"

    def pid(self, worker: int) -> int:
        return worker

    def node(self, worker: int) -> str:
        return ""

    def require_open(self) -> None:
        pass

    def close(self, ok: bool, changed: bool) -> None:
        self._leases.clear()
        self._cuts.close()
