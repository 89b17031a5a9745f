"""Small files that say how far the jobs of this user are, so that another terminal can look (`tdmap top`).

    job ──once a second──► <folder>/<pid>-<job>.json ◄── tdmap top

A job that takes less than `FIRST_SECONDS` writes none. The file is removed at the end of the job; a job that is killed
leaves its own, and who reads it sees that its process is gone. Nothing depends on these files, so what cannot be
written is not written, and nobody is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tdmap.errors import TdmapError
from tdmap.events import Callback, ChunkRetried, JobEnded, JobStarted, LeaseDone, RowsSkipped, WorkerDied
from tdmap.memory import hidden
from tdmap.process.calls import running_operation
from tdmap.process.identity import ProcessId

VARIABLE = "TDMAP_STATUS_DIR"
"""Environment variable: the folder of the files; empty: there are none."""

FIRST_SECONDS = 1.0
"""A job is shown once it has taken so long."""

EVERY_SECONDS = 1.0
"""How often its file is written."""

KEPT_SECONDS = 86_400.0
"""Files of jobs that were killed are removed after so long."""

MOST_WORKERS = 1024
"""Workers that a file lists."""


def status_folder() -> Path | None:
    """Where the files of this user are; None when they are switched off."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given else None
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "tdmap"
    return Path(tempfile.gettempdir()) / f"tdmap-{os.geteuid()}"


@dataclass
class WorkerStatus:
    """What a worker of a job has done so far."""

    worker: int
    """Its process id, or thread number."""
    rows: int = 0
    seconds: float = 0.0
    """Within leases."""
    start: int = 0
    """First row of its last lease."""
    stop: int = 0
    """One past its last row."""


@dataclass
class JobStatus:
    """How far a job is."""

    process: ProcessId
    job: int
    operation: str
    name: str
    """Of the function."""
    program: str
    executor: str
    rows: int
    chunks: int
    chunk_rows: int
    row_bytes: int
    num_workers: int
    began: float
    """Seconds since 1970."""
    updated: float
    """The same, of this file."""
    rows_done: int = 0
    rows_before: int = 0
    """Rows that earlier sessions of a run had done."""
    rate: float = 0.0
    """Rows a second, over the last seconds."""
    retries: int = 0
    deaths: int = 0
    skipped: int = 0
    workers: list[WorkerStatus] = field(default_factory=list)
    alive: bool | None = True
    """Whether its process still runs; None where that cannot be known from here. Not in the file."""

    @property
    def seconds(self) -> float:
        """How long it has been running, when the file was written."""
        return max(self.updated - self.began, 0.0)

    @property
    def busy(self) -> float:
        """Share of the workers' time within leases, about."""
        whole = self.seconds * max(self.num_workers, 1)
        return min(sum(worker.seconds for worker in self.workers) / whole, 1.0) if whole else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds until it is done, at the present rate; None when nobody can say."""
        return (self.rows - self.rows_done) / self.rate if self.rate > 0 else None


class StatusFile(Callback):
    """Keeps the file of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due = 0.0
        self._status: JobStatus | None = None
        self._workers: dict[int, WorkerStatus] = {}
        self._path: Path | None = None
        self._seen: tuple[float, int] = (0.0, 0)

    def on_job_started(self, event: JobStarted) -> None:
        operation = running_operation()
        self._began = event.time
        self._due = event.time + FIRST_SECONDS
        self._seen = (event.time, event.done_rows)  # of earlier sessions: they say nothing about the rate
        self._status = JobStatus(
            ProcessId.own(),
            event.job,
            "map_iter" if operation is None else operation.name,
            event.name,
            " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:300] if sys.argv else "",
            event.executor,
            event.num_rows,
            event.num_chunks,
            event.chunk_rows,
            event.row_bytes,
            event.num_workers,
            time.time(),
            0.0,
            event.done_rows,
            event.done_rows,
        )

    def on_lease_done(self, event: LeaseDone) -> None:
        status = self._status
        if status is None:
            return
        worker = self._workers.get(event.worker)
        if worker is None:
            worker = self._workers[event.worker] = WorkerStatus(event.worker)
        worker.rows += event.rows
        worker.seconds += event.seconds
        worker.start, worker.stop = event.first_row, event.first_row + event.rows
        status.rows_done = event.done_rows

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        if self._status is not None:
            self._status.retries += 1

    def on_worker_died(self, event: WorkerDied) -> None:
        if self._status is not None:
            self._status.deaths += 1
            self._workers.pop(event.worker, None)

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        if self._status is not None:
            self._status.skipped += len(event.errors)

    def on_tick(self, time: float) -> None:
        if time >= self._due:
            self._due = time + EVERY_SECONDS
            self._write(time)

    def _write(self, now: float) -> None:
        status = self._status
        if status is None:
            return
        before, rows = self._seen
        rate = (status.rows_done - rows) / max(now - before, 1e-6)
        status.rate = rate if not status.rate else 0.5 * (rate + status.rate)
        self._seen = (now, status.rows_done)
        status.updated = status.began + now - self._began
        status.workers = list(self._workers.values())[:MOST_WORKERS]
        try:
            if self._path is None:
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                hidden.make_folder(self.folder, 0o700)
                prune(self.folder)
                self._path = self.folder / f"{os.getpid()}-{status.job}.json"
            facts = asdict(status)
            del facts["alive"]
            hidden.replace_file(self._path, json.dumps(facts).encode(), durable=False)
        except (OSError, TdmapError):
            self._due = float("inf")

    def on_job_ended(self, event: JobEnded) -> None:
        self._status = None
        if self._path is not None and self._path.name.startswith(f"{os.getpid()}-"):
            with contextlib.suppress(OSError, TdmapError):
                hidden.remove(self._path)


