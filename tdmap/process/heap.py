"""How much of the memory that it has freed a worker keeps.

A chunk's temporaries are freed before those of the next chunk are made. Left alone, glibc gives such memory back to the
system and asks for it again, chunk after chunk, and the kernel has to find and clear the same pages each time: up to a
third of a worker's time, by the luck of what lies at the end of its heap.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

KEPT_BYTES = 32 << 20
"""Free memory at the end of the heap that is kept."""

OWN_BYTES = 16 << 20
"""What is as large gets pages of its own, which go back to the system as soon as it is freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> None:
    """Have this process keep what it frees, up to `KEPT_BYTES`; where the environment says how much, that counts."""
    chosen = any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = _glibc("mallopt")
    if mallopt is not None and not chosen:
        mallopt(_MMAP_THRESHOLD, OWN_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Give what is free back to the system: nobody will need it for a while."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Any:
    """A function of glibc; None where the C library is another one."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None
