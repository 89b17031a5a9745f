"""The only contact with `tensordict_lite`: reading rows, writing rows, joining results.

Everything else in the engine treats a dataset and a result as opaque values. Dense collections go through the
trusted constructor, because a chunk of a valid collection is valid; other kinds (lazy stacks, non-tensor data)
go through their public interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tdmap.errors import OutputMismatch, describe_rows
from tdmap.memory.regions import Region, SharedHandle, bytes_of, flat_bytes, region_of
from tdmap.plan import ChunkPlan
from tensordict_lite import NonTensorData, TensorDict, is_non_tensor, is_tensor_collection
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense import DenseCollection

__all__ = [
    "Data",
    "Reader",
    "Region",
    "SharedHandle",
    "allocate_like",
    "bytes_of",
    "data_length",
    "data_row_bytes",
    "entries_of",
    "flat_bytes",
    "gatherable",
    "is_data",
    "join",
    "joinable",
    "leaves_hold_rows",
    "region_of",
    "signed_view",
    "tensors_of",
    "with_tensors",
]

Data: TypeAlias = Any
"""A tensor or any collection of `tensordict_lite`."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def signed_view(tensor: Tensor) -> Tensor:
    """The same bits in a dtype that torch can index: for unsigned integers of two bytes or more it cannot."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


BLOCK = 256
"""Chunks whose views are made in one call."""


def is_data(value: object) -> bool:
    """Whether `value` is a tensor or a collection of tensors."""
    return isinstance(value, (Tensor, TensorCollection))


def is_dense(value: object) -> bool:
    """A collection whose entries are in a plain dict: `TensorDict` and tensorclasses."""
    return isinstance(value, DenseCollection) and type(value._source) is dict and not value._is_non_tensor


def is_flat(data: Data) -> bool:
    """A tensor, or a collection of tensors without any levels."""
    if isinstance(data, Tensor):
        return True
    return is_dense(data) and all(isinstance(value, Tensor) for value in data._source.values())


def data_length(data: Data, dim: int) -> int:
    """Rows of `data` along `dim`."""
    return int(data.shape[dim])


def tensors_of(data: Data) -> list[Tensor]:
    """The tensors in `data`, as a flat list."""
    if isinstance(data, Tensor):
        return [data]
    return list(data._leaves())


def with_tensors(data: Data, tensors: Sequence[Tensor]) -> Data:
    """The same tree around other tensors of the same batch size, in the order of `tensors_of`."""
    return tensors[0] if isinstance(data, Tensor) else data._with_leaves(iter(tensors))


def entries_of(data: Data) -> Mapping[str, Any]:
    """The entries of a dense collection as they are: what `items()` would unwrap is not."""
    entries: Mapping[str, Any] = data._source
    return entries


def leaves_hold_rows(data: Data) -> bool:
    """Whether every tensor in `data` has the rows along the same dim; the members of a lazy stack need not."""
    if isinstance(data, Tensor):
        return True
    if is_dense(data):
        return all(leaves_hold_rows(value) for value in data._source.values())
    return not data._leaves()


def data_row_bytes(data: Data, length: int) -> int:
    """Bytes of one of `length` rows of `data`."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(data)) // max(length, 1)


# -- reading ---------------------------------------------------------------------------------------


class Reader:
    """Rows of a dataset as the chunks of a plan.

    Args:
        data: the dataset.
        plan: how its rows are cut.
        order: int64 permutation of the rows, or None for their own order.
        base: the row of the plan that is the first of `data`: a worker may have only some of the rows.
    """

    def __init__(self, data: Data, plan: ChunkPlan, order: Tensor | None = None, base: int = 0) -> None:
        self.data = plain_tensors(data)
        self.base = base
        self.plan = plan
        self.order = order

    def read(self, start: int, stop: int) -> Iterator[Data]:
        """The chunks `start..stop`; views of the dataset unless there is an order."""
        plan, base = self.plan, self.base
        for begin, end, size in plan.runs(start, stop, BLOCK):
            if self.order is not None:
                yield from self._gather(begin, end, size)
            elif plan.unbind:
                yield from narrow(self.data, plan.dim, begin - base, end - base).unbind(plan.dim)
            else:
                yield from cut(self.data, plan.dim, begin - base, end - base, size)

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan

    def _gather(self, begin: int, end: int, size: int) -> Iterator[Data]:
        plan = self.plan
        assert self.order is not None
        for first in range(begin, end, size):
            rows = self.order[first : min(first + size, end)]
            index: Any = rows[0].item() if plan.unbind else rows
            yield self.data[(slice(None),) * plan.dim + (index,)]


def plain_tensors(data: Data) -> Data:
    """`data` with memory-mapped tensors as plain views of the same memory: their slices are cheaper to make."""
    if isinstance(data, Tensor):
        return data.as_subclass(Tensor) if type(data) is not Tensor else data
    if not is_dense(data):
        return data
    source = {key: plain_tensors(value) for key, value in data._source.items()}
    new = data._rebuild(source, data._batch_size, data._names)
    if data._lock is not None:
        new.lock_()
    return new


