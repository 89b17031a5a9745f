"""The command ``tdmap convert SRC DST``; `-` is standard input or output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked, say
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.requests import guard, refuse

PIPE = "-"


@app.command("convert")
def convert_command(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A dataset, a file, a pattern, a folder of files, or -.")
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="A file, a folder for a dataset, or -.")],
    columns: Annotated[str | None, typer.Option(help="Columns to convert, separated by commas. Default: all.")] = None,
    nulls: Annotated[str, typer.Option(help="raise, or mask: zeros, with a bool column for each column.")] = "raise",
    on_error: Annotated[
        str,
        typer.Option(help="raise; or skip: leave out lines of text files that cannot be parsed, and list them."),
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset in the folder DST; files are always replaced.")
    ] = False,
    num_workers: Annotated[int | None, typer.Option(min=0, help="Number of processes that read Parquet.")] = None,
    read_as: Annotated[str | None, typer.Option("--from", help="Format of SRC, if SRC is -.")] = None,
    write_as: Annotated[str | None, typer.Option("--to", help="Format of DST, if DST is -.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary.")] = False,
) -> None:
    """Convert files of another tool to a dataset, or a dataset to a file, by the endings of their names.

    Endings are .parquet, .arrow, .feather, .csv, .tsv, .jsonl, .json (an array), .npz, .npy and, of SRC, .tar; a name
    without an ending is a dataset. Formats are parquet, arrow, csv, tsv, jsonl, json, numpy and, of SRC, tar.
    """
    from tdmap.datasets import SkippedLine, SkippedLines, convert

    ending_in, ending_out = _ending("--from", read_as, source), _ending("--to", write_as, target)
    if target == PIPE and asked().json:
        refuse("--json and the rows cannot both be on standard output: give DST a name")
    wanted = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    from tdmap.memory.scratch import temporary_folder

    with temporary_folder("tdmap-convert") as scratch:
        place_in = _from_pipe(Path(scratch, f"in{ending_in}")) if source == PIPE else source
        place_out = str(Path(scratch, f"out{ending_out}")) if target == PIPE else target
        options: Any = {"columns": wanted, "nulls": nulls, "overwrite": overwrite, "num_workers": num_workers}
        left_out: list[SkippedLine] = []
        options["on_error"] = left_out.append if on_error == "skip" else on_error
        rows = _guarded(lambda: convert(place_in, place_out, **options), target)
        if left_out:
            say(str(SkippedLines(left_out)))
        if target == PIPE:
            end_with_reader()
            with open(place_out, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.flush()
            return
    written = f"{rows:,} row{'s' * (rows != 1)} of {source} written to {target}"
    facts: dict[str, Any] = {"source": source, "out": target, "rows": rows}
    if on_error == "skip":
        facts["skipped"] = [one._asdict() for one in left_out]
    answer(facts, *([] if quiet else [written]))


def _guarded(run: Callable[[], Any], target: str) -> Any:
    from tdmap.errors import FolderInUse

    refusals = (ImportError, KeyError, ValueError, TypeError, FileNotFoundError, FileExistsError, FolderInUse)
    return guard(run, f"nothing was written to {target}", refusals)


def _ending(option: str, name: str | None, place: str) -> str:
    """The ending of files of a format; one has to be said for a pipe, which has no name."""
    from tdmap.datasets.formats import FORMATS

    if place != PIPE:
        if name is not None:
            refuse(f"{option} is the format of a pipe (-), and {place} has an ending")
        return ""
    if name not in FORMATS:
        said = "" if name is None else f"{name!r} is none: "
        refuse(f"the format of a pipe is unknown: {said}give {option} {', '.join(FORMATS)}")
    return FORMATS[name].suffixes[0]


def _from_pipe(place: Path) -> str:
    if sys.stdin.isatty():
        refuse("SRC is -, and standard input is a terminal: pipe a file into it")
    with open(place, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(place)
