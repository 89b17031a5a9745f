"""Rows by their place: reading and writing tensors through the names of their files.

    SharedTensors   tensors that workers map: a source
    RowFiles        tensors that workers write with `pwrite`: an output

Writing through a descriptor, instead of a mapping, spares a page fault for every page of an output that is written
once from its beginning to its end, and it counts as no process's memory. Shared memory has descriptors too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from tdmap.memory.mapped import copies_on_write
from tdmap.memory.residency import Growth, Residency
from tdmap.memory.shm import Arena, shared_region
from tensordict_lite.errors import DatasetError
from tensordict_lite.gathering import bytes_of, flat_bytes
from tensordict_lite.memmap.disk.files import write_all
from tensordict_lite.memmap.disk.mapping import SharedHandle, region_of


class SharedTensors:
    """Tensors that travel to workers by the name of their memory. What lies in ordinary memory is moved, once.

    Args:
        tensors: plain CPU tensors.
        share: move them to memory that other processes can open; False when no process is to have them.
    """

    def __init__(self, tensors: Sequence[Tensor], share: bool) -> None:
        arena = Arena()
        self.tensors = [_shared(tensor, arena) if share else tensor for tensor in tensors]
        self._residency: Residency | None = None
        self._private: list[Tensor] | None = None
        self._rows: dict[int, NDArray[np.void]] = {}

    def __getstate__(self) -> list[Any]:
        return [shared_region(tensor) if tensor.numel() else tensor for tensor in self.tensors]

    def __setstate__(self, regions: list[Any]) -> None:
        self.tensors = [region if isinstance(region, Tensor) else region.open() for region in regions]
        self._residency = Residency()
        self._residency.watch(self.tensors)
        self._private = None
        self._rows = {}

    @property
    def private(self) -> list[Tensor]:
        """The tensors as a function of the caller gets them: what it writes into their files stays in this process."""
        if self._private is None:
            own = copies_on_write(self.tensors)
            self._private = [tensor if copy is None else copy for tensor, copy in zip(self.tensors, own)]
            self._growth = Growth()
        return self._private

    def trim(self) -> None:
        """Release the pages that have been read or written, in a worker process."""
        if self._residency is not None:
            self._residency.trim()
        if self._private is not None and self._growth.is_large():
            self._private = None

    def rows(self, number: int, start: int, stop: int) -> NDArray[np.void]:
        """Consecutive rows of tensor `number`, each one element: a view where the tensor is contiguous.

        NumPy takes rows of any dtype and width by their bytes. A call of torch costs more than its work on few rows in
        threads: each lets go of the interpreter lock, and waits for it again.
        """
        rows = self._rows.get(number)
        if rows is not None:
            return rows[start:stop]
        tensor = self.tensors[number]
        if not tensor.is_contiguous():
            return _as_elements(tensor[start:stop].contiguous())
        self._rows[number] = rows = _as_elements(tensor)
        return rows[start:stop]

    def read(self, number: int, start: int, stop: int, out: Tensor) -> None:
        """Copy the bytes of consecutive rows of tensor `number`, in their order.

        Rows that are looked up in a mapping at random have the kernel read some megabytes around each of them, which
        may have gone when the next one is looked up. A worker does not read through the mapping at all; the caller
        does, from beginning to end, because its mapping may be all that is left of a file that was removed.

        Args:
            number: of the tensor.
            start, stop: the rows.
            out: uint8, of as many bytes.

        Raises:
            DatasetError: the file was truncated.
        """
        rows = self.tensors[number][start:stop]
        with self._file_of(rows) as file:
            if file is None:
                out.copy_(flat_bytes(rows.contiguous()))
            else:
                _read(*file, bytes_of(out))

    def gather(self, number: int, rows: Tensor, out: Tensor) -> None:
        """Copy the bytes of some rows of tensor `number`, one by one.

        Args:
            number: of the tensor.
            rows: int64, which ones.
            out: uint8, of as many bytes; row *i* of it is row `rows[i]`.

        Raises:
            DatasetError: the file was truncated.
        """
        tensor = self.tensors[number]
        with self._file_of(tensor) as file:
            if file is None:
                out.copy_(flat_bytes(tensor[rows].contiguous()))
                return
            fd, handle, first = file
            view, width = bytes_of(out), len(out) // max(len(rows), 1)
            places = rows.argsort()  # the disk is passed over once
            for place, row in zip(places.tolist(), rows[places].tolist()):
                _read(fd, handle, first + row * width, view[place * width : (place + 1) * width])

    @contextlib.contextmanager
    def _file_of(self, rows: Tensor) -> Iterator[tuple[int, SharedHandle, int] | None]:
        """In a worker: a descriptor, what it is of, and the byte that rows begin at; None where they are in memory."""
        in_worker = self._residency is not None
        region = region_of(rows) if in_worker and rows.is_contiguous() and rows.numel() else None
        if region is None:
            yield None
            return
        fd = os.open(region.handle.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _require(fd, region.handle)
            yield fd, region.handle, region.offset * rows.element_size()
        finally:
            os.close(fd)


class Blocks(threading.local):
    """Memory for the rows that a worker holds, reused for the next rows.

    Blocks of some megabytes that are freed and allocated anew leave holes in the heap, which grew to several times as
    many bytes; or they go back to the system, which has to clear them again for the next one, and takes longer than
    a pass over them. Each thread has its own, and they do not travel.

    Example:
        >>> blocks = Blocks()
        >>> np.shares_memory(blocks.array("sums", 3, np.float64), blocks.array("sums", 2, np.int32))
        True
    """

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}

    def __reduce__(self) -> Any:
        return Blocks, ()

    def room(self, name: str, nbytes: int) -> Tensor:
        """uint8 `[nbytes]`, of any content: the same memory each time for the same name."""
        room = self._rooms.get(name)
        if room is None or len(room) < nbytes:
            room = self._rooms[name] = torch.empty(nbytes, dtype=torch.uint8)
        return room[:nbytes]

    def array(self, name: str, rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """The same as an array of one number a row."""
        kind = np.dtype(dtype)
        return self.room(name, rows * kind.itemsize).numpy().view(kind)


def _as_elements(tensor: Tensor) -> NDArray[np.void]:
    return flat_bytes(tensor).numpy().view(f"V{tensor[:1].nbytes}")


def _shared(tensor: Tensor, arena: Arena) -> Tensor:
    if not tensor.numel() or shared_region(tensor) is not None:
        return tensor
    return arena.copy_of(tensor)


class RowFile(NamedTuple):
    """Where the rows of one tensor lie, one after the other."""

    handle: SharedHandle
    offset: int
    """Of the first row's first byte."""
    row_bytes: int


