"""Values in a dtype that torch can compare, in the same order, and back: it has no order for some of its own."""

from __future__ import annotations

import torch
from torch import Tensor

_WIDER = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}

_TOP = -(1 << 63)
"""The bit by which the order of 64-bit numbers with a sign differs from that of numbers without one."""


def require_real(values: Tensor, what: str) -> None:
    """Raise TypeError for complex numbers, which have no order, and of which `double()` keeps the real part alone."""
    if values.is_complex():
        raise TypeError(f"{what} needs real numbers: got complex numbers. Use abs() or .real.")


def ranked(values: Tensor, what: str = "the order") -> Tensor:
    """Numbers with the order of `values`.

    Raises:
        TypeError: they have no order.

    Example:
        >>> ranked(torch.tensor([2**63, 5], dtype=torch.uint64)).argmax()
        tensor(0)
    """
    require_real(values, what)
    if values.dtype is torch.uint64:
        return values.view(torch.int64) ^ _TOP
    wider = _WIDER.get(values.dtype)
    return values if wider is None else values.to(wider)


def require_elements(count: int, what: str) -> None:
    """Raise ValueError unless rows have elements, of which one is the smallest."""
    if not count:
        raise ValueError(f"{what}: the rows have no elements, so none is the smallest or the largest.")


def unranked(ranks: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of a dtype that were `ranked` so."""
    return (ranks ^ _TOP).view(dtype) if dtype is torch.uint64 else ranks.to(dtype)


def extreme(ranks: Tensor, dims: tuple[int, ...], largest: bool, skipna: bool) -> Tensor:
    """The smallest or the largest over dimensions; NaN where one is, or with `skipna` where all are."""
    if not skipna or not ranks.is_floating_point():
        return ranks.amax(dims) if largest else ranks.amin(dims)
    nan = ranks.isnan()
    known = torch.where(nan, -torch.inf, ranks).amax(dims) if largest else torch.where(nan, torch.inf, ranks).amin(dims)
    return known.masked_fill_(nan.all(dims), torch.nan)


def smaller(a: Tensor, b: Tensor, skipna: bool = False) -> Tensor:
    """The smaller one of each two; NaN where one is, or with `skipna` where both are."""
    return unranked((torch.fmin if skipna else torch.minimum)(ranked(a), ranked(b)), a.dtype)


def larger(a: Tensor, b: Tensor, skipna: bool = False) -> Tensor:
    """The larger one of each two; NaN where one is, or with `skipna` where both are."""
    return unranked((torch.fmax if skipna else torch.maximum)(ranked(a), ranked(b)), a.dtype)
