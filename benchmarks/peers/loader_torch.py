"""torch's DataLoader at its best: whole batches by `__getitems__`, workers that stay, batches that wait."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks._harness import Benchmark, Seconds, Stopwatch
from benchmarks._pictures import Pictures, augment


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Augmented pictures with their labels; a batch is gathered and augmented in one go."""

    def __init__(self, work: Pictures) -> None:
        self.work = work
        with warnings.catch_warnings():  # nobody writes into the read-only maps
            warnings.simplefilter("ignore", UserWarning)
            self.images, self.labels = torch.from_numpy(work.images()), torch.from_numpy(work.labels())

    def __len__(self) -> int:
        return self.work.rows

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        index = torch.tensor(rows)
        return augment(self.images[index]), self.labels[index]


class AugmentedRows(Augmented):
    """The same picture by picture, as most people write it."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return augment(self.images[row : row + 1])[0], self.labels[row]


def as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What `__getitems__` gives is a batch already."""
    return batch


def add_cases(bench: Benchmark, work: Pictures, against: str) -> Callable[[], None]:
    """Add batches, and row by row; returns what stops the workers."""
    options = {
        "batch_size": work.batch,
        "shuffle": True,
        "num_workers": work.workers,
        "persistent_workers": True,
        "prefetch_factor": 4,
    }
    by_batch = DataLoader(Augmented(work), collate_fn=as_it_is, **options)
    by_row = DataLoader(AugmentedRows(work), **options)
    for name, loader, rounds in (("by batches", by_batch, None), ("by rows", by_row, 3)):

        def run(loader: DataLoader[tuple[Tensor, Tensor]] = loader) -> Seconds:
            with Stopwatch() as watch:
                work.check((images, labels) for images, labels in loader)
            return watch.seconds

        bench.add(f"torch DataLoader {name}", run, units=work.batches, kind="peer", against=against, rounds=rounds)

    def close() -> None:
        by_batch._iterator = by_row._iterator = None

    return close
