"""One job at a time, though jobs may begin and end at any instruction.

A lock of the standard library does not do. A signal handler that calls `map` in the instant after the lock was taken,
and before that was noted, would wait for its own thread. An exception out of such a handler, in the same instant,
would leave the lock taken for ever. And the collector may give it up in another thread than took it. So taking it is
one operation of the interpreter, which puts a token where everybody looks, and whose token it is tells the rest.
"""

from __future__ import annotations

import threading
import time

LONGEST_WAIT = 0.01
"""Seconds between two looks of a thread that waits."""


class TakenHere(Exception):
    """The thread that asks has it already."""


class Reservation:
    """Held by one job.

    Example:
        >>> reservation = Reservation()
        >>> reservation.take(), reservation.give_up(), reservation.take(blocking=False)
        (True, None, True)
    """

    def __init__(self) -> None:
        self._holder: dict[str, list[int]] = {}

    def take(self, blocking: bool = True) -> bool:
        """Hold it; False when it is held and `blocking` is False.

        Raises:
            TakenHere: this thread holds it, so that it would wait for itself.
        """
        token, pause = [threading.get_ident()], LONGEST_WAIT / 64
        try:
            while (holder := self._holder.setdefault("job", token)) is not token:
                if not blocking:
                    return False
                if holder == token:
                    raise TakenHere
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_WAIT)
        except BaseException:  # out of a signal handler, perhaps after we had got it
            if self._holder.get("job") is token:
                self.give_up()
            raise
        return True

    def give_up(self) -> None:
        """Let the next one have it."""
        self._holder.pop("job", None)
