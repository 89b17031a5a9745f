"""A worker process: waits for messages, runs leases, and ends when it is no longer needed.

The process never imports the user's script; whatever it runs comes in a `Begin` message. It ignores SIGINT,
because Ctrl-C reaches every process of the terminal and the driver alone decides what it means. It ends when the
driver's end of the pipe closes, when it has idled for `idle_seconds`, or when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import resource
import select
import signal
import sys
import threading
import traceback
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from tdmap.data.kinds import tensors_of
from tdmap.data.objects import ragged_tensors
from tdmap.data.writer import RowWriter
from tdmap.memory.residency import Residency
from tdmap.process_state import give_back_freed_memory, keep_freed_memory
from tdmap.runtime.chunkloop import ChunkError, ChunkLoop
from tdmap.runtime.undo import Undo, lock_shared
from tdmap.runtime.wire.messages import (
    Begin,
    Done,
    Drop,
    Dropped,
    Failed,
    Grant,
    Hello,
    Planned,
    Protect,
    Refused,
    WriteTo,
)
from tdmap.runtime.wire.packing import unpack
from tdmap.runtime.wire.parcels import ParcelWriter
from tdmap.runtime.wire.payload import load_loop
from tdmap.runtime.wire.remote import pack_error
from tdmap.runtime.workers import control as at
from tdmap.seeding import seed_everything

LAST_MOMENTS = 0.5
"""Seconds between the first and the last thing that the kernel closes of a process that has ended, at most."""

LULL = 1.0
"""After so many seconds without a job, what is free in the heap goes back to the system."""

in_worker = False
"""True in a worker process of this library: nested maps run serially there."""


def run_worker(connection: Connection, control: str, threads: int, idle_seconds: float, parent: int) -> None:
    """Serve until the driver is gone or has no work for `idle_seconds`; never returns."""
    code = 1
    try:
        _settle(threads)
        Worker(connection, control, threads, idle_seconds, parent).serve()
        code = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the driver has gone
    except _DeviceLost:
        pass  # the driver knows
    except BaseException:
        if not _is_deserted(connection):  # what it has shared is gone with a driver
            traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _is_deserted(connection: Connection) -> bool:
    """Whether the driver is gone, or goes just now."""
    try:
        while connection.poll(LAST_MOMENTS):
            connection.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


class _DeviceLost(Exception):
    """The device cannot be used any more in this process, so the process ends."""


def _settle(threads: int) -> None:
    """Signals, standard input, threads and random streams of a fresh worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDONLY)
        if null != 0:
            os.dup2(null, 0)
            os.close(null)
    for library in (multiprocessing, sys.modules.get("multiprocess")):
        if library is not None:
            library.current_process().name = f"tdmap-{os.getpid()}"  # what loggers show
    keep_freed_memory()
    settle(threads)


def settle(threads: int) -> None:
    """Threads and random streams of a process that is a worker from now on."""
    global in_worker
    in_worker = True
    torch.set_num_threads(threads)
    # Unseeded maps: each worker draws other numbers, as forks of one process otherwise would not.
    seed_everything(int.from_bytes(os.urandom(8), "little") >> 1)
    np.random.seed(int.from_bytes(os.urandom(4), "little"))


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent thread ends; leave at once if it has ended already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


def watch_parent(connection: Connection) -> None:
    """End this process when the driver's end of `connection` closes, even while the user's function runs."""
    closed = select.poll()
    closed.register(connection.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))

    def wait() -> None:
        closed.poll()
        os._exit(0)

    threading.Thread(target=wait, name="tdmap-lifeline", daemon=True).start()


