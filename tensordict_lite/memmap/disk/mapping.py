"""Bytes on disk and in shared memory as torch storages: allocation, mapping, and lookup.

A mapping made here, and every view of it, knows its file, because torch keeps the file name in the storage.
:func:`region_of` reads it back, so that a tensor travels to another process as a name and an offset. A process maps a
file once: mappings are cached weakly by device and inode.

Memory without a file is a ``memfd``: it has no name in a folder and is freed with its last user. Other processes open
it as ``/proc/<owner>/fd/<number>`` while the owner holds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.placed import is_placed

_PROC = "/proc/"
NAMED = "tdmap-anonymous-"
"""Prefix of the temporary files that replace anonymous memory on systems without it."""
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, missing in the mmap module


_QUANTIZED = frozenset((torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4))


def check_dtype(dtype: torch.dtype) -> None:
    """Raise TypeError for quantized dtypes, whose scale no file stores."""
    if dtype in _QUANTIZED:
        raise TypeError(f"a {dtype} has a scale, which no file would hold: map tensor.int_repr(), and keep the scale")


def no_room(path: str, needed: int) -> OSError:
    """The ``OSError`` for a full file system, with file, needed and available bytes."""
    return OSError(
        errno.ENOSPC,
        f"no space left on device: {needed:,} bytes are needed and {available_bytes(path):,} are available; "
        "free some space or save elsewhere",
        path,
    )


def available_bytes(path: str) -> int:
    """Free bytes on the file system that holds (or would hold) ``path``; free memory for ``/proc`` paths."""
    if path.startswith(_PROC):
        return available_memory()
    probe = os.path.abspath(path)
    while not os.path.exists(probe):
        probe = os.path.dirname(probe)
    info = os.statvfs(probe)
    return info.f_bavail * info.f_frsize


def available_memory() -> int:
    """Memory that this process may still use, in bytes, including the limit of its control group."""
    free = 1 << 62
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), free)
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, max(0, limit - used))
    return free


def check_room(path: str, needed: int) -> None:
    """Raise ``OSError`` (ENOSPC) if ``needed`` bytes do not fit where ``path`` is stored."""
    if needed > (1 << 20) and needed > available_bytes(path):
        raise no_room(path, needed)


def reserve(fd: int, nbytes: int, path: str, start: int = 0) -> None:
    """Extend the file to its full size with allocated blocks, zero-filled after its content.

    A sparse file would fail with a bus error during a write; this raises ``OSError`` instead.
    """
    if nbytes <= start:
        return
    check_room(path, nbytes - start)
    if not hasattr(os, "posix_fallocate"):  # macOS
        return _fill_zeros(fd, start, nbytes, path)
    try:
        os.posix_fallocate(fd, start, nbytes - start)
    except OSError as err:
        if err.errno == errno.ENOSPC:
            raise no_room(path, nbytes - start) from None
        if err.errno == errno.EFBIG:
            raise OSError(errno.EFBIG, f"a file of {nbytes:,} bytes is too large for this file system", path) from None
        if err.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _fill_zeros(fd, start, nbytes, path)  # a file system without allocation: write zeros


def preallocate(fd: int, nbytes: int) -> None:
    """Announce the number of bytes to the file system, which allocates blocks at once and speeds up writing.

    Only a hint: the file keeps its size, and a full disk is reported by the write.
    """
    allocate = _fallocate()
    if allocate is not None and nbytes > 0:
        allocate(fd, _KEEP_SIZE, 0, nbytes)


@functools.cache
def _fallocate() -> Any:
    """The C function: that of ``os`` writes zeros if the file system has nothing better."""
    try:
        function = ctypes.CDLL(None).fallocate
    except (AttributeError, OSError):  # not Linux
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


def _fill_zeros(fd: int, start: int, stop: int, path: str) -> None:
    block = bytes(1 << 20)
    try:
        while start < stop:
            start += os.pwrite(fd, block[: stop - start], start)
    except OSError as err:
        raise (no_room(path, stop - start) if err.errno == errno.ENOSPC else err) from None


def map_file(path: str, nbytes: int, *, writable: bool = True) -> UntypedStorage:
    """Map the first ``nbytes`` of an existing file, shared (``writable``) or copy-on-write.

    The caller has checked that the file is large enough: torch would grow or create it.
    """
    try:
        storage: Any = UntypedStorage.from_file(path, writable, nbytes)
    except RuntimeError as err:
        if writable or f"({errno.ENOMEM})" not in str(err):
            raise
        storage = _map_unreserved(path, nbytes)
    if not writable:
        storage.__dict__["_private_file"] = path  # torch drops the name of a private mapping
    return storage


def _map_unreserved(path: str, nbytes: int) -> UntypedStorage:
    """Map a file larger than memory copy-on-write.

    By default the kernel refuses such a mapping, since every page might be written and need memory. Used only after a
    refusal, because this mapping holds a descriptor as long as it lives.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=protection)
    finally:
        os.close(fd)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


