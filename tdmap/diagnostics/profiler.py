"""`tdmap.Profiler`: where the time of operations goes, and what to do about it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from tdmap.diagnostics.meter import Meter, starved_for
from tdmap.diagnostics.model import Verdict, judge
from tdmap.diagnostics.profile import JobProfile
from tdmap.edges import edge
from tdmap.events import (
    Callback,
    ChunkRetried,
    JobEnded,
    JobStarted,
    LeaseDone,
    ResultTaken,
    RowsSkipped,
    WorkerDied,
    watch,
)
from tdmap.memory.resources import usable_cores
from tdmap.process_state import running_operation

HEARD = 256
"""So many leases and results wait to be added up, at most: it is done when no worker waits for the next lease."""


class Profiler(Callback):
    """Profiles every operation in its block: how workers spend their time, the bottleneck, and the option to set.

    `profile=True` profiles one call and prints the summary. Profiling costs about one percent. If an operation fails,
    its profile covers the time until the failure.

    Example:
        >>> import torch, tdmap
        >>> with tdmap.Profiler() as prof:
        ...     _ = tdmap.map(torch.arange(1000.0), torch.sqrt, num_workers=2)
        >>> prof.jobs[0].rows_here
        1000
        >>> prof.verdict.workers
        2
        >>> prof.to_dict()["jobs"][0]["name"]
        'sqrt'
    """

    meter = Meter

    def __init__(self) -> None:
        self._jobs: list[JobProfile] = []
        self._heard: list[Callable[[], None]] = []
        """What happened in jobs and is not added up yet."""
        self._open: dict[int, JobProfile] = {}
        self._cpu: dict[int, float] = {}
        self._stalled: dict[int, float] = {}
        self._starved: dict[int, tuple[str, int]] = {}
        """By job: the thread that drives it, and how long that had been ready to run before."""
        self._block: AbstractContextManager[None] | None = None

    # -- as a block --------------------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        if self._block is not None:
            raise RuntimeError("this Profiler is at work already: make another one.")
        self._block = watch(self)
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._block is not None
        block, self._block = self._block, None
        block.__exit__(kind, error, trace)

    # -- events ------------------------------------------------------------------------------------------

    def on_job_started(self, event: JobStarted) -> None:
        operation = running_operation()
        name = "map_iter" if operation is None else operation.name
        self._open[event.job] = profile = JobProfile.of(event, name, _cores())
        self._jobs.append(profile)
        self._cpu[event.job] = time.thread_time()
        task = f"self/task/{threading.get_native_id()}"
        self._starved[event.job] = task, starved_for(task)
        self._stalled[event.job] = _memory_pressure()

    def on_lease_done(self, event: LeaseDone) -> None:
        profile = self._open.get(event.job)
        if profile is not None:
            self._heard.append(functools.partial(profile.done, event, self._starved_since(event.job)))
            if len(self._heard) >= HEARD:
                self._add_up()

    def _add_up(self) -> None:
        """Add up the events so far, in their order: when a profile is asked for, or when they have become many."""
        heard, self._heard = self._heard, []
        for one in heard:
            one()

    def _starved_since(self, job: int) -> float:
        """Seconds since the job began that this thread, which gives out its leases, was ready and had no core."""
        task, before = self._starved[job]
        return max(starved_for(task) - before, 0) / 1e9  # 0: the thread has ended

    def on_result_taken(self, event: ResultTaken) -> None:
        profile = self._open.get(event.job)
        if profile is not None:
            self._heard.append(functools.partial(profile.took, event.seconds, event.time))
            if len(self._heard) >= HEARD:
                self._add_up()

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        if event.job in self._open:
            self._open[event.job].retries += 1

    def on_worker_died(self, event: WorkerDied) -> None:
        if event.job in self._open:
            self._open[event.job].deaths += 1

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        if event.job in self._open:
            self._open[event.job].skipped += len(event.errors)

    def on_job_ended(self, event: JobEnded) -> None:
        profile = self._open.pop(event.job, None)
        if profile is None:
            return
        starved = self._starved_since(event.job)
        del self._starved[event.job]
        profile.driver_cpu = max(time.thread_time() - self._cpu.pop(event.job), 0.0)
        profile.stalled = _memory_pressure() - self._stalled.pop(event.job)
        profile.judge_end(event)
        self._heard.append(functools.partial(profile.ended, event.done_rows, event.seconds, starved))

    # -- what was seen -----------------------------------------------------------------------------------

    @property
    def jobs(self) -> list[JobProfile]:
        """Profiles of jobs. An operation such as a sort has several jobs."""
        self._add_up()
        return self._jobs

    @property
    def seen(self) -> list[JobProfile]:
        """The jobs; unfinished ones, such as a paused iteration, as they are now."""
        return [job.so_far() if job.state == "running" else job for job in self.jobs]

    @property
    def verdict(self) -> Verdict:
        """The bottleneck of all jobs, and advice."""
        return judge(self.seen)

    def summary(self, width: int | None = None) -> str:
        """A table of jobs and workers, followed by the bottleneck and one line of advice.

        Args:
            width: columns. Default: those of the terminal.
        """
        return str(edge("profile as a table")(self.seen, self.verdict, width))

    def to_dict(self) -> dict[str, Any]:
        """All figures, as numbers, texts, lists and dicts: times in seconds, sizes in bytes."""
        jobs = []
        for job in self.seen:
            facts = {
                key: value for key, value in vars(job).items() if key not in ("spans", "workers") and key[0] != "_"
            }
            workers = [asdict(worker) for worker in job.workers.values()]
            for worker in workers:
                del worker["until"], worker["driver_starved"]
            jobs.append({**facts, "verdict": _verdict(judge([job])), "workers": workers})
        return {"version": 1, "verdict": _verdict(self.verdict), "jobs": jobs}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the leases of each worker as a trace, for ui.perfetto.dev or chrome://tracing: one track a worker."""
        edge("profile as a trace")(self.seen, Path(path))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw timeline, throughput and memory, as a `.png`, `.svg` or `.pdf`.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: nothing was run.
        """
        edge("profile as a picture")(self.seen, self.verdict, Path(path))

    def compare(self, other: Profiler, width: int | None = None) -> str:
        """A table of this profile beside another one, for example before and after a change.

        Args:
            other: the other profile. Its figures come first; ratios are this profile over the other.
            width: columns. Default: those of the terminal.
        """
        return str(edge("profiles compared")(other.seen, self.seen, other.verdict, self.verdict, width))

    def _repr_html_(self) -> str:
        return str(edge("profile as HTML")(self.seen, self.verdict))

    def __repr__(self) -> str:
        return f"<Profiler of {len(self.jobs)} jobs: {self.verdict}>"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "text": str(verdict)}


def _memory_pressure() -> float:
    """Seconds so far that something on this machine has waited for memory; 0 where the kernel does not count."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/pressure/memory", "rb", 0) as file:
        return int(file.read(200).split(b"total=")[1].split()[0]) / 1e6
    return 0.0


