"""The zip format as bytes: writing headers, and checking an untrusted directory; without files or tensors.

An archive consists of a *local header*, padding and data for every entry; the *directory* with a record per entry; and
the *end*, which locates the directory. Sizes and offsets of 4 GiB or more, and more than 65 534 entries, are stored in
64-bit extensions (ZIP64) of all three. (APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.)

All input is untrusted: every number is compared with the size of the file and with its second occurrence, if the format
has one, before it is used.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tensordict_lite.errors import ArchiveError
from tensordict_lite.memmap.disk.format import MAX_LEVELS, MAX_NAME
from tensordict_lite.memmap.tuning import SaveTuning, current

__all__ = [
    "ALIGN",
    "BZIP2",
    "DEFLATED",
    "LZMA",
    "STORED",
    "ZipEntry",
    "central_record",
    "data_starts",
    "end_records",
    "entries",
    "find_directory",
    "local_header",
    "local_size",
    "padding",
    "stored_headers",
]

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
METHODS = {STORED, DEFLATED, BZIP2, LZMA}
ALIGN = 64  # alignment of stored data: a cache line, and a multiple of every element size

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_LOCAL_SIGNATURE, _CENTRAL_SIGNATURE, _END_SIGNATURE = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64_SIGNATURE, _LOCATOR64_SIGNATURE = b"PK\6\6", b"PK\6\7"

_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_DATE = (1 << 5) | 1  # 1 January 1980, so that equal data gives equal files
_UNIX_FILE = 0o100644 << 16
_UTF8, _ENCRYPTED, _STREAMED = 0x800, 0x1 | 0x40 | 0x2000, 0x8
_PADDING_ID = b"td"
LOCAL_CRC, CENTRAL_CRC = 14, 16  # offset of the CRC in a local header and in a record


class ZipEntry(NamedTuple):
    """One entry of the directory."""

    name: str
    """Path with ``/``, relative to the folder."""
    raw: bytes
    """The same path as stored in the archive."""
    method: int
    """``STORED``, ``DEFLATED``, ``BZIP2`` or ``LZMA``."""
    crc: int
    """CRC-32 of the data, before compression."""
    compressed: int
    """Bytes in the archive."""
    size: int
    """Bytes of the data."""
    offset: int
    """Size of the local header."""
    record: int = 0
    """Size of the record in the directory."""
    flags: int = 0
    """General-purpose flag bits."""

    @property
    def is_streamed(self) -> bool:
        """Whether sizes and CRC follow the data, because they were unknown when it was written."""
        return bool(self.flags & _STREAMED)


# -- writing -----------------------------------------------------------------------------------------------------


def padding(offset: int, name: bytes, size: int, tuning: SaveTuning) -> int:
    """Bytes of padding in a local header at ``offset`` that align its data."""
    length = -(offset + _LOCAL.size + len(name) + (20 if size >= tuning.wide_bytes else 0)) % ALIGN
    return length if not length or length >= 4 else length + ALIGN


def local_size(name: bytes, size: int, pad: int, tuning: SaveTuning) -> int:
    """Bytes of the local header of a stored entry."""
    return _LOCAL.size + len(name) + (20 if size >= tuning.wide_bytes else 0) + pad


_PADDING = [b"", *(_PADDING_ID + max(0, n - 4).to_bytes(2, "little") + bytes(max(0, n - 4)) for n in range(1, 256))]


def stored_headers(name: bytes, crc: int, size: int, offset: int, pad: int, tuning: SaveTuning) -> tuple[bytes, bytes]:
    """Local header and record of a stored entry. ``pad`` is 0 or at least 4."""
    if size >= tuning.wide_bytes or offset >= tuning.wide_bytes:
        entry = ZipEntry("", name, STORED, crc, size, size, offset)
        return local_header(entry, tuning, pad), central_record(entry, tuning)
    flags = 0 if name.isascii() else _UTF8
    n = len(name)
    local = _LOCAL.pack(_LOCAL_SIGNATURE, 20, flags, STORED, 0, _DATE, crc, size, size, n, pad) + name + _PADDING[pad]
    record = _CENTRAL.pack(
        _CENTRAL_SIGNATURE, 3 << 8 | 20, 20, flags, STORED, 0, _DATE, crc, size, size, n, 0, 0, 0, 0, _UNIX_FILE, offset
    )
    return local, record + name


def local_header(entry: ZipEntry, tuning: SaveTuning, pad: int = 0) -> bytes:
    """The header before the data of an entry; ``pad`` is 0 or at least 4."""
    name, size, compressed, extra = entry.raw, entry.size, entry.compressed, b""
    if size >= tuning.wide_bytes or compressed >= tuning.wide_bytes:
        extra = struct.pack("<2H2Q", 1, 16, size, compressed)
        size = compressed = _MAX32
    needed = 45 if extra else 20
    extra += _PADDING[pad]
    flags = 0 if name.isascii() else _UTF8
    fixed = _LOCAL.pack(
        _LOCAL_SIGNATURE, needed, flags, entry.method, 0, _DATE, entry.crc, compressed, size, len(name), len(extra)
    )
    return fixed + name + extra


def central_record(entry: ZipEntry, tuning: SaveTuning) -> bytes:
    """The record of an entry in the directory."""
    name = entry.raw
    size, compressed, offset, extra = entry.size, entry.compressed, entry.offset, b""
    if size >= tuning.wide_bytes or compressed >= tuning.wide_bytes or offset >= tuning.wide_bytes:
        wide = []
        if size >= tuning.wide_bytes or compressed >= tuning.wide_bytes:
            wide += [size, compressed]
            size = compressed = _MAX32
        if offset >= tuning.wide_bytes:
            wide.append(offset)
            offset = _MAX32
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide)
    needed = 45 if extra else 20
    flags = 0 if name.isascii() else _UTF8
    fixed = _CENTRAL.pack(
        _CENTRAL_SIGNATURE, 3 << 8 | needed, needed, flags, entry.method, 0, _DATE, entry.crc, compressed, size,
        len(name), len(extra), 0, 0, 0, _UNIX_FILE, offset,
    )  # fmt: skip
    return fixed + name + extra


def end_records(count: int, offset: int, size: int, tuning: SaveTuning) -> bytes:
    """The end of an archive whose directory of ``count`` records has ``size`` bytes at ``offset``."""
    out = b""
    if count >= tuning.wide_entries or offset >= tuning.wide_bytes or size >= tuning.wide_bytes:
        length = _END64.size - 12
        out = _END64.pack(_END64_SIGNATURE, length, 3 << 8 | 45, 45, 0, 0, count, count, size, offset)
        out += _LOCATOR64.pack(_LOCATOR64_SIGNATURE, 0, offset + size, 1)
    few = _MAX16 if count >= tuning.wide_entries else count
    low, short = (_MAX32 if n >= tuning.wide_bytes else n for n in (offset, size))
    return out + _END.pack(_END_SIGNATURE, 0, 0, few, few, short, low, 0)


# -- reading -----------------------------------------------------------------------------------------------------


def find_directory(path: str, data: Any) -> tuple[int, int, int]:
    """Records, offset and bytes of the directory of an archive.

    Args:
        path: the archive, for messages.
        data: its bytes (a memoryview).

    Raises:
        ArchiveError: it is not a zip file, or its end is inconsistent.
    """
    total = len(data)
    tail = bytes(data[max(0, total - _MAX16 - _END.size) :])
    at = tail.rfind(_END_SIGNATURE)
    while at >= 0:
        if at + _END.size <= len(tail):
            fields = _END.unpack_from(tail, at)
            if at + _END.size + fields[7] == len(tail):
                return _directory(path, data, total - len(tail) + at, fields)
        at = tail.rfind(_END_SIGNATURE, 0, at)
    if bytes(data[:4]) == _LOCAL_SIGNATURE:
        raise ArchiveError(path, "is a zip file without its end: it was truncated, or is being copied still")
    raise ArchiveError(
        path, "is a file, but not an archive of a dataset (a zip file with a meta.json), so it cannot be loaded"
    )


def _directory(path: str, data: Any, end: int, fields: tuple[Any, ...]) -> tuple[int, int, int]:
    _, disk, first_disk, here, count, size, offset, _ = fields
    stop = end
    if count == _MAX16 or size == _MAX32 or offset == _MAX32:
        found = _directory64(path, data, end)
        if found is not None:
            (disk, first_disk, here, count, size, offset), stop = found
    if disk or first_disk or here != count:
        raise ArchiveError(path, "is a part of an archive that was split, and the other parts are not read")
    if offset + size != stop:
        raise ArchiveError(
            path,
            f"its end says that the directory has {size:,} bytes at {offset:,}, and there are {stop:,} bytes before "
            "it: the file was truncated, edited, or something was put in front of it",
        )
    if size > current().directory_bytes or count * _CENTRAL.size > size:
        raise ArchiveError(path, f"a directory of {count:,} entries in {size:,} bytes is not credible")
    return count, offset, size


def _directory64(path: str, data: Any, end: int) -> tuple[tuple[int, ...], int] | None:
    """The fields of a ZIP64 end, and its position; ``None`` if there is none."""
    at = end - _LOCATOR64.size
    if at < 0 or bytes(data[at : at + 4]) != _LOCATOR64_SIGNATURE:
        return None
    _, disk, where, disks = _LOCATOR64.unpack_from(data, at)
    if disk or disks > 1:
        raise ArchiveError(path, "is a part of an archive that was split, and the other parts are not read")
    if where + _END64.size != at or bytes(data[where : where + 4]) != _END64_SIGNATURE:
        raise ArchiveError(path, "the 64-bit end of the archive is not where it should be")
    _, length, _, _, *rest = _END64.unpack_from(data, where)
    if length != _END64.size - 12:
        raise ArchiveError(path, f"the 64-bit end of the archive has {length:,} bytes, which is not its size")
    return tuple(rest), where


def entries(path: str, data: Any, count: int, offset: int, size: int) -> list[ZipEntry]:
    """The records of the directory found by :func:`find_directory`; folders are left out.

    Raises:
        ArchiveError: a record is damaged, or not allowed in an archive of a dataset: encryption, an unknown
            compression, a link, a name outside the folder, or one that is too long or too deep.
    """
    directory = bytes(data[offset : offset + size])
    unpack, width, make = _CENTRAL.unpack_from, _CENTRAL.size, tuple.__new__
    found: list[Any] = []
    at = 0
    for _ in range(count):
        if at + width > size or directory[at : at + 4] != _CENTRAL_SIGNATURE:
            raise ArchiveError(path, f"the directory is damaged at byte {offset + at:,}")
        (
            _, made, _, flags, method, _, _, crc, compressed, length, name_length, extra_length, comment_length, disk,
            _, attributes, start,
        ) = unpack(directory, at)  # fmt: skip
        stop = at + width + name_length
        raw = directory[at + width : stop]
        if name_length > MAX_LEVELS:  # a shorter one is not deeper
            require_name(path, raw)
        after = stop + extra_length + comment_length
        if after > size:
            raise ArchiveError(path, f"the directory is damaged at byte {offset + at:,}")
        if compressed == _MAX32 or length == _MAX32 or start == _MAX32:
            extra = directory[stop : stop + extra_length]
            length, compressed, start = _wide(path, raw, extra, length, compressed, start)
        kind = attributes >> 28 if made >> 8 == 3 else 0
        if flags & _ENCRYPTED or method not in METHODS or disk or kind not in (0, 4, 8):
            raise ArchiveError(path, f"the entry {_shown(raw)} {_refusal(flags, method, disk)}")
        found.append((raw, method, crc, compressed, length, start, offset + at, flags))
        at = after
    if at != size:
        raise ArchiveError(path, f"the directory has {size - at:,} bytes behind its {count:,} records")
    names = _names(path, found)
    return [make(ZipEntry, (name, *fields)) for name, fields in zip(names, found) if name[-1] != "/"]


def require_name(path: str, raw: bytes) -> None:
    """Raise ArchiveError if the name of an entry is longer, or deeper, than a file of a dataset can have.

    Creating and removing folders for such names would take unbounded memory and stack.
    """
    levels = raw.count(b"/")
    if len(raw) > MAX_NAME or levels > MAX_LEVELS:
        raise ArchiveError(
            path,
            f"the entry {_shown(raw)} has a name of {len(raw):,} bytes and {levels:,} levels (at most {MAX_NAME:,} and "
            f"{MAX_LEVELS:,})",
        )


def _names(path: str, found: list[Any]) -> list[str]:
    """The names of entries (raw name first, flags last). One combined check avoids a check of each name."""
    together = b"\n".join([fields[0] for fields in found])
    odd = (b"..", b"./", b"//", b"\n/", b"\n\n", b".\n", b"\0")
    if together.isascii() and not any(part in together for part in odd):
        names = together.decode().split("\n")
        if len(names) == len(found) and together[:1] not in (b"/", b"\n", b"") and together[-1:] not in (b".", b"\n"):
            return names
    return [_name(path, fields[0], fields[-1]) for fields in found]


def _shown(raw: bytes) -> str:
    return repr(raw.decode("utf-8", "replace")[:100])


def _name(path: str, raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("ascii" if raw.isascii() else "utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveError(path, f"the name of an entry is not text: {raw[:60]!r}") from None
    if "\0" in name or ".." in name or "//" in name or name[:1] in ("/", "") or "./" in name or name[-1:] == ".":
        parts = name.removesuffix("/").split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise ArchiveError(path, f"an entry is called {name[:100]!r}, which is not a path inside a folder")
    return name


def _wide(path: str, name: bytes, extra: bytes, *values: int) -> list[int]:
    """Numbers of a record or header, taken from its 64-bit extension if they do not fit."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            if len(body) == length:
                wide = iter(struct.unpack(f"<{length // 8}Q", body[: length // 8 * 8]))
                try:
                    return [next(wide) if value == _MAX32 else value for value in values]
                except StopIteration:
                    break
        at += 4 + length
    what = f"the entry {_shown(name)} has a size that stands nowhere (its 64-bit extension is missing)"
    raise ArchiveError(path, what)


def _refusal(flags: int, method: int, disk: int) -> str:
    if flags & _ENCRYPTED:
        return "is encrypted"
    if method not in METHODS:
        return f"is compressed with method {method}; known are stored (0), deflate (8), bzip2 (12) and lzma (14)"
    return "is in another part of a split archive" if disk else "is a link or a special file"


def data_starts(path: str, data: Any, found: list[ZipEntry], limits: list[int]) -> dict[str, int]:
    """Offset of the data of each entry, see :func:`_data_start`; computed for all at once in the common case.

    Args:
        path: the archive, for messages.
        data: its bytes.
        found: the entries, in the order of their offsets.
        limits: for each entry, the start of the next one or of the directory.
    """
    unpack, fixed = _LOCAL.unpack_from, _LOCAL.size
    total = len(data)
    out = {}
    for entry, limit in zip(found, limits):
        name, raw, method, _, compressed, size, offset, _, flags = entry
        if offset + fixed < limit <= total and method == STORED and not flags & _STREAMED:
            signature, _, _, own_method, _, _, _, own_compressed, own_size, name_length, extra_length = unpack(
                data, offset
            )
            named = offset + fixed + name_length
            start = named + extra_length
            if (
                signature == _LOCAL_SIGNATURE
                and own_method == STORED
                and own_compressed == own_size == compressed == size < _MAX32
                and start + size <= limit
                and data[offset + fixed : named] == raw
            ):
                out[name] = start
                continue
        out[name] = _data_start(path, data, entry, limit)
    return out


def _data_start(path: str, data: Any, entry: ZipEntry, limit: int) -> int:
    """Offset of the data of an entry, after its local header, which must agree with the directory.

    Args:
        path: the archive, for messages.
        data: its bytes.
        entry: the entry.
        limit: start of the next entry or of the directory.

    Raises:
        ArchiveError: the header is missing, or the data would extend beyond ``limit``.
    """
    name, raw, method, _, compressed, size, offset, _, flags = entry
    limit = min(limit, len(data))  # the next entry may claim a position outside the file
    if offset + _LOCAL.size > limit:
        raise ArchiveError(path, f"the entry {name!r} overlaps what comes behind it, or lies outside the file")
    signature, _, _, own_method, _, _, _, own_compressed, own_size, name_length, extra_length = _LOCAL.unpack_from(
        data, offset
    )
    start = offset + _LOCAL.size + name_length + extra_length
    if signature != _LOCAL_SIGNATURE:
        raise ArchiveError(path, f"the entry {name!r} is not where the directory says ({offset:,})")
    if start + compressed > limit:
        raise ArchiveError(
            path,
            f"the entry {name!r} says that it has {compressed:,} bytes, which overlaps what comes behind it: there are "
            f"{max(0, limit - start):,}",
        )
    if own_size == _MAX32 or own_compressed == _MAX32:
        own_name = offset + _LOCAL.size + name_length
        extra = bytes(data[own_name : own_name + extra_length])
        own_size, own_compressed = _wide(path, raw, extra, own_size, own_compressed)
    same = own_method == method and bytes(data[offset + _LOCAL.size : offset + _LOCAL.size + name_length]) == raw
    if not flags & _STREAMED:
        same = same and (own_compressed, own_size) == (compressed, size)  # the CRC of the directory counts
    if not same or (method == STORED and compressed != size):
        raise ArchiveError(path, f"the entry {name!r} is described in two ways that contradict each other")
    return start