class SharedHandle(NamedTuple):
    """The address of shared bytes: a path, the identity of the file, and its size.

    The identity (device and inode) detects a replaced file, and an owner process that has ended and whose number was
    reused. ``inode == 0`` accepts any file of that name. A tensor that shares its memory with others starts at an
    offset, in bytes.
    """

    path: str
    nbytes: int
    device: int = 0
    inode: int = 0
    offset: int = 0

    @property
    def anonymous(self) -> bool:
        """Whether this is memory of a process, not a file in a folder."""
        return is_anonymous(self.path)

    def open(self, writable: bool = True) -> UntypedStorage:
        """The mapped bytes: the existing mapping of this process, or a new one.

        Raises:
            DatasetError: the file was removed or truncated, or the process that owned the memory has ended.
        """
        try:
            info = os.stat(self.path)
        except OSError as err:
            raise DatasetError(self.path, self._gone(err)) from None
        if self._is_other(info):
            raise DatasetError(self.path, self._gone(None))
        if info.st_size < self.nbytes:
            raise DatasetError(self.path, f"{self.nbytes:,} bytes are expected and the file has {info.st_size:,}")
        storage = _known(info.st_dev, info.st_ino, self.nbytes, writable)
        if storage is None:
            storage = map_file(self.path, self.nbytes, writable=writable)
            _remember((info.st_dev, info.st_ino, self.nbytes, writable), storage)
        return storage

    def _is_other(self, info: os.stat_result) -> bool:
        if self.anonymous:
            return (info.st_dev, info.st_ino) != (self.device, self.inode)
        return self.inode not in (0, info.st_ino)  # machines that share a folder number its device differently

    def _gone(self, err: OSError | None) -> str:
        if self.anonymous:
            return (
                "this memory belonged to a process that has released it or ended; keep the tensor alive in the "
                "process that made it until others have received it, or give it a filename"
            )
        if err is None:
            return "another file has taken the place of the one that was mapped: load the dataset again"
        return f"the file of a memory-mapped tensor cannot be opened ({err.strerror})"


# Live mappings of this process, so that a tensor received twice is mapped once.
_mappings: dict[tuple[int, int, int, bool], weakref.ref[UntypedStorage]] = {}


def _known(device: int, inode: int, nbytes: int, writable: bool) -> UntypedStorage | None:
    known = _mappings.get((device, inode, nbytes, writable))
    return None if known is None else known()


def known_mapping(handle: SharedHandle) -> UntypedStorage | None:
    """The mapping of this process for a handle with an identity, if there is one."""
    return _known(handle.device, handle.inode, handle.nbytes, True)


def remember(handle: SharedHandle, storage: UntypedStorage, writable: bool) -> None:
    """Let :meth:`SharedHandle.open` find this mapping again, in this process and in children forked later."""
    try:
        info = os.stat(handle.path)
    except OSError:
        return
    key = (info.st_dev, info.st_ino, handle.nbytes, writable)
    if key not in _mappings:
        _remember(key, storage)


def _remember(key: tuple[int, int, int, bool], storage: UntypedStorage) -> None:
    _mappings[key] = weakref.ref(storage, lambda _: _mappings.pop(key, None))


def anonymous_storage(nbytes: int) -> UntypedStorage:
    """Shared zero-filled memory without a file, fully allocated.

    Raises:
        OSError: not enough shared memory, or too many open files.
    """
    try:
        fd, path, unlink = anonymous_file("tensordict")
    except OSError as err:
        if err.errno == errno.EMFILE:
            err.strerror = (
                "too many open files: each anonymous memory-mapped tensor holds one; raise `ulimit -n` or pass a prefix"
            )
        raise
    try:
        reserve(fd, nbytes, path)
    except BaseException:
        release(os.getpid(), fd, unlink)
        raise
    return own_storage(fd, path, nbytes, unlink)


