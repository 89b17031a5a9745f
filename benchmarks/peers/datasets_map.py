"""``datasets.Dataset.map`` with ``num_proc``: batched, numpy format, fixed-shape array features."""

from __future__ import annotations

import time

import datasets
import numpy as np

from benchmarks._harness import Benchmark
from benchmarks._workload import SHAPE, Workload, normalise_array

FLOOR = "floor, chunk 256"


def normalise_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The work on a batch."""
    return {"image": normalise_array(batch["image"])}


def add_cases(bench: Benchmark, work: Workload) -> None:
    """Add one case; the input is in Arrow files before the clock starts."""
    datasets.disable_progress_bars()
    cache = work.folder / "arrow"
    made: list[datasets.Dataset] = []

    def prepared() -> datasets.Dataset:
        if not made:
            features = datasets.Features({"image": datasets.Array3D(SHAPE, "uint8")})
            source = work.open_array()
            writer = datasets.Dataset.from_generator(
                lambda: ({"image": row} for row in source), features=features, cache_dir=str(cache)
            )
            made.append(writer.with_format("numpy"))
        return made[0]

    def run() -> float:
        data = prepared()
        features = datasets.Features({"image": datasets.Array3D(SHAPE, "float32")})
        with work.fresh_folder() as folder:
            start = time.perf_counter()
            result = data.map(
                normalise_batch,
                batched=True,
                batch_size=256,
                num_proc=work.workers,
                features=features,
                load_from_cache_file=False,
                cache_file_name=str(folder / "out.arrow"),
            )
            seconds = time.perf_counter() - start
            work.check(_Rows(result))
        return seconds

    name = f"datasets.map(num_proc={work.workers}), batch 256"
    bench.add(name, run, units=work.rows, kind="peer", against=FLOOR, rounds=2)


class _Rows:
    """Rows of the ``image`` column by number."""

    def __init__(self, data: datasets.Dataset) -> None:
        self.data = data

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self.data[row]["image"])
