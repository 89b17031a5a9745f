"""One entry in another shape, by the call of torch that takes least; the shapes of many entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Shapes", "expanded_entry", "reshaped_entry", "viewed_entry"]


class Shapes(dict[torch.Size, "tuple[int, ...]"]):
    """The shapes of entries with another batch size, by those they have: many have the same."""

    __slots__ = ("find",)

    find: Callable[[torch.Size], tuple[int, ...]]

    def __missing__(self, shape: torch.Size) -> tuple[int, ...]:
        self[shape] = found = self.find(shape)
        return found


def viewed_entry(value: Any, shape: tuple[int, ...]) -> Any:
    """``view``. Sizes one by one take torch a fifth less than a tuple of them. Of no dimensions there is none."""
    return value.view(*shape) if shape else value.view(shape)


def reshaped_entry(value: Any, shape: tuple[int, ...]) -> Any:
    """``reshape``; of a subclass of tensors a view where that does, which takes torch a third less.

    Functions of torch take a tuple of sizes in a third less than methods do.
    """
    if type(value) is Tensor:
        return torch.reshape(value, shape)
    if isinstance(value, Tensor) and value.is_contiguous():
        return value.view(shape)
    return value.reshape(shape)


def expanded_entry(value: Any, shape: tuple[int, ...]) -> Any:
    return torch.broadcast_to(value, shape) if type(value) is Tensor else value.expand(shape)
