"""What a dataset of several parts consists of: folders that are mapped when rows of them are wanted, and memory.

A member travels to a worker as the name of its folder. Nothing of it is open there until one of its rows is read.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

from tdmap.data.kinds import Data, tensors_of
from tdmap.data.reader import narrow, plain_tensors
from tdmap.memory.files import written_at
from tdmap.memory.hidden import HIDDEN
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import META, read_small


class Rows(Protocol):
    """The rows of a member that is open."""

    def read(self, first: int, last: int) -> Data:
        """Rows `first..last`, as a copy that the caller may change."""
        ...

    def take(self, rows: Any) -> Data:
        """These rows (int64, not negative), as a copy."""
        ...

    def like(self) -> Data:
        """A collection with the entries, dtypes and row shapes of the dataset, of any number of rows."""
        ...


class Member(Protocol):
    """One part of a dataset: cheap to send to another process."""

    name: str
    """How messages call it: its folder, or its URL."""
    rows: int

    def open(self) -> Rows:
        """Its rows.

        Raises:
            DatasetError: it is not what it was when the dataset was opened; names it.
        """
        ...

    def identity(self) -> str | Data:
        """What tells its content from another, for journals of runs; or the data themselves, which tell."""
        ...


class Mapped:
    """The rows of a folder, mapped copy-on-write: what a function does to a chunk never reaches the files."""

    def __init__(self, folder: str, data: Data) -> None:
        self._folder = folder
        self._use(data)

    def _use(self, data: Data) -> None:
        self.data = plain_tensors(data)
        self._leaves = tensors_of(data)
        self._versions = self._version()

    def _version(self) -> int:
        return sum(leaf._version for leaf in self._leaves if not leaf.is_inference())

    def read(self, first: int, last: int) -> Data:
        if self._version() != self._versions:
            # A function has changed rows in place: pages of this process alone, which would stay for good.
            self._use(TensorDict.load_memmap(self._folder, mode="r"))
        return narrow(self.data, 0, first, last)

    def take(self, rows: Any) -> Data:
        return self.data[rows]

    def like(self) -> Data:
        return self.data


class FolderMember:
    """A dataset in a folder of this machine, or of a file system that is mounted here.

    Args:
        name: the folder.
        rows: how many it has.
        digest: of its metadata, as `digest_of` gives it.
    """

    def __init__(self, name: str, rows: int, digest: str) -> None:
        self.name = name
        self.rows = rows
        self.digest = digest

    @classmethod
    def at(cls, folder: str) -> FolderMember:
        """The dataset that is in a folder now.

        Raises:
            DatasetError: there is none.
        """
        digest = digest_of(folder)
        shape = TensorDict.load_memmap(folder, device="meta").shape
        if not shape:
            raise DatasetError(folder, "has batch size [], so it has no rows that could come after others")
        return cls(folder, int(shape[0]), digest)

    def open(self) -> Mapped:
        if digest_of(self.name) != self.digest:
            raise DatasetError(self.name, "has been replaced since the dataset of several folders was opened")
        data = TensorDict.load_memmap(self.name, mode="r")
        if int(data.shape[0]) != self.rows:
            raise DatasetError(self.name, f"has {int(data.shape[0])} rows, and had {self.rows} before")
        return Mapped(self.name, data)

    def files(self) -> list[str]:
        """A file that is there wherever the folder is."""
        return [f"{self.name}/{META}"]

    def identity(self) -> str:
        found: dict[str, tuple[int, str]] = {}
        for root, folders, files in os.walk(self.name):
            folders[:] = [folder for folder in folders if folder != HIDDEN]
            for path in (os.path.join(root, file) for file in files):
                if os.path.isfile(path):
                    found[os.path.relpath(path, self.name)] = os.path.getsize(path), content_of(path)
        return f"{os.path.basename(self.name)}, {self.rows} rows, metadata {self.digest}, {state_of(found)}"


class InMemory:
    """The rows of a collection in memory, as copies."""

    def __init__(self, data: Data) -> None:
        self._data = plain_tensors(data)

    def read(self, first: int, last: int) -> Data:
        return narrow(self._data, 0, first, last).clone()

    def take(self, rows: Any) -> Data:
        return self._data[rows]

    def like(self) -> Data:
        return self._data


class MemoryMember:
    """A collection in memory, or a part of a mapped dataset. Its tensors travel as all data of jobs do."""

    def __init__(self, name: str, data: Data) -> None:
        self.name = name
        self.rows = int(data.shape[0])
        self.data = data

    def open(self) -> InMemory:
        return InMemory(self.data)

    def identity(self) -> Data:
        return self.data


def digest_of(folder: str) -> str:
    """Of the metadata of a dataset: what tells it from one with other rows, keys or dtypes.

    Raises:
        DatasetNotFoundError: there is no dataset.
    """
    if not os.path.isdir(folder):
        raise DatasetNotFoundError(folder, "is missing: there is no such folder")
    return digest_of_bytes(read_small(f"{folder}/{META}", folder))


def content_of(path: str) -> str:
    """What tells the content of a file from what it was: when it was written, or a digest where that is not noted."""
    written = written_at(path)
    if written is not None:
        return str(written)
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def state_of(files: Mapping[str, tuple[int, str]]) -> str:
    """What changes when any file of a dataset does, whether its metadata change or not.

    Args:
        files: the size of each by its name, and what its file system or store says of the time it was written.

    Example:
        >>> before = state_of({"x.memmap": (8, "1"), "y.memmap": (8, "3")})
        >>> state_of({"x.memmap": (8, "2"), "y.memmap": (8, "3")}) == before
        False
    """
    lines = "\n".join(f"{name} {size} {written}" for name, (size, written) in sorted(files.items()))
    return f"files {hashlib.blake2b(lines.encode(errors='surrogateescape'), digest_size=8).hexdigest()}"


def digest_of_bytes(meta: bytes) -> str:
    """The same, of the bytes of the metadata.

    Example:
        >>> digest_of_bytes(b"{}")
        'a3a6bf43'
    """
    return f"{zlib.crc32(meta):08x}"
