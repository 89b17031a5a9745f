"""Names for temporary files and folders, which are removed when the process that made them is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from tensordict_lite.memmap.disk.staging import remove_stale, temporary_name


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
