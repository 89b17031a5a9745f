"""Which chunks are done already, and who wants to know which ones are done now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tdmap.runtime.skiplog import SkippedBefore

Ranges = Sequence[tuple[int, int]]
"""Runs of chunks, ascending: from the first to behind the last."""


class CommitLog(Protocol):
    """Where it is noted which chunks are done, for a run that can be resumed."""

    @property
    def committed(self) -> Ranges:
        """Chunks that an earlier run has done."""
        ...

    @property
    def elsewhere(self) -> Ranges:
        """Chunks that other programs do, and this one must not."""
        ...

    @property
    def skips(self) -> SkippedBefore | None:
        """Where the rows that were skipped are noted; None when nobody wants to know."""
        ...

    def add(self, start: int, stop: int) -> None:
        """The chunks `start..stop` are done."""
        ...

    def tick(self, now: float) -> None:
        """Called often; writes what is due."""
        ...


class KnownChunks:
    """The commit log of a job that has some chunks left out, and of which nobody wants to know more.

    Args:
        committed: chunks that are done.
        elsewhere: chunks that other programs do.
    """

    skips: SkippedBefore | None = None

    def __init__(self, committed: Ranges = (), elsewhere: Ranges = ()) -> None:
        self.committed = committed
        self.elsewhere = elsewhere

    def add(self, start: int, stop: int) -> None:
        """Not noted."""

    def tick(self, now: float) -> None:
        """Nothing to write."""
