"""What this process may use: cores by affinity and by quota, memory by what is free and by the limit of its cgroup."""

from __future__ import annotations

import math
import os
from pathlib import Path

UNKNOWN_MEMORY = 4 << 30
"""Bytes that are taken to be available where the system does not say."""


def usable_cores() -> int:
    """Cores that this process may really use: its affinity mask, cut down to the CPU quota of its cgroup.

    Example:
        >>> 1 <= usable_cores() <= (os.cpu_count() or 1)
        True
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = cgroup_quota()
    return max(min(cores, math.ceil(quota)) if quota else cores, 1)


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of CPU time that the cgroup grants, or None without a limit (cgroup v2, then v1)."""
    limits = []
    for folder in _own_folders(root, own):
        limit = _read_v2(folder / "cpu.max") or _read_v1(folder)
        if limit:
            limits.append(limit)
    return min(limits) if limits else None


def available_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory that can still be used, the page cache included, which makes room when it is asked to.

    A cgroup counts the files that its processes read and write as its memory. No process runs out of memory by them.

    Example:
        >>> available_memory() > 0
        True
    """
    spare = system_memory()
    free = [] if spare is None else [spare]
    for folder in _own_folders(root, own):
        free += _room(folder, "memory.max", "memory.current", ("inactive_file", "active_file"))
    v1 = ("total_inactive_file", "total_active_file")
    for folder in dict.fromkeys(_own_folders(root, own, "memory")):
        free += _room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", v1)
    return max(min(free, default=UNKNOWN_MEMORY), 0)


def system_memory() -> int | None:
    """Bytes of memory that the machine has to spare; None where the system does not say, as without `/proc`."""
    import psutil

    try:
        return int(psutil.virtual_memory().available)
    except (OSError, RuntimeError):
        return None


def _room(folder: Path, limit: str, used: str, cached: tuple[str, str]) -> list[int]:
    """What a cgroup has left, in a list; an empty one where it has no limit."""
    try:
        most, now = (int((folder / name).read_text()) for name in (limit, used))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return [most - now + sum(int(stat.get(name, 0)) for name in cached)]
    except (OSError, ValueError):  # no such file, or "max"
        return []


def _own_folders(root: Path, own: Path, controller: str = "cpu") -> list[Path]:
    """The cgroup folders that may limit this process, its own and those above: of version 2, or of a controller."""
    folders = [root, root / controller]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root if not controllers else root / controllers
        folder = base / path.lstrip("/")
        while folder != base and base in folder.parents:
            folders.append(folder)
            folder = folder.parent
    return folders


def _read_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
