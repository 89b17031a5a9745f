"""Who may change the folder of a dataset: saves take turns, readers keep them out for a moment and notice them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from tensordict_lite.memmap.disk import forks
from tensordict_lite.memmap.disk.files import is_held_by_a_reader, open_at_once, open_folder, take_lock
from tensordict_lite.memmap.disk.format import META

__all__ = ["Watch", "holds_dataset", "is_at", "reading", "turn_in"]


def turn_in(folder: str) -> int:
    """A descriptor that keeps others from changing what is in a folder, once they have ended.

    Raises:
        TimeoutError: a process keeps the folder locked.
    """
    while True:
        fd = forks.kept(open_folder(folder))
        try:
            try:
                take_lock(fd, folder)
            except TimeoutError:
                raise
            except OSError:  # a file system without locks, or without locks on folders
                pass
            if is_at(fd, folder):
                return fd
        except BaseException:
            forks.unlock(fd)
            raise
        forks.unlock(fd)  # somebody has exchanged it meanwhile


def is_at(fd: int, path: str) -> bool:
    """Whether an open file or folder is the one at a path."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


_PATIENCE = 60.0
"""Seconds that a reader waits for a save that moves its files in: a disk may stall, a process be stopped."""


@contextlib.contextmanager
def reading(folder: str) -> Iterator[None]:
    """Keeps saves from putting other files into a folder while its own are looked at and mapped.

    Not for the values alone: torch makes a file longer that is shorter than what it is to map. Goes on without where
    there are no locks, or no folder, or where a process that changes it does not go on.
    """
    fd = _shared_lock(folder)
    try:
        yield
    finally:
        forks.unlock(fd)


def _shared_lock(folder: str) -> int:
    deadline = 0.0
    while True:
        try:
            fd = forks.kept(open_folder(folder))
        except (OSError, ValueError):
            return -1
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at(fd, folder):
                return fd
        except BlockingIOError:
            now = time.monotonic()
            deadline = deadline or now + _PATIENCE
            if now > deadline or (deadline - now < _PATIENCE - 0.02 and is_held_by_a_reader(fd)):
                forks.close(fd)
                return -1
            time.sleep(0.001)
        except OSError:  # a file system without locks, or without locks on folders
            forks.close(fd)
            return -1
        forks.unlock(fd)  # not this folder, or not yet


def holds_dataset(folder: str) -> bool:
    """Whether a folder holds a dataset, also one that is being moved into it."""
    meta = f"{folder}/{META}"
    if os.path.exists(meta):
        return True
    with reading(folder):
        return os.path.exists(meta)


class Watch:
    """Tells whether a dataset is the one that it was: each save, and each commit of rows, brings new metadata.

    The old ones are held open, so that they are not written in place (see :mod:`.inplace`), and that their inode is not
    used again, which ext4 does within the same tick.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.meta = folder, f"{folder}/{META}"
        try:
            self._fd = open_at_once(self.meta)
        except (OSError, ValueError):  # there is none, or something else is in its place
            self._fd = -1
        self._is_there = self._fd >= 0 or os.path.lexists(self.meta)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def finds_dataset(self) -> bool:
        """Whether there was one."""
        return self._fd >= 0

    def is_same(self) -> bool:
        """Whether it is the one that it was, or there is none yet."""
        return is_at(self._fd, self.meta) if self._fd >= 0 else os.path.lexists(self.meta) is self._is_there

    def is_settled(self) -> bool:
        """:meth:`is_same`, once whoever is changing the folder has come to an end."""
        if not self.is_same():
            return False
        with reading(self.folder):
            return self.is_same()
