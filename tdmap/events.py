"""What the engine tells the outside while it runs: one dataclass an event, one method a callback.

The engine knows no callback by name. Progress bars, profilers and traces subclass `Callback` and override the
methods they need; all of them run in the process (and thread) that called `map`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tdmap.errors import RowError


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job is about to assign its first chunk."""

    job: int
    """Number of the job, unique in this process."""
    name: str
    """Name of the function that is mapped."""
    num_rows: int
    """Rows that the job covers."""
    num_chunks: int
    """Chunks that the rows are cut into."""
    chunk_rows: int
    """Rows in a chunk (the last may have fewer)."""
    num_workers: int
    """Workers that share the chunks."""
    executor: str
    """`"serial"`, `"thread"`, `"process"`, `"pool"`, `"ray"`, or the `kind` of the workers of another executor."""
    time: float
    """`time.monotonic()` of this moment, in seconds."""
    row_bytes: int = 0
    """Bytes of a row of the source."""
    asked_workers: int = 0
    """Workers that there would be with enough chunks."""
    done_rows: int = 0
    """Rows that an earlier session of a resumed run has done."""


class Measures(NamedTuple):
    """The time of a lease by activity, measured in its worker for callbacks with a `Callback.meter`."""

    began: float
    """`time.monotonic()` when it began, the same clock in all processes."""
    ended: float
    """And when it was over."""
    chunks: int
    """Chunks that were run."""
    read: float
    """Seconds spent on gathering rows, where chunks are no views of them."""
    fn: float
    """Seconds in the function."""
    write: float
    """Seconds spent on results: writing, packing and sending them, and keeping copies of rows that are changed."""
    read_cpu: float
    """CPU seconds of `read`: scaled up from the chunks that were sampled, as the figures that follow."""
    fn_cpu: float
    """CPU seconds of `fn`."""
    write_cpu: float
    """CPU seconds of `write`."""
    fn_faults: float
    """Pages that the kernel had to map while the function ran, without the disk."""
    fn_reads: float
    """Pages that the function had to wait for, because they were on the disk."""
    read_waits: float
    """How often gathering was left without work to do, most often for the disk."""
    fn_waits: float
    """How often the function was: for the disk, the network, a lock, a sleep."""
    write_waits: float
    """How often writing was."""
    faults: int
    """Page faults of the whole lease, without the disk."""
    reads: int
    """Page faults that waited for the disk."""
    user: float
    """CPU seconds of the whole lease, in code of the user's and of libraries."""
    system: float
    """CPU seconds of the kernel."""
    starved: float
    """Seconds that the worker was ready to run, and no core was free."""
    starved_before: float
    """The same between the lease before and this one."""
    disk_read: int
    """Bytes that came from a disk."""
    disk_written: int
    """Bytes that are to go to one."""
    bytes_out: int
    """Bytes of results."""
    rss: int
    """Resident bytes of the worker's process after the lease."""
    uss: int
    """Those that are its own alone; 0 where that was not looked at."""
    to_device: int = 0
    """Bytes that were copied to a device for the function."""
    from_device: int = 0
    """Bytes of results that came back from it."""


@dataclass(frozen=True, slots=True)
class LeaseDone:
    """A worker has committed a run of consecutive chunks."""

    job: int
    """Number of the job."""
    worker: int
    """Process id of the worker (thread number for the thread executor)."""
    start: int
    """First chunk."""
    stop: int
    """One past the last chunk."""
    rows: int
    """Rows in these chunks."""
    seconds: float
    """Time that the worker spent on them."""
    done_rows: int
    """Rows of the job that are committed, these included."""
    time: float
    """`time.monotonic()` when the news arrived."""
    measures: Measures | None = None
    """Where the time went; None unless a callback has a `meter`."""
    first_row: int = 0
    """First row of these chunks."""
    node: str = ""
    """The machine of the worker, on a cluster."""


@dataclass(frozen=True, slots=True)
class ResultTaken:
    """The consumer of a stream of results, such as a loop over `map_iter`, requests the next result."""

    job: int
    """Number of the job."""
    chunk: int
    """The chunk whose result it had."""
    seconds: float
    """How long it had it. Nothing is given to workers meanwhile."""
    time: float
    """`time.monotonic()` of this moment."""


