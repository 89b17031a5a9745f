"""Sums of integers that are exact, or an error: never what is left of them in 64 bits.

A sum is two int64 numbers, `high * 2**32 + low` with `low` from 0 to 2**32 - 1: room for 2**63 elements of any
integer type. Most chunks do not need it: where the largest element times their number stays below 2**63, so does
the sum of the chunk, and one pass adds it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.reducers.blocks import wide_sum

Pair: TypeAlias = tuple[Tensor, Tensor]
"""High and low part of sums."""

LOW = (1 << 32) - 1

SMALL = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Sums of a chunk are exact in float64, which is several times as fast."""

FEW_ROWS = 1 << 20
"""So many elements of 32 bits and their halves have sums that float64 holds."""

LARGE = (torch.int64, torch.uint64)
"""Two of them may be more than an int64 holds."""


def is_integer(dtype: torch.dtype) -> bool:
    """Whether sums are to be exact."""
    return not (dtype.is_floating_point or dtype.is_complex)


def pair_of(sums: Tensor) -> Pair:
    """Sums that an int64 holds, as pairs."""
    return sums >> 32, sums & LOW


def add(a: Pair, b: Pair) -> Pair:
    """Sums of sums."""
    return carry(a[0] + b[0], a[1] + b[1])


def carry(high: Tensor, low: Tensor) -> Pair:
    """High and low parts that were added up, fewer than 2**31 of them, as pairs again."""
    return high + (low >> 32), low & LOW


def exact_sum(values: Tensor, dims: tuple[int, ...]) -> Pair:
    """The sum of integers over some dimensions."""
    count = torch.Size([values.shape[dim] for dim in dims]).numel()
    if values.dtype in SMALL:
        return pair_of(wide_sum(values, dims).long())
    if values.dtype not in LARGE or _stays_small(values, count):
        return pair_of(signed(values).sum(dims, dtype=torch.int64))
    high, low = halves(values)
    return carry(high.sum(dims), low.sum(dims))


def signed(values: Tensor) -> Tensor:
    """Integers in a dtype that torch adds up: those of 64 bits without a sign as the same bits with one."""
    return values.view(torch.int64) if values.dtype is torch.uint64 else values


def halves(values: Tensor) -> Pair:
    """The upper and the lower 32 bits of each."""
    bits = signed(values)
    high = bits >> 32
    return (high & LOW if values.dtype is torch.uint64 else high), bits & LOW


def _stays_small(values: Tensor, count: int, bits: int = 63) -> bool:
    """Whether no sum of `count` of the values can be more than fits into so many bits."""
    if values.device.type != "cpu" or not values.numel():
        return not values.numel()
    array: NDArray[Any] = values.numpy(force=True)
    return max(-int(array.min()), int(array.max())) * count < 1 << bits


def grouped_sum(values: Tensor, inner: tuple[int, ...], starts: NDArray[np.int64]) -> tuple[Tensor, ...]:
    """The sums of runs of rows, over dimensions within a row as well: pairs, or plain sums of small integers."""
    each = torch.Size([values.shape[dim] for dim in inner]).numel()
    longest = int(np.diff(starts, append=values.shape[0]).max())
    if values.dtype in LARGE and not _stays_small(values, longest * each):
        high, low = halves(values)
        return carry(_runs(high.sum(inner) if inner else high, starts), _runs(low.sum(inner) if inner else low, starts))
    wide = signed(values)
    sums = _runs(wide.sum(inner, dtype=torch.int64) if inner else wide.to(torch.int64), starts)
    return pair_of(sums) if values.dtype in LARGE else (sums,)


def slotted_sum(
    values: Tensor, inner: tuple[int, ...], longest: int, add_up: Callable[[Tensor], Tensor | None]
) -> tuple[Tensor, ...] | None:
    """As `grouped_sum`, with sums that `add_up` makes in float64, of at most `longest` rows each; None where it cannot.

    Float64 holds integers of 53 bits, so what may be larger is added up in two halves.
    """
    large = values.dtype in LARGE
    each = torch.Size([values.shape[dim] for dim in inner]).numel()
    if large and not _stays_small(values, longest * each, 53):
        if longest * each > FEW_ROWS:
            return None
        high, low = (add_up(half.sum(inner) if inner else half) for half in halves(values))
        return None if high is None or low is None else carry(high.long(), low.long())
    if not large and longest * each > 1 << 21:
        return None
    wide = signed(values)
    sums = add_up(wide.sum(inner, dtype=torch.int64) if inner else wide)
    if sums is None:
        return None
    return pair_of(sums.long()) if large else (sums.long(),)


def fold_runs(states: tuple[Tensor, ...], starts: NDArray[np.int64]) -> tuple[Tensor, ...]:
    """The sums of runs of states."""
    added = tuple(_runs(column, starts) for column in states)
    return carry(*added) if len(added) == 2 else added


def _runs(values: Tensor, starts: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.add.reduceat(values.numpy(force=True), starts, axis=0))


def total(pair: Pair, what: str) -> Tensor:
    """Sums as int64.

    Raises:
        OverflowError: one of them is more than that; says which number it is.
    """
    high, low = pair
    too_large = (high < -(1 << 31)) | (high >= 1 << 31)
    if bool(too_large.any()):
        first = int(too_large.reshape(-1).to(torch.uint8).argmax())
        number = int(high.reshape(-1)[first]) * (1 << 32) + int(low.reshape(-1)[first])
        raise OverflowError(
            f"{what} is {number}, and exceeds int64 (up to {(1 << 63) - 1}). Sum in float64: convert the "
            "entry in a mapper, or use Mean and Count."
        )
    return (high << 32) | low
