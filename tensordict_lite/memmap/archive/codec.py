"""Bounded compression and decompression of entries, block by block.

``bz2`` and ``lzma`` are imported on first use, because Python may be built without them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from tensordict_lite.errors import ArchiveError
from tensordict_lite.memmap.archive.zipformat import BZIP2, DEFLATED, LZMA, METHODS, STORED, ZipEntry
from tensordict_lite.memmap.disk import crc

__all__ = ["MAX_RATIO", "compressed", "credible", "deflated_block", "inflate", "method_of"]

MAX_RATIO = 1032
"""Largest ratio of uncompressed to compressed size, the limit of deflate. Entries that claim more are rejected."""

_SLACK = 64  # allowance in bytes for empty compressed data
_NAMES = {"stored": STORED, "deflate": DEFLATED, "deflated": DEFLATED, "bzip2": BZIP2, "lzma": LZMA}
_STEP = 1 << 20
_LZMA1 = 0x4000000000000001  # the filter of that name
_LZMA = {"id": _LZMA1, "dict_size": 8 << 20, "lc": 3, "lp": 0, "pb": 2}


def method_of(compression: str | int | None) -> int:
    """The method for a name (``"stored"``, ``"deflate"``, ``"bzip2"``, ``"lzma"``) or a constant of :mod:`zipfile`.

    Raises:
        ValueError: the method is unknown.

    Example:
        >>> method_of("deflate"), method_of(None)
        (8, 0)
    """
    if compression is None:
        return STORED
    if isinstance(compression, str):
        if compression.lower() in _NAMES:
            return _NAMES[compression.lower()]
    elif type(compression) is int and compression in METHODS:
        return compression
    raise ValueError(
        f"unknown compression {compression!r}: expected one of {sorted(_NAMES)} or a zipfile constant of one of them"
    )


def check_level(method: int, level: int | None) -> None:
    """Raise ValueError for a level that the method does not have."""
    lowest, highest = {DEFLATED: (0, 9), BZIP2: (1, 9)}.get(method, (0, 9))
    if level is not None and not (type(level) is int and lowest <= level <= highest):
        raise ValueError(f"the compression level is a number from {lowest} to {highest}, got {level!r}")


def deflated_block(block: Any, level: int | None, last: bool) -> bytes:
    """A block as a part of a deflate stream; consecutive parts form one stream (as in ``pigz``)."""
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, -15)
    return packer.compress(block) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def compressed(method: int, blocks: Iterable[Any], level: int | None) -> Iterator[bytes]:
    """The data of an entry, compressed with bzip2 or LZMA."""
    if method == BZIP2:
        import bz2

        packer: Any = bz2.BZ2Compressor(9 if level is None else level)
    else:
        import lzma

        packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[_LZMA])
        yield struct.pack("<2BHBL", 9, 4, 5, _LZMA["lc"] + 9 * (_LZMA["lp"] + 5 * _LZMA["pb"]), _LZMA["dict_size"])
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()


def credible(entry: ZipEntry, ratio: float = MAX_RATIO) -> bool:
    """Whether the claimed size of an entry is possible for its compressed size."""
    return entry.method == STORED or entry.size <= ratio * (entry.compressed + _SLACK)


def inflate(path: str, entry: ZipEntry, packed: Any) -> Iterator[bytes]:
    """The data of a compressed entry in blocks: exactly the claimed size.

    Args:
        path: the archive, for messages.
        entry: the entry.
        packed: its bytes in the archive.

    Raises:
        ArchiveError: the data does not match the size, CRC or method of the entry.
    """
    crc32, total, done = crc.fastest(), 0, 0
    failures: tuple[type[Exception], ...] = (zlib.error, OSError, EOFError, ValueError, struct.error)
    failures += _errors_of(entry)
    try:
        for block in _blocks(entry, packed):
            done += len(block)
            if done > entry.size:
                break
            total = crc32(block, total)
            yield block
    except failures as err:
        raise ArchiveError(path, f"the entry {entry.name!r} cannot be decompressed ({err})") from None
    if done != entry.size:
        more = "more" if done > entry.size else f"{done:,}"
        raise ArchiveError(path, f"the entry {entry.name!r} should have {entry.size:,} bytes, and has {more}")
    if total != entry.crc:
        raise ArchiveError(path, f"the entry {entry.name!r} is damaged: its checksum is not that of its data")


def _errors_of(entry: ZipEntry) -> tuple[type[Exception], ...]:
    if entry.method != LZMA:
        return ()
    import lzma

    return (lzma.LZMAError,)


def _blocks(entry: ZipEntry, packed: Any) -> Iterator[bytes]:
    if entry.method == DEFLATED:
        unpacker = zlib.decompressobj(-15)
        for start in range(0, len(packed), _STEP):
            rest = packed[start : start + _STEP]
            while len(rest) and not unpacker.eof:
                yield unpacker.decompress(rest, _STEP)
                rest = unpacker.unconsumed_tail
        while not unpacker.eof:
            block = unpacker.decompress(unpacker.unconsumed_tail, _STEP)
            if not block:
                return  # truncated: the size check reports it
            yield block
        return
    if entry.method == BZIP2:
        import bz2

        source: Any = bz2.BZ2Decompressor()
        at = 0
    else:
        source, at = _lzma_decompressor(entry, packed), 9
    while not source.eof:
        if source.needs_input:
            if at >= len(packed):
                return
            part, at = packed[at : at + _STEP], at + _STEP
        else:
            part = b""
        yield source.decompress(part, _STEP)


def _lzma_decompressor(entry: ZipEntry, packed: Any) -> Any:
    import lzma

    _, _, length, properties, window = struct.unpack_from("<2BHBL", packed)
    if length != 5 or properties >= 225:
        raise ValueError("its LZMA properties are not understood")
    # The window is memory of the decoder. A window larger than the data is useless, whatever the header says.
    window = max(4096, min(window, entry.size))
    rest, lc = divmod(properties, 9)
    pb, lp = divmod(rest, 5)
    filters = [{"id": _LZMA1, "dict_size": window, "lc": lc, "lp": lp, "pb": pb}]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
