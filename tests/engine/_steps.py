"""Something happens at the n-th step that the engine makes in this thread: a collection, a signal, an exception."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tdmap
from tdmap.process_state import CURRENT

ENGINE = os.path.dirname(tdmap.__file__) + os.sep

KINDS = {
    "fork": {"num_workers": 2, "mp_start_method": "fork"},
    "forkserver": {"num_workers": 2, "mp_start_method": "forkserver"},
    "thread": {"num_workers": 2, "executor": "thread"},
    "seeded thread": {"num_workers": 2, "executor": "thread", "seed": 1},
    "serial": {"num_workers": 0},
}
"""Ways to run a job."""

_RELEASES = frozenset(("__exit__", "release"))


class Steps:
    """Counts what the engine's functions call and return, and acts at one of these steps.

    Calls of a lock's release do not count: Python handles a signal after such a call, never between a block and the
    release of its lock, and an exception that came there would leave the lock held for good. Nor do those of the
    variable that says which operation runs.

    Args:
        at: the number of the step; None only counts.
        action: what happens there.
        files: names of files of the engine that count; all of them by default.
    """

    def __init__(
        self, at: int | None = None, action: Callable[[], Any] | None = None, files: tuple[str, ...] = (".py",)
    ) -> None:
        self.count = 0
        self.acted = False
        self._at, self._action, self._files = at, action, files

    def __enter__(self) -> Steps:
        self._thread = threading.get_ident()
        sys.setprofile(self._step)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _step(self, frame: Any, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if not (name.startswith(ENGINE) and name.endswith(self._files)) or threading.get_ident() != self._thread:
            return
        if event == "c_call" and (argument.__name__ in _RELEASES or getattr(argument, "__self__", None) is CURRENT):
            return
        self.count += 1
        if self.count == self._at:
            self.acted = True
            assert self._action is not None
            self._action()


def spread(count: int, samples: int) -> list[int]:
    """So many numbers from 1 to `count`, evenly spread; the first and the last are among them."""
    return sorted({1 + round(n * (count - 1) / (samples - 1)) for n in range(samples)})


def at_steps(samples: int, action: Callable[[], Any], work: Callable[[], Any], **options: Any) -> Iterator[Steps]:
    """Blocks within which something happens at so many steps, spread over those that a piece of work takes.

    How many steps it takes differs from run to run, with how often the driver looks whether anything has come: a
    block that came to its end before its step is followed by one with a step that there was.

    Args:
        samples: how many times.
        action: what happens.
        work: what will run in each block; it runs once before, to be counted.
        options: of `Steps`.
    """
    with Steps(**options) as counted:
        work()
    for number in range(samples):
        share, count = number / max(samples - 1, 1), counted.count
        while True:
            steps = Steps(1 + round(share * (count - 1)), action, **options)
            yield steps
            if steps.acted:
                break
            count = steps.count  # fewer than were wanted of it
