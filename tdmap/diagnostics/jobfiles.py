"""Status files: how far a job is, for `tdmap top` in another terminal.

    job with callbacks=[StatusFile()] ──once a second──► <folder>/<pid>-<job>.json ◄── tdmap top

The file is removed at the end of the job. A job that is killed leaves its file, which names a process that has ended.
"""

from __future__ import annotations

import contextlib
import json
import math
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
from tdmap.process_state import ProcessId, running_operation

EVERY_SECONDS = 1.0
"""How often a file is written."""

KEPT_SECONDS = 86_400.0
"""Files of jobs that were killed are removed after so long."""

MOST_WORKERS = 1024
"""Workers that a file lists."""

MOST_SECONDS = 1e10
"""Times that a file may say; some centuries."""

_MOST_WHOLE = 1 << 53


def status_folder() -> Path:
    """The folder of the files of this user."""
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
        """Seconds until it is done, at the present rate; None when the rate says nothing."""
        seconds = (self.rows - self.rows_done) / self.rate if self.rate > 0 else math.inf
        return seconds if seconds < MOST_SECONDS else None


class _Job:
    def __init__(self, event: JobStarted) -> None:
        operation = running_operation()
        self.began = self.seen_time = event.time
        self.seen_rows = event.done_rows  # of earlier sessions: they say nothing about the rate
        self.path: Path | None = None
        self.workers: dict[int, WorkerStatus] = {}
        self.status = JobStatus(
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

    def text(self, now: float) -> bytes:
        """What its file says at the time `now`."""
        status = self.status
        rate = (status.rows_done - self.seen_rows) / max(now - self.seen_time, 1e-6)
        status.rate = rate if not status.rate else 0.5 * (rate + status.rate)
        self.seen_time, self.seen_rows = now, status.rows_done
        status.updated = status.began + now - self.began
        status.workers = list(self.workers.values())[:MOST_WORKERS]
        facts = asdict(status)
        del facts["alive"]
        return json.dumps(facts).encode()


class StatusFile(Callback):
    """Show jobs in `tdmap top`: write a file of some hundred bytes for each job, once a second.

    A file that cannot be written is left out: no job fails for it.

    Args:
        folder: where to write; pass it to `tdmap top`, too. Default: `$XDG_RUNTIME_DIR/tdmap`, or `tdmap-<uid>` in the
            temporary folder, where `tdmap top` looks by itself.

    Example:
        >>> import tempfile, torch, tdmap
        >>> status = tdmap.diagnostics.StatusFile(tempfile.mkdtemp())
        >>> tdmap.map(torch.arange(3), lambda x: x + 1, num_workers=0, callbacks=[status])
        tensor([1, 2, 3])
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = status_folder() if folder is None else Path(folder)
        self._due = 0.0
        self._jobs: dict[int, _Job] = {}

    def on_job_started(self, event: JobStarted) -> None:
        self._jobs[event.job] = _Job(event)
        self._due = event.time

    def on_lease_done(self, event: LeaseDone) -> None:
        job = self._jobs[event.job]
        worker = job.workers.setdefault(event.worker, WorkerStatus(event.worker))
        worker.rows += event.rows
        worker.seconds += event.seconds
        worker.start, worker.stop = event.first_row, event.first_row + event.rows
        job.status.rows_done = event.done_rows

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        self._jobs[event.job].status.retries += 1

    def on_worker_died(self, event: WorkerDied) -> None:
        job = self._jobs[event.job]
        job.status.deaths += 1
        job.workers.pop(event.worker, None)

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        self._jobs[event.job].status.skipped += len(event.errors)

    def on_tick(self, time: float) -> None:
        if time < self._due:
            return
        self._due = time + EVERY_SECONDS
        for job in self._jobs.values():
            try:
                if job.path is None:
                    self.folder.parent.mkdir(parents=True, exist_ok=True)
                    hidden.make_folder(self.folder, 0o700)
                    prune(self.folder)
                    job.path = self.folder / f"{os.getpid()}-{job.status.job}.json"
                hidden.replace_file(job.path, job.text(time), durable=False)
            except (OSError, TdmapError):
                self._due = math.inf

    def on_job_ended(self, event: JobEnded) -> None:
        job = self._jobs.pop(event.job, None)
        if job is not None and job.path is not None and job.path.name.startswith(f"{os.getpid()}-"):
            with contextlib.suppress(OSError, TdmapError):
                hidden.remove(job.path)


def read_jobs(folder: Path) -> list[JobStatus]:
    """The jobs of a folder, the oldest first. Files that are none of ours, or half gone, are left out.

    Raises:
        PermissionError: the folder is private to another user.
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
_WHOLE = (
    *("job", "rows", "chunks", "chunk_rows", "row_bytes", "num_workers"),
    *("rows_done", "rows_before", "retries", "deaths", "skipped"),
)


def _parse(text: bytes) -> JobStatus:
    """A status from a file that any user may have written.

    Raises:
        ValueError, TypeError, KeyError: it says something else.
    """
    facts = hidden.parse_json(text)
    pid, host, *numbers = facts["process"]
    who = ProcessId(_whole(pid), hidden.printable(host, 100), *(_whole(number, 1 << 64) for number in numbers))
    if not 0 < who.pid < 1 << 31:
        raise ValueError("no process")
    said: dict[str, Any] = {name: hidden.printable(facts[name], 300) for name in _TEXTS}
    said |= {name: _whole(facts[name]) for name in _WHOLE}
    said |= {name: _real(facts[name], most) for name, most in (("began", 1e10), ("updated", 1e10), ("rate", 1e15))}
    workers = [
        WorkerStatus(
            _whole(one["worker"]), _whole(one["rows"]), _real(one["seconds"]), _whole(one["start"]), _whole(one["stop"])
        )
        for one in facts["workers"][:MOST_WORKERS]
    ]
    return JobStatus(process=who, workers=workers, alive=who.is_alive, **said)


def _whole(value: object, most: int = _MOST_WHOLE) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError("no number of a status")
    return value


def _real(value: Any, most: float = MOST_SECONDS) -> float:
    if type(value) not in (int, float) or not 0 <= value < most:  # NaN is not either
        raise ValueError("no number of a status")
    return float(value)


def prune(folder: Path) -> None:
    """Remove the files of jobs that were killed long ago. Those that are young are not read: a job waits for this."""
    oldest = time.time() - KEPT_SECONDS
    for name in _names(folder):
        with contextlib.suppress(OSError, TdmapError):
            if os.lstat(folder / name).st_mtime > oldest:
                continue
            job = _read_job(folder / name)
            if job is not None and job.alive is False and job.updated < oldest:
                hidden.remove(folder / f"{job.process.pid}-{job.job}.json")
