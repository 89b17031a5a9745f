"""Files between processes, as tensors: made, reserved and mapped in one step."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from tdmap.errors import UntrustedFile
from tdmap.memory import hidden
from tensordict_lite.memmap.disk.mapping import map_file, reserve


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
