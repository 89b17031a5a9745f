"""What a function may take for granted about its process: the caller's import path, arguments, folder, umask,
environment, and settings of Python, NumPy and torch.

A worker may have been started long before the call, by another process or in another folder. So every job brings the
caller's surroundings, and a function that opens a relative path or reads a variable finds what the caller would.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from tdmap.process_state import COMPILER_IS_DETERMINISTIC, ProcessSettings, ThreadSettings

_own_variables = {"OMP_NUM_THREADS", COMPILER_IS_DETERMINISTIC}
"""Variables that workers are started with, and keep."""


def keep_variables(names: Iterable[str]) -> None:
    """Have this process keep more variables of its own, whatever those of its callers are."""
    _own_variables.update(names)


def import_path() -> tuple[str, ...]:
    """`sys.path`, absolute unless the working directory has been removed; without what Python passes over there."""
    folder = ""
    with contextlib.suppress(FileNotFoundError):
        folder = os.getcwd()
    return tuple([os.path.join(folder, entry) for entry in sys.path if isinstance(entry, str)])


def _umask() -> int:
    """That of this process. Only the kernel's file tells it without setting it, which other threads would notice."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class Surroundings(NamedTuple):
    """Of the process that called `map`."""

    path: tuple[str, ...]
    """`sys.path`, absolute."""
    argv: tuple[str, ...]
    """`sys.argv`."""
    folder: str
    """The working directory; empty when it has been removed."""
    umask: int
    """Permissions that new files and folders do not get."""
    environment: dict[str, str]
    """The environment variables."""
    settings: ProcessSettings
    """Of the whole process."""
    thread: ThreadSettings
    """Of the thread that called."""

    @classmethod
    def here(cls) -> Surroundings:
        """The surroundings of this process, now."""
        folder = ""
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
        return cls(
            import_path(),
            tuple(getattr(sys, "argv", ())),
            folder,
            _umask(),
            dict(os.environ),
            ProcessSettings.here(),
            ThreadSettings.here(),
        )

    def enter(self, own_process: bool = True) -> None:
        """Apply them to this process. A process of a foreign pool gets the import path only."""
        for entry in reversed(self.path):
            if entry not in sys.path:
                sys.path.insert(0, entry)
        if not own_process:
            return
        sys.argv = list(self.argv)
        if self.folder:
            with contextlib.suppress(OSError):  # removed since
                os.chdir(self.folder)
        os.umask(self.umask)
        self.settings.enter()
        self.thread.enter()
        if self.environment != os.environ:
            own = {name: os.environ[name] for name in _own_variables if name in os.environ}
            for name in os.environ.keys() - self.environment.keys() - own.keys():
                del os.environ[name]
            os.environ.update({**self.environment, **own})
