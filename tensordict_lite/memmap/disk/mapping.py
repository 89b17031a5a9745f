"""Bytes on disk and in shared memory as torch storages: reserving, mapping, and finding them again.

Every mapping made here knows where it came from, and so does every view of it, because torch keeps the
file name in the storage. :func:`region_of` reads it back; that is how a tensor travels to another process
as a name and an offset. A process maps a file once: mappings are remembered weakly by device and inode.

Memory without a file lives in a ``memfd``: nothing appears in any folder, and it vanishes with its last
user. Other processes open it as ``/proc/<owner>/fd/<number>`` while the owner holds it.
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

__all__ = [
    "Region",
    "SharedHandle",
    "anonymous_file",
    "anonymous_storage",
    "check_dtype",
    "check_room",
    "file_of",
    "handle_of",
    "high_fd",
    "map_file",
    "hold_many",
    "holds_many",
    "is_anonymous",
    "is_changed_copy",
    "is_reachable",
    "known_mapping",
    "no_room",
    "own_storage",
    "path_of",
    "preallocate",
    "region_of",
    "release",
    "remember",
    "reserve",
]

_PROC = "/proc/"
NAMED = "tdmap-anonymous-"
"""How the names of files begin that take the place of memory without one, where the system has no such memory."""
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which the mmap module does not name


_QUANTIZED = frozenset((torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4))


def check_dtype(dtype: torch.dtype) -> None:
    """TypeError for numbers that are nothing without the scale beside them."""
    if dtype in _QUANTIZED:
        raise TypeError(f"a {dtype} has a scale, which no file would hold: map tensor.int_repr(), and keep the scale")


def no_room(path: str, needed: int) -> OSError:
    """The ``OSError`` for a full file system: which file, how much it needs, how much there is."""
    return OSError(
        errno.ENOSPC,
        f"no space left on device: {needed:,} bytes are needed and {available_bytes(path):,} are available; "
        "free some space or save elsewhere",
        path,
    )


def available_bytes(path: str) -> int:
    """Free bytes on the file system that holds (or would hold) ``path``; of memory for ``/proc`` paths."""
    if path.startswith(_PROC):
        return available_memory()
    probe = os.path.abspath(path)
    while not os.path.exists(probe):
        probe = os.path.dirname(probe)
    info = os.statvfs(probe)
    return info.f_bavail * info.f_frsize


def available_memory() -> int:
    """Bytes of memory that this process may still use, the limit of its control group included."""
    free = 1 << 62
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), free)
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, max(0, limit - used))
    return free


def check_room(path: str, needed: int) -> None:
    """Raises ``OSError`` (ENOSPC) when ``needed`` bytes cannot fit where ``path`` lives."""
    if needed > (1 << 20) and needed > available_bytes(path):
        raise no_room(path, needed)


def reserve(fd: int, nbytes: int, path: str, start: int = 0) -> None:
    """Gives the file its full size with blocks behind it, zero-filled beyond what it held.

    A sparse file would fail in the middle of a write with a bus error; this fails here, with ``OSError``.
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
        _fill_zeros(fd, start, nbytes, path)  # a file system without reservations: write the zeros


def preallocate(fd: int, nbytes: int) -> None:
    """Tells the file system how many bytes will be written: it finds the blocks at once, and the writes are quicker.

    Only a hint. The file keeps its size, and where there is no room the write will say so.
    """
    allocate = _fallocate()
    if allocate is not None and nbytes > 0:
        allocate(fd, _KEEP_SIZE, 0, nbytes)


@functools.cache
def _fallocate() -> Any:
    """The function of the C library: that of ``os`` writes zeros where the file system has nothing better."""
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


_STORAGES_END = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)


def _lasting(storage: Any) -> UntypedStorage:
    """The object that tensors over these bytes give as theirs: what is noted on it lasts as long as they do.

    Up to torch 2.5 the one that ``from_file`` returns is another, and ends with its last name.
    """
    if not _STORAGES_END:
        return storage
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).untyped_storage()


