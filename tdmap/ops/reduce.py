"""`reduce` and `map_reduce`: a dataset in, one answer out, the same bits for any number of workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from torch import Tensor

from tdmap.data.kinds import Data, Dataset, is_data
from tdmap.data.reader import require_entry
from tdmap.data.sizes import row_bytes_of
from tdmap.data.stacks import columns_read
from tdmap.functions import as_function, check_placement
from tdmap.job import function_name
from tdmap.memory.hidden import AnyPath
from tdmap.output.values import Fold
from tdmap.plan import default_chunk_size
from tdmap.reducers import Count, Reducer, as_reducer
from tdmap.reducers.base import Answers, Associative, Key, Several, merged
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import FunctionOptions
from tensordict_lite import TensorDict

A = TypeVar("A")

FOLD_BYTES = 8 << 20
"""Bytes of a default chunk that is folded as it is: the reducers cut it to the size of the cache themselves, and each
chunk costs a state that travels and a merge."""


class FoldChunk:
    """What a worker calls: the state of one chunk, after an optional function of the user's.

    Args:
        reducer: folds the rows.
        mapper: applied to the chunk first, or None.
        dim: the dimension of the chunk that holds its rows; None when the chunk is one row without it.
    """

    takes_start = True

    def __init__(self, reducer: Reducer[Any], mapper: Callable[[Any], Any] | None, dim: int | None = 0) -> None:
        self.reducer = reducer
        self.mapper = mapper
        self.dim = dim
        # Messages and progress bars name what the user wrote.
        if mapper is None and isinstance(reducer, Several):
            self.__qualname__ = f"reduce({', '.join(reducer.parts)})"
        else:
            self.__qualname__ = function_name(type(reducer) if mapper is None else mapper)

    def __call__(self, chunk: Data, start: int = 0) -> Any:
        if self.mapper is not None:
            rows = self.mapper(chunk)
            self._require_each_row(chunk, rows)
        elif self.dim is None:
            rows = chunk.unsqueeze(0)
        else:  # reducers take rows in dimension 0
            rows = chunk if self.dim == 0 else chunk.movedim(self.dim, 0)
        return self.reducer.update(self.reducer.init(), rows, start)

    def _require_each_row(self, chunk: Any, rows: Any) -> None:
        if self.reducer.numbers_rows:
            got, wanted = len(rows), 1 if self.dim is None else chunk.shape[self.dim]
            if got != wanted:
                raise ValueError(
                    f"the reducer numbers rows, as TopK does, and the mapper returned {got} rows for {wanted}: "
                    "return one row for each, or use data.pipeline().filter(...).reduce(...)."
                )

    def merge_states(self, a: Any, b: Any) -> Any:
        """The state of neighbouring chunks; a worker that has both merges them."""
        return merged(self.reducer, a, b)

    def join_states(self, states: list[Any]) -> Any:
        """The state of a chunk whose parts were folded one by one."""
        return functools.reduce(self.merge_states, states) if states else self.reducer.init()


@overload
def map_reduce(
    data: Dataset[Any],
    mapper: Callable[[Any], Any] | None,
    reducer: Answers[A] | Callable[[Any, Any], A],
    *,
    dim: int = 0,
    resume: AnyPath | None = None,
    **options: Unpack[FunctionOptions],
) -> A: ...
@overload
def map_reduce(
    data: Dataset[Any],
    mapper: Callable[[Any], Any] | None,
    reducer: Mapping[str, Reducer[Any]],
    *,
    dim: int = 0,
    resume: AnyPath | None = None,
    **options: Unpack[FunctionOptions],
) -> TensorDict: ...
@operation
def map_reduce(
    ctx: Context,
    data: Dataset[Any],
    mapper: Callable[[Any], Any] | None,
    reducer: Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
    *,
    dim: int = 0,
    resume: str | os.PathLike[str] | None = None,
    **options: Unpack[FunctionOptions],
) -> Any:
    """Fold `mapper(chunk)` over all chunks of a dataset.

    Workers fold their chunks into states; states merge in a fixed binary tree over the chunk numbers. So the result has
    the same bits for any number of workers, any executor and any crash. With rounding arithmetic it depends on the
    chunk size (see `tdmap.reducers`).

    Args:
        data: a tensor or a collection of tensors, with rows along `dim`.
        mapper: a function, module or transform (see `tdmap.functions`) that is applied to each chunk; rows are in
            dimension 0 of its result. None folds the chunk itself, with rows moved from `dim` to dimension 0.
        reducer: a `tdmap.reducers.Reducer`, a mapping of names to reducers (the result is a TensorDict), or an
            associative function of two mapped chunks.
        dim: the dimension of the rows.
        resume: a folder for states: after an interruption the same call resumes, and the result has the same bits. If
            the run is complete, the call warns and returns its result. States are stored without pickle: tensors,
            arrays, numbers, strings, containers of them, and instances of top-level classes of the reducer's module, or
            of classes declared with `torch.serialization.add_safe_globals`.
        **options: see `tdmap.FunctionOptions`. Skipped rows are left out of the result.

    Returns:
        `reducer.finish(state)` of the merged state; for zero rows, of `reducer.init()`.

    Raises:
        ValueError: the reduction of zero rows is undefined, `merge` changes its arguments, or an option is out of
            range.
        KeyError: a reducer reads an unknown entry; without a mapper, raised before the job starts.
        ResumeMismatch: the folder holds another run; names the difference.
        FolderInUse: another call uses the folder.
        SerializationError: with `resume`, a state holds an object that needs pickle.
        Exception: as `tdmap.map`.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6.0)}, batch_size=[6])
        >>> map_reduce(data, lambda td: td["x"].sum(), lambda a, b: a + b, num_workers=2, chunksize=2)
        tensor(15.)
    """
    if mapper is not None and not callable(mapper):
        raise TypeError(f"mapper must be a function or None, got {mapper!r}.")
    return fold(ctx, data, reducer, mapper, dim)


@overload
def reduce(
    data: Dataset[Any],
    reducer: Answers[A] | Callable[[Any, Any], A],
    *,
    dim: int = 0,
    resume: AnyPath | None = None,
    **options: Unpack[FunctionOptions],
) -> A: ...
@overload
def reduce(
    data: Dataset[Any],
    reducer: Mapping[str, Reducer[Any]],
    *,
    dim: int = 0,
    resume: AnyPath | None = None,
    **options: Unpack[FunctionOptions],
) -> TensorDict: ...
@operation
def reduce(
    ctx: Context,
    data: Dataset[Any],
    reducer: Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
    *,
    dim: int = 0,
    resume: str | os.PathLike[str] | None = None,
    **options: Unpack[FunctionOptions],
) -> Any:
    """Fold the chunks of a dataset: `map_reduce` without a mapper, with the same options.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> from tdmap.reducers import Count, Mean
        >>> data = TensorDict({"x": torch.arange(6.0)}, batch_size=[6])
        >>> stats = reduce(data, {"mean": Mean("x"), "n": Count()}, num_workers=2)
        >>> float(stats["mean"]), int(stats["n"])
        (2.5, 6)
    """
    return fold(ctx, data, reducer, None, dim)


def fold(
    ctx: Context,
    data: Data,
    reducer: Answers[Any] | Mapping[str, Reducer[Any]] | Callable[[Any, Any], Any],
    mapper: Callable[[Any], Any] | None = None,
    dim: int = 0,
) -> Any:
    """`map_reduce` as a part of any operation. Arguments and errors are the same."""
    reducer = as_reducer(reducer)
    if mapper is None:
        _require_entries(reducer, data)
        data = columns_for(reducer, data) if dim == 0 else data
    mapper = None if mapper is None else as_function(mapper)
    check_placement(mapper, ctx.execution.in_processes, None)
    chunksize, num_chunks = ctx.options.get("chunksize"), ctx.options.get("num_chunks")
    fn = FoldChunk(reducer, mapper, None if chunksize == 0 else dim)
    plan = ctx.plan(data, dim)
    if mapper is None and chunksize is None and num_chunks is None:
        row_bytes = row_bytes_of(data, plan.length)
        plan = replace(plan, size=default_chunk_size(plan.length, row_bytes, FOLD_BYTES))
    if plan.length == 0:
        return reducer.finish(_state_of_no_rows(reducer, data) if mapper is None else reducer.init())
    return reducer.finish(ctx.run(ctx.job(data, plan, fn), Fold(reducer)))


def _state_of_no_rows(reducer: Reducer[Any], data: Data) -> Any:
    state = reducer.init()
    return reducer.update(state, data) if _is_ours(reducer) and is_data(data) else state  # a chunk tells the dtype


def _is_ours(reducer: Reducer[Any]) -> bool:
    """Whether the library's reducers, and no others, read the chunks."""
    parts = reducer.parts.values() if isinstance(reducer, Several) else [reducer]
    return all(type(part).__module__.startswith(_REDUCERS) and not isinstance(part, Associative) for part in parts)


