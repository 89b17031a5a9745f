"""Sizes and times of files: one immutable object, which a call reads once, when it begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

__all__ = ["DEFAULT", "SaveTuning", "current", "use"]


@dataclass(frozen=True, slots=True)
class SaveTuning:
    """What decides how files are written. Every choice is read back. Sizes are in bytes, times in seconds."""

    # Folders

    text_rows: int = 4096
    """So many strings are written to files of their own; below it JSON is as fast."""

    text_bytes: int = 4 << 20
    """Strings of so many bytes are, too: a reader of JSON holds all of it, and refuses a lot."""

    buffer_bytes: int = 8 << 20
    """Appended rows that a `DatasetWriter` keeps until they are written."""

    checksum_bytes: int = 4 << 20
    """Of a file, with a checksum of its own: corruption is reported as a range of rows."""

    lock_seconds: float = 60.0
    """Wait for another process: a disk may stall, a process be stopped."""

    # Archives

    small_bytes: int = 1 << 20
    """Data of less is gathered with that of other entries into one write."""

    gather_bytes: int = 8 << 20
    """Written at a time, of small entries."""

    part_bytes: int = 512 << 10
    """Summed, and then written, of large entries: it stays in the second-level cache."""

    thread_part_bytes: int = 4 << 20
    """Summed by a thread at a time."""

    deflate_bytes: int = 8 << 20
    """Deflated at a time."""

    whole_bytes: int = 64 << 20
    """Data that is compressed by other methods in one go."""

    held_files: int = 200
    """Files of a folder that stay open while it is packed."""

    wide_bytes: int = 0xFFFFFFFF
    """Sizes and offsets that are written with 64 bits."""

    wide_entries: int = 0xFFFF
    """Entries whose number is."""

    directory_bytes: int = 1 << 30
    """The largest directory that is written, or read."""


DEFAULT = SaveTuning()

_CURRENT: ContextVar[SaveTuning] = ContextVar("memmap_tuning", default=DEFAULT)


def current() -> SaveTuning:
    """The values for calls that begin now, in this thread."""
    return _CURRENT.get()


@contextmanager
def use(**changes: float) -> Iterator[SaveTuning]:
    """Use other values for calls that begin in the block, in this thread.

    For tests, which reach with little data what takes much otherwise.

    Raises:
        TypeError: a field of another name.

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
