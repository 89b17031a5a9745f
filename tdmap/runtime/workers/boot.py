"""Where worker processes begin: the entries that `launch` names to a fresh interpreter."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import warnings
from multiprocessing.connection import Connection
from typing import Any

import tdmap
from tdmap.runtime.workers.worker import die_with_parent, run_worker, watch_parent

MESSAGE_BYTES = 1 << 16
"""Of a request to the template, at most."""


def spawn_main(arguments: dict[str, Any]) -> None:
    """Entry of a spawned worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(arguments["lifeline"])
    run_worker(
        Connection(arguments["fd"]),
        arguments["control"],
        arguments["threads"],
        arguments["idle"],
        arguments["parent"],
    )


def template_main(arguments: dict[str, Any]) -> None:
    """Entry of the template process: import what most jobs need, run nothing, fork on request."""
    _ = tdmap.map
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=arguments["fd"])
    parent = os.getpid()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 4)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        number, request = data[:8], pickle.loads(data[8:])
        if request[0] == "wait":
            _answer(sock, number, _reap(request[1]))
            continue
        answer: int | OSError
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts torch's own idle threads too
                answer = pid = os.fork()
        except OSError as error:  # no more processes: those that there are go on
            answer, pid = error, -1
        if pid == 0:
            _serve_fork(sock, fds[0], request, parent)
        os.close(fds[0])
        _answer(sock, number, answer)


def _answer(sock: socket.socket, number: bytes, answer: int | OSError | None) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the driver has gone meanwhile
        sock.send(number + pickle.dumps(answer))


def _serve_fork(
    sock: socket.socket,
    fd: int,
    request: tuple[Any, ...],
    parent: int,
) -> None:
    try:
        die_with_parent(parent)
        sock.close()
        _, control, threads, idle_seconds = request
        run_worker(Connection(fd), control, threads, idle_seconds, parent)
    finally:
        os._exit(1)


def _reap(pid: int) -> int | None:
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if done else None
