"""Mapped files that another program has truncated since they were opened.

Reading a mapped page beyond the end of its file ends the process with SIGBUS. Sizes are compared before a job begins,
and after a worker has ended by SIGBUS. A file that is truncated while the caller itself reads it ends the program.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.mapping import (
    Region,
    SharedHandle,
    file_of,
    is_anonymous,
    map_file,
    private_file,
    region_of,
)
from tensordict_lite.memmap.disk.placed import inodes_of_mappings, is_placed


def check_mapped_files(tensors: Iterable[Tensor]) -> None:
    """Raise DatasetError, with its name, when a file has become shorter than what `tensors` map of it.

    Tensors in ordinary memory and on devices do not matter.
    """
    files: dict[str, tuple[int, int]] = {}
    mappings = cache(_shared_mappings)
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
            continue
        storage = tensor.untyped_storage()
        path = file_of(storage)
        if path is not None and not is_anonymous(path):
            found = storage.nbytes(), storage.data_ptr()
            files[path] = max(found, files.get(path, found))
        elif path is None and not storage.is_shared():
            mapped_elsewhere(tensor, mappings)
    for path, (nbytes, address) in files.items():
        try:
            info = os.stat(path)
        except OSError:  # removed, or its folder: the mapping keeps the bytes
            continue
        # A shorter file that has taken the name of the mapped one does no harm.
        if info.st_size < nbytes and inodes_of_mappings().get(address, info.st_ino) == info.st_ino:
            raise _truncated(path, nbytes, info.st_size)


def copies_on_write(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The tensors over new private mappings of their files: writing into one changes neither its file nor `tensors`.

    Nothing is copied: until it is written to, a page of a private mapping is that of the page cache. A file is mapped
    once for all its tensors.

    Returns:
        None in the place of a tensor that lies in ordinary memory, that was written to copy-on-write, whose file has
        been replaced or removed, for which the system grants no private mapping, or that torch must know (it requires
        gradients, or is a lazy conjugate or negative).
    """
    mapped: dict[int, torch.UntypedStorage | None] = {}
    found: list[Tensor | None] = []
    for tensor in tensors:
        region = None if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() else region_of(tensor)
        if region is None or not tensor.numel():
            found.append(None)
            continue
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in mapped:
            mapped[address] = _mapped_again(region.handle, storage)
        own = mapped[address]
        if own is not None:
            found.append(torch.empty(0, dtype=tensor.dtype).set_(own, region.offset, region.shape, region.stride))
        else:
            found.append(None)
    return found


READ_AHEAD = 1 << 20
"""Bytes of a file that the kernel is asked for at a time: it cuts larger requests short."""


def will_need(tensor: Tensor, spans: Iterable[tuple[int, int]]) -> None:
    """Ask the kernel for rows of a mapped tensor, which are read soon.

    A page that is missing when it is read makes the kernel read up to some megabytes around it, and wait for them.

    Args:
        tensor: does nothing where it does not lie in a file.
        spans: the first row and the one after the last, of runs of up to `READ_AHEAD` bytes.
    """
    region = region_of(tensor)
    if region is None or region.handle.anonymous or not hasattr(os, "posix_fadvise"):
        return
    row_bytes = region.stride[0] * tensor.element_size()
    try:
        fd = os.open(region.handle.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # removed: the mapping keeps the bytes
        return
    try:
        for first, last in spans:
            at = region.offset * tensor.element_size() + first * row_bytes
            os.posix_fadvise(fd, at, (last - first) * row_bytes, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(fd)


LARGE_BYTES = 4 << 20
"""Smaller tensors are copied in the time that it takes to ask the system whether they are mapped."""

_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .(.).s ([0-9a-f]+) \S+ ([1-9][0-9]*) +(/.*)$", re.MULTILINE)


def _shared_mappings() -> list[tuple[str, ...]]:
    """The mappings of files that this process shares, as `_MAPPING` takes them apart; none where it is not Linux."""
    try:
        return _MAPPING.findall(Path("/proc/self/maps").read_text(errors="surrogateescape"))
    except OSError:
        return []


def mapped_elsewhere(tensor: Tensor, mappings: Callable[[], list[tuple[str, ...]]] = _shared_mappings) -> Region | None:
    """Where a large strided CPU tensor lies in a file that another library has mapped, as `np.memmap` does.

    None where it lies in ordinary memory, where the mapping is copy-on-write, and where the file was replaced.

    Args:
        tensor: the tensor.
        mappings: the mappings of this process. They are asked for only if the tensor is large.

    Raises:
        DatasetError: the file has been truncated.
    """
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes < LARGE_BYTES or tensor.untyped_storage().nbytes() < LARGE_BYTES:
        return None
    first = tensor.data_ptr()
    last = first + (sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride())) + 1) * tensor.element_size()
    for start, end, writes, offset, inode, path in mappings():
        if not int(start, 16) <= first < last <= int(end, 16):
            continue
        begins = int(offset, 16) - int(start, 16)
        try:
            info = os.stat(path)
        except OSError:  # removed
            return None
        if info.st_ino != int(inode) or not stat.S_ISREG(info.st_mode) or (begins + first) % tensor.element_size():
            return None
        if begins + last > info.st_size:
            raise _truncated(path, begins + last, info.st_size)
        handle = SharedHandle(path, min(begins + int(end, 16), info.st_size), info.st_dev, info.st_ino)
        at = (begins + first) // tensor.element_size()
        return Region(handle, tensor.dtype, tuple(tensor.shape), tensor.stride(), at, writes == "w")
    return None


def read_only_file(tensors: Iterable[Tensor]) -> str | None:
    """A file that one of these tensors lies in, and that nothing written into the tensor reaches."""
    mappings = cache(_shared_mappings)
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
            continue
        file = private_file(tensor)
        if file is None and not tensor.untyped_storage().is_shared():
            region = mapped_elsewhere(tensor, mappings)
            file = None if region is None or region.writable else region.handle.path
        if file is not None:
            return file
    return None


def _truncated(path: str, mapped: int, found: int) -> DatasetError:
    return DatasetError(
        path,
        f"{mapped:,} bytes are mapped and the file has {found:,}: it was truncated after it was opened. Load the "
        "dataset again",
    )


def is_private(tensor: Tensor) -> bool:
    """Whether a tensor lies in a private mapping of a file."""
    storage = tensor.untyped_storage()
    return storage.filename is None and file_of(storage) is not None


def _mapped_again(handle: SharedHandle, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
    """A private mapping of what a storage is mapped from; None where its path leads elsewhere, or there is no room."""
    try:
        if handle.anonymous:
            placed = handle.inode in (0, os.stat(handle.path).st_ino)
        else:
            placed = is_placed(storage, handle.path)
        return map_file(handle.path, storage.nbytes(), writable=False) if placed else None
    except (OSError, RuntimeError):  # of a file that has been cut; or of a limit, since private pages count as data
        return None
