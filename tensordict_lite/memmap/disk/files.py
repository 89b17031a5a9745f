"""Writing one file completely or not at all.

Bytes go to a temporary sibling, which is renamed over the target when it is complete. Data is written with ``pwrite``
from the memory of the tensor: without page faults or a second copy, and without the GIL, so several threads write at
once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.mapping import check_room, no_room, reserve

_SMALL = 1 << 20
_CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool))
BLOCK = 16 << 20  # non-contiguous host tensors are copied in blocks of this many bytes


@contextlib.contextmanager
def new_file(path: str, *, existsok: bool = True) -> Iterator[int]:
    """A descriptor of a temporary sibling that replaces ``path`` if the block succeeds, and is removed otherwise.

    The file gets the permissions of the replaced one.

    Raises:
        RuntimeError: the file exists and ``existsok`` is false, or it is a symbolic link.
    """
    if not existsok and is_there(path, follow=False):
        raise RuntimeError(f"the file {path} already exists: pass existsok=True to replace it")
    refuse_link(path)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(6)}.tmp")
    replaced = stat_of(path)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if replaced is None else 0o600)
    try:
        try:
            if replaced is not None:
                os.fchmod(fd, stat.S_IMODE(replaced.st_mode))
            yield fd
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def replace_file(path: str, content: Any) -> None:
    """Write a file in place of one that may exist."""
    with new_file(path) as fd:
        write_all(fd, content, 0, path)


@contextlib.contextmanager
def created(path: str) -> Iterator[int]:
    """A descriptor of a new file in a folder that no other process uses."""
    fd = os.open(path, _CREATE, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def write_new(path: str, content: Any) -> None:
    """Write a tensor, or a buffer, to a :func:`created` file."""
    fd = os.open(path, _CREATE, 0o666)  # not by a context manager: a save does this for every tensor
    try:
        if isinstance(content, Tensor):
            write_tensor_to(fd, content, path)
        else:
            write_all(fd, content, 0, path)
    finally:
        os.close(fd)


class OutputFile(io.RawIOBase):
    """An open file whose errors name it, for :class:`io.BufferedWriter`; it stays open when this object is closed."""

    def __init__(self, fd: int, path: str) -> None:
        super().__init__()
        self.fd = fd
        self.path = path
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (self._at if whence else 0)
        return self._at

    def write(self, data: Any) -> int:
        write_all(self.fd, data, self._at, self.path)
        self._at += data.nbytes
        return int(data.nbytes)


def below(folder: str, name: str) -> str:
    """Relative path of a file in a folder, which may be the root, ``""``."""
    return f"{folder}/{name}" if folder else name


def stat_of(path: str | os.PathLike[str], follow: bool = True) -> os.stat_result | None:
    """Status of a file; None if it does not exist.

    Other errors, such as EIO or ESTALE, are raised. :func:`os.path.exists` hides them: what it answers must not decide
    whether files are removed or made anew.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_there(path: str | os.PathLike[str], follow: bool = True) -> bool:
    """Whether a file exists. Errors as :func:`stat_of`."""
    return stat_of(path, follow) is not None


def is_same_file(a: str, b: str) -> bool:
    """Whether two paths name one file."""
    if a == b:
        return True
    with contextlib.suppress(OSError):
        return os.path.samefile(a, b)
    return False


def size_of_file(path: str, error: type[DatasetError], missing: type[DatasetError]) -> int:
    """Size of a regular file in bytes (links are followed).

    Raises:
        missing: ``path`` does not exist.
        error: it is not a regular file.
    """
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path, "does not exist") from None
    if not stat.S_ISREG(info.st_mode):
        kind = "a folder" if stat.S_ISDIR(info.st_mode) else "a special file"
        raise error(path, f"is {kind}, and not a file that holds a dataset")
    return info.st_size


def refuse_link(path: str) -> None:
    """Raise DatasetError if ``path`` is a symbolic link: data would be written elsewhere."""
    if os.path.islink(path):
        raise DatasetError(
            path,
            f"Refusing to write through a symlink (to {os.readlink(path)}): what is saved would be elsewhere. Remove "
            "the link, or give the place that it leads to",
        )


