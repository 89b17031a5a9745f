"""Workers on a Ray cluster, as a pool: each member is an actor.

    RayMember ── actor call `where` ──► Place     then, for a worker on this machine:
        └─────── socket ──────────────► the worker of the process pool, in the actor

What Ray says comes on a thread of Ray's. It is put into the member's mailbox, and an eventfd wakes the waiting thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tdmap.errors import WorkerStartError
from tdmap.runtime.executors.probes import Probes
from tdmap.runtime.executors.slot import Slot, WorkerPlace
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers.launch import Process, pidfd_of
from tdmap.runtime.workers.pool import PoolMember, WorkerPool
from tdmap.tuning import current

if TYPE_CHECKING:
    from tdmap.runtime.executors.raycluster import RayCluster

PROBE_SECONDS = 60.0
"""A worker that has nothing else to do must look at a folder within so long."""

NODE_SECONDS = 20.0
"""When no worker has started for so long, a machine may be gone: are those that are left large enough?"""

IDLE_SECONDS = 60.0
"""Workers without a job keep their part of the cluster for so long."""


class _ActorProcess(Process):
    """The process of an actor, as far as it is known here."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        super().__init__(0, -1)
        self._ray = ray
        self._actor = actor
        self.near = False

    def poll(self) -> int | None:
        """Its exit status, which Ray does not tell."""
        return None

    def kill(self) -> None:
        """End it, without waiting."""
        if self.near and self.pid:  # at once: Ray's own way takes a round through the cluster
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(Exception):  # of a cluster that has been left meanwhile
            self._ray.kill(self._actor, no_restart=True)


_Then = Callable[[Any], Iterable[Any]]


def _nothing(answer: object) -> Iterable[Any]:
    return ()


