"""The commands that fold rows: ``tdmap reduce DATA REDUCER...`` and ``tdmap group DATA --by KEY REDUCER...``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer
from tdmap.cli.app import app
from tdmap.cli.commands.orders import (
    GOES_ON,
    ByOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SourceArgument,
    WorkersOption,
    check_place,
    entry_of,
    keep_types,
    key_of,
    operation,
    require_one_folder,
    run_into,
    worker_options,
)
from tdmap.cli.describe import is_table, leaves_of, time_types
from tdmap.cli.places import AddressOption, ExecutorOption, ShardOption, output_options
from tdmap.cli.requests import find_function, guard, open_rows, refuse

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
"""Numbers of a value that are shown, of those that it has."""

GROUPS = 20
"""Groups that are shown."""

ReducersArgument = Annotated[
    list[str], typer.Argument(metavar="REDUCER...", help="NAME, NAME:KEY or NAME:KEY:OPTION=VALUE, such as mean:image.")
]


@app.command("reduce")
def reduce_command(
    source: SourceArgument,
    reducers: ReducersArgument,
    function: Annotated[
        str | None, typer.Option("--map", metavar="MODULE:FUNCTION", help="Run on each chunk before.")
    ] = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    chunksize: Annotated[int | None, typer.Option(min=1, help="Rows that are folded at a time.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fold all rows into statistics, in one pass.

    Reducers are count, sum, mean, var, std, min, max, first, last, quantile, histogram, unique, value-counts, top,
    checksum and covariance; their options those of tdmap.reducers, such as dim=0,2,3, dim=all (every element),
    q=0.1,0.9 or k=3.
    """
    import tdmap

    data = open_rows(source)
    times = {} if function else time_types(data, source)
    if is_table(data):
        data = _tensors_of(data, source, reducers, function)
    wanted = {text: parse_reducer(text, None if function else data, source) for text in reducers}
    fn = None if function is None else find_function(function)
    options = {"chunksize": chunksize, **worker_options(workers, quiet, executor, address)}
    found = guard(
        lambda: tdmap.map_reduce(data, fn, wanted, **options),
        f"{source} was only read",
        (KeyError, TypeError, ValueError, OverflowError),
    )
    width = max(len(text) for text in wanted)
    results = {text: found[text] for text in wanted}
    answer(
        {"rows": len(data), "results": results},
        *(f"{text:<{width}}  {short(results[text], _writer(text, times))}" for text in wanted),
    )


