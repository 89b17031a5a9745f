"""Results as one dataset: joined, or what the output of all of them looks like; also without any rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdmap.data.kinds import Data, is_data, is_dense, stored_leaves
from tdmap.data.objects import as_chunk, has_ragged_row
from tdmap.data.reader import narrow
from tdmap.plan import ChunkPlan
from tdmap.process_state import comes_from_handler, installed_handlers
from tensordict_lite import NonTensorData, is_non_tensor, lazy_stack


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


def unallocated(dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor for an example whose memory does not matter: one element stands for all."""
    return torch.zeros((), dtype=dtype).expand(shape)


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


def join(parts: list[Any], plan: ChunkPlan) -> Data:
    """Results in order as one value: concatenated along the plan's dimension, or stacked when it unbinds.

    Raises:
        TypeError: a result is neither a tensor nor a collection.
    """
    for part in parts:
        if not is_data(part):
            raise TypeError(
                "map concatenates tensors or collections of tensors, and the function returned a "
                f"{type(part).__name__}. Return a tensor, a collection or None, or use map_iter, which yields "
                "any value."
            )
    if len(parts) == 1 and not plan.unbind:
        return parts[0]
    if plan.unbind:
        if not any(map(has_ragged_row, parts)):
            return torch.stack(parts, plan.dim)
        parts = [as_chunk(part, plan.dim) for part in parts]
    return torch.cat(parts, plan.dim)


def stack_unlike(rows: list[Any], dim: int) -> Data | None:
    """A lazy stack of collections that differ only in shape; None of others."""
    if isinstance(rows[0], Tensor):
        return None
    first = _outline(rows[0])
    return lazy_stack(rows, dim) if all(_outline(row) == first for row in rows[1:]) else None


def _outline(row: Data) -> Any:
    """What rows of a lazy stack have in common."""
    entries = {path: getattr(leaf, "dtype", None) for path, leaf in stored_leaves(row)}
    return type(row), len(row.shape), entries


def joinable(parts: list[Data], plan: ChunkPlan) -> bool:
    """Whether results can be joined."""
    try:
        join(parts, plan)
        return True
    except (RuntimeError, KeyError, ValueError, IndexError, TypeError):
        return False


_ADVICE = "Pass out=, or handle this case before the call."


def called_with_none(fn: Callable[[Any], Any], chunk: Data) -> Any:
    """What a function makes of a chunk without rows.

    Raises:
        ValueError: it does not work on zero rows.
    """
    try:
        return fn(chunk)
    except Exception as error:
        if comes_from_handler(error, installed_handlers()):
            raise
        raise ValueError(
            "the data has no rows, and the function fails on zero rows, so the schema of the result is "
            f"unknown ({type(error).__name__}: {error}). {_ADVICE}"
        ) from error


def result_of_no_rows(fn: Callable[[Any], Any], data: Data, plan: ChunkPlan) -> Data | None:
    """The result for a dataset without rows: what the function makes of zero rows tells what rows would look like.

    Returns:
        Zero rows; None when the function returns None.

    Raises:
        ValueError: the function does not work on zero rows, or wants single ones.
        TypeError: it returns neither a tensor nor a collection.
    """
    if plan.unbind:
        raise ValueError(f"the data has no rows, and chunksize=0 leaves nothing to call the function with. {_ADVICE}")
    result = called_with_none(fn, narrow(data, plan.dim, 0, 0))
    if result is None:
        return None
    joined = join([result], plan)
    return narrow(joined, plan.dim, 0, 0) if len(joined.shape) > plan.dim else joined
