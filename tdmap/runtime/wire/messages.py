"""What crosses the pipe between the driver and a worker: numbers and small bytes, never rows.

driver ──► worker   Begin(job, payload)  Protect(...)  WriteTo(job, payload)  Planned(job, plan)
                    Grant(job, lease, start, stop)  Drop(job)
worker ──► driver   Hello  Segment(...)  Done(...)  GaveBack(...)  Skipped(...)  Failed(...)  Refused(...)  Dropped(...)
workers ─► driver   Joined, Left, and Lost(...) when a pipe closes or a process ends
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tdmap.events import Measures
from tdmap.plan import ChunkPlan
from tdmap.sink import Kind


class Begin(NamedTuple):
    """A new job; its source and function are in the payload."""

    job: int
    payload: bytes


class Protect(NamedTuple):
    """Room for the rows of a chunk, this worker's own."""

    job: int
    payload: bytes


class WriteTo(NamedTuple):
    """Where results go from now on."""

    job: int
    payload: bytes


class Planned(NamedTuple):
    """How rows are cut after the first chunks."""

    job: int
    plan: ChunkPlan


class Grant(NamedTuple):
    """Chunks to run."""

    job: int
    lease: int
    start: int
    stop: int
    freed: tuple[int, ...]
    """Slots of this worker that the driver has finished reading."""


class Drop(NamedTuple):
    """The job is over: forget it."""

    job: int
    keep_slots: bool = False
    """The next job uses the memory for results that travel."""
    answer: bool = False
    """Say when it is forgotten: memory was lent for it."""


class Joined(NamedTuple):
    """A worker is ready for leases."""


class Hello(NamedTuple):
    """A worker is ready."""

    pid: int


class Segment(NamedTuple):
    """Consecutive chunks of a lease with the same kind of result are safe."""

    job: int
    lease: int
    start: int
    stop: int
    kind: Kind
    values: tuple[Any, ...]
    """One value a chunk where they travel, else empty."""


class Done(NamedTuple):
    """A lease is over: chunks below `upto` are safe."""

    job: int
    lease: int
    upto: int
    seconds: float
    mutated: bool
    """The function changed rows of the source in place."""
    segment: Segment | None
    """The last segment, spared its own message."""
    peak_memory: int
    measures: Measures | None = None
    """Where the time went, for a job with a meter."""


class GaveBack(NamedTuple):
    """The worker will not run the chunks of the lease from `stop` on."""

    job: int
    lease: int
    stop: int


class Failed(NamedTuple):
    """The function raised, or its result did not fit."""

    job: int
    lease: int
    chunk: int
    error: Any
    """The exception itself, or its bytes (see `tdmap.runtime.wire.remote`)."""
    mutated: bool


class Skipped(NamedTuple):
    """The function raised on some rows of a chunk, and `on_error` lets the others go on. Sent before it is safe."""

    job: int
    lease: int
    chunk: int
    errors: tuple[tuple[int, Any], ...]
    """Rows, counted from the chunk's first, and their exceptions as bytes."""


class Refused(NamedTuple):
    """The worker cannot take the job at all."""

    job: int
    error: Any
    output: bool = False
    """It is the output that could not be opened."""


class Dropped(NamedTuple):
    """The worker has forgotten the job, and let go of all that it was lent."""

    job: int


class Left(NamedTuple):
    """A worker that had nothing to do has gone: it was worn out. Another one takes its place."""


class Lost(NamedTuple):
    """A worker is gone."""

    signal: int | None
    exit_code: int | None
    running: int | None
    """Chunk that it ran, or None."""
    lease: int
    """Lease that it ran."""
    committed: int
    """Chunks of that lease below this one are safe."""
    kind: Kind
    """Kind of the results since the last segment that was reported."""
    peak_memory: int
    reason: str
    unprotected: bool
    """Its function works in place, and the rows of the chunk could not be put back."""


Message = Joined | Segment | Done | GaveBack | Skipped | Failed | Refused | Left | Lost