@app.command("group")
def group_command(
    source: SourceArgument,
    reducers: ReducersArgument,
    by: ByOption,
    out: Annotated[Path | None, typer.Option(help="Folder for a dataset of one row a group.")] = None,
    drop_nan: Annotated[bool, typer.Option("--drop-nan", help="Leave out rows whose key is NaN.")] = False,
    show: Annotated[int, typer.Option(min=0, help="Groups to show, where there is no --out; 0: all.")] = GROUPS,
    workers: WorkersOption = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    rows_per_shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fold the rows of each group into statistics: one row for each key, sorted by key."""
    data = open_rows(source)
    keys = [key_of(name, data, source) for name in by]
    wanted = {text: parse_reducer(text, data, source) for text in reducers}
    if out is not None:
        check_place(out, [source], overwrite, resume)
        require_one_folder(data, source, out, rows_per_shard)
    elif resume:
        refuse("--resume keeps its journal in the result: give --out")
    elif rows_per_shard is not None:
        refuse("--rows-per-shard writes --out as several folders: give --out")
    groups = operation(data, "group_by")(keys if len(keys) > 1 else keys[0], dropna=drop_nan or None)
    who = worker_options(workers, quiet, executor, address)

    options = who if out is None else {**output_options(out, overwrite, resume, rows_per_shard), **who}
    found = run_into(
        lambda: groups.reduce(wanted, **options),
        out or source,
        GOES_ON if resume else None if out else f"{source} was only read",
    )
    count = len(found)
    if out is not None:
        keep_types(data, source, out, [key for key in keys if isinstance(key, str)])
        answer({"groups": count, "out": out}, *([] if quiet else [f"{count:,} groups written to {out}"]))
        return
    columns = [*dict.fromkeys("/".join(key) if isinstance(key, tuple) else key for key in keys), *wanted]
    upto = count if not show else min(show, count)
    table = [{name: _cell(found, name, row) for name in columns} for row in range(upto)]
    times, kinds = time_types(found if is_table(found) else data, source), time_types(data, source)
    if not is_table(found):  # whose figures may have the name of any column
        times = {name: kind for name, kind in times.items() if name in keys}
    more = [] if upto == count else [f"... and {count - upto:,} more groups: --show 0 shows all, --out writes them"]
    written = {name: _of_kind(times.get(name.replace("/", "."))) or _writer(name, kinds) for name in columns}
    dated = [
        {name: value if (how := written[name]) is None else short(value, how) for name, value in row.items()}
        for row in table
    ]
    answer({"groups": count, "rows": table}, _table(columns, dated), *more)


def _tensors_of(table: Any, source: Path, reducers: list[str], function: str | None) -> Any:
    """The columns of tensors of a table, or leave where others are asked for."""
    if function is not None:
        refuse(f"{source} is a table: --map works on datasets of tensors and strings")
    for text in reducers:
        for part in text.split(":")[1:]:
            if part in table.jagged:
                refuse(f"{text!r}: the rows of {part} have different lengths; tdmap group --by {part} counts them")
    return table.rows


def _cell(found: Any, name: str, row: int) -> Any:
    from tensordict_lite import is_non_tensor

    if is_table(found):
        return found[name.replace("/", ".")][row] if name not in found.keys() else found[name][row]
    value = found.get(tuple(name.split("/")) if name not in found.keys() and "/" in name else name)[row]
    return value.data if is_non_tensor(value) else value


OF_TIMES = {"min", "max", "first", "last", "mean", "quantile", "unique"}
"""Reducers whose answers are times where the values are; a deviation, and a sum of durations, is a length."""


def _writer(text: str, times: dict[str, Any]) -> Callable[[Any], str] | None:
    """How the numbers are written that a reducer makes of a column of times; None for the others."""
    from tdmap.times import SPAN, length_text

    name, *rest = text.split(":")
    kind = next((times[part.replace("/", ".")] for part in rest if part.replace("/", ".") in times), None)
    if kind is not None and (name == "std" or (name == "sum" and kind.family == SPAN)):
        return lambda number: length_text(number, kind)
    return _of_kind(kind) if name in OF_TIMES else None


def _of_kind(kind: Any) -> Callable[[Any], str] | None:
    """How numbers are written that are such times."""
    from tdmap.times import text_of

    return None if kind is None else lambda number: text_of(round(number), kind) if number == number else "nan"


def _table(columns: list[str], rows: list[dict[str, Any]]) -> str:
    """Columns that line up; as wide as they need to be, for a pipe as for a terminal."""
    from tdmap.memory.hidden import printable

    texts = [[printable(name) for name in columns], *([short(row[name]) for name in columns] for row in rows)]
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

    one = written or _number
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return one(value.item())
        flat = value.reshape(-1)
        more = [f"... {flat.numel() - SHOWN:,} more"] if flat.numel() > SHOWN else []
        shape = f" {list(value.shape)}" if value.dim() > 1 else ""
        return f"[{', '.join([*map(one, flat[:SHOWN].tolist()), *more])}]{shape}"
    if hasattr(value, "keys"):
        return "  ".join(f"{name} {short(value.get(name), written)}" for name in sorted(value.keys()))
    if hasattr(value, "tolist") or isinstance(value, (list, tuple)):
        objects = list(value.tolist() if hasattr(value, "tolist") else value)
        more = [f"... {len(objects) - SHOWN:,} more"] if len(objects) > SHOWN else []
        return f"[{', '.join([*map(short, objects[:SHOWN]), *more])}]"
    return printable(str(value) if isinstance(value, str) else one(value), 200)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# -------- what is folded


def parse_reducer(text: str, data: Any, path: Path) -> Any:
    """The reducer of `NAME:KEY:OPTION=VALUE`, or leave with why there is none.

    Args:
        text: what was given.
        data: whose entries there are; None when a function makes them.
        path: of the dataset.
    """
    import difflib

    import tdmap.reducers
    from tdmap.diagnostics.columns import about, is_number

    name, *rest = text.split(":")
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        refuse(f"{text!r}: there is no reducer {name!r}.{hint} There are {', '.join(NAMES)}")
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
        time = time_types(data, path).get(".".join(parts))
        if is_number(leaf):
            given.setdefault("about", about(leaf, None if time is None else time.name))
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        refuse(f"{text!r}: {error}")


def _option(text: str, part: str, takes: list[str]) -> tuple[str, Any]:
    name, _, said = part.partition("=")
    options = [one for one in takes if one != "key"]
    if name not in options:
        refuse(f"{text!r}: there is no option {name!r}; there is {', '.join(options) or 'none'}")
    if name == "dim" and said == "all":
        return name, None
    try:
        return name, ast.literal_eval(said)
    except (ValueError, SyntaxError):
        refuse(f"{text!r}: {said!r} is no number and no list of numbers")
