"""An open archive: its checked entries, and their bytes in one mapping of the file."""

from __future__ import annotations

import ctypes
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.errors import ArchiveError, ArchiveNotFoundError
from tensordict_lite.memmap.archive.codec import MAX_RATIO, credible, inflate
from tensordict_lite.memmap.archive.zipformat import STORED, ZipEntry, data_starts, entries, find_directory
from tensordict_lite.memmap.disk import crc
from tensordict_lite.memmap.disk.files import size_of_file
from tensordict_lite.memmap.disk.format import MAX_META_BYTES, META
from tensordict_lite.memmap.disk.mapping import hold_many, map_file
from tensordict_lite.memmap.disk.pieces import Pieces
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.paths import absolute_path

__all__ = ["Archive", "opened"]

_BLOCK = 4 << 20
_empty = torch.empty


class Archive:
    """The entries of an archive.

    Args:
        path: the file.
        writable: map it so that writes reach the file; otherwise they stay in this process.
        max_ratio: largest accepted ratio of uncompressed to compressed size of an entry.

    Raises:
        ArchiveNotFoundError: the file does not exist.
        ArchiveError: it is not an archive of a dataset, or it is damaged or hostile.
        PermissionError: the file is not writable, and ``writable`` was given.

    Attributes:
        entries: name -> entry, in the order of the directory.
        starts: name -> offset of the data in the file, in bytes.
        storage: the mapped file.
        pieces: gives tensors in it.
    """

    def __init__(self, path: str, writable: bool = False, max_ratio: float = MAX_RATIO) -> None:
        self.path = path
        self.writable = writable
        size = size_of_file(path, ArchiveError, ArchiveNotFoundError)
        if not size:
            raise ArchiveError(path, "is empty, and not an archive of a dataset (a zip file with a meta.json)")
        if writable and not os.access(path, os.W_OK):
            raise PermissionError(13, 'the archive cannot be written; use mode="r" to map it copy-on-write', path)
        self.storage: UntypedStorage = hold_many(map_file(path, size, writable=writable))
        self.pieces = Pieces(self.storage, MemoryMappedTensor)
        # Not through a tensor, which would be fake in a FakeTensorMode. This object keeps the storage alive.
        self.data = memoryview((ctypes.c_char * size).from_address(self.storage.data_ptr())).cast("B")
        self.entries: dict[str, ZipEntry] = {}
        self.starts: dict[str, int] = {}
        self._read_directory(max_ratio)

    def _read_directory(self, max_ratio: float) -> None:
        path, data = self.path, self.data
        count, offset, size = find_directory(path, data)
        found = entries(path, data, count, offset, size)
        self.entries = {entry.name: entry for entry in found}
        if len(self.entries) < len(found):
            seen: set[str] = set()
            twice = next(entry.name for entry in found if entry.name in seen or seen.add(entry.name))  # type: ignore[func-returns-value]
            raise ArchiveError(path, f"has two entries called {twice!r}")
        found.sort(key=_offset)
        limits = [entry.offset for entry in found[1:]]
        limits.append(offset)
        self.starts = data_starts(path, data, found, limits)
        for entry in found:
            if entry.method != STORED and not credible(entry, max_ratio):
                raise self._incredible(entry)

    def _incredible(self, entry: ZipEntry) -> ArchiveError:
        return ArchiveError(
            self.path,
            f"the entry {entry.name!r} claims that {entry.compressed:,} compressed bytes are {entry.size:,} bytes of "
            "data, and nothing makes room for that. If you trust its author, unpack_memmap(path, folder, "
            "max_ratio=...) with a larger ratio writes it to a folder",
        )

    # -- folders -------------------------------------------------------------------------------------------

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.entries)

    def has_folder(self, folder: str) -> bool:
        """Whether an entry lies in a folder."""
        at = bisect_left(self._sorted, f"{folder}/")
        return at < len(self._sorted) and self._sorted[at].startswith(f"{folder}/")

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder; the top level for an empty name."""
        known, prefix = self._sorted, f"{folder}/" if folder else ""
        found: list[str] = []
        at = bisect_left(known, prefix)
        while at < len(known) and known[at].startswith(prefix):
            name, inner, _ = known[at][len(prefix) :].partition("/")
            found.append(name)
            at = bisect_left(known, f"{prefix}{name}0") if inner else at + 1  # "0" sorts after "/"
        return found

    # -- bytes ---------------------------------------------------------------------------------------------

    def raw(self, entry: ZipEntry) -> memoryview:
        """The bytes of an entry in the archive, compressed or not."""
        start = self.starts[entry.name]
        return self.data[start : start + entry.compressed]

    def blocks(self, entry: ZipEntry) -> Iterator[Any]:
        """The data of an entry in blocks, checked against its CRC (only after the last block)."""
        raw = self.raw(entry)
        if entry.method != STORED:
            yield from inflate(self.path, entry, raw)
            return
        crc32, total = crc.fastest(), 0
        for start in range(0, len(raw), _BLOCK):
            block = raw[start : start + _BLOCK]
            total = crc32(block, total)
            yield block
        if total != entry.crc:
            raise self._differs(entry)

    def _differs(self, entry: ZipEntry) -> ArchiveError:
        return ArchiveError(
            self.path,
            f"the entry {entry.name!r} is not what was saved: its checksum differs. If it was written to on purpose "
            "(mode='r+'), call refresh_archive_checksums first",
        )

    def content(self, name: str) -> bytes:
        """All data of an entry that is not a tensor, checked against its CRC."""
        entry = self.entries[name]
        if name.endswith(META) and entry.size > MAX_META_BYTES:
            raise ArchiveError(self.path, f"metadata of {entry.size:,} bytes ({name!r}) is not credible")
        if entry.method == STORED:
            data = bytes(self.raw(entry))
            if zlib.crc32(data) != entry.crc:
                raise self._differs(entry)
            return data
        return b"".join(self.blocks(entry))

    # -- tensors -------------------------------------------------------------------------------------------

    def tensor(self, entry: ZipEntry, dtype: torch.dtype, shape: tuple[int, ...], numel: int) -> Tensor:
        """The first elements of an entry as a tensor: mapped if it is stored and aligned, else a copy.

        The caller has checked that the entry has that many elements.

        Raises:
            ArchiveError: a copy would be needed, and writes should reach the file.
        """
        start = self.starts[entry.name]
        if entry.method == STORED and start % dtype.itemsize == 0:
            return self.pieces.at([(start, dtype, shape)])[0]
        out = self.room_for(entry, dtype, shape)
        self.fill(entry, out, numel * dtype.itemsize)
        return out

    def room_for(self, entry: ZipEntry, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Memory for an entry that cannot be mapped."""
        if self.writable:
            what = "compressed" if entry.method != STORED else f"not aligned to the {dtype.itemsize} bytes of {dtype}"
            raise ArchiveError(
                self.path,
                f'cannot be opened with mode="r+": the entry {entry.name!r} is {what}, so writes cannot reach the '
                "file. Save it again without compression, or load it without a mode",
            )
        return _empty(shape, dtype=dtype)

    def fill(self, entry: ZipEntry, out: Tensor, nbytes: int) -> None:
        """Copy the data of an entry into a tensor."""
        target = _empty(0, dtype=torch.uint8).set_(out.untyped_storage(), 0, (nbytes,), (1,)).numpy().data
        at = 0
        for block in self.blocks(entry):
            part = block[: nbytes - at]
            target[at : at + len(part)] = part
            at += len(part)


def _offset(entry: ZipEntry) -> int:
    return entry.offset


def opened(path: str | os.PathLike[str], writable: bool = False, max_ratio: float = MAX_RATIO) -> Archive:
    """The archive of a dataset at a path.

    Raises:
        ArchiveError: see :class:`Archive`; also if there is no ``meta.json`` at the top.
    """
    archive = Archive(absolute_path(path), writable, max_ratio)
    if META not in archive.entries:
        raise ArchiveError(
            archive.path,
            "is a zip file without a meta.json at its top, so it is not an archive of a dataset and cannot be loaded",
        )
    return archive
