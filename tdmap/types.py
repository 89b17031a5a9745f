"""Classes that functions of tdmap return or are called with, for annotations and `isinstance`."""

from __future__ import annotations

from tdmap.data.kinds import Dataset
from tdmap.diagnostics.progress import ProgressBar
from tdmap.errors import RowError
from tdmap.expressions import Expression
from tdmap.ops.group_by import GroupBy
from tdmap.ops.iteration.iterator import MapIterator
from tdmap.pipeline import PipelineIterator
from tdmap.plan import ChunkPlan
from tdmap.shards import OpenRows, RowSource, ShardedDataset

__all__ = [
    "ChunkPlan",
    "Dataset",
    "Expression",
    "GroupBy",
    "MapIterator",
    "OpenRows",
    "PipelineIterator",
    "ProgressBar",
    "RowError",
    "RowSource",
    "ShardedDataset",
]
