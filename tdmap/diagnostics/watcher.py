"""The process of a `MemoryWatch`: looks at its parent, and at every process under it.

It runs this file as a script, `python -I watcher.py PID SECONDS`, and knows nothing of the library but these lines.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

import psutil


def watch(pid: int, interval: float) -> None:
    """Look at the tree under `pid` until stdin closes, then print the peaks as JSON."""
    main = psutil.Process(pid)
    peaks: dict[int, int] = {}
    total = samples = 0
    while True:
        now = unique_bytes(main)
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
