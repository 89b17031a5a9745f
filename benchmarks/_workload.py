"""The work that every contender of `map_throughput` does: the same rows, the same function, the same checks.

Input: ``image`` uint8 ``[rows, 3, 32, 32]`` in a memory-mapped dataset. Work: ``image / 255`` as float32.
Output: a file of 12 KiB a row. A contender that writes into files gets fresh ones each time; to lay them out is
not timed, and what it wrote is compared with the answer afterwards, also untimed.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import TensorDict

SHAPE = (3, 32, 32)

# The input is mapped read-only, and nobody writes through the tensors that are made of it.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def normalise_array(image: np.ndarray) -> np.ndarray:
    """The work on a numpy array, by the very same arithmetic: libraries are compared, not torch with numpy."""
    return normalise_tensor(torch.from_numpy(image)).numpy()


def normalise_tensor(image: Tensor) -> Tensor:
    """The work on a tensor."""
    return image.float().div_(255)


def normalise_rows(chunk: TensorDict) -> TensorDict:
    """The work on a chunk of a TensorDict."""
    return TensorDict({"image": chunk["image"].float().div_(255)}, chunk.batch_size)


def invert_rows(chunk: TensorDict) -> None:
    """The in-place work: memory traffic and nothing else."""
    chunk["image"].bitwise_not_()


@dataclass
class Workload:
    """The input on disk, and a place for outputs.

    Args:
        folder: scratch folder; everything in it is removed by :meth:`close`.
        rows: number of pictures.
        workers: processes that every contender may use.
    """

    folder: Path
    rows: int
    workers: int
    source: Path = field(init=False)

    def __post_init__(self) -> None:
        self.source = self.folder / "source"
        row = TensorDict({"image": torch.zeros(SHAPE, dtype=torch.uint8)}, [])
        data = row.expand(self.rows).memmap_like(self.source)
        generator = torch.Generator().manual_seed(0)
        for start in range(0, self.rows, 10_000):
            part = data["image"][start : start + 10_000]
            part.copy_(torch.randint(256, part.shape, dtype=torch.uint8, generator=generator))

    @property
    def source_file(self) -> Path:
        """The raw bytes of ``image``, in row order."""
        return self.source / "image.memmap"

    def open_array(self) -> np.ndarray:
        """The input as a numpy memory map, read-only."""
        return np.memmap(self.source_file, np.uint8, "r", shape=(self.rows, *SHAPE))

    def open(self) -> TensorDict:
        """The input as this project opens it."""
        return TensorDict.load_memmap(self.source)

    def empty_row(self, library: Any = None) -> Any:
        """A row of the output as a TensorDict of this project, or of ``library``."""
        return (library or TensorDict)({"image": torch.zeros(SHAPE)}, [])

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """An empty folder for one run."""
        path = self.folder / "out"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def reserved_file(self) -> Iterator[Path]:
        """A file for the output whose blocks are reserved."""
        with self.fresh_folder() as folder:
            path = folder / "image.memmap"
            size = self.rows * int(np.prod(SHAPE)) * 4
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            yield path

    def open_output(self, path: Path) -> np.ndarray:
        """A raw output file as a writable numpy memory map."""
        return np.memmap(path, np.float32, "r+", shape=(self.rows, *SHAPE))

    def into_file(self, write: Callable[[Path], Any]) -> Callable[[], float]:
        """Make a case of ``write(path)``, which fills a reserved output file."""

        def run() -> float:
            with self.reserved_file() as path:
                start = time.perf_counter()
                write(path)
                seconds = time.perf_counter() - start
                self.check(self.open_output(path))
            return seconds

        return run

    def back_to_back(self, run: Callable[[], Any]) -> float:
        """Seconds of one of two in-place passes; the second puts the inverted rows back."""
        start = time.perf_counter()
        run()
        run()
        return (time.perf_counter() - start) / 2

    def check(self, image: Any) -> None:
        """Compare rows from all over the output with the answer; AssertionError where one differs."""
        source = self.open_array()
        for row in {0, 1, self.rows // 3, self.rows // 2, self.rows - 1}:
            wanted = normalise_array(source[row])
            if not np.array_equal(np.asarray(image[row]), wanted):
                raise AssertionError(f"row {row} of the output is wrong")

    def close(self) -> None:
        """Remove everything from disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
