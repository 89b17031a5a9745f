"""Processes: which one this is, across machines and restarts, and what a fork of it must not keep.

    which process   Owner, ProcessId
    forks           pipes that a fork closes, threads that it loses

This module imports neither torch nor numpy: `tdmap status` needs it.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# -- which process -------------------------------------------------------------------------------------


class Owner:
    """The process that made an object, so that forks of it leave alone what the object stands for.

    A fork has a copy of every object: of pools whose workers it cannot hear, of folders that are being written, of
    iterators that stop their workers when they are collected.

    Args:
        what: how messages call the object.

    Example:
        >>> owner = Owner()
        >>> owner.is_here
        True
    """

    __slots__ = ("pid", "what")

    _current = staticmethod(os.getpid)  # of the class: while the interpreter ends, names of modules are None

    def __init__(self, what: str = "this object") -> None:
        self.pid = os.getpid()
        self.what = what

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a fork of it."""
        return self._current() == self.pid

    def require(self) -> None:
        """Raise RuntimeError in a fork."""
        if os.getpid() != self.pid:
            raise RuntimeError(
                f"{self.what} belongs to process {self.pid}, and cannot be used in its fork, process "
                f"{os.getpid()}. Make a new one in this process."
            )


@functools.cache
def boot_number() -> int:
    """A number that changes when the machine starts anew, and from one machine to another."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()  # random: no two machines have the same
    except OSError:
        text = os.uname().nodename
    return zlib.crc32(text.encode()) | zlib.adler32(text.encode()) << 31


class ProcessId(NamedTuple):
    """A process, across machines, restarts and pids that are used again: different processes are never equal."""

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
        """That of this process."""
        global _own_id
        pid = os.getpid()
        if _own_id is None or _own_id.pid != pid:
            _own_id = ProcessId(pid, os.uname().nodename, boot_number(), _namespace(), _start_time(pid) or 0)
        return _own_id

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None for a process of another machine or container."""
        if self.boot != boot_number():
            return False if self.host == os.uname().nodename else None
        if self.space != _namespace():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # of another user
            return True
        return _start_time(self.pid) == (self.start or None)


_own_id: ProcessId | None = None


def _namespace() -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _start_time(pid: int) -> int | None:
    """When a process was started; None when it has ended, or `/proc` does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(fields[18])
    return None


# -- forks ---------------------------------------------------------------------------------------------

# The driver's ends of every pipe. A fork, the engine's or the user's, must not hold them: a worker sees that its driver
# has ended only when the last copy of the other end is closed. Objects, not descriptors: closing an object twice is
# harmless, closing a descriptor twice may close an unrelated file that has its number by then.
_driver_ends: dict[int, Any] = {}

_fork = threading.local()


def register_end(end: Any) -> None:
    """Close `end`, an object with a `close` method, in every fork of this process."""
    _driver_ends[id(end)] = end


def close_end(end: Any) -> None:
    """Close `end` here and forget it."""
    _driver_ends.pop(id(end), None)
    with contextlib.suppress(OSError):
        end.close()


def _close_ends_in_child() -> None:
    for end in list(_driver_ends.values()):
        close_end(end)


os.register_at_fork(after_in_child=_close_ends_in_child)


@contextlib.contextmanager
def forking_worker() -> Iterator[None]:
    """In this block, a child that the thread forks is a worker."""
    _fork.worker = True
    try:
        yield
    finally:
        _fork.worker = False


def is_forking_worker() -> bool:
    """Whether the fork that this thread makes is a worker."""
    return getattr(_fork, "worker", False)


# A fork has only the thread that made it. Python knows its own threads; threads that a library starts appear in
# `/proc/self/task` alone. OpenMP, OpenBLAS, Arrow, jemalloc and torch start theirs anew in a fork, or do not use them
# there. Rayon (Polars), OpenCV and most others wait for threads that do not exist in the fork, for ever. The library of
# a thread that waits is read from the return addresses on its stack.

_SURVIVES = re.compile(r"libgomp|libomp|libiomp|openblas|libmkl|libtorch|libc10|libpthreadpool|libarrow|libparquet")
"""Libraries whose threads may be lost in a fork."""

_RUNTIME = re.compile(r"libc[.-]|libpthread[.-]|libstdc\+\+|libgcc_s|libm[.-]|ld-linux|ld-musl|\[vdso\]")
"""Libraries in which threads of every library wait."""

_ALLOCATOR = "jemalloc_bg_thd"
_STACK_BYTES = 2048
_POOL_SPINS_SECONDS = 0.4
"""OpenMP and BLAS threads spin after an operation before they wait: those of OpenBLAS for 0.1 s."""

_harmless: set[str] = set()
"""Threads that survive a fork; their stacks are not read again."""


def threads_that_break_in_forks() -> list[str]:
    """The names of the threads of native code that a fork would break; empty where the system has no `/proc`.

    A thread counts unless it belongs to a library of `_SURVIVES`. Where stacks cannot be read, it counts when it has a
    name of its own.
    """
    global _harmless
    try:
        alive = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
    except OSError:
        return []
    _harmless &= alive
    unknown = alive - _harmless
    if not unknown:
        return []
    code = _Code()
    found = []
    for thread in sorted(unknown):
        try:
            name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
        except OSError:
            continue  # ended
        if name == _ALLOCATOR or _survives(thread, name, code):
            _harmless.add(thread)
        else:
            found.append(name)
    return found


def _survives(thread: str, name: str, code: _Code) -> bool:
    try:
        libraries = code.on_stack(thread)
    except FileNotFoundError:
        return not os.path.exists(f"/proc/self/task/{thread}") or _has_common_name(name)
    except (OSError, ValueError):
        return _has_common_name(name)
    return bool(libraries) and all(_SURVIVES.search(library) for library in libraries)


def _has_common_name(name: str) -> bool:
    """Whether a thread has the default name: that of the program."""
    return name == Path("/proc/self/comm").read_text().strip()


class _Code:
    """Where the code of each library lies in memory."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, str]] = []
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, mode, _, _, _, *path = line.split(maxsplit=5)
            if "x" in mode:
                start, stop = (int(end, 16) for end in span.split("-"))
                self._starts.append(start)
                self._ranges.append((stop, os.path.basename(path[0]) if path else ""))

    def on_stack(self, thread: str) -> set[str]:
        """The libraries that a thread is in, without those of `_RUNTIME`; none when it does not come to rest.

        Raises:
            OSError, ValueError: its stack cannot be read.
        """
        deadline = time.monotonic() + _POOL_SPINS_SECONDS
        while (words := Path(f"/proc/self/task/{thread}/syscall").read_text().split())[0] == "running":
            if time.monotonic() > deadline:
                return set()
            time.sleep(0.001)
        top, counter = int(words[-2], 16), int(words[-1], 16)
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(memory, _STACK_BYTES, top)
        finally:
            os.close(memory)
        # Addresses have 48 bits; a processor that signs them uses the others.
        addresses = (word & (1 << 48) - 1 for word in struct.unpack(f"{len(data) // 8}Q", data[: len(data) // 8 * 8]))
        found = {self._library(address) for address in (counter, *addresses)}
        return {library for library in found if library is not None and not _RUNTIME.match(library)}

    def _library(self, address: int) -> str | None:
        place = bisect.bisect_right(self._starts, address) - 1
        return self._ranges[place][1] if place >= 0 and address < self._ranges[place][0] else None
