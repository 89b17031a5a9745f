"""Jobs on a Ray cluster of this machine, beside our own pool of processes and beside Ray Data.

    python -m benchmarks.ray --rows 100_000 --workers 2 --rounds 3

The map is that of `map_throughput`; the groups are those of `mapreduce`. Every case on Ray has a cluster of its own
with as many CPUs as there are workers. Starting it, its actors, and the input of Ray Data is not timed.
Our maps run twice into the same files, and the second run counts: the host of a virtual machine takes back pages that
are free, and whoever happens to ask for them next is charged with their return (up to four times the whole map).
Prints a table of ratios, and writes `ray.json` and `.png` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

import tdmap
from benchmarks._groups import Table
from benchmarks._harness import RESULTS, Benchmark
from benchmarks._workload import Workload, normalise_rows
from benchmarks.peers import group_ray, ray_data
from tensordict_lite import TensorDict

POOL = "tdmap, processes"
PEER = "Ray Data, batch 256"
GROUPS = "tdmap group_by, executor=ray"


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--group-rows", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch = options.folder or Path(tempfile.mkdtemp(prefix="ray-"))
    work = Workload(scratch, options.rows, options.workers)
    table = Table(scratch / "groups", options.group_rows, 1000, options.workers)
    bench = Benchmark("ray", title=f"map over {options.rows:,} pictures, {options.workers} workers on one machine")
    bench.settings = {"rows": options.rows, "workers": options.workers, "rounds": options.rounds}
    try:
        bench.add(POOL, _map(work, None), units=work.rows, kind="floor", group="map")
        add_peer(bench, work)
        for name, transport in (("executor=ray", "auto"), ("executor=ray, object store", "store")):
            run = on_ray(work.workers, transport, _map(work, transport))
            wanted = 0.8 if transport == "auto" else None
            bench.add(f"tdmap, {name}", run, units=work.rows, kind="ours", against=POOL, wanted=wanted, group="map")
        run = on_ray(work.workers, "auto", _map(work, "auto"))
        bench.add("tdmap, executor=ray, to Ray Data", run, units=work.rows, kind="ours", against=PEER, wanted=3.0)
        group_ray.add_cases(bench, table, "Ray Data groupby")
        run = on_ray(work.workers, "auto", lambda: _group(table))
        bench.add(GROUPS, run, units=table.rows, kind="ours", against="Ray Data groupby", wanted=1.0, group="groups")
        run = on_ray(work.workers, "auto", lambda: _shuffle(work))
        bench.add("Ray Data random_shuffle", lambda: _peer_shuffle(work), units=work.rows, kind="peer", group="shuffle")
        bench.add(
            "tdmap shuffle, executor=ray",
            run,
            units=work.rows,
            kind="ours",
            against="Ray Data random_shuffle",
            wanted=1.0,
            group="shuffle",
        )
        bench.run(options.rounds, only=options.only)
        bench.report(options.results)
    finally:
        work.close()


def add_peer(bench: Benchmark, work: Workload) -> None:
    """Ray Data, measured against our pool."""
    known = ray_data.FLOOR
    ray_data.FLOOR = POOL
    try:
        ray_data.add_cases(bench, work)
    finally:
        ray_data.FLOOR = known


def on_ray(workers: int, transport: str, run: Callable[[], float]) -> Callable[[], float]:
    """A case with a cluster of its own, whose actors have started."""

    def case() -> float:
        ray_data.start(workers)
        try:
            few = TensorDict({"image": torch.zeros(64, 3, 32, 32, dtype=torch.uint8)}, [64])
            few.map(normalise_rows, num_workers=workers, chunksize=1, executor=tdmap.RayCluster(transport=transport))
            time.sleep(1.0)  # the last of them may still be on its way
            few.map(normalise_rows, num_workers=workers, chunksize=1, executor=tdmap.RayCluster(transport=transport))
            return run()
        finally:
            tdmap.close_pools()
            ray.shutdown()

    return case


def _map(work: Workload, transport: str | None) -> Callable[[], float]:
    def run() -> float:
        data = work.open()
        executor: Any = "process" if transport is None else tdmap.RayCluster(transport=transport)
        options: dict[str, Any] = {"num_workers": work.workers, "executor": executor}
        seconds = 0.0
        with work.fresh_folder() as folder:
            out = work.empty_row().expand(work.rows).memmap_like(folder / "td")
            for _ in range(2):
                began = time.perf_counter()
                data.map(normalise_rows, out=out, chunksize=256, **options)
                seconds = time.perf_counter() - began
            work.check(out["image"])
        return seconds

    return run


def _group(table: Table) -> float:
    data = table.open()
    reducers = {"total": tdmap.reducers.Sum("v"), "count": tdmap.reducers.Count()}
    began = time.perf_counter()
    found = tdmap.group_by(data, "key").reduce(reducers, num_workers=table.workers, executor="ray")
    seconds = time.perf_counter() - began
    table.check(*(found[name].numpy() for name in ("key", "total", "count")))
    return seconds


def _shuffle(work: Workload) -> float:
    data = work.open()
    with work.fresh_folder() as folder:
        began = time.perf_counter()
        tdmap.shuffle(data, seed=1, out=folder / "td", num_workers=work.workers, executor="ray")
        return time.perf_counter() - began


def _peer_shuffle(work: Workload) -> float:
    ray_data.start(work.workers)
    try:
        blocks = np.array_split(np.asarray(work.open_array()), max(work.workers * 8, 1))
        data = ray.data.from_numpy(blocks)
        with work.fresh_folder() as folder:
            began = time.perf_counter()
            data.random_shuffle(seed=1).write_numpy(str(folder), column="data")
            return time.perf_counter() - began
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
