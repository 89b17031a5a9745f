"""Exceptions that a caller may want to catch, each a subclass of the builtin that fits."""

from __future__ import annotations

import os

__all__ = [
    "ArchiveError",
    "ArchiveNotFoundError",
    "DatasetError",
    "DatasetNotFoundError",
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
