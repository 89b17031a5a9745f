"""What a dataset of several parts consists of: folders that are mapped when rows of them are wanted, and memory.

A member travels to a worker as the name of its folder. Nothing of it is open there until one of its rows is read.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.data.kinds import Data, Picks, Rows, concatenated, is_dense, tensors_of
from tdmap.data.objects import entry_at, object_paths, ragged_tensors
from tdmap.data.reader import narrow, plain_tensors
from tdmap.data.sizes import result_bytes
from tdmap.memory.files import written_at
from tdmap.memory.hidden import HIDDEN
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import META, read_small
from tensordict_lite.memmap.disk.mapping import region_of

READ_BYTES = 32 << 20
"""Bytes of rows that are read from a source in one go, unless a chunk has more."""

MOST_OPEN = 1 << 14
"""Mappings that the sources of one dataset keep in one process: a quarter of what Linux allows by default."""

COST = MOST_OPEN // 64
"""What a source counts for if it is no folder, or a lazy stack: its files and objects are not known."""

OBJECT_BYTES = 16 << 10
"""Of values in memory, so many bytes count as one mapping."""

MOST_BLOCKS = 100_000
"""Of a source with more blocks, several count as one."""


class OpenRows:
    """The rows of a source that is open in this process. A subclass must define `read`."""

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> Data:
        """Rows `first..last`. The caller may change them without changing the source.

        Args:
            first, last: the rows.
            keys: entries to read; None for all. Further entries of the result are ignored.
        """
        raise NotImplementedError

    def take(self, rows: Tensor, keys: Sequence[Any] | None = None) -> Data:
        """These rows (non-negative int64) in this order. By default `read` reads each run of consecutive rows."""
        wanted, places = torch.unique(rows, return_inverse=True)
        if not len(wanted):
            return self.read(0, 0, keys)
        runs = torch.tensor_split(wanted, torch.nonzero(wanted.diff() > 1)[:, 0] + 1)
        found = [self.read(int(run[0]), int(run[-1]) + 1, keys) for run in runs]
        return concatenated(found)[places]

    def like(self) -> Data:
        """A collection with the entries, dtypes and row shapes of the source, of any number of rows."""
        return self.read(0, 0)

    def prefetch(self, first: int, last: int, keys: Sequence[Any] | None = None) -> None:
        """Begin to fetch rows that are read next."""


class RowSource:
    """Rows in any storage: a folder, an object store, a file of another library.

    A source is sent to workers, which open it when they first read its rows, so it must be small and picklable. A
    subclass must define `open` and `identity`. `tdmap.open(source)` opens it as a dataset, and `tdmap.testing.rows`
    tests it.

    Args:
        name: its name in messages, such as its path.
        rows: how many there are.

    Example:
        >>> import torch, tdmap
        >>> from tensordict_lite import TensorDict
        >>> class Squares(tdmap.types.RowSource):
        ...     def open(self):
        ...         return OpenSquares()
        ...     def identity(self):
        ...         return f"squares of {self.rows} numbers"
        >>> class OpenSquares(tdmap.types.OpenRows):
        ...     def read(self, first, last, keys=None):
        ...         return TensorDict({"x": torch.arange(first, last) ** 2}, [last - first])
        >>> data = tdmap.open(Squares("squares", 6))
        >>> data[2:4]["x"].tolist(), data.map(lambda chunk: chunk["x"] + 1, num_workers=0).tolist()
        ([4, 9], [1, 2, 5, 10, 17, 26])
    """

    is_remote = False
    """Each read is a request over a network: reads are large, and the next one is announced by `prefetch`."""
    block = 1
    """Rows that are stored, and so read, as a unit: a chunk of an array, a row group of a file."""
    read_bytes: int | None = READ_BYTES
    """Most bytes of one read, unless a chunk has more. None where reading is mapping, and costs no memory."""
    data: Data | None = None
    """The rows, where they are in memory."""

    def __init__(self, name: str, rows: int) -> None:
        self.name = name
        self.rows = rows

    def open(self) -> OpenRows:
        """Its rows.

        Raises:
            DatasetError: the source has changed since the dataset was opened; names it.
        """
        raise NotImplementedError

    def identity(self) -> str | Data:
        """An identifier of its content for `resume=True`, or the rows themselves."""
        raise NotImplementedError

    def files(self) -> list[str]:
        """Files that another machine must have to open it there."""
        return []


Run: TypeAlias = "tuple[RowSource, int, int, tuple[Any, ...] | None]"
"""Rows of a source: the first, the one past the last, and the entries that are read; None for all."""


class OpenSources:
    """The sources that a process has open; those that were read last, where there are many."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, tuple[RowSource, OpenRows, int]] = OrderedDict()
        self._cost = 0

    def __reduce__(self) -> Any:
        return OpenSources, ()

    def rows_of(self, source: RowSource) -> OpenRows:
        key = id(source)
        found = self._rows.get(key)
        if found is not None:
            self._rows.move_to_end(key)
            return found[1]
        rows = source.open()
        cost = rows.cost if isinstance(rows, Mapped) else COST
        self._rows[key] = source, rows, cost
        self._cost += cost
        while self._cost > MOST_OPEN and len(self._rows) > 1:
            self._cost -= self._rows.popitem(last=False)[1][2]
        return rows


