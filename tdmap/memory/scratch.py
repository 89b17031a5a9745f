"""Files for as long as a call takes: numbers a row that need not fit memory, and temporary folders."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from tdmap.memory import hidden
from tdmap.memory.files import mapped_file
from tensordict_lite.memmap.disk.staging import remove_stale, temporary_name

PREFIX = "scratch-"


class Scratch:
    """Makes tensors in files; the files go when the block ends. Pages that are written may leave memory for the disk.

    Args:
        folder: an existing one, of the disk that the result of the call is written to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Scratch(folder) as scratch:
        ...     scratch.empty(3).fill_(1)
        tensor([1, 1, 1])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._paths: list[Path] = []

    def empty(self, rows: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """A tensor `[rows]` that workers map as well."""
        path = self.folder / f"{PREFIX}{secrets.token_hex(4)}"
        self._paths.append(path)
        return mapped_file(path, rows * dtype.itemsize).view(dtype)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._paths:
            hidden.remove(path)


def temporary_path(purpose: str, folder: str | os.PathLike[str] | None = None) -> str:
    """A new name in a folder, by default in that for temporary files. It says which process makes the file or folder.

    What processes of this machine have left there under such names, and were killed, is removed.
    """
    place = os.path.abspath(tempfile.gettempdir() if folder is None else folder)
    remove_stale(place)
    return f"{place}/{purpose}{temporary_name()}"


@contextlib.contextmanager
def temporary_folder(purpose: str, folder: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """A folder of such a name, which no other user may look into; removed when the block ends."""
    path = temporary_path(purpose, folder)
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
