"""A worker on a Ray cluster: the class of the actor.

driver                                              actor
──────                                              ─────
where(control block, number)  ───────────────────►  can it open the driver's memory, and is it the same?
  near: serve(socket)         ───────────────────►  the worker of the process pool, over a socket of this machine
  far:  begin(task), run(grant, window), ... ────►  the same loop over rows that travel (see `windows`)
"""

from __future__ import annotations

import os
import pickle
import socket
from multiprocessing.connection import Connection
from typing import NamedTuple

from tdmap.plan import ChunkPlan
from tdmap.process_state import keep_freed_memory
from tdmap.runtime.executors import probes
from tdmap.runtime.executors.windows import Answer, FarOutput, Task, Window, WindowLoop
from tdmap.runtime.wire.messages import Grant
from tdmap.runtime.wire.remote import PackedError, pack_error
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers import surroundings
from tdmap.runtime.workers.worker import Worker, settle


class WorkerPlace(NamedTuple):
    """Where a worker is."""

    pid: int
    host: str
    node: str
    """Ray's name for the machine."""
    near: bool
    """It can open the driver's memory."""


class Slot:
    """One worker.

    Args:
        threads: threads that torch uses.
        variables: environment variables that it keeps, whatever the caller's are.
    """

    def __init__(self, threads: int, variables: tuple[str, ...]) -> None:
        import ray

        self.node = ray.get_runtime_context().get_node_id()
        self.threads = threads
        self._loop: WindowLoop | None = None
        surroundings.keep_variables([*variables, *_given()])
        settle(threads)
        keep_freed_memory()

    def where(self, control: str, number: int) -> WorkerPlace:
        """Where this is.

        Args:
            control: path of the driver's control block for this worker.
            number: that its slot `SINCE` holds: a block of another machine, which may have the same path, has not.
        """
        try:
            near = at.map_control(control)[at.SINCE] == number
        except (OSError, ValueError):
            near = False
        return WorkerPlace(os.getpid(), socket.gethostname(), self.node, near)

    def serve(self, address: str, control: str) -> None:
        """Be a worker of the process pool, until the driver closes the socket."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(address)
        except OSError:  # the driver does not want this worker any more
            end.close()
            return
        connection = Connection(end.detach())
        try:
            Worker(connection, control, self.threads, None, os.getppid()).serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            connection.close()

    # -- on another machine ----------------------------------------------------------------------------

    def reaches(self, questions: list[probes.Probe]) -> list[bool]:
        """Which of these folders are here as well."""
        return probes.answer(questions)

    def begin(self, data: bytes) -> PackedError | None:
        """Take a job; what is wrong with it, if something is."""
        self._loop = None
        try:
            task: Task = pickle.loads(data)
            self._loop = WindowLoop(task)
        except Exception as error:
            return pack_error(error)
        return None

    def output(self, data: bytes) -> PackedError | None:
        """Results have a place from now on."""
        try:
            target: FarOutput = pickle.loads(data)
            if self._loop is not None and self._loop.task.job == target.job:
                self._loop.output(target)
        except Exception as error:
            return pack_error(error)
        return None

    def replan(self, job: int, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        if self._loop is not None and self._loop.task.job == job:
            self._loop.replan(plan)

    def run(self, grant: Grant, window: Window) -> Answer | None:
        """Run a lease; None where its job could not be begun."""
        if self._loop is None or self._loop.task.job != grant.job:
            return None
        return self._loop.run(grant, window)

    def drop(self) -> None:
        """The job is over."""
        self._loop = None


def _given() -> list[str]:
    """Variables by which Ray tells a worker what belongs to it."""
    devices = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    return [name for name in os.environ if name.startswith("RAY_") or name in devices]
