"""Commit logs: which chunks of a job are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tdmap.data.failures import Failure
from tdmap.errors import RowError
from tdmap.plan import Ranges


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
    def skipped(self) -> Sequence[RowError]:
        """Rows that earlier sessions have skipped."""
        ...

    @property
    def list_in(self) -> Path | None:
        """The folder for a list of the rows that were skipped; None where none outlives the call."""
        ...

    def note_skipped(self, chunk: int, failures: Sequence[Failure]) -> None:
        """Note the rows that were skipped in a chunk; none: whatever was noted of it does not hold."""
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

    skipped = ()
    list_in = None

    def __init__(self, committed: Iterable[tuple[int, int]] = (), elsewhere: Iterable[tuple[int, int]] = ()) -> None:
        self.committed = list(committed)
        self.elsewhere = list(elsewhere)

    def note_skipped(self, chunk: int, failures: Sequence[Failure]) -> None:
        """Not noted."""

    def add(self, start: int, stop: int) -> None:
        """Not noted."""

    def tick(self, now: float) -> None:
        """Nothing to write."""
