"""Three ways to start a worker process, none of which imports the user's script.

- **fork**: the child is a copy of this process, there in a millisecond. Safe only while this process has no other
  Python thread, no thread of a library that does not expect forks (`process_state.py`) and no CUDA context, and
  the worker runs torch with one thread (a forked OpenMP pool hangs).
- **forkserver**: a *template* process, started once, imports torch and this package and never runs an operation;
  workers are forks of it.
- **spawn**: a fresh interpreter for every worker.

    driver ──Popen──► template ──fork──► worker
      │ ├──requests──────┘ │                │
      │ ◄──pid, exit status┘                │
      └──────────socketpair─────────────────┘   (passed through the template by SCM_RIGHTS)

A start never waits: the driver asks the template for a worker and goes on while the template still imports torch. The
template is single-threaded, and ends when the driver's end of its socket closes. Workers end with the process that
started them: by the kernel where they are forks, by a thread that watches their socket elsewhere.

The contexts of `multiprocessing` do the same but for four things: their children import the modules that they need
from the working folder, where a `selectors.py` of the user may lie; they import the user's script; they start torch
before OMP_NUM_THREADS can be set; and a start from the forkserver waits until that has imported torch.

The collector may end a worker at any instruction of this process, so that nothing here waits for a lock that its own
thread may hold.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from tdmap.errors import WorkerStartError
from tdmap.processes import Owner, close_end, forking_worker, register_end, threads_that_break_in_forks
from tdmap.runtime.workers.boot import NUMBER_BYTES
from tdmap.runtime.workers.surroundings import import_path
from tdmap.runtime.workers.worker import die_with_parent, run_worker, watch_parent
from tensordict_lite.memmap.disk.mapping import high_fd

START_METHODS = ("fork", "forkserver", "spawn")
"""Those that there are on Linux; see `start_methods`."""


class Process(ABC):
    """A worker process.

    Args:
        pid: 0 while it is not known: until the template, or Ray, has started it.
        sentinel: a descriptor that is readable when `poll` has something to learn; -1 where the system has none.
    """

    def __init__(self, pid: int, sentinel: int) -> None:
        self.pid = pid
        self.sentinel = sentinel

    @abstractmethod
    def poll(self) -> int | None:
        """Exit status as `subprocess` gives it (negative: the signal), or None while it runs.

        Raises:
            WorkerStartError: it could not be started. Raised once; it has ended since.
        """

    def kill(self) -> None:
        """Send SIGKILL to a process that has been started."""
        if self.pid and self.poll() is None:  # it has not been waited for, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the sentinel."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def socket_pair() -> tuple[Connection, Connection]:
    """Two ends of a pipe, clear of the standard streams."""
    ours, theirs = socket.socketpair()
    return Connection(high_fd(ours.detach())), Connection(high_fd(theirs.detach()))


def start_methods() -> tuple[str, ...]:
    """The start methods that this system has, of `START_METHODS`.

    Example:
        >>> "spawn" in start_methods()
        True
    """
    forks = hasattr(os, "fork")
    # The template needs a socket that keeps messages apart, which macOS has not.
    have = {"fork": forks, "forkserver": forks and hasattr(socket, "SOCK_SEQPACKET"), "spawn": True}
    return tuple(method for method in START_METHODS if have[method])


def require_start_method(method: str | None) -> None:
    """Raises ValueError unless `method` is None or a start method that this system has."""
    have = start_methods()
    if method is None or method in have:
        return
    lacks = " on this system" if method in START_METHODS else ""
    raise ValueError(f"mp_start_method must be one of {', '.join(have)}{lacks}, or None: got {method!r}.")


def default_method(forks: bool, worker_threads: int) -> str:
    """How to start a worker when the caller has not said how.

    Args:
        forks: whether workers may be forks of this process.
        worker_threads: threads that torch uses in it.
    """
    if forks and safe_to_fork(worker_threads):
        return "fork"
    return "forkserver" if "forkserver" in start_methods() else "spawn"


def safe_to_fork(worker_threads: int) -> bool:
    """Whether a fork of this process can run torch, and can be made."""
    if sys.platform == "darwin" or "fork" not in start_methods():  # Apple's libraries do not survive a fork
        return False
    if threading.active_count() > 1 or worker_threads != 1:
        return False
    torch = sys.modules.get("torch")
    return (torch is None or not torch.cuda.is_initialized()) and not threads_that_break_in_forks()


def start_worker(method: str, control: str, threads: int, idle_seconds: float) -> tuple[Process, Connection]:
    """Start a worker.

    Args:
        method: one of `START_METHODS`.
        control: path of its control block.
        threads: threads that torch uses in it.
        idle_seconds: it leaves after so long without work.

    Returns:
        The process and the driver's end of its pipe.
    """
    ours, theirs = socket_pair()
    register_end(ours)
    try:
        if method == "fork":
            process: Process = _fork(theirs, control, threads, idle_seconds)
        elif method == "forkserver":
            try:
                process = template().fork(theirs, control, threads, idle_seconds)
            except WorkerStartError:  # it was killed a moment ago
                close_template()
                process = template().fork(theirs, control, threads, idle_seconds)
        else:
            process = _spawn(theirs, control, threads, idle_seconds)
    except BaseException:
        close_end(ours)
        raise
    finally:
        theirs.close()
    return process, ours


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts; it inherits the mask, and lifts it once it ignores the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- fork --------------------------------------------------------------------------------------------


def pidfd_of(pid: int) -> int:
    """What becomes readable when a process ends; -1 where that cannot be had, or `pid` is 0."""
    try:
        return os.pidfd_open(pid) if pid else -1
    except (AttributeError, OSError):
        return -1


class Child(Process):
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid, pidfd_of(pid))
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._status = 0  # other code waited for it (SIGCHLD ignored, for one): its code is not known
                return self._status
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


def _fork(connection: Connection, control: str, threads: int, idle_seconds: float) -> Child:
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):  # what is buffered here must not be printed by the child as well
        with contextlib.suppress(Exception):
            stream.flush()
    in_main_thread = threading.current_thread() is threading.main_thread()
    # Python 3.12 counts torch's own idle threads too; whether forking is safe was decided before. A filter for this
    # file alone may stay: putting the filters back would undo what other threads do to them meanwhile.
    if sys.version_info >= (3, 12):
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=re.escape(__name__) + "$")
    with _no_interrupts(), forking_worker():
        try:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except OSError as error:
            raise _refused(error, "a worker cannot be forked") from error
    if pid:
        return Child(pid)
    try:
        _let_go_of_pipes(keep=connection.fileno())
        if in_main_thread:  # the kernel would kill the worker when any other thread ends
            die_with_parent(parent)
        else:
            watch_parent(connection)
        run_worker(connection, control, threads, idle_seconds, parent)
    finally:
        os._exit(1)


def _let_go_of_pipes(keep: int) -> None:
    """Drop the caller's pipes and sockets, which a fork inherits.

    A warm worker that held them would keep a child of the caller from seeing the end of its input, or a port from
    being bound again. Each number is pointed at the null device instead of closed, so that an object of the caller
    that is collected here cannot close a file that has taken its number.
    """
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in numbers:
        if fd <= 2 or fd in (keep, null):
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.dup2(null, fd, inheritable=False)
    os.close(null)


# -- spawn -------------------------------------------------------------------------------------------

# Importing torch takes a sixth less time without looking for garbage among what it defines. Nor is that looked through
# later, in this process or in those that are forked from it, for whom it would copy pages besides.
# First of all the working folder is forgotten: it may hold a json.py, which has nothing to do with the program.
_BOOT = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
    "import gc; gc.disable(); "
    "import json; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from tdmap.runtime.workers.boot import {entry}; gc.freeze(); gc.enable(); {entry}(a)"
)


def _interpreter(entry: str, fd: int, arguments: dict[str, Any]) -> Child:
    """Start a fresh interpreter that runs a function of `boot` and has the descriptor `fd`."""
    arguments = {**arguments, "fd": fd, "path": import_path(), "parent": os.getpid()}
    # What Python was started with (-O, -W, -X utf8...), as `multiprocessing` passes it on too.
    options: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    env = {**os.environ, "OMP_NUM_THREADS": str(arguments.get("threads", 1))}
    try:
        with _no_interrupts():
            popen = subprocess.Popen(
                [sys.executable, *options, "-c", _BOOT.format(entry=entry), json.dumps(arguments)],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                env=env,
            )
    except OSError as error:
        raise _refused(error, f"{sys.executable} cannot be started as a worker") from error
    popen.returncode = 0  # `Child` waits for it
    return Child(popen.pid)


def _refused(error: OSError, what: str) -> WorkerStartError:
    """The error where the system starts no more processes."""
    why = {
        errno.EAGAIN: "There are as many processes as this user or container may have (ulimit -u, pids.max)",
        errno.ENOMEM: "There is no memory for one more process",
    }.get(error.errno or 0)
    advice = "" if why is None else f". {why}: end some, or ask for fewer workers (num_workers=)"
    return WorkerStartError(f"{what}: {error}{advice}")


def _spawn(connection: Connection, control: str, threads: int, idle_seconds: float) -> Child:
    return _interpreter(
        "spawn_main", connection.fileno(), {"control": control, "threads": threads, "idle": idle_seconds}
    )


# -- forkserver --------------------------------------------------------------------------------------


class Template:
    """The driver's side of the template process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message comes whole, or not
        self._socket = socket.socket(fileno=high_fd(ours.detach()))
        self._socket.settimeout(None)  # whatever the program's default is
        self._owner = Owner()
        child = high_fd(theirs.detach())
        register_end(self._socket)
        try:
            self._process = _interpreter("template_main", child, {})
        finally:
            os.close(child)

    @property
    def alive(self) -> bool:
        return self._owner.is_here and self.status is None

    @property
    def status(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def fork(self, connection: Connection, control: str, threads: int, idle_seconds: float) -> TemplateChild:
        """Ask for a worker that serves `connection`."""
        read, write = (high_fd(fd) for fd in os.pipe())
        child = TemplateChild(self, read)
        try:
            request = json.dumps([control, threads, idle_seconds]).encode()
            socket.send_fds(self._socket, [request], [connection.fileno(), write])
        except OSError as error:
            child.close()
            raise self.ended() from error
        finally:
            os.close(write)
        return child

    def ended(self) -> WorkerStartError:
        """The error where it has ended instead of forking a worker."""
        return WorkerStartError(
            f"the process that workers are forked from has ended (exit status {wait_exit(self._process, 1.0)}). "
            "Its messages, if any, are on standard error"
        )

    def close(self) -> None:
        """End the template, and with it every worker that it forked."""
        close_end(self._socket)
        if wait_exit(self._process, 0.1) is None:  # it may import torch still
            self._process.kill()
            wait_exit(self._process, 5.0)
        self._process.close()


class TemplateChild(Process):
    """A worker that the template forks.

    Args:
        template: what forks it.
        reports: the pipe through which its pid (or the number of an error, negative) and its exit status come.
    """

    def __init__(self, template: Template, reports: int) -> None:
        super().__init__(0, reports)
        os.set_blocking(reports, False)
        self._template = template
        self._status: int | None = None

    def poll(self) -> int | None:
        while self._status is None:
            try:
                report = os.read(self.sentinel, NUMBER_BYTES)
            except BlockingIOError:
                break
            number = int.from_bytes(report, "little", signed=True)
            if self.pid:
                self._status = number  # 0 as well when the template has ended and cannot tell
            elif number > 0:
                self.pid = number
            else:
                self._status = 1
                if not report:
                    error = self._template.ended()
                    if (killed := self._template.status or 0) < 0:  # the death of this worker: another one replaces it
                        self._status = killed
                        break
                    raise error
                raise _refused(OSError(-number, os.strerror(-number)), "a worker cannot be forked")
        return self._status

    def close(self) -> None:
        if self._status is None:
            self._status = 0
        super().close()


_template: Template | None = None
_template_lock = threading.RLock()


def _forget_in_child() -> None:
    global _template, _template_lock
    _template = None
    _template_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)


def template() -> Template:
    """The template process of this process, started at the first call."""
    global _template
    with _template_lock:
        if _template is None or not _template.alive:
            close_template()
            _template = Template()
        return _template


def close_template() -> None:
    """End the template process, if there is one."""
    global _template
    with _template_lock:
        if _template is not None:
            _template.close()
        _template = None


def wait_exit(process: Process, seconds: float) -> int | None:
    """Exit status of a process that is about to end; None when it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.0002
    while (code := process.poll()) is None and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    return code
