"""Python objects in shared memory: one process replaces a value, every process sees the new one.

An arena is an in-memory file (:func:`~tensordict_lite.memmap.disk.mapping.anonymous_file`) with a header, whose pages
all processes share, followed by space for pickles::

    header   word 0: end of the used bytes, then 8 words per cell:
             generation | offset, size, length of slot 0 | offset, size, length of slot 1 | unused
    pickles  a slot that has become too small gets new space at the end

Value number *g* of a cell is in slot ``g % 2``. A writer takes the lock, fills the unused slot, and then increments the
generation with one store; a writer that is killed earlier has changed nothing. A reader takes no lock: it reads the
generation and unpickles only new values.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.locks import kept, unlock
from tensordict_lite.memmap.disk.mapping import anonymous_file, path_of
from tensordict_lite.memmap.disk.passing import fetch, offer

_WORDS = 8  # words per cell in the header
_STEP = 64  # space is allocated in multiples of this many bytes

Address = tuple[str, int, int, int]


class ObjectTable:
    """Shared storage for a number of objects.

    Args:
        count: number of cells.
        address: address of an arena of another process, ``None`` for a new one.

    Raises:
        DatasetError: the process that owns the arena has ended.
        OSError: too many files are open.
    """

    def __init__(self, count: int, address: Address | None = None) -> None:
        self.count = count
        size = 8 * _WORDS * (count + 1)
        unlink = None
        if address:
            self._fd, self._path = _opened(address), address[0]
        else:
            self._fd, self._path, unlink = anonymous_file("tensordict-objects")
        try:
            if address is None:
                os.ftruncate(self._fd, size)
            info = os.fstat(self._fd)
            self._words = memoryview(mmap.mmap(self._fd, size)).cast("Q")
        except BaseException:
            _close(os.getpid(), self._fd, unlink)
            raise
        self.identity = (info.st_dev, info.st_ino)
        if address is None:
            self._words[0] = size
        _arenas[self.identity] = self
        closing = weakref.finalize(self, _close, os.getpid(), self._fd, unlink)
        closing.atexit = unlink is not None

    @property
    def address(self) -> Address:
        """The name under which another process opens it while this process runs."""
        of_process = self._path.startswith("/proc/")
        return (path_of(self._fd) if of_process else self._path, *self.identity, self.count)

    def cells(self) -> list[Cell]:
        """All cells."""
        return [Cell(self, number) for number in range(self.count)]

    def generation(self, number: int) -> int:
        """The number of writes of a cell."""
        return self._words[_WORDS * (number + 1)]

    def read(self, number: int) -> tuple[int, bytes]:
        """The generation and the pickle of a cell."""
        at = _WORDS * (number + 1)
        while True:
            generation = self._words[at]
            offset, _, length = self._words[at + 1 + 3 * (generation % 2) :][:3]
            data = os.pread(self._fd, length, offset)
            if self._words[at] == generation:  # otherwise the slot may have been refilled meanwhile
                return generation, data

    def write(self, number: int, data: bytes) -> None:
        """Make ``data`` the next generation of a cell."""
        at = _WORDS * (number + 1)
        with self._locked():
            generation = self._words[at] + 1
            slot = at + 1 + 3 * (generation % 2)
            offset, room, _ = self._words[slot:][:3]
            if room < len(data):
                offset, room = self._words[0], -(-2 * len(data) // _STEP) * _STEP
                os.ftruncate(self._fd, offset + room)
                self._words[0] = offset + room
            os.pwrite(self._fd, data, offset)
            self._words[slot], self._words[slot + 1], self._words[slot + 2] = offset, room, len(data)
            self._words[at] = generation

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other writers in all threads and processes; the kernel releases the lock when the process ends.

        Uses its own descriptor: a `lockf` lock would be released as soon as another thread closed any descriptor of the
        file, such as the one that is sent with the arena.
        """
        fd = kept(self._opened_again())
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            unlock(fd)

    def _opened_again(self) -> int:
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def __reduce__(self) -> Any:
        return _arena, self.address

    def _send(self) -> Any:
        """Like `__reduce__`, for `multiprocessing`: the arena may be released here before it arrives."""
        return _received, (self.address, offer(*self.address[:3]))


def _close(owner: int, fd: int, unlink: str | None) -> None:
    os.close(fd)
    if unlink is not None and os.getpid() == owner:  # not in a fork of it
        with contextlib.suppress(OSError):
            os.unlink(unlink)


_arenas: weakref.WeakValueDictionary[tuple[int, int], ObjectTable] = weakref.WeakValueDictionary()


def _arena(path: str, device: int, inode: int, count: int) -> ObjectTable:
    """The arena at an address; one object per process."""
    known = _arenas.get((device, inode))
    return ObjectTable(count, (path, device, inode, count)) if known is None else known


def _received(address: Address, offered: Any) -> ObjectTable:
    """:func:`_arena`, from the descriptor sent with it."""
    fd = fetch(offered)
    try:
        return _arena(path_of(fd) if fd >= 0 else address[0], *address[1:])
    finally:
        if fd >= 0:
            os.close(fd)


ForkingPickler.register(ObjectTable, ObjectTable._send)


def _opened(address: Address) -> int:
    path, device, inode, _ = address
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        fd = -1
    if fd >= 0:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) == (device, inode):
            return fd
        os.close(fd)
    raise DatasetError(
        path,
        "these shared objects belonged to a process that has released them or ended; keep the collection alive in the "
        "process that made it until others have received it",
    )


class Cell:
    """One object, shared by all processes.

    Example:
        >>> cell = ObjectTable(1).cells()[0]
        >>> cell.set({"step": 1})
        >>> cell.get()
        {'step': 1}
    """

    __slots__ = ("_arena", "_number", "_seen", "_value")

    def __init__(self, arena: ObjectTable, number: int) -> None:
        self._arena = arena
        self._number = number
        self._seen = 0
        self._value: Any = None

    def get(self) -> Any:
        """The object as last set by any process. A process keeps a copy of each value that it has read."""
        if self._arena.generation(self._number) != self._seen:
            self._seen, data = self._arena.read(self._number)
            self._value = pickle.loads(data)
        return self._value

    def set(self, value: Any) -> None:
        """Replace the object for all processes.

        Raises:
            TypeError: it cannot be pickled; the old value is kept.
        """
        try:
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as err:
            raise TypeError(
                f"a {type(value).__name__} cannot be pickled ({err}), so it cannot be shared between processes"
            ) from err
        self._arena.write(self._number, data)

    def __reduce__(self) -> Any:
        return Cell, (self._arena, self._number)
