"""Who writes a folder, as the lock of the folder says it (see `folderlock`). Imports neither torch nor numpy."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN, printable
from tdmap.processes import ProcessId

LOCK = "lock"
"""Name of the lock file in the hidden folder."""

_END = b"\n"  # bytes behind it are the rest of a longer text of an earlier holder


class Holder(NamedTuple):
    """The process or thread that writes a folder."""

    process: ProcessId
    thread: str
    since: float
    """Seconds since 1970."""
    call: str
    """Such as `map(double)`."""
    program: str

    @staticmethod
    def own(call: str) -> Holder:
        """This thread as a holder, from this moment on."""
        name = threading.current_thread().name
        return Holder(ProcessId.own(), name, time.time(), call, " ".join(sys.argv)[:500])

    def pack(self) -> bytes:
        """The bytes that are written into the lock file."""
        return json.dumps([*self.process, *self[1:]]).encode() + _END

    @staticmethod
    def unpack(data: bytes) -> Holder:
        """What `pack` wrote; `UNKNOWN` where it is something else, or the holder is about to write it."""
        try:
            pid, host, boot, space, start, thread, since, call, program = hidden.parse_json(data.partition(_END)[0])
            numbers = [int(number) for number in (pid, boot, space, start)]
            process = ProcessId(numbers[0], printable(host), *numbers[1:])
            return Holder(process, printable(thread), float(since), printable(call), printable(program))
        except (ValueError, TypeError, OverflowError):
            return UNKNOWN

    def describe(self) -> str:
        """The holder for an error message: who, where, since when."""
        if self is UNKNOWN:
            return self.call
        pid, host = self.process.pid, self.process.host
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(self.since, 0), 1 << 36)))
        place = "" if host == os.uname().nodename else f" on {host}"
        if self.process == ProcessId.own():
            return f"{self.call}, in the thread {self.thread} of this process ({pid}), since {when}"
        return f"{self.call}, in process {pid}{place}, since {when} ({self.program})"


UNKNOWN = Holder(ProcessId(0, "", 0, 0, 0), "", 0.0, "another call", "")


def holder_in(fd: int) -> Holder:
    """The holder that an open lock file names."""
    return Holder.unpack(os.pread(fd, 1 << 16, 0))


def holder_of(folder: Path) -> Holder | None:
    """The current writer of a folder, or None. This only looks: it creates nothing and does not wait.

    Raises:
        UntrustedFile: the lock is a link or something else.
    """
    try:
        fd = hidden.open_file(folder / HIDDEN / LOCK, own=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return holder_in(fd)
    except OSError:  # no locks here
        return None
    finally:
        os.close(fd)
