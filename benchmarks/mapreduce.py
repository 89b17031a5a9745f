"""Reductions, groups and shuffles, beside hand-written loops and the libraries that are made for them.

    python -m benchmarks.mapreduce                                  # all three cases
    python -m benchmarks.mapreduce --case moments --bytes 2_000_000_000
    python -m benchmarks.mapreduce --case group --rows 10_000_000 --keys 1_000_000
    python -m benchmarks.mapreduce --case shuffle --shuffle-bytes 5_000_000_000

- ``moments``: mean and variance of every column of float32 rows, beside two processes of numpy and Dask Array;
- ``group``: sum and count by key, beside Polars, DuckDB, Dask DataFrame, Ray Data and one process of numpy;
- ``shuffle``: a dataset in random order on disk, beside `cp` of as many bytes, at two sizes of rows.

Prints a table of ratios for each, and writes ``mapreduce_<case>.json`` and ``.png`` into ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import tdmap
from benchmarks import _groups, _moments, _rowshuffle
from benchmarks._harness import RESULTS, Benchmark
from tdmap.reducers import Count, Mean, Sum, Var
from tensordict_lite import TensorDict

MOMENTS_WANTED = 0.9
GROUP_WANTED = 0.5
SHUFFLE_WANTED = 0.42

SLOWER = ("Dask", "Ray")
"""Peers of the group case that are to be slower than this project."""


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--bytes", type=int, default=2_000_000_000, help="of the rows of case moments")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of case group")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of case group")
    parser.add_argument("--shuffle-bytes", type=int, default=5_000_000_000, help="of the rows of case shuffle")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="regular expression on the names of contenders")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    for case in CASES if options.case == "all" else (options.case,):
        scratch = Path(tempfile.mkdtemp(prefix=f"mapreduce-{case}-", dir=options.folder))
        try:
            CASES[case](options, scratch)
        finally:
            tdmap.close_pools()
            shutil.rmtree(scratch, ignore_errors=True)


def run_moments(options: argparse.Namespace, scratch: Path) -> None:
    """Mean and variance."""
    rows = _moments.Rows(scratch, options.bytes, options.workers)
    size = f"{rows.count:,} rows of {rows.columns} float32"
    bench = Benchmark("mapreduce_moments", title=f"mean and variance of {size}, {options.workers} workers")
    bench.settings = {"bytes": options.bytes, "workers": options.workers, "rounds": options.rounds}
    data = rows.open()

    def ours() -> _moments.Answer:
        both = tdmap.reduce(data, {"mean": Mean("x"), "var": Var("x")}, num_workers=options.workers)
        return both["mean"].numpy(), both["var"].numpy()

    floor = "two processes of numpy, blocks of 256 KiB" if options.workers == 2 else "numpy, blocks of 256 KiB"
    bench.add(floor, rows.timed(lambda: _moments.floor(rows)), units=rows.count, kind="floor")
    bench.add("tdmap.reduce", rows.timed(ours), units=rows.count, against=floor, wanted=MOMENTS_WANTED)
    plain = rows.timed(lambda: _moments.plain_loop(rows))
    bench.add("numpy, plainly, chunks of 4 MiB", plain, units=rows.count, kind="peer", against=floor)
    add_peers(("dask_array",), lambda peer: peer.add_cases(bench, rows, floor))
    bench.run(options.rounds, only=options.only)
    bench.report(options.results)


def run_group(options: argparse.Namespace, scratch: Path) -> None:
    """Sum and count by key."""
    table = _groups.Table(scratch, options.rows, options.keys, options.workers)
    title = f"sum and count of {options.rows:,} rows by {options.keys:,} int64 keys, {options.workers} workers"
    bench = Benchmark("mapreduce_group", title=title)
    bench.settings = {name: getattr(options, name) for name in ("rows", "keys", "workers", "rounds")}
    data = table.open()

    def ours() -> TensorDict:
        return tdmap.group_by(data, "key").reduce({"total": Sum("v"), "n": Count()}, num_workers=options.workers)

    def columns(answer: TensorDict) -> _groups.Answer:
        key, total, count = (answer[name].numpy() for name in ("key", "total", "n"))
        return key, total, count

    polars = "Polars group_by"
    bench.add("one process of numpy", table.timed(lambda: _groups.floor(table)), units=table.rows, kind="floor")
    run = table.timed(ours, columns)
    bench.add("tdmap.group_by", run, units=table.rows, against=polars, wanted=GROUP_WANTED)
    peers = ("group_polars", "group_duckdb", "group_dask", "group_ray")
    add_peers(peers, lambda peer: peer.add_cases(bench, table, "tdmap.group_by"))
    bench.run(options.rounds, only=options.only)
    slower = {name: r.ratio < 1 for name, r in bench.results.items() if r.ratio and name.startswith(SLOWER)}
    bench.settings["slower_than_tdmap"] = slower
    bench.report(options.results)
    for name, verdict in slower.items():
        print(f"tdmap is faster than {name}: {'yes' if verdict else 'NO'}")


def run_shuffle(options: argparse.Namespace, scratch: Path) -> None:
    """A dataset in random order."""
    size = f"{options.shuffle_bytes / 1e9:g} GB"
    bench = Benchmark(
        "mapreduce_shuffle", unit="MB", title=f"{size} of rows in random order, {options.workers} workers"
    )
    bench.settings = {"bytes": options.shuffle_bytes, "workers": options.workers, "rounds": options.rounds}
    large = _rowshuffle.Rows(scratch, options.shuffle_bytes, 12288, options.workers)
    small = _rowshuffle.Rows(scratch, large.nbytes, 256, options.workers, same=large)
    for rows, row_bytes in ((large, 12288), (small, 256)):
        for to_disk in (True, False):
            add_shuffle(bench, rows, f"{row_bytes} bytes a row" + ("" if to_disk else ", not synced"), to_disk)
    bench.run(options.rounds, only=options.only, warmup=0)
    bench.report(options.results)


def add_shuffle(bench: Benchmark, rows: _rowshuffle.Rows, group: str, to_disk: bool) -> None:
    """Copy, gather by hand, and shuffle the same rows."""

    def ours(out: Path) -> Path:
        tdmap.shuffle(rows.open(), 1, out=out / "td", num_workers=rows.workers)
        return out / "td" / "x.memmap"

    units, copy = rows.nbytes // 1_000_000, f"cp, {group}"
    case = rows.into(lambda out: _rowshuffle.copy(rows, out), to_disk, ordered=True)
    bench.add(copy, case, units=units, kind="floor", group=group)
    wanted = SHUFFLE_WANTED if to_disk else None
    case = rows.into(ours, to_disk)
    bench.add(f"tdmap.shuffle, {group}", case, units=units, group=group, against=copy, wanted=wanted)
    case = rows.into(lambda out: _rowshuffle.gather(rows, out), to_disk)
    bench.add(f"numpy.take in memory, {group}", case, units=units, kind="peer", group=group, against=copy)


def add_peers(names: tuple[str, ...], add: Callable[[object], None]) -> None:
    """Have each module under ``benchmarks.peers`` whose library is installed add its cases."""
    for name in names:
        try:
            peer = importlib.import_module(f"benchmarks.peers.{name}")
            add(peer)
        except ImportError as error:
            print(f"  {name} is left out: {error}", file=sys.stderr)


CASES = {"moments": run_moments, "group": run_group, "shuffle": run_shuffle}


if __name__ == "__main__":
    main()
