"""Which process is meant, across machines, restarts and numbers that were given again."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple


def boot_number() -> int:
    """A number that changes when the machine starts anew, and from one machine to another."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()  # random: no two machines have the same
    except OSError:
        text = os.uname().nodename
    return zlib.crc32(text.encode()) | zlib.adler32(text.encode()) << 31


class ProcessId(NamedTuple):
    """A process. Two that were never the same are never equal."""

    pid: int
    host: str
    boot: int
    """Of the machine (`boot_number`)."""
    space: int
    """Inode of the namespace that the number belongs to (containers have their own), or 0."""
    start: int
    """When it was started, in ticks since the boot, or 0."""

    @staticmethod
    def own() -> ProcessId:
        """Of this process."""
        global _own
        if _own is None or _own.pid != os.getpid():
            _own = ProcessId(os.getpid(), os.uname().nodename, boot_number(), _space(), _start(os.getpid()) or 0)
        return _own

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None where that cannot be known from here."""
        if self.boot != boot_number():
            return False if self.host == os.uname().nodename else None
        if self.space != _space():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # of another user
            return True
        return _start(self.pid) == (self.start or None)


_own: ProcessId | None = None


def _space() -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _start(pid: int) -> int | None:
    """When a process was started; None when it has ended, or there is no telling."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(fields[18])
    return None