@dataclass(frozen=True, slots=True)
class ChunkRetried:
    """A chunk runs again, because its worker died or was stuck."""

    job: int
    """Number of the job."""
    chunk: int
    """Number of the chunk."""
    rows: tuple[int, int]
    """First and one-past-last row of the chunk."""
    attempt: int
    """How often it has failed so far."""
    reason: str
    """Why, in words."""


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process ended while the job ran."""

    job: int
    """Number of the job."""
    worker: int
    """Its process id."""
    signal: int | None
    """Signal that ended it, or None."""
    exit_code: int | None
    """Exit code, or None when a signal ended it."""
    chunk: int | None
    """Chunk that was running, or None."""
    node: str = ""
    """The machine that it ran on, on a cluster."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has ended: it completed, failed, or its consumer left the loop."""

    job: int
    """Number of the job."""
    ok: bool
    """True when every chunk was committed."""
    done_rows: int
    """Rows committed."""
    seconds: float
    """Wall time from `JobStarted`."""
    error: BaseException | None
    """The exception that ended it, if one did."""
    errors: tuple[RowError, ...] = ()
    """Rows that were skipped, with `on_error`."""


@dataclass(frozen=True, slots=True)
class RowsSkipped:
    """A chunk is done except for rows on which the function raised (`on_error`)."""

    job: int
    """Number of the job."""
    chunk: int
    """Number of the chunk."""
    errors: tuple[RowError, ...]
    """Its failing rows."""


class Callback:
    """Base class of callbacks, which receive the events of a job. Override the methods that you need.

    Example:
        >>> class Count(Callback):
        ...     rows = 0
        ...     def on_lease_done(self, event):
        ...         self.rows += event.rows
    """

    meter: ClassVar[type[Any] | None] = None
    """What measures leases in the workers, as `LeaseDone.measures`; None: leases are not measured, at no cost."""

    def on_job_started(self, event: JobStarted) -> None:
        """Called once, before the first chunk is assigned."""

    def on_lease_done(self, event: LeaseDone) -> None:
        """Called when a worker has committed a run of chunks."""

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        """Called when a chunk must run again."""

    def on_worker_died(self, event: WorkerDied) -> None:
        """Called when a worker process has ended unexpectedly."""

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        """Called when a chunk is done except for rows on which the function raised."""

    def on_result_taken(self, event: ResultTaken) -> None:
        """Called when the consumer of a stream requests the result after that of a chunk."""

    def on_tick(self, time: float) -> None:
        """Called after every message of a worker, and at least twice a second while the driver waits for workers.

        Args:
            time: `time.monotonic()`.
        """

    def on_job_ended(self, event: JobEnded) -> None:
        """Called once, at the end, also after an error."""


class CallbackList(Callback):
    """Several callbacks as one, called in order.

    Args:
        callbacks: any number.

    Attributes:
        takers: those that take `ResultTaken`. An event that comes once a chunk is made only for those that take it.
        tickers: those that take ticks.
        measure: what measures leases, for the first one that has a `meter`.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = tuple(callbacks)
        self.takers: list[Callback] = []
        self.tickers: list[Callback] = []
        self.measure: type[Any] | None = None
        for one in self.callbacks:
            if _overrides(one, "on_result_taken"):
                self.takers.append(one)
            if _overrides(one, "on_tick"):
                self.tickers.append(one)
            self.measure = self.measure or type(one).meter

    def on_job_started(self, event: JobStarted) -> None:
        for callback in self.callbacks:
            callback.on_job_started(event)

    def on_lease_done(self, event: LeaseDone) -> None:
        for callback in self.callbacks:
            callback.on_lease_done(event)

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        for callback in self.callbacks:
            callback.on_chunk_retried(event)

    def on_worker_died(self, event: WorkerDied) -> None:
        for callback in self.callbacks:
            callback.on_worker_died(event)

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        for callback in self.callbacks:
            callback.on_rows_skipped(event)

    def on_result_taken(self, event: ResultTaken) -> None:
        for callback in self.takers:
            callback.on_result_taken(event)

    def on_tick(self, time: float) -> None:
        for callback in self.tickers:
            callback.on_tick(time)

    def on_job_ended(self, event: JobEnded) -> None:
        for callback in self.callbacks:
            callback.on_job_ended(event)


def _overrides(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name, None) is not getattr(Callback, name)


# -- callbacks for whatever is called ------------------------------------------------------------------

_watching: ContextVar[tuple[Callback, ...]] = ContextVar("watching", default=())


def watching() -> tuple[Callback, ...]:
    """Callbacks that watch every operation called in this context, beside the ones in its `callbacks=`."""
    return _watching.get()


@contextmanager
def watch(callback: Callback) -> Iterator[None]:
    """Send the events of every operation in the block to a callback, for the current thread or task only."""
    token = _watching.set((*_watching.get(), callback))
    try:
        yield
    finally:
        _watching.reset(token)
