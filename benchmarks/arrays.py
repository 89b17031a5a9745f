"""A map over a Zarr store and an HDF5 file, beside two bare processes that read them with `zarr` and `h5py`.

    python -m benchmarks.arrays --megabytes 2048 --workers 2 --rounds 5

Rows are noisy pictures of 12 KiB, compressed in blocks of 64. The peer's processes are started before the clock, have
the store open, and read a half each, block by block; both sides give one number a row. `--memory` prints the peak
memory of the workers over a quarter of the rows and over all of them instead.
Prints a table of ratios, and writes `arrays.json` and `.png` into `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Stopwatch
from examples.memory_watch import MemoryWatch
from tensordict_lite import TensorDict

SHAPE = (3, 64, 64)
ROW_BYTES = 3 * 64 * 64
BLOCK = 64
FORMATS = {".zarr": "zarr", ".h5": "h5py"}


def brightness(chunk: TensorDict) -> Tensor:
    """The function of the map: little work, so that reading takes the time."""
    return _brightness(chunk["image"]) + chunk["label"]


def _brightness(images: Tensor) -> Tensor:
    return images[:, :, ::8, ::8].float().mean((1, 2, 3))


def bare(path: str, first: int, last: int) -> Tensor:
    """The same numbers of some rows, by the library alone, in a process of the peer's."""
    torch.set_num_threads(1)
    arrays = _opened(path)
    found = [
        _brightness(torch.from_numpy(arrays["image"][start : min(start + BLOCK, last)]))
        for start in range(first, last, BLOCK)
    ]
    return torch.cat(found) + torch.from_numpy(arrays["label"][first:last])


def _opened(path: str, mode: Any = "r") -> Any:
    if path.endswith(".zarr"):
        import zarr

        return zarr.open_group(path, mode=mode)
    import h5py

    return h5py.File(path, mode, locking=False)


def make(path: str, rows: int) -> None:
    """Write the rows: noise of four bits, which compresses by a third or so."""
    random, group = np.random.default_rng(0), _opened(path, "w")
    images = random.integers(0, 16, (BLOCK, *SHAPE), dtype=np.uint8) * 16
    create = group.create_array if path.endswith(".zarr") else group.create_dataset
    options = {} if path.endswith(".zarr") else {"compression": "lzf"}
    image = create("image", shape=(rows, *SHAPE), chunks=(BLOCK, *SHAPE), dtype="uint8", **options)
    create("label", shape=(rows,), chunks=(rows,), dtype="int64")[:] = np.arange(rows)
    for start in range(0, rows, BLOCK):
        image[start : start + BLOCK] = np.roll(images, start // BLOCK, 3)[: rows - start]
    if not path.endswith(".zarr"):
        group.close()


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--memory", action="store_true", help="measure peaks of memory instead of times")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scratch = Path(tempfile.mkdtemp(prefix="arrays-", dir=options.folder))
    rows = options.megabytes * (1 << 20) // ROW_BYTES // BLOCK * BLOCK
    try:
        with ProcessPoolExecutor(options.workers) as peers:
            measure(options, scratch, rows, peers)
    finally:
        tdmap.close_pools()
        shutil.rmtree(scratch, ignore_errors=True)


def measure(options: argparse.Namespace, scratch: Path, rows: int, peers: ProcessPoolExecutor) -> None:
    """Both formats, in turns."""
    workers = options.workers
    bench = Benchmark("arrays", title=f"{options.megabytes} MiB of compressed rows, {workers} workers")
    bench.settings = {name: getattr(options, name) for name in ("megabytes", "workers", "rounds")}
    for suffix, library in FORMATS.items():
        path = str(scratch / f"rows{suffix}")
        make(path, rows)
        bounds = [rows * number // workers // BLOCK * BLOCK for number in range(workers)] + [rows]

        def two(path: str = path, bounds: list[int] = bounds) -> Any:
            with Stopwatch() as watch:
                torch.cat(list(peers.map(bare, [path] * workers, bounds[:-1], bounds[1:])))
            return watch.seconds

        def ours(path: str = path) -> Any:
            with Stopwatch() as watch:
                tdmap.open(path).map(brightness, num_workers=workers)
            return watch.seconds

        if options.memory:
            print(suffix, *(f"{share:.0%}: {peak_of(path, round(rows * share), workers)} MB" for share in (0.25, 1)))
            continue
        assert torch.equal(tdmap.open(path).map(brightness, num_workers=workers), bare(path, 0, rows))
        bench.add(f"{library} in {workers} processes", two, units=rows, kind="peer", group=library)
        bench.add(f"tdmap.map over {suffix}", ours, units=rows, against=f"{library} in {workers} processes", wanted=0.9,
                  group=library)  # fmt: skip
    if not options.memory:
        bench.run(options.rounds)
        bench.report(options.results)


def peak_of(path: str, rows: int, workers: int) -> int:
    """MB that fresh workers hold for themselves, at their peak."""
    tdmap.close_pools()
    with MemoryWatch(interval=0.02) as watch:
        tdmap.open(path)[:rows].map(brightness, num_workers=workers)
    return round(sum(watch.peak.workers) / 1e6)


if __name__ == "__main__":
    main()
