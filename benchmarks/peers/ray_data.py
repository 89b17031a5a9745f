"""Ray Data: ``from_numpy(...).map_batches(...)`` written out with ``write_numpy``."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Ray's workers run at niceness 15 unless told otherwise, whoever's code is in them: whatever else the machine does goes
# first, and a share of a core would be compared with a core.
os.environ.setdefault("RAY_worker_niceness", "0")
import ray

from benchmarks._harness import Benchmark
from benchmarks._workload import Workload, normalise_array

FLOOR = "floor, chunk 256"


def normalise_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The work on a batch."""
    return {"image": normalise_array(batch["data"])}


def add_cases(bench: Benchmark, work: Workload) -> None:
    """Add one case; starting Ray and putting the input into its object store is not timed."""

    def run() -> float:
        start(work.workers)
        try:
            blocks = np.array_split(np.asarray(work.open_array()), max(work.workers * 8, 1))
            data = ray.data.from_numpy(blocks)
            with work.fresh_folder() as folder:
                began = time.perf_counter()
                data.map_batches(normalise_batch, batch_size=256).write_numpy(str(folder), column="image")
                seconds = time.perf_counter() - began
                _check(work, folder)
            return seconds
        finally:
            ray.shutdown()

    bench.add("Ray Data, batch 256", run, units=work.rows, kind="peer", against=FLOOR, rounds=2)


def start(workers: int) -> None:
    """Start Ray on this machine, quietly, with so many processes."""
    ray.init(
        address="local",  # whoever else has a cluster on this machine
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=3 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _check(work: Workload, folder: Path) -> None:
    rows = sum(np.load(path, mmap_mode="r").shape[0] for path in folder.rglob("*.npy"))
    if rows != work.rows:
        raise AssertionError(f"{rows} rows were written, not {work.rows}")
