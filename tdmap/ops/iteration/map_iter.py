"""`map_iter`: the results of chunks one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

import torch

from tdmap.arguments import require_integer
from tdmap.data.kinds import Dataset, R
from tdmap.devices import OUT_CHUNKS, check_start_method
from tdmap.execution import Execution
from tdmap.functions import Keys, as_function, called_with, check_placement
from tdmap.job import Job, Source
from tdmap.memory.links import Device, open_link, resolve_device
from tdmap.ops.iteration.iterator import MapIterator
from tdmap.ops.iteration.prefetch import prefetch_over
from tdmap.ops.iteration.streams import stream_values
from tdmap.plan import ChunkPlan
from tdmap.run.context import Context
from tdmap.run.operation import operation
from tdmap.run.options import FunctionOptions
from tdmap.seeding import permutation, seed_or_drawn

Result = TypeVar("Result")


class MapIterArguments(FunctionOptions, total=False):
    """What `map_iter` takes besides `in_keys`, on which its results depend."""

    device: Device | None
    prefetch: int
    out_keys: Keys | None
    with_indices: bool
    fn_kwargs: Mapping[str, Any] | None
    shuffle: bool
    undo: bool
    index_with_generator: bool


@overload
def map_iter(
    data: Dataset[R], fn: Callable[..., Any], dim: int = 0, *, in_keys: Keys, **options: Unpack[MapIterArguments]
) -> MapIterator[R]: ...
@overload
def map_iter(
    data: Dataset[Any],
    fn: Callable[..., Result],
    dim: int = 0,
    *,
    in_keys: None = None,
    **options: Unpack[MapIterArguments],
) -> MapIterator[Result]: ...
@operation
def map_iter(
    ctx: Context,
    data: Dataset[Any],
    fn: Callable[..., Any],
    dim: int = 0,
    *,
    device: Device | None = None,
    prefetch: int = 2,
    in_keys: Keys | None = None,
    out_keys: Keys | None = None,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    shuffle: bool = False,
    undo: bool = True,
    index_with_generator: bool = True,
    **options: Unpack[FunctionOptions],
) -> MapIterator[Any]:
    """Apply `fn` to chunks of `data` on several processes, and yield the results in order.

    A bounded number of chunks is in flight; leaving the loop stops the workers. Arguments are those of `map`, and `fn`
    may return any picklable value. Tensors of results lie in shared memory, which is reused when you drop the result.
    If `fn` runs in this process (`num_workers=0`, `executor="serial"` or `"thread"`), entries of the chunk that it
    returns unchanged are views of `data`: clone them before you change them.

    Args:
        with_indices: pass the row numbers in `data` as second argument, int64 `[rows]` (an int with `chunksize=0`).
        fn_kwargs: further keyword arguments of `fn`.
        device: copy results to this device ahead of the loop, on a separate stream. `fn` runs on the CPU.
        prefetch: with `device`, the number of results to copy ahead.
        shuffle: take the rows of chunks from a random permutation, drawn with `seed`, `generator` or torch's global
            generator.
        undo: as `map`.
        index_with_generator: accepted for compatibility; must be True with `shuffle`.
        **options: see `tdmap.FunctionOptions`. With `on_error`, skipped rows are left out of results; a result without
            rows is None.

    Returns:
        An iterator over the results of chunks, including None. `state_dict()` returns its position; `load_state_dict()`
        resumes there, also in the middle of a shuffled epoch.

    Raises:
        RuntimeError: `shuffle` without `index_with_generator`.
        ValueError: as `map`, raised by the call itself: the device does not exist, or an option is out of range.
        Exception: as `map`, raised during the iteration, after the results of the chunks before.

    Example:
        >>> import torch
        >>> from tensordict_lite import TensorDict
        >>> data = TensorDict({"x": torch.arange(6)}, batch_size=[6])
        >>> [int(total) for total in map_iter(data, lambda td: td["x"].sum(), num_workers=2, chunksize=2)]
        [1, 5, 9]
    """
    if shuffle and not index_with_generator:
        raise RuntimeError("map_iter(shuffle=True) needs index_with_generator=True, its default: drop that argument.")
    execution = ctx.execution
    target = _target(device, prefetch, execution)
    factor = 1 if target is None else OUT_CHUNKS
    plan = ctx.plan(data, dim, factor=factor, results_vary=True)
    policy = replace(ctx.function, undo=bool(undo))
    fn = as_function(fn, in_keys, out_keys)
    check_placement(fn, execution.in_processes, None)
    called = called_with(fn, plan, with_indices, fn_kwargs)

    def begin(
        position: int, seed: int | None, order_seed: int | None, plan: ChunkPlan, settled: Callable[[ChunkPlan], None]
    ) -> Iterator[Any]:
        order = None if order_seed is None else permutation(plan.length, order_seed)
        here = called
        if with_indices and order is not None:
            here = called_with(fn, plan, True, fn_kwargs, ctx.shared([order]))
        # A job of its own each time: what a worker still says about the last one must not count.
        job = Job(
            Source(data, order),
            plan,
            here,
            replace(policy, seed=seed),
            on_row_error=ctx.on_row_error,
            on_settled=settled,
        )
        if target is None:
            return stream_values(job, execution, position)
        link = open_link(target)
        return prefetch_over(link, stream_values(job, execution, position, link=link), prefetch)

    return MapIterator(begin, plan, policy.seed, seed_or_drawn(policy.seed) if shuffle else None)


def _target(device: Device | None, prefetch: int, execution: Execution) -> torch.device | None:
    """The device that results go to, once it has been checked; None: they stay."""
    require_integer("prefetch", prefetch, 0)
    target = None if device is None else resolve_device(device)
    if target is None or target.type == "cpu":
        return None
    check_start_method(execution, target)
    return target
