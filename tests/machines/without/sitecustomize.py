"""Another machine: takes away what `TDMAP_TEST_WITHOUT` names, before anything is imported.

Python imports this file at its start, when its folder is on `PYTHONPATH`; so do all workers that are started afresh.
"""

import builtins
import ctypes
import errno
import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any

MACOS = [
    "memfd_create", "posix_fallocate", "proc", "sched_getaffinity", "pidfd_open", "copy_file_range", "eventfd",
    "posix_fadvise", "prctl", "renameat2", "dev_shm", "madvise_dontneed", "seqpacket",
]  # fmt: skip
"""What Linux has and macOS has not."""


def _hide(prefix: str) -> None:
    """No file below `prefix` is there, for this interpreter. (C code, torch's own above all, still sees it.)"""

    def hidden(path: Any) -> bool:
        if isinstance(path, (int, type(None))):
            return False
        path = os.fspath(path)
        path = path.decode() if isinstance(path, bytes) else path
        return path == prefix or path.startswith(prefix + "/")

    def call(real: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return real(path, *args, **kwargs)

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(call, real)  # no method where a class has it, as pathlib of Python 3.10 does

    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "statvfs"):
        setattr(os, name, guarded(getattr(os, name)))
    builtins.open = io.open = guarded(builtins.open)
    # Written in C where they can be, these would look past `os.stat`.
    access, exists = os.access, os.path.exists
    os.access = lambda path, *args, **kwargs: not hidden(path) and access(path, *args, **kwargs)
    os.path.exists = lambda path: not hidden(path) and exists(path)


def _fail_in_c(*names: str) -> None:
    """The C library has no function of these names."""
    real = ctypes.CDLL.__getattr__

    def lookup(self: Any, name: str) -> Any:
        if name in names:
            raise AttributeError(f"undefined symbol: {name}")
        return real(self, name)

    ctypes.CDLL.__getattr__ = lookup


def _take(name: str) -> None:
    if name == "proc":
        _hide("/proc")
    elif name == "dev_shm":
        _hide("/dev/shm")
    elif name in ("prctl", "renameat2"):
        _fail_in_c(name)
    elif name == "madvise_dontneed":
        _fail_in_c("madvise")
    elif name == "fork":
        for word in ("fork", "forkpty"):
            delattr(os, word)
    elif name == "seqpacket":
        import socket

        del socket.SOCK_SEQPACKET
    elif name == "fcntl":
        sys.modules["fcntl"] = None
    else:
        for word in [word for word in dir(os) if word == name or word.startswith(f"{name}_")]:
            delattr(os, word)


for _name in os.environ.get("TDMAP_TEST_WITHOUT", "").split(","):
    for _one in MACOS if _name == "macos" else [_name] if _name else []:
        _take(_one)
