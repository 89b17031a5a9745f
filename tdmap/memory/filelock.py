"""A lock for a short step, on a file of a hidden folder: whoever comes meanwhile waits, or is told."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from tdmap.memory import hidden
from tdmap.memory.hidden import NO_LOCKS

_PAUSE = 0.01


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """Held from the moment that it is made until its block ends, or its process does.

    Args:
        path: the file, in a hidden folder; it is made if need be.
        patience: seconds to wait for others.

    Attributes:
        works: False on a file system without locks, where nothing is held.

    Raises:
        BlockingIOError: others have held it for all that time.
        UntrustedFile: there is something else in its place.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lock"
        >>> with FileLock(path) as lock:
        ...     lock.works
        True
    """

    def __init__(self, path: str | os.PathLike[str], patience: float = 0.0) -> None:
        self._fd, began = hidden.open_file(path, os.O_RDWR | os.O_CREAT), time.monotonic()
        self.works = True
        try:
            while not self._taken():
                if time.monotonic() - began > patience:
                    raise BlockingIOError(f"{os.fspath(path)} is locked by somebody else.")
                time.sleep(_PAUSE)
        except BaseException:
            os.close(self._fd)
            raise

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self.works = False
        return True

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # in so many words: a process forked meanwhile has the descriptor, too
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
