"""Rows in another order: `out[i] = data[order[i]]`, in memory or over the disk.

Two ways, with the same result:

    gather     out block i ◄── random reads ── data                    one pass; the data is read where it lies

    copy       data chunk ──rows in order──► file ──► gather or scatter   first, where data is stored in blocks (HDF5,
                                                                       Zarr) that random reads would read many times

    scatter    data chunk ──rows by bucket──► out [bucket, chunk]      two passes, all of them sequential: for data
               out bucket ──rows by place──► out, in order             that is larger than memory, with small rows

A bucket is a run of rows of the output that fits into memory. How many rows each chunk gives to each bucket follows
from the order alone, so every piece has an exact place (see `tdmap.output.scatter`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tdmap.data.alike import not_alike
from tdmap.data.columns import row_words
from tdmap.data.kinds import Data, Dataset, R, is_data, signed_view
from tdmap.data.reader import rows_of
from tdmap.data.schema import Schema, take_apart
from tdmap.job import Job, Source
from tdmap.memory.mapped import READ_AHEAD, will_need
from tdmap.memory.rowfiles import RowFiles, SharedTensors
from tdmap.memory.spill import Spill
from tdmap.output.output import Output, SourceRows, Step
from tdmap.output.scatter import scatter_rows
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context

LARGE_ROW = 256 << 10
"""Rows of so many bytes are read at random as fast as one after the other, from any disk."""

MEMORY_SHARE = 0.5
"""Data that is larger than this share of the available memory does not stay in it while it is read at random."""

METHODS = ("gather", "scatter")


def permute_rows(ctx: Context, data: Dataset[R], order: Tensor, method: str | None = None) -> R:
    """Rows of a dataset in a given order, which is not looked through first.

    Args:
        ctx: the call, with the output.
        data: a tensor or a collection, with rows in dimension 0.
        order: int64 `[m]`, each from 0 to the number of rows less one. A memory-mapped tensor is read where it lies;
            any other is moved to shared memory, 8 bytes a row.
        method: `"gather"` or `"scatter"` (see the module); None chooses. The result is the same.
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, or None: got {method!r}.")
    output, source = ctx.output, SourceRows(data)
    source.check(output)
    row_bytes, tensors = source.schema.row_bytes, source.tensors
    places = output.open(source.schema, len(order), source.objects_at(order))
    with contextlib.ExitStack() as stack:
        if not len(order) or not any(row_bytes):
            pass
        elif tensors is None and not ctx.decide("copy", lambda: _reads_blocks_often(data, len(order), row_bytes, ctx)):
            run_blocks(ctx, Source(data, order), PlaceRows(places, source.schema), row_bytes)
        else:
            if tensors is None:
                tensors = _copied(data, source.schema, row_bytes, ctx, stack.enter_context(ctx.spill()))
            if (method or ctx.decide("method", lambda: choose_method(row_bytes, tensors, ctx))) == "gather":
                prefetch(tensors, len(order))
                near = ctx.near(len(order) * sum(row_bytes))
                run_blocks(near, Source(order), GatherRows(near.shared(tensors), places), row_bytes)
            else:
                spill = stack.enter_context(ctx.spill())
                scatter_rows(ctx, ctx.shared(tensors), order, places, row_bytes, spill)
    result: R = output.result()
    return result