def columns_for(reducer: Reducer[Any], data: Data, others: Collection[Key] = ()) -> Data:
    """The data, with columns in place of lazy stacks whose members differ in length.

    Whether rows differ must not depend on the chunk: one row, or a few that are equally long, can be stacked. Reducers
    of the caller get the rows as they are.

    Args:
        reducer: what folds the rows.
        data: the dataset.
        others: entries that are read besides those that the reducer reads.
    """
    if not _is_ours(reducer) or isinstance(data, Tensor) or not is_data(data):
        return data
    parts = reducer.parts.values() if isinstance(reducer, Several) else [reducer]
    keys = [getattr(part, "key", None) for part in parts if not isinstance(part, Count)]
    return columns_read(data, [*keys, *others])


def _require_entries(reducer: Reducer[Any], data: Data) -> None:
    """Raise KeyError where a reducer of the library reads an entry that is not there."""
    if isinstance(data, Tensor) or not is_data(data):  # which is said later
        return
    for name, part in reducer.parts.items() if isinstance(reducer, Several) else [("", reducer)]:
        key = getattr(part, "key", None) if type(part).__module__.startswith(_REDUCERS) else None
        if key is not None:
            require_entry(data, key, f"the entry of the reducer {name!r}" if name else f"the entry of {part!r}")


_REDUCERS = "tdmap.reducers."
