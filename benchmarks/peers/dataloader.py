"""A torch DataLoader as the engine: workers normalise, the main process writes what arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from benchmarks._harness import Benchmark
from benchmarks._workload import SHAPE, Workload, normalise_tensor

FLOOR = "floor, chunk 256"


class Pictures(Dataset[Tensor]):
    """Rows of the input, normalised; an item is a row, or a batch of them for a list of numbers."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        self.image: Tensor | None = None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Any) -> Tensor:
        if self.image is None:  # mapped in the worker, not sent to it
            numel = self.rows * SHAPE[0] * SHAPE[1] * SHAPE[2]
            flat = torch.from_file(str(self.path), shared=True, size=numel, dtype=torch.uint8)
            self.image = flat.view(self.rows, *SHAPE)
        if isinstance(index, list):
            return normalise_tensor(self.image[index[0] : index[-1] + 1])
        return normalise_tensor(self.image[index])


def add_cases(bench: Benchmark, work: Workload) -> None:
    """Add loading row by row, and loading whole batches."""
    pictures = Pictures(work.source_file, work.rows)
    batches = BatchSampler(SequentialSampler(pictures), 256, drop_last=False)
    loaders = {
        "DataLoader by rows, batch 256": DataLoader(pictures, batch_size=256, num_workers=work.workers),
        "DataLoader by batches of 256": DataLoader(
            pictures, sampler=batches, batch_size=None, num_workers=work.workers
        ),
    }
    for name, loader in loaders.items():
        run = work.into_file(lambda path, loader=loader: _write(work, loader, path))
        bench.add(name, run, units=work.rows, kind="peer", against=FLOOR, rounds=3)


def _write(work: Workload, loader: DataLoader[Tensor], path: Path) -> None:
    out = torch.from_numpy(work.open_output(path))
    row = 0
    for batch in loader:
        out[row : row + len(batch)] = batch
        row += len(batch)
