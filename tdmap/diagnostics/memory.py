"""Peak memory of this process and of every process under it, seen from outside.

The watcher is a small process of its own (`watcher.py`). A sampling thread would do too, but a process with a second
thread can no longer fork its workers safely: watching would change what is watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from types import TracebackType

from tdmap.diagnostics import watcher
from tdmap.process_state import close_end, register_end


@dataclass
class PeakMemory:
    """The highest figures seen, in bytes; each process's own peak, whenever it came."""

    main: int = 0
    """Unique set size of the watched process: what would be free if it alone ended."""
    workers: list[int] = field(default_factory=list)
    """Unique set size of each process under it, largest first."""
    total: int = 0
    """Highest sum over all of them at one moment."""
    samples: int = 0
    """How often the watcher looked."""


class MemoryWatch:
    """Context manager: watches this process and its children while the block runs.

    Args:
        interval: seconds between two looks.

    Example:
        >>> with MemoryWatch(interval=0.01) as watch:
        ...     block = bytearray(8 << 20)
        >>> watch.peak.main > 8 << 20
        True
    """

    def __init__(self, interval: float = 0.05) -> None:
        self.interval = interval
        self.peak = PeakMemory()
        self._watcher: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> MemoryWatch:
        self._pid = os.getpid()
        command = [sys.executable, "-I", watcher.__file__, str(os.getpid()), str(self.interval)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        register_end(self._watcher.stdin)  # it looks until the last copy of this is closed
        assert self._watcher.stdout is not None
        self._watcher.stdout.readline()  # the first look is over
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watcher is not None
        if os.getpid() != self._pid:  # a fork that leaves the block: its parent is still being watched
            self._watcher.returncode = 0
            return
        answer, _ = self._watcher.communicate()
        close_end(self._watcher.stdin)
        if answer:
            self.peak = PeakMemory(**json.loads(answer))
