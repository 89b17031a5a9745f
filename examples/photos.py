"""Real photographs that come inside packages: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Photograph:
    """One picture, channels first."""

    name: str
    """What is in it."""
    pixels: Tensor
    """uint8 ``[3, height, width]``."""


def load_photographs() -> list[Photograph]:
    """Load the colour photographs that scikit-learn and scikit-image carry in their wheels.

    Returns:
        Ten pictures, uint8 ``[3, height, width]``, always in the same order.

    Raises:
        ImportError: the ``images`` extra is not installed.
    """
    try:
        from skimage import data
        from sklearn.datasets import load_sample_image
    except ImportError as error:
        raise ImportError("the photographs come with the extra `images`: pip install 'tdmap[images]'") from error

    sources: dict[str, Callable[[], np.ndarray]] = {
        "temple": lambda: load_sample_image("china.jpg"),
        "flower": lambda: load_sample_image("flower.jpg"),
        "astronaut": data.astronaut,
        "cat": data.chelsea,
        "coffee": data.coffee,
        "rocket": data.rocket,
        "galaxies": data.hubble_deep_field,
        "retina": lambda: data.retina()[250:1160, 250:1160],  # the picture is round: its corners are black
        "tissue": data.immunohistochemistry,
        "motorcycle": lambda: data.stereo_motorcycle()[0],
    }
    return [Photograph(name, _channels_first(load())) for name, load in sources.items()]


def _channels_first(picture: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(picture[..., :3].transpose(2, 0, 1)))
