"""Ray Data: `groupby(...).aggregate(...)` of blocks in its object store."""

from __future__ import annotations

import numpy as np
import pyarrow

from benchmarks._groups import Answer, Table
from benchmarks._harness import Benchmark, Seconds, Stopwatch
from benchmarks.peers import ray_data as engine

ray = engine.ray


def add_cases(bench: Benchmark, table: Table, against: str) -> None:
    """Add one case; starting Ray and putting the columns into its object store is not timed."""
    from ray.data.aggregate import Count, Sum

    def run() -> Seconds:
        engine.start(table.workers)
        try:
            whole = pyarrow.table({"key": table.key, "v": table.value})
            size = -(-table.rows // (8 * table.workers))
            blocks = [whole.slice(low, size) for low in range(0, table.rows, size)]
            data = ray.data.from_arrow(blocks).materialize()
            with Stopwatch() as watch:
                answer = data.groupby("key").aggregate(Sum("v"), Count()).materialize()
            table.check(*_columns(answer))
            return watch.seconds
        finally:
            ray.shutdown()

    bench.add("Ray Data groupby", run, units=table.rows, kind="peer", against=against, rounds=1)


def _columns(answer: ray.data.Dataset) -> Answer:
    parts = [ray.get(ref) for ref in answer.to_arrow_refs()]
    key, total, count = (
        np.concatenate([part[name].to_numpy() for part in parts]) for name in ("key", "sum(v)", "count()")
    )
    return key, total, count
