"""The hidden folder of a dataset, whose files may come from an archive, a colleague or a stranger.

So nothing in it is opened by its name alone. A link is not followed, neither in place of a file nor of the folder; a
FIFO or a device is not waited for, nor even opened; a file is of a credible size, of the caller, and has no second
name elsewhere when it is to be written. What is found instead is an `UntrustedFile`, before a byte of it is read.

    open_file       a descriptor
    read, lines     what a file holds, at most so much of it
    append_line     one more line
    append_frame    one more frame of a log
    replace_file    a new content, whole or not at all
    make_folder     the folder itself
    FileLock        a lock for a short step: others wait meanwhile, or get an error
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from tdmap.errors import UntrustedFile

HIDDEN = ".tdmap"
"""Name of the folder, within that of a dataset; `RUNS` of `tensordict_lite`, which this module does not import."""

SHARDS = "shards.json"
"""Beside it: the manifest of a dataset of shards (see `tdmap.shards.manifest`)."""

SHARDS_RUN = f"{HIDDEN}/run.json"
"""What a run that writes shards is (see `tdmap.output.store`); other runs keep that in their journal."""

SHARDS_ROWS = "rows"
"""Within the hidden folder: where an operation writes its rows before they are copied into shards."""

AnyPath: TypeAlias = "str | os.PathLike[str]"

SMALL, LARGE = 16 << 20, 1 << 30
"""Bytes that a file of it may have: one that holds a few facts, and one that grows with the run."""

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system without locks answers."""

FRAME = struct.Struct("<II")
"""Before each frame of a log: the length and the CRC32 of what follows (see `tdmap.run.log`)."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINE = 64 << 20  # the longest line that is credible
_PAUSE = 0.01


def open_file(
    path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o666, limit: int = 1 << 62, own: bool = True
) -> int:
    """A descriptor of a regular file in a hidden folder.

    Args:
        path: the file. Its folder must be one, and no link to one.
        flags: as `os.open`; not `O_TRUNC`, because nothing is cut before it has been looked at.
        mode: of a file that is made.
        limit: bytes that it may have.
        own: it must be the caller's. False for a reader that does not trust the content.

    Raises:
        FileNotFoundError: there is none, and it is not to be made.
        UntrustedFile: it is something else, or another user's.
    """
    assert not flags & os.O_TRUNC
    above, name = os.path.split(path)
    folder = open_folder(above)
    try:
        try:  # looked at first: opening alone can do something to a device
            _require_regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            pass
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UntrustedFile(path, "is a symbolic link") from None
            error.filename = str(path)
            raise
        try:
            _require_credible(path, fd, folder, flags, limit, own)
        except BaseException:
            os.close(fd)
            raise
        return fd
    finally:
        os.close(folder)


def open_folder(path: AnyPath) -> int:
    """A descriptor of a folder that is no link.

    Raises:
        FileNotFoundError: there is none.
        UntrustedFile: there is something else.
    """
    try:
        return os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            if os.path.islink(path):
                raise UntrustedFile(path, "is a symbolic link, and not a folder") from None
            if os.path.lexists(path):
                raise UntrustedFile(path, "is a file, and not a folder") from None
        raise


def _require_regular(path: AnyPath, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder"}
        kind = kinds.get(stat.S_IFMT(info.st_mode), "a device or a socket")
        raise UntrustedFile(path, f"is {kind}, and not a regular file")


def _require_credible(path: AnyPath, fd: int, folder: int, flags: int, limit: int, own: bool) -> None:
    info = os.fstat(fd)
    _require_regular(path, info)
    if info.st_size > limit:
        raise UntrustedFile(path, f"has {info.st_size:,} bytes, where at most {limit:,} are credible")
    if own:
        _require_own(path, info, folder)
    if flags & (os.O_WRONLY | os.O_RDWR) and info.st_nlink > 1:
        raise UntrustedFile(path, "has another name elsewhere (a hard link), where it would change too")


def _require_own(path: AnyPath, info: os.stat_result, folder: int) -> None:
    if info.st_uid == os.geteuid():
        return
    # Some file systems have owners of their own (a share that is mounted for everybody): what counts is whether a
    # file that the caller makes there has the same one.
    name = f"owner-{os.getpid()}-{os.urandom(4).hex()}"
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            mine = os.fstat(fd).st_uid
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=folder)
        if mine == info.st_uid:
            return
    raise UntrustedFile(
        path, f"belongs to user {info.st_uid}, and not to you (user {os.geteuid()}); copy the dataset if you trust them"
    )


def make_folder(path: AnyPath, mode: int = 0o777) -> bool:
    """Make a folder, or make sure that the one that is there is the caller's, and no link. Whether it was made."""
    try:
        os.mkdir(path, mode)
        return True
    except FileExistsError:
        fd = open_folder(path)
        try:
            _require_own(path, os.fstat(fd), fd)
        finally:
            os.close(fd)
        return False


