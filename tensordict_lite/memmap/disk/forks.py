"""Descriptors whose locks last as long as a process has them open: a forked child closes its copies.

Who holds a lock lets go of it in so many words. But who is killed does not, and then a child that was forked meanwhile,
by any thread, would keep others waiting for as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

__all__ = ["close", "kept", "unlock"]

_kept: set[int] = set()


def kept(fd: int) -> int:
    """``fd``, of which no child that is forked from now on has a copy."""
    _kept.add(fd)
    return fd


def close(fd: int) -> None:
    """Closes what :func:`kept` was told of, if it is still there."""
    if fd in _kept:
        _kept.discard(fd)
        os.close(fd)


def unlock(fd: int) -> None:
    """Lets go of what was locked by a descriptor that :func:`kept` was told of, if it is one."""
    if fd in _kept:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a child is forked just now
        close(fd)


def _in_child() -> None:
    for fd in _kept:
        with contextlib.suppress(OSError):
            os.close(fd)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
