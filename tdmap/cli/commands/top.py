"""The command ``tdmap top``."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.requests import refuse

BETWEEN = 0.3
"""Seconds between the two looks that a single report takes."""


@app.command()
def top(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Folder of status files. Default: yours.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default if the output is not a terminal.")
    ] = False,
) -> None:
    """Show running jobs: workers, rows, rates, memory, and their bottleneck.

    Only jobs with callbacks=[tdmap.diagnostics.StatusFile()] are shown. Killed jobs are shown as dead for a day. Press
    Ctrl-C to quit.
    """
    from tdmap.diagnostics import jobfiles

    folder = path or jobfiles.status_folder()
    if path is not None and not path.exists():
        refuse(f"{path} does not exist")
    if asked().json or once or not sys.stdout.isatty():
        end_with_reader()
        _report(folder)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(folder, interval)


def _look(folder: Path, watcher: Any) -> list[Any]:
    from tdmap.diagnostics import jobfiles
    from tdmap.errors import UntrustedFile

    try:
        jobs = jobfiles.read_jobs(folder)
    except UntrustedFile as error:
        refuse(str(error))
    except PermissionError:
        refuse(f"{folder} belongs to another user, and is private")
    except OSError as error:
        refuse(f"{folder} cannot be read: {error}")
    return [(job, watcher.look(job)) for job in jobs]


def _report(folder: Path) -> None:
    from rich.console import Console

    from tdmap.diagnostics import live

    watcher = live.Watcher()
    if _look(folder, watcher):
        time.sleep(BETWEEN)
    jobs = _look(folder, watcher)
    if asked().json:
        answer({"jobs": [live.facts(job, looks) for job, looks in jobs]})
        return
    console = Console(highlight=False, markup=False)
    console.print(live.screen(jobs, console.width, str(folder)), soft_wrap=not jobs)


def _watch(folder: Path, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from tdmap.diagnostics import live

    console, watcher = Console(highlight=False, markup=False), live.Watcher()
    _look(folder, watcher)
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            screen.update(live.screen(_look(folder, watcher), console.width, str(folder)), refresh=True)
            time.sleep(interval)
