"""What this process may use: cores by affinity and by quota."""

from __future__ import annotations

import math
import os
from pathlib import Path


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


def _own_folders(root: Path, own: Path) -> list[Path]:
    """The cgroup folders that may limit this process, its own and those above."""
    folders = [root, root / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
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
