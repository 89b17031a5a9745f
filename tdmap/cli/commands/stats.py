"""The command ``tdmap stats``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.describe import leaves_of, time_types, type_name
from tdmap.cli.requests import entries_named, guard, open_rows, write_file


@app.command()
def stats(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, or file of an archive.")],
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Entries, as a/b. Default: all.")] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes. Default: the usable cores.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the histograms into this file (.png).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Show count, range, mean, deviation, quantiles and a small histogram of each entry, in one pass.

    Statistics cover all finite elements of an entry. Quantiles are accurate to one percent; for times and other numbers
    far from zero, to one percent of their range.
    """
    import tdmap
    from tdmap.data.kinds import stored_entry
    from tdmap.data.reader import select
    from tdmap.data.stacks import columns_read
    from tdmap.diagnostics.columns import ColumnReducer, Columns, draw_columns, few_rows, is_number

    end_with_reader()
    data = open_rows(path)
    data = columns_read(data, [key for key, *_ in leaves_of(data)])
    leaves = {key: leaf for key, leaf, _ in leaves_of(data)}
    types = {key: type_name(leaves[key]) for key in (entries_named(keys, data, path) if keys else leaves)}
    wanted = [key for key in types if is_number(leaves[key])]
    others = {key: kind for key, kind in types.items() if key not in wanted}
    times = {name: kind.name for name, kind in time_types(data).items()}
    found: dict[tuple[str, ...], Any] = {}
    if wanted:
        few = few_rows(select(data, wanted))
        reducers = {
            "/".join(key): ColumnReducer.of(key, stored_entry(few, key), times.get(".".join(key))) for key in wanted
        }
        values = guard(
            lambda: tdmap.map_reduce(
                data, None, Columns(reducers), num_workers=num_workers, pbar=not quiet and not asked().json
            ),
            f"{path} was only read",
        )
        found = {key: values["/".join(key)] for key in wanted}
    if plot is not None:
        write_file(lambda: draw_columns([("/".join(key), one) for key, one in found.items()], str(plot)), plot)
    if asked().json:
        entries = [{"key": list(key), "dtype": types[key], **asdict(one)} for key, one in found.items()]
        rest = [{"key": list(key), "dtype": kind} for key, kind in others.items()]
        answer({"rows": len(data), "keys": [*entries, *rest]})
        return
    _print(found, types, others)


def _print(found: dict[tuple[str, ...], Any], types: dict[tuple[str, ...], str], others: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tdmap.diagnostics.columns import QUANTILES

    console = Console(highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    columns = (
        "key",
        "type",
        "count",
        "NaN",
        "min",
        "max",
        "mean",
        "std",
        *(f"{q:.0%}" for q in QUANTILES),
        "histogram",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in ("key", "type", "histogram") else "right", no_wrap=True)
    for key, one in found.items():
        bad = f"{one.nan:,}" + (f" +{one.infinite:,} inf" if one.infinite else "")
        table.add_row("/".join(key), one.time or types[key], f"{one.count:,}", bad, *one.texts, one.sparkline)
    for key, kind in others.items():
        table.add_row("/".join(key), kind)
    width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    if not console.is_terminal:
        console.width = max(console.width, width)  # a file has no edge
    if width <= console.width:
        console.print(table)
        return
    for key, one in found.items():
        low, high, mean, std = one.texts[:4]
        console.print(
            f"{'/'.join(key)}: {one.time or types[key]}, {one.count:,} values, {one.nan:,} NaN, {low} to {high}, "
            f"mean {mean}, std {std}  {one.sparkline}"
        )
    for key, kind in others.items():
        console.print(f"{'/'.join(key)}: {kind}")
