"""grain: batches of row numbers, loaded and augmented as a whole in its worker processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import grain
import numpy as np
import torch
from torch import Tensor

from benchmarks._harness import Benchmark, Seconds, Stopwatch
from benchmarks._pictures import Pictures, augment_with


class Load:
    """Reads and augments the rows of a batch."""

    def __init__(self, work: Pictures) -> None:
        self.work = work

    def __call__(self, rows: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        pictures = self.work.images()[rows]
        return {"image": augment_with(pictures, int(random.integers(1 << 62))), "label": self.work.labels()[rows]}


def add_cases(bench: Benchmark, work: Pictures, against: str) -> Callable[[], None]:
    """Add one case. Epochs follow each other in one iterator, so that workers start once."""
    _parse_flags()
    batches = (
        grain.MapDataset.range(work.rows)
        .seed(0)
        .shuffle()
        .batch(work.batch, drop_remainder=False)
        .random_map(Load(work))
        .repeat()
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=work.workers, per_worker_buffer_size=4))
    )
    running: list[Iterator[dict[str, np.ndarray]]] = []

    def epoch() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in itertools.islice(running[0], work.batches):
            yield torch.from_numpy(batch["image"]), torch.from_numpy(batch["label"])

    def run() -> Seconds:
        if not running:
            running.append(iter(batches))
            work.check(epoch())  # imports of its workers
        with Stopwatch() as watch:
            work.check(epoch())
        return watch.seconds

    bench.add("grain", run, units=work.batches, kind="peer", against=against)
    return running.clear


def _parse_flags() -> None:
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["loader"])