def own_storage(fd: int, path: str, nbytes: int, unlink: str | None = None) -> UntypedStorage:
    """Map the bytes of an anonymous file; its descriptor is closed with them, or now if mapping fails.

    Args:
        fd: descriptor of the file.
        path: the path under which other processes open it.
        nbytes: size, at least one.
        unlink: see :func:`anonymous_file`.
    """
    try:
        storage = map_anonymous(fd, path, nbytes)
    except BaseException:
        release(os.getpid(), fd, unlink)
        raise
    _remember((*storage.__dict__["_memfd"], nbytes, True), storage)
    weakref.finalize(storage, release, os.getpid(), fd, unlink).atexit = unlink is not None
    return storage


def high_fd(fd: int) -> int:
    """``fd``, moved above the standard streams if it took the number of a closed one."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def anonymous_file(name: str, folder: Callable[[], str | None] = lambda: None) -> tuple[int, str, str | None]:
    """An empty file in memory; a temporary file if the system has no memory files that other processes can open.

    Args:
        name: its name in the kernel.
        folder: returns the folder of the temporary file; None for the default of the system.

    Returns:
        Its descriptor, the path under which other processes open it while its owner holds it, and the path that the
        owner must unlink, if any.
    """
    if hasattr(os, "memfd_create"):
        try:
            fd = high_fd(os.memfd_create(name, os.MFD_CLOEXEC))
            path = path_of(fd)
            if os.access(path, os.R_OK | os.W_OK):
                return fd, path, None
            os.close(fd)
        except OSError as err:
            if err.errno not in (errno.EPERM, errno.ENOSYS):  # the answer of a sandbox
                raise
    fd, path = tempfile.mkstemp(prefix=NAMED, dir=folder())
    return high_fd(fd), path, path


def path_of(fd: int) -> str:
    """The path under which other processes open a descriptor of this one."""
    return f"{_PROC}{os.getpid()}/fd/{fd}"


def is_anonymous(path: str) -> bool:
    """Whether a path is that of an :func:`anonymous_file`."""
    return path.startswith(_PROC) or os.path.basename(path).startswith(NAMED)


def release(owner: int, fd: int, unlink: str | None) -> None:
    """Close an :func:`anonymous_file` in the process that made it; its mappings stay."""
    if os.getpid() != owner:  # in a forked child, the number may since have been reused
        return
    with contextlib.suppress(OSError):
        os.close(fd)
    if unlink is not None:
        with contextlib.suppress(OSError):
            os.unlink(unlink)


def map_anonymous(fd: int, path: str, nbytes: int) -> UntypedStorage:
    """Map an in-memory file, so that :func:`region_of` recognises its tensors as shared.

    Args:
        fd: the file; its opener closes it when the storage is gone.
        path: the path under which other processes open it.
        nbytes: size, at least one.
    """
    storage = map_file(path, nbytes)
    info = os.fstat(fd)
    storage.__dict__["_memfd"] = (info.st_dev, info.st_ino)
    return storage


def file_of(storage: UntypedStorage) -> str | None:
    """Name of the file (or ``/proc`` entry) of a storage, ``None`` for ordinary memory."""
    return storage.filename or getattr(storage, "_private_file", None)


def hold_many(storage: UntypedStorage) -> UntypedStorage:
    """Mark the file of a storage as one of many tensors (an archive), so that it is not the file of any of them."""
    storage.__dict__["_many_tensors"] = True
    return storage


def holds_many(storage: UntypedStorage) -> bool:
    """Whether :func:`hold_many` marked a storage."""
    return getattr(storage, "_many_tensors", False)


def is_reachable(handle: SharedHandle, storage: UntypedStorage) -> bool:
    """Whether other processes that open a handle get the bytes of the storage it was made for."""
    return handle.anonymous or is_placed(storage, handle.path)


class Region(NamedTuple):
    """A strided tensor in mapped bytes: all that another process needs to access the same memory.

    Attributes:
        handle: address of the bytes.
        dtype: element type.
        shape: shape of the tensor.
        stride: strides, in elements.
        offset: first element, counted from the start of the bytes.
        writable: shared mapping (writes reach the file) or copy-on-write.
    """

    handle: SharedHandle
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    writable: bool = True

    @property
    def named(self) -> SharedHandle:
        """The handle of the start of this tensor."""
        return self.handle._replace(offset=self.offset * self.dtype.itemsize)

    def open(self) -> Tensor:
        """A plain tensor over the same memory in this process."""
        storage = self.handle.open(self.writable)
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.shape, self.stride)


def handle_of(storage: UntypedStorage) -> SharedHandle:
    """The handle of a mapped storage."""
    handle: SharedHandle | None = getattr(storage, "_handle", None)
    if handle is None:
        path = file_of(storage)
        assert path is not None
        device, inode = getattr(storage, "_memfd", (0, 0))
        handle = SharedHandle(path, storage.nbytes(), device, inode)
        if inode:  # one object for all tensors of an anonymous storage, so that a pickle holds it once
            storage.__dict__["_handle"] = handle
    return handle


def region_of(tensor: Tensor) -> Region | None:
    """The region of a strided CPU tensor in a file or in :func:`anonymous_storage`; else ``None``.

    Works for :class:`MemoryMappedTensor` and for plain views of one. A copy-on-write tensor that was written to has no
    region, because its file has other values.

    Example:
        >>> from tensordict_lite import MemoryMappedTensor
        >>> x = MemoryMappedTensor.zeros(4, 2)
        >>> region = region_of(x[1:])
        >>> region.shape, region.offset, bool((region.open().fill_(1) == x[1:]).all())
        ((3, 2), 2, True)
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    storage = tensor.untyped_storage()
    writable = storage.filename is not None
    if not writable and (file_of(storage) is None or _is_written(tensor)):
        return None
    return Region(
        handle_of(storage), tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), writable
    )