def map_file(path: str, nbytes: int, *, writable: bool = True) -> UntypedStorage:
    """Maps the first ``nbytes`` of an existing file, shared (``writable``) or copy-on-write.

    The caller has checked that the file is that large: torch would grow or create it.
    """
    if writable:
        return _lasting(UntypedStorage.from_file(path, True, nbytes))
    try:
        storage = _lasting(UntypedStorage.from_file(path, False, nbytes))
    except RuntimeError as err:
        if f"({errno.ENOMEM})" not in str(err):
            raise
        storage = _map_unreserved(path, nbytes)
    storage.__dict__["_private_file"] = path  # torch forgets the name of a private mapping
    return storage


def _map_unreserved(path: str, nbytes: int) -> UntypedStorage:
    """Copy-on-write over a file larger than memory.

    By default the kernel refuses such a mapping, since every page of it might be written and then need memory. Only
    where it has refused, because this kind holds a descriptor as long as it lives.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=protection)
    finally:
        os.close(fd)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


class SharedHandle(NamedTuple):
    """Where shared bytes can be found: a path, the file's identity, and its size.

    The identity (device and inode) tells a file that was replaced, or an owner process that has gone and whose
    number was given to another, from the real thing. ``inode == 0``: any file of that name will do. A tensor that
    shares its memory with others begins at an offset, in bytes.
    """

    path: str
    nbytes: int
    device: int = 0
    inode: int = 0
    offset: int = 0

    @property
    def anonymous(self) -> bool:
        """Whether this is memory of a process rather than a file in a folder."""
        return is_anonymous(self.path)

    def open(self, writable: bool = True) -> UntypedStorage:
        """The mapped bytes: the mapping that this process has already, or a new one.

        Raises:
            DatasetError: the file is gone, has become too small, or the process that owned the memory has ended.
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


# Mappings of this process that are still in use, so that a tensor received twice is mapped once.
_mappings: dict[tuple[int, int, int, bool], weakref.ref[UntypedStorage]] = {}


def _known(device: int, inode: int, nbytes: int, writable: bool) -> UntypedStorage | None:
    known = _mappings.get((device, inode, nbytes, writable))
    return None if known is None else known()


def known_mapping(handle: SharedHandle) -> UntypedStorage | None:
    """The memory that a handle with an identity names, if it is mapped in this process."""
    return _known(handle.device, handle.inode, handle.nbytes, True)


def remember(handle: SharedHandle, storage: UntypedStorage, writable: bool) -> None:
    """Lets :meth:`SharedHandle.open` in this process, and in children forked later, find this mapping again."""
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
    """Shared zero-filled memory without a file, reserved in full.

    Raises:
        OSError: there is not that much shared memory, or too many files are open.
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
    """The bytes of an anonymous file, mapped; its descriptor is closed with them, or now, if that cannot be done.

    Args:
        fd: of the file.
        path: by which other processes open it.
        nbytes: at least one.
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
    """``fd``, moved above the standard streams when one of those was closed and its number reused."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def anonymous_file(name: str, folder: Callable[[], str | None] = lambda: None) -> tuple[int, str, str | None]:
    """An empty file in memory; where the system has none that other processes can open by a path, a temporary file.

    Args:
        name: what the kernel calls it.
        folder: asked for the place of the temporary file; None is the one of the system.

    Returns:
        Its descriptor, the path by which other processes open it while its owner holds it, and the path that the owner
        must unlink, if there is one.
    """
    if hasattr(os, "memfd_create"):
        try:
            fd = high_fd(os.memfd_create(name, os.MFD_CLOEXEC))
            path = path_of(fd)
            if os.access(path, os.R_OK | os.W_OK):
                return fd, path, None
            os.close(fd)
        except OSError as err:
            if err.errno not in (errno.EPERM, errno.ENOSYS):  # that a sandbox answers
                raise
    fd, path = tempfile.mkstemp(prefix=NAMED, dir=folder())
    return high_fd(fd), path, path


def path_of(fd: int) -> str:
    """By which other processes open a descriptor of this one."""
    return f"{_PROC}{os.getpid()}/fd/{fd}"


def is_anonymous(path: str) -> bool:
    """Whether a path is that of an :func:`anonymous_file`."""
    return path.startswith(_PROC) or os.path.basename(path).startswith(NAMED)


def release(owner: int, fd: int, unlink: str | None) -> None:
    """Closes an :func:`anonymous_file` in the process that made it; mappings of it stay."""
    if os.getpid() != owner:  # a forked child has a copy of the number, and may long since use it for something else
        return
    with contextlib.suppress(OSError):
        os.close(fd)
    if unlink is not None:
        with contextlib.suppress(OSError):
            os.unlink(unlink)


def map_anonymous(fd: int, path: str, nbytes: int) -> UntypedStorage:
    """Maps a file that lives in memory, so that :func:`region_of` knows its tensors for shared ones.

    Args:
        fd: the file; its opener closes it when the storage is gone.
        path: by which other processes open it.
        nbytes: at least one.
    """
    storage = map_file(path, nbytes)
    info = os.fstat(fd)
    storage.__dict__["_memfd"] = (info.st_dev, info.st_ino)
    return storage


def file_of(storage: UntypedStorage) -> str | None:
    """Name of the file (or ``/proc`` entry) behind a storage, ``None`` for ordinary memory."""
    return storage.filename or getattr(storage, "_private_file", None)


def hold_many(storage: UntypedStorage) -> UntypedStorage:
    """Notes that the file behind a storage is that of many tensors (an archive), so that it is none of them."""
    storage.__dict__["_many_tensors"] = True
    return storage


def holds_many(storage: UntypedStorage) -> bool:
    """Whether :func:`hold_many` was told of a storage."""
    return getattr(storage, "_many_tensors", False)


def is_reachable(handle: SharedHandle, storage: UntypedStorage) -> bool:
    """Whether others who open a handle get the bytes of the storage that it was made of."""
    return handle.anonymous or is_placed(storage, handle.path)


class Region(NamedTuple):
    """A strided tensor inside mapped bytes: everything another process needs to see the same memory.

    Attributes:
        handle: the bytes.
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
        """The handle, of where this tensor begins."""
        return self.handle._replace(offset=self.offset * self.dtype.itemsize)

    def open(self) -> Tensor:
        """The same memory as a plain tensor of this process."""
        storage = self.handle.open(self.writable)
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.shape, self.stride)


