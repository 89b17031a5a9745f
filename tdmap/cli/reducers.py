"""Reducers as a command line writes them, such as `mean:image:dim=all`, and their answers for people."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tdmap.cli.describe import leaves_of, time_types
from tdmap.cli.requests import entry_of, refuse

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

NAMES = {
    "count": "Count",
    "sum": "Sum",
    "mean": "Mean",
    "var": "Var",
    "std": "Std",
    "min": "Min",
    "max": "Max",
    "first": "First",
    "last": "Last",
    "quantile": "Quantile",
    "histogram": "Histogram",
    "unique": "Unique",
    "value-counts": "ValueCounts",
    "top": "TopK",
    "checksum": "Checksum",
    "covariance": "CovarianceMatrix",
}
"""Reducers by the words of the command line."""

SHOWN = 8
"""Most numbers of a value that are shown."""


GROUPED = ("median", "nunique")
"""What there is of groups besides."""

OF_TIMES = {"min", "max", "first", "last", "mean", "median", "quantile", "unique"}
"""Reducers whose answers are times where the values are; a deviation, and a sum of durations, is a length."""


def writer_of(text: str, times: dict[str, Any]) -> Callable[[Any], str] | None:
    """How the numbers are written that a reducer makes of a column of times; None for the others."""
    from tdmap.times import SPAN, length_text

    name, *rest = text.split(":")
    kind = next((times[part.replace("/", ".")] for part in rest if part.replace("/", ".") in times), None)
    if kind is not None and (name == "std" or (name == "sum" and kind.family == SPAN)):
        return lambda number: length_text(number, kind)
    return of_kind(kind) if name in OF_TIMES else None


def of_kind(kind: Any) -> Callable[[Any], str] | None:
    """How numbers are written that are such times."""
    from tdmap.times import text_of

    return None if kind is None else lambda number: text_of(round(number), kind) if number == number else "nan"


class ShownColumn(NamedTuple):
    """A column of a result that is shown."""

    name: str
    read: Callable[[int], Any]
    """Its value in a row."""
    written: Callable[[Any], str] | None
    """How its numbers are written, where they are times."""


def columns_of(result: Any, keys: list[str], times: dict[str, Any], has_rows: bool) -> list[ShownColumn]:
    """The columns of a result, those of its keys first.

    Args:
        result: of an operation.
        keys: as the command line names them.
        times: the columns of times of the dataset, as `time_types` has them.
        has_rows: the result has the columns of the dataset. Other ones may have the names of its columns.
    """
    from tensordict_lite.views import is_leaf_nontensor

    first = [name.replace("/", ".") for name in keys]
    leaves = ((key if isinstance(key, tuple) else (key,)) for key in result.keys(True, True, is_leaf_nontensor))
    found = {".".join(key): ("/".join(key), result.get(key)) for key in leaves}
    of_result = {name: kind for name, kind in times.items() if has_rows or name in first} | time_types(result)
    order = [*(name for name in dict.fromkeys(first) if name in found), *(name for name in found if name not in first)]
    shown = dict(zip(first, keys))
    return [
        ShownColumn(
            shown.get(name, found[name][0]),
            functools.partial(_cell, found[name][1]),
            of_kind(of_result.get(name)) or writer_of(name, times),
        )
        for name in order
    ]


def _cell(column: Any, row: int) -> Any:
    from tensordict_lite import is_non_tensor

    value = column[row]
    return value.data if is_non_tensor(value) else value


def table_text(columns: list[str], rows: list[dict[str, str]]) -> str:
    """Columns that line up; as wide as they need to be, for a pipe as for a terminal."""
    from tdmap.memory.hidden import printable

    texts = [[printable(name) for name in columns], *([row[name] for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in texts) for place in range(len(columns))]
    lines = ("  ".join(text.rjust(width) for text, width in zip(line, widths)) for line in texts)
    return "\n".join(line.rstrip() for line in lines)


def short(value: Any, written: Callable[[Any], str] | None = None) -> str:
    """A value for people: the first of its numbers, each as it is `written`.

    Example:
        >>> import torch
        >>> short(torch.arange(20.0)), short(3)
        ('[0, 1, 2, 3, 4, 5, 6, 7, ... 12 more]', '3')
    """
    import torch

    from tdmap.memory.hidden import printable

    one = written or number_text
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return one(value.item())
        return listed(value.reshape(-1), one) + (f" {list(value.shape)}" if value.dim() > 1 else "")
    if hasattr(value, "keys"):
        return "  ".join(f"{name} {short(value.get(name), written)}" for name in sorted(value.keys()))
    if hasattr(value, "tolist") or isinstance(value, (list, tuple)):
        return listed(list(value.tolist() if hasattr(value, "tolist") else value), short)
    return printable(str(value) if isinstance(value, str) else one(value), 200)


def listed(values: Any, written: Callable[[Any], str]) -> str:
    """The first of several values, each as it is `written`."""
    first = values[:SHOWN]
    more = [f"... {len(values) - SHOWN:,} more"] if len(values) > SHOWN else []
    return f"[{', '.join([*map(written, first.tolist() if hasattr(first, 'tolist') else first), *more])}]"


def number_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# -------- what is folded


def parse_reducer(text: str, data: Data, path: Path, grouped: bool = False) -> Any:
    """The reducer of `NAME:KEY:OPTION=VALUE`, or leave with why there is none.

    Args:
        text: what was given.
        data: whose entries there are; None when a function makes them.
        path: of the dataset.
        grouped: of groups: what `GroupBy.agg` takes is given for those of `GROUPED`.
    """
    import difflib

    import tdmap.reducers
    from tdmap.data.kinds import stored_entry
    from tdmap.data.reader import select
    from tdmap.diagnostics.columns import about, few_rows, is_number

    name, *rest = text.split(":")
    names = [*NAMES, *(GROUPED if grouped else ())]
    if name in GROUPED and grouped and len(rest) == 1:
        return entry_of(rest[0], data, path), name
    if name not in NAMES:
        close = difflib.get_close_matches(name, names, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        refuse(f"{text!r}: unknown reducer {name!r}.{hint} Reducers: {', '.join(names)}")
    kind: Callable[..., Any] = getattr(tdmap.reducers, NAMES[name])
    takes = list(inspect.signature(kind).parameters)
    given = dict(_option(text, part, takes) for part in rest if "=" in part)
    keys = [part for part in rest if "=" not in part]
    if "key" not in takes:
        if keys:
            refuse(f"{text!r}: {name} takes no entry")
        return kind(**given)
    if len(keys) != 1 and name != "checksum":
        refuse(f"{text!r}: say which entry, as {name}:KEY")
    if keys:
        parts = tuple(keys[0].split("/"))
        given["key"] = (parts if len(parts) > 1 else parts[0]) if data is None else entry_of(keys[0], data, path)
    if name == "quantile" and data is not None:
        leaf: Any = next((leaf for key, leaf, _ in leaves_of(data) if key == parts), None)
        time = time_types(data).get(".".join(parts))
        if is_number(leaf):
            some = stored_entry(few_rows(select(data, [parts])), parts)
            given.setdefault("about", about(some, None if time is None else time.name))
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        refuse(f"{text!r}: {error}")


def _option(text: str, part: str, takes: list[str]) -> tuple[str, Any]:
    name, _, said = part.partition("=")
    options = [one for one in takes if one != "key"]
    if name not in options:
        refuse(f"{text!r}: unknown option {name!r}. Options: {', '.join(options) or 'none'}")
    if name == "dim" and said == "all":
        return name, None
    try:
        return name, ast.literal_eval(said)
    except (ValueError, SyntaxError):
        refuse(f"{text!r}: {said!r} must be a number or a list of numbers")
