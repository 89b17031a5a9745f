"""Bytes that do not fit into memory wait in files: each worker appends to one of its own.

    worker 1 ──append──► spill/4711-0.bin   ┐
    worker 2 ──append──► spill/4712-0.bin   ├── Extent(file, offset, nbytes) travels, the bytes do not
                                            ┘
An extent is the only way to what it stands for. So a worker that dies leaves bytes that no extent names, its chunk
runs again and gets another extent, and what is read is what was committed, once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.errors import UntrustedFile
from tdmap.memory.files import mapped_file
from tdmap.memory.hidden import open_file
from tdmap.memory.scratch import temporary_path
from tdmap.processes import Owner
from tensordict_lite.gathering import bytes_of
from tensordict_lite.memmap.disk.files import write_all

PREFIX = "spill-"
"""How the names of files begin that lie in the hidden folder of an output."""

ALIGNMENT = 64
"""Extents begin at multiples of it, so that they can be mapped as tensors of any dtype."""


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Extent(NamedTuple):
    """Where bytes lie."""

    file: str
    """Name of a file in the folder."""
    offset: int
    """Of its first byte."""
    nbytes: int


class Spill(contextlib.AbstractContextManager["Spill"]):
    """A folder for such files; travels to workers, who open files of their own in it.

    Args:
        folder: made when it does not exist, private to the caller. None: a new one in the temporary folder.
        prefix: of the names of files, in a folder that holds others as well: those are left alone.
        later: a new folder is made by the first append, because most jobs make none: to make and to delete one
            may take milliseconds, on a disk that others write to.
        room: gives the bytes of `mapped`, in a call that can be resumed: what is here is not removed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        prefix: str = "",
        *,
        later: bool = False,
        room: Callable[[str, int], Tensor] | None = None,
    ) -> None:
        self.later = later and folder is None
        self._room = room
        if folder is None:
            folder = temporary_path("tdmap-spill")
        self.folder = Path(os.path.abspath(folder))
        self.prefix = prefix
        self._owner = Owner()
        if not self.later:
            self.make()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_room": None}

    @property
    def lasts(self) -> bool:
        """Whether another session of the call finds what is here. Not known in a worker."""
        return self._room is not None

    def make(self) -> None:
        """Make the folder, unless it is there."""
        self.folder.mkdir(0o700, parents=not self.later, exist_ok=True)

    def append(self, tensors: Sequence[Tensor]) -> list[Extent]:
        """Append the bytes of contiguous CPU tensors to this worker's file; one extent each.

        Raises:
            OSError: the disk is full; names the folder and the bytes that were wanted.
        """
        name = f"{self.prefix}{os.getpid()}-{threading.get_native_id()}.bin"
        with self._writing(name, tensors) as (fd, size):
            end = -(-size // ALIGNMENT) * ALIGNMENT
            extents = []
            for tensor in tensors:
                view = bytes_of(tensor)
                extents.append(Extent(name, end, len(view)))
                write_all(fd, view, end, str(self.folder))
                end += -(-len(view) // ALIGNMENT) * ALIGNMENT
        return extents

    def put(self, name: str, tensor: Tensor, at: int) -> None:
        """Write the bytes of a contiguous CPU tensor to byte `at` of a file that all workers share, and that may become
        one of the result. Its name begins with the prefix. Errors as `append`."""
        with self._writing(name, [tensor], 0o666) as (fd, _):
            write_all(fd, bytes_of(tensor), at, str(self.folder))

    @contextlib.contextmanager
    def _writing(self, name: str, tensors: Sequence[Tensor], mode: int = 0o600) -> Iterator[tuple[int, int]]:
        """The descriptor of a file that is made when it is not there, and its size."""
        # Opened each time: a warm worker that kept it open would keep the room of a file that was deleted long ago.
        # Not with all the care of `open_file`: the folder is private, or the name cannot be guessed.
        path = f"{self.folder}/{name}"
        try:
            fd = os.open(path, _APPEND, mode)
        except FileNotFoundError:
            if not self.later:
                raise
            self.make()
            fd = os.open(path, _APPEND, mode)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
                raise UntrustedFile(self.folder / name, "is not the file of intermediate results that it should be")
            yield fd, info.st_size
        except UntrustedFile:
            raise
        except OSError as error:
            wanted = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            free = shutil.disk_usage(self.folder).free
            what = os.strerror(error.errno or 0)
            raise OSError(
                error.errno,
                f"{what} while {wanted} bytes of intermediate results were written, with {free} bytes "
                "free: make room, or choose another place for them",
                str(self.folder),
            ) from error
        finally:
            os.close(fd)

    def mapped(self, name: str, nbytes: int) -> Tensor:
        """The bytes of a file of that name, which is made for them; uint8 `[nbytes]`. See `mapped_file`."""
        if self._room is not None:
            return self._room(name, nbytes)
        return mapped_file(self.folder / f"{self.prefix}{name}", nbytes)

    def read(self, extent: Extent, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """The tensor that an extent holds, in new memory."""
        out = torch.empty(tuple(shape), dtype=dtype)
        if out.numel() * out.element_size() != extent.nbytes:
            raise ValueError(f"{extent} does not hold {dtype} of shape {tuple(shape)}.")
        self.read_many([(extent, out)])
        return out

    def read_many(self, pieces: Sequence[tuple[Extent, Tensor]]) -> None:
        """Read many extents, each into a contiguous tensor of as many bytes; every file is opened once.

        Raises:
            UntrustedFile: an extent names another file than one of intermediate results.
        """
        opened: dict[str, int] = {}
        try:
            for file in {extent.file for extent, _ in pieces}:
                if self.prefix and not is_spill_file(file):
                    raise UntrustedFile(self.folder / "journal", f"names {file!r:.80}, which is not a spill file")
                opened[file] = open_file(self.folder / file)
            if len(pieces) > 1 and hasattr(os, "posix_fadvise"):
                # Extents lie apart: what the kernel would read ahead of each may be several times as much.
                for fd in opened.values():
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                for extent, _ in pieces:
                    os.posix_fadvise(opened[extent.file], extent.offset, extent.nbytes, os.POSIX_FADV_WILLNEED)
            for extent, out in pieces:
                self._read(opened[extent.file], extent, bytes_of(out))
        finally:
            for fd in opened.values():
                os.close(fd)

    def _read(self, fd: int, extent: Extent, view: memoryview) -> None:
        at = 0
        while at < extent.nbytes:
            got = os.preadv(fd, [view[at : extent.nbytes]], extent.offset + at)
            if got == 0:
                raise OSError(f"{self.folder / extent.file} ends before byte {extent.offset + extent.nbytes}.")
            at += got

    def remove(self) -> None:
        """Delete everything, unless it lasts; nothing in a fork of the process that made it, nor in a worker."""
        if self.lasts or not self._owner.is_here:
            return
        if not self.prefix:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.glob(f"{self.prefix}*"):
            path.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        self.remove()


def spill_beside(folder: Path) -> Spill:
    """Files in a hidden folder, under names that no other call has. A folder of their own takes longer to remove."""
    return Spill(folder, f"{PREFIX}{secrets.token_hex(8)}-")


def is_spill_file(name: str) -> bool:
    """Whether a name in a log is that of an intermediate file, and leads nowhere else."""
    return os.path.basename(name) == name and name.startswith(PREFIX)
