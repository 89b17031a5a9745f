"""Threads, for functions that leave the interpreter lock: most of torch, numpy and I/O."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, TypeAlias

import torch

from tdmap.job import Job
from tdmap.process_state import ThreadSettings, use_threads
from tdmap.runtime.chunkloop import ChunkLoop
from tdmap.runtime.executors.base import LocalWorkers, Seat, run_lease
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.wire.messages import Failed, Joined, Message
from tdmap.runtime.workers import control as at
from tdmap.sink import Sink

_Inbox: TypeAlias = "queue.SimpleQueue[tuple[int, Message]]"


class _Thread(threading.Thread):
    """One worker. It does not know its `ThreadWorkers`, whose collection ends it.

    Args:
        number: of the worker.
        loop: its loop.
        inbox: for its messages.
        torch_threads: threads that torch uses in it.
        settings: of the caller's thread.
    """

    def __init__(
        self, number: int, loop: ChunkLoop, inbox: _Inbox, torch_threads: int, settings: ThreadSettings
    ) -> None:
        super().__init__(name=f"tdmap-{number}", daemon=True)
        self.number, self.loop, self.inbox = number, loop, inbox
        self.torch_threads, self.settings = torch_threads, settings
        self.leases: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        """None at the end."""

    def run(self) -> None:
        use_threads(self.torch_threads)
        with torch.inference_mode(self.settings.inference):
            self.settings.enter()
            self.inbox.put((self.number, Joined()))
            self._run_leases()

    def _run_leases(self) -> None:
        loop = self.loop
        while (lease := self.leases.get()) is not None:
            try:
                report = run_lease(loop, lease.id, lease.start, lease.stop)
            except BaseException as error:
                # Of the engine's own: without a message from here, the driver would wait for ever.
                chunk = min(max(int(loop.control[at.COMMITTED]), lease.start), lease.stop - 1)
                report = Failed(loop.job, lease.id, chunk, error, False)
            self.inbox.put((self.number, report))
            if isinstance(report, Failed):
                return


class ThreadWorkers(LocalWorkers):
    """New threads of this process, for one job whose chunks have no random streams.

    Args:
        job: the job.
        num_workers: how many threads.
        worker_threads: threads that torch uses in each of them.
        leave_seconds: an iteration that is left waits so long for the chunks that run. They end unheard then.
    """

    kind = "thread"

    def __init__(self, job: Job, num_workers: int, worker_threads: int, leave_seconds: float) -> None:
        super().__init__(job)
        self.size = num_workers
        self._worker_threads = worker_threads
        self._leave_seconds = leave_seconds
        self._inbox: _Inbox = queue.SimpleQueue()
        self._threads: list[_Thread] = []
        self._streaming = False

    def open(self, sink: Sink[Any]) -> None:
        self._streaming = sink.demands(self.job.plan).ordered is not None
        inbox, settings = self._inbox, ThreadSettings.with_streams()
        for number in range(self.size):
            loop = self.add_loop(lambda message, number=number: inbox.put((number, message)))  # type: ignore[misc]
            self._threads.append(_Thread(number, loop, inbox, self._worker_threads, settings))
        if sink.writer is not None:
            self.output(sink.writer)
        for thread in self._threads:
            thread.start()

    def grant(self, worker: int, lease: Lease) -> None:
        self._threads[worker].leases.put(lease)

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        events = []
        try:
            events.append(self._inbox.get(timeout=timeout))
            while True:
                events.append(self._inbox.get_nowait())
        except queue.Empty:
            return events

    def revoke(self, worker: int) -> None:
        self._threads[worker].loop.control[at.GIVE_BACK] = 1

    def seat(self, worker: int) -> Seat:
        return Seat(worker, f"in thread {worker}")

    def _stop(self) -> None:
        for thread in self._threads:
            thread.loop.control[at.CANCEL] = 1
            thread.leases.put(None)

    def __del__(self) -> None:  # an exception from a signal handler has come before the job was closed
        self._stop()

    def close(self, ok: bool, changed: bool) -> None:
        self._stop()
        self._join()

    def _join(self) -> None:
        """Wait until every thread has ended its chunk.

        Not for ever when a consumer has left. Perhaps it was the collector, in whatever thread ran it: in one of ours,
        or in one that holds a lock which a function of ours waits for.
        """
        deadline = time.monotonic() + self._leave_seconds
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():
                continue
            thread.join(max(deadline - time.monotonic(), 0) if self._streaming else None)
