"""The command ``tdmap map MODULE:FUNCTION IN OUT``: `tdmap.map` with the options that a shell can say."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tdmap.cli.answers import answer, asked, say
from tdmap.cli.app import app
from tdmap.cli.requests import (
    find_function,
    guard,
    open_rows,
    place_of,
    refuse,
    require_free,
    require_writable,
    url_of,
)

EXECUTORS = ("process", "thread", "serial", "ray")

ON_ERROR = ("raise", "skip", "drop")

SHOWN_SKIPPED = 5
"""Skipped rows that are printed."""

RESUMES = "completed rows are kept, and the same command resumes from there"

OF_THE_SHELL = ("function", "source", "in_place", "trust", "redo", "address", "quiet")
"""Parameters of the command that `tdmap.map` has by another name, or not at all."""


@app.command("map")
def map_command(
    ctx: typer.Context,
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function of a chunk. MODULE: a module, of the working directory too, or the path of a .py file.",
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="Folder, archive or URL of a dataset; several with commas between."),
    ],
    out: Annotated[Path | None, typer.Argument(metavar="OUT", help="Folder, or URL, for the result.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change IN itself; no OUT.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep a log; the same command resumes after any interruption.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="After a clean shutdown in place: resume with the files as they are.")
    ] = False,
    redo: Annotated[
        bool,
        typer.Option("--redo", help="After a power loss in place: run chunks again that may not be on the disk."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset in OUT when the new one is complete.")
    ] = False,
    on_error: Annotated[
        str, typer.Option(metavar="MODE", help="raise; skip: rows that raise are zeros, and listed; or drop.")
    ] = "raise",
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes. Default: the usable cores.")
    ] = None,
    chunksize: Annotated[int | None, typer.Option(min=0, help="Rows per chunk; 0 calls it with single rows.")] = None,
    num_chunks: Annotated[int | None, typer.Option(min=1, help="Number of chunks, instead of --chunksize.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed torch, numpy and random for each chunk.")] = None,
    rows_per_shard: Annotated[int | None, typer.Option(min=1, help="Write OUT as shards of this many rows.")] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="RANK/RANKS", help="Run one of several parts, as 0/4, or auto under torchrun; others run the rest."
        ),
    ] = None,
    in_keys: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Call it with this entry; repeatable.")
    ] = None,
    out_keys: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Store its result as this entry. Default: --in-keys.")
    ] = None,
    with_indices: Annotated[
        bool, typer.Option("--with-indices", help="Pass the row numbers as second argument.")
    ] = False,
    dim: Annotated[int | None, typer.Option(help="Dimension of the rows. Default: 0.")] = None,
    device: Annotated[str | None, typer.Option(help="Device on which it runs, such as cuda or cuda:1.")] = None,
    undo: Annotated[
        bool, typer.Option("--undo/--no-undo", help="Restore the rows of a chunk that fails in place.")
    ] = True,
    retries: Annotated[
        int | None, typer.Option(min=0, help="Runs of a chunk after its worker died. Default: 2.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds per chunk. Default: no limit.")] = None,
    executor: Annotated[str | None, typer.Option(help="process, thread, serial or ray. Default: process.")] = None,
    address: Annotated[str | None, typer.Option(help="With ray: the cluster, auto or host:port.")] = None,
    mp_start_method: Annotated[str | None, typer.Option(help="fork, forkserver or spawn.")] = None,
    worker_threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch in a worker. Default: 1.")] = None,
    max_tasks_per_child: Annotated[
        int | None, typer.Option(min=1, help="Replace a worker after this many chunks.")
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Replace a worker that has grown by this much.")
    ] = None,
    spill_dir: Annotated[Path | None, typer.Option(help="Folder for intermediate files.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write a profile to a file (.json, .txt, .png) or folder; -: print it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
) -> None:
    """Apply a function to chunks of a dataset on several processes, and write the results."""
    _check(ctx.params)
    options = {
        name: value
        for name, value in ctx.params.items()
        if name not in (*OF_THE_SHELL, "out", "on_error") and not (value is None or value is False or value == ())
    }
    fn = find_function(function)
    data = open_rows(source)
    if in_place:
        require_writable(source)
    elif out is not None and not resume and shard is None:
        require_free(out, source, overwrite)
    for name in ("in_keys", "out_keys"):
        if name in options:
            options[name] = [tuple(key.split("/")) for key in options[name]]
    options |= {"undo": undo, "pbar": not quiet and not asked().json, "out": data if out is None else place_of(out)}
    if trust or redo:
        options["resume"] = "trust" if trust else "redo"
    if shard is not None:
        options["shard"] = _rank(shard)
    if profile is not None:
        options["profile"] = profile == "-" or profile
    if address is not None:
        from tdmap.runtime.executors.raycluster import RayCluster

        options["executor"] = RayCluster(address=address)
    if on_error != "raise":
        from tdmap.rowerrors import RowErrors

        options["on_error"] = RowErrors(on_error)
    result = _run(fn, data, options, source, out)
    _report(result, data, options, source, out, quiet)


def _check(words: dict[str, Any]) -> None:
    """Refuse words that do not go together."""
    if words["executor"] not in (None, *EXECUTORS):
        refuse(f"--executor {words['executor']!r}: choose one of {', '.join(EXECUTORS)}")
    if words["on_error"] not in ON_ERROR:
        refuse(f"--on-error {words['on_error']!r}: choose one of {', '.join(ON_ERROR)}")
    if words["address"] and words["executor"] != "ray":
        refuse("--address is that of a Ray cluster: use --executor ray with it")
    if words["trust"] and words["redo"]:
        refuse("--trust and --redo: give one of them")
    if (words["trust"] or words["redo"]) and not (words["in_place"] and words["resume"]):
        refuse("--trust and --redo say how a run in place resumes: give them with --in-place --resume")
    if words["resume"] and words["overwrite"]:
        refuse("--resume resumes what is in OUT, and --overwrite replaces it: give one of them")
    if words["in_place"] == (words["out"] is not None):
        refuse("give OUT, or --in-place: exactly one of them")
    if words["shard"] and (words["in_place"] or words["overwrite"] or words["resume"]):
        refuse("--shard fills OUT with the other ranks, and resumes by itself: no --in-place, --overwrite or --resume")
    if words["in_place"] and words["rows_per_shard"]:
        refuse("--rows-per-shard is about the result in OUT: give OUT")


def _rank(text: str) -> tuple[int, int]:
    """Rank and number of ranks of `0/4`, or of `auto`, which torchrun sets; or leave with why it is neither."""
    from tdmap.ranks.shard import rank_of

    rank, _, ranks = text.partition("/")
    try:
        found = rank_of("auto" if text == "auto" else (int(rank), int(ranks)))
    except ValueError as error:
        why = str(error) if text == "auto" or (rank.isdecimal() and ranks.isdecimal()) else "give RANK/RANKS, as 0/4"
        refuse(f"--shard {text}: {why}")
    return found.rank, found.world_size


def _run(fn: Any, data: Any, options: dict[str, Any], source: Path, out: Path | None) -> Any:
    """Call `tdmap.map`, or leave with why it raised."""
    import tdmap
    from tdmap.errors import FolderInUse, OutputMismatch, ResumeMismatch, UntrustedFile
    from tdmap.job import function_name
    from tdmap.memory.folderlock import FolderLock

    resumes = "resume" in options or "shard" in options
    state = RESUMES if resumes else "rows that were done stay done" if out is None else f"nothing was written to {out}"
    refusals: tuple[type[Exception], ...] = (FileExistsError, FolderInUse, UntrustedFile, ResumeMismatch, OSError)
    if out is not None:
        refusals += (OutputMismatch, KeyError, TypeError, ValueError, OverflowError)

    def work() -> Any:
        if out is None and not resumes:
            with FolderLock(source.resolve(), f"tdmap map {function_name(fn)} --in-place"):
                return tdmap.map(data, fn, **options)
        try:
            return tdmap.map(data, fn, **options)
        except OutputMismatch as error:
            if "returned None" in str(error):
                refuse("the function returned None, so it changes its chunk: use --in-place instead of OUT")
            raise

    return guard(work, state, refusals)


def _report(result: Any, data: Any, options: dict[str, Any], source: Path, out: Path | None, quiet: bool) -> None:
    skipped, place, rows = options.get("on_error", ()), source if out is None else out, len(data)
    if skipped:
        _list_skipped(skipped, rows, options, source, out)
    done = 0 if result is None else len(result)
    if done == rows and getattr(skipped, "mode", "") != "drop":
        done -= len(skipped)
    facts: dict[str, Any] = {"rows": done, "of": rows, "skipped": len(skipped), "in_place": out is None}
    how = "done in" if "resume" in options else "changed in" if out is None else "written to"
    line = f"{done:,} rows {how} {place}"
    if "shard" in options:
        facts["shard"], facts["whole"] = options["shard"], (place / "meta.json").exists()
        left = "the dataset is complete" if facts["whole"] else "other ranks are not done"
        line += f" by rank {facts['shard'][0]} of {facts['shard'][1]}; {left}"
    if out is None:
        from tensordict_lite.memmap.checksum import CHECKSUMS

        if (source / CHECKSUMS).exists():
            line += f"; its checksums are out of date (renew them: tdmap verify --store {shlex.quote(str(source))})"
    answer({**facts, "out": place}, *([] if quiet else [line]))


def _list_skipped(skipped: Any, rows: int, options: dict[str, Any], source: Path, out: Path | None) -> None:
    """Say on which rows the function raised: how many, the first of them, and the file that lists all."""
    from tdmap.data.failures import write_list

    beside = source.resolve() if out is None else out if url_of(out) is None else Path.cwd() / out.name
    of_rank = f".{options['shard'][0]}" if "shard" in options else ""
    place = beside.with_name(f"{beside.name}.skipped{of_rank}.jsonl")
    fate = "are left out" if skipped.mode == "drop" else "keep what they had" if out is None else "are zeros"
    say(f"the function raised on {len(skipped):,} of {rows:,} rows, which {fate}:")
    for bad in skipped[:SHOWN_SKIPPED]:
        text = str(bad.error).partition("\n")[0][:200]
        typer.echo(f"  row {bad.row}: {type(bad.error).__name__}: {text}", err=True)
    where = f"a list could not be written to {place}"
    with contextlib.suppress(OSError):
        write_list(skipped, place.resolve())
        where = f"all of them, with tracebacks: {place}"
    more = f"  and {len(skipped) - SHOWN_SKIPPED:,} more; " if len(skipped) > SHOWN_SKIPPED else "  "
    typer.echo(more + where, err=True)
