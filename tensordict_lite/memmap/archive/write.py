"""Writing an archive with aligned data, so that its tensors can be used in place when the file is mapped.

:mod:`zipfile` writes headers and the directory. The checksum of each part of the data is computed right before the part
is written, so it is read from memory once and written from the CPU cache. Threads prepare the next parts if files are
read, blocks are deflated, or computing the checksum takes as long as writing (see ``crc.py``). Only one thread writes:
file systems do not allow two writers in one file.
"""

from __future__ import annotations

import functools
import io
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from torch import Tensor

from tensordict_lite.memmap.archive.read import METHODS, is_credible, require_name
from tensordict_lite.memmap.disk import crc
from tensordict_lite.memmap.disk.files import OutputFile, all_bytes, byte_blocks
from tensordict_lite.memmap.disk.mapping import check_room, preallocate, reserve
from tensordict_lite.memmap.tuning import SaveTuning, current

ALIGN = 64  # alignment of stored data: a cache line, and a multiple of every element size

_BUFFER = 256 << 10  # small entries are combined into writes of this many bytes
_LOCAL_BYTES = 30  # size of a local header without name and extra field
_WIDE_BYTES = 20  # size of its extension for sizes of 64 bits
_UNIX_FILE = 0o100644 << 16
_UTF_8 = 1 << 11  # flag of the encoding of the name; zipfile decodes other names more slowly
# An extra field of n bytes, or the next larger one that can have a header of 4 bytes.
_PADDING = [
    b"",
    *(struct.pack(f"<2sH{n - 4}x", b"td", n - 4) for n in (ALIGN + 1, ALIGN + 2, ALIGN + 3, *range(4, ALIGN))),
]
_NAMES = {"stored": ZIP_STORED, "deflate": ZIP_DEFLATED, "deflated": ZIP_DEFLATED}


def method_of(compression: str | int | None) -> int:
    """The method for a name (``"stored"``, ``"deflate"``) or a constant of :mod:`zipfile`.

    Raises:
        ValueError: the method is unknown.

    Example:
        >>> method_of("deflate"), method_of(None)
        (8, 0)
    """
    if compression is None:
        return ZIP_STORED
    if isinstance(compression, str):
        if compression.lower() in _NAMES:
            return _NAMES[compression.lower()]
    elif type(compression) is int and compression in METHODS:
        return compression
    raise ValueError(
        f"unknown compression {compression!r}: expected one of {sorted(_NAMES)} or a zipfile constant of one of them"
    )


def check_level(level: int | None) -> None:
    """Raise ValueError for a level that deflate does not have."""
    if level is not None and not (type(level) is int and 0 <= level <= 9):
        raise ValueError(f"the compression level is a number from 0 to 9, got {level!r}")


