"""What formats are read and written with: files, local or of a URL, and the columns that are asked for."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from tdmap.data.entries import no_column
from tensordict_lite.memmap.disk.staging import staged_path
from tensordict_lite.packages import need
from tensordict_lite.paths import is_url


def require_file(path: str) -> None:
    """Raise ValueError where a path leads to a pipe or a device, whose end readers would wait for."""
    if not is_url(path) and not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise ValueError(
            f"{path} is a pipe or a device, not a file: `tdmap convert - OUT --from FORMAT` reads standard input."
        )


@contextlib.contextmanager
def opened(path: str, mode: str = "rb") -> Iterator[Any]:
    """A file, local or of a URL. A local one that is written takes its place when the block succeeds."""
    if is_url(path):
        with need("fsspec", "arrow", "reading and writing URLs").open(path, mode) as file:
            yield file
        return
    if mode == "rb":
        with open(path, mode) as file:
            yield file
        return
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise FileNotFoundError(f"{path} cannot be written: the folder {parent} does not exist. Make it first.")
    with staged_path(path) as partial, open(partial, mode) as file:
        yield file


def require_columns(path: str, columns: Sequence[str] | None, names: Sequence[str]) -> None:
    """Raise ValueError for a column that is asked for and is not among those of a file."""
    lacking = next((name for name in columns or () if name not in names), None)
    if lacking is not None:
        raise ValueError(f"{path} has {no_column(lacking, names)}")
