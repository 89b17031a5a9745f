"""Pieces of objects that were fetched from a store, on this machine's disk, for the next who wants them.

    <folder>/<boot>/<object>/data      a sparse file of the object's size; holds the pieces that were fetched
    <folder>/<boot>/<object>/pieces    which they are: 16 bytes a piece, its first byte and the one past its last

Processes share it without waiting for each other. A piece is written before its line, and lines are appended in one
write each, so whoever reads a line finds the piece; a process that is killed in between leaves a piece that nobody
knows of. Nothing is synced: the name of the boot sees to it that what a crashed machine may have lost is not taken for
data. When more than the limit is kept, objects go that were used least recently; whoever has one open reads on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from tdmap.memory.hidden import FileLock
from tdmap.plan import merge_ranges, subtract_ranges

VARIABLE = "TDMAP_STORE_CACHE"
"""The environment variable that names the folder. Default: `~/.cache/tdmap/stores`."""

DEFAULT_BYTES = 4 << 30
"""Bytes that are kept, where nobody says how many."""

CHECK_EVERY = 16
"""The folder is measured each time one of so many parts of the limit has been written by a process."""

_LINE = struct.Struct("<qq")


class Cache:
    """A folder with pieces of objects.

    Args:
        folder: where; several processes may use it.
        limit: bytes of disk that it may take.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.root = Path(folder)
        self.folder = self.root / _boot()
        self.limit = limit
        self._written = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Cache], tuple[str, int]]:
        return type(self), (str(self.root), self.limit)

    def entry(self, key: str) -> Path:
        """The folder of an object, which is made if it is not there; used now."""
        folder = self.folder / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)
        return folder

    def read(self, key: str, start: int, stop: int) -> bytes | None:
        """Bytes of an object; None where not all of them are here."""
        try:
            with open(self.entry(key) / "pieces", "rb") as lines:
                known = merge_ranges(_pieces(lines.read()))
            if subtract_ranges([(start, stop)], known):
                return None
            with open(self.entry(key) / "data", "rb") as data:
                found = os.pread(data.fileno(), stop - start, start)
        except OSError:  # another process has just made room
            return None
        return found if len(found) == stop - start else None

    def write(self, key: str, start: int, data: bytes) -> None:
        """Keep bytes of an object; nothing where the disk is full."""
        try:
            entry = self.entry(key)
            with open(os.open(entry / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
                done = 0
                while done < len(data):
                    done += os.pwrite(file.fileno(), memoryview(data)[done:], start + done)
            with open(os.open(entry / "pieces", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", 0) as lines:
                lines.write(_LINE.pack(start, start + len(data)))
        except OSError:
            self.make_room()
            return
        with self._lock:
            self._written += len(data)
            full = self._written >= max(self.limit // CHECK_EVERY, 1)
            if full:
                self._written = 0
        if full:
            self.make_room()

    def make_room(self) -> None:
        """Remove what was used least recently, until no more than the limit is kept."""
        with contextlib.suppress(OSError):
            self.root.mkdir(parents=True, exist_ok=True)
            for old in self.root.iterdir():  # of before this machine was started
                if old.is_dir() and old.name != self.folder.name:
                    shutil.rmtree(old, ignore_errors=True)
            with FileLock(self.root.resolve() / "lock"):  # or somebody else is at it
                self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = sorted((entry.stat().st_mtime, _disk_bytes(entry), entry) for entry in self.folder.iterdir())
        total = sum(nbytes for _, nbytes, _ in entries)
        for _, nbytes, entry in entries:
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(entry / "pieces")  # first: from now on it holds nothing
            shutil.rmtree(entry, ignore_errors=True)
            total -= nbytes

    def nbytes(self) -> int:
        """Bytes of disk that it takes."""
        return sum(_disk_bytes(entry) for entry in self.folder.iterdir()) if self.folder.is_dir() else 0


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    return _LINE.iter_unpack(data[: len(data) // _LINE.size * _LINE.size])


def _disk_bytes(entry: Path) -> int:
    total = 0
    for name in ("data", "pieces"):
        with contextlib.suppress(OSError):
            total += os.stat(entry / name).st_blocks * 512
    return total


def _boot() -> str:
    """A name of the time since this machine was started."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"


def cache_of(cache: bool | int, dataset_bytes: int) -> Cache | None:
    """The cache for a dataset; None where nothing is kept.

    A dataset that is larger than the cache is not kept: each pass would throw out what the next one begins with.

    Raises:
        ValueError: it is no number of bytes.
    """
    if cache is False or cache == 0:
        return None
    if cache is not True and (not isinstance(cache, int) or cache < 0):
        raise ValueError(f"cache must be True, False or a number of bytes: got {cache!r}.")
    limit = DEFAULT_BYTES if cache is True else cache
    if dataset_bytes > limit:
        return None
    return Cache(os.environ.get(VARIABLE) or os.path.expanduser("~/.cache/tdmap/stores"), limit)
