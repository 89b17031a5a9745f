"""The exceptions of the engine.

Each is a subclass of a builtin exception, so `except ValueError` and `except TypeError` work. Messages state the
request, the finding and the remedy. An exception of the user's function keeps its type and gets a note that names the
rows and the worker (see `add_note`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any


class TdmapError(Exception):
    """Base class of the engine's exceptions."""


class SerializationError(TdmapError, TypeError):
    """The function, or an object that it refers to, cannot be pickled for a worker process."""


class OutputMismatch(TdmapError, ValueError):
    """A result does not fit the output. The message names the key, the expected and the actual form."""


class WorkerLost(TdmapError, RuntimeError):
    """A worker died while it ran a chunk that cannot run again, or has used up its `retries`.

    Attributes:
        rows: first and one-past-last row of the chunk that was running, or None.
        signal: number of the signal that ended the worker, or None.
        exit_code: exit code of the worker, or None if a signal ended it or the code is unknown.
        peak_memory: largest resident set that the worker reported, in bytes, or None.
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
    """A chunk ran longer than `timeout` seconds, more than `retries` times.

    Attributes:
        rows: first and one-past-last row of the chunk.
    """

    def __init__(self, message: str, rows: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.rows = rows


class ResumeMismatch(TdmapError, ValueError):
    """A folder holds a run that differs from this call.

    Attributes:
        changes: the differences, one sentence each.
    """

    def __init__(self, message: str, changes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.changes = changes


class ShardsMissing(TdmapError, RuntimeError):
    """Ranks have not yet written all rows of a dataset.

    Attributes:
        rows: missing rows, as (first, one past the last).
        ranks: ranks that must compute them, if known.
        world_size: number of ranks; 0 if unknown.
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
    """A run with `resume` was already complete; nothing was computed."""


class FolderInUse(TdmapError, BlockingIOError):
    """Another call is writing the folder.

    Attributes:
        folder: the folder.
        pid, host: process and machine of the writer, or None.
        since: start of the writer, in seconds since 1970, or None.
        call: the writer's call, such as `"map(double)"`, or None.
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
    """A file of another tool is damaged, or its format differs from its name; the message names it."""


class UntrustedFile(TdmapError, PermissionError):
    """A file in the hidden folder of a dataset was not written by tdmap: a link, a device, a file of another user, or a
    file that is too large. It was not opened, or not read.

    Attributes:
        path: the file or folder.
        reason: the defect.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        super().__init__(errno.EPERM, reason, self.path)

    def __str__(self) -> str:
        return f"{self.path} {self.reason}. tdmap did not write it. Remove it if you do not need it."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class WorkerStartError(TdmapError, RuntimeError):
    """A worker process could not be started, or died before it could take work."""


class RemoteError(TdmapError, RuntimeError):
    """The user's function raised an exception that cannot be pickled.

    Attributes:
        type_name: qualified name of the type of the original exception.
    """

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class RemoteTraceback(Exception):
    """The traceback of a worker's exception, as text; set as its `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to `error`, like `BaseException.add_note`.

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


def describe_rows(start: int, stop: int, unit: str = "row") -> str:
    """Rows as text for messages: `row 7`, or `rows 0:64`. A job may count something else: `range of keys 7`.

    Example:
        >>> describe_rows(7, 8), describe_rows(0, 64), describe_rows(0, 2, "range of keys")
        ('row 7', 'rows 0:64', 'ranges of keys 0:2')
    """
    if stop == start + 1:
        return f"{unit} {start}"
    noun, *rest = unit.split(" ", 1)
    return f"{' '.join([noun + 's', *rest])} {start}:{stop}"


@dataclass(frozen=True, slots=True)
class RowError:
    """One row on which the function raised."""

    row: int
    """Its number along the dimension that was mapped."""
    error: BaseException
    """The exception, without its frames."""
    traceback: str
    """The traceback as text, from the user's function on."""


class SkippedRows(UserWarning):
    """Rows were skipped because the function raised on them.

    Attributes:
        errors: the rows and their exceptions.
    """

    def __init__(self, message: str, errors: Any) -> None:
        super().__init__(message)
        self.errors = errors
