"""Peak memory of the main process and of each worker: does it grow with the dataset?

    python -m benchmarks.memory --small 100_000 --large 1_000_000

Each size runs in a fresh process: rows of uint8 [3, 32, 32] are mapped to float32 in a memory-mapped output.
The figure is the unique set size (uss). Writes `memory.json` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._harness import RESULTS, machine

WANTED_MIB = 64.0


def main() -> None:
    """Run both sizes and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.workers)))
        return
    peaks = {rows: _in_fresh_process(rows, options.workers) for rows in (options.small, options.large)}
    small, large = peaks[options.small], peaks[options.large]
    growth = {who: large[who] - small[who] for who in ("main_mib", "worker_mib")}
    print("| rows | main (MiB) | largest worker (MiB) |\n|---|---|---|")
    for rows, peak in peaks.items():
        print(f"| {rows:,} | {peak['main_mib']:.0f} | {peak['worker_mib']:.0f} |")
    for who, extra in growth.items():
        verdict = "yes" if extra <= WANTED_MIB else "NO"
        print(f"{who.removesuffix('_mib')} grows by {extra:.0f} MiB (wanted ≤ {WANTED_MIB:.0f}: {verdict})")
    result = {
        "benchmark": "memory", "peaks": peaks, "growth_mib": growth, "wanted_mib": WANTED_MIB,
        "met": all(extra <= WANTED_MIB for extra in growth.values()), "machine": machine(),
    }  # fmt: skip
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "memory.json").write_text(json.dumps(result, indent=1) + "\n")


def measure(rows: int, workers: int) -> dict[str, float]:
    """Map ``rows`` rows in this process, and return the peaks in MiB."""
    from benchmarks._workload import Workload, normalise_rows
    from examples.memory_watch import MemoryWatch

    work = Workload(Path(tempfile.mkdtemp(prefix="map-memory-")), rows, workers)
    try:
        with work.fresh_folder() as folder:
            data = work.open()
            out = work.empty_row().expand(rows).memmap_like(folder / "td")
            # What making the input left in the heap of this process is none of the engine's growth.
            ctypes.CDLL(None).malloc_trim(0)
            with MemoryWatch(interval=0.02) as watch:
                data.map(normalise_rows, num_workers=workers, out=out)
            work.check(out["image"])
    finally:
        work.close()
    return {"main_mib": watch.peak.main / 2**20, "worker_mib": max(watch.peak.workers, default=0) / 2**20}


def _in_fresh_process(rows: int, workers: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.memory", "--one", str(rows), "--workers", str(workers)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peaks: dict[str, float] = json.loads(answer.splitlines()[-1])
    return peaks


if __name__ == "__main__":
    main()
