"""What `on_error="skip"` reports: rows on which the function raised, while every other row was processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from tdmap.errors import RemoteTraceback, RowError, describe_rows

SHOWN = 3
"""Errors that a summary quotes."""

OnError: TypeAlias = "str | Callable[[BaseException, tuple[int, int]], Any]"
"""`"raise"`, `"skip"`, `"drop"`, or a function of an exception and its rows."""

MODES = ("raise", "skip", "drop")


class RowErrors(Sequence[RowError]):
    """The failing rows of a job, in order. Pass an object as `on_error=`; the job adds rows to it instead of a warning.

    Args:
        mode: treatment of the rows: `"skip"` or `"drop"`, as `on_error=` of `tdmap.map`.

    Example:
        >>> import torch, tdmap
        >>> errors = RowErrors()
        >>> def inverse(part):
        ...     if (part == 0).any():
        ...         raise ZeroDivisionError("no inverse of 0")
        ...     return 1 / part
        >>> tdmap.map(torch.tensor([4.0, 0.0, 2.0]), inverse, num_workers=1, on_error=errors)
        tensor([0.2500, 0.0000, 0.5000])
        >>> errors.rows, type(errors[0].error).__name__
        ([1], 'ZeroDivisionError')
        >>> errors.mask(3)
        tensor([ True, False,  True])
    """

    def __init__(self, mode: str = "skip") -> None:
        if mode not in MODES[1:]:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES[1:]))}: got {mode!r}.")
        self.mode = mode
        self._found: dict[int, RowError] = {}
        self._texts: dict[str, str] = {}  # rows mostly fail at the same line: one copy of its text

    def __call__(self, error: BaseException, rows: tuple[int, int]) -> None:
        """Add the exception of one row."""
        cause = error.__cause__
        text = cause.text if isinstance(cause, RemoteTraceback) else f"{type(error).__name__}: {error}\n"
        self._found[rows[0]] = RowError(rows[0], error, self._texts.setdefault(text, text))

    @property
    def rows(self) -> list[int]:
        """Numbers of the failing rows, ascending."""
        return sorted(self._found)

    def mask(self, length: int) -> Tensor:
        """bool `[length]`: True for the rows that were processed."""
        valid = torch.ones(length, dtype=torch.bool)
        valid[self.rows] = False
        return valid

    def summary(self) -> str:
        """The number of failing rows, and the first errors."""
        if not self._found:
            return "no row failed"
        rows = self.rows
        quoted = [f"{describe_rows(row, row + 1)}: {self._found[row].error!r}" for row in rows[:SHOWN]]
        more = f", and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        return f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} failed ({'; '.join(quoted)}{more})"

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[RowError]:
        return (self._found[row] for row in self.rows)

    @overload
    def __getitem__(self, index: int) -> RowError: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowError]: ...
    def __getitem__(self, index: int | slice) -> RowError | list[RowError]:
        rows = self.rows[index]
        return [self._found[row] for row in rows] if isinstance(rows, list) else self._found[rows]

    def __bool__(self) -> bool:
        return bool(self._found)

    def __repr__(self) -> str:
        return f"RowErrors({self.summary()})"


def mode_of(on_error: OnError) -> str:
    """What becomes of rows that raise; a function says so with its attribute `mode`, and means `"skip"` without one.

    Args:
        on_error: what was passed as `on_error`.

    Raises:
        ValueError: it is none of `MODES`.
    """
    mode = getattr(on_error, "mode", "skip") if callable(on_error) else on_error
    if mode in MODES:
        return str(mode)
    found = f"{on_error!r} with mode={mode!r}" if callable(on_error) else repr(on_error)
    raise ValueError(f"on_error must be {', '.join(map(repr, MODES))} or a function of (error, rows): got {found}.")
