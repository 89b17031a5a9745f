"""Long-lived worker processes, one socket each.

    WorkerPool ── Member ── socket ────► worker process
        │            ├── sentinel (a death is seen even when a grandchild holds the socket)
        │            └── control block (what ran when it died)
        └── used by one job at a time (`reserve`); other jobs meanwhile get a pool of their own

Pools are warm: `borrow_pool` hands out one that has the wanted size and start method, and `give_back` keeps it for
the next call. A worker that idles leaves by itself; it is started again when needed. There is no thread in this
process, because a thread would make forking unsafe.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import select
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from tdmap.arguments import require_integer
from tdmap.errors import WorkerStartError
from tdmap.memory.links import PageLocker
from tdmap.memory.resources import usable_cores
from tdmap.processes import Owner, close_end
from tdmap.runtime.wire.messages import Grant, Hello
from tdmap.runtime.wire.parcels import ParcelReader
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers import launch

IDLE_SECONDS = 30.0
"""A worker without a job leaves after so long."""

MAX_WARM = 3
"""Idle pools that are kept."""

_numbers = itertools.count(1)
"""Of members, in all pools."""


class PoolClosedError(RuntimeError):
    """The pool was closed while a job ran on it."""


class PoolMember:
    """The driver's view of one worker process.

    Args:
        method: how it was started.
        block: its control block.
        process: its process.
        connection: the driver's end of its pipe.
    """

    def __init__(self, method: str, block: at.ControlBlock, process: launch.Process, connection: Any) -> None:
        self.number = next(_numbers)
        self.block, self.process, self.connection = block, process, connection
        self.method = method
        self.control: Any = self.block.slots
        self.reader = ParcelReader()
        self.keeps_slots = False
        """Its slots, page-locked here, are kept for the next job."""
        self.ready = False
        self.leases: dict[int, Grant] = {}
        """Those that it has not answered, by number; the oldest first."""
        self.granted = 0
        """Chunks that it was given since it started, those that it gave back included."""
        self.chunks = 0
        """Chunks that it has done since it started."""
        self.rows = 0
        """Rows that it has done since it started."""
        self.closed = False
        self._owner = Owner()
        self.heard = time.monotonic()
        """When it last ended a lease, or got one while it had none."""

    @classmethod
    def started_by(cls, method: str, threads: int, idle_seconds: float) -> PoolMember:
        """A new worker process."""
        block = at.ControlBlock()
        try:
            return cls(method, block, *launch.start_worker(method, block.path, threads, idle_seconds))
        except BaseException:
            block.close()
            raise

    def send(self, message: object) -> None:
        """Send a message. A worker that has ended is noticed by the next wait."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, data: bytes) -> None:
        """Send a message that is packed already."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(data)

    def new_job(self, locker: PageLocker | None = None) -> None:
        """Forget what belonged to the last job; its results stay with those who hold them."""
        if self.keeps_slots:
            self.reader.relock(locker)
        else:
            self.reader.close()
            self.reader = ParcelReader(locker)
        self.leases.clear()

    def descriptors(self) -> Iterable[int]:
        """What becomes readable when it has sent something, or has ended."""
        return self.connection.fileno(), self.process.sentinel

    def receive(self) -> Iterator[Any]:
        """Whatever it has sent so far.

        Raises:
            EOFError: the pipe is closed, and everything that was in it has been yielded.
        """
        while self.connection.poll(0):
            try:
                data = self.connection.recv_bytes()
            except (OSError, EOFError):
                raise EOFError from None
            message = pickle.loads(data)
            if isinstance(message, Hello):
                self.ready = True
                self.block.close()
            yield message

    def has_ended(self) -> bool:
        """Whether the process is over.

        Raises:
            WorkerStartError: it could not be started.
        """
        return self.process.poll() is not None

    def close(self, kill: bool = True) -> int | None:
        """End the process and give its resources back; its exit status. Nothing in a fork of the one it serves."""
        if not self._owner.is_here:
            return None
        if self.closed:
            return self.process.poll()
        self.closed = True
        self.reader.close()
        close_end(self.connection)
        self.block.close()
        code = None
        if self.process.pid:  # else it will be forked, and find its socket closed
            code = launch.wait_exit(self.process, 0.0 if kill else 1.0)
            if code is None:
                self.process.kill()
                code = launch.wait_exit(self.process, 5.0)
        self.process.close()
        return code


class WorkerPool:
    """Worker processes that many calls use.

    Args:
        num_workers: number of workers. None: the cores that this process may use.
        start_method: `"fork"`, `"forkserver"` or `"spawn"`. None: fork if it is safe, otherwise forkserver (spawn if
            the system has no forkserver).
        worker_threads: number of torch's threads in each worker.
        idle_seconds: idle workers end after this time; the pool starts them again when needed.
        max_tasks_per_child: replace a worker after this many chunks. None: never.
        max_memory: replace a worker, between leases, if its memory has grown by this many bytes since its start,
            without memory-mapped files and shared memory. None: never.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> import torch, tdmap
        >>> with WorkerPool(num_workers=2) as pool:
        ...     data = TensorDict({"x": torch.arange(4)}, [4])
        ...     tdmap.map(data, lambda td: td["x"] + 1, pool=pool)
        tensor([1, 2, 3, 4])
    """

    def __init__(
        self,
        num_workers: int | None = None,
        start_method: str | None = None,
        worker_threads: int = 1,
        *,
        idle_seconds: float = IDLE_SECONDS,
        max_tasks_per_child: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        if num_workers is None:
            num_workers = usable_cores()
        require_integer("num_workers", num_workers, 1)
        require_integer("worker_threads", worker_threads, 1)
        for name, value in (("max_tasks_per_child", max_tasks_per_child), ("max_memory", max_memory)):
            if value is not None:
                require_integer(name, value, 1)
        launch.require_start_method(start_method)
        self.num_workers = num_workers
        self.start_method = start_method
        self.worker_threads = worker_threads
        self.idle_seconds = idle_seconds
        self.max_tasks_per_child = max_tasks_per_child
        self.max_memory = max_memory
        self.members: dict[int, PoolMember] = {}
        self._owner = Owner()
        self._in_use = threading.Lock()  # no RLock: the collector may end a job in another thread
        self._user: int | None = None
        self._closed = False
        self._started = 0
        self._lost = 0
        self._recycled = 0
        self._gone_rows = 0
        _all_pools.add(self)

    # -- use by one job at a time ------------------------------------------------------------------

    def reserve(self, blocking: bool = True) -> bool:
        """Take the pool for a job; False when it is in use and `blocking` is False."""
        self._require_usable()
        if blocking and self._user == threading.get_ident():
            raise RuntimeError(
                "this WorkerPool is in use by an iterator that this thread has not finished: close that "
                "iterator first, or leave out pool= in the inner call"
            )
        if not self._in_use.acquire(blocking):
            return False
        self._user = threading.get_ident()
        try:
            self._require_usable()  # it may have been closed while we waited
        except RuntimeError:
            self.release()
            raise
        return True

    def _require_usable(self) -> None:
        if self._closed:
            raise RuntimeError("this WorkerPool is closed")
        self._owner.require()

    def release(self) -> None:
        """End the job that the pool was reserved for."""
        self._user = None
        if self._closed:
            self.remove_all()
        self._in_use.release()

    def refresh(self, wanted: int, forks: bool = True) -> None:
        """Forget workers that have left or are worn out, and start others. Does not wait until they are ready.

        Args:
            wanted: how many there are to be.
            forks: workers may be forks of this process. Without, those that are leave, and others take their place.
        """
        for member in list(self.members.values()):
            if member.has_ended():
                self.remove(member)
            elif self.is_worn(member) or (member.method == "fork" and not forks):
                self.recycle(member)
        self.fill(wanted, forks)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended its workers for good."""
        return self._closed

    def fill(self, wanted: int, forks: bool = True) -> None:
        """Start workers until there are `wanted`. Those that have ended stay, with what they ran."""
        while len(self.members) < wanted:
            self.start(forks)

    def start(self, forks: bool = True) -> PoolMember:
        """Start one more worker.

        Raises:
            PoolClosedError: the pool was closed meanwhile.
            WorkerStartError: it does not start.
        """
        self.check_open()
        method = self.start_method or launch.default_method(forks, self.worker_threads)
        member = PoolMember.started_by(method, self.worker_threads, self.idle_seconds)
        self.members[member.number] = member
        self._started += 1
        return member

    def is_worn(self, member: PoolMember) -> bool:
        """Whether a worker has run as many chunks, or holds as much memory, as it may."""
        if self.max_tasks_per_child is not None and member.granted >= self.max_tasks_per_child:
            return True
        return self.max_memory is not None and int(member.control[at.OWN_MEMORY]) > self.max_memory

    def recycle(self, member: PoolMember) -> None:
        """End a worker that is worn out and has nothing to do."""
        self._recycled += 1
        self.remove(member, kill=False)

    def remove(self, member: PoolMember, lost: bool = False, kill: bool = True) -> int | None:
        """End a worker; its exit status."""
        self.members.pop(member.number, None)
        self._lost += lost
        self._gone_rows += member.rows
        member.rows = 0
        return member.close(kill)

    def listen(self, timeout: float | None) -> Iterator[tuple[PoolMember, list[Any], bool]]:
        """Wait until members have been forked, have sent something or ended, at most `timeout` seconds.

        Yields:
            Each of them, what it has sent, and whether it has ended: then it sends nothing more.

        Raises:
            PoolClosedError: the pool was closed, so that no worker is left to wait for.
            WorkerStartError: a worker could not be started.
        """
        self.check_open()
        poller = select.poll()
        by_fd: dict[int, PoolMember] = {}
        for member in list(self.members.values()):
            for fd in member.descriptors():
                if fd >= 0:
                    by_fd[fd] = member
                    poller.register(fd, select.POLLIN)
        events = poller.poll(None if timeout is None else max(timeout * 1000, 0))
        self.check_open()  # by another thread, meanwhile
        for member in {by_fd[fd].number: by_fd[fd] for fd, _ in events}.values():
            # Asked before reading: what a dead worker sent is all in the pipe by then. And it takes in the pid of a
            # fork of the template, which comes before the first message.
            ended = member.has_ended()
            messages: list[Any] = []
            try:
                for message in member.receive():
                    messages.append(message)
            except EOFError:
                ended = True
            yield member, messages, ended

    def check_open(self) -> None:
        """Raise PoolClosedError when the pool was closed, by a signal handler or another thread, under a job."""
        if self._closed:
            raise PoolClosedError(
                "the WorkerPool was closed while a job ran on it: finish the job, or close its map_iter, before the "
                "pool is closed (by leaving its `with` block, pool.close() or tdmap.close_pools())"
            )

    # -- for users ---------------------------------------------------------------------------------

    def warm_up(self, wait: bool = True) -> None:
        """Start all workers now, so that the first call need not wait for them.

        Args:
            wait: return when all workers are ready. False returns at once, and workers start in the background.

        Raises:
            WorkerStartError: a worker ends before it is ready (with `wait`; otherwise the first call raises it).

        Example:
            >>> import tdmap, torch
            >>> with WorkerPool(2) as pool:
            ...     pool.warm_up(wait=False)
            ...     data = torch.arange(4)  # or whatever takes its time
            ...     tdmap.map(data, lambda x: x + 1, pool=pool)
            tensor([1, 2, 3, 4])
        """
        if not self.reserve(blocking=wait):
            return  # another thread has it at work
        try:
            self.refresh(self.num_workers)
            if wait:
                self._wait_until_ready()
        finally:
            self.release()

    def _wait_until_ready(self) -> None:
        while any(not member.ready for member in list(self.members.values())):
            for member, _, ended in self.listen(None):
                if ended:
                    code = self.remove(member, lost=True)
                    raise WorkerStartError(f"a worker ended while it started (exit status {code})")

    def stats(self) -> dict[str, Any]:
        """Statistics of the pool.

        Returns:
            `num_workers`: the size; `pids`: its current processes; `alive`: their number, with those that are being
            started and have no `pid` yet; `started`, `lost` (died), `recycled`
            (replaced for `max_tasks_per_child` or `max_memory`), `restarts` (lost and recycled) and `total_rows` since
            the pool was made. By process id of living workers: finished `chunks` and `rows`, growth of `memory` and
            `peak_memory` (resident set), in bytes.

        Example:
            >>> import tdmap, torch
            >>> with WorkerPool(num_workers=1) as pool:
            ...     _ = tdmap.map(torch.arange(10), lambda x: x, chunksize=5, pool=pool)
            ...     stats = pool.stats()
            >>> stats["total_rows"], list(stats["chunks"].values()), stats["restarts"]
            (10, [2], 0)
        """
        alive = [m for m in list(self.members.values()) if not m.has_ended()]
        known = [m for m in alive if m.process.pid]
        return {
            "num_workers": self.num_workers,
            "pids": [m.process.pid for m in known],
            "alive": len(alive),
            "started": self._started,
            "lost": self._lost,
            "recycled": self._recycled,
            "restarts": self._lost + self._recycled,
            "total_rows": self._gone_rows + sum(m.rows for m in list(self.members.values())),
            "chunks": {m.process.pid: m.chunks for m in known},
            "rows": {m.process.pid: m.rows for m in known},
            "memory": {m.process.pid: int(m.control[at.OWN_MEMORY]) for m in known},
            "peak_memory": {m.process.pid: int(m.control[at.PEAK]) for m in known},
        }

    def close(self) -> None:
        """End all workers. The pool cannot be used afterwards."""
        if self._closed or not self._owner.is_here:
            return
        self._closed = True
        for member in list(self.members.values()):
            member.process.kill()
        if self._user in (None, threading.get_ident()):  # else the job of another thread does it
            self.remove_all()

    def remove_all(self) -> None:
        """End all workers, and wait until they have ended."""
        for member in list(self.members.values()):
            self.remove(member)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a WorkerPool belongs to the process that made it and cannot be sent to another one: make a pool where it "
            "is used, or call map without pool="
        )

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tail: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.members)} running"
        return f"WorkerPool({self.num_workers} workers, {self.start_method or 'default'} start, {state})"