def handle_of(storage: UntypedStorage) -> SharedHandle:
    """The name of the bytes of a storage that is mapped."""
    handle: SharedHandle | None = getattr(storage, "_handle", None)
    if handle is None:
        path = file_of(storage)
        assert path is not None
        device, inode = getattr(storage, "_memfd", (0, 0))
        handle = SharedHandle(path, storage.nbytes(), device, inode)
        if inode:  # one object for all tensors of an anonymous storage: a pickle holds it once
            storage.__dict__["_handle"] = handle
    return handle


def region_of(tensor: Tensor) -> Region | None:
    """Where a strided CPU tensor lives, when it lives in a file or in :func:`anonymous_storage`; else ``None``.

    Works for :class:`MemoryMappedTensor` and for any plain view of one. A copy-on-write tensor that was written to
    differs from its file, and has no region: another process would see the old values there.

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


# Bits of an entry of /proc/self/pagemap, and the names that the kernel has for the same in a scan of it (Linux 6.7).
_HERE, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_SCAN, _IS_FILE, _IS_PRESENT, _IS_SWAPPED = 0xC0606610, 1 << 2, 1 << 3, 1 << 4
_FEW = 4  # pages whose entries are looked at one by one
_PAGES = 1 << 20  # whose entries are read at a time


def is_changed_copy(tensor: Tensor) -> bool:
    """Whether a tensor is mapped copy-on-write and was written to, so that its file has other values."""
    storage = tensor.untyped_storage()
    return storage.filename is None and hasattr(storage, "_private_file") and _is_written(tensor)


def _is_written(tensor: Tensor) -> bool:
    """Whether a page of a copy-on-write tensor is a copy, and no page of the file any more."""
    span = tensor.numel()
    if not span:
        return False
    if not tensor.is_contiguous():
        span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    first, last = start // mmap.PAGESIZE, (start + span * tensor.element_size() - 1) // mmap.PAGESIZE
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a sandbox without it: nothing is known
        return False
    try:
        if last - first < _FEW:
            entries = memoryview(os.pread(fd, 8 * (last + 1 - first), 8 * first)).cast("Q")
            return any(entry & (_HERE | _SWAPPED) and not entry & _OF_FILE for entry in entries)
        return _finds_copies(fd, first, last + 1)
    finally:
        os.close(fd)


def _finds_copies(fd: int, first: int, stop: int) -> bool:
    """Whether there is a copy among many pages. The kernel looks itself, where it can: most are not there at all."""
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
