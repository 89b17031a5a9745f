"""What torch's DataLoader needs of a pipeline, in its workers and on its way out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate

from tdmap.data.kinds import is_data, tensors_of
from tdmap.pipeline.planning import Head, Plan
from tdmap.pipeline.shares import Share
from tdmap.pipeline.stages import Shard, Skip, Take, ZipWith
from tensordict_lite.base import TensorDictBase


def worker_place() -> tuple[int, int] | None:
    """Number of this process among the workers of a DataLoader, and how many there are; None outside."""
    info = get_worker_info()
    return None if info is None else (info.id, info.num_workers)


def divided(plan: Plan, share: Share) -> tuple[Share, Share]:
    """How one of several processes gets its part of the elements: (share of the chunks, share of the elements).

    Where chunks are batches, or rows can go to any worker, each process computes its own chunks only. Else it computes
    everything, and yields its own elements.
    """
    if share.world_size > 1:
        splits = isinstance(plan, Head) and plan.batched and plan.is_counted and plan.chunks_hold
    else:
        splits = _splits(plan)
    return (share, Share()) if splits else (Share(), share)


def _splits(plan: Plan) -> bool:
    if isinstance(plan, Head):
        return True
    return not isinstance(plan.stage, (Take, Skip, Shard, ZipWith)) and all(map(_splits, plan.sources))


# -- default_convert -----------------------------------------------------------------------------------


class Envelope(MutableMapping[str, Any]):
    """Carries an element through `default_convert`, which takes collections for plain mappings and iterates them.

    It copies a mapping and updates the copy with what iterating it gives: here, the element itself and nothing.
    """

    def __init__(self, value: object) -> None:
        self.value = value

    def __copy__(self) -> Any:
        return self.value

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __setitem__(self, key: str, value: object) -> None:
        raise KeyError(key)

    def __delitem__(self, key: str) -> None:
        raise KeyError(key)


def sendable(value: Any) -> Any:
    """An element whose tensors a DataLoader's worker can send: those that lie in files, or are shared, as copies.

    torch sends the descriptor of shared memory, and what is mapped from a file has none.
    """
    if isinstance(value, (tuple, list)):
        made = map(sendable, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if is_data(value) and any(map(_is_shared, tensors_of(value))):
        return value.clone()
    return value


def _is_shared(tensor: Tensor) -> bool:
    if tensor.is_nested:
        return any(_is_shared(part) for part in tensor.unbind())
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_shared()


def for_loader(elements: Iterator[Any], caller: FrameType | None) -> Iterator[Any]:
    """The elements as the caller of `iter(pipeline)` can handle them: a DataLoader without a `collate_fn` cannot."""
    if caller is None or caller.f_globals.get("__name__") != "torch.utils.data._utils.fetch":
        return elements
    if caller.f_locals.get("collate_fn") is not collate.default_convert:
        return elements
    return MappedIterator(elements, lambda value: Envelope(value) if isinstance(value, TensorDictBase) else value)


class MappedIterator(Iterator[Any]):
    """An iterator with a function of its elements; otherwise like the one that it wraps."""

    def __init__(self, elements: Iterator[Any], change: Callable[[Any], Any]) -> None:
        self._elements, self._change = elements, change

    def __next__(self) -> Any:
        return self._change(next(self._elements))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._elements, name)
