"""Threads of this process that a fork would break: those of native code that does not expect forks.

A fork has only the thread that made it. Python knows its own threads; those that a library starts appear in
`/proc/self/task` alone. OpenMP, OpenBLAS, Arrow, jemalloc and torch start theirs anew in a fork, or are not used there.
Rayon (Polars) and most others wait for threads that do not exist in the fork, for ever.

The library of a thread that waits is read from the return addresses on its stack.
"""

from __future__ import annotations

import bisect
import os
import re
import struct
import threading
import time
from pathlib import Path

_SURVIVES = re.compile(r"libgomp|libomp|libiomp|openblas|libmkl|libtorch|libc10|libarrow|libparquet")
"""Libraries whose threads may be lost in a fork."""

_RUNTIME = re.compile(r"libc[.-]|libpthread|libstdc\+\+|libgcc_s|libm[.-]|ld-linux|ld-musl|\[vdso\]")
"""Libraries in which threads of every library wait."""

_ALLOCATOR = "jemalloc_bg_thd"
_STACK_BYTES = 2048
_POOL_SPINS_SECONDS = 0.1
"""OpenMP and BLAS threads spin for some milliseconds after an operation before they wait."""

_harmless: set[str] = set()
"""Threads that were found to be so; they are not read again."""


def threads_that_break_in_forks() -> list[str]:
    """The names of these threads; empty where the system has no `/proc`.

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
    """Whether a thread has the name that threads get when nothing names them: that of the program."""
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
        """The libraries that a thread is in, but those of `_RUNTIME`; none where it does not come to rest.

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
