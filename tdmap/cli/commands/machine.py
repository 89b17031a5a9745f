"""Commands about this machine: what it gives, which settings suit a function and a dataset, and whether tdmap works."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import DONE, FAILED, answer, asked, say
from tdmap.cli.app import app
from tdmap.cli.commands.profile import safe_sample, sample_of
from tdmap.cli.requests import find_function, guard, open_rows, refuse


@app.command("bench")
def bench_command(
    function: Annotated[
        str | None, typer.Argument(metavar="[MODULE:FUNCTION]", help="Function to run on each chunk.")
    ] = None,
    source: Annotated[Path | None, typer.Argument(metavar="[DATA]", help="Folder of the dataset.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds. Default: 5.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Number of rows. Default: a sample.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder whose disk is measured. Default: the temporary folder.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer rounds and smaller files, for a rough result.")
    ] = False,
) -> None:
    """Measure this machine; or find the best chunk size and number of workers for a function and a dataset.

    Settings take turns in each round, and a gain is the median of the ratios of the rounds. DATA is not changed, and
    results are discarded.
    """
    if (function is None) != (source is None):
        refuse("give MODULE:FUNCTION and DATA, or neither to measure this machine")
    count = rounds or (2 if quick else 5)
    if function is None or source is None:
        _machine(folder, count, 16 if quick else 256)
        return
    if folder is not None:
        refuse("--folder is about the disk of this machine: leave out MODULE:FUNCTION and DATA to measure it")
    fn = find_function(function)
    data = open_rows(source, least=1)
    _tune(fn, sample_of(data, rows), count)


def _busy() -> float | None:
    """How many cores others use, where that is so many that figures suffer."""
    import os

    load = os.getloadavg()[0]
    return load if load > 0.5 else None


def _machine(folder: Path | None, rounds: int, megabytes: int) -> None:
    from tdmap.cli.machine import measure_machine
    from tdmap.memory.resources import usable_cores

    if folder is not None and not folder.is_dir():
        refuse(f"{folder} is not a folder")
    load = _busy()
    figures = guard(lambda: measure_machine(folder, rounds, megabytes), "what was written is removed", (OSError,))
    width = max(len(figure.name) for figure in figures)
    lines = [
        f"{figure.name:<{width}}  {_value(figure.median, figure.unit):>10}  "
        f"({_value(min(figure.values), figure.unit)} to {_value(max(figure.values), figure.unit)})"
        for figure in figures
    ]
    facts = [
        {"name": figure.name, "unit": figure.unit, "median": figure.median, "values": figure.values}
        for figure in figures
    ]
    answer({"figures": facts, "cores": usable_cores(), "load_before": load or 0.0}, *lines)
    _warn(load)


def _warn(load: float | None) -> None:
    if load is not None and not asked().json:
        say(
            f"other programs were running (load {load:.1f} at the start): measure on a quiet machine for better figures"
        )


def _tune(fn: Any, sample: Any, rounds: int) -> None:
    import tdmap
    from tdmap.cli.tuning import tune

    load = _busy()
    rows = guard(lambda: safe_sample(fn, sample), "DATA is as it was")
    found = guard(lambda: tune(lambda part, options: tdmap.map(part, fn, **options), rows, rounds), "DATA is as it was")
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
        "load_before": load or 0.0,
    }  # fmt: skip
    answer(facts, *lines, found.advice)
    _warn(load)


def _value(value: float, unit: str) -> str:
    from tensordict_lite.show.options import bytes_text

    if unit == "B/s":
        return f"{bytes_text(value)}/s"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value * 1e9:.3g} ns"


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
