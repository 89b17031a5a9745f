"""Pools of other libraries: `multiprocessing.Pool`, torch's, multiprocess's, and executors of `concurrent.futures`.

Such a pool takes calls and gives no choice of the process that runs them. So a call runs a whole lease, every
process keeps the last few jobs it has seen, and the payload lies in shared memory where each can fetch it.
Results that have no place travel back through the pool's own pipe.
"""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tdmap.data.kinds import tensors_of
from tdmap.data.writer import RowWriter
from tdmap.errors import WorkerLost
from tdmap.job import Job
from tdmap.memory.mapped import check_mapped_files
from tdmap.memory.resources import usable_cores
from tdmap.memory.shm import anonymous_file, map_path
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkLoop
from tdmap.runtime.executors.base import Seat, Workers, run_lease
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.wire.messages import Joined, Message, Refused
from tdmap.runtime.wire.packing import unpack
from tdmap.runtime.wire.parcels import IN_LINE, ParcelReader, ParcelWriter
from tdmap.runtime.wire.payload import JobPacker, load_loop
from tdmap.runtime.wire.remote import pack_error
from tdmap.runtime.workers.control import local_control
from tdmap.sink import Sink
from tensordict_lite.memmap.disk.mapping import release

KEPT_JOBS = 4
"""Jobs that a process of the pool remembers."""


class _Bytes(NamedTuple):
    path: str
    nbytes: int

    def read(self) -> bytes:
        mapped = map_path(self.path, self.nbytes)
        with mapped:
            return mapped[:]


class _Task(NamedTuple):
    owner: int
    job: int
    payload: _Bytes
    output: _Bytes | None
    plan: ChunkPlan
    lease: int
    start: int
    stop: int


# -- in a process of the pool ------------------------------------------------------------------------

_loops: OrderedDict[tuple[int, int], ChunkLoop] = OrderedDict()


def run_task(task: _Task) -> bytes:
    """Run a lease; the messages about it."""
    messages: list[Any] = []
    try:
        loop = _loop_of(task)
    except Exception as error:
        return pickle.dumps([Refused(task.job, pack_error(error))])
    loop.emit = messages.append
    messages.append(run_lease(loop, task.lease, task.start, task.stop, pack_error))
    return pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)


def _loop_of(task: _Task) -> ChunkLoop:
    key = (task.owner, task.job)
    loop = _loops.get(key)
    if loop is None:
        pack = ParcelWriter(IN_LINE).pack
        loop = load_loop(task.job, task.payload.read(), local_control(), pack, None, own_process=False)
        _loops[key] = loop
        while len(_loops) > KEPT_JOBS:
            _loops.popitem(last=False)
    if loop.writer is None and task.output is not None:
        writer: RowWriter = unpack(task.output.read())
        writer.prepare()
        loop.writer = writer
    if loop.plan != task.plan:
        loop.replan(task.plan)
    return loop


def forget_job(key: tuple[int, int]) -> None:
    """Let go of a job's memory, in whatever process of the pool this runs."""
    _loops.pop(key, None)


# -- in the driver -------------------------------------------------------------------------------------


def is_foreign_pool(pool: object) -> bool:
    """Whether it runs calls in processes: by `apply_async` of `multiprocessing`, or by `submit`, with a future."""
    of_multiprocessing = all(hasattr(pool, name) for name in ("apply_async", "_pool", "_processes"))
    return (of_multiprocessing or callable(getattr(pool, "submit", None))) and not has_threads(pool)


def has_threads(pool: object) -> bool:
    """Whether the workers of a pool are threads."""
    workers = getattr(pool, "_pool", None)
    if isinstance(workers, list) and any(isinstance(worker, threading.Thread) for worker in workers):
        return True
    return isinstance(pool, concurrent.futures.ThreadPoolExecutor)