class Worker:
    """The state of a worker process: at most one job.

    Args:
        connection: to the driver.
        control: path of the control block.
        threads: threads that torch uses.
        idle_seconds: without a job, it serves no longer than this; None: for ever.
        parent: the process that started this one.
    """

    def __init__(
        self, connection: Connection, control: str, threads: int, idle_seconds: float | None, parent: int
    ) -> None:
        self.connection = connection
        self.threads = threads
        self.control = at.map_control(control)
        self.idle_seconds = idle_seconds
        self.parent = parent
        self.inbox: deque[Any] = deque()
        self.loop: ChunkLoop | None = None
        self.parcels = ParcelWriter()
        self.lock: int | None = None
        self.failed = 0
        self.residency = Residency()
        self.first_memory = anonymous_memory()

    def send(self, message: object) -> None:
        self.connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def serve(self) -> None:
        """Handle messages until the driver is gone or silent for too long."""
        self.send(Hello(os.getpid()))
        while True:
            if self.loop is None and not self.inbox and not self.is_called():
                return
            message = self.inbox.popleft() if self.inbox else pickle.loads(self.connection.recv_bytes())
            if isinstance(message, Grant):
                self.grant(message)
            elif isinstance(message, Begin):
                self.begin(message)
            elif isinstance(message, WriteTo):
                self.output(message)
            elif isinstance(message, Planned):
                if self.loop is not None and self.loop.job == message.job:
                    self.loop.replan(message.plan)
            elif isinstance(message, Protect):
                self.protect(message)
            elif isinstance(message, Drop):
                self.drop(message.keep_slots)
                if message.answer:
                    self.send(Dropped(message.job))

    def is_called(self) -> bool:
        """Whether work arrives before this worker has idled for too long."""
        whole = self.idle_seconds
        if self.connection.poll(LULL if whole is None else min(LULL, whole)):
            return True
        give_back_freed_memory()
        return self.connection.poll(None if whole is None else max(whole - LULL, 0.0))

    def begin(self, message: Begin) -> None:
        """Take a job: open its memory, read its function."""
        self.drop(keep_slots=True)  # the last job has had its own `Drop`
        if torch.get_num_threads() != self.threads:  # a function of the last job has changed it
            torch.set_num_threads(self.threads)
        try:
            self.loop = load_loop(message.job, message.payload, self.control, self.parcels.pack, self.send)
            reader = self.loop.reader
            if reader.order is None:  # rows in another order come back to a page again and again
                self.residency.watch([*reader.exposed, *ragged_tensors(reader.data)])
            if reader.fetches:
                reader.follow = self.next_rows
            if self.loop.writer is not None:
                self.residency.watch(tensors_of(self.loop.writer.out))
        except Exception as error:
            self.loop = None
            self.send(Refused(message.job, pack_error(error)))

    def next_rows(self, first: int, last: int) -> tuple[int, int] | None:
        """The rows of the lease that waits while another one runs."""
        loop = self.loop
        with contextlib.suppress(EOFError, OSError):  # `serve` will see it
            while self.connection.poll(0):
                self.inbox.append(pickle.loads(self.connection.recv_bytes()))
        for message in self.inbox:
            if isinstance(message, Grant) and loop is not None and message.job == loop.job:
                return loop.plan.span(message.start, message.stop)
        return None

    def output(self, message: WriteTo) -> None:
        """Results have a place from now on."""
        if self.loop is not None and self.loop.job == message.job:
            try:
                writer: RowWriter = unpack(message.payload)
                writer.prepare()
            except Exception as error:  # a device's memory that cannot be opened here, for one
                self.drop()
                self.send(Refused(message.job, pack_error(error), output=True))
                return
            self.residency.watch(tensors_of(writer.out))
            self.loop.writer = writer

    def protect(self, message: Protect) -> None:
        """Rows can be put back from now on."""
        if self.loop is not None and self.loop.job == message.job:
            reader = self.loop.reader
            try:
                self.loop.undo = undo = Undo(reader.data, reader.plan, unpack(message.payload))
                if undo.room.lock is not None:
                    self.lock = lock_shared(undo.room.lock)
            except Exception as error:  # most often: the job is over already, and its memory is gone
                self.drop()
                self.send(Refused(message.job, pack_error(error)))

    def grant(self, message: Grant) -> None:
        """Run a lease and report."""
        self.parcels.freed(message.freed)
        loop = self.loop
        if loop is None or loop.job != message.job or message.job == self.failed:
            self.send(Done(message.job, message.lease, message.start, 0.0, False, None, 0))
            return
        try:
            # inference_mode(False) would have torch record operations.
            with torch.inference_mode() if loop.inference else contextlib.nullcontext():
                done = loop.run(message.lease, message.start, message.stop)
        except ChunkError as failure:
            cause = failure.__cause__
            assert cause is not None
            if isinstance(cause, (EOFError, BrokenPipeError, ConnectionResetError)) and self.orphaned:
                raise EOFError from None
            self.failed = message.job  # leases that wait already would change rows after the error
            self.send(Failed(message.job, message.lease, failure.chunk, pack_error(cause), loop.mutated))
            if loop.lost_device:
                raise _DeviceLost from None
            return
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
        self.residency.trim()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.control[at.PEAK] = peak
        memory = anonymous_memory()
        self.first_memory = min(self.first_memory, memory)  # a fork frees some of what it was born with
        self.control[at.OWN_MEMORY] = memory - self.first_memory
        self.send(done._replace(peak_memory=peak))

    @property
    def orphaned(self) -> bool:
        """Whether the driver has gone."""
        return os.getppid() != self.parent

    def drop(self, keep_slots: bool = False) -> None:
        """Forget the job and its memory."""
        raised = False
        if self.loop is not None:
            raised = self.loop.raised
            self.loop.close()
            self.loop = None
        self.residency.forget()
        if torch.cuda.is_initialized():
            give_up_memory(raised)
        if not keep_slots:
            self.parcels.close()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def give_up_memory(raised: bool) -> None:
    """Give back what this process keeps of a device's memory: others need it more than a worker that may idle.

    Page-locked memory here is kept for the next job, since locking takes long; it goes with a worker that idles.

    Args:
        raised: the function has raised, and tracebacks, which are circles, may hold tensors.
    """
    if raised:
        gc.collect()
    torch.clear_autocast_cache()  # of parameters in another dtype
    with contextlib.suppress(RuntimeError):  # the device is lost
        torch.cuda.empty_cache()


def anonymous_memory() -> int:
    """Resident bytes of this process that belong to no file and no shared memory; 0 where that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()
