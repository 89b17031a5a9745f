"""One writer for each folder: a second call fails at once, and its error says who writes.

    out/.tdmap/lock    held with flock(2), which ends when its process does; its content says who holds it

The lock belongs to one call, in one thread of one process. Workers that are forked for the call share it: if the driver
is killed, the lock is free when these workers have ended as well. Other children of the process do not share it, and a
worker that stays warm releases it together with its driver. The lock is on a file, not on the folder, because network
file systems can lock files only. On a file system without locks, calls are not told apart.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import weakref
from pathlib import Path

from tdmap.errors import FolderInUse, TdmapError, UntrustedFile
from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN, NO_LOCKS, FileLock
from tdmap.memory.holder import LOCK, UNKNOWN, Holder, holder_in
from tdmap.processes import is_forking_worker
from tensordict_lite.memmap.disk.contents import files_below
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.staging import exchange_in_turn, keep_modes

STRAY_SECONDS = 10.0
"""Seconds until the children of a killed process have ended, at most."""

LOOK_SECONDS = 1.0
"""Seconds that a lock without a name is held, at most: by a call about to write its name, or by a look at the lock."""

_PAUSE = 0.01
_NOBODY = bytes(1)  # replaces the first byte of the holder's text: the lock is free


def replacement_of(folder: Path) -> Path:
    """Where a dataset is made that is to replace the one in a folder."""
    return folder.with_name(f".{folder.name}.tdmap-new")


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """The right to write a folder, held from the moment that it is made until its block ends, or its process does.

    It does not wait for a call that is at work.

    Args:
        folder: the folder of a dataset, which is made if it is not there.
        call: what the errors of others call this one, such as `map(double)`.
        stray_seconds: to wait for the children of a holder that was killed.

    Attributes:
        folder: the folder.
        made: the folder was not there; it is removed again when it stays empty.

    Raises:
        FolderInUse: another call writes the folder; names it.
        FileExistsError: a file is in its place.
        UntrustedFile: the hidden folder, or the lock, is a link or something else.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, call: str, stray_seconds: float = STRAY_SECONDS) -> None:
        self.folder = folder
        self._fd, self._pid = -1, os.getpid()
        began, self.made, path = time.monotonic(), False, folder / HIDDEN / LOCK
        while self._fd < 0:
            self.made |= _make(folder, path.parent)
            try:
                fd = hidden.open_file(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError as error:  # its holder has just removed it all
                if time.monotonic() - began > stray_seconds:
                    raise _cannot_write(folder, error) from None
                continue
            except OSError as error:
                raise _cannot_write(folder, error) from None
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    _wait_for(holder_in(fd), path, began, stray_seconds)
                    continue
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                if not _is_file(fd, path):
                    continue
                with contextlib.suppress(OSError):  # a full disk: the errors of others will not say who holds the lock
                    os.pwrite(fd, Holder.own(call).pack(), 0)
                self._fd, fd = fd, -1
            finally:
                if fd >= 0:
                    os.close(fd)
        _locks.add(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, TdmapError):
            self._name_folder(error)
        self.release()

    def _name_folder(self, error: OSError) -> None:
        """Name the folder in an error about a file that was to be moved there."""
        made, name = (self._hidden, replacement_of(self.folder)), error.filename
        if isinstance(name, (str, os.PathLike)) and any(Path(name).is_relative_to(folder) for folder in made):
            error.filename = str(self.folder)

    def __del__(self) -> None:  # a signal handler raised after the lock was taken and before its block began
        with contextlib.suppress(Exception):
            self.release()

    @property
    def _hidden(self) -> str:
        return os.path.join(self.folder, HIDDEN)

    @property
    def is_mine(self) -> bool:
        """Whether this process holds the lock: False in a fork of the process that took it, and after `release`."""
        return self._fd >= 0 and self._pid == os.getpid()

    def exchange(self, other: FolderLock) -> None:
        """Exchange the folders of two locks, which both stay held; nothing in a fork of the process.

        The new dataset, in the folder of this lock, gets the permissions of the other one.
        """
        if self.is_mine and other.is_mine:
            new, old = str(self.folder), str(other.folder)
            files = [file for file in files_below(new) if not file.startswith(f"{HIDDEN}/")]
            folders = {os.path.dirname(file) for file in files} | {""}
            keep_modes(new, old, [*files, *sorted(folders)])
            exchange_in_turn(new, old)
            self.folder, other.folder = other.folder, self.folder

    def release(self) -> None:
        """Release the lock. Removes the lock file and its folders if nothing else is in them."""
        if not self.is_mine:
            return
        _locks.discard(self)
        fd, self._fd = self._fd, -1
        try:
            with contextlib.suppress(OSError):
                self._clear(fd)
        finally:  # by name: workers that stay warm have inherited the descriptor, and are not at work any more
            with contextlib.suppress(OSError):  # no locks here
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _clear(self, fd: int) -> None:
        path = os.path.join(self._hidden, LOCK)
        if set(os.listdir(self._hidden)) - {LOCK}:
            os.pwrite(fd, _NOBODY, 0)  # not cut: a file system may take care that such a file reaches the disk
            return
        if not _is_file(fd, path):
            return
        os.unlink(path)  # a call that has opened it already sees that it is gone, and makes another
        os.rmdir(self._hidden)
        if self.made and not os.listdir(self.folder):
            os.rmdir(self.folder)


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()
_inherited: list[int] = []  # in a worker: descriptors of the locks of its driver, which it keeps until it ends


def _leave_to_parent() -> None:
    for lock in list(_locks):
        _inherited.append(lock._fd)
        lock._fd = -1
    _locks.clear()
    if not is_forking_worker():
        for fd in _inherited:
            with contextlib.suppress(OSError):
                os.close(fd)
        _inherited.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _make(folder: Path, inner: Path) -> bool:
    """Make the folder and its hidden one; whether the folder was not there."""
    require_no_file(folder)
    try:
        made = not is_there(folder)
        if made:
            os.makedirs(folder, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # its holder has just removed it: once more, then
            hidden.make_folder(inner)
        return made
    except OSError as error:
        raise _cannot_write(folder, error) from None


def require_no_file(folder: str | os.PathLike[str]) -> None:
    """Raise FileExistsError where the folder of a dataset would be, and a file or a broken link is."""
    try:
        mode = os.lstat(folder).st_mode  # asked once: another rank may make the folder at any moment
    except OSError:
        return
    if not stat.S_ISDIR(mode) and not (stat.S_ISLNK(mode) and os.path.isdir(folder)):
        raise FileExistsError(f"{folder} is a file, and a dataset is a folder: choose another path.")


def _cannot_write(folder: Path, error: OSError) -> OSError:
    """The error again, with a message that says what to do about the folder."""
    if isinstance(error, (UntrustedFile, FileExistsError)):
        return error
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and _has_no_inodes(folder):
        reason = "the file system has room, but not for another file: its inodes are used up"
    return OSError(
        error.errno,
        f"nothing can be written there ({reason}); choose another folder, or make this one fit",
        str(folder),
    )


def _has_no_inodes(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    with contextlib.suppress(OSError):
        info = os.statvfs(folder)
        return info.f_files > 0 and info.f_favail == 0
    return False


def _is_file(fd: int, path: str | Path) -> bool:
    """Whether a descriptor is the file that has this name now."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _wait_for(holder: Holder, path: Path, began: float, stray_seconds: float) -> None:
    """Wait a moment where the lock is about to be free: its holder has ended, and its workers will, or only looked.

    Raises:
        FolderInUse: the holder is at work.
    """
    folder, alive = path.parent.parent, holder.process.is_alive
    ended = alive is False
    if not alive and time.monotonic() - began < (stray_seconds if ended else LOOK_SECONDS):
        time.sleep(_PAUSE)
        return
    if ended:
        text = (
            f"{folder} was being written by {holder.describe()}, which has ended. A process that it started "
            f"is still running and holds {path}: end that process, or wait for it."
        )
    else:
        text = f"{folder} is being written by {holder.describe()}. Wait until it has ended, or choose another folder."
    known = () if holder is UNKNOWN else (holder.process.pid, holder.process.host, holder.since, holder.call)
    raise FolderInUse(text, str(folder), *known)


def without_strays(path: Path) -> FileLock:
    """Hold a lock that workers share as long as they may write rows: those of a killed driver may live for a moment.

    Raises:
        FolderInUse: they do not end.
    """
    try:
        return FileLock(path, STRAY_SECONDS)
    except BlockingIOError:
        folder = path.parent.parent
        text = f"workers of an earlier run still change rows of {folder} and hold {path}: end them first."
        raise FolderInUse(text, str(folder)) from None