class RayMember(PoolMember):
    """The driver's view of one actor.

    Args:
        ray: the module.
        cluster: what the actor takes.
        threads: threads that torch uses in it.
        folder: for sockets, private to this user.
    """

    process: _ActorProcess

    def __init__(self, ray: ModuleType, cluster: RayCluster, threads: int, folder: int) -> None:
        self.place: WorkerPlace | None = None
        self.failure: BaseException | None = None
        self.mail: deque[tuple[_Then, Any]] = deque()
        """What Ray has said of calls of the actor, and what becomes of that."""
        self.gone = self.leaving = False
        self.transport = cluster.transport
        variables = tuple(cluster.runtime_env.get("env_vars", ()))
        self.actor = ray.remote(Slot).options(**cluster.options).remote(threads, variables)
        super().__init__("ray", at.ControlBlock(), _ActorProcess(ray, self.actor), None)
        self._ray = ray
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, bool], bool] = {}
        self._listener: socket.socket | None = _listen(folder, self.number)
        self._address = f"/proc/{os.getpid()}/fd/{folder}/{self.number}"
        number = self.control[at.SINCE] = secrets.randbits(62)
        self.call("where", self.block.path, number, then=self._settle)

    @property
    def node(self) -> str:
        """The machine that it runs on; empty as long as Ray has not started it."""
        return "" if self.place is None else self.place.host

    def call(self, method: str, *arguments: Any, then: _Then = _nothing) -> None:
        """Call a method of the actor; what comes of it is put into the mailbox.

        Args:
            method: its name.
            arguments: of the method.
            then: makes messages of what it returns, when the mailbox is read.
        """
        reference = getattr(self.actor, method).remote(*arguments)
        reference.future().add_done_callback(lambda future: self._deliver(then, future))

    def _deliver(self, then: _Then, future: Any) -> None:
        """On a thread of Ray's, and not always in the order in which things have happened."""
        with self._lock:
            if not self.closed:
                self.mail.append((then, future))
                os.eventfd_write(self._bell, 1)

    def descriptors(self) -> Iterable[int]:
        there = [self._bell, self.process.sentinel]
        if self._listener is not None:
            there.append(self._listener.fileno())
        if self.connection is not None:
            there.append(self.connection.fileno())
        return there

    @property
    def is_far(self) -> bool:
        """Whether the worker is on another machine, so that its rows have to travel."""
        return self.ready and self.connection is None

    def reaches(self, files: Iterable[str], written: bool) -> bool:
        """Whether it has the folders of these files; asks it, and waits for the answer.

        Args:
            files: their paths.
            written: it will write them.
        """
        if self.transport == "store":
            return False
        folders = {(os.path.dirname(file), written) for file in files}
        if not folders <= self._known.keys():
            with Probes(files, written) as probes:
                answers = self._ray.get(self.actor.reaches.remote(probes.questions), timeout=PROBE_SECONDS)
                self._known.update(dict.fromkeys(folders, probes.accept(answers)))
        return all(self._known[folder] for folder in folders)

    def send_bytes(self, data: bytes) -> None:
        if self.connection is not None:
            super().send_bytes(data)

    def receive(self) -> Iterator[Any]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self.mail:
            then, future = self.mail.popleft()
            try:
                answer = future.result()
            except Exception as error:
                self._failed(error)
            else:
                yield from then(answer)
        if self._listener is not None and _is_readable(self._listener.fileno()):
            self._accept(self._listener)
        if self.connection is not None:
            yield from super().receive()
        if self.gone:
            raise EOFError

    def _failed(self, error: Exception) -> None:
        """Ray says that the actor has died, or cannot start."""
        self.failure = error
        if self.process.sentinel >= 0 or self.connection is not None:
            # Ray may have lost sight of a process that is still at work, and writes rows. It has ended when the kernel
            # says so, and not before: then all that it has sent is here, and its notes do not change any more.
            self.process.kill()
        else:
            self.gone = True

    def _settle(self, place: WorkerPlace) -> Iterable[Any]:
        self.place = place
        self.process.pid = place.pid
        self.process.near = place.near
        if place.near:
            self.process.sentinel = pidfd_of(place.pid)
        if place.near and self.transport in ("auto", "memory"):
            self.call("serve", self._address, self.block.path, then=self._end_service)
            return ()
        self._close_listener()
        self.control = at.local_control()
        self.block.close()
        self.ready = True
        return ()

    def _end_service(self, _: None) -> Iterable[Any]:
        self.gone = self.connection is None  # else its socket says so as well
        return ()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            end, _ = listener.accept()
            end.setblocking(True)
            self.connection = Connection(end.detach())
            self._close_listener()

    def _close_listener(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._listener.getsockname())
            self._listener.close()
            self._listener = None

    def leave(self) -> None:
        """Let a worker that has nothing to do end by itself, as Ray wants it: of one that is killed it says it died."""
        if self.closed or self.leases or not self.ready or not self._owner.is_here:
            return
        self.leaving = True
        if self.connection is not None:
            self.connection.close()  # which ends `serve`
            self.connection = None
        with contextlib.suppress(Exception):  # the cluster has been left meanwhile
            self.actor.__ray_terminate__.remote()

    def has_ended(self) -> bool:
        if self.gone or self.process.sentinel < 0:
            return self.gone
        return _is_readable(self.process.sentinel)

    def close(self, kill: bool = True) -> int | None:
        if not self._owner.is_here:
            return None
        with self._lock:
            if self.closed:
                return None
            self.closed = True
            os.close(self._bell)
        if not self.leaving or (
            self.process.sentinel >= 0 and not _is_readable(self.process.sentinel, current().exit_seconds)
        ):
            self.process.kill()
        self.reader.close()
        if self.process.sentinel >= 0:
            _is_readable(self.process.sentinel, 5.0)
        self.process.close()
        if self.connection is not None:
            self.connection.close()
        self._close_listener()
        self.block.close()
        return None


