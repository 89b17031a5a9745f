"""Three ways to start a worker process, none of which imports the user's script.

- **fork**: the child is a copy of this process, there in a millisecond. Safe only while this process has no other
  Python thread, no thread of a library that does not expect forks (`process_state.py`) and no CUDA context, and
  the worker runs torch with one thread (a forked OpenMP pool hangs).
- **forkserver**: a *template* process, started once, imports torch and this package and never runs an operation;
  workers are forks of it.
- **spawn**: a fresh interpreter for every worker.

    driver ──Popen──► template ──fork──► worker
       └────socketpair───┘                  │
       └──────────socketpair────────────────┘   (passed through the template by SCM_RIGHTS)

The template is single-threaded: it answers `fork` and `wait` requests and ends when the driver's end of its socket
closes. Forked workers ask the kernel to kill them with their parent; spawned ones watch a pipe.

The collector may end a worker at any instruction of this process, and a handler of a signal may raise there. So nothing
here waits for a lock that its own thread may hold.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import json
import os
import pickle
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tdmap.errors import WorkerStartError
from tdmap.process_state import Owner, close_end, forking_worker, register_end, threads_that_break_in_forks
from tdmap.runtime.workers.boot import MESSAGE_BYTES
from tdmap.runtime.workers.surroundings import import_path
from tdmap.runtime.workers.worker import die_with_parent, run_worker
from tensordict_lite.memmap.disk.mapping import high_fd

START_METHODS = ("fork", "forkserver", "spawn")
"""Those that there are on Linux; see `start_methods`."""

_LISTEN_MILLISECONDS = 20
"""Where two wait for the template, one may be given the other's answer, and look for it only after so long."""


class Process(Protocol):
    """A started worker process."""

    pid: int

    def poll(self) -> int | None:
        """Exit status as `subprocess` gives it (negative: the signal), or None while it runs."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


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


class ForkedProcess:
    """A direct child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _fork(connection: Connection, control: str, threads: int, idle_seconds: float) -> ForkedProcess:
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
        return ForkedProcess(pid)
    try:
        _let_go_of_pipes(keep=connection.fileno())
        if in_main_thread:  # else the kernel would kill the worker when that thread ends
            die_with_parent(parent)
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


_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
"""Interpreters that this process has started."""


