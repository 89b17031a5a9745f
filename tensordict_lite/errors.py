"""Exceptions that a caller may want to catch, each a subclass of the builtin that fits."""

from __future__ import annotations

import os

__all__ = [
    "ArchiveError",
    "ArchiveNotFoundError",
    "DatasetError",
    "DatasetNotFoundError",
    "EntryKindError",
    "InplaceWriteError",
    "KeyThroughLeafError",
]


class DatasetError(RuntimeError):
    """A folder is not a dataset that can be trusted: truncated, edited, of another format, or pointing outside.

    Attributes:
        path: the file or folder that is at fault.
        reason: what is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}")

    def __reduce__(self) -> tuple[type[DatasetError], tuple[str, str]]:
        return type(self), (self.path, self.reason)


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """There is no dataset at a path: the folder or its ``meta.json`` does not exist."""

    def __str__(self) -> str:  # OSError would show its (errno, message) pair
        return f"{self.path}: {self.reason}"


class ArchiveError(DatasetError, ValueError):
    """A file is no archive of a dataset, is damaged or hostile, or cannot be opened in the way that was asked for."""


class ArchiveNotFoundError(ArchiveError, DatasetNotFoundError):
    """There is no archive at a path."""


class KeyThroughLeafError(ValueError):
    """A nested key goes on below an entry that is a tensor."""


class InplaceWriteError(ValueError, RuntimeError):
    """A value does not fit the existing entry that it should overwrite."""


class EntryKindError(InplaceWriteError, TypeError):
    """A tensor, a collection or an object cannot overwrite an entry that is one of the other two.

    Args:
        key: the entry, ``""`` where it is not known.
        entry: what is there (raw).
        item: what should be written.
    """

    def __init__(self, key: str, entry: object, item: object) -> None:
        named = f"the entry {key!r}" if key else "the entry"
        super().__init__(
            f"Failed to update {key!r}: {named} is a {type(entry).__name__}, and a {type(item).__name__} cannot be "
            "written into it in place. set() replaces an entry."
        )
