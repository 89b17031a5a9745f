"""Rows a second through `map`, beside a hand-written loop and six other ways, on the same data in one run.

    python -m benchmarks.map_throughput --rows 100_000 --workers 2 --rounds 5
    python -m benchmarks.map_throughput --only 'out=memmap|floor'

Prints a table of ratios, and writes `map_throughput.json` and `.png` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from benchmarks import floor
from benchmarks._harness import RESULTS, Benchmark
from benchmarks._workload import Workload, invert_rows, normalise_rows
from tdmap.plan import default_chunk_size
from tensordict_lite import TensorDict

PEERS = ("tensordict_map", "joblib_loky", "datasets_map", "ray_data", "dataloader")
ROW_BYTES = 3 * 32 * 32 * (1 + 4)
LATENCY_ROWS = 1000
LATENCY_WANTED_MS = 20.0


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    scratch = options.folder or Path(tempfile.mkdtemp(prefix="map-throughput-"))
    work = Workload(scratch, options.rows, options.workers)
    title = f"map over {options.rows:,} rows, uint8 [3, 32, 32] to float32, {options.workers} workers"
    bench = Benchmark("map_throughput", title=title)
    bench.settings = {"rows": options.rows, "workers": options.workers, "rounds": options.rounds}
    try:
        add_floor(bench, work)
        add_ours(bench, work)
        add_peers(bench, work)
        bench.run(options.rounds, only=options.only)
        if options.only is None or "latency" in options.only:
            bench.settings["latency"] = latency(work)
        bench.report(options.results)
        print_latency(bench.settings.get("latency", []))
    finally:
        work.close()


def add_floor(bench: Benchmark, work: Workload) -> None:
    """The hand-written loop at each chunk size."""
    for name, chunk in (("16", 16), ("256", 256), ("default", default_chunk(work))):
        run = work.into_file(lambda path, chunk=chunk: floor.write_output(work, path, chunk))
        bench.add(f"floor, chunk {name}", run, units=work.rows, kind="floor", group="out")

    def in_place() -> float:
        return work.back_to_back(lambda: floor.invert_in_place(work, work.source_file, 256))

    bench.add("floor, in place, chunk 256", in_place, units=work.rows, kind="floor", group="in place")


def add_ours(bench: Benchmark, work: Workload) -> None:
    """This project, in every mode."""

    def add(name: str, run: Callable[[], float], against: str, wanted: float | None = None, **more: Any) -> None:
        bench.add(f"tdmap {name}", run, units=work.rows, kind="ours", against=against, wanted=wanted, **more)

    for name, chunk, wanted in (("default", None, 0.90), ("256", 256, 0.90), ("16", 16, 0.75)):
        run = _into_memmap(work, chunksize=chunk)
        add(f"out=memmap, chunk {name}", run, f"floor, chunk {name}", wanted, group="out")
    for method in ("forkserver", "spawn"):
        run = _into_memmap(work, chunksize=256, mp_start_method=method)
        add(f"out=memmap, chunk 256, {method}", run, "floor, chunk 256", group="out")
    for method, wanted in (("fork", 0.7), (None, None), ("spawn", None)):
        run = _into_memmap(work, cold=True, chunksize=256, mp_start_method=method)
        add(
            f"out=memmap, chunk 256, cold {method or 'default'}",
            run,
            "floor, chunk 256",
            wanted,
            rounds=3,
            group="out",
        )
    for name, chunk in (("default", None), ("256", 256)):
        add(f"gather, chunk {name}", _gather(work, chunk), f"floor, chunk {name}", 0.75, group="gather")

    def in_place() -> float:
        data = work.open()
        _warm_up(work)
        return work.back_to_back(lambda: data.map(invert_rows, num_workers=work.workers, chunksize=256))

    add("in place, chunk 256", in_place, "floor, in place, chunk 256", group="in place")


def add_peers(bench: Benchmark, work: Workload) -> None:
    """The other libraries, those that are installed, and the contest over chunks of one row."""
    for name in PEERS:
        try:
            peer = importlib.import_module(f"benchmarks.peers.{name}")
        except ImportError as error:
            print(f"  {name} is left out: {error}", file=sys.stderr)
            continue
        peer.add_cases(bench, work)
        if name == "tensordict_map":
            peer.add_in_place(bench, work, "floor, in place, chunk 256")
            add_tiny(bench, work, peer.add_tiny(bench, work, 4000))


def add_tiny(bench: Benchmark, work: Workload, against: str) -> None:
    """Chunks of one row and a function that does next to nothing: the cost of the framework alone."""
    rows = 40_000
    data = TensorDict({"x": torch.arange(rows)}, [rows])

    def plus_one(chunk: TensorDict) -> TensorDict:
        return TensorDict({"x": chunk["x"] + 1}, chunk.batch_size)

    def run() -> float:
        _warm_up(work)
        start = time.perf_counter()
        result = data.map(plus_one, num_workers=work.workers, chunksize=1)
        seconds = time.perf_counter() - start
        if not torch.equal(result["x"], data["x"] + 1):
            raise AssertionError("the result is wrong")
        return seconds

    bench.add("tdmap chunk 1, x + 1", run, units=rows, kind="ours", against=against, wanted=20, group="tiny")


def latency(work: Workload, repeats: int = 15) -> list[dict[str, Any]]:
    """Milliseconds that a call over 1 000 rows on a warm pool takes beyond the work itself.

    The work itself is the same chunks through the same function in this process, divided by the workers.
    """
    data = work.open()[:LATENCY_ROWS]
    out = normalise_rows(data).share_memory_()
    chunk = default_chunk(work)

    def alone() -> None:
        for low in range(0, LATENCY_ROWS, chunk):
            out["image"][low : low + chunk] = normalise_rows(data[low : low + chunk])["image"]

    rows = []
    for method in ("fork", "forkserver", "spawn"):
        options = {"chunksize": chunk, "out": out, "mp_start_method": method}
        call = functools.partial(data.map, normalise_rows, num_workers=work.workers, **options)
        call()
        pairs = [(_seconds(call), _seconds(alone) / work.workers) for _ in range(repeats)]
        beyond = statistics.median(mine - theirs for mine, theirs in pairs) * 1e3
        rows.append(
            {
                "start_method": method,
                "call_ms": statistics.median(mine for mine, _ in pairs) * 1e3,
                "work_ms": statistics.median(theirs for _, theirs in pairs) * 1e3,
                "beyond_ms": beyond,
                "wanted_ms": LATENCY_WANTED_MS,
                "met": beyond <= LATENCY_WANTED_MS,
            }
        )
    return rows


def print_latency(rows: list[dict[str, Any]]) -> None:
    """Print what `latency` gave."""
    for row in rows:
        print(
            f"warm call over {LATENCY_ROWS} rows, {row['start_method']}: {row['call_ms']:.1f} ms, "
            f"{row['beyond_ms']:.1f} ms beyond the work (wanted ≤ {row['wanted_ms']:g}: "
            f"{'yes' if row['met'] else 'NO'})"
        )


def default_chunk(work: Workload) -> int:
    """The chunk size that this project picks, so that the floor can be run at it."""
    return default_chunk_size(work.rows, ROW_BYTES)


def _warm_up(work: Workload, method: str | None = None) -> None:
    """Have the workers wait, whatever case ran before."""
    data = TensorDict({"image": torch.zeros(64, 3, 32, 32, dtype=torch.uint8)}, [64])
    data.map(normalise_rows, num_workers=work.workers, chunksize=1, mp_start_method=method)


def _into_memmap(work: Workload, *, cold: bool = False, **options: Any) -> Callable[[], float]:
    def run() -> float:
        data = work.open()
        tdmap.close_pools() if cold else _warm_up(work, options.get("mp_start_method"))
        with work.fresh_folder() as folder:
            out = work.empty_row().expand(work.rows).memmap_like(folder / "td")
            start = time.perf_counter()
            data.map(normalise_rows, num_workers=work.workers, out=out, **options)
            seconds = time.perf_counter() - start
            work.check(out["image"])
        return seconds

    return run


def _gather(work: Workload, chunk: int | None) -> Callable[[], float]:
    def run() -> float:
        data = work.open()
        _warm_up(work)
        start = time.perf_counter()
        result = data.map(normalise_rows, num_workers=work.workers, chunksize=chunk)
        seconds = time.perf_counter() - start
        work.check(result["image"])
        return seconds

    return run


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
