"""The options of operations: their meaning, the operations that take them, and defaults for a block.

    WorkerOptions      workers
    RunOptions         workers, chunks, failures       describe
    SeedOptions        random numbers
    FunctionOptions    run, seed, failing rows         reduce, map_reduce
    OutputOptions      destination of rows
    Options            output, run                     sort, shuffle, join, ...
    MapOptions         output, function                filter, flat_map
    MapGroupsOptions   output, run, seed               GroupBy.map_groups

Each set includes the sets that it names.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, Unpack

import torch

from tdmap.execution import STARTS, WorkerOptions
from tdmap.rowerrors import OnError

Resume: TypeAlias = "bool | str"
"""False, True, `TRUST` or `REDO` (see `history`)."""


class RunOptions(WorkerOptions, total=False):
    """Options about chunks, failures and workers.

    Attributes:
        chunksize: rows per chunk. Default: chosen from the row size, so that a chunk fits in the CPU cache.
        retries: how many times a chunk runs again after its worker dies. Default: 2.
        timeout: maximum seconds per chunk; a worker process that takes longer is replaced. Threads and the caller are
            not stopped. Default: no limit.
    """

    chunksize: int | None
    retries: int
    timeout: float | None


class SeedOptions(TypedDict, total=False):
    """Options about the number of chunks and the random numbers of a function.

    Attributes:
        num_chunks: the number of chunks, instead of `chunksize`.
        seed: seeds torch, numpy and `random` for each chunk (in `map_groups`, each range of keys): the same bits for
            any number of workers.
        generator: a `torch.Generator` that draws the seed.
    """

    num_chunks: int | None
    seed: int | None
    generator: torch.Generator | None


class FunctionOptions(SeedOptions, RunOptions, total=False):
    """Options of operations that call a function with chunks.

    Attributes:
        on_error: `"raise"`; `"skip"`: leave out rows on which the function raises, and warn (`tdmap.map` writes zeros
            in their place); or a `tdmap.RowErrors()` or a function that takes each error and its rows. `map` also takes
            `"drop"`.
    """

    on_error: OnError


class OutputOptions(TypedDict, total=False):
    """Options about the output of an operation.

    Attributes:
        overwrite: replace the dataset in the folder `out` when the new one is complete.
        rows_per_shard: write a sharded dataset with this many rows per shard. Operations other than `map` write one
            folder first, in `out/.tdmap` or the temporary folder, and copy it.
        storage_options: options of fsspec's file system, if `out` is a URL.
        resume: keep a log in a hidden folder of `out`, a path or URL. The same call resumes after any interruption,
            also after `kill -9` of every process, and the result has the same bits. Only `map` takes a string.
        spill_dir: folder for intermediate files. Default: `out` if it is a path, otherwise the temporary folder. With
            `resume`, always `out`.
    """

    overwrite: bool
    rows_per_shard: int | None
    storage_options: Mapping[str, Any] | None
    resume: Resume
    spill_dir: str | os.PathLike[str] | None


class Options(OutputOptions, RunOptions, total=False):
    """Options of operations that write rows: output, chunks, failures and workers."""


class MapOptions(OutputOptions, FunctionOptions, total=False):
    """Options of operations that write rows of a function's results."""


class MapGroupsOptions(SeedOptions, Options, total=False):
    """Options of `GroupBy.map_groups`."""


def _complete(*sets: tuple[type, ...]) -> None:
    """Add the documentation of the included options to that of each set."""
    own = {part: (part.__doc__ or "").partition("Attributes:\n") for each in sets for part in each}
    for whole, *parts in sets:
        listed = "".join(own[part][2].rstrip(" ") for part in (*parts, whole))
        whole.__doc__ = f"{own[whole][0].rstrip()}\n\n    Attributes:\n{listed}    "


