"""Forks of this process: which are under way, and what a child must not keep of its parent's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import weakref
from typing import Any

from tdmap.process import hooks

# The driver's ends of every pipe. A fork, ours or the user's, must not hold them: a worker sees that its driver has
# gone only when the last copy of the other end is closed. Objects, not numbers: closing an object twice is
# harmless, closing a number twice hits whoever has it by then.
_driver_ends: dict[int, Any] = {}


def register_end(end: Any) -> None:
    """Have `end`, which has a `close` method, closed in every fork of this process."""
    _driver_ends[id(end)] = end


def close_end(end: Any) -> None:
    """Close `end` here and forget it."""
    _driver_ends.pop(id(end), None)
    with contextlib.suppress(OSError):
        end.close()


popens: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
"""Processes that this one has started without a fork of its own."""


def _close_ends_in_child() -> None:
    for end in list(_driver_ends.values()):
        close_end(end)
    for popen in list(popens):
        popen.returncode = 0  # not our child: nothing is to be waited for, and nobody is to be warned of it
    popens.clear()


# -- forks that are under way ------------------------------------------------------------------------

_forking: list[int] = []
"""Threads that are within `os.fork`, whoever called it."""

starting: dict[int, int] = {}
"""Threads that fork a worker, and the process that they do it in. The fork itself keeps it."""


def _begin_fork() -> None:
    _forking.append(threading.get_ident())


def _end_fork() -> None:
    _forking.remove(threading.get_ident())


def _end_fork_in_child() -> None:
    _forking.clear()
    _close_ends_in_child()


hooks.before_fork(hooks.FORKS, _begin_fork)
hooks.in_parent(hooks.FORKS, _end_fork)
hooks.in_child(hooks.FORKS, _end_fork_in_child)


def is_starting_worker() -> bool:
    """Whether the fork that this thread makes is for a worker, and nobody else's."""
    return threading.get_ident() in starting


def is_unborn_worker() -> bool:
    """Whether this process will be a worker as soon as the hooks of its fork have run."""
    return starting.get(threading.get_ident(), os.getpid()) != os.getpid()


def is_forking() -> bool:
    """Whether this thread is within a fork already."""
    me = threading.get_ident()
    return me in _forking or me in starting
