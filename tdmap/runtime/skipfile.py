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
from tdmap.journal import replace_file
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
        lines, ranges = read(self.path), list(done)
        kept = {chunk: line for chunk, line in lines.items() if any(start <= chunk < stop for start, stop in ranges)}
        if len(kept) < len(lines):
            replace_file(self.path, b"".join(_pack(line) for line in kept.values()))
        self.earlier = row_errors(kept)

    def load_all(self) -> None:
        """The same of a run that is complete."""
        self.earlier = row_errors(read(self.path))

    def add(self, chunk: int, failures: Sequence[Failure]) -> None:
        """Note the rows that were skipped in a chunk; none: whatever was noted of it does not hold."""
        append(self.path, chunk, failures)

    def forget(self) -> None:
        """Another run begins."""
        self.path.unlink(missing_ok=True)


def append(path: str | os.PathLike[str], chunk: int, failures: Sequence[Failure]) -> None:
    """Append the line of a chunk, in one write."""
    errors = [[row, *_describe(error), traceback] for row, error, traceback in failures]
    append_line(path, {"chunk": chunk, "errors": errors})


def append_line(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Append a line to a file of JSON lines, in one write."""
    line = _pack(content)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # somebody died in the middle of a line
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(28, "no space left on device", str(path))
    finally:
        os.close(descriptor)


def _pack(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


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


def read(path: Path) -> dict[int, dict[str, Any]]:
    """The last line of each chunk; torn lines are left out."""
    return last_lines(path, "chunk")


def last_lines(path: Path, key: str) -> dict[Any, dict[str, Any]]:
    """The last line of each value of `key`; lines without it, and torn ones, are left out."""
    lines: dict[Any, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError):
        for text in path.read_text(errors="replace").split("\n"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                line = json.loads(text)
                value = line[key]
                lines[value if isinstance(value, int) else str(value)] = line
    return lines


def row_errors(lines: dict[int, dict[str, Any]]) -> list[RowError]:
    """The rows of these lines, ascending."""
    found = []
    for line in lines.values():
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
