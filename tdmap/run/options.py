"""The options of operations: what they mean, which operation takes which, and defaults for a block.

    WorkerOptions      who works
    RunOptions         and chunks, failures            describe
    SeedOptions        random numbers
    FunctionOptions    run, seed, rows that raise      reduce, map_reduce
    OutputOptions      where rows go
    Options            output, run                     sort, shuffle, join, ...
    MapOptions         output, function                filter, flat_map
    MapGroupsOptions   output, run, seed               GroupBy.map_groups

Each set adds to those that it names.
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

TRUST, REDO = "trust", "redo"
"""After the machine went down during an in-place run: trust the files as they are, or run every chunk again that is not
known to have reached the disk."""

Resume: TypeAlias = "bool | str"
"""False, True, `TRUST` or `REDO`."""


class RunOptions(WorkerOptions, total=False):
    """Options about chunks and failures, and those about workers.

    Attributes:
        chunksize: rows of a chunk. Default: so many that a chunk is worth a call and stays small in memory.
        retries: how many times a chunk is run again when its worker dies. Default: 2.
        timeout: seconds that a chunk may take; None for any time. A worker that takes longer is replaced.
    """

    chunksize: int | None
    retries: int
    timeout: float | None


class SeedOptions(TypedDict, total=False):
    """Options about the chunks that a function of the caller gets, and its random numbers.

    Attributes:
        num_chunks: instead of `chunksize`, the number of chunks.
        seed: seeds torch, numpy and `random` before each chunk (in `map_groups`, each range of keys) by its number: the
            same bits for any number of workers.
        generator: draws the seed.
    """

    num_chunks: int | None
    seed: int | None
    generator: torch.Generator | None


class FunctionOptions(SeedOptions, RunOptions, total=False):
    """Options where a function of the caller gets chunks.

    Attributes:
        on_error: `"raise"`; `"skip"`: leave out rows on which the function raises, and warn; or a function that is
            called with each error and its rows, such as `tdmap.RowErrors()`.
    """

    on_error: OnError


class OutputOptions(TypedDict, total=False):
    """Options about the rows that an operation makes.

    Attributes:
        overwrite: replace the dataset in the folder `out`. It stays until the new one is complete.
        rows_per_shard: write a sharded dataset with so many rows a shard. The rows are made in one folder first, in
            `out/.tdmap` or among the temporary files, and copied.
        storage_options: of the file system, for an `out` that is a URL.
        resume: keep a log in a hidden folder of `out`, a path or URL. The same call resumes after any interruption,
            `kill -9` of every process included, and the result has the same bits. A text is for `map` alone.
        spill_dir: folder for intermediate files. Default: within `out`, where that is a path, else the temporary
            folder. With `resume`, they lie within `out`.
    """

    overwrite: bool
    rows_per_shard: int | None
    storage_options: Mapping[str, Any] | None
    resume: Resume
    spill_dir: str | os.PathLike[str] | None


class Options(OutputOptions, RunOptions, total=False):
    """Options of operations that make rows: where they go, chunks and failures, and workers."""


class MapOptions(OutputOptions, FunctionOptions, total=False):
    """Options of operations that make rows by a function of the caller."""


class MapGroupsOptions(SeedOptions, Options, total=False):
    """Options of `GroupBy.map_groups`."""


def _complete(*sets: tuple[type, ...]) -> None:
    """Have the documentation of a set of options tell those of the sets that it consists of, too."""
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


# -- which operation takes which -----------------------------------------------------------------------


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
"""What else there is to say about an option."""


def unknown_option(name: str, option: str, options: Iterable[str]) -> TypeError:
    """The error for an option that an operation does not take."""
    known = sorted(options)
    meant = OTHER_NAMES.get(option)
    close = [meant] if meant in known else difflib.get_close_matches(option, known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    hint = HINTS.get(option, hint)
    if option in Options.__annotations__ or option in FunctionOptions.__annotations__:
        hint = " Other operations take it; it has no meaning here."
    return TypeError(f"{name}() has no option {option!r}.{hint} It takes {', '.join(known)}.")


# -- defaults for a block ------------------------------------------------------------------------------

WORKERS = ("pool", "executor", "num_workers", "mp_start_method")
"""Options that say together who works: one of them in a call replaces all of them in the block."""

_DEFAULTS: ContextVar[Mapping[str, Any]] = ContextVar("defaults", default=MappingProxyType({}))


@contextlib.contextmanager
def options(**defaults: Unpack[RunOptions]) -> Iterator[None]:
    """Options for all operations that are called in a block, unless the call says otherwise.

    Blocks nest: the inner one adds to the outer one. They hold for this thread, or task of asyncio, alone. Functions
    that workers run are not in the block.

    Args:
        defaults: any of `RunOptions`. Those that an operation does not take are left out of its call.

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
