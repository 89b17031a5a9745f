"""Tensors and collections in files: memory maps, the directory format, safe loading, growing datasets."""

from __future__ import annotations

from tensordict_lite.memmap.mapping import Region, SharedHandle, region_of
from tensordict_lite.memmap.tensor import MemoryMappedTensor

__all__ = ["MemoryMappedTensor", "Region", "SharedHandle", "region_of"]
