"""What a table user does, beside the libraries that are made for tables.

    python -m benchmarks.tables                               # 5 M rows: filter, group, join, sort
    python -m benchmarks.tables --case filter --rounds 7
    python -m benchmarks.tables --rows 100_000 --rounds 1     # a look

Rows are narrow: an int64 key, a float32 value, an int64 id. Ours lie in memory-mapped files and the result in shared
memory; Polars has a frame in memory, and makes another one; DuckDB has a table in memory, and makes another one. All
have the same number of workers or threads, results are checked, and cases run in turns. The ratio of a peer is its
time over ours: above 1, we are faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Seconds, Stopwatch
from tdmap.reducers import Sum
from tensordict_lite import TensorDict

Columns = Mapping[str, np.ndarray]


class Question(NamedTuple):
    """One thing to do, and how each contender does it."""

    ours: Callable[[], TensorDict]
    polars: Callable[[Any], Any]
    """Called with the module of peers; a frame."""
    sql: str
    check: Callable[[Columns], None]
    """Raises AssertionError when the columns of a result, in any order of rows, are wrong."""
    wanted: tuple[float | None, float | None]
    """Of Polars and DuckDB."""


class Table:
    """The rows that everybody works on.

    Args:
        folder: scratch folder.
        rows: how many.
        workers: processes or threads.
    """

    def __init__(self, folder: Path, rows: int, workers: int) -> None:
        random = np.random.default_rng(0)
        self.rows, self.workers, self.folder = rows, workers, folder
        self.many, self.half = max(rows // 5, 1), max(rows // 10, 1)
        self.columns: dict[str, np.ndarray] = {
            "few": random.integers(0, 10, rows),
            "many": random.integers(0, self.many, rows),
            "key": random.integers(0, self.half, rows),
            "v": random.standard_normal(rows).astype(np.float32),
            "id": random.permutation(rows),
        }
        # Keys of the second table are distinct, in random order, and spread over those of the first one.
        self.other = {"key": random.permutation(self.half), "w": random.random(self.half, dtype=np.float32)}

    def narrow(self, key: str, names: tuple[str, ...] = ("v", "id")) -> dict[str, np.ndarray]:
        """The rows with one of the keys."""
        return {"key": self.columns[key], **{name: self.columns[name] for name in names}}

    def open(self, name: str, columns: Columns) -> TensorDict:
        """Columns as files."""
        rows = len(next(iter(columns.values())))
        path = self.folder / name
        TensorDict({key: torch.from_numpy(value) for key, value in columns.items()}, [rows]).memmap(path)
        return TensorDict.load_memmap(path)


def same_rows(found: Columns, wanted: Columns, by: str | None = None) -> None:
    """Raise AssertionError unless two tables have the same columns, in the order of the entry `by`."""
    order, other = (None, None) if by is None else (np.argsort(found[by]), np.argsort(wanted[by]))
    for name, column in wanted.items():
        mine = found[name] if order is None else found[name][order]
        np.testing.assert_allclose(mine, column if other is None else column[other], rtol=1e-3, atol=1e-3, err_msg=name)


def run_filter(table: Table) -> Question:
    """Half of the rows."""
    columns = table.narrow("key")
    data, kept = table.open("filter", columns), columns["v"] > 0
    wanted = {name: column[kept] for name, column in columns.items()}
    return Question(
        lambda: tdmap.filter(data, POSITIVE(), num_workers=table.workers),
        lambda pl: lambda frame: frame["rows"].filter(pl.col("v") > 0),
        "SELECT * FROM rows WHERE v > 0",
        lambda found: same_rows(found, wanted),
        (None, 0.8),
    )


def positive(rows: TensorDict) -> torch.Tensor:
    """The predicate as a function."""
    return rows["v"] > 0


def POSITIVE() -> Any:
    """The predicate as an expression, where there are such."""
    return tdmap.col("v") > 0 if hasattr(tdmap, "col") else positive


def run_filter_function(table: Table) -> Question:
    """The same with a function."""
    question = run_filter(table)
    data = TensorDict.load_memmap(table.folder / "filter")
    return question._replace(ours=lambda: tdmap.filter(data, positive, num_workers=table.workers), wanted=(None, None))


def _group(table: Table, key: str, wanted: float) -> Question:
    columns = table.narrow(key, ("v",))
    data = table.open(f"group-{key}", columns)
    totals = np.bincount(columns["key"], columns["v"].astype(np.float64))
    present = np.flatnonzero(np.bincount(columns["key"]))
    answer = {"key": present, "total": totals[present]}
    return Question(
        lambda: tdmap.group_by(data, "key").reduce({"total": Sum("v")}, num_workers=table.workers),
        lambda pl: lambda frame: frame["rows"].group_by("key").agg(pl.col("v").sum().alias("total")),
        "SELECT key, sum(v) AS total FROM rows GROUP BY key",
        lambda found: same_rows(found, answer, "key"),
        (wanted, wanted),
    )


def run_group_few(table: Table) -> Question:
    """Sums of 10 groups."""
    return _group(table, "few", 0.8)


def run_group_many(table: Table) -> Question:
    """Sums of a million groups (a fifth of the rows)."""
    return _group(table, "many", 1.2)


def run_join(table: Table) -> Question:
    """Every row beside one of a tenth as many."""
    columns = table.narrow("key")
    data, other = table.open("join", columns), table.open("other", table.other)
    by_key = np.empty_like(table.other["w"])
    by_key[table.other["key"]] = table.other["w"]
    wanted = {**columns, "w": by_key[columns["key"]]}
    return Question(
        lambda: tdmap.join(data, other, "key", num_workers=table.workers),
        lambda pl: lambda frame: frame["rows"].join(frame["other"], on="key"),
        "SELECT * FROM rows JOIN other USING (key)",
        lambda found: same_rows(found, wanted, "id"),
        (0.9, 0.9),
    )


def _sort(table: Table, key: str) -> Question:
    columns = table.narrow("key")
    data = table.open("sort", columns)
    # Ties among keys are free, but ids tell all rows apart.
    order = np.lexsort((columns["id"], columns[key]))
    wanted = {name: column[order] for name, column in columns.items()}

    def check(found: Columns) -> None:
        assert (np.diff(found[key]) >= 0).all(), "not sorted"
        order = np.lexsort((found["id"], found[key]))
        same_rows({name: column[order] for name, column in found.items()}, wanted)

    return Question(
        lambda: tdmap.sort(data, key, num_workers=table.workers),
        lambda pl: lambda frame: frame["rows"].sort(key),
        f"SELECT * FROM rows ORDER BY {key}",
        check,
        (1.0, 1.0),
    )


def run_sort_integer(table: Table) -> Question:
    """By an integer with ten rows a value."""
    return _sort(table, "key")


def run_sort_float(table: Table) -> Question:
    """By the float."""
    return _sort(table, "v")


CASES: dict[str, Callable[[Table], Question]] = {
    "filter": run_filter,
    "filter by function": run_filter_function,
    "group by 10 keys": run_group_few,
    "group by 1 M keys": run_group_many,
    "join": run_join,
    "sort by integer": run_sort_integer,
    "sort by float": run_sort_float,
}


def add_case(bench: Benchmark, name: str, question: Question, columns: Mapping[str, Columns], workers: int) -> None:
    """Ours, and each peer that is installed."""

    def timed(run: Callable[[], Any], open_: Callable[[Any], Columns]) -> Callable[[], Seconds]:
        def case() -> Seconds:
            with Stopwatch() as watch:
                result = run()
            question.check(open_(result))
            return watch.seconds

        return case

    ours, rows = f"tdmap, {name}", len(next(iter(columns["rows"].values())))
    run = timed(question.ours, lambda found: {key: found[key].numpy() for key in found.keys()})
    bench.add(ours, run, units=rows, group=name)
    peers = (("Polars", _polars, question.wanted[0]), ("DuckDB", _duckdb, question.wanted[1]))
    for peer, make, wanted in peers:
        try:
            case = timed(*make(question, columns, workers))
        except ImportError as error:
            print(f"  {peer} is left out: {error}", file=sys.stderr)
            continue
        how: dict[str, Any] = {"kind": "peer", "against": ours, "wanted": wanted, "measure": "lead"}
        bench.add(f"{peer}, {name}", case, units=rows, group=name, **how)


def _polars(question: Question, columns: Mapping[str, Columns], workers: int) -> tuple[Any, Any]:
    os.environ.setdefault("POLARS_MAX_THREADS", str(workers))  # read when it is imported
    import polars

    frames = {name: polars.DataFrame(dict(rows)) for name, rows in columns.items()}
    run = question.polars(polars)
    return lambda: run(frames), lambda frame: {name: frame[name].to_numpy() for name in frame.columns}


def _duckdb(question: Question, columns: Mapping[str, Columns], workers: int) -> tuple[Any, Any]:
    import duckdb
    import pyarrow

    connection = duckdb.connect(config={"threads": workers})
    for name, rows in columns.items():
        connection.register("arrow", pyarrow.table(dict(rows)))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow")
        connection.unregister("arrow")

    def run() -> None:
        connection.execute(f"CREATE OR REPLACE TABLE result AS {question.sql}")

    def read(_: None) -> Columns:
        return dict(connection.execute("SELECT * FROM result").fetchnumpy())

    return run, read


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="regular expression on the names of contenders")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    scratch = Path(tempfile.mkdtemp(prefix="tables-", dir=options.folder))
    bench = Benchmark("tables", title=f"{options.rows:,} rows of three columns, {options.workers} workers")
    bench.settings = {name: getattr(options, name) for name in ("rows", "workers", "rounds")}
    try:
        for name, ask in CASES.items():
            if options.case in (name, "all"):
                folder = scratch / name.replace(" ", "-")
                folder.mkdir()
                table = Table(folder, options.rows, options.workers)
                question = ask(table)
                columns: dict[str, Columns] = {"rows": _read(folder)}
                if name == "join":
                    columns["other"] = table.other
                add_case(bench, name, question, columns, options.workers)
        bench.run(options.rounds, only=options.only)
        bench.report(options.results)
    finally:
        tdmap.close_pools()
        shutil.rmtree(scratch, ignore_errors=True)


def _read(folder: Path) -> Columns:
    """The first table of a question, which is not `other`."""
    (path,) = (path for path in folder.iterdir() if path.name != "other")
    data = TensorDict.load_memmap(path)
    return {name: data[name].numpy() for name in data.keys()}


if __name__ == "__main__":
    main()
