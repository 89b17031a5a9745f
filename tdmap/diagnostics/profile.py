"""What a profile holds: for each job and worker, where the time went and what was moved.

    worker seconds of a job = workers × wall time
      = computing + fn waits + memory + reading + writing + dispatch       within leases
      + no core                                                           ready to run, and none was free
      + starting + dispatch + consumer + caller + idle                    between leases

How the seconds of a lease are divided is in `divide`; what the largest part means is in `tdmap.diagnostics.model`.
"""

from __future__ import annotations

import time
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tdmap.events import JobEnded, JobStarted, LeaseDone, Measures
from tdmap.tuning import current

PARTS = {
    "computing": "the function computes",
    "waiting": "the function waits: for the network, a lock, a sleep, a device",
    "memory": "the kernel makes pages for memory that the function allocates",
    "reading": "rows are gathered, or waited for because they were on the disk, or mapped from the page cache",
    "writing": "results are copied into the output, or packed to travel",
    "dispatch": "leases are given out, and chunks begun and ended",
    "starting": "workers start, and take the job",
    "consumer": "the loop that takes the results has one, and more results than it needs are made",
    "caller": "the thread that called makes room for results, joins them, or brings them to their place",
    "idle": "no chunk is left for this worker, and others still work",
    "starved": "a worker is ready to run, and no core is free",
}
"""The parts of a worker's time, and what happens then."""

CHUNK_SECONDS = 10e-6
"""What beginning, writing and ending any chunk costs, however small: counted as dispatch."""

LONG_SECONDS = 5e-3
"""A worker that waits longer between two leases does not wait for the giving out."""

MAPPED_BYTES = 64 << 10
"""Bytes of a cached file that the kernel maps at one page fault (Linux maps 16 pages around it)."""

SOME_WAITS = 0.02
"""A stage that was left without work in fewer of its chunks does not count as one that waits."""

LEADING = 4096
"""Times of the consumer that are remembered to see what a worker waited for."""


class Span(NamedTuple):
    """A lease, on the clock of the profile."""

    worker: int
    start: int
    """First chunk."""
    stop: int
    began: float
    """`time.monotonic()`"""
    ended: float
    rows: int
    parts: tuple[float, float, float]
    """Seconds in reading, in the function and in writing."""
    rss: int


@dataclass
class WorkerProfile:
    """One worker of a job."""

    worker: int
    """Its process id, or thread number."""
    leases: int = 0
    chunks: int = 0
    rows: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """By part of `PARTS`."""
    cpu: float = 0.0
    """CPU seconds."""
    faults: int = 0
    """Page faults without the disk."""
    reads: int = 0
    """Page faults that waited for the disk."""
    disk_read: int = 0
    """Bytes from a disk."""
    disk_written: int = 0
    """Bytes to one."""
    bytes_in: int = 0
    """Bytes of the rows that it had."""
    bytes_out: int = 0
    """Bytes of the results that it made."""
    to_device: int = 0
    """Bytes that it copied to a device."""
    from_device: int = 0
    """Bytes that it fetched from there."""
    rss: int = 0
    """Most resident bytes after a lease."""
    uss: int = 0
    """Most bytes of its own; 0 where it was not measured."""
    until: float = 0.0
    """When its last lease was over."""
    driver_starved: float = 0.0
    """How long the driver had been without a core, before it heard of that."""

    @property
    def busy(self) -> float:
        """Seconds within leases."""
        return sum(self.seconds[part] for part in ("computing", "waiting", "memory", "reading", "writing"))


