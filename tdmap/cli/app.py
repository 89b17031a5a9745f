"""The application that every command belongs to."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from tdmap.cli.answers import Commands

EXIT_CODES = """\b
Exit codes:
  0    done; rows that --on-error skip leaves out are counted and listed
  1    the run failed: a function raised, a worker was lost, bytes differ
  2    refused, and nothing was written: no such dataset or option
  130  stopped by Ctrl-C
"""

app = typer.Typer(
    name="tdmap",
    cls=Commands,
    rich_markup_mode=None,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Inspect memory-mapped tensor datasets, and map functions over them on all cores.",
)


def main() -> None:
    """Entry point of the ``tdmap`` command."""
    global _is_program
    _is_program = True
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # no other file takes the number of a closed stream
        os.set_inheritable(number, True)
    os.close(number)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    app()


_is_program = False


def end_with_reader() -> None:
    """End quietly when the reader of the output has closed the pipe, as in ``tdmap info photos | head -1``.

    By the signal, like other commands of a pipe. Only for commands that read: to a run, a pipe that breaks is that of
    a worker.
    """
    if _is_program:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"tdmap {version('tdmap')}")
        except PackageNotFoundError:
            typer.echo("tdmap, from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
