"""Those who run leases.

Crew         what the driver asks of any of them
PlainCrew    workers that cannot be held back, looked at or ended one by one: most of what is asked is nothing to do
  LocalCrew  workers in this process: the caller itself, or threads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkError, ChunkLoop
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.undo import Undo, undo_room
from tdmap.runtime.wire.messages import Done, Failed, Message
from tdmap.runtime.workers import control as at
from tdmap.sinks import Allocate, Sink


class Joined(NamedTuple):
    """A worker is ready for leases."""


class Crew(Protocol):
    """The workers that run leases. Workers are numbers that are never used twice."""

    kind: str
    size: int
    forks: bool
    """Whether a fork of the process has all of it, and may go on by itself."""

    def open(self, job: Job, sink: Sink) -> None:
        """Give the job to the workers; they join one by one."""
        ...

    def allocate(self) -> Allocate:
        """How memory is made that the workers can write into."""
        ...

    def grant(self, worker: int, lease: Lease) -> None:
        """Have a worker run a lease."""
        ...

    def limit(self, worker: int) -> int | None:
        """Most chunks that the worker should be given now."""
        ...

    def output(self, writer: RowWriter) -> None:
        """Results have a place from now on."""
        ...

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled; none of them has been granted yet."""
        ...

    def wait(self, timeout: float) -> list[tuple[int, Message | Joined]]:
        """What has happened, in order for each worker; waits for something at most `timeout` seconds."""
        ...

    def ask_back(self, worker: int) -> None:
        """Have a worker give back chunks that it has not begun."""
        ...

    def running(self) -> dict[int, tuple[int, float]]:
        """The chunk that each busy worker runs, and since when on the monotonic clock."""
        ...

    def kill(self, worker: int, reason: str) -> None:
        """End a worker that is stuck; a `Lost` follows."""
        ...

    def describe(self, worker: int) -> str:
        """How messages name a worker."""
        ...

    def pid(self, worker: int) -> int:
        """Its process id, or its own number within this process."""
        ...

    def node(self, worker: int) -> str:
        """The machine that a worker runs on; empty for this one."""
        ...

    def require_open(self) -> None:
        """Raise RuntimeError when somebody else has ended the workers for good."""
        ...

    def close(self, ok: bool, changed: bool) -> None:
        """The job is over; unless `ok`, stop what still runs. `changed`: rows of the source were written."""
        ...


class PlainCrew:
    """A base for crews whose workers cannot be asked for work back, watched or killed."""

    def limit(self, worker: int) -> int | None:
        """No limit."""
        return None

    def ask_back(self, worker: int) -> None:
        """Ignored: a worker keeps its lease."""

    def running(self) -> dict[int, tuple[int, float]]:
        """Unknown, so no chunk is ever overdue."""
        return {}

    def kill(self, worker: int, reason: str) -> None:
        """Ignored: no worker can be killed alone."""

    def pid(self, worker: int) -> int:
        """The number of the worker."""
        return worker

    def node(self, worker: int) -> str:
        """This machine."""
        return ""

    def require_open(self) -> None:
        """Always open: only this crew ends its workers."""


class LocalCrew(PlainCrew):
    """Workers in this process: each has a `ChunkLoop`, and results travel as they are."""

    def __init__(self) -> None:
        self._loops: list[ChunkLoop] = []

    def allocate(self) -> Allocate:
        """Ordinary memory."""
        return empty

    def add_loop(self, job: Job, emit: Callable[[Any], None], in_caller: bool = False) -> ChunkLoop:
        """Make the loop of one more worker.

        Args:
            job: the job.
            emit: takes the messages of the worker.
            in_caller: as `ChunkLoop`.
        """
        control = at.local_control()
        control[at.RANK] = len(self._loops)
        loop = ChunkLoop(job.number, job.reader(), job.fn, job.policy, control, as_it_is, emit, in_caller=in_caller)
        room = undo_room(job, empty)
        if room is not None:
            loop.undo = Undo(loop.reader.data, job.plan, room)
        self._loops.append(loop)
        return loop

    def output(self, writer: RowWriter) -> None:
        """Each worker gets a writer of its own."""
        for loop in self._loops:
            loop.writer = writer.own()
            loop.writer.prepare()

    def replan(self, plan: ChunkPlan) -> None:
        """Tell each loop. A first chunk may be running in a thread: its rows do not change."""
        for loop in self._loops:
            loop.replan(plan)


def empty(dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Ordinary memory, for workers in this process."""
    return torch.empty(shape, dtype=dtype)


def as_it_is(value: Any) -> Any:
    """The value: nothing is packed for somebody in this process."""
    return value


def run_lease(loop: ChunkLoop, lease: int, start: int, stop: int, pack: Callable[[Any], Any] = as_it_is) -> Message:
    """Run a lease, and say how it ended; `pack` makes an exception fit to travel."""
    try:
        report: Done = loop.run(lease, start, stop)
        return report
    except ChunkError as failure:
        return Failed(loop.job, lease, failure.chunk, pack(failure.__cause__), loop.mutated)
