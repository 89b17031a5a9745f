"""The floor: what somebody would write by hand for exactly this job, and nothing more.

Two forked processes, each with half of the rows, loop over memory-mapped files at a given chunk size. No
scheduling, no retries, no progress, no errors: the part of the time that no library can save.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks._workload import SHAPE, Workload, normalise_tensor


def write_output(work: Workload, path: Path, chunk: int) -> None:
    """Fill the output file with the normalised rows."""
    _in_processes(work, lambda start, stop: _normalise(work, path, chunk, start, stop))


def invert_in_place(work: Workload, path: Path, chunk: int) -> None:
    """Invert the rows of a file of pictures in place."""
    _in_processes(work, lambda start, stop: _invert(work, path, chunk, start, stop))


def _normalise(work: Workload, path: Path, chunk: int, start: int, stop: int) -> None:
    source = _map(work.source_file, work.rows, torch.uint8)
    out = _map(path, work.rows, torch.float32)
    for low in range(start, stop, chunk):
        high = min(low + chunk, stop)
        out[low:high] = normalise_tensor(source[low:high])


def _invert(work: Workload, path: Path, chunk: int, start: int, stop: int) -> None:
    image = _map(path, work.rows, torch.uint8)
    for low in range(start, stop, chunk):
        image[low : min(low + chunk, stop)].bitwise_not_()


def _map(path: Path, rows: int, dtype: torch.dtype) -> torch.Tensor:
    numel = rows * SHAPE[0] * SHAPE[1] * SHAPE[2]
    return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).view(rows, *SHAPE)


def _in_processes(work: Workload, job: Callable[[int, int], None]) -> None:
    context = multiprocessing.get_context("fork")
    edges = [work.rows * k // work.workers for k in range(work.workers + 1)]

    def run(start: int, stop: int) -> None:
        torch.set_num_threads(1)
        job(start, stop)

    processes = [context.Process(target=run, args=pair) for pair in zip(edges, edges[1:])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process of the floor ended with {process.exitcode}")
