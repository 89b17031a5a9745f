"""Options: what each adds to a call, and for which operations it has a meaning."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tdmap
from tests.cells.operations import Operation


class Option(NamedTuple):
    """An option of operations."""

    arguments: Callable[[Path], dict[str, Any]]
    """The arguments of the call, given a folder for its files."""
    applies: Callable[[Operation], bool] = lambda operation: True
    """Whether it has a meaning for an operation. Where it has none, the call must say so."""
    calls: int = 1
    """How many times the call is made; the last result counts."""


def has_output(operation: Operation) -> bool:
    return operation.has_output


def runs_function(operation: Operation) -> bool:
    return operation.runs_function


OPTIONS: dict[str, Option] = {
    "plain": Option(lambda folder: {}),
    "workers": Option(lambda folder: {"num_workers": 2}),
    "executor": Option(lambda folder: {"num_workers": 2, "executor": "thread"}),
    "chunksize": Option(lambda folder: {"chunksize": 5}),
    "retries": Option(lambda folder: {"retries": 0}),
    "timeout": Option(lambda folder: {"timeout": 600.0}),
    "callbacks": Option(lambda folder: {"callbacks": [tdmap.events.Callback()]}),
    "out": Option(lambda folder: {"out": folder / "out"}, has_output),
    "overwrite": Option(lambda folder: {"out": folder / "out", "overwrite": True}, has_output, calls=2),
    "resume": Option(lambda folder: {"out": folder / "out", "resume": True}, has_output, calls=2),
    "rows_per_shard": Option(lambda folder: {"out": folder / "out", "rows_per_shard": 5}, has_output),
    "resume in shards": Option(
        lambda folder: {"out": folder / "out", "rows_per_shard": 5, "resume": True}, has_output, calls=2
    ),
    "URL": Option(lambda folder: {"out": f"memory://cells-{uuid.uuid4().hex}/out"}, has_output),
    "spill_dir": Option(lambda folder: {"out": folder / "out", "spill_dir": folder}, has_output),
    "seed": Option(lambda folder: {"seed": 3}, runs_function),
    "num_chunks": Option(lambda folder: {"num_chunks": 3}, runs_function),
    "on_error": Option(lambda folder: {"on_error": "skip"}, runs_function),
}
"""By their names. Each is asked alone, with what it needs beside it."""
