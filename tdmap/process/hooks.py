"""What this process does when it forks, and when it ends: in one order, whichever file is imported first.

    before a fork       SLOTS     slots of results that are in use are given up for good
                        FORKS     the thread is known to be within a fork
    in its parent       FORKS     it is no more
    in its child        FORKS     ends of pipes are closed, and nobody is within a fork
                        LOCKS     folders stay locked by the parent, or are shared by a worker of its call
                        TEMPLATE  the template process is the parent's
                        POOLS     so are the pools,
                        STREAMS   the iterators that are open,
                        DISK      the helpers that wait for the disk,
                        BARS      and the bars that are shown
                        CHUNKS    a chunk can tell that it runs in a child of its function
                        TURN      no thread of the parent draws random numbers here,
                        SETTINGS  or sets how many threads torch uses
    at the end          STREAMS   open iterators are closed, as long as their workers live
                        POOLS     workers are ended
                        DISK      helpers are left to end by themselves

Each file that keeps something for its process names the place of its hook. A hook that raises does not keep the others
from running: each is one of Python's own.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its hook for forks takes a lock: registered first, it runs after ours
import functools
import os
from collections.abc import Callable
from typing import Any

SLOTS, FORKS, LOCKS, TEMPLATE, POOLS = "slots", "forks", "locks", "template", "pools"
STREAMS, DISK, BARS, CHUNKS = "streams", "disk", "bars", "chunks"
TURN, SETTINGS = "turn", "settings"

BEFORE = (SLOTS, FORKS)
IN_PARENT = (FORKS,)
IN_CHILD = (FORKS, LOCKS, TEMPLATE, POOLS, STREAMS, DISK, BARS, CHUNKS, TURN, SETTINGS)
AT_EXIT = (STREAMS, POOLS, DISK)

Hook = Callable[[], Any]

_before: dict[str, Hook] = {}
_in_parent: dict[str, Hook] = {}
_in_child: dict[str, Hook] = {}
_at_exit: dict[str, Hook] = {}


def before_fork(place: str, hook: Hook) -> None:
    """Have something called before this process forks."""
    _add(_before, BEFORE, place, hook)


def in_parent(place: str, hook: Hook) -> None:
    """Have something called in this process once it has forked."""
    _add(_in_parent, IN_PARENT, place, hook)


def in_child(place: str, hook: Hook) -> None:
    """Have something called in every fork of this process."""
    _add(_in_child, IN_CHILD, place, hook)


def at_exit(place: str, hook: Hook) -> None:
    """Have something called when this process ends."""
    _add(_at_exit, AT_EXIT, place, hook)


def _add(hooks: dict[str, Hook], places: tuple[str, ...], place: str, hook: Hook) -> None:
    if place not in places:
        raise ValueError(f"there is no hook {place!r} here: there are {', '.join(places)}.")
    hooks[place] = hook


def _run(hooks: dict[str, Hook], place: str) -> None:
    hook = hooks.get(place)
    if hook is not None:
        hook()


# Python calls what is to be done before a fork, and at the end, in the reverse order of registration.
for _place in reversed(BEFORE):
    os.register_at_fork(before=functools.partial(_run, _before, _place))
for _place in IN_PARENT:
    os.register_at_fork(after_in_parent=functools.partial(_run, _in_parent, _place))
for _place in IN_CHILD:
    os.register_at_fork(after_in_child=functools.partial(_run, _in_child, _place))
for _place in reversed(AT_EXIT):
    atexit.register(functools.partial(_run, _at_exit, _place))