def narrow(data: Data, dim: int, begin: int, end: int) -> Data:
    """Rows `begin..end` of `data` along `dim`, as a view."""
    if isinstance(data, Tensor):
        return data.narrow(dim, begin, end - begin)
    return data[(slice(None),) * dim + (slice(begin, end),)]


def cut(data: Data, dim: int, begin: int, end: int, size: int) -> Sequence[Data]:
    """Rows `begin..end` along `dim` as pieces of `size` rows, the last one perhaps shorter."""
    if isinstance(data, Tensor):
        pieces: Sequence[Data] = data.narrow(dim, begin, end - begin).split(size, dim)
        return pieces
    if not is_dense(data):
        return tuple(narrow(data, dim, begin, end).split(size, dim))
    keys = tuple(data._source)
    columns = [cut(value, dim, begin, end, size) for value in data._source.values()]
    count = -(-(end - begin) // size)
    shape = data._batch_size
    full = torch.Size((*shape[:dim], size, *shape[dim + 1 :]))
    rest = torch.Size((*shape[:dim], end - begin - (count - 1) * size, *shape[dim + 1 :]))
    names, locked = data._names, data._lock is not None
    nested = any(not isinstance(value, Tensor) for value in data._source.values())
    rows = zip(*columns) if columns else repeat((), count)
    out = []
    rebuild = data._rebuild
    for number, row in enumerate(rows, 1):
        chunk = rebuild(dict(zip(keys, row)), full if number < count else rest, names)
        if locked:
            if nested:
                chunk.lock_()
            else:
                chunk._lock = []
        out.append(chunk)
    return out


# -- results without a preallocated output ---------------------------------------------------------


def gatherable(result: Data, rows: int, plan: ChunkPlan) -> bool:
    """Whether results like this one, of a chunk of `rows` rows, can be written into one preallocated output."""
    if isinstance(result, Tensor):
        if result.layout is not torch.strided or result.device.type != "cpu" or result.is_quantized:
            return False
        return plan.unbind or (result.dim() > plan.dim and result.shape[plan.dim] == rows)
    if not is_dense(result) or not has_rows(result, rows, plan):
        return False
    # Python objects travel beside the tensors (see `tdmap.data.objects`).
    return all(
        has_rows(value, rows, plan) if is_non_tensor(value) else gatherable(value, rows, plan)
        for value in result._source.values()
    )


def has_rows(result: Data, rows: int, plan: ChunkPlan) -> bool:
    """Whether a collection has as many rows as its chunk; with `chunksize=0` it stands for one, whatever its shape."""
    shape = result._batch_size
    return plan.unbind or (len(shape) > plan.dim and shape[plan.dim] == rows)


def allocate_like(result: Data, plan: ChunkPlan, allocate: Callable[[torch.dtype, torch.Size], Tensor]) -> Data:
    """An output for every row of the plan, with the keys, dtypes and row shapes of one gatherable result."""
    shape = result.shape
    if plan.unbind:
        full = torch.Size((*shape[: plan.dim], plan.length, *shape[plan.dim :]))
    else:
        full = torch.Size((*shape[: plan.dim], plan.length, *shape[plan.dim + 1 :]))
    if isinstance(result, Tensor):
        return allocate(result.dtype, full)
    if is_non_tensor(result):
        return NonTensorData(None, batch_size=full)
    source = {key: allocate_like(value, plan, allocate) for key, value in result._source.items()}
    names = result._names
    if names is not None and plan.unbind:
        names = [*names[: plan.dim], None, *names[plan.dim :]]
    return result._rebuild(source, full, names)


def join(parts: list[Data], plan: ChunkPlan) -> Data:
    """Results in order as one value: concatenated along the plan's dimension, or stacked when it unbinds.

    Raises:
        TypeError: a result is neither a tensor nor a collection.
    """
    for part in parts:
        if not is_data(part):
            raise TypeError(
                f"map joins tensors or collections of tensors, and the function returned a {type(part).__name__}. "
                "Return one of those or None, or use map_iter, which yields any value."
            )
    if len(parts) == 1 and not plan.unbind:
        return parts[0]
    return torch.stack(parts, plan.dim) if plan.unbind else torch.cat(parts, plan.dim)


def joinable(parts: list[Data], plan: ChunkPlan) -> bool:
    """Whether results can be joined."""
    try:
        join(parts, plan)
        return True
    except (RuntimeError, KeyError, ValueError, IndexError, TypeError):
        return False


def check_rows(out: Data, plan: ChunkPlan, source_shape: Sequence[int]) -> None:
    """Raise OutputMismatch unless `out` has the plan's rows along its dimension."""
    shape = tuple(out.shape)
    if len(shape) <= plan.dim or shape[plan.dim] != plan.length:
        raise OutputMismatch(
            f"out must have {plan.length} rows along dimension {plan.dim}, as the data of shape "
            f"{tuple(source_shape)} has: got an out of shape {shape}."
        )


__all__ += ["TensorDict", "check_rows", "describe_rows", "is_tensor_collection"]
