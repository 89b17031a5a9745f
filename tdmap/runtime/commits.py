"""Which chunks are done already, and who wants to know which ones are done now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

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


class CallLog(Protocol):
    """Notes what the jobs of one operation have done, where the operation can be resumed (see `tdmap.run.log`)."""

    files: list[str]
    """Files that must be on the disk before chunks are durable."""

    def run(self, job: Any, sink: Any, run: Callable[[Any, Any, CommitLog | None], Any]) -> Any:
        """Run the next job, as far as it is not done; `run` does the rest of it."""
        ...

    def decide(self, name: str, find: Callable[[], Any]) -> Any:
        """What an earlier session has decided, or `find` decides now."""
        ...

    def spill(self) -> Any:
        """The next folder for intermediate files, which stay when the operation is interrupted."""
        ...

    def create(self, store: Any, example: Any, what: Any) -> Any:
        """The output in a folder: the one that an earlier session has made, if it is as wanted, or a new one."""
        ...


LOG: ContextVar[CallLog | None] = ContextVar("LOG", default=None)
"""Of the operation that this thread is in, between its jobs; None when it cannot be resumed."""

Value = TypeVar("Value")


def decide(name: str, find: Callable[[], Value]) -> Value:
    """What `find` finds, which may be something else another time: free memory, the number of workers, a random number.

    An operation that is resumed gets what it had before, since what is done depends on it.

    Args:
        name: of what is found, for the caller's operation.
        find: finds it; a plain value.
    """
    log = LOG.get()
    if log is None:
        return find()
    value: Value = log.decide(name, find)
    return value