def read_jobs(folder: Path) -> list[JobStatus]:
    """The jobs of a folder, the oldest first. Files that are none of ours, or half gone, are left out.

    Raises:
        PermissionError: the folder is another user's, who lets nobody look.
        UntrustedFile: it is a link, or no folder.
    """
    jobs = [job for name in _names(folder) if (job := _read_job(folder / name)) is not None]
    return sorted(jobs, key=lambda job: (job.began, job.process.pid, job.job))


def _names(folder: Path) -> list[str]:
    try:
        os.close(hidden.open_folder(folder))
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except FileNotFoundError:
        return []


def _read_job(path: Path) -> JobStatus | None:
    with contextlib.suppress(OSError, TdmapError, ValueError, TypeError, KeyError):
        text = hidden.read(path, 1 << 20, own=False)
        return None if text is None else _parse(text)
    return None


_TEXTS = ("operation", "name", "program", "executor")
_SIZES = ("rows", "chunks", "chunk_rows", "row_bytes", "num_workers")
_WHOLE = ("job", *_SIZES, "rows_done", "rows_before", "retries", "deaths", "skipped")
_REAL = ("began", "updated", "rate")


def _parse(text: bytes) -> JobStatus:
    """A status from a file that anybody may have written.

    Raises:
        ValueError, TypeError, KeyError: it says something else.
    """
    facts = hidden.parse_json(text)
    process = facts["process"]
    if not isinstance(process, list) or len(process) != len(ProcessId._fields):
        raise ValueError("no process")
    pid, host, boot, space, start = process
    who = ProcessId(int(pid), hidden.printable(host, 100), int(boot), int(space), int(start))
    if not 0 < who.pid < 1 << 31:
        raise ValueError("no process")
    said: dict[str, Any] = {name: hidden.printable(facts[name], 300) for name in _TEXTS}
    said |= {name: max(int(facts[name]), 0) for name in _WHOLE}
    said |= {name: float(facts[name]) for name in _REAL}
    workers = [
        WorkerStatus(int(one["worker"]), int(one["rows"]), float(one["seconds"]), int(one["start"]), int(one["stop"]))
        for one in facts["workers"][:MOST_WORKERS]
    ]
    return JobStatus(process=who, workers=workers, alive=who.is_alive, **said)


def prune(folder: Path, now: float | None = None) -> None:
    """Remove the files of jobs that were killed long ago. Those that are young are not read: a job waits for this."""
    oldest = (time.time() if now is None else now) - KEPT_SECONDS
    for name in _names(folder):
        with contextlib.suppress(OSError, TdmapError):
            if os.lstat(folder / name).st_mtime > oldest:
                continue
            job = _read_job(folder / name)
            if job is not None and job.alive is False and job.updated < oldest:
                hidden.remove(folder / f"{job.process.pid}-{job.job}.json")
