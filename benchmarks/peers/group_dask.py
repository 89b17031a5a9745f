"""Dask DataFrame on its threads, the default scheduler of frames, from pandas in memory."""

from __future__ import annotations

import dask.dataframe
import pandas

from benchmarks._groups import Answer, Table
from benchmarks._harness import Benchmark


def add_cases(bench: Benchmark, table: Table, against: str) -> None:
    """Add an answer in one partition, the default, and one spread over several, as advised for many groups."""
    frame = dask.dataframe.from_pandas(
        pandas.DataFrame({"key": table.key, "v": table.value}), npartitions=4 * table.workers, sort=False
    )

    def group(split_out: int) -> pandas.DataFrame:
        lazy = frame.groupby("key", sort=False).v.agg(["sum", "count"], split_out=split_out)
        return lazy.compute(scheduler="threads", num_workers=table.workers)

    for split_out in (1, 4 * table.workers):
        run = table.timed(lambda split_out=split_out: group(split_out), _columns)
        name = f"Dask DataFrame, split_out={split_out}"
        bench.add(name, run, units=table.rows, kind="peer", against=against, rounds=3)


def _columns(answer: pandas.DataFrame) -> Answer:
    return answer.index.to_numpy(), answer["sum"].to_numpy(), answer["count"].to_numpy()
