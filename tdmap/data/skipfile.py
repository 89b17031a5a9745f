"""Which rows a resumable run has skipped, in a file beside its journal, for the sessions that follow.

    skipped.jsonl    {"chunk": 12, "errors": [[row, type, arguments, message, traceback], ...]}    one line a chunk

Out of place, the driver appends a line before the journal calls the chunk done. In place, whoever runs the chunk
does, before the byte that says so. So a chunk that is done has its line, whoever is killed meanwhile; and a line of a
chunk that is not done does not count, because the chunk runs again. The last line of a chunk is the one that holds.

Exceptions are kept as text: a file that is opened must not run code. Those of Python itself come back as what they
were, others as a `RemoteError`.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tdmap.errors import RemoteError, RemoteTraceback
from tdmap.memory import hidden
from tdmap.rowerrors import RowError

NAME = "skipped.jsonl"
OBJECTS = "objects.jsonl"

Failure: TypeAlias = "tuple[int, BaseException, str]"
"""A row of the dataset, what the function raised on it, and the traceback."""


class SkipFile:
    """The skipped rows of the run in a folder.

    Args:
        folder: the hidden folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.earlier: list[RowError] = []
        """Rows that earlier sessions have skipped."""

    def load(self, done: Iterable[tuple[int, int]]) -> None:
        """Learn what earlier sessions have skipped, and drop the lines of chunks that are not `done`."""
        found, ranges = read(self.path), list(done)
        kept = {chunk: line for chunk, line in found.items() if any(start <= chunk < stop for start, stop in ranges)}
        if len(kept) < len(found):
            hidden.replace_file(self.path, b"".join(json.dumps(line).encode() + b"\n" for line in kept.values()))
        self.earlier = row_errors(kept)

    def load_all(self) -> None:
        """The same of a run that is complete."""
        self.earlier = row_errors(read(self.path))

    def add(self, chunk: int, failures: Sequence[Failure]) -> None:
        """Note the rows that were skipped in a chunk; none: whatever was noted of it does not hold."""
        append(self.path, chunk, failures)

    def forget(self) -> None:
        """Another run begins."""
        hidden.remove(self.path)


def append(path: str | os.PathLike[str], chunk: int, failures: Sequence[Failure]) -> None:
    """Append the line of a chunk, in one write."""
    append_line(path, {"chunk": chunk, "errors": [failure(*one) for one in failures]})


def failure(row: int, error: BaseException, traceback: str) -> list[Any]:
    """A row that raised, as plain values."""
    return [row, *_describe(error), traceback]


def append_line(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Append a line to a file of JSON lines, in one write."""
    hidden.append_line(Path(path), json.dumps(content).encode())


def _describe(error: BaseException) -> tuple[str, list[Any] | None, str]:
    """Qualified name, arguments where they are plain values, and message of an exception."""
    plain = all(value is None or isinstance(value, (str, int, float, bool)) for value in error.args)
    try:
        message = str(error)
    except Exception:  # a __str__ of the user's
        message = ""
    name = error.type_name if isinstance(error, RemoteError) and error.type_name else _name(type(error))
    return name, list(error.args) if plain else None, message


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def read(path: Path, own: bool = True) -> dict[int, dict[str, Any]]:
    """The last line of each chunk; lines that are torn, or not of this library, are left out."""
    found = last_lines(path, "chunk", own=own).items()
    return {chunk: line for chunk, line in found if type(chunk) is int and _has_failures(line)}


def last_lines(path: Path, key: str, limit: int = hidden.LARGE, own: bool = True) -> dict[Any, dict[str, Any]]:
    """The last line of each value of `key`; lines without it, and torn ones, are left out.

    Args:
        path: the file.
        key: by which lines are told apart.
        limit, own: as `hidden.open_file`.
    """
    found: dict[Any, dict[str, Any]] = {}
    for line in hidden.lines(path, limit, own):
        if type(line) is dict and key in line:
            value = line[key]
            found[value if isinstance(value, int) else str(value)] = line
    return found


def _has_failures(line: dict[str, Any]) -> bool:
    return are_failures(line.get("errors"))


def are_failures(errors: Any) -> bool:
    """Whether it is a list of what `failure` gives."""
    return type(errors) is list and all(map(_is_failure, errors))


def _is_failure(failure: Any) -> bool:
    if type(failure) is not list or len(failure) != 5:
        return False
    row, name, arguments, message, traceback = failure
    texts = type(name) is str and type(message) is str and type(traceback) is str
    return type(row) is int and texts and (arguments is None or type(arguments) is list)


def row_errors(chunks: dict[int, dict[str, Any]]) -> list[RowError]:
    """The rows of these lines, ascending."""
    found = []
    for line in chunks.values():
        for row, name, arguments, message, traceback in line["errors"]:
            error = _revive(str(name), arguments, str(message))
            error.__cause__ = RemoteTraceback(str(traceback))
            found.append(RowError(int(row), error, str(traceback)))
    return sorted(found, key=lambda bad: bad.row)


def _revive(name: str, arguments: list[Any] | None, message: str) -> BaseException:
    module, _, plain = name.rpartition(".")
    kind = getattr(builtins, plain, None) if module == "builtins" else None
    if arguments is not None and isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(Exception):
            error: BaseException = kind(*arguments)
            return error
    return RemoteError(f"{name}: {message}" if message else name, name)
