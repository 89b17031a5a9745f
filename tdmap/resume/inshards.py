"""`rows_per_shard=` and URLs for operations that make one folder: they make it, and then it is copied into shards.

    operation ──► out/.tdmap/rows, or, where `out` is a URL, a folder among the temporary files
                      └── workers, a shard each ──► `out`, the manifest last

So the disk holds the result once more meanwhile. `map` needs none of this: it knows the places of its rows before.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from tdmap.data.kinds import Data
from tdmap.data.sizes import row_bytes_of
from tdmap.execution import Execution, WorkerOptions
from tdmap.job import Job, Source
from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN
from tdmap.memory.scratch import temporary_folder
from tdmap.plan import ChunkPlan
from tdmap.resume.sharding import check_rows_per_shard, claimed, map_to_target, replaceable, target_of
from tdmap.stores.targets import LocalTarget, Target
from tensordict_lite.paths import is_url

CHUNK_BYTES = 4 << 20
"""Rows that are copied at a time."""

Function = TypeVar("Function", bound=Callable[..., Any])


def or_in_shards(fn: Function) -> Function:
    """Have an operation write shards where `rows_per_shard`, or a URL as `out`, asks for them.

    The function has parameters `out`, `overwrite`, `rows_per_shard` and `storage_options`. It is called without the
    last two, and with a folder as `out`.

    Raises (when it is called):
        ValueError: `out` is no path, or `resume` is asked for; says what to do.
        FileExistsError: something is in the place of the shards, before anything is done.
    """
    place = list(inspect.signature(fn).parameters).index("out")

    @functools.wraps(fn)
    def call(
        *args: Any, rows_per_shard: int | None = None, storage_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        out = args[place] if len(args) > place else kwargs.get("out")
        if rows_per_shard is None and not is_url(out):
            return fn(*args, **kwargs)
        check_rows_per_shard(rows_per_shard)
        if not isinstance(out, (str, os.PathLike)):
            raise ValueError("rows_per_shard= writes a folder of shards: pass out=its path, or a URL.")
        if kwargs.get("resume"):
            raise ValueError(
                f"resume=True goes on in one folder, and {fn.__name__} would make {os.fspath(out)!r} in shards of "
                "another: let it write a folder, and copy that with tdmap.map(tdmap.open(folder), lambda chunk: "
                "chunk, out=..., rows_per_shard=..., resume=True)."
            )
        overwrite, options = kwargs.pop("overwrite", False), dict(storage_options or {})
        workers: Any = {name: kwargs[name] for name in WorkerOptions.__annotations__ if name in kwargs}

        def run(folder: str) -> Data:
            if len(args) > place:
                return fn(*args[:place], folder, *args[place + 1 :], **kwargs)
            return fn(*args, **{**kwargs, "out": folder})

        return in_shards(run, out, rows_per_shard, Execution.of(**workers), overwrite, options)

    return call  # type: ignore[return-value]


def in_shards(
    run: Callable[[str], Data],
    out: str | os.PathLike[str],
    rows_per_shard: int | None,
    execution: Execution,
    overwrite: bool = False,
    options: dict[str, Any] | None = None,
) -> Data:
    """What `run` writes into the folder that it is called with, as shards.

    Args:
        run: makes the folder.
        out, rows_per_shard, overwrite, options: as `map_to_shards`.
        execution: who copies.

    Raises:
        FileExistsError: something is in the place of the shards, before anything is done.
    """
    target = target_of(out, options)
    with claimed(target, "rows_per_shard="):
        replaceable(target, overwrite)
        with _beside(target) as folder:
            made = run(folder)
            length = int(made.shape[0])
            plan = ChunkPlan(length, max(min(CHUNK_BYTES // max(row_bytes_of(made, length), 1), length), 1))
            job = Job(Source(made), plan, as_it_is)
            return map_to_target(job, target, rows_per_shard, execution, overwrite=overwrite)


def as_it_is(rows: Data) -> Data:
    """The function of the copy."""
    return rows


@contextmanager
def _beside(target: Target) -> Iterator[str]:
    """A folder in the hidden one of a folder, or among the temporary files; removed afterwards."""
    if not isinstance(target, LocalTarget):
        with temporary_folder("tdmap-rows") as scratch:
            yield f"{scratch}/rows"
        return
    folder = f"{target.name}/{HIDDEN}/rows"
    hidden.remove_tree(folder)  # of a call that was killed
    try:
        yield folder
    finally:
        hidden.remove_tree(folder)
