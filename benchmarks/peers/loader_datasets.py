"""`datasets.IterableDataset`: shards shuffled, rows shuffled in a buffer, batches mapped, in a DataLoader's workers.

Pictures are binary values: as `Array3D` the same epoch took fifty times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks._harness import Benchmark, Seconds, Stopwatch
from benchmarks._pictures import SIDE, Pictures, augment


def augment_batch(batch: dict[str, list[Any]]) -> dict[str, Tensor]:
    """The work on a batch."""
    pictures = torch.frombuffer(bytearray(b"".join(batch["image"])), dtype=torch.uint8).view(-1, 3, SIDE, SIDE)
    return {"image": augment(pictures), "label": torch.tensor(batch["label"])}


def as_it_is(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of the dataset is a batch already."""
    return rows


def add_cases(bench: Benchmark, work: Pictures, against: str) -> Callable[[], None]:
    """Add one case; the pictures are in Arrow files before the clock starts."""
    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    made: list[DataLoader[dict[str, Tensor]]] = []

    def loader() -> DataLoader[dict[str, Tensor]]:
        if not made:
            stored = datasets.Dataset.from_generator(
                lambda: _rows(work), features=features, cache_dir=str(work.folder.parent / "arrow")
            )
            rows = stored.to_iterable_dataset(num_shards=16 * work.workers)
            rows = rows.shuffle(seed=0, buffer_size=1000).batch(work.batch).map(augment_batch)
            made.append(
                DataLoader(
                    rows,
                    batch_size=None,
                    num_workers=work.workers,
                    persistent_workers=True,
                    prefetch_factor=4,
                    collate_fn=as_it_is,
                )
            )
        return made[0]

    def run() -> Seconds:
        batches = loader()
        with Stopwatch() as watch:
            work.check((batch["image"], batch["label"]) for batch in batches)
        return watch.seconds

    name = "datasets.IterableDataset in a DataLoader"
    bench.add(name, run, units=work.batches, kind="peer", against=against, rounds=3)
    return made.clear


def _rows(work: Pictures) -> Iterator[dict[str, Any]]:
    for image, label in zip(work.images(), work.labels()):
        yield {"image": image.tobytes(), "label": int(label)}
