"""The command ``tdmap doctor``."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import DONE, FAILED, answer
from tdmap.cli.app import app


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option(help="Where datasets are to be written.")] = Path("."),
) -> None:
    """Say what this machine has, and try what tdmap needs: memory, disk, workers, threads.

    Put the output into an issue report. The exit code is 1 when something does not work; warnings do not count. It
    takes some seconds and leaves nothing behind.
    """
    from tdmap.doctor import examine, to_dict

    report = examine(folder)
    columns = max(shutil.get_terminal_size((100, 24)).columns, 12)
    code = FAILED if report.problems else DONE
    answer(to_dict(report), *_lines(report, columns), exit_code=code)
    raise typer.Exit(code)


def _lines(report: Any, columns: int) -> list[str]:
    """Facts, checks and the verdict, in lines of so many columns."""
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
