"""Exceptions that a caller may want to catch; each subclasses the builtin exception that fits."""

from __future__ import annotations

import os


class DatasetError(RuntimeError):
    """A folder is not a valid dataset: it is truncated, edited, of another format, or points outside itself.

    Attributes:
        path: the invalid file or folder.
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
    """A file is not an archive of a dataset, is damaged or hostile, or cannot be opened in the requested mode."""


class ArchiveNotFoundError(ArchiveError, DatasetNotFoundError):
    """There is no archive at a path."""


class KeyThroughLeafError(ValueError):
    """A nested key continues below an entry that is a tensor."""


class InplaceWriteError(ValueError, RuntimeError):
    """A value does not fit the existing entry that it should overwrite."""


class EntryKindError(InplaceWriteError, TypeError):
    """An entry cannot be overwritten by a value of another kind (tensor, collection or object).

    Args:
        key: the entry, ``""`` if unknown.
        entry: the existing entry (raw).
        item: the new value.
    """

    def __init__(self, key: str, entry: object, item: object) -> None:
        named = f"the entry {key!r}" if key else "the entry"
        super().__init__(
            f"Failed to update {key!r}: {named} is a {type(entry).__name__}, and a {type(item).__name__} cannot be "
            "written into it in place. set() replaces an entry."
        )
