"""Polars: an eager `group_by` of a frame in memory."""

from __future__ import annotations

import os

from benchmarks._groups import Answer, Table
from benchmarks._harness import Benchmark

NAME = "Polars group_by"


def add_cases(bench: Benchmark, table: Table, against: str) -> None:
    """Add it as it comes, and sorted by key as this project's answer is."""
    os.environ.setdefault("POLARS_MAX_THREADS", str(table.workers))  # read when it is imported
    import polars

    frame = polars.DataFrame({"key": table.key, "v": table.value})
    total = polars.col("v").sum().alias("total")

    def group() -> polars.DataFrame:
        return frame.group_by("key").agg(total, polars.len().alias("n"))

    def columns(answer: polars.DataFrame) -> Answer:
        return answer["key"].to_numpy(), answer["total"].to_numpy(), answer["n"].to_numpy()

    bench.add(NAME, table.timed(group, columns), units=table.rows, kind="peer", against=against)
    run = table.timed(lambda: group().sort("key"), columns)
    bench.add(f"{NAME}, sorted", run, units=table.rows, kind="peer", against=against)