class ForeignWorkers(Workers):
    """The processes of a foreign pool; each "worker" here is one call in flight.

    Args:
        job: the job.
        pool: an open pool; see `is_foreign_pool`.
    """

    kind = "pool"

    def __init__(self, job: Job, pool: Any) -> None:
        self._job = job
        self._pool = pool
        sizes = (getattr(pool, name, None) for name in ("_max_workers", "_processes"))
        self.size = next((size for size in sizes if isinstance(size, int)), usable_cores())
        self._packing = JobPacker()
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._reader = ParcelReader()
        self._files: list[tuple[int, str | None]] = []
        self._output: _Bytes | None = None
        self._flying: dict[int, Lease] = {}
        self._joined = False
        self._broken = False

    def allocate(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        return self._packing.arena.empty(dtype, shape)

    def _publish(self, data: bytes) -> _Bytes:
        fd, path, unlink = anonymous_file(len(data))
        self._files.append((fd, unlink))
        with map_path(path, len(data)) as mapped:
            mapped[:] = data
        return _Bytes(path, len(data))

    def _call(self, fn: Callable[[Any], Any], argument: object, done: Callable[[Any], Any]) -> None:
        """Have the pool call `fn`; `done` gets what it returns or raises, on some thread."""
        if hasattr(self._pool, "apply_async"):
            self._pool.apply_async(fn, (argument,), callback=done, error_callback=done)
            return

        def tell(future: Any) -> None:
            try:
                done(future.result())
            except BaseException as error:  # of the function, or of a pool that was ended
                done(error)

        self._pool.submit(fn, argument).add_done_callback(tell)

    def open(self, sink: Sink[Any]) -> None:
        self._payload = self._publish(self._packing.pack(self._job, sink.writer))
        self._pids = self._alive()

    def _alive(self) -> set[int]:
        """The processes of a pool of `multiprocessing`, which does not tell that one has died."""
        return {process.pid for process in self._pool._pool} if hasattr(self._pool, "_pool") else set()

    def limit(self, worker: int) -> int | None:
        return 0 if worker in self._flying else None

    def output(self, writer: RowWriter) -> None:
        self._output = self._publish(self._packing.packer.dumps(writer))

    def replan(self, plan: ChunkPlan) -> None:
        self._job = replace(self._job, plan=plan)

    def grant(self, worker: int, lease: Lease) -> None:
        job = self._job
        task = _Task(os.getpid(), job.number, self._payload, self._output, job.plan, lease.id, lease.start, lease.stop)
        self._flying[worker] = lease
        try:
            self._call(run_task, task, lambda answer: self._inbox.put((worker, answer)))
        except concurrent.futures.BrokenExecutor as error:  # it broke meanwhile, which lost other calls
            self._inbox.put((worker, error))

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        if not self._joined:
            self._joined = True
            return [(worker, Joined()) for worker in range(self.size)]
        events: list[tuple[int, Message]] = []
        try:
            worker, data = self._inbox.get(timeout=timeout)
            while True:
                events += ((worker, message) for message in self._read(worker, data))
                worker, data = self._inbox.get_nowait()
        except queue.Empty:
            if not events:
                self._look_for_deaths()
        return events

    def _read(self, worker: int, data: bytes | BaseException) -> list[Message]:
        if isinstance(data, concurrent.futures.BrokenExecutor):
            raise self._lost("a process") from data
        self._flying.pop(worker, None)
        if isinstance(data, BaseException):
            raise data
        return [self._reader.open(message) for message in pickle.loads(data)]

    def _look_for_deaths(self) -> None:
        """A foreign pool replaces dead processes and forgets their tasks: without this, the job would hang."""
        now = self._alive()
        if now == self._pids or self._pool._maxtasksperchild is not None:
            return
        gone, self._pids = self._pids - now, now
        if gone and self._flying:
            raise self._lost(f"process {', '.join(map(str, sorted(gone)))}")

    def _lost(self, process: str) -> WorkerLost:
        """The error where a process has died with a call."""
        self._broken = True
        check_mapped_files(tensors_of(self._job.source.data))  # a truncated file ends a process by SIGBUS
        plan, leases = self._job.plan, list(self._flying.values())
        rows = ", ".join(plan.describe(lease.start, lease.stop) for lease in leases)
        return WorkerLost(
            f"{process} of the pool died while {self._job.name} ran {rows}. A pool of another library does not report "
            "the lost rows, and they are not retried: use num_workers= or a tdmap.WorkerPool.",
            plan.span(leases[0].start, leases[0].stop),
        )

    def seat(self, worker: int) -> Seat:
        return Seat(worker, "in a process of the pool")

    def close(self, ok: bool, changed: bool) -> None:
        deadline = time.monotonic() + 5.0
        while self._flying and not self._broken and time.monotonic() < deadline:
            try:  # leases in flight write into our memory: let them end
                self._flying.pop(self._inbox.get(timeout=0.1)[0], None)
            except queue.Empty:
                continue
        try:
            if ok:
                for _ in range(self.size):
                    self._call(forget_job, (os.getpid(), self._job.number), _nothing)
        finally:
            for fd, unlink in self._files:
                release(os.getpid(), fd, unlink)
            with torch.no_grad():
                self._packing.write_back(changed)


def _nothing(answer: object) -> None:
    pass
