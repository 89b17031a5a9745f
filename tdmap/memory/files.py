"""Files that several processes map: made, reserved and mapped in one step; and when one was last written."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdmap.errors import UntrustedFile
from tdmap.memory import hidden
from tensordict_lite.memmap.disk.mapping import map_file, reserve

_TICK = 10_000_000
"""Nanoseconds between two times that a file system can tell apart, at most."""

_WRITE_AND_WAIT = 1 | 2 | 4
"""Flags of sync_file_range: the pages that are dirty, and those on their way."""


def mapped_file(path: Path, nbytes: int, *, keep: bool = False, mode: int = 0o600) -> Tensor:
    """The bytes of a file that is made for them; uint8 `[nbytes]`.

    Its room is reserved, so that a full disk is an error now, and not a signal when a row is written.

    Args:
        path: where; nothing there but a file of the caller is touched.
        nbytes: its size.
        keep: what the file holds stays, if it has this size. Otherwise all bytes are zero.
        mode: of a file that is not there yet.

    Raises:
        OSError: there is no room; with the bytes needed and available.
        UntrustedFile: there is something else than a file of the caller.
    """
    fd = hidden.open_file(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if not keep or os.fstat(fd).st_size != nbytes:
            os.ftruncate(fd, 0)
            reserve(fd, nbytes, str(path))
    finally:
        os.close(fd)
    return _bytes(path, nbytes)


def known_file(path: Path, nbytes: int) -> Tensor:
    """The bytes of a file that `mapped_file` has made, here or in another process; uint8 `[nbytes]`.

    Raises:
        FileNotFoundError: it is gone.
        UntrustedFile: it is another one.
    """
    fd = hidden.open_file(path, os.O_RDWR)
    try:
        found = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if found != nbytes:
        raise UntrustedFile(path, f"has {found:,} bytes, where {nbytes:,} were written")
    return _bytes(path, nbytes)


def _bytes(path: Path, nbytes: int) -> Tensor:
    if not nbytes:  # nothing can be mapped
        return torch.empty(0, dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(map_file(str(path), nbytes), 0, (nbytes,), (1,))


def written_at(path: str) -> int | None:
    """When a file was last written, in nanoseconds; a store to the file after this call gives another time.

    The kernel sets the time at the first store to a clean page of a mapping, and not at the next ones. Writing the
    dirty pages back makes them clean, whichever process has mapped them. That takes as long as the disk needs, and
    microseconds where no page is dirty.

    Args:
        path: a regular file.

    Returns:
        None on a file system in memory (tmpfs), which notes the first store through a mapping only. The content
        alone tells whether such a file was written.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _is_in_memory(os.fstat(fd).st_dev):
            return None
        _write_back(fd)
        written = os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
    if 0 <= (age := time.time_ns() - written) < _TICK:
        time.sleep((_TICK - age) / 1e9)  # a store before the next tick would leave the time as it is
    return written


def _write_back(fd: int) -> None:
    """Write dirty pages to the disk: without flushing the disk's own cache where the system can."""
    sync_file_range = _sync_file_range()
    if sync_file_range is None or sync_file_range(fd, 0, 0, _WRITE_AND_WAIT):
        os.fdatasync(fd)


@functools.cache
def _sync_file_range() -> Any:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


@functools.cache
def _is_in_memory(device: int) -> bool:
    """Whether a file system has no disk, so that pages of its files are never written back."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            fields = (line.split() for line in mounts)
            return any(f[2] == number and f[f.index("-") + 1] in ("tmpfs", "ramfs", "hugetlbfs") for f in fields)
    except OSError:
        return False
