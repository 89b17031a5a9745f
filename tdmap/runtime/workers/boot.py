"""Where worker processes begin: the entries that `launch` names to a fresh interpreter."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import warnings
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import tdmap
from tdmap.runtime.workers.worker import die_with_parent, run_worker, watch_parent

MESSAGE_BYTES = 1 << 16
"""Of a request to the template, at most."""

NUMBER_BYTES = 8
"""Of a pid or an exit status that the template sends."""


def spawn_main(arguments: dict[str, Any]) -> None:
    """Entry of a spawned worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(arguments["fd"])
    watch_parent(connection)
    run_worker(connection, arguments["control"], arguments["threads"], arguments["idle"], arguments["parent"])


def template_main(arguments: dict[str, Any]) -> NoReturn:
    """Entry of the template process: import what most jobs need, run nothing, fork on request.

    A request comes with the worker's socket and a pipe, through which the driver hears the worker's pid (or the number
    of an error, negative, where it cannot be forked) and its exit status.
    """
    _ = tdmap.map
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=arguments["fd"])
    bell, ring = os.pipe()  # rings when a worker ends
    os.set_blocking(bell, False)
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    poller = select.poll()  # select.select() takes no descriptor above 1023, and a driver may have more files open
    poller.register(requests, select.POLLIN)
    poller.register(bell, select.POLLIN)
    parent, reports = os.getpid(), dict[int, int]()
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if bell in ready:
            os.read(bell, MESSAGE_BYTES)
            for pid in list(reports):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    _report(report := reports.pop(pid), os.waitstatus_to_exitcode(status))
                    os.close(report)
        if requests.fileno() not in ready:
            continue
        try:
            data, fds, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 2)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        connection, report = fds
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts torch's own idle threads too
                pid = os.fork()
        except OSError as error:  # no more processes: those that there are go on
            pid = -(error.errno or 1)
        if pid == 0:
            signal.set_wakeup_fd(-1)
            _report(report, os.getpid())  # before the worker says anything else
            for fd in (requests.detach(), bell, ring, report, *reports.values()):
                os.close(fd)
            _serve_fork(connection, json.loads(data), parent)
        if pid > 0:
            reports[pid] = report
        else:
            _report(report, pid)
            os.close(report)
        os.close(connection)


def _report(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the driver has gone, or closed its pool
        os.write(report, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def _serve_fork(fd: int, request: list[Any], parent: int) -> NoReturn:
    try:
        die_with_parent(parent)
        control, threads, idle_seconds = request
        run_worker(Connection(fd), control, threads, idle_seconds, parent)
    finally:
        os._exit(1)
