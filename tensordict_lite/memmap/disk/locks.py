"""Locks of dataset folders: saves exclude each other and readers.

The lock of a dataset is that of its outermost folder with metadata, so a save of a nested collection and a reader of
the whole dataset exclude each other. The kernel releases a lock when its process ends.

A forked child has copies of the descriptors: it closes them, or it would hold the locks of a parent that is killed as
long as it lives. A process that is alive releases its locks explicitly.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator

from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.memmap.tuning import current

_LONGEST_PAUSE = 0.016

_kept: set[int] = set()


def kept(fd: int) -> int:
    """Register ``fd``, so that children forked from now on close their copies, and return it."""
    _kept.add(fd)
    return fd


def close(fd: int) -> None:
    """Close a descriptor registered by :func:`kept`, if it is still open."""
    if fd in _kept:
        _kept.discard(fd)
        os.close(fd)


def unlock(fd: int) -> None:
    """Release the lock of a descriptor registered by :func:`kept`."""
    if fd in _kept:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough if a child is being forked
        close(fd)


def _in_child() -> None:
    for fd in _kept:
        with contextlib.suppress(OSError):
            os.close(fd)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def is_at(fd: int, path: str) -> bool:
    """Whether an open file or folder is the one at a path."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def lock(folder: str) -> int:
    """Lock a dataset after its readers and other saves have ended; return a descriptor for :func:`unlock`.

    Any user who may read the folder can hold the lock, so the wait is limited.

    Raises:
        FileNotFoundError: the folder does not exist.
        TimeoutError: another process has held the lock for a minute, or a user without write permission holds it.
    """
    folder = _outermost(folder)
    while True:
        fd = kept(open_folder(folder))
        try:
            try:
                _wait(fd, folder)
            except TimeoutError:
                raise
            except OSError:  # a file system without locks, or without locks on folders
                pass
            if is_at(fd, folder):
                return fd
        except BaseException:
            unlock(fd)
            raise
        unlock(fd)  # another save has exchanged it meanwhile


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """:func:`lock` a dataset during a block."""
    fd = lock(folder)
    try:
        yield
    finally:
        unlock(fd)


@contextlib.contextmanager
def reading(folder: str) -> Iterator[None]:
    """Exclude saves while the files of a dataset are checked and mapped; readers do not exclude each other.

    The block runs without a lock if the file system has none, if the folder does not exist, or if another process has
    held the lock for a minute.
    """
    fd = _shared_lock(_outermost(folder))
    try:
        yield
    finally:
        unlock(fd)


def _outermost(folder: str) -> str:
    """The outermost enclosing folder with metadata, or the folder itself."""
    above = os.path.dirname(folder)
    while above and is_there(f"{above}/{META}", follow=False) and os.access(above, os.R_OK):
        folder, above = above, os.path.dirname(above)
    return folder


def _wait(fd: int, path: str) -> None:
    pause, patience = 0.0005, current().lock_seconds
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            late = time.monotonic() > deadline
        if late or (pause >= _LONGEST_PAUSE and _is_held_by_a_reader(fd)):
            pid = _holder(fd)
            who = "a process" if pid is None else f"process {pid}"
            what = f"has been locked for {patience:.0f} s by {who}"
            if not late:
                what = f"is locked by {who}, whose user may not write to it"
            raise TimeoutError(errno.ETIMEDOUT, f"the folder {what}. End it, or try again when it has ended", path)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _shared_lock(folder: str) -> int:
    deadline = 0.0
    while True:
        try:
            fd = kept(open_folder(folder))
        except (OSError, ValueError):
            return -1
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if is_at(fd, folder):
                return fd
        except BlockingIOError:
            now = time.monotonic()
            patience = current().lock_seconds
            deadline = deadline or now + patience
            if now > deadline or (deadline - now < patience - 0.02 and _is_held_by_a_reader(fd)):
                close(fd)
                return -1
            time.sleep(0.001)
        except OSError:  # a file system without locks, or without locks on folders
            close(fd)
            return -1
        unlock(fd)  # another folder, or not yet this one


def _is_held_by_a_reader(fd: int) -> bool:
    """Whether a process of a user without write permission holds the lock of an open folder."""
    pid = _holder(fd)
    if pid is None:
        return False
    user = _user_of(pid)
    if user is None:
        return False
    info = os.fstat(fd)
    return user not in (0, info.st_uid, os.geteuid()) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _user_of(pid: int) -> int | None:
    """The user of a process. Its folder in /proc belongs to root if the process has changed its user."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return None


def _holder(fd: int) -> int | None:
    """The process that holds the lock of an open folder, if the kernel reports it."""
    info = os.fstat(fd)
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    with contextlib.suppress(OSError), open("/proc/locks") as lines:
        for line in lines:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                return int(fields[4])
    return None
