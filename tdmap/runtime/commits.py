"""Commit logs: which chunks of a job are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tdmap.runtime.skiplog import SkippedBefore

Ranges = Sequence[tuple[int, int]]
"""Runs of chunks, ascending: from the first to behind the last."""


class CommitLog(Protocol):
    """Keeps which chunks of a job are done, for a call that can be resumed (see `tdmap.run.log`)."""

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
        """The rows that were skipped; None where they are not kept."""
        ...

    def add(self, start: int, stop: int) -> None:
        """The chunks `start..stop` are done."""
        ...

    def tick(self, now: float) -> None:
        """Called often; writes what is due."""
        ...


class KnownChunks:
    """The commit log of a job that leaves out some chunks, and is not kept.

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
