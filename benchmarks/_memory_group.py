"""A group of processes that may use so much memory, the files that they read and write included (cgroup v1 and v2)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOTS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
"""Where groups are made, and the file that limits them: version 1 first, where both are there."""


@contextlib.contextmanager
def memory_group(nbytes: int) -> Iterator[Path | None]:
    """A group whose processes may use so many bytes; None where none can be made. Processes join by `join_group`."""
    group = _made(nbytes)
    try:
        yield group
    finally:
        deadline = time.monotonic() + 30
        while group is not None and group.exists() and time.monotonic() < deadline:
            try:
                group.rmdir()
            except OSError:  # its last process is ending
                time.sleep(0.05)


def _made(nbytes: int) -> Path | None:
    for root, limit in ROOTS:
        group = root / f"tdmap-bench-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(nbytes))
            for swap, most in (("memory.memsw.limit_in_bytes", str(nbytes)), ("memory.swap.max", "0")):
                if (group / swap).exists():
                    (group / swap).write_text(most)
            return group
        except OSError:  # no controller, or a plain folder
            with contextlib.suppress(OSError):
                group.rmdir()
    return None


def join_group(group: str) -> None:
    """Move this process, whose children follow it, into a group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
