"""Programs for tests, without the second of CPU that it takes to import torch.

    test  ──(arguments, folder, environment, 0, 1, 2)──▶  server: both packages are imported
                                                            └─ fork: keeper ─ fork: the program

Use `subprocess` where a test asks how Python starts (flags, hash seeds, variables that are read at the start, what an
import loads) and how it ends: a program of `run` waits for threads and calls what `atexit` knows; its modules stay.
"""

import atexit
import builtins
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
_REQUEST_BYTES = 1 << 17


class Program:
    """A running program; what it writes goes to files, unless the caller names others.

    Args:
        arguments: what stands behind `python` on a command line: a script, `-c` and code, or `-m` and a module.
        cwd: the working folder.
        env: the environment; that of the caller by default.
        stdin: a file or descriptor of the caller; nothing by default.
        stdout: a file or descriptor of the caller.
        stderr: a file or descriptor of the caller.
    """

    def __init__(
        self,
        arguments: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> None:
        os.umask(umask := os.umask(0))
        request = {
            "arguments": [os.fspath(argument) for argument in arguments],
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "umask": umask,
        }
        self.returncode: int | None = None
        self._files = [tempfile.TemporaryFile() if given is None else None for given in (stdout, stderr)]
        outputs = [given if file is None else file for given, file in zip((stdout, stderr), self._files, strict=True)]
        self._said, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "rb") as nothing:
            streams = [given if isinstance(given, int) else given.fileno() for given in (stdin or nothing, *outputs)]
            socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self.pid = int(self._said.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; `TimeoutError` when it has not ended by then."""
        if self.returncode is None:
            self._said.settimeout(timeout)
            self.returncode = int(self._said.recv(64))
            self._said.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        with contextlib.suppress(BlockingIOError):
            return self.wait(0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written until it ended."""
        self.wait(timeout)
        written = []
        for file in self._files:
            if file is not None:
                file.seek(0)
            written.append("" if file is None else file.read().decode())
        return written[0], written[1]

    def send_signal(self, number: int) -> None:
        """To the program alone, as long as it runs; it leads a session of its own."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


def run(arguments: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: `check=` and the options of `Program`."""
    check = options.pop("check", False)
    program = Program(arguments, **options)
    done = subprocess.CompletedProcess(list(arguments), 0, *program.communicate())
    done.returncode = program.wait()
    if check:
        done.check_returncode()
    return done


_started: list[tuple[int, socket.socket, subprocess.Popen[bytes]]] = []


def _server() -> socket.socket:
    """The way to the server of this process, which is started when first needed."""
    if not _started or _started[0][0] != os.getpid():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the tests, and these end it
            )
        _started[:] = [(os.getpid(), ours, server)]
    return _started[0][1]


def close() -> None:
    """End the server of this process."""
    for owner, ours, server in _started:
        if owner == os.getpid():
            ours.shutdown(socket.SHUT_RDWR)  # a fork of this process that a test has left may hold it open
            ours.close()
            server.wait()
    _started.clear()


def _fork() -> int:
    """The server has threads of numpy, which wait for work: Python 3.12 and later warn of any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _keep(request: dict[str, Any], files: list[int]) -> None:
    """Fork a program and tell how it ends; returns in the program alone."""
    *streams, status = files
    said = socket.socket(fileno=status)
    program = _fork()
    if program:
        said.send(str(program).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with contextlib.suppress(OSError):  # the test may have ended
            said.send(str(code).encode())
        os._exit(0)
    said.close()
    os.setsid()
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _execute(arguments: list[str]) -> None:
    """What Python does with its arguments."""
    sys.path[0] = "" if arguments[0] == "-c" else os.getcwd()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if arguments[0] == "-c":
        source, name, sys.argv = arguments[1], "<string>", ["-c", *arguments[2:]]
    else:
        name, sys.argv = arguments[0], arguments
        source, main.__file__ = Path(name).read_text(), name
        sys.path[0] = os.path.dirname(os.path.abspath(name))
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _serve(requests: socket.socket) -> list[str]:
    """Fork a keeper for each request; returns in programs, with their arguments."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not message:
            os._exit(0)
        if _fork() == 0:
            requests.close()
            request = json.loads(message)
            _keep(request, files)
            here, paths = str(ROOT), request["env"].get("PYTHONPATH", "").split(os.pathsep)
            sys.path[1:1] = [path for path in paths if path not in ("", here)]
            return request["arguments"]
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    import numpy  # noqa: F401
    import psutil  # noqa: F401
    import torch  # noqa: F401

    import tdmap
    import tdmap.datasets
    import tensordict_lite  # noqa: F401

    for _name in tdmap.__all__:
        getattr(tdmap, _name)
    gc.collect()
    gc.freeze()  # a program that collects garbage would copy all of torch
    _arguments, _status = _serve(socket.socket(fileno=int(sys.argv[1]))), 1
    try:
        _execute(_arguments)
        _status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        else:
            _status = error.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(BaseException):
        threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_status)
