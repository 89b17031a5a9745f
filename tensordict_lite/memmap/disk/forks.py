"""Descriptors with locks that end with the process: a forked child closes its copies.

A process releases its locks explicitly, but a killed one does not. Without this, a child forked meanwhile by any thread
would hold them as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

_kept: set[int] = set()


def kept(fd: int) -> int:
    """Register ``fd``, so that children forked from now on close their copies, and return it."""
    _kept.add(fd)
    return fd


def close(fd: int) -> None:
    """Close a descriptor registered by :func:`kept`, if it is still open."""
    if fd in _kept:
        _kept.discard(fd)
        os.close(fd)


def unlock(fd: int) -> None:
    """Release the lock of a descriptor registered by :func:`kept`."""
    if fd in _kept:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough if a child is being forked
        close(fd)


def _in_child() -> None:
    for fd in _kept:
        with contextlib.suppress(OSError):
            os.close(fd)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
