"""What belongs to one process, and must be left alone by its forks.

A fork has a copy of every object: of pools whose workers it cannot hear, of folders that are being written, of
iterators that stop their workers when they are collected. So what can do harm outside of this process's own memory
remembers who made it, and does nothing, or says so, in anybody else's hands.
"""

from __future__ import annotations

import os


class Owner:
    """The process that has made something.

    Example:
        >>> owner = Owner()
        >>> owner.is_here
        True
    """

    __slots__ = ("pid",)

    _current = staticmethod(os.getpid)  # of the class: while the interpreter ends, names of modules are None

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no fork of it."""
        return self._current() == self.pid

    def require(self, what: str) -> None:
        """Raise RuntimeError in a fork; `what` is called by its name there."""
        if os.getpid() != self.pid:
            raise RuntimeError(
                f"{what} belongs to process {self.pid}, and this is process {os.getpid()}, a fork of it: the workers "
                "answer to that process alone. Begin anew in this process."
            )
