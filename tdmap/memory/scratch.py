"""Numbers a row that need not fit memory: tensors in files of a folder, for as long as a call takes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from tdmap.memory import hidden
from tdmap.memory.files import mapped_file

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