def _is_readable(descriptor: int, seconds: float = 0) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _listen(folder: int, number: int) -> socket.socket:
    """A socket in a folder, which is named by its descriptor: the names of sockets may not be long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(f"/proc/self/fd/{folder}/{number}")
    listener.listen(1)
    return listener


class RayPool(WorkerPool):
    """Actors that stay for many jobs.

    Args:
        cluster: where, and what each takes.
        num_workers: how many.
        worker_threads: threads that torch uses in each.
    """

    def __init__(self, cluster: RayCluster, num_workers: int, worker_threads: int = 1) -> None:
        super().__init__(num_workers, None, worker_threads)
        self.cluster = cluster
        self._ray = cluster.connect()
        self.session = session_of(self._ray)
        self._path = tempfile.mkdtemp(prefix="tdmap-ray-")
        self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._waiting_since = time.monotonic()
        self.retirement: threading.Timer | None = None
        """Ends it once it is idle."""

    def start(self, forks: bool = True) -> PoolMember:
        self.check_open()
        if not any(member.ready for member in self.members.values()):
            self._waiting_since = time.monotonic()
        member = RayMember(self._ray, self.cluster, self.worker_threads, self._folder)
        self.members[member.number] = member
        self._started += 1
        return member

    def use(self, cluster: RayCluster) -> None:
        """Go on for a description that differs from the last one in how rows travel, at most."""
        self.cluster = cluster
        for member in self.members.values():
            if isinstance(member, RayMember):
                member.transport = cluster.transport

    def listen(self, timeout: float | None) -> Iterator[tuple[PoolMember, list[Any], bool]]:
        heard = False
        for news in super().listen(timeout):
            heard = True
            yield news
        if not heard and not any(member.ready for member in self.members.values()):
            waited = time.monotonic() - self._waiting_since
            if waited > NODE_SECONDS:
                self.cluster.slots()  # raises where no machine that is left has room for a worker
            if waited > self.cluster.start_timeout:
                raise WorkerStartError(f"no worker has started within {waited:.0f} s. {self._why_not()}")

    def has_lost_node(self, member: RayMember) -> bool:
        """Whether a member ended because its machine did; Ray may need a moment to notice."""
        if member.place is None:
            return False
        with contextlib.suppress(Exception):
            nodes = {node["NodeID"]: node["Alive"] for node in self._ray.nodes()}
            if not nodes.get(member.place.node, False):
                return True
        return "node" in str(member.failure).lower() and "died" in str(member.failure).lower()

    def _why_not(self) -> str:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in self.cluster.demand.items())
        free = self._ray.available_resources()
        there = ", ".join(f"{free.get(name, 0):g} {name}" for name in self.cluster.demand)
        return (
            f"A worker requires {wanted}; the cluster has {there} free. Free resources, require less "
            "(RayCluster(num_cpus=...)), or wait longer (start_timeout=)."
        )

    def close(self) -> None:
        if not self._owner.is_here or self._closed:
            return
        self._closed = True
        for member in self.members.values():  # all at once: each of them takes a moment
            if isinstance(member, RayMember):
                member.leave()
        for member in list(self.members.values()):
            self.remove(member)
        if getattr(self, "retirement", None) is not None:
            self.retirement.cancel()  # type: ignore[union-attr]
        with contextlib.suppress(OSError, AttributeError):  # of a pool that could not be made
            os.close(self._folder)
            shutil.rmtree(self._path, ignore_errors=True)

    def __repr__(self) -> str:
        return f"RayPool({self.num_workers} workers, {len(self.members)} running)"


def session_of(ray: ModuleType) -> str:
    """Which connection to which cluster this is: actors of another one, or of the parent of a fork, are not ours."""
    context = ray.get_runtime_context()
    return f"{os.getpid()}/{context.get_node_id()}/{context.get_job_id()}"


# -- warm pools --------------------------------------------------------------------------------------

_Key = tuple[str, int, int, str]
_warm: dict[_Key, RayPool] = {}
_warm_lock = threading.RLock()


def borrow_ray_pool(cluster: RayCluster, num_workers: int, worker_threads: int) -> tuple[RayPool, Callable[[], None]]:
    """A reserved pool, warm if one is idle, and what to call when the job is over."""
    key = (cluster.key, num_workers, worker_threads, session_of(cluster.connect()))
    with _warm_lock:
        pool = _warm.pop(key, None)
        others = [_warm.pop(other) for other in list(_warm) if other[3] != key[3] or other[0] != key[0]]
    for other in others:  # they may hold what this one needs
        other.close()
    if pool is not None and pool.retirement is not None:
        pool.retirement.cancel()
    if pool is None or pool.is_closed:
        pool = RayPool(cluster, num_workers, worker_threads)
    pool.use(cluster)
    pool.reserve()
    return pool, lambda: _give_back(key, pool)


def _give_back(key: _Key, pool: RayPool) -> None:
    pool.release()
    with _warm_lock:
        old = _warm.pop(key, None)
        _warm[key] = pool
    if old is not None:
        old.close()
    pool.retirement = threading.Timer(IDLE_SECONDS, _retire, (key, pool))
    pool.retirement.daemon = True
    pool.retirement.start()


def _retire(key: _Key, pool: RayPool) -> None:
    with _warm_lock:
        if _warm.get(key) is not pool or pool.retirement is not threading.current_thread():
            return
        del _warm[key]
    pool.close()
