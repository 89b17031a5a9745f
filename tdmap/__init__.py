"""Map, reduce and stream over tensor datasets larger than memory, on every core.

`map` applies a function to chunks of a dataset on several processes and joins the results; `map_iter` yields them.
`WorkerPool` keeps workers for many calls. `Callback` objects watch a job through its events. The exceptions are in
`tdmap.errors`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdmap.diagnostics.profiler import Profiler
    from tdmap.diagnostics.progress import ProgressBar
    from tdmap.errors import (
        AlreadyComplete,
        ChunkTimeout,
        FolderInUse,
        OutputMismatch,
        RemoteError,
        RemoteTraceback,
        ResumeMismatch,
        SerializationError,
        ShardsMissing,
        TdmapError,
        UnreadableFile,
        UntrustedFile,
        WorkerLost,
        WorkerStartError,
    )
    from tdmap.events import Callback, ChunkRetried, JobEnded, JobStarted, LeaseDone, RowsSkipped, WorkerDied
    from tdmap.expressions import Expression, col
    from tdmap.ops.describe import describe
    from tdmap.ops.distinct import unique, value_counts
    from tdmap.ops.drop_duplicates import drop_duplicates
    from tdmap.ops.filter import filter
    from tdmap.ops.flat_map import flat_map
    from tdmap.ops.group_by import GroupBy, group_by
    from tdmap.ops.iteration.iterator import MapIterator
    from tdmap.ops.iteration.map_iter import map_iter
    from tdmap.ops.iteration.prefetch import prefetch_to_device
    from tdmap.ops.iteration.samplers import BalancedSampler, MixedSampler, WeightedSampler
    from tdmap.ops.join import join
    from tdmap.ops.map import map
    from tdmap.ops.reduce import map_reduce, reduce
    from tdmap.ops.sample import sample
    from tdmap.ops.shuffle import shuffle
    from tdmap.ops.sort import sort
    from tdmap.ops.top_k import top_k
    from tdmap.ops.train_test_split import train_test_split
    from tdmap.pipeline import Pipeline, PipelineIterator
    from tdmap.plan import ChunkPlan
    from tdmap.ranks import merge_shards
    from tdmap.reducers import Reducer
    from tdmap.rowerrors import RowError, RowErrors, SkippedRows
    from tdmap.run.fingerprint import versioned
    from tdmap.run.options import FunctionOptions, MapGroupsOptions, MapOptions, Options, RunOptions, options
    from tdmap.runtime.executors.raycluster import RayCluster
    from tdmap.runtime.workers.pool import WorkerPool, close_pools
    from tdmap.stores import ShardedDataset, concat, open

__all__ = [
    "AlreadyComplete",
    "BalancedSampler",
    "Callback",
    "ChunkPlan",
    "ChunkRetried",
    "ChunkTimeout",
    "Expression",
    "FolderInUse",
    "FunctionOptions",
    "GroupBy",
    "JobEnded",
    "JobStarted",
    "LeaseDone",
    "MapGroupsOptions",
    "MapIterator",
    "MapOptions",
    "MixedSampler",
    "Options",
    "OutputMismatch",
    "Pipeline",
    "PipelineIterator",
    "Profiler",
    "ProgressBar",
    "RayCluster",
    "Reducer",
    "RemoteError",
    "RemoteTraceback",
    "ResumeMismatch",
    "RowError",
    "RowErrors",
    "RowsSkipped",
    "RunOptions",
    "ShardsMissing",
    "SerializationError",
    "ShardedDataset",
    "SkippedRows",
    "TdmapError",
    "UnreadableFile",
    "UntrustedFile",
    "WeightedSampler",
    "WorkerDied",
    "WorkerLost",
    "WorkerPool",
    "WorkerStartError",
    "close_pools",
    "col",
    "concat",
    "describe",
    "drop_duplicates",
    "filter",
    "flat_map",
    "group_by",
    "join",
    "map",
    "map_iter",
    "map_reduce",
    "merge_shards",
    "open",
    "options",
    "prefetch_to_device",
    "reduce",
    "sample",
    "shuffle",
    "sort",
    "top_k",
    "train_test_split",
    "unique",
    "value_counts",
    "versioned",
]

_PLACES = {
    "tdmap.diagnostics.profiler": "Profiler",
    "tdmap.diagnostics.progress": "ProgressBar",
    "tdmap.errors": (
        "AlreadyComplete ChunkTimeout FolderInUse OutputMismatch RemoteError RemoteTraceback ResumeMismatch "
        "SerializationError ShardsMissing TdmapError UnreadableFile UntrustedFile WorkerLost WorkerStartError"
    ),
    "tdmap.events": "Callback ChunkRetried JobEnded JobStarted LeaseDone RowsSkipped WorkerDied",
    "tdmap.expressions": "Expression col",
    "tdmap.ops.distinct": "unique value_counts",
    "tdmap.ops.drop_duplicates": "drop_duplicates",
    "tdmap.ops.filter": "filter",
    "tdmap.ops.flat_map": "flat_map",
    "tdmap.ops.train_test_split": "train_test_split",
    "tdmap.ops.group_by": "GroupBy group_by",
    "tdmap.ops.iteration.iterator": "MapIterator",
    "tdmap.ops.iteration.map_iter": "map_iter",
    "tdmap.ops.iteration.prefetch": "prefetch_to_device",
    "tdmap.ops.iteration.samplers": "BalancedSampler MixedSampler WeightedSampler",
    "tdmap.ops.join": "join",
    "tdmap.ops.map": "map",
    "tdmap.ops.reduce": "map_reduce reduce",
    "tdmap.ops.sample": "sample",
    "tdmap.ops.shuffle": "shuffle",
    "tdmap.ops.sort": "sort",
    "tdmap.ops.describe": "describe",
    "tdmap.ops.top_k": "top_k",
    "tdmap.pipeline": "Pipeline PipelineIterator",
    "tdmap.plan": "ChunkPlan",
    "tdmap.ranks": "merge_shards",
    "tdmap.reducers": "Reducer",
    "tdmap.rowerrors": "RowError RowErrors SkippedRows",
    "tdmap.run.fingerprint": "versioned",
    "tdmap.run.options": "FunctionOptions MapGroupsOptions MapOptions Options RunOptions options",
    "tdmap.runtime.executors.raycluster": "RayCluster",
    "tdmap.runtime.workers.pool": "WorkerPool close_pools",
    "tdmap.stores": "ShardedDataset concat open",
}
"""The module of each name. A name is imported when it is first asked for: `tdmap --help`, completion in a shell and
spawned workers need few of them."""


def __getattr__(name: str) -> Any:
    # The garbage collector would look at all that torch and this package define: an eighth of the time of an import.
    was_on = gc.isenabled()
    gc.disable()
    try:
        for module, names in _PLACES.items():
            if name in names.split():
                return globals().setdefault(name, getattr(importlib.import_module(module), name))
        if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
    finally:
        if was_on:
            gc.enable()
    raise AttributeError(f"module 'tdmap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