# Bits of an entry of /proc/self/pagemap, and the names for the same in a scan of it (Linux 6.7).
_HERE, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_SCAN, _IS_FILE, _IS_PRESENT, _IS_SWAPPED = 0xC0606610, 1 << 2, 1 << 3, 1 << 4
_FEW = 4  # pages whose entries are checked one by one
_PAGES = 1 << 20  # entries read at a time


def private_file(tensor: Tensor) -> str | None:
    """The file of a strided CPU tensor that is mapped copy-on-write: what is written there does not reach it."""
    storage = tensor.untyped_storage()
    return None if storage.filename is not None else file_of(storage)


def is_changed_copy(tensor: Tensor) -> bool:
    """Whether a tensor is mapped copy-on-write and was written to, so that its file has other values."""
    return private_file(tensor) is not None and _is_written(tensor)


def _is_written(tensor: Tensor) -> bool:
    """Whether a page of a copy-on-write tensor has been copied."""
    span = tensor.numel()
    if not span:
        return False
    if not tensor.is_contiguous():
        span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    first, last = start // mmap.PAGESIZE, (start + span * tensor.element_size() - 1) // mmap.PAGESIZE
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a sandbox without it: unknown
        return False
    try:
        if last - first < _FEW:
            entries = memoryview(os.pread(fd, 8 * (last + 1 - first), 8 * first)).cast("Q")
            return any(entry & (_HERE | _SWAPPED) and not entry & _OF_FILE for entry in entries)
        return _finds_copies(fd, first, last + 1)
    finally:
        os.close(fd)


def _finds_copies(fd: int, first: int, stop: int) -> bool:
    """Whether any of many pages has been copied. The kernel scans if it can, since most pages are absent."""
    found = ctypes.create_string_buffer(24)  # one range of pages
    start, end = first * mmap.PAGESIZE, stop * mmap.PAGESIZE
    wanted = (_IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT)  # inverted, all of, any of, to report
    request = bytearray(struct.pack("<12Q", 96, 0, start, end, 0, ctypes.addressof(found), 1, 1, *wanted))
    with contextlib.suppress(OSError):
        return fcntl.ioctl(fd, _SCAN, request) > 0
    for page in range(first, stop, _PAGES):
        entries = np.frombuffer(os.pread(fd, 8 * min(_PAGES, stop - page), 8 * page), np.uint64)
        present = entries & np.uint64(_HERE | _SWAPPED)
        if bool(((present != 0) & (entries & np.uint64(_OF_FILE) == 0)).any()):
            return True
    return False
