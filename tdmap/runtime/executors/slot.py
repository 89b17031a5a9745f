"""A worker on a Ray cluster: the class of the actor. It knows nothing of Ray.

    driver                                              actor
    ──────                                              ─────
    where(control block, number)  ───────────────────►  can it open the driver's memory, and is it the same?
      near: serve(socket)         ───────────────────►  the worker of the process pool, over a socket of this machine
"""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection
from typing import NamedTuple

from tdmap.runtime import control as at
from tdmap.runtime import surroundings
from tdmap.runtime.worker import Worker, settle


class Place(NamedTuple):
    """Where a worker is."""

    pid: int
    host: str
    near: bool
    """It can open the driver's memory."""


class Slot:
    """One worker.

    Args:
        threads: threads that torch uses.
        variables: environment variables that it keeps, whatever the caller's are.
    """

    def __init__(self, threads: int, variables: tuple[str, ...]) -> None:
        self.threads = threads
        surroundings.keep_variables([*variables, *_given()])
        settle(threads)

    def where(self, control: str, number: int) -> Place:
        """Where this is.

        Args:
            control: path of the driver's control block for this worker.
            number: that its slot `SINCE` holds: a block of another machine, which may have the same path, has not.
        """
        try:
            near = at.map_control(control)[at.SINCE] == number
        except (OSError, ValueError):
            near = False
        return Place(os.getpid(), socket.gethostname(), near)

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


def _given() -> list[str]:
    """Variables by which Ray tells a worker what belongs to it."""
    devices = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    return [name for name in os.environ if name.startswith("RAY_") or name in devices]
