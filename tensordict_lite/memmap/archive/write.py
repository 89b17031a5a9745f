"""Writing an archive with aligned data, so that its tensors can be used in place when the file is mapped.

If entries are stored uncompressed, all offsets are known before writing. Small entries are collected into few large
writes. Large ones are written in parts; the checksum of each part is computed right before, so it is read from memory
once and written from the CPU cache. If computing the checksum takes as long as writing (see ``crc.py``), or files are
read, threads prepare the next parts. Only one thread writes: file systems do not allow two writers in one file.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from torch import Tensor

from tensordict_lite.memmap.archive.codec import compressed, credible, deflated_block
from tensordict_lite.memmap.archive.zipformat import (
    DEFLATED,
    STORED,
    ZipEntry,
    central_record,
    end_records,
    local_header,
    local_size,
    padding,
    require_name,
    stored_headers,
)
from tensordict_lite.memmap.disk import crc
from tensordict_lite.memmap.disk.files import all_bytes, byte_blocks, write_all
from tensordict_lite.memmap.disk.format import MAX_LEVELS
from tensordict_lite.memmap.disk.mapping import check_room, preallocate, reserve
from tensordict_lite.memmap.tuning import SaveTuning, current

__all__ = ["FileData", "ZipMember", "Zeros", "write_archive"]

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class FileData:
    """The content of a file, with the size that it had when it was opened.

    Args:
        path: of the file.
        held: whether it stays open until :meth:`close`, so that a save that replaces the file does not change it.
    """

    def __init__(self, path: str, *, held: bool = False) -> None:
        self.path = path
        self._fd = os.open(path, _READ) if held else -1
        info = os.fstat(self._fd) if held else os.stat(path)
        self.nbytes = info.st_size
        self._stamp = self._stamp_of(info)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def is_same(self) -> bool:
        """Whether the path still names the same file with the same content."""
        try:
            return self._stamp_of(os.stat(self.path)) == self._stamp
        except FileNotFoundError:
            return False

    def _stamp_of(self, info: os.stat_result) -> tuple[int, ...]:
        """A held file keeps its inode number and is not written in place; for others, times are compared as well."""
        return (info.st_dev, info.st_ino, *(() if self._fd >= 0 else (info.st_ctime_ns, info.st_mtime_ns)))

    def read(self, start: int, stop: int) -> memoryview:
        """A part of it.

        Raises:
            OSError: the file has become shorter.
        """
        if self._fd >= 0:
            return self._part(self._fd, start, stop)
        fd = os.open(self.path, _READ)
        try:
            return self._part(fd, start, stop)
        finally:
            os.close(fd)

    def _part(self, fd: int, start: int, stop: int) -> memoryview:
        view, done = memoryview(bytearray(stop - start)), 0
        while done < len(view):
            count = os.preadv(fd, [view[done:]], start + done)
            if not count:
                raise OSError(f"{self.path} has become shorter while it was packed")
            done += count
        return view


class Zeros:
    """Zero bytes, which are allocated in the archive and not written."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


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
    members: Sequence[ZipMember],
    method: int = STORED,
    level: int | None = None,
    num_threads: int = 0,
) -> list[int]:
    """Write an archive to an empty file.

    Args:
        fd: the file.
        path: name for messages.
        members: its entries.
        method: compression method of payloads.
        level: compression level, ``None`` for the default of the method.
        num_threads: threads that compute checksums and compress; 0 or 1 is the calling thread.

    Returns:
        Offsets of the data of stored members.

    Raises:
        OSError: not enough space.
        ArchiveError: the name of a member is too long or too deep for readers.
    """
    for member in members:
        if len(member.name) > MAX_LEVELS:  # a shorter one is not deeper
            require_name(path, member.name.encode())
    nbytes, tuning = sum(member.nbytes for member in members), current()
    if method == STORED:
        check_room(path, nbytes)
        if nbytes >= tuning.gather_bytes:
            preallocate(fd, nbytes)
    pool = ThreadPoolExecutor(num_threads, "archive") if num_threads > 1 else None
    crc32 = crc.fastest() if nbytes >= tuning.small_bytes else zlib.crc32
    writer = _Writer(fd, path, pool, 4 * num_threads, crc32, tuning)
    try:
        if method == STORED:
            writer.store(members)
        else:
            writer.store([member for member in members if not member.is_payload])
            writer.compress([member for member in members if member.is_payload], method, level)
        writer.end()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return writer.starts


