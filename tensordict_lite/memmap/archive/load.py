"""Loading a collection from an archive: :class:`Loader` over entries instead of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from zipfile import ZIP_STORED, ZipInfo

import torch
from torch import Tensor

from tensordict_lite.errors import ArchiveError, DatasetError
from tensordict_lite.memmap.archive.read import Archive, opened
from tensordict_lite.memmap.disk.format import (
    META,
    SUFFIX,
    LeafMeta,
    NodeMeta,
    check_size,
    encode_key,
    parse_content,
)
from tensordict_lite.memmap.disk.pieces import Place
from tensordict_lite.memmap.load import DTYPES, Loader

_CPU = torch.device("cpu")
_empty = torch.empty


def looks_consolidated(path: str) -> bool:
    """Whether a file ends like one of ``consolidate()``: with JSON and its length."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= 10:
            return False
        file.seek(size - 8)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            return False
        file.seek(size - 8 - length)
        return file.read(1) == b"{"


@dataclass(slots=True)
class ArchiveLoader(Loader):
    """Reads the folders of an archive. A path is that of the archive followed by the name of an entry."""

    archive: Archive = None  # type: ignore[assignment]
    num_threads: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Compressed tensors that are allocated, but not yet filled."""

    @classmethod
    def open(cls, path: str, num_threads: int, options: dict[str, Any]) -> ArchiveLoader:
        """The loader of an archive; ``options`` are those of :class:`Loader`."""
        try:
            archive = opened(path, options["mode"] == "r+")
        except ArchiveError as err:
            if not looks_consolidated(path):
                raise
            raise ArchiveError(
                path, f"{err.reason}; it looks like a file of consolidate(): load it with from_consolidated"
            ) from None
        return cls(**options, archive=archive, num_threads=num_threads)

    def _name(self, path: str) -> str:
        return path[len(self.archive.path) + 1 :]

    def _entry(self, path: str) -> ZipInfo | None:
        return self.archive.entries.get(self._name(path))

    def meta(self, folder: str, *, nested: bool = False) -> NodeMeta:
        path = f"{folder}/{META}"
        name = self._name(path)
        if name not in self.archive.entries:
            raise DatasetError(folder, "a nested collection is missing in the archive; was it packed completely?")
        return self._complete(parse_content(path, folder, self.archive.content(name), self.known))

    def exists(self, path: str) -> bool:
        name = self._name(path)
        return name in self.archive.entries or not name or self.archive.has_folder(name)

    def names(self, folder: str) -> list[str]:
        return self.archive.names(self._name(folder))

    def content(self, path: str) -> bytes:
        return self.archive.content(self._name(path))

    def flat(self, path: str, dtype: torch.dtype, shape: tuple[int, ...], nbytes: int, room: int | None) -> Tensor:
        entry = self._checked(path, nbytes, room)
        if entry is None:
            return _empty(shape, dtype=dtype)
        return self.archive.tensor(entry, dtype, shape, nbytes // dtype.itemsize)

    def _checked(self, path: str, nbytes: int, room: int | None) -> ZipInfo | None:
        """The entry of a tensor, with its size checked; ``None`` for an empty tensor."""
        entry = self._entry(path)
        if entry is None:
            if not nbytes:
                return None
            raise DatasetError(path, "the data of a tensor is missing in the archive; was it packed completely?")
        check_size(path, entry.file_size, nbytes, room)
        return entry if nbytes else None

    def leaves(self, folder: str, leaves: dict[str, LeafMeta], source: dict[str, Any]) -> None:
        if self.empty or self.device not in (None, _CPU):
            for key, leaf in leaves.items():
                source[key] = self.leaf(folder, key, leaf)
            return
        archive = self.archive
        entries, starts = archive.entries, archive.starts
        keys: list[str] = []
        places: list[Place] = []
        prefix = self._name(folder + "/")
        name_of = encode_key if self.robust_key else str
        for key, leaf in leaves.items():
            dtype, shape, nbytes, is_nested, _, _, _, _ = leaf
            entry = entries.get(f"{prefix}{key if key.isidentifier() else name_of(key)}{SUFFIX}")
            if entry is not None and entry.file_size == nbytes and not is_nested:
                known = DTYPES.get(dtype)
                start = starts[entry.filename]
                if known is not None and entry.compress_type == ZIP_STORED and start % known.itemsize == 0:
                    source[key] = None  # its position among the keys
                    keys.append(key)
                    places.append((start, known, shape))
                    continue
            source[key] = self.leaf(folder, key, leaf) if not self._can_wait(entry, leaf) else self._later(entry, leaf)
        source.update(zip(keys, archive.pieces.at(places)))

    def _can_wait(self, entry: ZipInfo | None, leaf: LeafMeta) -> bool:
        """Whether the data of a tensor may be decompressed concurrently with others."""
        return (
            self.num_threads > 1
            and entry is not None
            and not leaf.is_nested
            and entry.compress_type != ZIP_STORED
            and entry.file_size == leaf.nbytes
            and leaf.dtype in DTYPES
        )

    def _later(self, entry: Any, leaf: LeafMeta) -> Tensor:
        out = self.archive.room_for(entry, DTYPES[leaf.dtype], leaf.shape)
        self.waiting.append(lambda: self.archive.fill(entry, out, leaf.nbytes))
        return out

    def finish(self) -> None:
        if self.waiting:
            with ThreadPoolExecutor(self.num_threads, "archive") as pool:
                list(pool.map(lambda fill: fill(), self.waiting))
            self.waiting.clear()