@functools.cache
def _cores() -> int:
    return usable_cores()


class OperationProfile(Profiler):
    """The profile of `profile=` on an operation: shown, or written, when it returns.

    Args:
        target: True prints the summary; a path is a file (`.json`: a trace, `.txt`: the summary, `.png`: the plot) or
            a folder for all three and `profile.json`.
    """

    def __init__(self, target: bool | str | os.PathLike[str]) -> None:
        super().__init__()
        self.target = target
        self._waits = False

    def on_job_started(self, event: JobStarted) -> None:
        super().on_job_started(event)
        if not isinstance(self.target, bool):  # a path that cannot be written to is no reason to lose the result
            Path(self.target).parent.mkdir(parents=True, exist_ok=True)
        operation = running_operation()
        if operation is not None and not self._waits:
            self._waits = True
            operation.callback(self.finish)

    def on_job_ended(self, event: JobEnded) -> None:
        super().on_job_ended(event)
        if running_operation() is None:
            self.finish()

    def finish(self) -> None:
        """Show or write it."""
        if self.target is True:
            print(self.summary(), file=sys.stderr)
        else:
            self.write(Path(self.target))  # type: ignore[arg-type]
        self._waits = False

    def write(self, path: Path) -> None:
        """Write it to a file, by its ending, or into a folder."""
        if path.suffix == ".json":
            self.save_trace(path)
        elif path.suffix == ".txt":
            path.write_text(self.summary(120) + "\n")
        elif path.suffix in (".png", ".svg", ".pdf"):
            self.plot(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
            (path / "summary.txt").write_text(self.summary(120) + "\n")
            (path / "profile.json").write_text(json.dumps(self.to_dict(), indent=1) + "\n")
            self.save_trace(path / "trace.json")
            with contextlib.suppress(ModuleNotFoundError):
                self.plot(path / "profile.png")
