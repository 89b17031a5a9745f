"""The work of ``benchmarks.loader``: an epoch of shuffled batches of pictures, cropped, flipped and normalised.

Input: ``image`` uint8 ``[rows, 3, 64, 64]`` and ``label`` int64, in the page cache. A batch is float32
``[batch, 3, 56, 56]`` and its labels: each picture has a random crop, half of them are flipped left to right, and all
are normalised. Every contender calls `augment`, on whole batches where it can hand them over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SIDE, CROP = 64, 56
MEAN, STD = (118.0, 112.0, 104.0), (58.0, 57.0, 57.0)

_SCALE = 1 / torch.tensor(STD).view(3, 1, 1)
_SHIFT = -torch.tensor(MEAN).view(3, 1, 1) * _SCALE


def augment(pictures: Tensor) -> Tensor:
    """Crops of a batch of pictures, flipped or not, normalised: torch's own random stream decides."""
    count = len(pictures)
    corners = torch.randint(SIDE - CROP + 1, (count, 2)).tolist()
    flips = (torch.rand(count) < 0.5).tolist()
    crops = torch.empty(count, 3, CROP, CROP, dtype=torch.uint8)
    for picture, crop, (top, left), flip in zip(pictures.unbind(), crops.unbind(), corners, flips):
        window = picture[:, top : top + CROP, left : left + CROP]
        crop.copy_(window.flip(-1) if flip else window)
    return crops.float().mul_(_SCALE).add_(_SHIFT)


def augment_with(pictures: np.ndarray, seed: int) -> np.ndarray:
    """The same on a numpy array, with the random stream of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return augment(torch.from_numpy(pictures)).numpy()


class Pictures:
    """The pictures on disk, as two raw files: what a dataset of this project has in its folder.

    Args:
        folder: where; pictures that are there already are used.
        rows: how many.
        batch: rows of a batch; the last one of an epoch may be shorter.
        workers: processes that every contender may use.
    """

    def __init__(self, folder: Path, rows: int, batch: int, workers: int) -> None:
        self.folder, self.rows, self.batch, self.workers = folder, rows, batch, workers

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch)

    def images(self) -> np.ndarray:
        """All pictures, as a read-only memory map."""
        return np.memmap(self.folder / "image.memmap", np.uint8, "r", shape=(self.rows, 3, SIDE, SIDE))

    def labels(self) -> np.ndarray:
        """All labels: the numbers of the rows."""
        return np.memmap(self.folder / "label.memmap", np.int64, "r", shape=(self.rows,))

    def check(self, batches: Iterator[tuple[Tensor, Tensor]], *, exact: bool = True) -> None:
        """Use up an epoch of (pictures, labels), looking at each batch as little as a training loop may.

        Raises:
            AssertionError: a shape or type is wrong, rows are missing or come twice, or nothing was shuffled.
        """
        seen = []
        for images, labels in batches:
            if images.dtype != torch.float32 or images.shape[1:] != (3, CROP, CROP) or len(images) != len(labels):
                raise AssertionError(f"a batch has {images.dtype} {list(images.shape)} and {len(labels)} labels")
            seen.append(labels.clone())
        every = torch.cat(seen)
        if exact and not torch.equal(every.sort().values, torch.arange(self.rows)):
            raise AssertionError("some rows are missing or come twice")
        if bool((every[1:] > every[:-1]).all()):
            raise AssertionError("the rows are in their own order")