@dataclass(frozen=True, eq=False)
class SourceSpan(Rows):
    """A run of rows of one source, which is opened when one of them is read."""

    opened: OpenSources
    source: RowSource
    first: int
    last: int
    keys: tuple[Any, ...] | None = None
    """The entries that are read; None for all."""

    @property
    def run(self) -> Run:
        return self.source, self.first, self.last, self.keys

    @property
    def is_remote(self) -> bool:
        return self.source.is_remote

    @property
    def blocks(self) -> Sequence[int]:
        block = self.source.block
        if block <= 1:
            return ()
        block *= -(-(self.last - self.first) // (block * MOST_BLOCKS)) or 1
        return range((self.first // block + 1) * block - self.first, self.last - self.first, block)

    @property
    def in_memory(self) -> Sequence[Data]:
        return () if self.source.data is None else (self.source.data,)

    @property
    def folders(self) -> Sequence[str]:
        return (self.source.name,) if self.source.data is None else ()

    @property
    def files(self) -> Sequence[str]:
        return self.source.files()

    @property
    def length(self) -> int:
        return self.last - self.first

    @property
    def like(self) -> Data:
        return self.take(range(0)).clone()

    def take(self, index: Picks) -> Data:
        rows = self.opened.rows_of(self.source)
        if isinstance(index, range):
            found = rows.read(self.first + index.start, self.first + index.stop, self.keys)
        else:
            found = rows.take(index + self.first, self.keys)
        return found if self.keys is None else found.select(*self.keys)

    def window(self, first: int, last: int) -> SourceSpan:
        return SourceSpan(self.opened, self.source, self.first + first, self.first + last, self.keys)

    def prefetch(self, first: int, last: int) -> None:
        if self.is_remote:
            self.opened.rows_of(self.source).prefetch(self.first + first, self.first + last, self.keys)

    def identities(self) -> Iterator[tuple[str, Any]]:
        yield f"rows {self.first}:{self.last}", self.source.identity()


def spans_of(runs: Iterable[Run]) -> list[SourceSpan]:
    """Runs of rows, whose sources are opened apart from those of other datasets."""
    opened = OpenSources()
    return [SourceSpan(opened, *run) for run in runs]


class Mapped(OpenRows):
    """The rows of a folder, mapped copy-on-write: what a function does to a chunk never reaches the files."""

    def __init__(self, folder: str, data: Data) -> None:
        self._folder = folder
        self._use(data)

    def _use(self, data: Data) -> None:
        self.data = plain_tensors(data)
        self._leaves = tensors_of(data)
        self._versions = self._version()

    @property
    def cost(self) -> int:
        """What it counts for among the sources that are open."""
        data = self.data
        if not is_dense(data):
            return COST
        tensors = [*self._leaves, *ragged_tensors(data)]
        objects = [entry_at(data, path) for path in object_paths(data)]
        in_memory: list[Data] = [tensor for tensor in tensors if region_of(tensor) is None]
        in_memory += [entry for entry in objects if not isinstance(entry, Ragged)]
        return len(tensors) + len(objects) + sum(result_bytes(value) for value in in_memory) // OBJECT_BYTES

    def _version(self) -> int:
        return sum(leaf._version for leaf in self._leaves if not leaf.is_inference())

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> Data:
        if self._version() != self._versions:
            # A function has changed rows in place: pages of this process alone, which would stay for good.
            self._use(TensorDict.load_memmap(self._folder, mode="r"))
        return narrow(self.data, 0, first, last)

    def take(self, rows: Tensor, keys: Sequence[Any] | None = None) -> Data:
        return self.data[rows]

    def like(self) -> Data:
        return self.data


class FolderSource(RowSource):
    """A dataset in a folder of this machine, or of a file system that is mounted here.

    Args:
        name: the folder.
        rows: how many it has.
        digest: of its metadata, as `digest_of` gives it.
    """

    read_bytes = None

    def __init__(self, name: str, rows: int, digest: str) -> None:
        super().__init__(name, rows)
        self.digest = digest

    @classmethod
    def at(cls, folder: str) -> FolderSource:
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


class Copies(OpenRows):
    """The rows of a collection in memory, as copies."""

    def __init__(self, data: Data) -> None:
        self._data = plain_tensors(data)

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> Data:
        return narrow(self._data, 0, first, last).clone()

    def take(self, rows: Tensor, keys: Sequence[Any] | None = None) -> Data:
        return self._data[rows]

    def like(self) -> Data:
        return self._data


class MemorySource(RowSource):
    """A collection in memory, or a part of a mapped dataset. Its tensors travel as all data of jobs do."""

    read_bytes = None

    def __init__(self, name: str, data: Data) -> None:
        super().__init__(name, int(data.shape[0]))
        self.data = data

    def open(self) -> Copies:
        return Copies(self.data)

    def identity(self) -> Data:
        return self.data


def digest_of(folder: str) -> str:
    """Of the metadata of a dataset: what tells it from one with other rows, keys or dtypes.

    Raises:
        DatasetNotFoundError: there is no dataset.
    """
    if not os.path.isdir(folder):
        raise DatasetNotFoundError(folder, "is missing: the folder does not exist")
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
