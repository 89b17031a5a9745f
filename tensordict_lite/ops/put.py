"""Numbers in any form on their way into rows of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.building.arrays import require_unmasked
from tensordict_lite.errors import EntryKindError

__all__ = ["NUMBERS", "as_rows", "put_rows"]

NUMBERS = (Tensor, int, float, complex)


def put_rows(entry: Tensor, index: Any, value: Any, key: str) -> None:
    """``entry[index] = value``, with arrays and lists of numbers in the dtype of the entry.

    Raises:
        EntryKindError: the value is neither a number nor an array of them.
    """
    entry[index] = value if isinstance(value, NUMBERS) else as_rows(value, entry, key)


def as_rows(value: Any, entry: Tensor, key: str) -> Tensor:
    """An array, list or tuple of numbers as a tensor of the kind of ``entry``."""
    if isinstance(value, (np.ndarray, np.generic, list, tuple)):
        require_unmasked(value, f"the value for {key!r}")
        try:
            return torch.as_tensor(np.asarray(value) if isinstance(value, np.generic) else value, device="cpu").to(
                entry
            )
        except (TypeError, ValueError, RuntimeError):  # strings, ragged lists
            pass
    raise EntryKindError(key, entry, value)
