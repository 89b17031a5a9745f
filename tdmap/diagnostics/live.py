"""What `tdmap top` shows: the jobs of a folder of status files, and how their workers fare at this moment.

The jobs are asked nothing: what their workers do is seen from outside, as `top` sees it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tdmap.diagnostics.jobfiles import JobStatus
from tdmap.diagnostics.meter import starved_for
from tdmap.diagnostics.reports.tables import size

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 70
"""From so many columns on there is a table of the workers."""

SHOWN = 32
"""Workers of a job that are shown."""

BUSY = 0.6
"""A worker that computes for this share of the time is bound by that."""


@dataclass
class ProcessSample:
    """A process at one moment, and since the look before."""

    cpu: float = 0.0
    """Cores that it used since then."""
    starved: float = 0.0
    """Share of the time that it was ready to run, and no core was free."""
    rss: int = 0
    """Resident bytes."""
    state: str = "?"
    """One letter, as in ps: R runs, S sleeps, D waits for the disk."""


class Watcher:
    """Looks at the workers of jobs again and again."""

    def __init__(self) -> None:
        self._processes: dict[int, Any] = {}
        self._waits: dict[int, tuple[float, int]] = {}

    def look(self, job: JobStatus) -> dict[int, ProcessSample]:
        """The live workers of a job that belong to this user."""
        if not job.alive:
            return {}
        own = job.executor not in ("process", "pool", "ray")
        numbers = [job.process.pid] if own else [worker.worker for worker in job.workers]
        found: dict[int, ProcessSample] = {}
        for number in numbers:
            look = self._look_at(number, job.process.pid)
            if look is not None:
                found[number] = look
        return found

    def _look_at(self, pid: int, driver: int) -> ProcessSample | None:
        import psutil

        try:
            process = self._processes.get(pid)
            if process is None:
                process = psutil.Process(pid)
                process.cpu_percent()  # from now on
                self._processes[pid] = process
            with process.oneshot():
                if pid != driver and not _is_under(process, driver):
                    return None  # the number has been given to another process
                state = {psutil.STATUS_RUNNING: "R", psutil.STATUS_DISK_SLEEP: "D", psutil.STATUS_SLEEPING: "S"}
                letter = state.get(process.status(), "?")
                return ProcessSample(process.cpu_percent() / 100, self._starved(pid), process.memory_info().rss, letter)
        except (psutil.Error, OSError, ValueError):
            self._processes.pop(pid, None)
            return None

    def _starved(self, pid: int) -> float:
        """Share of the time since the last look that a process waited for a core."""
        now, nanoseconds = time.monotonic(), starved_for(str(pid))
        then, before = self._waits.get(pid, (now, nanoseconds))
        self._waits[pid] = now, nanoseconds
        return min(max(nanoseconds - before, 0) / 1e9 / (now - then), 1.0) if now > then else 0.0


def _is_under(process: Any, driver: int) -> bool:
    """Whether a process was started by the driver, or by its server of forks."""
    return any(parent.pid == driver for parent in process.parents())


def verdict_so_far(job: JobStatus, looks: dict[int, ProcessSample]) -> str:
    """What bounds a job at this moment, as far as that can be seen from outside."""
    if not job.alive:
        return "dead: its process has ended without a word" if job.alive is False else "on another machine"
    if not job.workers:
        return "no chunk is done yet"
    cores = sum(look.cpu for look in looks.values()) / max(len(looks), 1)
    starved = sum(look.starved for look in looks.values()) / max(len(looks), 1)
    disk = sum(look.state == "D" for look in looks.values()) / max(len(looks), 1)
    if time.time() - job.updated > 5:
        return f"no word for {time.time() - job.updated:.0f} s: the loop over the results has one, or a chunk is long"
    if looks and cores + starved >= BUSY and cores > 0.02:
        missing = f", and have no core for {starved:.0%}" if starved >= 0.1 else ""
        return f"bound by fn: workers compute {min(cores, 1):.0%} of the time{missing}"
    if disk >= 0.5:
        return "bound by the disk: workers wait for it"
    if job.busy >= BUSY:
        return f"workers are in fn {job.busy:.0%} of the time, and compute {cores:.0%}"
    return f"workers are idle {1 - job.busy:.0%} of the time: the consumer is slow, or chunks are small"


def facts(job: JobStatus, looks: dict[int, ProcessSample]) -> dict[str, Any]:
    """A job for `--json`."""
    found = asdict(job)
    found["process"] = job.process._asdict()
    found["state"] = "running" if job.alive else "dead" if job.alive is False else "unknown"
    found["verdict"] = verdict_so_far(job, looks)
    found["remaining"] = job.remaining
    for worker in found["workers"]:
        look = looks.get(worker["worker"])
        worker.update(asdict(look) if look is not None else {})
    return found


def screen(jobs: Sequence[tuple[JobStatus, dict[int, ProcessSample]]], columns: int, place: str) -> RenderableType:
    """All jobs, for a terminal of so many columns."""
    from rich.console import Group

    if not jobs:
        return f"no job is shown here ({place}): pass callbacks=[tdmap.diagnostics.StatusFile()] to an operation"
    parts: list[RenderableType] = []
    for job, looks in jobs:
        parts.append(_headline(job, columns))
        if columns >= WIDE and job.alive and job.workers:
            parts.append(_workers(job, looks))
        parts.append(verdict_so_far(job, looks))
        parts.append("")
    return Group(*parts[:-1])


def _headline(job: JobStatus, columns: int) -> RenderableType:
    from rich.text import Text

    what = job.name if job.operation in (job.name, "map", "map_iter") else f"{job.operation}: {job.name}"
    done = job.rows_done / job.rows if job.rows else 1.0
    left = "" if job.remaining is None or not job.alive else f", {duration(job.remaining)} left"
    state = "" if job.alive else "DEAD " if job.alive is False else ""
    text = Text(f"{state}{what}  {done:.0%}", style="bold red" if job.alive is False else "bold")
    text.append(f"  {job.rows_done:,} of {job.rows:,} rows", style="not bold")
    text.append(f", {job.rate:,.0f} rows/s, {size(job.rate * job.row_bytes)}/s{left}", style="not bold")
    for number, name in ((job.retries, "retries"), (job.skipped, "rows skipped"), (job.deaths, "workers died")):
        if number:
            text.append(f", {number} {name}", style="yellow")
    text.append(
        f"\npid {job.process.pid}, {duration(job.seconds)}, {job.num_workers} {job.executor} workers: {job.program}",
        style="dim",
    )
    return text


def _workers(job: JobStatus, looks: dict[int, ProcessSample]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("worker", "rows", "rows/s", "busy", "CPU", "state", "rss", "last rows"):
        table.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    for worker in job.workers[:SHOWN]:
        look = looks.get(worker.worker) or (looks.get(job.process.pid) if len(job.workers) == 1 else None)
        seconds = max(job.seconds, 1e-6)
        table.add_row(
            str(worker.worker),
            f"{worker.rows:,}",
            f"{worker.rows / seconds:,.0f}",
            f"{min(worker.seconds / seconds, 1):.0%}",
            "-" if look is None else f"{look.cpu:.0%}",
            "-" if look is None else look.state,
            "-" if look is None else size(look.rss),
            f"{worker.start:,}-{min(worker.stop, job.rows):,}",
        )
    return table


def duration(seconds: float) -> str:
    """Time for people.

    Example:
        >>> duration(7.2), duration(135), duration(7300)
        ('7 s', '2:15 min', '2:01 h')
    """
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole // 60}:{whole % 60:02} min" if whole >= 60 else f"{whole} s"
