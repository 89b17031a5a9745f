"""Copy rows at arbitrary positions of flat values one after the other, at about the cost of copying their bytes.

Rows are copied as windows of a fixed number of bytes, thousands per call: `out[places] = values[starts]` over arrays
whose elements are the windows that begin at every byte. The last window of a row extends past its end, into the place
of the following rows, which are written later and overwrite it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

LONG_ROW = 1 << 12
"""Rows of at least this many bytes are copied one by one."""

BLOCK_BYTES = 1 << 18
"""Bytes that are gathered at a time, so that they stay in the CPU cache."""

BLOCK_ROWS = 1 << 12
"""Rows that are gathered at a time."""

WIDEST = 1 << 9
"""Maximum bytes of a window."""


def offsets_of(lengths: Tensor) -> Tensor:
    """int64 `[n + 1]` offsets of consecutive rows of these lengths.

    Example:
        >>> offsets_of(torch.tensor([2, 0, 3]))
        tensor([0, 2, 2, 5])
    """
    out = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=out[1:])
    return out


def flat_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor of any dtype and shape, as a view: uint8, one dimension.

    `reshape(-1)` does not work here: a tensor of one row is contiguous whatever its stride, keeps that stride, and
    torch does not view elements as bytes unless the stride is 1.

    Example:
        >>> flat_bytes(torch.arange(20)[::2][:1]).tolist()
        [0, 0, 0, 0, 0, 0, 0, 0]
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, whatever its dtype."""
    return flat_bytes(tensor).numpy().data


def gather_rows(values: Tensor, starts: Tensor, ends: Tensor, out: Tensor) -> None:
    """Copy rows at arbitrary positions one after the other.

    Args:
        values: `[total, ...]`.
        starts, ends: int64 `[n]`: the rows.
        out: `[sum of lengths, ...]`, contiguous.

    Raises:
        ValueError: a row is outside the values.

    Example:
        >>> out = torch.empty(3)
        >>> gather_rows(torch.arange(4.0), torch.tensor([2, 0]), torch.tensor([4, 1]), out)
        >>> out
        tensor([2., 3., 0.])
    """
    if not len(starts) or not out.numel():
        return
    lengths = ends - starts
    lowest = lengths.numpy().min()  # NumPy's are faster than torch's
    if lowest < 0 or starts.numpy().min() < 0 or ends.numpy().max() > len(values):
        raise ValueError("the offsets of these rows do not fit their values: the file is damaged.")
    item = values.element_size() * values.shape[1:].numel()
    source = flat_bytes(values.contiguous())
    target: Any = flat_bytes(out).numpy()
    first, nbytes = (tensor.numpy() * item for tensor in _runs(starts, ends, lengths, int(lowest)))
    places = np.zeros(len(first) + 1, np.int64)
    np.cumsum(nbytes, out=places[1:])
    if places[-1] >= len(first) * LONG_ROW:
        _copy_each(source.numpy(), target, first, places)
        return
    low = 0
    while low < len(first):
        high = int(np.searchsorted(places, places[low] + BLOCK_BYTES, side="right")) - 1
        high = min(max(high, low + 1), low + BLOCK_ROWS, len(first))
        _copy_block(source, target, first[low:high], places[low : high + 1])
        low = high


def _runs(starts: Tensor, ends: Tensor, lengths: Tensor, lowest: int) -> tuple[Tensor, Tensor]:
    """Starts and total lengths of runs of adjacent rows. Empty rows, which exist if `lowest` is 0, are left out."""
    if not lowest:
        at = torch.from_numpy(np.flatnonzero(lengths.numpy()))
        starts, ends, lengths = (tensor.index_select(0, at) for tensor in (starts, ends, lengths))
    new = torch.ones(len(starts), dtype=torch.bool, device=starts.device)
    torch.ne(starts[1:], ends[:-1], out=new[1:])
    at = torch.from_numpy(np.flatnonzero(new.numpy()))
    if len(at) > len(starts) * 3 // 4:
        return starts, lengths
    firsts = starts.index_select(0, at)
    lasts = torch.cat([at[1:] - 1, torch.tensor([len(starts) - 1], device=at.device)])
    return firsts, ends.index_select(0, lasts) - firsts


def _copy_block(source: Tensor, target: Any, first: Any, places: Any) -> None:
    nbytes = np.diff(places)
    width = _width(nbytes)
    if width > WIDEST or width > len(source) or width > len(target):
        _copy_each(source.numpy(), target, first, places)
        return
    at = places[:-1]
    if int(nbytes.max()) > width:
        first, at = _windows(first, at, nbytes, width)
    inside = (first <= len(source) - width) & (at <= len(target) - width)
    if inside.all():
        _every(target, width)[at] = _picked(source, first, width)
        return
    _every(target, width)[at[inside]] = _picked(source, first[inside], width)
    ends, flat = np.append(at[1:], places[-1]), source.numpy()
    for number in np.flatnonzero(~inside):  # they would extend past the end of the file: copy only the rest
        target[at[number] : ends[number]] = flat[first[number] : first[number] + ends[number] - at[number]]


def _windows(first: Any, at: Any, nbytes: Any, width: int) -> tuple[Any, Any]:
    """Windows of rows that are longer than one."""
    counts = -(-nbytes // width)
    ends = np.cumsum(counts)
    within = (np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)) * width
    return np.repeat(first, counts) + within, np.repeat(at, counts) + within


def _width(nbytes: Any) -> int:
    """Bytes of a window for rows of these lengths: one window per row for similar lengths, else twice the mean."""
    longest, mean = int(nbytes.max()), int(nbytes.mean()) + 1
    wanted = longest if longest <= 64 or longest <= 4 * mean else 2 * mean
    return -(-wanted // 8) * 8


def _picked(flat: Tensor, starts: Any, width: int) -> Any:
    """The windows that begin at the given bytes, copied. Torch takes as long as NumPy, or two thirds of it."""
    windows = torch.as_strided(flat, (len(flat) - width + 1, width), (1, 1), flat.storage_offset())
    return windows.index_select(0, torch.from_numpy(starts)).numpy().view(f"V{width}").reshape(-1)


def _every(flat: Any, width: int) -> Any:
    """The windows that begin at every byte."""
    return np.ndarray((len(flat) - width + 1,), dtype=f"V{width}", buffer=flat, strides=(1,))


def _copy_each(source: Any, target: Any, first: Any, places: Any) -> None:
    at = int(places[0])
    for start, end in zip(first.tolist(), places[1:].tolist()):
        target[at:end] = source[start : start + end - at]
        at = end