class _Writer:
    """The file, the current position, and the records of its directory."""

    def __init__(
        self,
        fd: int,
        path: str,
        pool: ThreadPoolExecutor | None,
        ahead: int,
        crc32: Callable[..., int],
        tuning: SaveTuning,
    ) -> None:
        self.fd = fd
        self.path = path
        self.pool = pool
        self.ahead = ahead
        self.crc32 = crc32
        self.tuning = tuning
        self.at = 0
        self.records: list[bytes] = []
        self.starts: list[int] = []

    def end(self) -> None:
        directory = b"".join(self.records)
        if len(directory) > self.tuning.directory_bytes:
            raise ValueError(
                f"an archive has no room for {len(self.records):,} entries, whose directory would have "
                f"{len(directory):,} bytes: save a folder"
            )
        end = end_records(len(self.records), self.at, len(directory), self.tuning)
        write_all(self.fd, directory + end, self.at, self.path)

    def _in_order(self, work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Results in the order of the jobs, with a bounded number of jobs in progress."""
        if self.pool is None:
            for job in jobs:
                yield work(*job)
            return
        waiting: deque[Future[Any]] = deque()
        for job in jobs:
            waiting.append(self.pool.submit(work, *job))
            if len(waiting) > self.ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    # -- stored --------------------------------------------------------------------------------------------

    def store(self, members: Sequence[ZipMember]) -> None:
        pieces: list[Any] = []
        first = at = self.at
        write_large = self._large_writer(members)
        starts, records, crc32, tuning = self.starts, self.records, self.crc32, self.tuning
        small_bytes, gather_bytes = tuning.small_bytes, tuning.gather_bytes
        for name, data, nbytes, is_payload in members:
            raw = name.encode()
            pad = padding(at, raw, nbytes, tuning) if is_payload else 0
            if nbytes < small_bytes:
                body = _small_data(data)
                header, record = stored_headers(raw, crc32(body), nbytes, at, pad, tuning)
                pieces += (header, body)
                at += len(header)
                starts.append(at)
                records.append(record)
                at += nbytes
                if at - first >= gather_bytes:
                    write_all(self.fd, b"".join(pieces), first, self.path)
                    pieces, first = [], at
                continue
            # The header holds the checksum, so it is written after the data, with the preceding small entries.
            start = at + local_size(raw, nbytes, pad, tuning)
            end = start + nbytes
            if type(data) is Zeros:
                reserve(self.fd, end, self.path, start=start)
                total = crc.of_zeros(nbytes)
            else:
                total = write_large(data, start, nbytes)
            header, record = stored_headers(raw, total, nbytes, at, pad, tuning)
            write_all(self.fd, b"".join((*pieces, header)), first, self.path)
            pieces, first = [], end
            starts.append(start)
            records.append(record)
            at = first
        if pieces:
            write_all(self.fd, b"".join(pieces), first, self.path)
        self.at = at

    def _large_writer(self, members: Sequence[ZipMember]) -> Callable[[Any, int, int], int]:
        """A function that writes large data entry by entry and returns its CRC, in this thread or with others."""
        small, size = self.tuning.small_bytes, self.tuning.thread_part_bytes
        large = [member for member in members if member.nbytes >= small and type(member.data) is not Zeros]
        worth_threads = self.crc32 is zlib.crc32 or any(type(member.data) is FileData for member in large)
        if self.pool is None or not worth_threads:
            return self._write_and_sum
        jobs = (job for member in large for job in _parts_of(member.data, member.nbytes, size))
        return functools.partial(self._write_summed, self._in_order(self._summed, jobs))

    def _write_and_sum(self, data: Data, start: int, nbytes: int) -> int:
        crc32, fd, path, size, total = self.crc32, self.fd, self.path, self.tuning.part_bytes, 0
        for buffer in _buffers_of(data, nbytes, size):
            for first in range(0, len(buffer), size):
                part = buffer[first : first + size]
                total = crc32(part, total)
                write_all(fd, part, start, path)
                start += len(part)
        return total

    def _write_summed(self, parts: Iterator[tuple[Any, int, int]], data: Data, start: int, nbytes: int) -> int:
        """Write the parts of an entry, which come next among the parts of all entries."""
        total, done = 0, 0
        while done < nbytes:
            part, own, length = next(parts)
            write_all(self.fd, part, start + done, self.path)
            total = crc.combine(total, own, length)
            done += length
        return total

    def _summed(self, read: Callable[[int, int], Any], start: int, stop: int) -> tuple[Any, int, int]:
        part = read(start, stop)
        return part, self.crc32(part), stop - start

    # -- compressed ----------------------------------------------------------------------------------------

    def compress(self, members: Sequence[ZipMember], method: int, level: int | None) -> None:
        """Compress entries. One that would claim more than readers accept is deflated instead."""
        pending = _Pending(self)
        jobs = _packing_jobs(members, method, level, self.tuning)
        for member, chunks, is_last in self._in_order(_packed, jobs):
            pending.add(member, chunks)
            if is_last and not pending.finish(member, method):
                for job in _packing_jobs([member], DEFLATED, None, self.tuning):
                    pending.add(member, _packed(*job)[1])
                pending.finish(member, DEFLATED)


class _Pending:
    """An entry being compressed: its data follows the space for its header."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer
        self.header = self.packed = self.total = 0

    def add(self, member: ZipMember, chunks: Iterable[tuple[Any, int, int]]) -> None:
        """Write part of its data: (compressed bytes, CRC and length of the content)."""
        writer = self.writer
        if not self.header:
            largest = member.nbytes + (member.nbytes >> 6) + 1024  # incompressible data
            entry = ZipEntry("", member.name.encode(), 0, 0, largest, largest, writer.at)
            self.header = len(local_header(entry, writer.tuning))
        for chunk, own, length in chunks:
            self.total = crc.combine(self.total, own, length)
            write_all(writer.fd, chunk, writer.at + self.header + self.packed, writer.path)
            self.packed += len(chunk)

    def finish(self, member: ZipMember, method: int) -> bool:
        """Write its header, unless readers would reject it: then the entry must be compressed again."""
        writer, header, packed = self.writer, self.header, self.packed
        entry = ZipEntry(member.name, member.name.encode(), method, self.total, packed, member.nbytes, writer.at)
        self.header = self.packed = self.total = 0
        if method != DEFLATED and not credible(entry):
            return False
        short = header - len(local_header(entry, writer.tuning))  # when there is space for 64-bit sizes
        write_all(writer.fd, local_header(entry, writer.tuning, short), writer.at, writer.path)
        writer.records.append(central_record(entry, writer.tuning))
        writer.at += header + packed
        return True


def _small_data(data: Data) -> Any:
    if isinstance(data, Tensor):
        return all_bytes(data)
    if isinstance(data, FileData):
        return data.read(0, data.nbytes)
    return bytes(data.nbytes) if isinstance(data, Zeros) else data


def _buffers_of(data: Data, nbytes: int, part: int) -> Iterator[memoryview]:
    """Data in order: memory without a copy, files in parts of this many bytes."""
    if isinstance(data, Tensor):
        for block in byte_blocks(data):
            yield memoryview(block.reshape(-1).view("u1"))
    elif isinstance(data, FileData):
        for start in range(0, nbytes, part):
            yield data.read(start, min(start + part, nbytes))
    else:
        yield memoryview(_small_data(data))


def _parts_of(data: Data, nbytes: int, size: int) -> Iterator[tuple[Any, int, int]]:
    """Data as (read function, start, stop), part by part."""
    sources = [(data.read, nbytes)] if isinstance(data, FileData) else _readers_of(data, nbytes, size)
    for read, length in sources:
        for start in range(0, length, size):
            yield read, start, min(start + size, length)


def _readers_of(data: Data, nbytes: int, size: int) -> Iterator[tuple[Any, int]]:
    for buffer in _buffers_of(data, nbytes, size):
        yield (lambda first, last, buffer=buffer: buffer[first:last]), len(buffer)


def _blocks_of(data: Data, nbytes: int, size: int) -> Iterator[Any]:
    """Data in blocks of this many bytes, to be compressed."""
    if isinstance(data, Tensor):
        yield from byte_blocks(data, size)
    elif isinstance(data, FileData):
        for start in range(0, nbytes, size):
            yield data.read(start, min(start + size, nbytes))
    else:
        yield _small_data(data)


def _with_last(blocks: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Blocks, each with a flag for the last one; one empty block if there are none."""
    previous: Any = None
    for block in blocks:
        if previous is not None:
            yield previous, False
        previous = block
    yield b"" if previous is None else previous, True


def _packing_jobs(
    members: Sequence[ZipMember], method: int, level: int | None, tuning: SaveTuning
) -> Iterator[tuple[Any, ...]]:
    """Units of compression: a deflated block, or an entry for methods that need all of it."""
    for member in members:
        if method == DEFLATED:
            for block, is_last in _with_last(_blocks_of(member.data, member.nbytes, tuning.deflate_bytes)):
                yield member, method, level, tuning, block, is_last
        else:
            yield member, method, level, tuning, None, True


def _packed(
    member: ZipMember, method: int, level: int | None, tuning: SaveTuning, block: Any, is_last: bool
) -> tuple[ZipMember, Any, bool]:
    """The member, its compressed chunks with CRC and length of their content, and whether that is all."""
    if method == DEFLATED:
        chunk = deflated_block(block, level, is_last)
        return member, [(chunk, crc.fastest()(block), memoryview(block).nbytes)], is_last
    stream = _summed_stream(member, method, level, tuning.deflate_bytes)
    # A large one is compressed by the writer thread incrementally, so it is never held in memory as a whole.
    return member, stream if member.nbytes > tuning.whole_bytes else list(stream), is_last


def _summed_stream(member: ZipMember, method: int, level: int | None, size: int) -> Iterator[tuple[bytes, int, int]]:
    """An entry compressed by a method with dependent blocks: the CRC is known at the end."""
    total = nbytes = 0

    def summed() -> Iterator[Any]:
        nonlocal total, nbytes
        for block in _blocks_of(member.data, member.nbytes, size):
            total = crc.fastest()(block, total)
            nbytes += memoryview(block).nbytes
            yield block

    for chunk in compressed(method, summed(), level):
        yield chunk, 0, 0
    yield b"", total, nbytes
