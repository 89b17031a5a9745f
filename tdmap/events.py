"""What the engine tells the outside while it runs: one dataclass an event, one method a callback.

The engine knows no callback by name. Progress bars, profilers and traces subclass `Callback` and override the
methods they need; all of them run in the process (and thread) that called `map`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tdmap.rowerrors import RowError


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job is about to give out its first chunk."""

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
    """`"serial"`, `"thread"`, `"process"` or `"pool"`."""
    time: float
    """`time.monotonic()` of this moment, in seconds."""


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


@dataclass(frozen=True, slots=True)
class ChunkRetried:
    """A chunk goes back to the queue, because its worker died or was stuck."""

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


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: completed, failed, or abandoned by its consumer."""

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
    """A chunk is safe but for rows on which the function raised (`on_error`)."""

    job: int
    """Number of the job."""
    chunk: int
    """Number of the chunk."""
    errors: tuple[RowError, ...]
    """Its failing rows."""


class Callback:
    """Base class of everything that watches a job; override the methods that you need.

    Example:
        >>> class Count(Callback):
        ...     rows = 0
        ...     def on_lease_done(self, event):
        ...         self.rows += event.rows
    """

    def on_job_started(self, event: JobStarted) -> None:
        """Called once, before the first chunk is given out."""

    def on_lease_done(self, event: LeaseDone) -> None:
        """Called whenever a worker has committed a run of chunks."""

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        """Called when a chunk goes back to the queue."""

    def on_worker_died(self, event: WorkerDied) -> None:
        """Called when a worker process has ended unasked."""

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        """Called when a chunk is safe but for rows on which the function raised."""

    def on_job_ended(self, event: JobEnded) -> None:
        """Called once, at the end, also after an error."""


class CallbackList(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = tuple(callbacks)

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

    def on_job_ended(self, event: JobEnded) -> None:
        for callback in self.callbacks:
            callback.on_job_ended(event)
