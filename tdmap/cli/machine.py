"""What this machine gives: memory, disk, what a chunk costs to give out, and how long workers take to start."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdmap.memory.resources import usable_cores
from tdmap.memory.scratch import temporary_folder
from tdmap.runtime.workers.launch import start_methods

if TYPE_CHECKING:
    from tdmap.data.kinds import Data


@dataclass(frozen=True)
class Figure:
    """One thing that was measured several times."""

    name: str
    unit: str
    """`"B/s"` or `"s"`."""
    values: list[float]

    @property
    def median(self) -> float:
        """Of the values."""
        return statistics.median(self.values)


def measure_machine(folder: Path | None = None, rounds: int = 5, megabytes: int = 256) -> list[Figure]:
    """Measure everything, in turns.

    Args:
        folder: whose disk is measured. Default: the temporary folder.
        rounds: how often each is measured.
        megabytes: size of what is copied, written and read.

    Raises:
        OSError: the folder cannot be written, or has no room.
    """
    size = megabytes << 20
    found: dict[str, Figure] = {}
    with temporary_folder("tdmap-bench", folder) as scratch:
        cases: list[tuple[str, str, Callable[[], float]]] = [
            ("memory, copied by one thread", "B/s", lambda: _copy(size, 1)),
            (f"memory, copied by {usable_cores()} threads", "B/s", lambda: _copy(size, usable_cores())),
            ("disk, written and synced", "B/s", lambda: _write(Path(scratch, "file"), size)),
            ("disk, read again", "B/s", lambda: _read(Path(scratch, "file"), size)),
            ("a chunk, given out and taken back", "s", _dispatch),
            ("a call on workers that are there", "s", _warm_call),
        ]
        for method in start_methods():
            cases.append((f"2 workers and a first call, {method}", "s", lambda method=method: _start(method)))  # type: ignore[misc]
        for number in range(-1, rounds):  # the first does not count
            for name, unit, run in cases:
                if number < 0 and "first call" in name:  # a start has nothing to warm up
                    continue
                value = run()
                if number >= 0:
                    found.setdefault(name, Figure(name, unit, [])).values.append(value)
    return list(found.values())


def _copy(size: int, threads: int) -> float:
    """Bytes a second that are read, and as many written."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        began = time.perf_counter()
        target.copy_(source)
        return size / (time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)


def _write(path: Path, size: int) -> float:
    block = os.urandom(1 << 20)
    began = time.perf_counter()
    with open(path, "wb", 0) as file:
        for _ in range(max(size >> 20, 1)):
            file.write(block)
        os.fsync(file.fileno())
    return size / (time.perf_counter() - began)


def _read(path: Path, size: int) -> float:
    """From the disk, as far as the system can be told to forget what it has in memory."""
    with open(path, "rb", 0) as file:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        block = bytearray(1 << 20)
        began = time.perf_counter()
        while file.readinto(block):
            pass
        return size / (time.perf_counter() - began)


def _nothing(chunk: Data) -> None:
    pass


CHUNKS = 20_000
"""Chunks of one row, of which most of the time is what giving them out costs."""


def _timed_map(rows: int, pool: Any = None) -> float:
    from tdmap.ops.map import map

    data = torch.zeros(rows)
    began = time.perf_counter()
    map(data, _nothing, num_workers=2, chunksize=1, pool=pool)
    return time.perf_counter() - began


def _dispatch() -> float:
    few = _timed_map(100)
    return max(_timed_map(CHUNKS) - few, 0.0) / CHUNKS


def _warm_call() -> float:
    return _timed_map(2)


def _start(method: str) -> float:
    from tdmap.runtime.workers.pool import WorkerPool

    began = time.perf_counter()
    pool = WorkerPool(2, method)
    try:
        _timed_map(2, pool)
        return time.perf_counter() - began
    finally:
        pool.close()
