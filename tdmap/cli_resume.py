"""The commands about runs that can be resumed: ``tdmap status PATH`` and ``tdmap resume PATH``."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli import app, find_function, guard, open_dataset, refuse

PathArgument = Annotated[Path, typer.Argument(help="Output folder, or dataset of an in-place run.")]


def map_resumable(
    data: Any, fn: Callable[[Any], Any], out: Path | None, options: Any, command: Any, how: bool | str = True
) -> None:
    """Run with a journal that also says how to call this again; in place when there is no `out`."""
    from tdmap.errors import AlreadyComplete, ResumeMismatch
    from tdmap.resume import COMMAND

    def run() -> Any:
        return data.map(fn, out=data if out is None else out, resume=how, **options)

    refusals = (ResumeMismatch, FileExistsError, BlockingIOError)
    token = COMMAND.set(command)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AlreadyComplete)
            guard(run, "what is done stays done, and tdmap resume goes on from there", refusals)
        for warning in caught:
            typer.echo(f"tdmap: {warning.message}", err=True)
    finally:
        COMMAND.reset(token)


@app.command()
def status(
    path: PathArgument, as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False
) -> None:
    """Show how far a resumable run has come: rows done, rate, errors."""
    from tdmap.status import describe

    found = _status_of(path)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "fraction": found.fraction}))
        return
    for line in describe(found):
        typer.echo(line)


@app.command()
def resume(
    path: PathArgument,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="In place, the machine went down, but in order: take the files as they are.")
    ] = False,
    redo: Annotated[
        bool,
        typer.Option("--redo", help="In place, the machine went down: run again what may not have reached the disk."),
    ] = False,
) -> None:
    """Go on with a run that `tdmap map --resume` began."""
    if trust and redo:
        refuse("--trust and --redo: give one of them")
    from tdmap.resume import REDO, TRUST

    found = _status_of(path)
    command = found.command
    if command is None:
        program = " ".join(found.argv).strip() or "a Python session"
        refuse(f"{path} was begun by a program ({program}): run that again, and it goes on where it ended")
    if (path / ".tdmap" / "journal").stat().st_uid != os.geteuid():
        refuse(f"the journal in {path} belongs to another user, and would say which function is run: use tdmap map")
    out = None if found.kind == "in place" else path.resolve()
    if os.path.isdir(command["cwd"]):
        os.chdir(command["cwd"])  # where the function was found
    fn = find_function(command["function"])
    how = TRUST if trust else REDO if redo else True
    options = {**command["options"], "pbar": not quiet}
    map_resumable(open_dataset(Path(command["source"])), fn, out, options, command, how)
    if not quiet:
        typer.echo(f"{found.rows:,} rows done in {path}")


def _status_of(path: Path) -> Any:
    from tdmap.status import read_status

    try:
        found = read_status(path)
    except (OSError, ValueError) as error:
        refuse(f"{path} cannot be read: {error}")
    if found is None:
        refuse(f"{path} holds no journal of a run: none was begun there with resume=True or --resume")
    return found
