"""The work of ``mapreduce --case shuffle``: the rows of a dataset, in random order, as a new dataset on disk.

The floor is what the disk itself takes for as many bytes: `cp`, with the new file brought to the disk at the end, as
every contender does within its time (`sync`). The other floor is a loop by hand: two forked processes that gather rows
by a permutation from one memory map into another, which no dataset larger than memory allows.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks._harness import Seconds, Stopwatch
from tensordict_lite import TensorDict

WORD = 8
SMALL = 256
"""Bytes between the numbers in a file: the smallest row."""


class Rows:
    """Rows on disk. Every 256 bytes begin with a number, so that each row says where it was.

    Args:
        folder: scratch folder.
        nbytes: bytes of all rows, about.
        row_bytes: bytes of a row, a multiple of 256.
        workers: processes that every contender may use.
        same: other rows whose bytes these are, cut differently; the file is shared.
    """

    def __init__(self, folder: Path, nbytes: int, row_bytes: int, workers: int, same: Rows | None = None) -> None:
        self.folder, self.workers, self.words = folder, workers, row_bytes // WORD
        self.path = folder / f"rows-{row_bytes}"
        self.count = nbytes // row_bytes
        row = TensorDict({"x": torch.zeros(self.words, dtype=torch.int64)}, [])
        data = row.expand(self.count).memmap_like(self.path)
        if same is not None:
            self.file.unlink()
            self.file.hardlink_to(same.file)
            return
        start = 0
        generator = torch.Generator().manual_seed(0)
        for part in data["x"].view(-1, SMALL // WORD).split((64 << 20) // SMALL):
            part.random_(generator=generator)
            part[:, 0] = torch.arange(start, start + len(part))
            start += len(part)
        sync(self.path)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.count * self.words * WORD

    @property
    def file(self) -> Path:
        """The raw rows."""
        return self.path / "x.memmap"

    def open(self) -> TensorDict:
        """The rows as this project opens them."""
        return TensorDict.load_memmap(self.path)

    def array(self, path: Path, mode: str = "r") -> np.ndarray:
        """A file of rows as a numpy memory map."""
        return np.memmap(path, np.int64, mode, shape=(self.count, self.words))  # type: ignore[call-overload]

    def into(self, write: Callable[[Path], Path], to_disk: bool, ordered: bool = False) -> Callable[[], Seconds]:
        """Make a case of ``write(folder)``, which returns the file that it wrote.

        Args:
            write: writes all rows below the folder.
            to_disk: the time includes bringing them to the disk.
            ordered: they come in the order of the source; otherwise in any other.
        """

        def run() -> Seconds:
            out = self.folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            sync(self.folder)
            try:
                with Stopwatch() as watch:
                    path = write(out)
                    if to_disk:
                        sync(path)
                self.check(path, ordered)
                return watch.seconds
            finally:
                shutil.rmtree(out)
                sync(self.folder)

        return run

    def check(self, path: Path, ordered: bool) -> None:
        """Raise AssertionError unless the file has each row once, whole, in the wanted order or not in it."""
        source, got = self.array(self.file), self.array(path)
        numbers = got[:, 0] // (self.words * WORD // SMALL)
        if ordered != bool((numbers[1:] > numbers[:-1]).all()):
            raise AssertionError("the rows are in the wrong order")
        if not np.array_equal(np.sort(numbers), np.arange(self.count)):
            raise AssertionError("some rows are missing or come twice")
        for row in {0, 1, self.count // 3, self.count - 1}:
            if not np.array_equal(got[row], source[numbers[row]]):
                raise AssertionError(f"row {row} of the result is not row {numbers[row]} of the source")


def sync(path: Path) -> None:
    """Bring the file system of ``path`` to the disk, files of this benchmark first."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def copy(rows: Rows, out: Path) -> Path:
    """`cp` of the file."""
    subprocess.run(["cp", "--reflink=never", str(rows.file), str(out / "rows")], check=True)
    return out / "rows"


def gather(rows: Rows, out: Path) -> Path:
    """The loop by hand, where everything fits into memory."""
    path = out / "rows"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, rows.nbytes)
    order = np.random.default_rng(0).permutation(rows.count)
    edges = [rows.count * k // rows.workers for k in range(rows.workers + 1)]
    block = max((1 << 20) // (rows.words * WORD), 1)

    def work(start: int, stop: int) -> None:
        source, target = rows.array(rows.file), rows.array(path, "r+")
        for low in range(start, stop, block):
            high = min(low + block, stop)
            np.take(source, order[low:high], axis=0, out=target[low:high], mode="clip")

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=pair) for pair in zip(edges, edges[1:])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process of the floor ended with {process.exitcode}")
    return path
