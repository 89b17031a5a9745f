"""Rows on which a function raised, and which a command went past: said, and listed in a file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tdmap.cli.answers import say

if TYPE_CHECKING:
    from tdmap.rowerrors import RowErrors


SHOWN = 5
"""Failing rows that are printed."""


def report_skipped(skipped: RowErrors | None, rows: int, fate: str, place: Path) -> None:
    """Say which rows were skipped: how many, the first of them, and where all are listed.

    Args:
        skipped: the rows.
        rows: of the dataset.
        fate: what became of them.
        place: the list, one JSON object a line.
    """
    if not skipped:
        return
    say(f"the function raised on {len(skipped):,} of {rows:,} rows, which {fate}:")
    for bad in skipped[:SHOWN]:
        text = str(bad.error).partition("\n")[0][:200]
        typer.echo(f"  row {bad.row}: {type(bad.error).__name__}: {text}", err=True)
    from tdmap.data.failures import write_list

    where = f"a list could not be written to {place}"
    with contextlib.suppress(OSError):
        write_list(skipped, place.resolve())
        where = f"all of them, with tracebacks: {place}"
    more = f"  and {len(skipped) - SHOWN:,} more; " if len(skipped) > SHOWN else "  "
    typer.echo(more + where, err=True)
