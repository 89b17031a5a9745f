"""Memory that several processes map.

    owner                                        any other process of the same user
    ─────                                        ──────────────────────────────────
    anonymous_tensor(n) ── memfd ──► storage     Region(handle="/proc/<owner>/fd/<n>", dtype, shape...)
         │                                            │ open + mmap, once per process
         └── region_of(view) ──── pickled ──────────► plain tensor over the same bytes

Anonymous memory is a `memfd`: a file without a name, so that nothing is left in `/dev/shm` when every process is
killed, and the size of that mount does not matter. Others open it through the owner's entry in `/proc`, which
needs no descriptor to be passed and works under every start method. Where there is no `memfd_create`, or `/proc`
is hidden, a temporary file takes its place and is unlinked by its owner.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref

import torch

from tdmap.frames import warn_user
from tdmap.memory.mapped import check_mapped_files, mapped_elsewhere
from tdmap.memory.resources import system_memory
from tensordict_lite.gathering import bytes_of
from tensordict_lite.memmap.disk import mapping
from tensordict_lite.memmap.disk.files import write_all
from tensordict_lite.memmap.disk.mapping import Region, SharedHandle, map_anonymous, region_of, release, reserve
from tensordict_lite.memmap.disk.placed import is_placed

ALIGNMENT = 64
"""Tensors in a block start at multiples of this, the length of a cache line."""

WRITTEN_BYTES = 256 << 10
"""A copy of so many bytes is written to its file, which takes half the time of stores into a new mapping."""


def align(offset: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def anonymous_file(nbytes: int) -> tuple[int, str, str | None]:
    """A file of `nbytes` zeros that lives in memory.

    Returns:
        Its descriptor, the path by which other processes open it, and the path that its owner must unlink
        (None for a memfd).
    """
    nbytes = max(nbytes, 1)
    fd, path, unlink = mapping.anonymous_file("tdmap", lambda: _fallback_folder(nbytes))
    try:
        if unlink is None:
            os.ftruncate(fd, nbytes)
        else:
            reserve(fd, nbytes, path)
    except BaseException as error:  # no room: nothing may stay there
        release(os.getpid(), fd, unlink)
        if isinstance(error, OSError) and unlink is None:  # `ulimit -f` counts it
            raise OSError(error.errno, f"{error.strerror}: {nbytes:,} bytes of shared memory") from error
        raise
    return fd, path, unlink


def _fallback_folder(nbytes: int) -> str | None:
    with contextlib.suppress(OSError):
        room = os.statvfs("/dev/shm")
        if os.access("/dev/shm", os.W_OK):
            if room.f_bavail * room.f_frsize > nbytes:
                return "/dev/shm"
            warn_user(
                f"/dev/shm has no room for {nbytes:,} bytes: using files in {tempfile.gettempdir()} instead, "
                "which is slower"
            )
    return None


def anonymous_tensor(nbytes: int) -> torch.Tensor:
    """`nbytes` zeros (uint8) that other processes can open, by `region_of`, while any view of them lives here.

    Pages are allocated as they are written, by the process that writes them.

    Raises:
        MemoryError: the machine does not have so much memory to spare.

    Example:
        >>> block = anonymous_tensor(4096)
        >>> region_of(block[64:]).offset, region_of(torch.zeros(4096)) is None
        (64, True)
    """
    check_memory(nbytes)
    fd, path, unlink = anonymous_file(nbytes)
    try:
        storage = map_anonymous(fd, path, max(nbytes, 1))
    except BaseException:
        release(os.getpid(), fd, unlink)
        raise
    weakref.finalize(storage, release, os.getpid(), fd, unlink).atexit = unlink is not None
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))


class Arena:
    """Shared memory for tensors: small ones are given out from the front of large blocks.

    Args:
        block_bytes: of a block; a larger tensor gets a file of its own.
        alone_bytes: a tensor of so many bytes gets a file of its own too, so that others may be written meanwhile,
        most_alone: as long as there are few, since each takes a descriptor.
    """

    def __init__(self, block_bytes: int = 64 << 20, alone_bytes: int = 8 << 20, most_alone: int = 64) -> None:
        self._block_bytes = block_bytes
        self._alone_bytes = alone_bytes
        self._most_alone = most_alone
        self._block: torch.Tensor | None = None
        self._used = 0
        self._alone = 0

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of `tensor` in shared memory; its expanded dimensions stay expanded."""
        compact = unexpanded(tensor)
        copy = self.empty(tensor.dtype, compact.shape)
        is_plain = compact.device.type == "cpu" and compact.is_contiguous()
        if copy.nbytes < WRITTEN_BYTES or not is_plain or compact.is_conj() or compact.is_neg():
            copy.copy_(compact)
        else:
            write_bytes(copy, bytes_of(compact))
        return copy.expand(tensor.shape)

    def empty(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        """Zeroed shared memory as a contiguous tensor."""
        nbytes = shape.numel() * dtype.itemsize
        if nbytes > self._block_bytes or (nbytes >= self._alone_bytes and self._alone < self._most_alone):
            self._alone += 1
            return anonymous_tensor(nbytes).view(dtype).view(shape)
        start = align(self._used)
        if self._block is None or start + nbytes > self._block.numel():
            self._block = anonymous_tensor(self._block_bytes)
            start = 0
        self._used = start + nbytes
        return self._block[start : start + nbytes].view(dtype).view(shape)


def write_bytes(tensor: torch.Tensor, data: memoryview) -> None:
    """Fill contiguous shared memory through its file: half of the work of a store into pages that are not there yet."""
    region = region_of(tensor)
    assert region is not None
    path = region.handle.path
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        write_all(fd, data, region.offset * tensor.element_size(), path)
    finally:
        os.close(fd)


def unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with its expanded dimensions cut to one element."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def check_memory(nbytes: int) -> None:
    """Raise MemoryError when `nbytes` exceed what the machine has to spare: better than a killed worker later."""
    if nbytes < 1 << 28:
        return
    spare = system_memory()
    if spare is not None and nbytes > spare:
        raise MemoryError(
            f"{nbytes:,} bytes of results do not fit into memory ({spare:,} bytes are available): pass out=, "
            "a memory-mapped TensorDict, so that results go to files"
        )


def shared_region(tensor: torch.Tensor) -> Region | None:
    """Where a CPU tensor lies in memory or files that other processes can open now; None when it does not.

    It does not where another file has the name of the one that is mapped. The region names the very file, so that
    one that takes its name later is not opened in its place.

    Raises:
        DatasetError: its file has been cut.
    """
    if type(tensor).__torch_function__ is not torch.Tensor.__torch_function__:
        tensor = tensor.as_subclass(torch.Tensor)
    region = region_of(tensor)
    if region is not None:
        info = _reachable(region.handle)
        if info is not None and region.handle.anonymous:
            return region
        if info is not None and is_placed(tensor.untyped_storage(), region.handle.path):
            return region._replace(handle=region.handle._replace(device=info.st_dev, inode=info.st_ino))
        check_mapped_files([tensor])  # a copy of what is left of the file would end this process
        return None
    storage = tensor.untyped_storage()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    if not storage.is_shared():
        return mapped_elsewhere(tensor)
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return None
    try:
        fd, nbytes = storage._share_fd_cpu_()  # the storage keeps this descriptor as long as it lives
        info = os.fstat(fd)
        handle = SharedHandle(f"/proc/{os.getpid()}/fd/{fd}", nbytes, info.st_dev, info.st_ino)
    except (OSError, RuntimeError):
        return None
    if _reachable(handle) is None:
        return None
    return Region(handle, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _reachable(handle: SharedHandle) -> os.stat_result | None:
    """What opening the handle's path would give now; None when that is not the bytes that it stands for."""
    try:
        info = os.stat(handle.path)
    except OSError:
        return None
    if handle.inode and (info.st_dev, info.st_ino) != (handle.device, handle.inode):
        return None
    return info if info.st_size >= handle.nbytes else None


def map_path(path: str, nbytes: int) -> mmap.mmap:
    """A shared, writable mapping of an anonymous file of any process."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)
