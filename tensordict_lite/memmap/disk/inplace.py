"""Small files of a dataset written in place, where no process has them open.

To make a file for each leaf, and to remove the one that was there, takes many times longer than to write a few
kilobytes, and longer still where a file system lets the numbers of removed files rest. But whoever has mapped a file
keeps what it mapped, so files may only be written that nobody has open, here or elsewhere. The kernel says so: it
grants a lease of a file to its only user, and has others wait who open it meanwhile.

As where files are exchanged, there is no metadata while they are written, and nobody else changes the folder. Those who
watch the metadata have it open (:class:`~tensordict_lite.memmap.disk.turns.Watch`), so it is not written in place then.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from tensordict_lite.memmap.disk import forks
from tensordict_lite.memmap.disk.files import write_all
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.memmap.disk.staging import below, remove_stale, resolved, temporary_name
from tensordict_lite.memmap.disk.turns import turn_in

__all__ = ["may_overwrite", "overwritten"]

_MOST_BYTES = 1 << 20
"""Of all files together: who is killed while they are written leaves no dataset, as while files are exchanged."""
_MOST_FILES = 256
"""Each takes a descriptor."""


_File = tuple[str, int, Any]  # path, descriptor, new content
_CAN_LEASE = hasattr(fcntl, "F_SETLEASE") and hasattr(fcntl, "F_SETSIG")


def may_overwrite(sizes: list[int]) -> bool:
    """Whether files of so many bytes are small enough to try :func:`overwritten`."""
    return _CAN_LEASE and len(sizes) <= _MOST_FILES and sum(sizes) <= _MOST_BYTES


@contextlib.contextmanager
def overwritten(
    prefix: str, contents: dict[str, Any], metadata: dict[str, bytes], is_current: Callable[[], bool]
) -> Iterator[bool]:
    """Writes files of a dataset in place, and its metadata; nobody changes it before the block ends.

    Args:
        prefix: folder of the dataset.
        contents: of the files, as numpy arrays, by their relative paths.
        metadata: of the folders, by their relative paths; the root is ``""``. Without any, they stay as they are, which
            is for a file of one page: the kernel writes a page in one step.
        is_current: whether the other files of the folder are what they were; asked while nobody changes them.

    Yields:
        Whether it was done. Not where a file is open somewhere, of another size, or none that may be written in
        place; nothing has changed then.

    Raises:
        OSError: something could not be written; what was there is there again.
    """
    prefix, turn, is_done = resolved(prefix)[0], -1, False
    try:
        with contextlib.ExitStack() as stack, contextlib.suppress(_NotAlone):
            try:
                turn, since = turn_in(prefix), time.monotonic()
            except OSError:  # no such folder any more
                raise _NotAlone from None
            if any(os.path.islink(f"{prefix}/{folder}") for folder in metadata if folder):
                raise _NotAlone
            files = [
                (*_leased(stack, f"{prefix}/{file}", content.nbytes), content) for file, content in contents.items()
            ]
            order = sorted(metadata, key=lambda folder: folder.count("/") + bool(folder))
            heads = [(*_leased(stack, below(prefix, folder, META)), metadata[folder]) for folder in order]
            if not is_current():
                raise _NotAlone
            if any(fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK for _, fd, _ in files + heads):
                raise _NotAlone  # somebody waits, or has waited for as long as the kernel lets anybody wait
            if heads:  # what is set aside may be left behind
                remove_stale(prefix)
            _write(stack, prefix, files, heads, since)
            is_done = True
        yield is_done
    finally:
        forks.unlock(turn)


def _write(stack: contextlib.ExitStack, prefix: str, files: list[_File], heads: list[_File], since: float) -> None:
    """Writes files and metadata, which are aside meanwhile; on an error, what they held before.

    Raises:
        _NotAlone: this process was stopped for so long that others may have a file open now. There is no dataset then.
    """
    before = [os.pread(fd, os.fstat(fd).st_size, 0) for _, fd, _ in files + heads]
    moved: list[tuple[str, str]] = []
    try:
        for place, _, _ in heads:  # from the root down: whatever is half written has no metadata above it
            aside = f"{prefix}/{temporary_name()}"
            stack.callback(_remove, aside)
            moved.append((aside, place))
            os.rename(place, aside)
        for path, fd, content in files:
            _require_lease(fd, since)
            write_all(fd, content, 0, path)
        for path, fd, content in heads:
            _require_lease(fd, since)
            _replace_content(fd, content, path)
        for aside, place in reversed(moved):
            os.rename(aside, place)
    except _NotAlone:
        raise
    except BaseException:
        restored = [_is_restored(path, fd, content) for (path, fd, _), content in zip(files + heads, before)]
        if all(restored):
            for aside, place in reversed(moved):
                with contextlib.suppress(FileNotFoundError):  # it has not come to that, or it is there again
                    os.rename(aside, place)
        raise


def _require_lease(fd: int, since: float) -> None:
    """Raises where a file is not leased any more; since when it is, at the earliest. That others wait does no harm."""
    if fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK and time.monotonic() - since > _longest_wait():
        raise _NotAlone


def _longest_wait() -> float:
    """Seconds that the kernel has others wait for a leased file, a little less: then it takes the lease away."""
    seconds = 45
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/fs/lease-break-time") as file:
        seconds = int(file.read())
    return seconds - 1 if seconds else math.inf


def _is_restored(path: str, fd: int, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        _replace_content(fd, content, path)
    return os.pread(fd, len(content) + 1, 0) == content


def _replace_content(fd: int, content: bytes, path: str) -> None:
    write_all(fd, content, 0, path)
    os.ftruncate(fd, len(content))


class _NotAlone(Exception):
    """A file may not be written in place."""


def _leased(stack: contextlib.ExitStack, path: str, nbytes: int | None = None) -> tuple[str, int]:
    """Path and descriptor of a file that nobody else has open, or gets open before the stack unwinds.

    With ``nbytes``, it is of that size.
    """
    try:
        fd = forks.kept(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        raise _NotAlone from None
    stack.callback(_close, fd)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or not info.st_mode & stat.S_IWUSR:
        raise _NotAlone  # of several names, the others may be a copy of the dataset
    if not os.major(info.st_dev):
        raise _NotAlone  # not on a disk of this machine: others, or an overlay's mappings, are not known to the kernel
    if info.st_size > _MOST_BYTES or (nbytes is not None and (info.st_size != nbytes or info.st_blocks * 512 < nbytes)):
        raise _NotAlone  # with holes, the disk may be too full
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # sent to who holds a lease that others wait for: ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:  # somebody has it open, or there are no leases here
        raise _NotAlone from None
    return path, fd


def _close(fd: int) -> None:
    if forks.is_kept(fd):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)  # closing is not enough where a child is forked just now
        forks.close(fd)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
