"""Where the bytes of a tensor lie, and the bytes themselves."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tensordict_lite.gathering import flat_bytes
from tensordict_lite.memmap.disk.mapping import Region, SharedHandle, is_reachable, region_of

__all__ = ["Region", "SharedHandle", "bytes_of", "flat_bytes", "is_reachable", "region_of"]


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, whatever its dtype."""
    array: Any = flat_bytes(tensor).numpy()
    return memoryview(array)
