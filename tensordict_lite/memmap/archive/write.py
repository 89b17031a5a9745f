"""Writing an archive: the data of every entry aligned, so that the file can be mapped and its tensors used in place.

Where entries are stored as they are, all offsets are known before a byte is written: small entries are gathered
into few large writes, and the parts of large ones are summed and written by several threads at once. Compressed
entries follow one another, and several threads compress.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from tensordict_lite.memmap.archive import crc
from tensordict_lite.memmap.archive.codec import compressed, credible, deflated_block
from tensordict_lite.memmap.archive.zipformat import (
    DEFLATED,
    STORED,
    Entry,
    central_record,
    end_records,
    local_header,
    padding,
)
from tensordict_lite.memmap.files import byte_blocks, plain_values, raw_bytes, write_all
from tensordict_lite.memmap.mapping import check_room, reserve

__all__ = ["Bytes", "FileData", "Member", "TensorData", "Zeros", "write_archive"]

_SMALL = 1 << 20  # data that is gathered with that of other entries into one write
_GATHER = 8 << 20
_PART = 8 << 20  # what one thread sums and writes at a time
_BLOCK = 1 << 20  # summed and then written, while it is in the cache of the processor


class Data(Protocol):
    """Where the data of an entry comes from."""

    nbytes: int

    def blocks(self, limit: int) -> Iterable[Any]:
        """All of it in order, in buffers of about ``limit`` bytes."""

    def parts(self) -> Sequence[tuple[int, int]] | None:
        """Ranges of bytes that several threads may read at once, ``None`` where they must come in order."""

    def read(self, start: int, stop: int) -> Any:
        """One such range."""


class Bytes:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nbytes = len(data)

    def blocks(self, limit: int) -> Iterable[Any]:
        return (self.data,)

    def parts(self) -> Sequence[tuple[int, int]] | None:
        return None

    def read(self, start: int, stop: int) -> Any:
        return memoryview(self.data)[start:stop]


class TensorData:
    """The elements of a tensor in row-major order."""

    __slots__ = ("_flat", "nbytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.nbytes = tensor.numel() * tensor.element_size()
        self._flat: Any = None

    def blocks(self, limit: int) -> Iterable[Any]:
        return byte_blocks(self.tensor, limit)

    def parts(self) -> Sequence[tuple[int, int]] | None:
        values = plain_values(self.tensor)
        if not (values.is_cpu and values.is_contiguous()):
            return None
        self._flat = raw_bytes(values).reshape(-1).view("u1")
        return _ranges(self.nbytes)

    def read(self, start: int, stop: int) -> Any:
        return self._flat[start:stop]


class FileData:
    """The content of a file, as long as it was when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.nbytes = os.stat(path).st_size

    def blocks(self, limit: int) -> Iterable[Any]:
        for start in range(0, self.nbytes, limit):
            yield self.read(start, min(start + limit, self.nbytes))

    def parts(self) -> Sequence[tuple[int, int]] | None:
        return _ranges(self.nbytes)

    def read(self, start: int, stop: int) -> Any:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            view, done = memoryview(bytearray(stop - start)), 0
            while done < len(view):
                count = os.preadv(fd, [view[done:]], start + done)
                if not count:
                    raise OSError(f"{self.path} has become shorter while it was packed")
                done += count
        finally:
            os.close(fd)
        return view


