"""Executors, and the workers that they give to a job.

    Execution ──start(job)──► Executor ──► Workers ◄──open, grant, wait, close── Driver

Serial, threads, processes, pools of other libraries and Ray are executors. `tdmap.testing.executor` has the tests that
each must pass.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkError, ChunkLoop
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.undo import Undo, undo_room
from tdmap.runtime.wire.messages import Done, Failed, Message
from tdmap.runtime.workers import control as at
from tdmap.sink import Sink

if TYPE_CHECKING:
    from tdmap.execution import Execution


class Executor(ABC):
    """Gives workers to jobs: `executor=` of an operation takes one.

    Attributes:
        size: workers that a job with enough chunks gets.
    """

    size: int

    @abstractmethod
    def start(self, job: Job) -> Workers:
        """Workers for one job. They have the job by `Workers.open`, and join one by one."""

    def check(self, execution: Execution) -> None:
        """Raise ValueError for options about workers that contradict this executor."""
        return None

    def workers(self, wanted: int | None) -> int:
        """How many workers a job with enough chunks gets, if `num_workers` is `wanted`."""
        return self.size

    def begin(self, job: Job, execution: Execution) -> Workers:
        """As `start`, for an executor that needs the other options of the call."""
        return self.start(job)


class Seat(NamedTuple):
    """Where a worker works."""

    pid: int
    """Its process; the number of the worker within this one."""
    text: str
    """For messages: `in worker process 4711`."""
    node: str = ""
    """The machine; empty for this one."""


class Workers(contextlib.AbstractContextManager["Workers"]):
    """The workers of one job. They are numbers, which are never used twice.

    The driver opens the job, grants leases and takes messages until all chunks are done, and closes the job. A context:
    whatever the workers were borrowed from is given back at its end.

    Attributes:
        kind: for `JobStarted.executor`.
        size: how many there are.
        forks: a fork of this process has all of it, and may go on by itself.
    """

    kind: str = "executor"
    size: int
    forks: bool = False

    @abstractmethod
    def open(self, sink: Sink[Any]) -> None:
        """Give the job to the workers. `sink` says where results go, if that is known."""

    @abstractmethod
    def allocate(self, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """Memory that the workers can write to; also before `open`."""

    @abstractmethod
    def grant(self, worker: int, lease: Lease) -> None:
        """Have a worker run a lease."""

    @abstractmethod
    def output(self, writer: RowWriter) -> None:
        """Results have a place from now on. Called once, unless `open` has had the writer."""

    @abstractmethod
    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled. Called once, for an open plan."""

    @abstractmethod
    def wait(self, timeout: float) -> Sequence[tuple[int, Message]]:
        """What has happened, in order for each worker; waits for something at most `timeout` seconds."""

    @abstractmethod
    def close(self, ok: bool, changed: bool) -> None:
        """The job is over; unless `ok`, stop what still runs. `changed`: rows of the source were written."""

    # What only some workers can do.

    def limit(self, worker: int) -> int | None:
        """Most chunks of the worker's next lease; None for any number."""
        return None

    def revoke(self, worker: int) -> None:
        """Ask a worker for chunks back that it has not begun."""
        return None

    def running(self) -> dict[int, tuple[int, float]]:
        """The chunk of each busy worker, and since when on the monotonic clock. Others have no deadline."""
        return {}

    def kill(self, worker: int, reason: str) -> None:
        """End a worker that is stuck; a `Lost` follows."""
        return None

    def seat(self, worker: int) -> Seat:
        """Where a worker works."""
        return Seat(worker, f"in worker {worker}")

    def check(self) -> None:
        """Raise RuntimeError where the workers were ended, and not by the driver."""
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tail: TracebackType | None
    ) -> None:
        return None


class LocalWorkers(Workers):
    """Workers in this process: each has a `ChunkLoop`, and results travel as they are."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._loops: list[ChunkLoop] = []

    def allocate(self, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def add_loop(self, emit: Callable[[Any], None], in_caller: bool = False) -> ChunkLoop:
        """Make the loop of one more worker.

        Args:
            emit: takes the messages of the worker.
            in_caller: as `ChunkLoop`.
        """
        job, control = self.job, at.local_control()
        control[at.RANK] = len(self._loops)
        loop = ChunkLoop(job.number, job.reader(), job.fn, job.policy, control, as_it_is, emit, in_caller=in_caller)
        room = undo_room(job, self.allocate)
        if room is not None:
            loop.undo = Undo(loop.reader.data, job.plan, room)
        self._loops.append(loop)
        return loop

    def output(self, writer: RowWriter) -> None:
        for loop in self._loops:
            loop.writer = writer.own()
            loop.writer.prepare()

    def replan(self, plan: ChunkPlan) -> None:
        for loop in self._loops:  # a first chunk may be running in a thread: its rows do not change
            loop.replan(plan)


def as_it_is(value: object) -> Any:
    """The value, unpacked: workers in this process share its memory."""
    return value


def run_lease(loop: ChunkLoop, lease: int, start: int, stop: int, pack: Callable[[Any], Any] = as_it_is) -> Message:
    """Run a lease, and say how it ended; `pack` makes an exception fit to travel."""
    try:
        report: Done = loop.run(lease, start, stop)
        return report
    except ChunkError as failure:
        return Failed(loop.job, lease, failure.chunk, pack(failure.__cause__), loop.mutated)
