"""The command ``tdmap map module:function IN OUT``."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdmap.cli.answers import answer, asked, say
from tdmap.cli.app import app
from tdmap.cli.describe import is_table
from tdmap.cli.places import (
    EXECUTORS,
    AddressOption,
    ExecutorOption,
    ShardOption,
    list_beside,
    place_of,
    sources_of,
    text_of,
    url_of,
)
from tdmap.cli.requests import find_function, guard, open_rows, refuse, require_writable

if TYPE_CHECKING:
    from tdmap.rowerrors import RowErrors

SHOWN = 5
"""Failing rows that are printed."""


@app.command("map")
def map_command(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What to run on each chunk.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="Folder of the dataset.")],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="Folder for the result.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; as many as usable cores.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change IN itself; no OUT.")] = False,
    chunksize: Annotated[int | None, typer.Option(min=0, help="Rows the function gets at a time.")] = None,
    start_method: Annotated[str | None, typer.Option(help="fork, forkserver or spawn.")] = None,
    executor: ExecutorOption = "process",
    address: AddressOption = None,
    rows_per_shard: ShardOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT when it is a dataset.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Keep a journal; go on after an interruption.")] = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Go on after rows on which the function raises, and list them.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="RANK/RANKS", help="Run one of so many parts, as 0/4; others run the rest.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
) -> None:
    """Run a function on every row of a dataset, on several processes.

    The function gets a chunk of rows and returns the new ones, or changes the chunk and returns nothing
    (with --in-place, where what it returns is written back). MODULE may be a module, the working directory included,
    or the path of a .py file.
    """
    if in_place == (out is not None):
        refuse("give OUT, or --in-place: exactly one of them")
    if start_method not in (None, "fork", "forkserver", "spawn"):
        refuse(f"--start-method {start_method!r}: there are fork, forkserver and spawn")
    if executor not in EXECUTORS:
        refuse(f"--executor {executor!r}: there are {', '.join(EXECUTORS)}")
    if address is not None and executor != "ray":
        refuse("--address is that of a Ray cluster: use --executor ray with it")
    if rows_per_shard is not None and (out is None or shard is not None):
        refuse("--rows-per-shard writes OUT as several folders: give OUT, and no --shard")
    if resume and overwrite:
        refuse("--resume goes on with what is in OUT, and --overwrite removes it: give one of them")
    rank = None if shard is None else parse_shard(shard)
    if rank is not None and (out is None or overwrite or resume):
        refuse("--shard fills OUT with the other ranks, and goes on by itself: no --in-place, --overwrite or --resume")
    fn = find_function(function)
    data = open_rows(source)
    if is_table(data):
        whole = out is not None and rank is None and rows_per_shard is None and url_of(out) is None and not resume
        if not whole:
            refuse(f"{source} is a table, which is mapped into one folder: OUT, and no --resume, --shard or shards")
    options: dict[str, Any] = {
        "num_workers": workers,
        "chunksize": chunksize,
        "mp_start_method": start_method,
        "pbar": not quiet and not asked().json,
        "on_error": "skip" if skip_errors else "raise",
        **({} if executor == "process" else {"executor": executor}),
        **({} if address is None else {"address": address}),
        **({} if rows_per_shard is None else {"rows_per_shard": rows_per_shard}),
    }
    if out is None:
        require_writable(source)
    from tdmap.memory.hidden import HIDDEN

    if rank is not None and out is not None:
        skipped = _map_shard(data, fn, out, rank, options, quiet)
        place = out.with_name(f"{out.name}.skipped.{rank[0]}.jsonl")
        report_skipped(skipped, data.batch_size[0], False, place, written=False)
        return
    if resume:
        command = {"function": function, "source": text_of(source), "cwd": os.getcwd(), "options": options}
        skipped = run_resumable(data, fn, out, options, command)
        sharded = out is not None and (rows_per_shard is not None or url_of(out) is not None)
        place = list_beside(out) if sharded and out is not None else Path(out or source) / HIDDEN / "skipped.jsonl"
    elif out is None:
        skipped = _map_in_place(data, fn, source, options)
        place = source.resolve().with_name(f"{source.resolve().name}.skipped.jsonl")
    else:
        require_free(out, source, overwrite)
        skipped = _map_into(data, fn, out, overwrite, options)
        place = list_beside(out)
    fate = "are left out" if is_table(data) else None
    report_skipped(skipped, len(data), out is None, place, written=resume and place.parent.name == HIDDEN, fate=fate)
    done, count = len(data) - len(skipped or ()), len(skipped or ())
    if is_table(data) and out is not None:
        done = len(open_rows(out))  # a function of tables returns any number of rows
    facts = {"rows": done, "skipped": count, "list": place if count else None, "out": out or source}
    how = "done in" if resume else "changed in" if out is None else "written to"
    line = f"{done:,} rows {how} {out or source}{_of_checksums(source) if out is None else ''}"
    answer({**facts, "in_place": out is None}, *([] if quiet else [line]))


def _of_checksums(source: Path) -> str:
    """What a run in place leaves to be said about checksums that were stored before it."""
    from tensordict_lite.memmap.checksum import CHECKSUMS

    if not (source / CHECKSUMS).exists():
        return ""
    return f"; its checksums are those of before (renew them: tdmap verify --store {shlex.quote(str(source))})"


# -------- the ways to run


def run_resumable(
    data: Any, fn: Callable[[Any], Any], out: Path | None, options: Any, command: Any, how: bool | str = True
) -> RowErrors | None:
    """Run with a journal that also says how to call this again; in place when there is no `out`. The rows skipped."""
    import warnings

    from tdmap.errors import AlreadyComplete, FolderInUse, OutputMismatch, ResumeMismatch, UntrustedFile
    from tdmap.run.identity import COMMAND

    options, skipped = _collecting(options)
    refusals = (ResumeMismatch, FileExistsError, FolderInUse, UntrustedFile, OutputMismatch, *CANNOT_WRITE)
    token = COMMAND.set(command)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AlreadyComplete)
            guard(
                lambda: data.map(fn, out=data if out is None else place_of(out), resume=how, **options),
                "what is done stays done, and tdmap resume goes on from there",
                refusals,
            )
        for warning in caught:
            typer.echo(f"tdmap: {warning.message}", err=True)
    finally:
        COMMAND.reset(token)
    return skipped


def _map_in_place(data: Any, fn: Callable[[Any], Any], source: Path, options: Any) -> RowErrors | None:
    """Change the dataset itself, as the only one who does so from the command line."""
    from tdmap.errors import FolderInUse, UntrustedFile
    from tdmap.job import function_name
    from tdmap.memory.folderlock import locked

    options, skipped = _collecting(options)

    def run() -> Any:
        with locked(source.resolve(), f"tdmap map {function_name(fn)} --in-place"):
            return data.map(fn, out=data, **options)

    guard(run, "rows that were done stay done", (FolderInUse, UntrustedFile, *CANNOT_WRITE))
    return skipped


def _map_into(data: Any, fn: Callable[[Any], Any], out: Path, overwrite: bool, options: Any) -> RowErrors | None:
    """Write a new dataset, which takes the place of an old one when it is whole."""
    from tdmap.errors import FolderInUse, OutputMismatch, UntrustedFile

    options, skipped = _collecting(options)

    def run() -> Any:
        try:
            return data.map(fn, out=place_of(out), overwrite=overwrite, **options)
        except OutputMismatch as error:
            if "returned None" in str(error):
                refuse("the function returned None, so it changes its chunk: use --in-place instead of OUT")
            raise

    guard(
        run,
        f"nothing was written to {out}",
        (FileExistsError, FolderInUse, UntrustedFile, OutputMismatch, *CANNOT_WRITE),
    )
    return skipped


def _map_shard(
    data: Any, fn: Callable[[Any], Any], out: Path, rank: tuple[int, int], options: Any, quiet: bool
) -> RowErrors | None:
    """Run one rank's part of the chunks into the folder that all ranks fill."""
    import warnings

    from tdmap.errors import AlreadyComplete, FolderInUse, OutputMismatch, ResumeMismatch, UntrustedFile

    options, skipped = _collecting(options)
    refusals = (ResumeMismatch, FileExistsError, FolderInUse, UntrustedFile, OutputMismatch, *CANNOT_WRITE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AlreadyComplete)
        own = guard(
            lambda: data.map(fn, out=out, shard=rank, **options),
            "what is done stays done, and the same command goes on from there",
            refusals,
        )
    for warning in caught:
        typer.echo(f"tdmap: {warning.message}", err=True)
    rows, whole = int(own.batch_size[0]), (out / "meta.json").exists()
    left = "the dataset is whole" if whole else "other ranks are not done"
    facts = {"rows": rows, "skipped": len(skipped or ()), "out": out, "shard": rank, "whole": whole}
    answer(facts, *([] if quiet else [f"{rows:,} rows of rank {rank[0]} of {rank[1]} written to {out}; {left}"]))
    return skipped