class FileData:
    """The content of a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, start: int, stop: int) -> memoryview:
        """A part of it.

        Raises:
            OSError: the file has become shorter.
        """
        view, done = memoryview(bytearray(stop - start)), 0
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while done < len(view):
                count = os.preadv(fd, [view[done:]], start + done)
                if not count:
                    raise OSError(f"{self.path} has become shorter while it was packed")
                done += count
        finally:
            os.close(fd)
        return view


class Zeros:
    """Zero bytes, which are allocated in an uncompressed archive and not written."""

    def read(self, start: int, stop: int) -> bytes:
        return bytes(stop - start)


Data = bytes | Tensor | FileData | Zeros


class ZipMember(NamedTuple):
    """An entry to be written."""

    name: str
    data: Data
    nbytes: int
    is_payload: bool = True
    """Whether it is aligned and, if requested, compressed; metadata is not."""


def write_archive(
    fd: int,
    path: str,
    members: Iterable[ZipMember],
    nbytes: int,
    method: int = ZIP_STORED,
    level: int | None = None,
    num_threads: int = 0,
) -> list[int]:
    """Write an archive to an empty file.

    Args:
        fd: the file.
        path: name for messages.
        members: its entries.
        nbytes: size of all of them.
        method: compression method of payloads.
        level: compression level, ``None`` for the default of the method.
        num_threads: threads that read, compute checksums and deflate; 0 or 1 is the calling thread.

    Returns:
        Offsets of the data of the members.

    Raises:
        OSError: not enough space.
        ArchiveError: the name of a member is too long or too deep for readers.
    """
    tuning = current()
    if method == ZIP_STORED:
        check_room(path, nbytes)
        if nbytes >= tuning.small_bytes:
            preallocate(fd, nbytes)
    with ExitStack() as stack:
        out = OutputFile(fd, path)
        file = stack.enter_context(io.BufferedWriter(out, _BUFFER))
        archive = stack.enter_context(ZipFile(file, "w"))
        writer = _Writer(out, file, archive, method, level, tuning)
        if num_threads > 1:
            members = list(members)
            pool = ThreadPoolExecutor(num_threads, "archive")
            stack.callback(pool.shutdown, cancel_futures=True)
            writer.prepare(members, pool, 4 * num_threads)
        return [writer.add(member, method if member.is_payload else ZIP_STORED) for member in members]


@dataclass(slots=True)
class _Writer:
    """Adds entries to a zip file that :mod:`zipfile` completes."""

    out: OutputFile
    file: io.BufferedWriter[OutputFile]
    archive: ZipFile
    method: int
    level: int | None
    tuning: SaveTuning
    prepared: Iterator[tuple[Any, int, int]] | None = None
    """Blocks that threads have packed: for each its bytes, and CRC and size of its content."""

    def add(self, member: ZipMember, method: int) -> int:
        """Write an entry; return the offset of its data. What readers would reject is deflated instead."""
        name, data, nbytes, is_payload = member
        require_name(self.out.path, name)
        info, at = ZipInfo(name), self.archive.start_dir
        info.compress_type, info.header_offset, info.external_attr = method, at, _UNIX_FILE
        info.flag_bits = _UTF_8
        info.file_size = info.compress_size = nbytes
        is_wide = nbytes + (nbytes >> 6) + 1024 > zipfile.ZIP64_LIMIT  # incompressible data grows
        start = at + _LOCAL_BYTES + len(name.encode()) + _WIDE_BYTES * is_wide
        if is_payload and method == ZIP_STORED:
            info.extra = _PADDING[-start % ALIGN]
            start += len(info.extra)
        if nbytes < self.tuning.small_bytes:
            if method == ZIP_STORED:
                content = _whole(member)
                info.CRC = zlib.crc32(content)
            else:
                parts = [*self._packed(member, method)]
                content, info.CRC = b"".join([part for part, _ in parts]), parts[-1][1]
                info.compress_size = len(content)
                if not is_credible(info):
                    return self.add(member, ZIP_DEFLATED)
            self.file.write(info.FileHeader(is_wide))
            self.file.write(content)
        else:  # the header holds the checksum, so it is written behind the data
            if type(data) is Zeros and method == ZIP_STORED:
                reserve(self.out.fd, start + nbytes, self.out.path, start=start)
                info.CRC = crc.of_zeros(nbytes)
            else:
                self.file.seek(start)
                info.compress_size = 0
                for part, info.CRC in self._packed(member, method):
                    info.compress_size += self.file.write(part)
            if not is_credible(info):
                return self.add(member, ZIP_DEFLATED)
            self.file.seek(at)
            self.file.write(info.FileHeader(is_wide))
            self.file.seek(start + info.compress_size)
        info.extra = b""
        self.archive.filelist.append(info)
        self.archive.start_dir = start + info.compress_size
        return start

    def _packed(self, member: ZipMember, method: int) -> Iterator[tuple[Any, int]]:
        """The data of an entry as it is stored, in parts, each with the CRC of the content so far."""
        packer, total, done = _packer(method, self.level), 0, 0
        if self.prepared is not None and self._is_prepared(member):
            while done < member.nbytes:
                part, own, nbytes = next(self.prepared)
                total = crc.combine(total, own, nbytes)
                done += nbytes
                yield part, total
        else:
            size = self.tuning.part_bytes if method == ZIP_STORED else self.tuning.deflate_bytes
            for read in _blocks(member, size):
                block = read()
                total = zlib.crc32(block, total)
                yield packer.compress(block), total
        yield packer.flush(), total

    # -- threads -------------------------------------------------------------------------------------------

    def _is_prepared(self, member: ZipMember) -> bool:
        if self.method == ZIP_STORED:
            return member.nbytes >= self.tuning.small_bytes and type(member.data) is not Zeros
        return member.is_payload and member.nbytes > 0

    def prepare(self, members: Iterable[ZipMember], pool: ThreadPoolExecutor, ahead: int) -> None:
        """Let threads pack the blocks of entries, at most ``ahead`` of them in advance."""
        packer, tuning = _packer(self.method, self.level), self.tuning
        size = tuning.thread_part_bytes if self.method == ZIP_STORED else tuning.deflate_bytes

        def pack(read: Callable[[], Any]) -> tuple[Any, int, int]:
            block = read()
            return packer.compress(block), zlib.crc32(block), memoryview(block).nbytes

        jobs = (read for member in members if self._is_prepared(member) for read in _blocks(member, size))
        self.prepared = _in_order(pool, pack, jobs, ahead)


def _in_order(pool: ThreadPoolExecutor, work: Callable[[Any], Any], jobs: Iterable[Any], ahead: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for job in jobs:
        waiting.append(pool.submit(work, job))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _whole(member: ZipMember) -> Any:
    data = member.data
    if isinstance(data, bytes):
        return data
    return all_bytes(data) if isinstance(data, Tensor) else data.read(0, member.nbytes)


def _blocks(member: ZipMember, size: int) -> Iterator[Callable[[], Any]]:
    """Functions that return the parts of the data: memory without a copy if possible, and parts of files."""
    data, nbytes = member.data, member.nbytes
    if isinstance(data, bytes) or (isinstance(data, Tensor) and nbytes <= size):
        yield functools.partial(_whole, member)
    elif isinstance(data, Tensor):
        for block in byte_blocks(data, size):
            yield functools.partial(lambda block: block, block)
    else:
        for start in range(0, nbytes, size):
            yield functools.partial(data.read, start, min(start + size, nbytes))


def _packer(method: int, level: int | None) -> Any:
    return _Deflate(level) if method == ZIP_DEFLATED else _Store()


class _Store:
    def compress(self, block: Any) -> Any:
        return block

    def flush(self) -> bytes:
        return b""


class _Deflate:
    """Deflates blocks independently of each other; together they are one stream (as in ``pigz``)."""

    def __init__(self, level: int | None) -> None:
        self._new = functools.partial(zlib.compressobj, -1 if level is None else level, zlib.DEFLATED, -15)

    def compress(self, block: Any) -> bytes:
        packer = self._new()
        return packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)

    def flush(self) -> bytes:
        return self._new().flush()