def open_at_once(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that may have been replaced, without following links or waiting for FIFOs."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def raw_bytes(tensor: Tensor) -> Any:
    """The bytes of a contiguous CPU tensor as a numpy array over the same memory, for any dtype."""
    if tensor.dtype in _NUMPY:
        return tensor.numpy()
    start = tensor.storage_offset() * tensor.element_size()
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
        tensor.untyped_storage(), start, (tensor.numel() * tensor.element_size(),), (1,)
    )
    return flat.numpy()


def all_bytes(tensor: Tensor) -> Any:
    """The elements of a tensor in row-major order as one buffer, without a copy if possible."""
    if tensor.is_contiguous():
        try:
            return tensor.numpy()  # raises if more than a view is needed
        except (RuntimeError, TypeError):
            pass
    return raw_bytes(_host(plain_values(tensor)))


def write_all(fd: int, data: Any, offset: int, path: str) -> None:
    """``pwrite`` of the whole buffer; a full disk raises OSError with needed and available bytes."""
    done, total = 0, len(data) if type(data) is bytes else data.nbytes
    try:
        if total < _SMALL:
            done = os.pwrite(fd, data, offset)
            if done == total:
                return
        view = memoryview(data.reshape(-1).view("u1") if hasattr(data, "reshape") else data)
        while done < total:
            done += os.pwrite(fd, view[done : done + (1 << 30)], offset + done)
    except OSError as err:
        if err.errno == errno.ENOSPC:
            raise no_room(path, total - done) from None
        if err.filename is None and err.errno is not None:
            raise OSError(err.errno, err.strerror, path) from None
        raise


def write_tensor_to(fd: int, tensor: Tensor, path: str, offset: int = 0) -> None:
    """Write the elements in row-major order at a byte offset."""
    tensor = plain_values(tensor)
    if tensor.is_cpu and tensor.is_contiguous():
        write_all(fd, raw_bytes(tensor), offset, path)
        return
    for block in byte_blocks(tensor):
        write_all(fd, block, offset, path)
        offset += block.nbytes


def plain_values(tensor: Tensor) -> Tensor:
    """The same values without autograd history and with pending conjugation or negation applied."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def byte_blocks(tensor: Tensor, limit: int | None = None) -> Iterator[Any]:
    """The elements in row-major order, in blocks as numpy arrays.

    Strided, expanded or device memory is copied, ``BLOCK`` bytes at a time. Contiguous host memory is returned without
    a copy, as one block or in blocks of ``limit`` bytes.
    """
    if tensor.numel():
        yield from _blocks(plain_values(tensor), limit)


def _blocks(tensor: Tensor, limit: int | None) -> Iterator[Any]:
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes <= BLOCK or tensor.ndim == 0 or (tensor.device.type == "cpu" and tensor.is_contiguous()):
        whole = raw_bytes(_host(tensor))
        if limit is None or nbytes <= limit:
            yield whole
        else:
            flat = whole.reshape(-1).view("u1")
            yield from (flat[start : start + limit] for start in range(0, nbytes, limit))
        return
    per_row = nbytes // tensor.shape[0]
    if per_row > BLOCK:
        for row in tensor.unbind(0):
            yield from _blocks(row, limit)
        return
    for part in tensor.split(max(1, BLOCK // per_row)):
        yield from _blocks(part, limit)


def _host(tensor: Tensor) -> Tensor:
    return tensor.to("cpu").contiguous() if tensor.device.type != "cpu" else tensor.contiguous()


def write_tensor(path: str, tensor: Tensor, *, existsok: bool = True, copy_data: bool = True) -> None:
    """Write a tensor to ``path`` (or, without ``copy_data``, allocate the file).

    Raises:
        RuntimeError: the file exists and ``existsok`` is false.
        OSError: not enough space; an existing file keeps its content.
    """
    nbytes = tensor.numel() * tensor.element_size()
    check_room(path, nbytes)
    with new_file(path, existsok=existsok) as fd:
        if copy_data:
            write_tensor_to(fd, tensor, path)
        else:
            reserve(fd, nbytes, path)
