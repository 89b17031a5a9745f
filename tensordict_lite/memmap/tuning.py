"""Sizes and times of files: one immutable object, read once at the start of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SaveTuning:
    """Settings of how files are written; readers accept every choice. Sizes are in bytes, times in seconds."""

    # Folders

    text_rows: int = 4096
    """Number of strings from which they are written to files of their own; below it JSON is as fast."""

    text_bytes: int = 4 << 20
    """Total size of strings from which they are, too: a reader of JSON holds all of it and rejects large files."""

    buffer_bytes: int = 8 << 20
    """Appended rows that a `DatasetWriter` buffers before writing."""

    checksum_bytes: int = 4 << 20
    """Size of a block with its own checksum: corruption is reported as a range of rows."""

    lock_seconds: float = 60.0
    """Longest wait for another process: a disk may stall, a process be stopped."""

    # Archives

    small_bytes: int = 1 << 20
    """Smaller data is combined with that of other entries into one write."""

    part_bytes: int = 512 << 10
    """Size of a part of large entries that is summed and then written: it fits the second-level cache."""

    thread_part_bytes: int = 4 << 20
    """Size of a part for which a thread computes the checksum."""

    deflate_bytes: int = 8 << 20
    """Size of a block that is compressed."""


DEFAULT = SaveTuning()

_CURRENT: ContextVar[SaveTuning] = ContextVar("memmap_tuning", default=DEFAULT)


def current() -> SaveTuning:
    """The values for calls that start now in this thread."""
    return _CURRENT.get()


@contextmanager
def use(**changes: float) -> Iterator[SaveTuning]:
    """Use other values for calls that start in the block, in this thread.

    For tests: small data then takes the code paths of large data.

    Raises:
        TypeError: an unknown field.

    Example:
        >>> with use(text_rows=1) as tuning:
        ...     tuning.text_rows, current() is tuning
        (1, True)
    """
    token = _CURRENT.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _CURRENT.reset(token)