def remove(path: AnyPath) -> None:
    """Remove a file, or the link in its place; nothing when there is none.

    Raises:
        UntrustedFile: it is a folder.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        raise UntrustedFile(path, "is a folder, and not a regular file") from None


def remove_tree(path: AnyPath) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing that a link leads to."""
    try:
        os.rmdir(path)  # an empty one, most often
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        remove(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def read(path: AnyPath, limit: int = SMALL, own: bool = True) -> bytes | None:
    """What a file holds; None when there is none. Arguments and errors as `open_file`."""
    try:
        fd = open_file(path, os.O_RDONLY, limit=limit, own=own)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(fd, "rb") as file:
        return file.read(min(os.fstat(fd).st_size, limit))  # so much is allocated, whatever there is to read


def lines(path: AnyPath, limit: int = LARGE) -> Iterator[Any]:
    """The JSON values of a file with one a line; lines without one, of killed writers, are left out."""
    try:
        fd = open_file(path, os.O_RDONLY, limit=limit)
    except (FileNotFoundError, NotADirectoryError):
        return
    with open(fd, "rb") as file:
        while line := file.readline(_LINE):
            with contextlib.suppress(ValueError):
                yield parse_json(line)


def printable(value: object, most: int = 500) -> str:
    """A text for people that a file may have made up: on one line, without what a terminal would obey.

    Example:
        >>> printable("done\x1b[2J\x07 well")
        'done�[2J� well'
    """
    text = str(value)
    text = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text[:most])
    return text + "..." if len(str(value)) > most else text


def parse_json(text: bytes) -> Any:
    """Parse JSON from an untrusted file.

    Raises:
        ValueError: it is none, or too deep to be one of ours.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def replace_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file so that it is there whole or not at all, even if this process is killed.

    Args:
        path: the file.
        data: what it is to hold.
        durable: wait until it is on the disk, so that the machine may go down as well.
    """
    temporary, mode = path.with_name(path.name + ".new"), 0o666
    remove(temporary)  # of a killed writer, or a planted link
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with naming(path), open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fdatasync(fd)
        os.replace(temporary, path)
    except BaseException as error:  # no room, or an exception of a signal handler
        remove(temporary)
        if isinstance(error, IsADirectoryError):
            raise UntrustedFile(path, "is a folder, and not a regular file") from None
        raise
    if durable:
        folder = open_folder(path.parent)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system, which know a descriptor only, name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def append_line(path: Path, line: bytes, durable: bool = False) -> None:
    """Append a line to a file, made if it is not there, in one write.

    Raises:
        OSError: there is no room; names the file.
    """
    fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        data = line + b"\n"
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a writer was killed in the middle of a line
            data = b"\n" + data
        with naming(path):
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, "no space left on device for another line", str(path))
            if durable:
                os.fdatasync(fd)
    finally:
        os.close(fd)


def framed(body: bytes) -> bytes:
    """Bytes as a frame."""
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def append_frame(path: AnyPath, body: bytes) -> None:
    """Append a frame to a log that another process has open. Errors as `write_frames`."""
    fd = open_file(path, os.O_WRONLY | os.O_APPEND)
    try:
        write_frames(fd, path, framed(body))
    finally:
        os.close(fd)


def write_frames(fd: int, path: AnyPath, frames: bytes) -> None:
    """Append whole frames to a log, in one write. Other processes may append at the same time.

    Raises:
        OSError: no space is left; names the file, whose earlier frames stay.
    """
    with naming(Path(path)):
        locks = _lock(fd)
        try:
            before = os.fstat(fd).st_size
            if os.write(fd, frames) < len(frames):
                os.ftruncate(fd, before)
                raise OSError(errno.ENOSPC, "no space left on device for the log of this call", str(path))
        finally:
            if locks:
                fcntl.lockf(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> bool:
    """Lock a file for this process while it is written; False where its file system has no locks."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)  # not flock: a fork of a process that is killed would keep that
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """A lock on a file, held from the moment that it is made until its block ends, or its process does.

    Args:
        path: the file; it is made if need be.
        patience: seconds to wait for others.

    Attributes:
        works: False on a file system without locks, where nothing is held.

    Raises:
        BlockingIOError: others have held it for all that time.
        UntrustedFile: there is something else in its place.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lock"
        >>> with FileLock(path) as lock:
        ...     lock.works
        True
    """

    def __init__(self, path: str | os.PathLike[str], patience: float = 0.0) -> None:
        self._fd, began = open_file(path, os.O_RDWR | os.O_CREAT), time.monotonic()
        self.works = True
        try:
            while not self._taken():
                if time.monotonic() - began > patience:
                    raise BlockingIOError(f"{os.fspath(path)} is locked by another call.")
                time.sleep(_PAUSE)
        except BaseException:
            os.close(self._fd)
            raise

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self.works = False
        return True

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # in so many words: a process forked meanwhile has the descriptor, too
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