_complete(
    (RunOptions, WorkerOptions),
    (FunctionOptions, SeedOptions, RunOptions, WorkerOptions),
    (Options, OutputOptions, RunOptions, WorkerOptions),
    (MapOptions, OutputOptions, FunctionOptions, SeedOptions, RunOptions, WorkerOptions),
    (MapGroupsOptions, OutputOptions, SeedOptions, RunOptions, WorkerOptions),
)


# -- options of an operation ---------------------------------------------------------------------------


@functools.cache
def options_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The options in the annotation `**options: Unpack[...]` of a function; without one, those about workers."""
    parameter = next((p for p in inspect.signature(fn).parameters.values() if p.kind is p.VAR_KEYWORD), None)
    if parameter is None:
        return ()
    annotation = parameter.annotation
    if isinstance(annotation, str):  # of a module that imports `Unpack` for type checkers alone
        annotation = eval(annotation, {**globals(), **fn.__globals__})
    taken = typing.get_args(annotation)
    return tuple(taken[0].__annotations__) if taken else worker_options()


OTHER_NAMES = {
    "workers": "num_workers",
    "n_jobs": "num_workers",
    "num_proc": "num_workers",
    "processes": "num_workers",
    "batch_size": "chunksize",
    "chunk_size": "chunksize",
    "progress": "pbar",
    "random_state": "seed",
    "reverse": "descending",
    "ascending": "descending",
    "output": "out",
    "start_method": "mp_start_method",
}
"""Names that options have in other libraries."""

HINTS = {
    "ordered": " States always merge with their neighbours, in the order of the rows, which costs nothing: a function "
    "of two states must be associative, f(f(a, b), c) == f(a, f(b, c)), and need not be commutative.",
}
"""A further explanation of an option."""


def unknown_option(name: str, option: str, options: Iterable[str]) -> TypeError:
    """The error for an option that an operation does not take."""
    known = sorted(options)
    meant = OTHER_NAMES.get(option)
    close = [meant] if meant in known else difflib.get_close_matches(option, known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    hint = HINTS.get(option, hint)
    if option in Options.__annotations__ or option in FunctionOptions.__annotations__:
        hint = " Other operations take it."
    return TypeError(f"{name}() has no option {option!r}.{hint} It takes {', '.join(known)}.")


# -- defaults for a block ------------------------------------------------------------------------------

WORKERS = ("pool", "executor", "num_workers", "mp_start_method")
"""Options that together choose the workers: one of them in a call replaces all of them of the block."""

_DEFAULTS: ContextVar[Mapping[str, Any]] = ContextVar("defaults", default=MappingProxyType({}))


@contextlib.contextmanager
def options(**defaults: Unpack[RunOptions]) -> Iterator[None]:
    """Set default options for all calls of operations in a block.

    Blocks nest: the inner block adds to the outer one. They apply to the current thread or asyncio task only, and not
    to calls within functions that workers run.

    Args:
        defaults: any of `RunOptions`. An operation ignores defaults that it does not take.

    Raises:
        TypeError: an unknown option.

    Example:
        >>> import tdmap, torch
        >>> with tdmap.options(num_workers=0, retries=0):
        ...     tdmap.map(torch.arange(3), torch.neg)
        tensor([ 0, -1, -2])
    """
    known = RunOptions.__annotations__
    for name in defaults:
        if name not in known:
            raise unknown_option("options", name, known)
    token = _DEFAULTS.set(with_defaults(defaults, known))
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def with_defaults(given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The options of a call, and those of the block for what it does not say.

    Args:
        given: of the call.
        known: the options that the operation takes.
    """
    defaults = _DEFAULTS.get()
    if not defaults:
        return dict(given)
    left_out = (*WORKERS, *STARTS) if "pool" in given else WORKERS if any(name in given for name in WORKERS) else ()
    return {name: value for name, value in defaults.items() if name in known and name not in left_out} | dict(given)


@functools.cache
def worker_options() -> tuple[str, ...]:
    """The names of the options about workers."""
    return tuple(WorkerOptions.__annotations__)
