"""Files that are read through mappings, and may have been cut by somebody else since they were opened.

To read a mapped page beyond the end of its file ends the process with SIGBUS. A worker that ends so is replaced, and
the new one finds the file too short: an error. In the caller, sizes are looked at before rows are read outside of
chunks; for chunks see `cuts`.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from tdmap.memory.regions import region_of
from tensordict_lite.errors import DatasetError


class MappedFiles:
    """The files that some tensors lie in.

    Args:
        tensors: any tensors; those in memory do not matter.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._files: dict[str, tuple[int, int]] = {}
        for tensor in tensors:
            region = region_of(tensor)
            if region is not None and not region.handle.anonymous:
                found = region.handle.nbytes, tensor.untyped_storage().data_ptr()
                self._files[region.handle.path] = max(found, self._files.get(region.handle.path, found))

    def check(self) -> None:
        """Raise DatasetError, with its name, when a file has become shorter than what is mapped of it."""
        for path, (nbytes, address) in self._files.items():
            try:
                info = os.stat(path)
            except OSError:  # removed, or its folder: the mapping keeps the bytes
                continue
            # A shorter file that has taken the name of the mapped one does no harm.
            if info.st_size < nbytes and inodes_of_mappings().get(address, info.st_ino) == info.st_ino:
                raise DatasetError(
                    path,
                    f"{nbytes:,} bytes are mapped and the file has {info.st_size:,}: somebody has cut it since it was "
                    "opened. Load the dataset again",
                )


def inodes_of_mappings() -> dict[int, int]:
    """The inode of the file at the start of each mapping of this process, by address."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return {int(address, 16): int(inode) for address, inode in _OF_A_FILE.findall(lines.read())}
    except OSError:  # no such file: not Linux
        return {}


_OF_A_FILE = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ \S+ 0+ \S+ ([1-9][0-9]*)", re.MULTILINE)
_seen: dict[int, int] = {}
"""Mappings of this process as they were when one was last looked for that was not among them."""


def is_replaced(address: int, path: str, inode: int) -> bool:
    """Whether the file of inode number `inode` that lies at `path` now is another than the one mapped at `address`."""
    global _seen
    if _seen.get(address) == inode:
        return False
    _seen = inodes_of_mappings()
    mapped = _seen.get(address)
    # Where `stat` and the kernel's list number files differently, as some overlays do, only another mapping can tell.
    return mapped is not None and mapped != inode and mapped != _inode_when_mapped(path)


def _inode_when_mapped(path: str) -> int | None:
    """The number that the list of mappings has for the file at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as page:
            return inodes_of_mappings().get(np.frombuffer(page, np.uint8).ctypes.data)
    finally:
        os.close(fd)
