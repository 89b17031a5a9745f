"""Sending memory without a file through queues and pipes of ``multiprocessing``, with its descriptor.

A pickle names such memory by a descriptor of its owner, which closes it with the last tensor. That is too early if a
producer puts a batch into a queue and drops it. So when ``multiprocessing`` pickles, a duplicate of the descriptor
waits in the sender until it is fetched, as in torch's shared tensors, and the receiver becomes an owner, too.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from multiprocessing import AuthenticationError
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

from torch import UntypedStorage
from torch.multiprocessing.reductions import reduce_storage

from tensordict_lite.memmap.disk.mapping import (
    SharedHandle,
    handle_of,
    is_reachable,
    known_mapping,
    own_storage,
    path_of,
)


def offer(path: str, device: int, inode: int) -> Any:
    """A duplicate of the descriptor of an anonymous file, to be fetched once; ``None`` if it was closed already.

    Args:
        path: the path under which other processes open it.
        device: device of the file.
        inode: inode of the file.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    child = get_spawning_popen()
    try:
        info = os.fstat(fd)
        return DupFd(fd) if (info.st_dev, info.st_ino) == (device, inode) else None
    finally:
        if child is None:
            os.close(fd)
        else:  # a process being started inherits this descriptor
            weakref.finalize(child, os.close, fd)


def fetch(offered: Any) -> int:
    """The offered descriptor, -1 if it is unavailable: its process has ended, or it was fetched before."""
    if offered is not None:
        with contextlib.suppress(OSError, EOFError, AuthenticationError):
            return int(offered.detach())
    return -1


class HeldHandle(SharedHandle):
    """A handle of received memory, which stays mapped.

    Attributes:
        storage: the memory.
    """

    storage: UntypedStorage

    def open(self, writable: bool = True) -> UntypedStorage:
        """The memory."""
        return self.storage


def _receive(handle: tuple[Any, ...], offered: Any) -> SharedHandle:
    named, fd = SharedHandle(*handle), fetch(offered)
    if fd < 0:
        return named
    storage = known_mapping(named)
    if storage is None:
        storage = own_storage(fd, path_of(fd), named.nbytes)
    else:
        os.close(fd)
    held = HeldHandle(*named)
    held.storage = storage
    return held


def _send(handle: SharedHandle) -> Any:
    if not handle.anonymous:
        return SharedHandle, tuple(handle)
    return _receive, (tuple(handle), offer(handle.path, handle.device, handle.inode))


def _send_storage(storage: UntypedStorage) -> Any:
    """Like torch's function, which fails for storages mapped from a file, because they have no descriptor."""
    if storage.device.type != "cpu" or storage.filename is None:
        return reduce_storage(storage)
    handle = handle_of(storage)
    return (_open, (handle,)) if is_reachable(handle, storage) else reduce_storage(storage.clone())


def _open(handle: SharedHandle) -> UntypedStorage:
    return handle.open()


def register() -> None:
    """Make ``multiprocessing`` send handles, and plain tensors over mapped memory, this way."""
    ForkingPickler.register(SharedHandle, _send)
    ForkingPickler.register(UntypedStorage, _send_storage)
