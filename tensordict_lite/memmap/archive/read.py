"""An open archive: its checked entries, and their bytes in one mapping of the file.

:mod:`zipfile` reads the directory and decompresses. All input is untrusted: every position is compared with the size of
the file before it is used, and the sizes of the directory count.
"""

from __future__ import annotations

import copy
import ctypes
import io
import os
import stat
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipInfo

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.errors import ArchiveError, ArchiveNotFoundError
from tensordict_lite.memmap.disk.files import size_of_file
from tensordict_lite.memmap.disk.format import MAX_LEVELS, MAX_META_BYTES, MAX_NAME, META
from tensordict_lite.memmap.disk.mapping import hold_many, map_file
from tensordict_lite.memmap.disk.pieces import Pieces
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.paths import absolute_path

MAX_RATIO = 1032
"""Largest ratio of uncompressed to compressed size, the limit of deflate. Entries that claim more are rejected."""

METHODS = {ZIP_STORED, ZIP_DEFLATED}

_NO_NAMES = frozenset(("", ".", ".."))
_SLACK = 64  # allowance in bytes for empty compressed data
_BLOCK = 4 << 20
_STEP = 1 << 20
"""Bytes to decompress at a time."""
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_END = b"PK\5\6"
_LOCAL_SIGNATURE = b"PK\3\4"
_LOCAL = struct.Struct("<4s22x2H")  # signature, and lengths of name and extra field, which precede the data
_DAMAGES = (zipfile.BadZipFile, NotImplementedError, ValueError, IndexError, EOFError, OSError, struct.error)
_DAMAGES_OF_DATA = (*_DAMAGES, zlib.error)
_empty = torch.empty


