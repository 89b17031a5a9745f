"""Who runs a job: the options about workers that every operation takes, and the crew that they stand for."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from tdmap.data.sizes import row_bytes_of
from tdmap.diagnostics.profiler import OperationProfile
from tdmap.diagnostics.progress import ProgressBar
from tdmap.events import Callback, CallbackList, watching
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.resources import available_memory, usable_cores
from tdmap.process_state import Owner
from tdmap.runtime.commits import CommitLog
from tdmap.runtime.crews.base import Crew
from tdmap.runtime.crews.cluster import RayCluster
from tdmap.runtime.crews.foreign import ForeignCrew
from tdmap.runtime.crews.processes import ProcessCrew
from tdmap.runtime.crews.ray import RayCrew
from tdmap.runtime.crews.raypool import borrow_ray_pool
from tdmap.runtime.crews.serial import SerialCrew
from tdmap.runtime.crews.threads import ThreadCrew
from tdmap.runtime.driver import Driver
from tdmap.runtime.workers import worker as worker_module
from tdmap.runtime.workers.launch import require_start_method
from tdmap.runtime.workers.pool import WorkerPool, borrow_pool, give_back
from tdmap.sinks import Sink
from tdmap.tuning import Tuning, current

if TYPE_CHECKING:
    from typing import Unpack

EXECUTORS = ("process", "thread", "serial", "ray")


class WorkerOptions(TypedDict, total=False):
    """Options about workers.

    Attributes:
        num_workers: processes or threads; 0 runs in the caller. Default: the cores that this process may use.
        executor: `"process"`, `"thread"`, `"serial"`, `"ray"`, or a `RayCluster`.
        pool: a `WorkerPool`, or a pool of another library, to run in; the other options about workers are ignored then.
        mp_start_method: `"fork"`, `"forkserver"` or `"spawn"`.
        worker_threads: threads that torch uses in each worker. Default: 1.
        max_tasks_per_child: replace a worker by a fresh one after so many chunks.
        max_memory: replace a worker, between leases, when it has gained so many bytes.
        pbar: show a progress bar.
        callbacks: `Callback` objects, which receive the events of every job of the operation.
        profile: measure where the time goes. True prints a summary; a path is a file (.json, .txt, .png) or a folder.
    """

    num_workers: int | None
    executor: str | RayCluster
    pool: Any
    mp_start_method: str | None
    worker_threads: int
    max_tasks_per_child: int | None
    max_memory: int | None
    pbar: bool
    callbacks: Iterable[Callback]
    profile: bool | str | os.PathLike[str]


@dataclass(frozen=True)
class Execution:
    """Runs jobs as the options about workers say; one operation may run several.

    Raises:
        ValueError: an option is out of range.
        TypeError: `pool` is no pool.
    """

    num_workers: int | None = None
    pool: Any = None
    executor: str | RayCluster = "process"
    mp_start_method: str | None = None
    worker_threads: int = 1
    max_tasks_per_child: int | None = None
    max_memory: int | None = None
    pbar: bool = False
    callbacks: Iterable[Callback] = ()
    profile: bool | str | os.PathLike[str] = False
    tuning: Tuning = field(default_factory=current)

    def __post_init__(self) -> None:
        callbacks = tuple(self.callbacks)  # each job of an operation reads them
        _check_profile(self.profile)
        if self.profile is not False and not any(isinstance(one, OperationProfile) for one in callbacks):
            callbacks += (OperationProfile(self.profile),)
        if self.pbar is True and not any(isinstance(one, _Bar) for one in callbacks):
            callbacks += (_Bar(),)
        object.__setattr__(self, "callbacks", callbacks)
        if self.pool is None and self.num_workers == 0 and not isinstance(self.num_workers, bool):
            object.__setattr__(self, "num_workers", None)
            object.__setattr__(self, "executor", "serial")
        if self.executor == "ray":
            object.__setattr__(self, "executor", RayCluster())
        if isinstance(self.executor, RayCluster):
            self._check_cluster(self.executor)
        elif self.executor not in EXECUTORS:
            raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, or a RayCluster: got {self.executor!r}.")
        workers = self.num_workers
        if self.pool is None and workers is not None and not _is_count(workers):
            raise ValueError(
                f"num_workers must be 0 (run in the caller), a number of workers, or None (one for each core that this "
                f"process may use, {usable_cores()} here): got {workers!r}."
            )
        if not isinstance(self.pbar, bool):
            raise TypeError(f"pbar must be True or False: got {self.pbar!r}.")
        _positive("worker_threads", self.worker_threads)
        if self.max_tasks_per_child is not None:
            _positive("max_tasks_per_child", self.max_tasks_per_child)
        if self.max_memory is not None:
            _positive("max_memory", self.max_memory)
        require_start_method(self.mp_start_method)
        if self.pool is not None and not isinstance(self.pool, WorkerPool) and not _is_foreign_pool(self.pool):
            hint = ""
            if _has_threads(self.pool):
                hint = ' Its workers are threads, and executor="thread" runs in threads: leave pool= out.'
            raise TypeError(
                f"pool must be a tdmap.WorkerPool or a multiprocessing pool, got a {type(self.pool).__name__}.{hint}"
            )

    def _check_cluster(self, cluster: RayCluster) -> None:
        """Raise for options that say where else workers should come from."""
        cluster.require()
        for name in ("pool", "mp_start_method", "max_tasks_per_child", "max_memory"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}= is about processes of this machine, and executor= names a Ray cluster.")

    @classmethod
    def of(cls, **options: Unpack[WorkerOptions]) -> Execution:
        """From the options of an operation.

        Raises:
            TypeError: an unknown option; lists the valid ones.
        """
        known = WorkerOptions.__annotations__
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}: there are {', '.join(known)}.")
        return cls(**options)

    @property
    def is_foreign(self) -> bool:
        """Whether the processes of another library's pool do the work."""
        return self.pool is not None and not isinstance(self.pool, WorkerPool)

    @property
    def owns_workers(self) -> bool:
        """Whether this program starts and ends the workers itself, here: one that is given up is no more."""
        return not self.is_foreign and not isinstance(self.executor, RayCluster)

    @property
    def in_processes(self) -> bool:
        """Whether the workers are other processes, which do not see the memory of this one as it is."""
        return self.executor == "process" or isinstance(self.executor, RayCluster)

    @property
    def workers(self) -> int:
        """How many there will be, given enough chunks."""
        if self.executor == "serial":
            return 1
        if isinstance(self.pool, WorkerPool):
            return self.pool.num_workers
        return self._count()

    def light(self, nbytes: int) -> Execution:
        """This one; or the caller alone, where so many bytes are less work than a job costs."""
        if nbytes > self.tuning.light_bytes:
            return self
        return replace(self, executor="serial", pool=None, num_workers=None, max_tasks_per_child=None)

    def available_memory(self) -> int:
        """Bytes that the call may take for the rows of a dataset."""
        known = self.tuning.available_memory
        return available_memory() if known is None else known

    def run(self, job: Job, sink: Sink, log: CommitLog | None = None) -> Any:
        """Run a job to its end, and return the sink's result."""
        for _ in self.stream(job, sink, log):
            pass
        return sink.result()

    def stream(self, job: Job, sink: Sink, log: CommitLog | None = None) -> Iterator[tuple[int, Any]]:
        """Run a job; yields each chunk and its result, in order, when the sink streams."""
        watchers = CallbackList([*self.callbacks, *watching()])
        meter = watchers.find_meter()
        if meter is not None:
            job = replace(job, policy=replace(job.policy, meter=meter))
        crew, finish = self._crew(job)
        owner = Owner()
        try:
            row_bytes = row_bytes_of(job.source.data, job.plan.length)
            asked = self.workers if crew.size == job.plan.num_chunks else crew.size
            yield from Driver(job, sink, crew, watchers, row_bytes, log, asked, self.tuning).run()
        finally:
            if owner.is_here:  # a fork's copy of this generator, which it collects, has no pool to give back
                finish()

    def _count(self) -> int:
        """Workers that are asked for, or that there is room for."""
        if self.num_workers:
            return self.num_workers
        return self.executor.slots() if isinstance(self.executor, RayCluster) else usable_cores()

    def _crew(self, job: Job) -> tuple[Crew, Callable[[], None]]:
        """The crew that runs the job, and a function to call when the job is over."""
        if self.executor == "serial" or (self.in_processes and _nested()):
            return SerialCrew(), _nothing
        if self.executor == "thread" and job.policy.seed is not None:
            # The global generators belong to the whole process. A thread would draw from them while the consumer of an
            # iteration does, and neither would draw the numbers that it draws alone.
            return SerialCrew(), _nothing
        count = self._count()
        wanted = min(count, job.plan.num_chunks)
        if isinstance(self.executor, RayCluster):
            actors, finish = borrow_ray_pool(self.executor, count, self.worker_threads)
            return RayCrew(actors, wanted, self.tuning), finish
        if self.executor == "thread":
            return ThreadCrew(wanted, self.worker_threads, self.tuning.leave_seconds), _nothing
        if isinstance(self.pool, WorkerPool):
            self.pool.reserve()
            wanted = min(self.pool.num_workers, job.plan.num_chunks)
            return ProcessCrew(self.pool, wanted, self.tuning), self.pool.release
        if self.pool is not None:
            return ForeignCrew(self.pool), _nothing
        if self.max_tasks_per_child is not None or self.max_memory is not None:
            own = WorkerPool(
                wanted,
                self.mp_start_method,
                self.worker_threads,
                max_tasks_per_child=self.max_tasks_per_child,
                max_memory=self.max_memory,
            )
            own.reserve()
            return ProcessCrew(own, wanted, self.tuning), own.close
        warm = borrow_pool(count, self.mp_start_method, self.worker_threads)
        return ProcessCrew(warm, wanted, self.tuning), lambda: give_back(warm)