def parse_shard(text: str) -> tuple[int, int]:
    """Rank and number of ranks of `0/4`, or of `auto`, which torchrun sets; or leave with why it is neither."""
    from tdmap.ranks.shard import rank_of

    rank, _, ranks = text.partition("/")
    try:
        found = rank_of("auto" if text == "auto" else (int(rank), int(ranks)))
    except ValueError as error:
        why = str(error) if text == "auto" or (rank.isdecimal() and ranks.isdecimal()) else "give RANK/RANKS, as 0/4"
        refuse(f"--shard {text}: {why}")
    assert found is not None
    return found.rank, found.world_size


CANNOT_WRITE = (OSError,)
"""Where the engine raises it, and not the function: there is no room, or no permission."""


def _collecting(options: dict[str, Any]) -> tuple[dict[str, Any], RowErrors | None]:
    """The options of a run, and where it puts the rows that it skips; None when it skips none."""
    from tdmap.rowerrors import RowErrors
    from tdmap.runtime.crews.cluster import RayCluster

    if options.get("executor") == "ray":
        options = dict(options)
        options["executor"] = RayCluster(address=options.pop("address", None))
    if options.get("on_error") != "skip":
        return options, None
    errors = RowErrors()
    return {**options, "on_error": errors}, errors


def report_skipped(
    skipped: RowErrors | None, rows: int, in_place: bool, place: Path, written: bool, fate: str | None = None
) -> None:
    """Say which rows were skipped: how many, the first of them, and where all are listed.

    Args:
        skipped: the rows.
        rows: of the dataset.
        in_place: skipped rows keep what they had; else they are zeros.
        place: the list, one JSON object a line.
        written: the run has written it.
        fate: what became of them, where it is something else.
    """
    if not skipped:
        return
    kept = fate or ("keep what they had" if in_place else "are zeros")
    say(f"the function raised on {len(skipped):,} of {rows:,} rows, which {kept}:")
    for bad in skipped[:SHOWN]:
        text = str(bad.error).partition("\n")[0][:200]
        typer.echo(f"  row {bad.row}: {type(bad.error).__name__}: {text}", err=True)
    if not written:
        with contextlib.suppress(OSError):
            _write_list(skipped, place)
            written = True
    more = f"  and {len(skipped) - SHOWN:,} more; " if len(skipped) > SHOWN else "  "
    where = f"all of them, with tracebacks: {place}" if written else f"a list could not be written to {place}"
    typer.echo(more + where, err=True)