def _reads_blocks_often(data: Data, wanted: int, row_bytes: Sequence[int], ctx: Context) -> bool:
    """Whether rows are stored in blocks, which would be read several times, rather than once for a copy."""
    blocks = len(rows_of(data).blocks) + 1
    reads = min(wanted, blocks * -(-wanted // block_rows(wanted, row_bytes, ctx)))
    return blocks > 1 and reads > 2 * blocks


def _copied(data: Data, schema: Schema, row_bytes: Sequence[int], ctx: Context, spill: Spill) -> list[Tensor]:
    """The rows of a dataset in files, as bytes."""
    rows = int(data.shape[0])
    tensors = [spill.mapped(f"copy-{n}", rows * width).view(rows, width) for n, width in enumerate(row_bytes)]
    places = RowFiles.of(tensors)
    assert places is not None
    run_blocks(ctx, Source(data), PlaceRows(places, schema), row_bytes)
    return tensors


def check_order(data: Data, order: object) -> Tensor:
    """`order`, as a plain tensor, if it may be used for the rows of `data`.

    Raises:
        TypeError: it is not one-dimensional int64, or `data` has no rows.
        IndexError: it names a row that there is not.
    """
    if not is_data(data) or not len(data.shape):
        raise TypeError(f"the data must be a tensor or a collection with rows in dimension 0: got {data!r:.80}.")
    if not isinstance(order, Tensor) or order.dtype is not torch.int64 or order.dim() != 1:
        found = f"{order.dtype} {tuple(order.shape)}" if isinstance(order, Tensor) else f"a {type(order).__name__}"
        raise TypeError(f"order must be an int64 tensor of shape [rows]: got {found}.")
    rows: Tensor = order.as_subclass(Tensor) if type(order) is not Tensor else order
    length = int(data.shape[0])
    for first in range(0, len(rows), 1 << 20):  # piece by piece: it may lie on the disk
        low, high = torch.aminmax(rows[first : first + (1 << 20)])
        if int(low) < 0 or int(high) >= length:
            bad = int(low) if int(low) < 0 else int(high)
            raise IndexError(f"order names row {bad}, and the data has {length} rows: use 0 to {length - 1}.")
    return rows


def choose_method(row_bytes: Sequence[int], tensors: Sequence[Tensor], ctx: Context) -> str:
    """The faster way for this data and this machine."""
    small = [width * len(tensor) for width, tensor in zip(row_bytes, tensors) if width < LARGE_ROW]
    return "gather" if sum(small) <= MEMORY_SHARE * ctx.execution.available_memory() else "scatter"


# -- gather ------------------------------------------------------------------------------------------


class GatherRows(Step):
    """Its chunks are parts of the order."""

    def __init__(self, source: SharedTensors, places: RowFiles) -> None:
        super().__init__("permute")
        self.source = source
        self.places = places

    def __call__(self, order: Tensor, start: int = 0) -> int:
        for number, (tensor, file) in enumerate(zip(self.source.tensors, self.places.descriptors)):
            if file >= 0:
                self.places.write(number, file, start, self._rows(tensor, order))
        return len(order)

    @staticmethod
    def _rows(tensor: Tensor, order: Tensor) -> Tensor:
        if not tensor.is_contiguous():
            return signed_view(tensor).index_select(0, order).view(tensor.dtype)
        return row_words(tensor).index_select(0, order)


class PlaceRows(Step):
    """For data whose rows have to be asked for: a chunk has them in the wanted order."""

    def __init__(self, places: RowFiles, schema: Schema) -> None:
        super().__init__("permute")
        self.places = places
        self.schema = schema

    def __call__(self, rows: Data, start: int = 0) -> int:
        return place_rows(rows, start, self.places, self.schema)


def place_rows(rows: Data, start: int, places: RowFiles, schema: Schema) -> int:
    """Write rows to their places, from row `start` on.

    Raises:
        OutputMismatch: they look different from the schema that the places are for; members of a lazy stack may.
    """
    parts = take_apart(rows)
    difference = schema.difference(parts.schema)
    if difference:
        raise not_alike(difference, where="a row, unlike the first one", what="rows")
    for number, (tensor, file) in enumerate(zip(parts.tensors, places.descriptors)):
        places.write(number, file, start, tensor.contiguous())
    return parts.rows


def deliver(rows: Data, output: Output) -> Data:
    """Rows in memory, brought to where they were asked for."""
    parts = take_apart(rows)
    place_rows(rows, 0, output.open(parts.schema, parts.rows, parts.objects), parts.schema)
    return output.result()


def run_blocks(ctx: Context, source: Source, fn: GatherRows | PlaceRows, row_bytes: Sequence[int]) -> None:
    """Write the output block by block."""
    order = source.data if source.order is None else source.order
    plan = ChunkPlan(len(order), ctx.options.get("chunksize") or block_rows(len(order), row_bytes, ctx))
    ctx.run(Job(source, plan, fn, ctx.steps), Collect())


def block_rows(rows: int, row_bytes: Sequence[int], ctx: Context) -> int:
    """Rows of a block: some megabytes, and several blocks where there are rows enough."""
    return max(min(ctx.tuning.gather_bytes // max(sum(row_bytes), 1), -(-rows // 8)), 1)


def prefetch(tensors: Sequence[Tensor], wanted: int) -> None:
    """Have files that are about to be read at random brought into memory in their own order.

    Not those of which a small part of the rows is wanted, or whose rows are large: they are read where they are.
    """
    for tensor in tensors:
        rows = len(tensor)
        if wanted >= rows // 8 and tensor.numel() < rows * LARGE_ROW:
            step = max(READ_AHEAD * rows // max(tensor.nbytes, 1), 1)
            will_need(tensor, ((first, min(first + step, rows)) for first in range(0, rows, step)))