def _popen(entry: str, fds: tuple[int, ...], arguments: dict[str, Any]) -> subprocess.Popen[bytes]:
    arguments = {**arguments, "path": import_path(), "parent": os.getpid()}
    # What Python was started with (-O, -W, -X utf8...), as `multiprocessing` passes it on too.
    options: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    env = {**os.environ, "OMP_NUM_THREADS": str(arguments.get("threads", 1))}
    try:
        with _no_interrupts():
            popen = subprocess.Popen(
                [sys.executable, *options, "-c", _BOOT.format(entry=entry), json.dumps(arguments)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=env,
            )
            _started.add(popen)
            return popen
    except OSError as error:
        raise _refused(error, f"{sys.executable} cannot be started as a worker") from error


def _refused(error: OSError, what: str) -> WorkerStartError:
    """The error where the system starts no more processes."""
    why = {
        errno.EAGAIN: "There are as many processes as this user or container may have (ulimit -u, pids.max)",
        errno.ENOMEM: "There is no memory for one more process",
    }.get(error.errno or 0)
    advice = "" if why is None else f". {why}: end some, or ask for fewer workers (num_workers=)"
    return WorkerStartError(f"{what}: {error}{advice}")


class SpawnedProcess:
    """A fresh interpreter, and the pipe whose closing ends it."""

    def __init__(self, popen: subprocess.Popen[bytes], lifeline: io.FileIO) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._lifeline = lifeline

    def poll(self) -> int | None:
        code = self._popen.poll()
        if code is not None:
            close_end(self._lifeline)
        return code

    def kill(self) -> None:
        self._popen.kill()


def _spawn(connection: Connection, control: str, threads: int, idle_seconds: float) -> SpawnedProcess:
    read, write = (high_fd(fd) for fd in os.pipe())
    lifeline = open(write, "wb", buffering=0)
    register_end(lifeline)
    arguments = {
        "fd": connection.fileno(),
        "lifeline": read,
        "control": control,
        "threads": threads,
        "idle": idle_seconds,
    }
    try:
        return SpawnedProcess(_popen("spawn_main", (connection.fileno(), read), arguments), lifeline)
    except BaseException:
        close_end(lifeline)
        raise
    finally:
        os.close(read)


# -- forkserver --------------------------------------------------------------------------------------


class Template:
    """The driver's side of the template process.

    Requests carry numbers, and a thread that asks takes in the answers to others as well: threads and signal handlers
    may ask while another request waits.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message comes whole, or not
        self._socket = socket.socket(fileno=high_fd(ours.detach()))
        self._socket.settimeout(None)  # whatever the program's default is
        self._numbers = itertools.count()
        self._answers: deque[bytes] = deque()
        self._has_answered = False
        self._owner = Owner()
        child = high_fd(theirs.detach())
        register_end(self._socket)
        try:
            self._process = _popen("template_main", (child,), {"fd": child})
        finally:
            os.close(child)

    @property
    def alive(self) -> bool:
        return self._owner.is_here and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything, so that it forks at once."""
        return self._has_answered

    def _ask(self, request: tuple[object, ...], fds: tuple[int, ...] = ()) -> Any:
        number = next(self._numbers).to_bytes(8, "little")
        try:
            socket.send_fds(self._socket, [number + pickle.dumps(request)], list(fds))
            while (answer := self._answer(number)) is None:
                self._listen()
        except (OSError, EOFError, ValueError) as error:
            raise WorkerStartError(
                f"the process that workers are forked from has ended (exit status {self._process.poll()}). "
                "Its messages, if any, are on standard error"
            ) from error
        self._has_answered = True
        return pickle.loads(answer)

    def _answer(self, number: bytes) -> bytes | None:
        for answer in list(self._answers):
            if answer.startswith(number):
                self._answers.remove(answer)
                return answer[len(number) :]
        return None

    def _listen(self) -> None:
        """Take in the answers that have come, to all requests. Waits for one, or for another thread to take it."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.poll(_LISTEN_MILLISECONDS)
        receive = functools.partial(self._socket.recv, MESSAGE_BYTES, socket.MSG_DONTWAIT)
        with contextlib.suppress(BlockingIOError):
            # Received and kept in one instruction of the interpreter: an exception out of a signal handler between the
            # two would lose the answer of another thread.
            self._answers.extend(iter(receive, b""))
            raise EOFError

    def fork(self, connection: Connection, control: str, threads: int, idle_seconds: float) -> Process:
        """Fork a worker that serves `connection`."""
        pid = self._ask(("fork", control, threads, idle_seconds), (connection.fileno(),))
        if isinstance(pid, OSError):
            raise _refused(pid, "a worker cannot be forked")
        return TemplateChild(self, pid)

    def poll(self, pid: int) -> int | None:
        """Exit status of a worker; 0 when the template is gone and cannot tell."""
        try:
            status: int | None = self._ask(("wait", pid))
        except WorkerStartError:
            return 0
        return status

    def close(self) -> None:
        """End the template, and with it every worker that it forked."""
        close_end(self._socket)
        if self.is_ready:  # else it does not listen yet, and has no workers
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
                return
        self._process.kill()
        self._process.wait()


class TemplateChild:
    """A worker that the template forked."""

    def __init__(self, owner: Template, pid: int) -> None:
        self.pid = pid
        self._owner = owner
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._owner.poll(self.pid)
        return self._status

    def kill(self) -> None:
        if self.poll() is None:  # the template has not reaped it, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


_template: Template | None = None
_template_lock = threading.RLock()


def _forget_in_child() -> None:
    global _template, _template_lock
    for popen in list(_started):  # first: no children of the fork, which is warned of those that it lets go of
        popen.returncode = 0
    _started.clear()
    _template = None
    _template_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)


def template() -> Template:
    """The template process of this process, started at the first call."""
    global _template
    with _template_lock:
        if _template is None or not _template.alive:
            made = Template()
            if _template is not None and _template.alive:  # a signal handler was faster
                made.close()
            else:
                _template = made
        return _template


def prepare(method: str) -> bool:
    """Begin what a start by `method` would have to wait for; whether it has to be waited for.

    Only the template takes its time, most of a second, before its first fork: spawned workers start by themselves.

    Raises:
        WorkerStartError: the template does not start.
    """
    return method == "forkserver" and not template().is_ready


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