# -- warm pools --------------------------------------------------------------------------------------

_Key = tuple[int, "str | None", int]
_all_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_warm: list[tuple[_Key, WorkerPool]] = []
_borrowed: set[WorkerPool] = set()
"""Else the collector, when it ends a stream, would close its pool as well: after another thread has borrowed that."""
_warm_lock = threading.RLock()  # the collector may end a stream, which gives its pool back, within any of our lines


def borrow_pool(num_workers: int, start_method: str | None, worker_threads: int) -> WorkerPool:
    """A reserved pool, warm if one is idle; pass it to `give_back` at the end."""
    key, pool = (num_workers, start_method, worker_threads), None
    with _warm_lock:
        # The one used last: its workers are warm, and a second one of the same kind may fall idle and leave.
        for entry in reversed(_warm.copy()):
            unusable = entry[1]._closed or not entry[1]._owner.is_here
            if unusable or (pool is None and entry[0] == key):
                with contextlib.suppress(ValueError):  # a signal handler has closed all pools since the line above
                    _warm.remove(entry)
                pool = pool if unusable else entry[1]
    pool = pool or WorkerPool(num_workers, start_method, worker_threads)
    pool.reserve()
    _borrowed.add(pool)
    return pool


def give_back(pool: WorkerPool) -> None:
    """Keep a borrowed pool for the next call."""
    pool.release()
    with _warm_lock:
        _warm.append(((pool.num_workers, pool.start_method, pool.worker_threads), pool))
        _borrowed.discard(pool)
        surplus = _warm[:-MAX_WARM]
        del _warm[:-MAX_WARM]
    for _, old in surplus:
        old.close()


def close_pools() -> None:
    """End all workers of this process, and the forkserver."""
    with _warm_lock:
        _warm.clear()
    for pool in list(_all_pools):
        pool.close()
    launch.close_template()


def _forget_in_child() -> None:
    global _warm_lock
    _warm.clear()
    _borrowed.clear()
    _all_pools.clear()
    _warm_lock = threading.RLock()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget_in_child)
