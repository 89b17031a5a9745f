"""`flat_map`: any number of rows for each chunk, which wait in files until all are known."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Unpack

from tdmap.data.join import result_of_no_rows
from tdmap.data.kinds import Data, Dataset
from tdmap.data.schema import Schema, take_apart
from tdmap.functions import user_function
from tdmap.job import Wrapped
from tdmap.output.append import append_rows, each_result
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import MapOptions


@operation
def flat_map(
    ctx: Context,
    data: Dataset[Any],
    fn: Callable[[Any], Any],
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    **options: Unpack[MapOptions],
) -> Any:
    """Map each chunk to any number of rows, and concatenate them in the order of the chunks.

    Args:
        data: a tensor or collection with rows in dimension 0.
        fn: takes a chunk, and returns any number of rows in dimension 0: a tensor, a collection, a dict of columns,
            None (no rows), or an iterable of these. Rows of a generator are written as it yields them. With
            `chunksize=0` it takes a single row, without the row dimension, and returns rows.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows.
        **options: see `tdmap.MapOptions`. With `on_error="skip"` or a function, rows on which `fn` raises are left out.
            Intermediate files take as many bytes as the result.

    Returns:
        The first rows of `out`, the dataset loaded from the folder, or a new one. If the result has no rows, the first
        empty result defines its entries; for data without rows, the result of `fn` for zero rows.

    Raises:
        OutputMismatch: results differ in keys, dtypes or row shapes, or do not fit `out`; names them.
        ValueError: the result has no rows and an unknown schema; or `out` shares memory with the data.
        ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        Exception: the exception of `fn`, with a note that names the rows.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"n": torch.tensor([2, 0, 3])}, [3])
        >>> flat_map(data, lambda td: td["n"].repeat_interleave(td["n"]), num_workers=2)
        tensor([2, 2, 3, 3, 3])
    """
    fn = user_function(fn)
    plan = ctx.plan(data, results_vary=True)
    empty = _schema_of_no_rows(data, fn, plan) if not plan.length and ctx.output.given is None else None
    return append_rows(ctx, ctx.job(data, plan, fn), empty=empty)


def _schema_of_no_rows(data: Data, fn: Callable[..., Any], plan: ChunkPlan) -> Schema | None:
    def first(rows: Data) -> Data | None:
        return next(each_result(Wrapped(fn).call(rows, 0), rows), None)

    rows = result_of_no_rows(first, data, plan)
    return None if rows is None else take_apart(rows[:0]).schema
