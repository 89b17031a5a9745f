"""Datasets of several folders, here and in object stores, opened as one."""

from __future__ import annotations

from tdmap.stores.opening import concat, open
from tdmap.stores.sharded import ShardedDataset

__all__ = ["ShardedDataset", "concat", "open"]
