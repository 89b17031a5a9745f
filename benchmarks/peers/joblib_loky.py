"""joblib's loky processes writing into a shared numpy memory map, the pattern of its user guide."""

from __future__ import annotations

from pathlib import Path

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor

from benchmarks._harness import Benchmark
from benchmarks._workload import Workload, normalise_array

FLOOR = "floor, chunk 256"


def write_rows(source: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """Normalise a range of rows into the output."""
    out[start:stop] = normalise_array(source[start:stop])


def add_cases(bench: Benchmark, work: Workload) -> None:
    """Add warm and cold runs."""

    def write(path: Path, chunk: int) -> None:
        source, out = work.open_array(), work.open_output(path)
        joblib.Parallel(n_jobs=work.workers)(
            joblib.delayed(write_rows)(source, out, low, min(low + chunk, work.rows))
            for low in range(0, work.rows, chunk)
        )

    for chunk in (16, 256, 4096):
        run = work.into_file(lambda path, chunk=chunk: write(path, chunk))
        name = f"joblib loky, memmap, chunk {chunk}"
        against = "floor, chunk 16" if chunk == 16 else FLOOR
        bench.add(name, run, units=work.rows, kind="peer", against=against, rounds=3)

    def cold() -> float:
        get_reusable_executor().shutdown(wait=True)
        return work.into_file(lambda path: write(path, 256))()

    bench.add("joblib loky, memmap, chunk 256, cold", cold, units=work.rows, kind="peer", against=FLOOR, rounds=3)
