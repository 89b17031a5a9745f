"""Collections whose entries stay in an HDF5 file or a Zarr store: read on access, written on assignment."""

from __future__ import annotations

from tensordict_lite.persistent.collection import PersistentTensorDict

__all__ = ["PersistentTensorDict"]
