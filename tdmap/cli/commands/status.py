"""The command ``tdmap status PATH``."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from tdmap.cli.answers import answer
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.requests import refuse, url_of


@app.command()
def status(
    path: Annotated[Path, typer.Argument(help="Output folder, or dataset of an in-place run.")],
) -> None:
    """Show the progress of a run with --resume: finished rows, rate, errors."""
    from tdmap.run.status import describe, read_status

    end_with_reader()
    if url_of(path) is not None:
        refuse(f"{url_of(path)} is in a store, and status reads folders: run the call again with resume=True")
    try:
        found = read_status(path)
    except (OSError, ValueError) as error:
        refuse(f"{path} cannot be read: {error}")
    if found is None and not os.path.lexists(path):
        refuse(f"{path} does not exist")
    if found is None:
        refuse(f"{path} holds no log of a run: no run with resume=True or --resume was started there")
    answer({**dataclasses.asdict(found), "fraction": found.fraction}, *describe(found))
