"""A dataset of images as a tensorclass: fields, own methods, and every operation of a TensorDict.

    python examples/tensorclass_images.py --images 100

Synthetic images, a mask and a label each. ``mask_image`` and ``select_label`` are methods of the class; indexing,
reshaping, stacking, saving and mapping come with it and give the same class back.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor

from tensordict_lite import TensorClass, TensorDict


class MyData(TensorClass):
    """Images ``[*batch, 3, H, W]`` in 0..1, boolean masks ``[*batch, 1, H, W]`` and one label each ``[*batch]``."""

    image: Tensor
    mask: Tensor
    label: Tensor

    def mask_image(self) -> Tensor:
        """The masked pixels of each image, ``[*batch, n]``; every mask must select the same number."""
        return self.image[self.mask.expand_as(self.image)].view(*self.batch_size, -1)

    def select_label(self, label: int) -> MyData:
        """The rows of one label."""
        return self[self.label == label]


def make(images: int, side: int, seed: int = 0) -> MyData:
    """Random images that share one random mask."""
    generator = torch.Generator().manual_seed(seed)
    return MyData(
        torch.rand(images, 3, side, side, generator=generator),
        (torch.rand(1, side, side, generator=generator) < 0.5).expand(images, 1, side, side),
        label=torch.randint(10, (images,), generator=generator),
        batch_size=[images],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=100, help="how many images; a multiple of 10")
    parser.add_argument("--side", type=int, default=64, help="height and width in pixels")
    options = parser.parse_args()
    if options.images < 10 or options.images % 10:
        parser.error(f"--images must be a positive multiple of 10, got {options.images}")

    data = make(options.images, options.side)
    print("label 1:   ", data.select_label(1))
    print("masked:    ", tuple(data.mask_image().shape))
    print("reshaped:  ", data.reshape(10, -1))
    print("brightness:", data.image.mean((1, 2, 3))[:3].tolist(), "...")
    pair = torch.stack([data, data.apply(lambda x: x.clone())])  # type: ignore[list-item]
    print("stacked:   ", type(pair).__name__, tuple(pair.shape))
    with tempfile.TemporaryDirectory() as folder:
        data.memmap(folder)
        loaded = TensorDict.load_memmap(folder)
        print("loaded:    ", type(loaded).__name__, "with the same labels:", bool((loaded.label == data.label).all()))


if __name__ == "__main__":
    main()
