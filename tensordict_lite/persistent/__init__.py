"""Collections whose entries stay in an HDF5 file or a Zarr store: read at each access, written when they are set."""

from __future__ import annotations

from tensordict_lite.persistent.collection import PersistentTensorDict

__all__ = ["PersistentTensorDict"]
