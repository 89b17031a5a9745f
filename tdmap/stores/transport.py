"""What a store is asked for, whatever library talks to it.

through_fsspec     fsspec's file systems: every kind of store, and every option
through_obstore    the `obstore` package, where it is installed: S3 with the usual options, several times faster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tensordict_lite.errors import DatasetError

Range = tuple[str, int, int]
"""A URL, and the first byte and the one past the last."""

Place = tuple[Range, memoryview]
"""Bytes of an object, and memory of their length that they go to."""


class CannotServe(Exception):
    """This transport cannot do what is asked of it, and fsspec may."""


class ShortRead(OSError):
    """Another number of bytes came than was asked for."""

    def __init__(self, asked: Range, nbytes: int) -> None:
        url, start, stop = asked
        super().__init__(f"{nbytes} of {stop - start} bytes of {url} came")


def leads_out(url: str, name: str) -> DatasetError:
    """The error for an object whose name would be a path out of its folder."""
    return DatasetError(url, f"holds an object named {name!r:.200}, which leads out of its folder: remove the object")


class Transport(Protocol):
    """Requests to a store, each made once or as often as the library below tries. Errors are those of the library.

    FileNotFoundError where there is no such object or bucket, and PermissionError where there are no rights.
    """

    def content(self, url: str) -> bytes:
        """All of an object."""
        ...

    def fill(self, places: Sequence[Place]) -> Sequence[Exception | None]:
        """Read bytes of objects into memory, all of them at once: the error that came instead, or None, for each."""
        ...

    def names(self, url: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        ...

    def find(self, url: str) -> dict[str, tuple[int, str]]:
        """All objects below a folder, by their names relative to it: bytes, and what changes with their content."""
        ...

    def put(self, objects: Mapping[str, bytes | bytearray]) -> None:
        """Objects by their URLs, all of them under way at once."""
        ...

    def send(self, files: Mapping[str, str]) -> None:
        """Objects from local files, by their URLs."""
        ...

    def remove(self, urls: Sequence[str]) -> None:
        """Objects; nothing where there are none."""
        ...
