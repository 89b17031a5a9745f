"""Datasets of several folders, here and in object stores, opened as one."""

from __future__ import annotations

from tdmap.stores.opening import concat, open
from tdmap.stores.sharded import ShardedDataset
from tdmap.stores.sources import OpenRows, RowSource

__all__ = ["OpenRows", "RowSource", "ShardedDataset", "concat", "open"]