class Zeros:
    """Zero bytes, for which room is made in the archive and nothing is written."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def blocks(self, limit: int) -> Iterable[Any]:
        for start in range(0, self.nbytes, limit):
            yield bytes(min(limit, self.nbytes - start))

    def parts(self) -> Sequence[tuple[int, int]] | None:
        return None

    def read(self, start: int, stop: int) -> Any:
        return bytes(stop - start)


class Member(NamedTuple):
    """An entry that is to be written."""

    name: str
    data: Data
    is_payload: bool = True
    """Whether it is compressed where compression is asked for; metadata is not."""


def write_archive(
    fd: int,
    path: str,
    members: Sequence[Member],
    method: int = STORED,
    level: int | None = None,
    num_threads: int = 0,
) -> None:
    """Writes an archive to an empty file.

    Args:
        fd: the file.
        path: how messages name it.
        members: its entries.
        method: of the compression of payloads.
        level: of the compression, ``None`` for that of the method.
        num_threads: threads that sum, compress and write; 0 or 1 is this one.

    Raises:
        OSError: there is no room.
    """
    if method == STORED:
        check_room(path, sum(member.data.nbytes for member in members))
    writer = _Writer(fd, path, ThreadPoolExecutor(num_threads, "archive") if num_threads > 1 else None, num_threads)
    try:
        if method == STORED:
            writer.store(members)
        else:
            for member in members:
                if member.is_payload:
                    writer.compress(member, method, level)
                else:
                    writer.store([member])
        writer.end()
    finally:
        if writer.pool is not None:
            writer.pool.shutdown(cancel_futures=True)


class _Large(NamedTuple):
    """An entry whose data is written by itself, and whose CRC is known when it is."""

    entry: Entry
    raw: bytes
    pad: int
    number: int
    """Of its record."""
    data: Data
    parts: list[Future[int]]


class _Writer:
    """The file, how far it is written, and the records of its directory."""

    def __init__(self, fd: int, path: str, pool: ThreadPoolExecutor | None, num_threads: int) -> None:
        self.fd = fd
        self.path = path
        self.pool = pool
        self.num_threads = num_threads
        self.at = 0
        self.records: list[bytes] = []

    def end(self) -> None:
        directory = b"".join(self.records)
        write_all(self.fd, directory + end_records(len(self.records), self.at, len(directory)), self.at, self.path)

    # -- stored --------------------------------------------------------------------------------------------

    def store(self, members: Sequence[Member]) -> None:
        """Entries as they are. Large ones are written by the pool, while this thread goes on."""
        large: list[_Large] = []
        pieces: list[Any] = []
        start = at = self.at
        for name, data, is_payload in members:
            raw = name.encode()
            pad = padding(at, raw, data.nbytes) if is_payload else 0
            body = _joined(data) if data.nbytes < _SMALL else None
            total = zlib.crc32(body) if body is not None else crc.of_zeros(data.nbytes) if type(data) is Zeros else 0
            entry = Entry(name, STORED, total, data.nbytes, data.nbytes, at)
            header = local_header(entry, raw, pad)
            pieces.append(header)
            self.records.append(central_record(entry, raw))
            at += len(header)
            if body is not None:
                pieces.append(body)
            if body is None or at - start >= _GATHER:
                self._write_gathered(pieces, start)
                start = at + data.nbytes
            if body is None:
                self._write_large(_Large(entry, raw, pad, len(self.records) - 1, data, []), at, large)
            at += data.nbytes
        self._write_gathered(pieces, start)
        for item in large:
            self._complete(item, _combined(item))
        self.at = at

    def _write_large(self, item: _Large, at: int, later: list[_Large]) -> None:
        """Data that is not gathered: as room, in parts by the pool, or in order by this thread."""
        data = item.data
        if type(data) is Zeros:
            reserve(self.fd, at + data.nbytes, self.path, start=at)
            return
        parts = None if self.pool is None else data.parts()
        if parts is None or self.pool is None:
            self._complete(item, self._write_in_order(data, at))
            return
        item.parts.extend(self.pool.submit(self._write_part, data, at, *part) for part in parts)
        later.append(item)

    def _complete(self, item: _Large, total: int) -> None:
        """Header and record again, with the CRC."""
        entry = item.entry._replace(crc=total)
        write_all(self.fd, local_header(entry, item.raw, item.pad), entry.offset, self.path)
        self.records[item.number] = central_record(entry, item.raw)

    def _write_gathered(self, pieces: list[Any], start: int) -> None:
        if pieces:
            write_all(self.fd, b"".join(pieces), start, self.path)
            pieces.clear()

    def _write_part(self, data: Data, at: int, start: int, stop: int) -> int:
        total = 0
        part = data.read(start, stop)
        for first in range(0, stop - start, _BLOCK):
            block = part[first : first + _BLOCK]
            total = zlib.crc32(block, total)
            write_all(self.fd, block, at + start + first, self.path)
        return total

    def _write_in_order(self, data: Data, at: int) -> int:
        total = 0
        for block in data.blocks(_BLOCK):
            total = zlib.crc32(block, total)
            write_all(self.fd, block, at, self.path)
            at += memoryview(block).nbytes
        return total

    # -- compressed ----------------------------------------------------------------------------------------

    def compress(self, member: Member, method: int, level: int | None) -> None:
        """One entry. Where it would claim more than readers believe, it is deflated instead."""
        raw = member.name.encode()
        size = member.data.nbytes
        largest = size + (size >> 6) + 1024  # of what does not compress
        header = len(local_header(Entry(member.name, method, 0, largest, largest, self.at), raw))
        at = self.at + header
        total, packed = 0, 0
        stream = self._deflated(member.data, level) if method == DEFLATED else _counted(member.data, method, level)
        for chunk, summed, length in stream:
            total = crc.combine(total, summed, length)
            write_all(self.fd, chunk, at + packed, self.path)
            packed += len(chunk)
        entry = Entry(member.name, method, total, packed, size, self.at)
        if method != DEFLATED and not credible(entry):
            self.compress(member, DEFLATED, None)
            return
        write_all(self.fd, _header_of(entry, raw, header), self.at, self.path)
        self.records.append(central_record(entry, raw))
        self.at = at + packed

    def _deflated(self, data: Data, level: int | None) -> Iterator[tuple[bytes, int, int]]:
        """Blocks of a deflate stream, each with the CRC and the length of what is in it."""

        def work(block: Any, last: bool) -> tuple[bytes, int, int]:
            return deflated_block(block, level, last), zlib.crc32(block), memoryview(block).nbytes

        jobs = _with_last(data.blocks(_PART))
        if self.pool is None:
            yield from (work(block, last) for block, last in jobs)
            return
        yield from _in_order(self.pool, work, jobs, 2 * self.num_threads)


def _header_of(entry: Entry, raw: bytes, length: int) -> bytes:
    """A local header of the length that was left for it."""
    header = local_header(entry, raw)
    return header if len(header) == length else local_header(entry, raw, length - len(header))


def _joined(data: Data) -> Any:
    blocks = list(data.blocks(_SMALL))
    if len(blocks) == 1:
        return blocks[0]
    return b"".join(blocks)


def _ranges(nbytes: int) -> list[tuple[int, int]]:
    return [(start, min(start + _PART, nbytes)) for start in range(0, nbytes, _PART)]


def _combined(item: _Large) -> int:
    total = 0
    for future, (start, stop) in zip(item.parts, _ranges(item.data.nbytes)):
        total = crc.combine(total, future.result(), stop - start)
    return total


def _with_last(blocks: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Blocks, each with whether it is the last; one empty block where there are none."""
    previous: Any = b""
    first = True
    for block in blocks:
        if not first:
            yield previous, False
        previous, first = block, False
    yield previous, True


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Any]:
    """Results in the order of the jobs, of which a bounded number is under way."""
    waiting: deque[Future[Any]] = deque()
    for job in jobs:
        waiting.append(pool.submit(work, *job))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _counted(data: Data, method: int, level: int | None) -> Iterator[tuple[bytes, int, int]]:
    """As ``_Writer._deflated``, for the methods whose blocks depend on each other."""
    total = 0

    def summed() -> Iterator[Any]:
        nonlocal total
        for block in data.blocks(_PART):
            total = zlib.crc32(block, total)
            yield block

    for chunk in compressed(method, summed(), level):
        yield chunk, 0, 0
    yield b"", total, data.nbytes
