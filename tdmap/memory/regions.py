"""Where the bytes of a tensor lie, and the bytes themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_lite.memmap.disk.mapping import Region, SharedHandle, is_reachable, region_of

__all__ = ["Region", "SharedHandle", "bytes_of", "flat_bytes", "is_reachable", "region_of"]


def flat_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor of any dtype and shape, as a view: uint8, one dimension.

    Not by `reshape(-1)`: a tensor of one row is contiguous whatever its stride, which it keeps, and torch does not
    view elements as bytes where the stride is not 1.

    Example:
        >>> flat_bytes(torch.arange(20)[::2][:1]).tolist()
        [0, 0, 0, 0, 0, 0, 0, 0]
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, whatever its dtype."""
    array: Any = flat_bytes(tensor).numpy()
    return memoryview(array)
