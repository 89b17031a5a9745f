"""Whether a mapped file is still the one that its name leads to: a save puts new files into the places of old ones.

A process that has an old one mapped keeps it, and its storage knows only the name. The kernel knows the file.
"""

from __future__ import annotations

import mmap
import os
import re

import numpy as np
from torch import UntypedStorage

__all__ = ["inodes_of_mappings", "is_placed"]

_OF_A_FILE = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ \S+ 0+ \S+ ([1-9][0-9]*)", re.MULTILINE)
_REMOVED = " (deleted)"
"""What the kernel puts behind the name of a file that has none any more."""


def is_placed(storage: UntypedStorage, path: str) -> bool:
    """Whether the file that a storage is mapped from, all of it, is the one at ``path`` now; True without any bytes.

    The kernel is asked each time: addresses and numbers of inodes are used again.
    """
    address, nbytes = storage.data_ptr(), storage.nbytes()
    if not nbytes:
        return True
    end = address + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    try:  # one call of the system
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
    # Where `stat` and the kernel's list number files differently, as some overlays do, only another mapping can tell.
    return known is None or known == inode or known == _inode_when_mapped(path)


def inodes_of_mappings() -> dict[int, int]:
    """The inode of the file at the start of each mapping of this process, by address."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return {int(address, 16): int(inode) for address, inode in _OF_A_FILE.findall(lines.read())}
    except OSError:  # no such file: not Linux
        return {}


def _inode_when_mapped(path: str) -> int | None:
    """The number that the list of mappings has for the file at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as page:
            return inodes_of_mappings().get(np.frombuffer(page, np.uint8).ctypes.data)
    finally:
        os.close(fd)
