"""Rows on which a function raised, as the log of a call keeps them: plain values, and exceptions again.

    [row, type, arguments, message, traceback]

Exceptions are kept as text: a file that is opened must not run code. Those of Python itself and of this library come
back as what they were, others as a `RemoteError`.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tdmap import errors
from tdmap.errors import RemoteError, RemoteTraceback, RowError
from tdmap.memory.hidden import append_frame, replace_file

Failure: TypeAlias = "tuple[int, BaseException, str]"
"""A row of the dataset, what the function raised on it, and the traceback."""


def skipped_frame(job: int, chunk: int, failures: Sequence[Failure]) -> bytes:
    """The frame of the rows that were skipped in a chunk; the last one of a chunk counts."""
    return b"K" + json.dumps([job, chunk, [failure(*one) for one in failures]]).encode()


def note_skipped(path: str | os.PathLike[str], chunk: int, failures: Sequence[Failure]) -> None:
    """Append the frame of a chunk to the log of an in-place run: by its worker, before the chunk is done."""
    append_frame(path, skipped_frame(0, chunk, failures))


def write_list(failures: Iterable[RowError], place: Path) -> None:
    """Write rows that raised to a file for people: one JSON object a row."""
    lines = (
        {"row": bad.row, "type": type(bad.error).__name__, "error": str(bad.error), "traceback": bad.traceback}
        for bad in failures
    )
    replace_file(place, b"".join(json.dumps(line).encode() + b"\n" for line in lines), durable=False)


def failure(row: int, error: BaseException, traceback: str) -> list[Any]:
    """A row that raised, as plain values."""
    return [row, *_describe(error), traceback]


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


def are_failures(errors: object) -> bool:
    """Whether it is a list of what `failure` gives."""
    return type(errors) is list and all(map(_is_failure, errors))


def _is_failure(failure: object) -> bool:
    if type(failure) is not list or len(failure) != 5:
        return False
    row, name, arguments, message, traceback = failure
    texts = type(name) is str and type(message) is str and type(traceback) is str
    return type(row) is int and texts and (arguments is None or type(arguments) is list)


def row_errors(chunks: Iterable[Any]) -> list[RowError]:
    """The rows of chunks, ascending; each a list of what `failure` gives."""
    found = []
    for failures in chunks:
        for row, name, arguments, message, traceback in failures:
            error = _revive(str(name), arguments, str(message))
            error.__cause__ = RemoteTraceback(str(traceback))
            found.append(RowError(int(row), error, str(traceback)))
    return sorted(found, key=lambda bad: bad.row)


_KNOWN = {module.__name__: module for module in (builtins, errors)}


def _revive(name: str, arguments: list[Any] | None, message: str) -> BaseException:
    module, _, plain = name.rpartition(".")
    kind = getattr(_KNOWN.get(module), plain, None)
    if arguments is not None and isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(Exception):
            error: BaseException = kind(*arguments)
            return error
    return RemoteError(f"{name}: {message}" if message else name, name)
