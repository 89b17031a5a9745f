"""Peak memory of this process and of every process under it, seen from outside.

The watcher is a small process of its own that knows only psutil. A sampling thread would do too, but a
process with a second thread can no longer fork its workers safely: watching would change what is watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


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
        from tdmap.process.forks import register_end  # the watcher, which runs this file, has no need of it

        self._pid = os.getpid()
        command = [sys.executable, "-I", __file__, str(os.getpid()), str(self.interval)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        register_end(self._watcher.stdin)  # it looks until the last copy of this is closed
        assert self._watcher.stdout is not None
        self._watcher.stdout.readline()  # the first look is over
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from tdmap.process.forks import close_end

        assert self._watcher is not None
        if os.getpid() != self._pid:  # a fork that leaves the block: its parent is still being watched
            self._watcher.returncode = 0
            return
        answer, _ = self._watcher.communicate()
        close_end(self._watcher.stdin)
        if answer:
            self.peak = PeakMemory(**json.loads(answer))


def _watch(pid: int, interval: float) -> None:
    """Look at the tree under ``pid`` until stdin closes, then print the peaks as JSON."""
    import select

    import psutil

    main = psutil.Process(pid)
    peaks: dict[int, int] = {}
    total = samples = 0
    while True:
        now = _unique_bytes(main)
        for process, size in now.items():
            peaks[process] = max(size, peaks.get(process, 0))
        total = max(total, sum(now.values()))
        samples += 1
        if samples == 1:
            print("watching", flush=True)
        until = time.monotonic() + interval
        if select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
            break
    workers = sorted((size for process, size in peaks.items() if process != pid), reverse=True)
    print(json.dumps({"main": peaks.get(pid, 0), "workers": workers, "total": total, "samples": samples}))


def _unique_bytes(main: Any) -> dict[int, int]:
    import psutil

    sizes: dict[int, int] = {}
    try:
        processes = [main, *main.children(recursive=True)]
    except psutil.Error:
        return sizes
    for process in processes:
        if process.pid == os.getpid():
            continue
        try:
            sizes[process.pid] = process.memory_full_info().uss
        except (psutil.Error, OSError):
            continue
    return sizes


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))