def _write_list(skipped: RowErrors, place: Path) -> None:
    from tdmap.memory.hidden import replace_file

    lines = (
        {"row": bad.row, "type": type(bad.error).__name__, "error": str(bad.error), "traceback": bad.traceback}
        for bad in skipped
    )
    replace_file(place.resolve(), b"".join(json.dumps(line).encode() + b"\n" for line in lines), durable=False)


def require_free(out: Path, source: Path, overwrite: bool) -> None:
    if url_of(out) is not None:
        return  # the operation says what is there
    from tdmap.memory.hidden import HIDDEN

    folders = [one.resolve() for one in sources_of(source) if isinstance(one, Path)]
    if out.resolve() in folders:
        refuse("OUT is IN; use --in-place to change a dataset")
    if set(folders) & set(out.resolve().parents):
        refuse(f"{out} lies inside IN; choose a folder outside")
    if os.path.lexists(out) and not out.is_dir():
        refuse(f"{out} exists, and is a file; choose another path")
    if out.exists():
        is_dataset = (out / "meta.json").exists() or (out / "shards.json").exists()
        if is_dataset and not overwrite:
            refuse(f"{out} exists; choose another folder, or --overwrite")
        names = os.listdir(out)
        if not is_dataset and names and HIDDEN not in names:  # else of a run: the engine says which
            refuse(f"{out} is in the way and is not a dataset, so it is left alone")
