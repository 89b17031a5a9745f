"""The command ``tdmap profile module:function DATA``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdmap.cli.answers import answer
from tdmap.cli.app import app, end_with_reader
from tdmap.cli.requests import find_function, guard, open_rows, refuse, write_file

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

ROWS = 100_000
"""Rows of a sample, at most, and bytes of their entries."""

BYTES = 1 << 30


@app.command("profile")
def profile_command(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Function to run on each chunk.")],
    source: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of the dataset.")],
    rows: Annotated[int | None, typer.Option(min=1, help="Number of rows. Default: a sample.")] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes. Default: the usable cores.")
    ] = None,
    chunksize: Annotated[int | None, typer.Option(min=0, help="Rows per chunk.")] = None,
    mp_start_method: Annotated[str | None, typer.Option(help="fork, forkserver or spawn.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw timeline, throughput and memory into this file (.png).")
    ] = None,
) -> None:
    """Run a function on rows of a dataset, and print its bottleneck and the option to set.

    Results stay in memory and are discarded. DATA is not changed: a function that changes its chunk gets a copy.
    """
    end_with_reader()
    if mp_start_method not in (None, "fork", "forkserver", "spawn"):
        refuse(f"--mp-start-method {mp_start_method!r}: choose fork, forkserver or spawn")
    fn = find_function(function)
    data = open_rows(source, least=1)
    sample = sample_of(data, rows)
    options: dict[str, Any] = {"num_workers": num_workers, "chunksize": chunksize, "mp_start_method": mp_start_method}
    prof = guard(lambda: _run(fn, sample, options), "DATA is as it was")
    if trace is not None:
        write_file(lambda: prof.save_trace(trace), trace)
    if plot is not None:
        write_file(lambda: prof.plot(plot), plot)
    lines = [prof.summary()]
    if sample.batch_size[0] < data.batch_size[0]:
        lines.append(f"on {sample.batch_size[0]:,} of {data.batch_size[0]:,} rows; --rows runs more")
    answer(prof.to_dict(), *lines)


def sample_of(data: Data, rows: int | None) -> Any:
    """The first rows of a dataset, as views: so many that the figures mean something, and no more."""
    from tdmap.data.sizes import row_bytes_of

    length = int(data.batch_size[0])
    if rows is None:
        total = row_bytes_of(data, length) * length
        rows = max(min(ROWS, BYTES * length // max(total, 1)), 1)
    return data[: min(rows, length)]


def safe_sample(fn: Any, sample: Any, by_row: bool = False) -> Any:
    """The sample, or a copy of it where the function changes its chunk: the dataset itself is never given to it then.

    Args:
        by_row: it is called with single rows.
    """
    import torch

    from tdmap.data.kinds import tensors_of

    probe = sample[:1].clone()
    before = [leaf._version for leaf in tensors_of(probe)]
    with torch.random.fork_rng(devices=[]):
        fn(probe[0] if by_row else probe)
    return sample if [leaf._version for leaf in tensors_of(probe)] == before else sample.clone()


def _run(fn: Any, sample: Any, options: dict[str, Any]) -> Any:
    import tdmap

    sample = safe_sample(fn, sample, options["chunksize"] == 0)
    tdmap.map(sample[:16], fn, **options)  # workers start, and import what the function needs
    with tdmap.Profiler() as prof:
        tdmap.map(sample, fn, **options)
    return prof
