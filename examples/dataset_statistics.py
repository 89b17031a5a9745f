"""Mean, deviation and histogram of every colour channel of real photographs, in one pass over the rows.

    python examples/dataset_statistics.py --rows 20_000 --workers 2

Cuts patches out of photographs into a memory-mapped dataset, folds them on several processes, and checks every
number against plain numpy over the same bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import load_photographs

import tdmap
from tdmap.reducers import Count, Histogram, Mean, MinMax, Quantile, Std
from tensordict_lite import TensorDict

EDGE = 32
BINS = 16


def cut_patches(folder: Path, rows: int, seed: int) -> TensorDict:
    """A dataset of ``rows`` random patches, uint8 ``[3, 32, 32]``, in ``folder``."""
    photographs = [photo.pixels for photo in load_photographs()]
    generator = torch.Generator().manual_seed(seed)
    row = TensorDict({"image": torch.zeros(3, EDGE, EDGE, dtype=torch.uint8)}, [])
    data = row.expand(rows).memmap_like(folder)
    for image in data["image"].unbind():
        pixels = photographs[int(torch.randint(len(photographs), (), generator=generator))]
        y = int(torch.randint(pixels.shape[1] - EDGE, (), generator=generator))
        x = int(torch.randint(pixels.shape[2] - EDGE, (), generator=generator))
        image.copy_(pixels[:, y : y + EDGE, x : x + EDGE])
    return data


def statistics(data: TensorDict, workers: int) -> TensorDict:
    """All statistics in one pass."""
    channels = (0, 2, 3)
    reducers = {
        "mean": Mean("image", dim=channels),
        "std": Std("image", dim=channels),
        "extrema": MinMax("image", dim=channels),
        "histogram": Histogram("image", bins=BINS, range=(0, 256), dim=channels),
        "median": Quantile("image", q=0.5, relative_error=0.01),
        "n": Count(),
    }
    result: TensorDict = tdmap.reduce(data, reducers, num_workers=workers)
    return result


def check(stats: TensorDict, data: TensorDict) -> None:
    """Raise AssertionError unless numpy agrees."""
    pixels: np.ndarray[Any, Any] = data["image"].numpy()
    np.testing.assert_allclose(stats["mean"], pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(stats["std"], pixels.astype(np.float64).std((0, 2, 3), ddof=1), rtol=1e-9)
    np.testing.assert_array_equal(stats["extrema", "max"], pixels.max((0, 2, 3)))
    for channel in range(3):
        counts, _ = np.histogram(pixels[:, channel], BINS, (0, 256))
        np.testing.assert_array_equal(stats["histogram", "count"][channel], counts)
    median = float(np.median(pixels))
    assert abs(float(stats["median"]) - median) <= 0.01 * median + 1e-9
    assert int(stats["n"]) == len(pixels)


def main() -> None:
    """Run the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tdmap-statistics-") as folder:
        data = cut_patches(Path(folder) / "patches", options.rows, options.seed)
        stats = statistics(data, options.workers)
        check(stats, data)
    print(f"{int(stats['n']):,} patches, median value {float(stats['median']):.0f}")
    highest = int(stats["histogram", "count"].max())
    for channel, name in enumerate(("red", "green", "blue")):
        bars = "".join(" ▁▂▃▄▅▆▇█"[round(8 * int(n) / highest)] for n in stats["histogram", "count"][channel])
        print(f"{name:>5}  mean {stats['mean'][channel]:6.2f}  std {stats['std'][channel]:5.2f}  0 {bars} 255")
    print("checked: numpy gives the same numbers")


if __name__ == "__main__":
    main()
