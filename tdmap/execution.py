"""Who runs a job: the options about workers that every operation takes, and the executor that they stand for."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

from tdmap.arguments import require_integer
from tdmap.data.sizes import row_bytes_of
from tdmap.diagnostics.profiler import OperationProfile
from tdmap.diagnostics.progress import ProgressBar
from tdmap.edges import edge
from tdmap.events import Callback, CallbackList, watching
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.resources import available_memory, usable_cores
from tdmap.runtime.commits import CommitLog
from tdmap.runtime.driver import Driver
from tdmap.runtime.executors.base import Executor, Workers
from tdmap.runtime.executors.foreign import ForeignWorkers, has_threads, is_foreign_pool
from tdmap.runtime.executors.processes import Borrowed, ProcessWorkers
from tdmap.runtime.executors.serial import SerialWorkers
from tdmap.runtime.executors.threads import ThreadWorkers
from tdmap.runtime.workers import worker as worker_module
from tdmap.runtime.workers.launch import require_start_method
from tdmap.runtime.workers.pool import WorkerPool, borrow_pool, give_back
from tdmap.sink import Sink
from tdmap.tuning import Tuning, current

T = TypeVar("T")

EXECUTORS = ("process", "thread", "serial", "ray")

STARTS = ("num_workers", "executor", "mp_start_method", "worker_threads", "max_tasks_per_child", "max_memory")
"""Options that say which workers to start: `pool=` has its own."""

MOST_THREADS = 4
"""Of a step that holds the interpreter lock a fourth of the time."""


class WorkerOptions(TypedDict, total=False):
    """Options about workers.

    Attributes:
        num_workers: number of processes or threads; 0 runs in the caller. Default: the cores that this process may use.
        executor: `"process"`, `"thread"`, `"serial"`, `"ray"`, a `RayCluster`, or your own executor
            (`tdmap.runtime.executors.base.Executor`).
        pool: a `WorkerPool`, or a process pool of this machine: of `multiprocessing`, torch or `multiprocess`, or an
            executor of `concurrent.futures` or loky. Options about starting workers raise beside `pool`.
        mp_start_method: `"fork"`, `"forkserver"` or `"spawn"`.
        worker_threads: number of torch's threads in each worker. Default: 1.
        max_tasks_per_child: replace a worker after this many chunks.
        max_memory: replace a worker, between leases, if its memory has grown by this many bytes.
        pbar: show a progress bar.
        callbacks: `Callback` objects, which receive the events of every job of the operation.
        profile: True prints a profile summary; a path writes it to a file (.json, .txt, .png) or folder.
    """

    num_workers: int | None
    executor: str | Executor
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
    executor: str | Executor = "process"
    mp_start_method: str | None = None
    worker_threads: int = 1
    max_tasks_per_child: int | None = None
    max_memory: int | None = None
    pbar: bool = False
    callbacks: Iterable[Callback] = ()
    profile: bool | str | os.PathLike[str] = False
    tuning: Tuning = field(default_factory=current)

    def __post_init__(self) -> None:
        given: Any = self.callbacks
        if not isinstance(given, Iterable):
            raise TypeError(f"callbacks must be a list of tdmap.events.Callback objects: got {given!r}.")
        callbacks = tuple(given)  # each job of an operation reads them
        for one in callbacks:
            if not isinstance(one, Callback):
                hint = ", a class: pass an instance" if isinstance(one, type) else ""
                raise TypeError(f"callbacks must be tdmap.events.Callback objects: got {one!r}{hint}.")
        if not isinstance(self.profile, (bool, str, os.PathLike)) or self.profile == "":
            raise TypeError(
                "profile must be True (print the summary), False, or the path of a file (.json, .txt, .png) or folder: "
                f"got {self.profile!r}."
            )
        if self.profile is not False and not any(isinstance(one, OperationProfile) for one in callbacks):
            callbacks += (OperationProfile(self.profile),)
        if self.pbar is True and not any(isinstance(one, _Bar) for one in callbacks):
            callbacks += (_Bar(),)
        object.__setattr__(self, "callbacks", callbacks)
        if self.pool is None and self.num_workers == 0 and not isinstance(self.num_workers, bool):
            object.__setattr__(self, "num_workers", None)
            object.__setattr__(self, "executor", "serial")
        if self.executor == "ray":
            object.__setattr__(self, "executor", edge("executor of ray")())
        if isinstance(self.executor, Executor):
            self.executor.check(self)
        elif self.executor not in EXECUTORS:
            names = ", ".join(EXECUTORS)
            raise ValueError(f"executor must be one of {names}, a RayCluster or an Executor: got {self.executor!r}.")
        workers = self.num_workers if self.pool is None else None
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(
                f"num_workers must be 0 (run in the caller), a number of workers, or None (one for each core that this "
                f"process may use, {usable_cores()} here): got {workers!r}."
            )
        if not isinstance(self.pbar, bool):
            raise TypeError(f"pbar must be True or False: got {self.pbar!r}.")
        for name in ("worker_threads", "max_tasks_per_child", "max_memory"):
            value = getattr(self, name)
            if value is not None or name == "worker_threads":
                require_integer(name, value, 1)
        if self.mp_start_method is not None:
            require_start_method(self.mp_start_method)
        if self.pool is not None:
            self._check_pool()

    def _check_pool(self) -> None:
        """Raise for a pool that is none, and for options that say which workers to start beside it."""
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in STARTS and value != option.default:
                raise ValueError(
                    f"pool= and {option.name}={value!r} exclude each other: a pool has its own workers. Pass only one."
                )
        if not isinstance(self.pool, WorkerPool) and not is_foreign_pool(self.pool):
            hint = ""
            if has_threads(self.pool):
                hint = ' Its workers are threads, and executor="thread" runs in threads: leave pool= out.'
            raise TypeError(
                "pool must be a tdmap.WorkerPool, or a pool of multiprocessing or concurrent.futures, got a "
                f"{type(self.pool).__name__}.{hint}"
            )

    @property
    def is_foreign(self) -> bool:
        """Whether the processes of another library's pool do the work."""
        return self.pool is not None and not isinstance(self.pool, WorkerPool)

    @property
    def owns_workers(self) -> bool:
        """Whether this program starts and ends the workers itself, here: one that is given up is no more."""
        return not self.is_foreign and not isinstance(self.executor, Executor)

    @property
    def in_processes(self) -> bool:
        """Whether the workers are other processes, which do not see the memory of this one as it is."""
        return self.executor == "process" or isinstance(self.executor, Executor)

    @property
    def workers(self) -> int:
        """How many there will be, given enough chunks."""
        if self.executor == "serial":
            return 1
        if isinstance(self.pool, WorkerPool):
            return self.pool.num_workers
        if isinstance(self.executor, Executor):
            return self.executor.workers(self.num_workers)
        return self.num_workers or usable_cores()

    def light(self, nbytes: int) -> Execution:
        """This one; or the caller alone, where so many bytes are less work than a job costs."""
        if nbytes > self.tuning.light_bytes:
            return self
        return replace(self, executor="serial", pool=None, num_workers=None, max_tasks_per_child=None)

    def near(self, nbytes: int) -> Execution:
        """This one; or threads of the caller, where those copy so many bytes of memory sooner than processes map them.

        For steps of the engine, which leave the interpreter lock most of the time: a few threads do not wait for it.
        """
        busy = worker_module.in_worker or _is_daemon()
        few = nbytes <= self.tuning.near_bytes and self.workers <= MOST_THREADS
        if self.executor != "process" or self.is_foreign or busy or not few:
            return self
        here: dict[str, Any] = {"executor": "thread", "num_workers": self.workers, "pool": None}
        return replace(self, **here, mp_start_method=None, max_tasks_per_child=None, max_memory=None)

    def with_bars(self, bars: Callable[[], Callback]) -> Execution:
        """With other progress bars, where any are asked for."""
        if not self.pbar:
            return self
        others = (one for one in self.callbacks if not isinstance(one, _Bar))
        return replace(self, pbar=False, callbacks=(*others, bars()))

    def available_memory(self) -> int:
        """Bytes that the call may take for the rows of a dataset."""
        known = self.tuning.available_memory
        return available_memory() if known is None else known

    def run(self, job: Job, sink: Sink[T], log: CommitLog | None = None) -> T:
        """Run a job to its end, and return the sink's result."""
        for _ in self.stream(job, sink, log):
            pass
        return sink.result()

    def stream(self, job: Job, sink: Sink[Any], log: CommitLog | None = None) -> Iterator[tuple[int, Any]]:
        """Run a job; yields each chunk and its result, in order, when the sink streams."""
        watchers = CallbackList([*self.callbacks, *watching()])
        if watchers.measure is not None:
            job = replace(job, policy=replace(job.policy, meter=watchers.measure))
        with self._start(job) as workers:
            row_bytes = row_bytes_of(job.source.data, job.plan.length)
            asked = self.workers if workers.size == job.plan.num_chunks else workers.size
            yield from Driver(job, sink, workers, watchers, row_bytes, log, asked, self.tuning).run()

    def _start(self, job: Job) -> Workers:
        if isinstance(self.executor, Executor):
            return self.executor.begin(job, self)
        if self.executor == "serial" or (self.in_processes and self.is_nested()):
            return SerialWorkers(job)
        if self.is_foreign:
            return ForeignWorkers(job, self.pool)
        wanted = min(self.workers, job.plan.num_chunks)
        if self.executor == "process":
            return ProcessWorkers(job, self._borrow(wanted), wanted, self.tuning)
        if job.policy.seed is not None:
            # The global generators belong to the whole process. A thread would draw from them while the consumer of an
            # iteration does, and neither would draw the numbers that it draws alone.
            return SerialWorkers(job)
        return ThreadWorkers(job, wanted, self.worker_threads, self.tuning.leave_seconds)

    @staticmethod
    def is_nested() -> bool:
        """Whether this is a worker already, of this library or a daemon of another pool; warns if so."""
        if worker_module.in_worker:
            why = "inside a worker process runs serially: the outer map uses the cores already"
        elif _is_daemon():
            why = "in a daemon process, such as a worker of a DataLoader, runs serially: it may not start processes"
        else:
            return False
        warn_user(f'map {why}. Pass executor="serial" to silence this, or executor="thread".')
        return True

    def _borrow(self, wanted: int) -> Borrowed:
        """A reserved pool for a job of so many workers, and what to call when the job is over."""
        how = self.mp_start_method, self.worker_threads
        if isinstance(self.pool, WorkerPool):
            self.pool.reserve()
            return self.pool, self.pool.release
        if self.max_tasks_per_child is not None or self.max_memory is not None:
            limits: Any = {"max_tasks_per_child": self.max_tasks_per_child, "max_memory": self.max_memory}
            own = WorkerPool(wanted, *how, **limits)
            own.reserve()
            return own, own.close
        warm = borrow_pool(self.workers, *how)
        return warm, functools.partial(give_back, warm)


class _Bar(ProgressBar):
    """The one of `pbar=True`."""


def _is_daemon() -> bool:
    other = sys.modules.get("multiprocess")  # the same library under another name
    return multiprocessing.current_process().daemon or (other is not None and other.current_process().daemon)
