"""A crew of threads, for functions that leave the interpreter lock: most of torch, numpy and I/O."""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import replace
from typing import Any

import torch

from tdmap._data import Reader
from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.plan import ChunkPlan
from tdmap.runtime import control as at
from tdmap.runtime.chunkloop import ChunkError, ChunkLoop
from tdmap.runtime.driver import Joined
from tdmap.runtime.executors.serial import empty, local_undo
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.torchsettings import ThreadSettings
from tdmap.runtime.types import Failed, Message
from tdmap.seeding import preserved_generators
from tdmap.sinks import Allocate, Sink


class ThreadCrew:
    """Threads of this process, for one job.

    Args:
        num_workers: how many threads.
        worker_threads: threads that torch uses in each of them.
        seeded: chunks have random streams. The global generators belong to the whole process, so there is one
            thread then, and the caller's streams are put back at the end.
    """

    kind = "thread"

    def __init__(self, num_workers: int, worker_threads: int, seeded: bool = False) -> None:
        self.size = 1 if seeded else num_workers
        self._worker_threads = worker_threads
        self._torch_threads = torch.get_num_threads()
        self._settings = ThreadSettings.with_streams()
        self._streams = preserved_generators() if seeded else contextlib.nullcontext()
        self._inbox: queue.SimpleQueue[tuple[int, Message | Joined]] = queue.SimpleQueue()
        self._leases: list[queue.SimpleQueue[Lease | None]] = []
        self._loops: list[ChunkLoop] = []
        self._threads: list[threading.Thread] = []

    def allocate(self) -> Allocate:
        return empty

    def open(self, job: Job, sink: Sink) -> None:
        self._job = job
        self._streams.__enter__()
        for number in range(self.size):
            control = at.local_control()
            control[at.RANK] = number
            loop = ChunkLoop(
                job.number,
                Reader(job.source.data, job.plan, job.source.order),
                job.fn,
                job.policy,
                control,
                lambda result: result,
                lambda message, number=number: self._inbox.put((number, message)),  # type: ignore[misc]
            )
            loop.undo = local_undo(job)
            self._loops.append(loop)
            self._leases.append(queue.SimpleQueue())
            thread = threading.Thread(target=self._serve, args=(number,), name=f"tdmap-{number}", daemon=True)
            self._threads.append(thread)
        if sink.writer is not None:
            self.output(sink.writer)
        for thread in self._threads:
            thread.start()

    def output(self, writer: RowWriter) -> None:
        for loop in self._loops:
            loop.writer = writer.own()
            loop.writer.prepare()

    def replan(self, plan: ChunkPlan) -> None:
        self._job = replace(self._job, plan=plan)
        for loop in self._loops:  # one of the first chunks may be running: its rows are the same
            loop.replan(plan)

    def _serve(self, number: int) -> None:
        torch.set_num_threads(self._worker_threads)
        self._settings.enter()
        self._inbox.put((number, Joined()))
        loop = self._loops[number]
        while (lease := self._leases[number].get()) is not None:
            try:
                self._inbox.put((number, loop.run(lease.id, lease.start, lease.stop)))
            except ChunkError as failure:
                cause: Any = failure.__cause__
                self._inbox.put((number, Failed(self._job.number, lease.id, failure.chunk, cause, False)))
                return
            except BaseException as error:  # of the engine's own: without a word from here, nobody would ever know
                chunk = min(max(int(loop.control[at.COMMITTED]), lease.start), lease.stop - 1)
                self._inbox.put((number, Failed(self._job.number, lease.id, chunk, error, False)))
                return

    def limit(self, worker: int) -> int | None:
        return None

    def grant(self, worker: int, lease: Lease) -> None:
        self._leases[worker].put(lease)

    def wait(self, timeout: float) -> list[tuple[int, Message | Joined]]:
        events = []
        try:
            events.append(self._inbox.get(timeout=timeout))
            while True:
                events.append(self._inbox.get_nowait())
        except queue.Empty:
            return events

    def ask_back(self, worker: int) -> None:
        self._loops[worker].control[at.GIVE_BACK] = 1

    def running(self) -> dict[int, tuple[int, float]]:
        return {}

    def kill(self, worker: int, reason: str) -> None:
        pass

    def describe(self, worker: int) -> str:
        return f"in thread {worker}"

    def pid(self, worker: int) -> int:
        return worker

    def close(self, ok: bool, changed: bool) -> None:
        for loop in self._loops:
            loop.control[at.CANCEL] = 1
        for leases in self._leases:
            leases.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._threads:
            self._streams.__exit__(None, None, None)
            # A thread's own setting is also what threads that start later begin with.
            torch.set_num_threads(self._torch_threads)
