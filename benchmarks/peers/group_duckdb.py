"""DuckDB: SQL over an Arrow table in memory, and over its own table in memory."""

from __future__ import annotations

import duckdb
import pyarrow

from benchmarks._groups import Answer, Table
from benchmarks._harness import Benchmark


def add_cases(bench: Benchmark, table: Table, against: str) -> None:
    """Add both."""
    connection = duckdb.connect(config={"threads": table.workers})
    connection.register("arrow_rows", pyarrow.table({"key": table.key, "v": table.value}))
    connection.execute("CREATE TABLE own_rows AS SELECT * FROM arrow_rows")

    def group(source: str) -> pyarrow.Table:
        query = f"SELECT key, sum(v) AS total, count(*) AS n FROM {source} GROUP BY key"
        return connection.sql(query).to_arrow_table()

    for name, source in (("Arrow table", "arrow_rows"), ("own table", "own_rows")):
        run = table.timed(lambda source=source: group(source), _columns)
        bench.add(f"DuckDB, {name}", run, units=table.rows, kind="peer", against=against)


def _columns(answer: pyarrow.Table) -> Answer:
    key, total, count = (answer[name].to_numpy() for name in ("key", "total", "n"))
    return key, total, count