class _Bar(ProgressBar):
    """The one of `pbar=True`."""


def _nothing() -> None:
    pass


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int) and value >= 1


def _positive(name: str, value: object) -> None:
    if not _is_count(value):
        raise ValueError(f"{name} must be an integer of at least 1: got {value!r}.")


def _is_foreign_pool(pool: object) -> bool:
    parts = ("apply_async", "_pool", "_processes")
    return all(hasattr(pool, name) for name in parts) and not _has_threads(pool)


def _has_threads(pool: object) -> bool:
    """Whether it is a `multiprocessing.pool.ThreadPool`, or the like of another library."""
    workers = getattr(pool, "_pool", None)
    return isinstance(workers, list) and any(isinstance(worker, threading.Thread) for worker in workers)


def _nested() -> bool:
    """Whether this is a worker already: of this library, or a daemon of another pool, which may not have children."""
    if worker_module.in_worker:
        why = "inside a worker process runs serially: the outer map uses the cores already"
    else:
        libraries = [multiprocessing, sys.modules.get("multiprocess")]
        daemons = [library.current_process() for library in libraries if library is not None]
        if not any(process.daemon for process in daemons):
            return False
        why = "in a daemon process, such as a worker of a DataLoader, runs serially: it may not start processes"
    warn_user(f'map {why}. Pass executor="serial" to say so, or executor="thread".')
    return True


def _check_profile(profile: object) -> None:
    if isinstance(profile, bool) or (isinstance(profile, (str, os.PathLike)) and os.fspath(profile)):
        return
    raise TypeError(
        f"profile must be True (print the summary), False, or the path of a file (.json, .txt, .png) or folder: got "
        f"{profile!r}."
    )
