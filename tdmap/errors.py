"""The exceptions of the engine.

Each subclasses the builtin that fits, so `except ValueError` and `except TypeError` keep working, and each
message says what was asked, what was found and what to do. An exception raised by the user's own function keeps
its type: it is only given a note that names the rows and the worker (see `add_note`).
"""

from __future__ import annotations

import errno
import os
from typing import Any


class TdmapError(Exception):
    """Root of the exceptions that the engine itself raises."""


class SerializationError(TdmapError, TypeError):
    """The function, or something that it refers to, cannot be sent to a worker process."""


class OutputMismatch(TdmapError, ValueError):
    """A result does not fit the output: the message names the key, what was wanted and what came."""


class WorkerLost(TdmapError, RuntimeError):
    """A worker process died while it ran a chunk, as often as the job allows.

    Attributes:
        rows: first and one-past-last row of the chunk that was running, or None when none was.
        signal: number of the signal that ended the worker, or None.
        exit_code: exit code of the worker, or None when a signal ended it or the code is not known.
        peak_memory: the largest resident set that the worker reported, in bytes, or None.
    """

    def __init__(
        self,
        message: str,
        rows: tuple[int, int] | None = None,
        signal: int | None = None,
        exit_code: int | None = None,
        peak_memory: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rows = rows
        self.signal = signal
        self.exit_code = exit_code
        self.peak_memory = peak_memory


class ChunkTimeout(TdmapError, TimeoutError):
    """A chunk ran longer than `timeout` seconds, as often as the job allows.

    Attributes:
        rows: first and one-past-last row of the chunk that was stuck.
    """

    def __init__(self, message: str, rows: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.rows = rows


class ResumeMismatch(TdmapError, ValueError):
    """A folder holds another run than the one that was asked for.

    Attributes:
        changes: what differs, one sentence each.
    """

    def __init__(self, message: str, changes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.changes = changes


class ShardsMissing(TdmapError, RuntimeError):
    """Ranks have not done all rows of a dataset yet.

    Attributes:
        rows: those that are missing, as (first, one past the last).
        ranks: who is to do them, where that is known.
        world_size: how many ranks there are; 0 where that is not known.
    """

    def __init__(
        self,
        message: str,
        rows: tuple[tuple[int, int], ...] = (),
        ranks: tuple[int, ...] = (),
        world_size: int = 0,
    ) -> None:
        super().__init__(message)
        self.rows = rows
        self.ranks = ranks
        self.world_size = world_size


class AlreadyComplete(UserWarning):
    """A resumable run had come to its end before: nothing was done."""


class FolderInUse(TdmapError, BlockingIOError):
    """Another call writes the folder at this moment.

    Attributes:
        folder: which one.
        pid, host: of the process that writes; None where that is not known.
        since: when it began, in seconds since 1970, or None.
        call: what it does, such as `"map(double)"`, or None.
    """

    def __init__(
        self,
        message: str,
        folder: str = "",
        pid: int | None = None,
        host: str | None = None,
        since: float | None = None,
        call: str | None = None,
    ) -> None:
        super().__init__(errno.EAGAIN, message)
        self.folder = folder
        self.pid = pid
        self.host = host
        self.since = since
        self.call = call

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.strerror, self.folder, self.pid, self.host, self.since, self.call)


class UnreadableFile(TdmapError, OSError, ValueError):
    """A file of another tool is damaged, or of another format than its name says; the message names it."""


class UntrustedFile(TdmapError, PermissionError):
    """What lies in the hidden folder of a dataset is not what this library puts there: a link, a device, a file of
    another user, or one that is too large. It was not opened, or not read.

    Attributes:
        path: the file or folder.
        reason: what is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        super().__init__(errno.EPERM, reason, self.path)

    def __str__(self) -> str:
        return (
            f"{self.path} {self.reason}. This library has not made it so; nothing was read from it or written to it. "
            "If you know nothing of it, remove it."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class WorkerStartError(TdmapError, RuntimeError):
    """A worker process could not be started, or died before it could take work."""


class RemoteError(TdmapError, RuntimeError):
    """The user's function raised an exception that could not itself be brought back from the worker.

    Attributes:
        type_name: qualified name of the original exception's type.
    """

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class RemoteTraceback(Exception):
    """The traceback, as text, of an exception that was raised in a worker; set as its `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to `error`, as `BaseException.add_note` of Python 3.11 does, on every Python.

    Example:
        >>> error = ValueError("bad pixel")
        >>> add_note(error, "while running rows 0:64")
        >>> error.__notes__
        ['while running rows 0:64']
    """
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list):
        notes = []
        error.__notes__ = notes
    notes.append(note)


def describe_rows(start: int, stop: int) -> str:
    """How messages name rows: `row 7`, or `rows 0:64`.

    Example:
        >>> describe_rows(7, 8), describe_rows(0, 64)
        ('row 7', 'rows 0:64')
    """
    return f"row {start}" if stop == start + 1 else f"rows {start}:{stop}"


class SkippedRows(UserWarning):
    """Rows were skipped because the function raised on them.

    Attributes:
        errors: which, and why.
    """

    def __init__(self, message: str, errors: Any) -> None:
        super().__init__(message)
        self.errors = errors