MOST_FILES = 64
"""Files of an output that a worker keeps open."""


class OpenFiles:
    """The file descriptor of each tensor; -1 for a tensor without a file.

    The first `MOST_FILES` files stay open until the last reference to this object is gone. Others are open while they
    are used: a dataset may have more columns than a process may have open files.
    """

    def __init__(self, files: Sequence[RowFile | None]) -> None:
        self._files, self._kept = files, dict[str, int]()
        self._fds: list[int | None] = []
        for file in files:
            keeps = file is not None and (len(self._kept) < MOST_FILES or file.handle.path in self._kept)
            self._fds.append(-1 if file is None else _open(file.handle, self._kept) if keeps else None)

    def __iter__(self) -> Iterator[int]:
        for number, kept in enumerate(self._fds):
            if kept is not None:
                yield kept
            else:
                with self.at(number) as fd:
                    yield fd

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[int]:
        """The descriptor of tensor `number`, for the block."""
        kept, file, opened = self._fds[number], self._files[number], dict[str, int]()
        if kept is not None:
            yield kept
            return
        assert file is not None
        try:
            yield _open(file.handle, opened)
        finally:
            _close(opened)

    def __del__(self) -> None:
        _close(self._kept)


class RowFiles:
    """Where the rows of an output lie; travels as names.

    Args:
        files: one a tensor; None for a tensor that is not wanted, or that has no bytes.
    """

    def __init__(self, files: Sequence[RowFile | None]) -> None:
        self.files = list(files)

    def __reduce__(self) -> Any:
        return RowFiles, (self.files,)

    @staticmethod
    def of(tensors: Sequence[Tensor | None]) -> RowFiles | None:
        """Those of contiguous tensors in files or shared memory; None when one of them is something else.

        Something else is a lazy conjugate, too: bytes that are written there come out as other values.
        """
        files: list[RowFile | None] = []
        for tensor in tensors:
            if tensor is None or not tensor.numel():
                files.append(None)
                continue
            region = shared_region(tensor)
            if region is None or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
                return None
            size = tensor.element_size()
            files.append(RowFile(region.handle, region.offset * size, tensor.numel() // tensor.shape[0] * size))
        return RowFiles(files)

    def are_apart(self, rows: int) -> bool:
        """Whether no two of them share memory, with so many rows."""
        spans = []
        for file in self.files:
            if file is not None:
                name = (file.handle.device, file.handle.inode, file.handle.path)
                spans.append((name, file.offset, file.offset + rows * file.row_bytes))
        spans.sort()
        return all(one[0] != other[0] or one[2] <= other[1] for one, other in zip(spans, spans[1:]))

    @property
    def lasts(self) -> bool:
        """Whether all of them lie in files, which another process finds when this one has ended."""
        return not any(file is not None and file.handle.anonymous for file in self.files)

    @property
    def descriptors(self) -> OpenFiles:
        """Those of this process. To open and close them for each chunk of narrow rows takes as long as to write it."""
        found: OpenFiles | None = self.__dict__.get("_opened")
        # Threads share the first list that is kept: one that took its place would be closed under its user.
        return found if found is not None else self.__dict__.setdefault("_opened", OpenFiles(self.files))

    def read(self, number: int, fd: int, row: int, out: Tensor) -> None:
        """Copy the bytes of consecutive rows of tensor `number`, from `row` on, into uint8 of as many bytes."""
        file = self.files[number]
        if file is not None:
            _read(fd, file.handle, file.offset + row * file.row_bytes, bytes_of(out))

    def write(self, number: int, fd: int, row: int, block: Tensor | NDArray[np.void]) -> None:
        """Write contiguous rows of tensor `number` from `row` on."""
        file = self.files[number]
        if file is not None:
            view = bytes_of(block) if isinstance(block, Tensor) else block.view(np.uint8).data
            write_all(fd, view, file.offset + row * file.row_bytes, file.handle.path)


def _read(fd: int, handle: SharedHandle, at: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], at + done)
        if not got:
            raise DatasetError(handle.path, f"ends before byte {at + len(view):,}: it was truncated")
        done += got


def _open(handle: SharedHandle, opened: dict[str, int]) -> int:
    fd = opened.get(handle.path)
    if fd is None:
        fd = opened[handle.path] = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC)
        _require(fd, handle)
    return fd


def _close(opened: dict[str, int]) -> None:
    for fd in opened.values():
        os.close(fd)


def _require(fd: int, handle: SharedHandle) -> None:
    info = os.fstat(fd)
    if handle.inode and (info.st_dev, info.st_ino) != (handle.device, handle.inode):
        raise DatasetError(handle.path, "its memory has been released by the process that owned it")
