"""The work of ``mapreduce --case moments``: mean and variance of every column of 2 GB of float32 rows.

The floor is what a good numpy programmer writes for this job: two forked processes, each with half of a
memory-mapped file, widen a cache-sized block into a float64 buffer and add up its sums and sums of squares.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks._harness import Seconds, Stopwatch
from tensordict_lite import TensorDict

COLUMNS = 256
BLOCK_ROWS = 256
"""Rows of a block of the floor: the fastest of 32, 64, ... 4096 on the machine of the recorded figures."""

Answer = tuple[np.ndarray, np.ndarray]
"""Mean and variance of each column, float64."""


class Rows:
    """The rows on disk, in the page cache after the first round.

    Args:
        folder: scratch folder.
        nbytes: bytes of all rows.
        workers: processes that every contender may use.
    """

    def __init__(self, folder: Path, nbytes: int, workers: int) -> None:
        self.path = folder / "rows"
        self.columns = COLUMNS
        self.count = nbytes // (4 * COLUMNS)
        self.workers = workers
        row = TensorDict({"x": torch.zeros(COLUMNS)}, [])
        data = row.expand(self.count).memmap_like(self.path)
        generator = torch.Generator().manual_seed(0)
        for part in data["x"].split(1 << 16):
            part.normal_(3, 2, generator=generator)
        self._wanted: Answer | None = None

    @property
    def file(self) -> Path:
        """The raw float32, row by row."""
        return self.path / "x.memmap"

    def open(self) -> TensorDict:
        """The rows as this project opens them."""
        return TensorDict.load_memmap(self.path)

    def open_array(self) -> np.ndarray:
        """The rows as a numpy memory map, read-only."""
        return np.memmap(self.file, np.float32, "r", shape=(self.count, COLUMNS))

    def check(self, mean: np.ndarray, variance: np.ndarray) -> None:
        """Raise AssertionError where the answer differs from that of the first contender, which is near 3 and 4."""
        if self._wanted is None:
            np.testing.assert_allclose(mean, 3, atol=0.5)
            np.testing.assert_allclose(variance, 4, atol=1.5)
            self._wanted = np.asarray(mean), np.asarray(variance)
        np.testing.assert_allclose(mean, self._wanted[0], rtol=1e-9)
        np.testing.assert_allclose(variance, self._wanted[1], rtol=1e-9)

    def timed(self, answer: Callable[[], Answer]) -> Callable[[], Seconds]:
        """Make a case of a function that gives mean and variance; the check is not timed."""

        def run() -> Seconds:
            with Stopwatch() as watch:
                mean, variance = answer()
            self.check(mean, variance)
            return watch.seconds

        return run


def floor(rows: Rows, block: int = BLOCK_ROWS) -> Answer:
    """The hand-written loop."""
    return _in_processes(rows, _add_up_blocks, block)


def plain_loop(rows: Rows, block: int = 4096) -> Answer:
    """The first thing that comes to mind: large chunks, and a new float64 array for each of them and its square."""
    return _in_processes(rows, _add_up_plainly, block)


def _add_up_blocks(array: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    sums, squares = np.zeros(COLUMNS), np.zeros(COLUMNS)
    buffer = np.empty((block, COLUMNS))
    for low in range(0, len(array), block):
        part = array[low : low + block]
        wide = buffer[: len(part)]
        wide[...] = part
        sums += wide.sum(0)
        squares += np.einsum("ij,ij->j", wide, wide)
    return sums, squares


def _add_up_plainly(array: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    sums, squares = np.zeros(COLUMNS), np.zeros(COLUMNS)
    for low in range(0, len(array), block):
        wide = array[low : low + block].astype(np.float64)
        sums += wide.sum(0)
        squares += (wide * wide).sum(0)
    return sums, squares


def _in_processes(rows: Rows, add_up: Callable[[np.ndarray, int], Answer], block: int) -> Answer:
    context = multiprocessing.get_context("fork")
    edges = [rows.count * k // rows.workers for k in range(rows.workers + 1)]
    receivers = []

    def work(start: int, stop: int, sender: object) -> None:
        sender.send(add_up(rows.open_array()[start:stop], block))  # type: ignore[attr-defined]

    processes = []
    for pair in zip(edges, edges[1:]):
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=work, args=(*pair, sender)))
        receivers.append(receiver)
    for process in processes:
        process.start()
    parts = [receiver.recv() for receiver in receivers]
    for process in processes:
        process.join()
    sums = sum(part[0] for part in parts)
    squares = sum(part[1] for part in parts)
    mean = sums / rows.count
    return mean, (squares - sums * mean) / (rows.count - 1)
