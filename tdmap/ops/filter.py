"""`filter`: some rows of a dataset, as one contiguous dataset in their order.

    filter    first job    chunk ──predicate──► mask, a byte a row          rows stay where they are
              between      prefix sum: where the rows of each chunk go      the output is allocated, exactly
              second job   rows that are wanted ──► their place             copied once, in parallel

A formula (`tdmap.col("v") > 0`) reads the columns that it names, and no others; where these are small, the caller does
it at once instead of the first job.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.kinds import Data, Dataset, R
from tdmap.data.reader import narrow, require_entry, rows_of, select
from tdmap.data.schema import Schema
from tdmap.data.sizes import row_bytes_of
from tdmap.errors import OutputMismatch, add_note, describe_rows
from tdmap.expressions import Expression
from tdmap.functions import user_function
from tdmap.job import Job, Source, Wrapped
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.output.given import Preallocated
from tdmap.output.output import SourceRows, Step
from tdmap.output.permute import block_rows, place_rows
from tdmap.plan import MIN_CHUNKS, ChunkPlan
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import MapOptions

MASK = "mask"
"""Name of the file of answers, a byte a row."""

MASK_BYTES, MASK_ROWS = 4 << 20, 1 << 16
"""What a predicate is asked about at a time, at most, by default: of narrow rows."""

LIGHT = 64 << 20
"""Bytes of columns that a formula is evaluated on in the caller: as fast as a job of its own."""

LIGHT_ROWS = 1 << 18
"""That many at a time, at most: few calls, and values that stay in the cache."""


@operation
def filter(
    ctx: Context,
    data: Dataset[R],
    predicate: Callable[[R], Any],
    *,
    out: Dataset[Any] | str | os.PathLike[str] | None = None,
    **options: Unpack[MapOptions],
) -> R:
    """Keep the rows for which a predicate is true, in the order of the dataset.

    Args:
        data: a tensor or collection with rows in dimension 0. It is not changed.
        predicate: takes a chunk and returns one bool per row: a tensor or NumPy array of shape `[rows]`, or a list.
            With `chunksize=0` it takes a single row and returns one bool. Or an expression such as
            `tdmap.col("v") > 0`, which reads only the columns that it names, without a Python call per chunk.
        out: None (new shared memory), a folder (new memory-mapped dataset), or a dataset with enough rows, which must
            not share memory with the data.
        **options: see `tdmap.MapOptions`. With `on_error="skip"` or a function, rows on which the predicate raises are
            left out. Intermediate files take one byte per row.

    Returns:
        The kept rows: the first rows of `out`, the dataset loaded from the folder, or a new one. If no row is kept, the
        result has zero rows, with the keys and dtypes of the data.

    Raises:
        OutputMismatch: the predicate returned another type or shape, or `out` has too few rows, or other shapes or
            dtypes; names the expected and the actual one.
        ValueError: `out` is the data or shares memory with it.
        ResumeMismatch: with `resume`, the folder holds another run; names the difference.
        Exception: the exception of the predicate, with a note that names the rows.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(10)}, [10])
        >>> filter(data, lambda td: td["x"] % 3 == 0, num_workers=2)["x"]
        tensor([0, 3, 6, 9])
    """
    predicate = user_function(predicate)
    plan = ctx.plan(data)
    job = ctx.job(data, plan, Mask(predicate, plan.unbind))
    source = SourceRows(data)
    source.check(ctx.output)
    if isinstance(predicate, Expression) and not plan.unbind:
        job = _of_columns(job, predicate)
    elif all(ctx.options.get(name) is None for name in CUT_BY):
        job = replace(job, plan=_with_larger_chunks(plan, row_bytes_of(data, plan.length)))
    if isinstance(predicate, Expression) and _is_light(job):
        mask = torch.empty(plan.length, dtype=torch.bool)
        _fill(mask, job.source.data, Mask(predicate, single=False))
        copy_selected(ctx, data, source, mask)
        kept: R = ctx.output.result()
        return kept
    with ctx.spill() as spill:
        mask = spill.mapped(MASK, plan.length).view(torch.bool)
        if plan.length:
            ctx.run(job, Preallocated(mask))
        copy_selected(ctx, data, source, mask)
    kept = ctx.output.result()  # the mask lies in the folder that it publishes, until then
    return kept


CUT_BY = ("chunksize", "num_chunks", "seed", "generator")
"""Options with which the chunks of a predicate are those of the plan: seeds follow them."""


def _of_columns(job: Job, predicate: Expression) -> Job:
    """The job on the entries that a formula reads, in chunks for rows as narrow as these."""
    data, plan = job.source.data, job.plan
    if not rows_of(data).selects or not predicate.keys:
        return job  # a column of a lazy stack is a copy of it
    keys = sorted(predicate.keys, key=str)
    for key in keys:
        require_entry(data, key, "a column of the predicate", predicate)
    columns = select(data, keys)
    plan = _with_larger_chunks(plan, row_bytes_of(columns, plan.length))
    return replace(job, source=Source(columns), plan=plan)


def _with_larger_chunks(plan: ChunkPlan, row_bytes: int) -> ChunkPlan:
    """Of narrow rows a chunk has many, since an answer is a byte and each chunk costs a call."""
    most = min(MASK_BYTES // max(row_bytes, 1), MASK_ROWS, -(-plan.length // MIN_CHUNKS))
    return replace(plan, size=max(plan.size, most))


def _is_light(job: Job) -> bool:
    """Whether the caller answers for all rows before workers had begun to."""
    data, policy = job.source.data, job.policy
    plain = not policy.skip and job.on_row_error is None and policy.timeout is None
    return plain and not isinstance(data, Tensor) and job.plan.length * row_bytes_of(data, job.plan.length) <= LIGHT


def _fill(mask: Tensor, data: Data, answer: Mask) -> None:
    answers = mask.numpy()  # torch would copy each answer in several threads, which costs more than the copy
    rows = max(min(MASK_BYTES // max(row_bytes_of(data, len(mask)), 1), LIGHT_ROWS), 1)
    for start in range(0, len(mask), rows):
        stop = min(start + rows, len(mask))
        try:
            answers[start:stop] = answer(narrow(data, 0, start, stop))
        except Exception as error:
            add_note(error, f"while the predicate answered for {describe_rows(start, stop)}")
            raise


class Mask(Wrapped):
    """What a worker calls in the first job: the predicate, and a check of what it returns.

    Args:
        fn: the predicate.
        single: it is called with rows one by one.
    """

    def __init__(self, fn: Callable[..., Any], single: bool) -> None:
        super().__init__(fn)
        self.single = single

    def __call__(self, chunk: Data, start: int = 0) -> Tensor:
        return as_mask(self.call(chunk, start), () if self.single else (int(chunk.shape[0]),))


def as_mask(answer: object, shape: tuple[int, ...]) -> Tensor:
    """What a predicate has returned, as a bool tensor of the shape that is wanted.

    Raises:
        OutputMismatch: it is something else.

    Example:
        >>> as_mask([True, False], (2,))
        tensor([ True, False])
    """
    mask = answer
    if isinstance(answer, (bool, np.bool_, np.ndarray)) or (
        isinstance(answer, (list, tuple)) and all(isinstance(value, (bool, np.bool_)) for value in answer)
    ):
        mask = torch.as_tensor(np.asarray(answer))
    if isinstance(mask, Tensor) and mask.dtype is torch.bool and tuple(mask.shape) in (shape, (*shape, 1)):
        return mask.reshape(shape)  # one bool a row, also where rows have a last dimension of one, as rewards do
    wanted = f"bools of shape {list(shape)}, one a row" if shape else "one bool for its row"
    if isinstance(mask, Tensor):
        found = f"{str(mask.dtype).removeprefix('torch.')} of shape {list(mask.shape)}"
    else:
        found = f"a {type(answer).__name__}"
    hint = ""
    if isinstance(mask, Tensor) and mask.dtype is not torch.bool:
        hint = " Compare, as in `td['x'] > 0`, to get bools; for row numbers, index the data."
    elif isinstance(mask, Tensor) and shape and not mask.dim():
        hint = (
            " Return a bool for each row of the chunk, as in `td['x'] > 0`; tdmap.filter(chunksize=0) calls it with "
            "one row at a time."
        )
    elif isinstance(mask, Tensor) and shape:
        hint = " Reduce the other dimensions, as in `(td['x'] > 0).all(-1)`."
    raise OutputMismatch(f"the predicate must return {wanted}, and it returned {found}.{hint}")


class CopyRows(Step):
    """The second job, where tensors can be read by name: its chunks are parts of the mask."""

    def __init__(self, source: SharedTensors, places: RowFiles, first: NDArray[np.int64], size: int) -> None:
        super().__init__("filter")
        self.source = source
        self.places = places
        self.first = first
        self.size = size

    def __call__(self, mask: Tensor, start: int = 0) -> int:
        wanted = np.flatnonzero(mask.numpy())  # a tenth of the time of Tensor.nonzero
        at = int(self.first[start // self.size])
        if len(wanted):
            for number, file in enumerate(self.places.descriptors):
                if file >= 0:
                    rows = self.source.rows(number, start, start + len(mask))
                    self.places.write(number, file, at, rows if len(wanted) == len(rows) else rows.take(wanted))
            self.source.trim()
        return len(wanted)


class CopyChunks(CopyRows):
    """The same where rows have to be asked for: its chunks are those of the data, and the mask is its only tensor."""

    def __init__(
        self, schema: Schema, mask: SharedTensors, places: RowFiles, first: NDArray[np.int64], size: int
    ) -> None:
        super().__init__(mask, places, first, size)
        self.schema = schema

    def __call__(self, rows: Data, start: int = 0) -> int:
        mask = self.source.tensors[0][start : start + int(rows.shape[0])]
        if not bool(mask.any()):
            return 0
        count = place_rows(rows[mask], int(self.first[start // self.size]), self.places, self.schema)
        self.source.trim()
        return count


def copy_selected(ctx: Context, data: Data, source: SourceRows, mask: Tensor) -> None:
    """Write the rows of `data` for which `mask` (bool `[rows]`) is true to an output of exactly that size."""
    plan = ChunkPlan(len(mask), block_rows(len(mask), source.schema.row_bytes, ctx))
    counts = torch.tensor([np.count_nonzero(part.numpy()) for part in mask.split(plan.size)], dtype=torch.int64)
    total = int(counts.sum())
    places = ctx.output.open(source.schema, total, source.objects_at(mask))
    if total:
        first = (counts.cumsum(0) - counts).numpy()
        if source.tensors is None:
            ctx.step(data, plan, CopyChunks(source.schema, ctx.shared([mask]), places, first, plan.size))
        else:
            near = ctx.near(len(mask) * sum(source.schema.row_bytes))
            near.step(mask, plan, CopyRows(near.shared(source.tensors), places, first, plan.size))
