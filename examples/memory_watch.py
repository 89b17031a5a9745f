"""Peak memory of this process and of every process under it, seen from outside.

The watcher is a small process of its own, which runs this file as a script. A sampling thread would do too, but a
process with a second thread can no longer fork its workers safely: watching would change what is watched.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass
class PeakMemory:
    """The highest figures seen, in bytes; each process's own peak, whenever it came."""

    main: int = 0
    """Unique set size of the watched process: what would be free if it alone ended."""
    workers: list[int] = field(default_factory=list)
    """Unique set size of each process under it, largest first."""
    total: int = 0
    """Highest sum over all of them at one moment."""


class MemoryWatch:
    """Context manager: watches this process and its children while the block runs.

    Args:
        interval: seconds between two looks.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.peak = PeakMemory()

    def __enter__(self) -> MemoryWatch:
        from tdmap.processes import register_end

        command = [sys.executable, "-I", __file__, str(os.getpid()), str(self.interval)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        register_end(self._watcher.stdin)  # it looks until the last copy of this is closed
        assert self._watcher.stdout is not None
        self._watcher.stdout.readline()  # the first look is over
        return self

    def __exit__(self, *error: object) -> None:
        from tdmap.processes import close_end

        answer, _ = self._watcher.communicate()
        close_end(self._watcher.stdin)
        self.peak = PeakMemory(**json.loads(answer))


def watch(pid: int, interval: float) -> None:
    """Look at the tree under `pid` until stdin closes, then print the peaks as JSON."""
    main = psutil.Process(pid)
    peaks: dict[int, int] = {}
    total = 0
    while True:
        first, sizes = not peaks, unique_bytes(main)
        for process, size in sizes.items():
            peaks[process] = max(size, peaks.get(process, 0))
        total = max(total, sum(sizes.values()))
        if first:
            print("watching", flush=True)
        until = time.monotonic() + interval
        if select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
            break
    workers = sorted((size for process, size in peaks.items() if process != pid), reverse=True)
    print(json.dumps({"main": peaks.get(pid, 0), "workers": workers, "total": total}))


def unique_bytes(main: Any) -> dict[int, int]:
    """What each process of the tree would give back if it alone ended."""
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
    watch(int(sys.argv[1]), float(sys.argv[2]))
