"""Dask Array over the same memory map: both statistics in one `dask.compute`, so that a chunk is read once."""

from __future__ import annotations

import dask
import dask.array
import numpy as np

from benchmarks._harness import Benchmark
from benchmarks._moments import Answer, Rows


def add_cases(bench: Benchmark, rows: Rows, against: str) -> None:
    """Add the threaded scheduler, the default for arrays, at its own chunk size and at one of 8 MiB."""

    def answer(chunks: object) -> Answer:
        array = dask.array.from_array(rows.open_array(), chunks=chunks)
        both = array.mean(0, dtype=np.float64), array.var(0, dtype=np.float64, ddof=1)
        mean, variance = dask.compute(*both, scheduler="threads", num_workers=rows.workers)
        return mean, variance

    for name, chunks in (("default chunks", "auto"), ("chunks of 8 MiB", ((8 << 20) // (4 * rows.columns), -1))):
        run = rows.timed(lambda chunks=chunks: answer(chunks))
        bench.add(f"Dask Array, {name}", run, units=rows.count, kind="peer", against=against, rounds=3)
