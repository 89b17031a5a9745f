"""The commands ``tdmap bench`` and ``tdmap doctor``."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import DONE, FAILED, answer, asked, say
from tdmap.cli.app import app
from tdmap.cli.commands.profile import safe_sample, sample_of
from tdmap.cli.requests import find_function, guard, open_rows

BUSY = 0.5
"""Load of the machine above which figures suffer."""


@app.command("bench")
def bench_command(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Function to run on each chunk.")],
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of the dataset.")],
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 5,
    rows: Annotated[int | None, typer.Option(min=1, help="Number of rows. Default: a sample.")] = None,
) -> None:
    """Find the best chunk size and number of workers for a function and a dataset.

    Settings take turns in each round, and a gain is the median of the ratios of the rounds. DATA is not changed, and
    results are discarded.
    """
    import tdmap
    from tdmap.cli.tuning import tune

    fn = find_function(function)
    sample = sample_of(open_rows(source, least=1), rows)
    load = os.getloadavg()[0]
    kept = guard(lambda: safe_sample(fn, sample), "DATA is as it was")
    found = guard(lambda: tune(lambda part, options: tdmap.map(part, fn, **options), kept, rounds), "DATA is as it was")
    lines = [f"{'workers':>7}  {'chunk':>8}  {'rows/s':>12}  {'spread':>20}"]
    for setting, seconds in sorted(found.tried.items(), key=lambda one: sorted(one[1])[len(one[1]) // 2]):
        middle = sorted(seconds)[len(seconds) // 2]
        spread = f"{found.rows / max(seconds):,.0f} to {found.rows / min(seconds):,.0f}"
        mark = "  default" if setting == found.default else ""
        lines.append(f"{setting[0]:>7}  {setting[1]:>8}  {found.rows / middle:>12,.0f}  {spread:>20}{mark}")
    tried = [{**setting._asdict(), "seconds": seconds} for setting, seconds in found.tried.items()]
    facts = {
        "rows": found.rows, "default": found.default._asdict(), "best": found.best._asdict(), "gain": found.gain,
        "spread": found.spread, "pays": found.pays, "rate": found.rate, "advice": found.advice, "tried": tried,
        "load_before": load,
    }  # fmt: skip
    answer(facts, *lines, found.advice)
    if load > BUSY and not asked().json:
        say(
            f"other programs were running (load {load:.1f} at the start): measure on a quiet machine for better figures"
        )


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option(help="Folder to test, where datasets will be written.")] = Path("."),
) -> None:
    """Describe this machine, and test what tdmap needs: memory, disk, workers, threads.

    Include the output in an issue report. The exit code is 1 if a test fails; warnings do not count. The tests take
    some seconds and leave no files.
    """
    from tdmap.doctor import examine, to_dict

    report = examine(folder)
    columns = max(shutil.get_terminal_size((100, 24)).columns, 12)
    code = FAILED if report.problems else DONE
    answer(to_dict(report), *_lines(report, columns), exit_code=code)
    raise typer.Exit(code)


def _lines(report: Any, columns: int) -> list[str]:
    lines = [line for name, fact in report.facts.items() for line in _entry(f"{name}:", fact, columns)]
    lines.append("")
    for check in report.checks:
        lines += _entry(f"{check.state:<8}", f"{check.name}: {check.found}", columns)
        if check.advice:
            lines += _entry(" " * 8, f"-> {check.advice}", columns)
    return [*lines, "", *textwrap.wrap(report.verdict, columns)]


def _entry(name: str, text: str, columns: int) -> list[str]:
    indent = 19 if name.endswith(":") else 9
    if columns < 60:  # the name, and what follows below it
        indent = 2
    first = f"{name.strip():<{indent}} ".lstrip() if indent == 2 else f"{name:<{indent}}"
    return textwrap.wrap(text, columns, initial_indent=first, subsequent_indent=" " * indent) or [first.rstrip()]
