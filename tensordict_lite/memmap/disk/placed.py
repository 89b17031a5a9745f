"""Whether a mapped file is still the one at its path: a save replaces files by new ones.

A process that has mapped an old file keeps it, and its storage knows only the path. The kernel knows the file.
"""

from __future__ import annotations

import mmap
import os
import re

import numpy as np
from torch import UntypedStorage

_OF_A_FILE = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ \S+ 0+ \S+ ([1-9][0-9]*)", re.MULTILINE)
_REMOVED = " (deleted)"
"""Suffix that the kernel adds to the name of a deleted file."""


def is_placed(storage: UntypedStorage, path: str) -> bool:
    """Whether the file that a whole storage maps is the one now at ``path``; True for an empty storage.

    The kernel is asked each time, because addresses and inode numbers are reused.
    """
    address, nbytes = storage.data_ptr(), storage.nbytes()
    if not nbytes:
        return True
    end = address + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    try:  # a single system call
        mapped = os.readlink(f"/proc/self/map_files/{address:x}-{end:x}")
    except OSError:  # not Linux, or part of a larger mapping
        mapped = ""
    if mapped and not mapped.endswith(_REMOVED) and (mapped == path or mapped == os.path.realpath(path)):
        return True
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return False
    known = inodes_of_mappings().get(address)
    # If `stat` and the kernel's list number files differently, as on some overlays, a second mapping decides.
    return known is None or known == inode or known == _inode_when_mapped(path)


def inodes_of_mappings() -> dict[int, int]:
    """The inode of the file of each mapping of this process, by start address."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return {int(address, 16): int(inode) for address, inode in _OF_A_FILE.findall(lines.read())}
    except OSError:  # no such file: not Linux
        return {}


def _inode_when_mapped(path: str) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as page:
            return inodes_of_mappings().get(np.frombuffer(page, np.uint8).ctypes.data)
    finally:
        os.close(fd)
