"""Sums and sums of squares of many rows, in float64, a cache-sized block at a time.

A chunk of float32 rows as a float64 tensor is twice its size, and every pass over it comes from memory. Here a
block is widened into one buffer that stays in the cache, and all passes are over that buffer: memory is read once.

    block (any dtype) ──copy──► buffer (float64) ──sum──► total
                                       └─square, in place──sum──► squares
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 96 << 10
"""Elements of a block: 768 KiB of float64, within one core's second-level cache."""

CANCELLED = 2.0**-12
"""Where less than this share of the sum of squares is left after the mean is taken off, too many of the 53 bits
have cancelled, and the squares are taken again, of distances from (nearly) the mean."""


def blocks(values: Tensor) -> Iterator[Tensor]:
    """The rows of ``values`` in runs of about :data:`BLOCK` elements, and at least one row."""
    return iter(values.detach().split(max(BLOCK * values.shape[0] // max(values.numel(), 1), 1)))


def byte_counts(values: Tensor, dims: tuple[int, ...]) -> Tensor | None:
    """How often each value of an 8-bit type occurs over ``dims``: int64 ``[..., 256]``, in the order of `byte_values`.

    None for other types, and where so few numbers are counted together that a table does not pay.
    """
    if values.dtype not in (torch.uint8, torch.int8, torch.bool):
        return None
    kept = [dim for dim in range(values.ndim) if dim not in dims]
    sizes = [values.shape[dim] for dim in kept]
    groups = math.prod(sizes)
    if values.numel() <= 1024 * groups:
        return None
    raw = values.view(torch.uint8).permute(*kept, *dims).reshape(groups, *[values.shape[dim] for dim in dims])
    return torch.stack([torch.bincount(group.reshape(-1), minlength=256) for group in raw]).view(*sizes, 256)


def byte_values(dtype: torch.dtype) -> Tensor:
    """The 256 values of an 8-bit type, by their bits as an unsigned number; bool repeats True."""
    bits = torch.arange(256, dtype=torch.uint8)
    return bits.bool() if dtype is torch.bool else bits.view(dtype)


def wide_sum(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Sum of real ``values`` over ``dims`` in float64; exact for integers up to 2**53."""
    out: Tensor | None = None
    for wide, _ in _widened(values):
        part = wide.sum(dims)
        out = part if out is None else out.add_(part)
    assert out is not None
    return out


def moments(values: Tensor, dims: tuple[int, ...], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of ``count`` real values each, over ``dims``, in float64: ``(centre, sums, m2)``.

    Their sum is ``count * centre + sums``, where the centre is zero, or near the mean where that is far from zero: then
    the sum itself has not the digits that tell two means apart. ``m2`` is the sum of squared distances from the mean.
    """
    sums, squares = _power_sums(values, dims, None)
    mean = sums / count
    m2 = torch.addcmul(squares, sums, mean, value=-1)
    centre = torch.zeros_like(mean)
    if _has_cancelled(m2, squares, sums):
        # About a centre c near the mean: sum (x - c)^2 - n * (mean - c)^2, where next to nothing cancels.
        centre = torch.where(mean.isfinite(), mean, 0.0)
        sums, squares = _power_sums(values, dims, centre)
        m2 = squares - sums * (sums / count)
    kept = [size for dim, size in enumerate(values.shape) if dim not in dims]
    return centre.view(kept), sums.view(kept), m2.clamp_(min=0).view(kept)


def _has_cancelled(m2: Tensor, squares: Tensor, sums: Tensor) -> bool:
    # Infinite squares of finite numbers are no answer either. NaN stays NaN in any case: False here.
    return bool(((m2 < squares * CANCELLED) | (squares.isinf() & sums.isfinite())).any())


def _power_sums(values: Tensor, dims: tuple[int, ...], centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums of ``values - centre`` and of their squares, with ``dims`` kept as ones."""
    sums: Tensor | None = None
    squares: Tensor | None = None
    for wide, buffer in _widened(values):
        if centre is not None:
            wide = torch.sub(wide, centre, out=buffer)
        first = wide.sum(dims, keepdim=True)
        second = torch.mul(wide, wide, out=buffer).sum(dims, keepdim=True)
        if sums is None or squares is None:
            sums, squares = first, second
        else:
            sums += first
            squares += second
    assert sums is not None and squares is not None
    return sums, squares


def _widened(values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each block in float64, and a buffer of its shape that may be overwritten."""
    buffer: Tensor | None = None
    for block in blocks(values):
        if buffer is None:  # the first block is the largest
            buffer = _buffer(block)
        scratch = buffer[: block.shape[0]]
        yield (block if block.dtype is torch.float64 else scratch.copy_(block)), scratch


def _buffer(block: Tensor) -> Tensor:
    """Float64 memory of the shape of ``block``, the same one for every chunk: fresh pages cost as much as a pass."""
    size = block.numel()
    if size > BLOCK or block.device.type != "cpu":  # a single, very large row, or a mapper's result on a device
        return torch.empty(block.shape, dtype=torch.float64, device=block.device)
    if getattr(_of_thread, "buffer", None) is None:
        with torch.inference_mode(False):  # or it could not be written outside of that mode later
            _of_thread.buffer = torch.empty(BLOCK, dtype=torch.float64)
    kept: Tensor = _of_thread.buffer
    return kept[:size].view(block.shape)


_of_thread = threading.local()