class _MappedFile(io.RawIOBase):
    """A file over mapped bytes, for :mod:`zipfile`."""

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, len(self._data))[whence]
        if at < 0:
            raise OSError(f"negative seek position {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


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
        data: the bytes of the file.
        directory: the records of the directory in order, those of folders included.
        directory_start: offset of the first one in the file, in bytes.
        entries: name -> entry, in the order of the directory.
        starts: name -> offset of the data in the file, in bytes.
        pieces: gives tensors in the mapped file.
    """

    def __init__(self, path: str, writable: bool = False, max_ratio: float = MAX_RATIO) -> None:
        self.path = path
        self.writable = writable
        size = size_of_file(path, ArchiveError, ArchiveNotFoundError)
        if not size:
            raise ArchiveError(path, "is empty, and not an archive of a dataset (a zip file with a meta.json)")
        if writable and not os.access(path, os.W_OK):
            raise PermissionError(13, 'the archive cannot be written; use mode="r" to map it copy-on-write', path)
        self._storage: UntypedStorage = hold_many(map_file(path, size, writable=writable))
        self.pieces = Pieces(self._storage, MemoryMappedTensor)
        # Not through a tensor, which would be fake in a FakeTensorMode. This object keeps the storage alive.
        self.data = memoryview((ctypes.c_char * size).from_address(self._storage.data_ptr())).cast("B")
        try:
            with zipfile.ZipFile(_MappedFile(self.data)) as file:
                self.directory, self.directory_start = file.infolist(), file.start_dir
        except _DAMAGES as err:
            raise ArchiveError(path, self._damage(err)) from None
        self.entries = self._checked_entries(max_ratio)
        self.starts = self._checked_starts()

    def _damage(self, err: Exception) -> str:
        if _END in bytes(self.data[-(1 << 16) - 22 : -18]):  # 22 bytes, and a comment of 64 KiB
            return f"is a damaged zip file: {err}"
        if bytes(self.data[:4]) == _LOCAL_SIGNATURE:
            return "is a zip file without its end: it was truncated, or is being copied still"
        return "is a file, but not an archive of a dataset (a zip file with a meta.json), so it cannot be loaded"

    def _checked_entries(self, max_ratio: float) -> dict[str, ZipInfo]:
        entries: dict[str, ZipInfo] = {}
        for entry in self.directory:
            name = entry.filename
            require_name(self.path, name)
            parts = name.removesuffix("/").split("/") if "/" in name else (name,)
            if "\0" in entry.orig_filename or not _NO_NAMES.isdisjoint(parts):
                shown = entry.orig_filename[:100]
                raise ArchiveError(self.path, f"an entry is called {shown!r}, which is not a path inside a folder")
            if name[-1] == "/":
                continue
            if name in entries:
                raise ArchiveError(self.path, f"has two entries called {name!r}")
            if (refusal := _refusal(entry, max_ratio)) is not None:
                raise ArchiveError(self.path, f"the entry {name[:100]!r} {refusal}")
            entries[name] = entry
        return entries

    def _checked_starts(self) -> dict[str, int]:
        """Offset of the data of each entry, behind its local header; no entry extends into the next one."""
        found = sorted(self.entries.values(), key=attrgetter("header_offset"))
        limits = [entry.header_offset for entry in found[1:]]
        limits.append(self.directory_start)
        data, fixed, starts = self.data, _LOCAL.size, {}
        for entry, limit in zip(found, limits):
            at = entry.header_offset
            if not 0 <= at <= min(limit, len(data)) - fixed:
                problem = "overlaps what comes behind it, or lies outside the file"
                raise ArchiveError(self.path, f"the entry {entry.filename!r} {problem}")
            signature, name_length, extra_length = _LOCAL.unpack_from(data, at)
            if signature != _LOCAL_SIGNATURE:
                raise ArchiveError(self.path, f"the entry {entry.filename!r} is not where the directory says ({at:,})")
            start = at + fixed + name_length + extra_length
            if start + entry.compress_size > limit:
                raise ArchiveError(
                    self.path,
                    f"the entry {entry.filename!r} says that it has {entry.compress_size:,} bytes, which overlaps what "
                    f"comes behind it: there are {max(0, limit - start):,}",
                )
            starts[entry.filename] = start
        return starts

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

    def raw(self, entry: ZipInfo) -> memoryview:
        """The bytes of an entry in the archive, compressed or not."""
        start = self.starts[entry.filename]
        return self.data[start : start + entry.compress_size]

    def blocks(self, entry: ZipInfo) -> Iterator[Any]:
        """The data of an entry in blocks; its size and CRC are checked after the last one.

        Raises:
            ArchiveError: the data does not match the size, CRC or method of the entry.
        """
        total, done, size = 0, 0, entry.file_size
        try:
            for block in self._decompressed(entry):
                done += len(block)
                if done > size:
                    break
                total = zlib.crc32(block, total)
                yield block
        except _DAMAGES_OF_DATA as err:
            what = f"the entry {entry.filename!r} cannot be decompressed ({err})"
            raise ArchiveError(self.path, what) from None
        if done != size:
            more = "more" if done > size else f"{done:,}"
            raise ArchiveError(self.path, f"the entry {entry.filename!r} should have {size:,} bytes, but has {more}")
        if total != entry.CRC:
            raise ArchiveError(
                self.path,
                f"the entry {entry.filename!r} is not what was saved: its checksum differs. If it was written to on "
                "purpose (mode='r+'), call refresh_archive_checksums first",
            )

    def _decompressed(self, entry: ZipInfo) -> Iterator[Any]:
        raw = self.raw(entry)
        if entry.compress_type == ZIP_STORED:
            yield from (raw[start : start + _BLOCK] for start in range(0, len(raw), _BLOCK))
            return
        entry = copy.copy(entry)
        del entry.CRC  # which is checked already
        stream: Any = zipfile.ZipExtFile(_MappedFile(raw), "r", entry)
        while block := stream.read(_STEP):
            yield block

    def content(self, name: str) -> bytes:
        """All data of an entry that is not a tensor, checked against its CRC."""
        entry = self.entries[name]
        if name.endswith(META) and entry.file_size > MAX_META_BYTES:
            raise ArchiveError(self.path, f"metadata of {entry.file_size:,} bytes ({name!r}) is not credible")
        return b"".join(self.blocks(entry))

    # -- tensors -------------------------------------------------------------------------------------------

    def tensor(self, entry: ZipInfo, dtype: torch.dtype, shape: tuple[int, ...], numel: int) -> Tensor:
        """The first elements of an entry as a tensor: mapped if it is stored and aligned, else a copy.

        The caller has checked that the entry has that many elements.

        Raises:
            ArchiveError: a copy would be needed, and writes should reach the file.
        """
        start = self.starts[entry.filename]
        if entry.compress_type == ZIP_STORED and start % dtype.itemsize == 0:
            return self.pieces.at([(start, dtype, shape)])[0]
        out = self.room_for(entry, dtype, shape)
        self.fill(entry, out, numel * dtype.itemsize)
        return out

    def room_for(self, entry: ZipInfo, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Memory for an entry that cannot be mapped."""
        if self.writable:
            is_stored = entry.compress_type == ZIP_STORED
            what = f"not aligned to the {dtype.itemsize} bytes of {dtype}" if is_stored else "compressed"
            raise ArchiveError(
                self.path,
                f'cannot be opened with mode="r+": the entry {entry.filename!r} is {what}, so writes cannot reach the '
                "file. Save it again without compression, or load it without a mode",
            )
        return _empty(shape, dtype=dtype)

    def fill(self, entry: ZipInfo, out: Tensor, nbytes: int) -> None:
        """Copy the data of an entry into a tensor."""
        target = _empty(0, dtype=torch.uint8).set_(out.untyped_storage(), 0, (nbytes,), (1,)).numpy().data
        at = 0
        for block in self.blocks(entry):
            part = block[: nbytes - at]
            target[at : at + len(part)] = part
            at += len(part)


def is_credible(entry: ZipInfo, ratio: float = MAX_RATIO) -> bool:
    """Whether the claimed size of an entry is possible for its compressed size; always so for deflate."""
    return entry.file_size <= ratio * (entry.compress_size + _SLACK)


def _refusal(entry: ZipInfo, max_ratio: float) -> str | None:
    method, kind = entry.compress_type, stat.S_IFMT(entry.external_attr >> 16) if entry.create_system == 3 else 0
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if method not in METHODS:
        return f"is compressed with method {method}; archives must be stored (0) or deflated (8): unzip it"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a special file"
    if method == ZIP_STORED and entry.compress_size != entry.file_size:
        return "is stored, and has two sizes that contradict each other"
    if method != ZIP_STORED and not is_credible(entry, max_ratio):
        return (
            f"claims that {entry.compress_size:,} compressed bytes hold {entry.file_size:,} bytes of data, more than "
            f"{max_ratio:,} times as many. If you trust its author, unpack_memmap(path, folder, max_ratio=...) with a "
            "larger ratio writes it to a folder"
        )
    return None


def require_name(path: str, name: str) -> None:
    """Raise ArchiveError if the name of an entry is longer, or deeper, than a file of a dataset can have.

    Creating and removing folders for such names would take unbounded memory and stack.
    """
    if len(name) <= MAX_LEVELS:  # neither is possible
        return
    nbytes, levels = len(name.encode()), name.count("/")
    if nbytes > MAX_NAME or levels > MAX_LEVELS:
        raise ArchiveError(
            path,
            f"the entry {name[:100]!r} has a name of {nbytes:,} bytes and {levels:,} levels (at most {MAX_NAME:,} and "
            f"{MAX_LEVELS:,})",
        )


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