@dataclass
class JobProfile:
    """One job: a map, or a step of an operation that takes several."""

    number: int
    name: str
    """Of the function."""
    operation: str
    """What was called."""
    rows: int
    chunks: int
    chunk_rows: int
    num_workers: int
    executor: str
    row_bytes: int
    began: float
    """`time.monotonic()`"""
    cores: int
    """Cores that this process may use."""
    seconds: float = 0.0
    """Wall time."""
    state: str = "running"
    """ "running", "complete", "failed", or "left": the consumer took no more results."""
    error: str = ""
    rows_done: int = 0
    rows_before: int = 0
    """Rows that an earlier session of a resumed run had done."""
    workers: dict[int, WorkerProfile] = field(default_factory=dict)
    driver_cpu: float = 0.0
    """CPU seconds of the thread that gives out the leases; with results that are iterated over, of the consumer too."""
    consumer: float = 0.0
    """Seconds that the consumer had a result."""
    retries: int = 0
    deaths: int = 0
    skipped: int = 0
    stalled: float = 0.0
    """Seconds that something on this machine waited for memory (the kernel's pressure figures)."""
    spans: list[Span] = field(default_factory=list)
    _most_spans: int = field(default_factory=lambda: current().traced_leases)
    _heard: float = 0.0
    """How long the driver had been without a core when it heard of the last lease."""
    _taken: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LEADING))

    @staticmethod
    def of(event: JobStarted, operation: str, cores: int) -> JobProfile:
        """A profile that has just begun."""
        sizes = event.num_rows, event.num_chunks, event.chunk_rows
        profile = JobProfile(
            event.job,
            event.name,
            operation,
            *sizes,
            max(event.asked_workers, event.num_workers),
            event.executor,
            event.row_bytes,
            event.time,
            cores,
        )
        profile.rows_done = profile.rows_before = event.done_rows
        return profile

    @property
    def rows_here(self) -> int:
        """Rows that were done while the profiler watched."""
        return self.rows_done - self.rows_before

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of all workers, by part."""
        return {part: sum(worker.seconds[part] for worker in self.workers.values()) for part in PARTS}

    @property
    def worker_seconds(self) -> float:
        """Wall time, times workers."""
        return self.num_workers * self.seconds

    def total(self, name: str) -> Any:
        """The sum of a figure over the workers."""
        return sum(getattr(worker, name) for worker in self.workers.values())

    # -- what comes in -----------------------------------------------------------------------------------

    def took(self, seconds: float, now: float) -> None:
        """The consumer had a result."""
        self.consumer += seconds
        began = now - seconds
        if self._taken and began - self._taken[-1][1] < 1e-4:
            began = self._taken.pop()[0]
        self._taken.append((began, now))

    def done(self, event: LeaseDone, driver_starved: float = 0.0) -> None:
        """A lease is over.

        Args:
            event: what the driver says of it.
            driver_starved: seconds so far that the driver was ready to give out leases, and had no core.
        """
        self.rows_done = event.done_rows
        worker = self.workers.get(event.worker)
        if worker is None:
            worker = self.workers[event.worker] = WorkerProfile(event.worker, until=self.began)
        measures = event.measures
        if measures is None:  # of a worker that could not be asked
            measures = Measures(
                event.time - event.seconds, event.time, 0, 0, event.seconds, 0, 0, event.seconds, *[0] * 17
            )
        starved = measures.starved_before + max(driver_starved - worker.driver_starved, 0.0)
        self._between(worker, measures.began, "dispatch" if worker.leases else "starting", starved)
        # What the driver lacked before it could hear of this lease delays the next one.
        worker.driver_starved, self._heard = self._heard, driver_starved
        worker.until = max(worker.until, measures.ended)
        bytes_in = event.rows * self.row_bytes
        for part, seconds in divide(measures, bytes_in).items():
            worker.seconds[part] += seconds
        worker.leases += 1
        worker.chunks += event.stop - event.start
        worker.rows += event.rows
        worker.cpu += measures.user + measures.system
        worker.faults += measures.faults
        worker.reads += measures.reads
        worker.disk_read += measures.disk_read
        worker.disk_written += measures.disk_written
        worker.bytes_in += bytes_in
        worker.bytes_out += measures.bytes_out
        worker.to_device += measures.to_device
        worker.from_device += measures.from_device
        worker.rss = max(worker.rss, measures.rss)
        worker.uss = max(worker.uss, measures.uss)
        if len(self.spans) < self._most_spans:
            parts = measures.read, measures.fn, measures.write
            times = measures.began, measures.ended
            self.spans.append(Span(event.worker, event.start, event.stop, *times, event.rows, parts, measures.rss))

    def _between(self, worker: WorkerProfile, until: float, part: str, starved: float = 0.0) -> None:
        gap = until - worker.until
        if gap <= 0:
            return
        consumer = 0.0
        for began, ended in reversed(self._taken):
            if ended <= worker.until:
                break
            consumer += max(min(ended, until) - max(began, worker.until), 0.0)
        starved = min(starved, gap - consumer)
        worker.seconds["consumer"] += consumer
        worker.seconds["starved"] += starved
        rest = gap - consumer - starved
        worker.seconds["caller" if part == "dispatch" and rest > LONG_SECONDS else part] += rest

    def so_far(self) -> JobProfile:
        """A copy that is closed at this moment."""
        copy = replace(self, workers=deepcopy(self.workers), spans=list(self.spans))
        copy.close(time.monotonic())
        return copy

    def judge_end(self, event: JobEnded) -> None:
        """Note how the job ended; its error is not kept, which would keep what its frames hold."""
        if event.ok or (isinstance(event.error, GeneratorExit) and event.done_rows == self.rows):
            self.state = "complete"
        elif isinstance(event.error, GeneratorExit):
            self.state = "left"
        else:
            self.state = "failed"
            self.error = f"{type(event.error).__name__}: {event.error}".splitlines()[0]

    def ended(self, done_rows: int, seconds: float, driver_starved: float) -> None:
        """The job is over, after everything else that was heard of it.

        Args:
            done_rows: of the dataset.
            seconds: it took.
            driver_starved: as `done`.
        """
        self.rows_done = done_rows
        self.close(self.began + seconds, driver_starved)

    def close(self, now: float, driver_starved: float = 0.0) -> None:
        """No more comes; workers that had nothing to do get their time.

        Args:
            now: `time.monotonic()` of the end.
            driver_starved: as `done`.
        """
        self.seconds = now - self.began
        chunks, rows = self.total("chunks"), self.total("rows")
        if chunks and rows:  # the first results may have settled other sizes than the job began with
            self.chunk_rows = -(-rows // chunks)
            self.chunks = max(chunks, 1 if self.state == "complete" else self.chunks)
        last = max((worker.until for worker in self.workers.values()), default=now)
        for worker in self.workers.values():
            starved = max(driver_starved - worker.driver_starved, 0.0)
            self._between(worker, last, "idle", max(starved - (now - last), 0.0))
            worker.until = last
            self._between(worker, now, "caller", starved)
        for number in range(self.num_workers - len(self.workers)):
            worker = self.workers[-1 - number] = WorkerProfile(-1 - number, until=self.began)
            self._between(worker, now, "idle")


def divide(measures: Measures, bytes_in: int) -> dict[str, float]:
    """The seconds of a lease by part.

    Args:
        measures: of the lease.
        bytes_in: of its rows.

    - A stage takes the CPU time that it had, and what it waited where it has waited at all: a stage that was never
      left without work, and yet took longer than it computed, had no core. So had all that is left.
    - Of the waits of the function, as many as were page faults on the disk are reading; or as large a share as that of
      the rows which came from the disk.
    - The kernel's time for page faults in the function is reading where they map rows of a cached file, and memory
      where they make new pages.
    - `CHUNK_SECONDS` a chunk are dispatch, wherever they were spent, and so is what computed between the stages.

    Example:
        >>> lease = Measures(*[0] * 25)._replace(began=0.0, ended=1.0, chunks=1, fn=0.9, write=0.1)
        >>> lease = lease._replace(fn_cpu=0.6, write_cpu=0.1, fn_waits=3, user=0.7)
        >>> {part: round(seconds, 1) for part, seconds in divide(lease, 0).items() if round(seconds, 1)}
        {'computing': 0.6, 'waiting': 0.3, 'writing': 0.1}
    """
    # What is asked of the kernel and of the clocks is not one moment: nothing may become more than there was.
    m = measures
    whole = max(m.ended - m.began, 0.0)
    starved = min(m.starved, whole)
    cpus = [min(m.read_cpu, m.read), min(m.fn_cpu, m.fn), min(m.write_cpu, m.write)]
    cpu = m.user + m.system
    if sum(cpus) > cpu > 0:  # those are of samples, this is of the whole lease
        cpus = [value * cpu / sum(cpus) for value in cpus]
    away = [m.read - cpus[0], m.fn - cpus[1], m.write - cpus[2]]
    waits = [m.read_waits, m.fn_waits, m.write_waits]
    blocked = [gap if count >= SOME_WAITS * m.chunks else 0.0 for gap, count in zip(away, waits)]
    # Starvation is in what did not compute; it is taken from where nothing waits first.
    between = max(whole - m.read - m.fn - m.write, 0.0)
    starved_elsewhere = max(between - max(cpu - sum(cpus), 0.0), 0.0) + sum(away) - sum(blocked)
    left = max(starved - starved_elsewhere, 0.0)
    keep = max(1.0 - left / sum(blocked), 0.0) if sum(blocked) > 0 else 1.0
    read, fn_wait, write_wait = (gap * keep for gap in blocked)
    dispatch = min(between, max(cpu - sum(cpus), 0.0))
    write = cpus[2] + write_wait
    own_write = min(write, m.chunks * CHUNK_SECONDS)
    # Pages that the kernel reads ahead are waited for as well, without a page fault of their own on the disk.
    from_disk = max(m.fn_reads / m.fn_waits if m.fn_waits else 0.0, m.disk_read / max(bytes_in, 1))
    disk = fn_wait * min(from_disk, 1.0)
    faults = max(m.faults + m.reads, 1)
    kernel = min(m.system * min(m.fn_faults / faults, 1.0), cpus[1])
    mapped = kernel * min(bytes_in / MAPPED_BYTES / max(m.fn_faults, 1.0), 1.0)
    parts = {
        "computing": cpus[1] - kernel,
        "waiting": fn_wait - disk,
        "memory": kernel - mapped,
        "reading": cpus[0] + read + disk + mapped,
        "writing": write - own_write,
        "dispatch": dispatch + own_write,
    }
    return {**parts, "starved": max(whole - sum(parts.values()), 0.0)}
