"""Frames of the engine: left out of tracebacks between those of the user's, and out of what a warning points at."""

from __future__ import annotations

import contextlib
import linecache
import os
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType

from tensordict_lite.api import engine
from tensordict_lite.callers import HERE as LITE
from tensordict_lite.callers import warn_caller

FULL = "TDMAP_FULL_TRACEBACK"
"""Environment variable: when it is set, nothing is left out."""

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ENGINE_METHODS = os.path.abspath(engine.__file__)


def is_engine_frame(filename: str) -> bool:
    """Whether code of this file belongs to the engine."""
    return filename.startswith(_HERE) or filename == _ENGINE_METHODS


def without_engine(tail: TracebackType | None, all_of_it: bool = False) -> TracebackType | None:
    """The same traceback without frames of the engine, and of its context managers in `contextlib`.

    Args:
        tail: the traceback.
        all_of_it: also where nothing else would be left; else it is unchanged then.
    """
    kept = []
    step, below_engine = tail, False
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        below_engine = is_engine_frame(file) or (below_engine and file == contextlib.__file__)
        if not below_engine:
            kept.append(step)
        step = step.tb_next
    if os.environ.get(FULL) or not (kept or all_of_it):
        return tail
    linked: TracebackType | None = None
    for step in reversed(kept):
        linked = TracebackType(linked, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return linked


def with_lines(text: str) -> str:
    """A traceback as text, with the source lines that only this process knows, such as those of notebook cells.

    Args:
        text: what `traceback.format_exception` gave in another process.
    """
    lines, out = text.split("\n"), []
    for number, line in enumerate(lines):
        out.append(line)
        found = _place(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if found is not None and not following.startswith("    "):
            source = linecache.getline(*found).strip()
            if source:
                out.append(f"    {source}")
    return "\n".join(out)


def _place(line: str) -> tuple[str, int] | None:
    """File and line number in a line such as `  File "cell.py", line 3, in fn`."""
    if not line.startswith('  File "'):
        return None
    file, _, rest = line[len('  File "') :].partition('", line ')
    number = rest.partition(",")[0]
    return (file, int(number)) if number.isdigit() else None


_silent: ContextVar[tuple[type[Warning], ...]] = ContextVar("silent", default=())


@contextlib.contextmanager
def without_warnings(*categories: type[Warning]) -> Iterator[None]:
    """Warnings of these categories are no news to the user, where this thread would give them by `warn_user`.

    `warnings.catch_warnings` changes the filters of the whole process: of two threads that are within it at once, one
    hides the warnings of the other, and may leave its filters behind for good.

    Example:
        >>> with without_warnings(UserWarning):
        ...     warn_user("not shown", UserWarning)
    """
    token = _silent.set((*_silent.get(), *categories))
    try:
        yield
    finally:
        _silent.reset(token)


def warn_user(message: str | Warning, category: type[Warning] = RuntimeWarning) -> None:
    """`warnings.warn` at the line that called into these packages, except within `without_warnings`.

    Args:
        message: the text, or a warning, whose own class is its category.
        category: of a text.
    """
    if not issubclass(type(message) if isinstance(message, Warning) else category, _silent.get()):
        warn_caller(message, category, (_HERE, LITE))
