"""Datasets of several folders and other sources, opened as one."""

from __future__ import annotations

from tdmap.shards.opening import concat, open
from tdmap.shards.sharded import ShardedDataset
from tdmap.shards.sources import OpenRows, RowSource

__all__ = ["OpenRows", "RowSource", "ShardedDataset", "concat", "open"]
