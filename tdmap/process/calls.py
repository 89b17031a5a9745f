"""Calls of operations that have not returned yet."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class Running:
    """An operation that a user has called and that has not returned yet.

    Args:
        name: of the function.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._endings: list[Callable[[], Any]] = []

    def at_end(self, fn: Callable[[], Any]) -> None:
        """Have something called when the operation returns, or raises."""
        self._endings.append(fn)

    def end(self) -> None:
        """Call it."""
        for fn in self._endings:
            fn()


CURRENT: ContextVar[Running | None] = ContextVar("running", default=None)


def running_operation() -> Running | None:
    """The operation that was called in this thread; the outermost one, where one calls another."""
    return CURRENT.get()
