"""Map, reduce and stream over tensor datasets larger than memory, on every core.

`map` applies a function to chunks of a dataset on several processes and joins the results; `map_iter` yields them.
`WorkerPool` keeps workers for many calls. The exceptions are in `tdmap.errors`, what
watches a job in `tdmap.events`, samplers in `tdmap.samplers`, and classes for annotations in `tdmap.types`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdmap import errors as errors
    from tdmap import events as events
    from tdmap import reducers as reducers
    from tdmap import samplers as samplers
    from tdmap import types as types
    from tdmap.diagnostics.profiler import Profiler
    from tdmap.expressions import col
    from tdmap.ops.describe import describe
    from tdmap.ops.distinct import unique, value_counts
    from tdmap.ops.drop_duplicates import drop_duplicates
    from tdmap.ops.filter import filter
    from tdmap.ops.flat_map import flat_map
    from tdmap.ops.group_by import group_by
    from tdmap.ops.iteration.map_iter import map_iter
    from tdmap.ops.iteration.prefetch import prefetch_to_device
    from tdmap.ops.join import join
    from tdmap.ops.map import map
    from tdmap.ops.reduce import map_reduce, reduce
    from tdmap.ops.sample import sample
    from tdmap.ops.shuffle import shuffle
    from tdmap.ops.sort import sort
    from tdmap.ops.top_k import top_k
    from tdmap.ops.train_test_split import train_test_split
    from tdmap.pipeline import Pipeline
    from tdmap.ranks.merging import merge_shards
    from tdmap.rowerrors import RowErrors
    from tdmap.run.fingerprint import versioned
    from tdmap.run.options import FunctionOptions, MapGroupsOptions, MapOptions, Options, RunOptions, options
    from tdmap.runtime.executors.raycluster import RayCluster
    from tdmap.runtime.workers.pool import WorkerPool, close_pools
    from tdmap.shards import concat, open

__all__ = [
    "FunctionOptions",
    "MapGroupsOptions",
    "MapOptions",
    "Options",
    "Pipeline",
    "Profiler",
    "RayCluster",
    "RowErrors",
    "RunOptions",
    "WorkerPool",
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
    "tdmap.expressions": "col",
    "tdmap.ops.distinct": "unique value_counts",
    "tdmap.ops.drop_duplicates": "drop_duplicates",
    "tdmap.ops.filter": "filter",
    "tdmap.ops.flat_map": "flat_map",
    "tdmap.ops.train_test_split": "train_test_split",
    "tdmap.ops.group_by": "group_by",
    "tdmap.ops.iteration.map_iter": "map_iter",
    "tdmap.ops.iteration.prefetch": "prefetch_to_device",
    "tdmap.ops.join": "join",
    "tdmap.ops.map": "map",
    "tdmap.ops.reduce": "map_reduce reduce",
    "tdmap.ops.sample": "sample",
    "tdmap.ops.shuffle": "shuffle",
    "tdmap.ops.sort": "sort",
    "tdmap.ops.describe": "describe",
    "tdmap.ops.top_k": "top_k",
    "tdmap.pipeline": "Pipeline",
    "tdmap.ranks.merging": "merge_shards",
    "tdmap.rowerrors": "RowErrors",
    "tdmap.run.fingerprint": "versioned",
    "tdmap.run.options": "FunctionOptions MapGroupsOptions MapOptions Options RunOptions options",
    "tdmap.runtime.executors.raycluster": "RayCluster",
    "tdmap.runtime.workers.pool": "WorkerPool close_pools",
    "tdmap.shards": "concat open",
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
    return __all__
