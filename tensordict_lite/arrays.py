"""Arrays of NumPy as tensors: numbers in any byte order and layout, and times as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor_of(array: Any, device: Any = None) -> Tensor:
    """Numbers as a tensor, which shares the memory of an array where torch can.

    An array in another byte order, with strides that torch has not, or that must not be written is copied. A file that
    NumPy maps for reading is not: it may be larger than memory.

    Raises:
        TypeError: torch has no such numbers.
    """
    if not isinstance(array, np.ndarray) or torch.compiler.is_compiling():
        return torch.as_tensor(array, device=device)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.carray:  # torch may not take it as it is
        is_odd = any(stride < 0 or stride % array.itemsize for stride in array.strides)
        if is_odd or not (array.flags.writeable or isinstance(array, np.memmap)):
            array = array.copy()
    try:
        return torch.as_tensor(array, device=device)
    except TypeError:
        raise TypeError(f"it is {array.dtype}, which torch does not support: convert it first") from None


_UNITS = {"M8": {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}, "m8": {"W": "s", "D": "s", "h": "s", "m": "s"}}
"""What stands for units that Arrow has not."""


def in_unit_of_arrow(array: Any) -> Any:
    """Dates and times of NumPy in a unit that Arrow has too.

    Raises:
        TypeError: no unit of Arrow holds them.
        ValueError: one is too large; names the row.
    """
    array = array.astype(array.dtype.newbyteorder("="))
    kind, (unit, _) = f"{array.dtype.kind}8", np.datetime_data(array.dtype)
    unit = _UNITS[kind].get(unit, unit)
    if unit not in ("s", "ms", "us", "ns") and (kind, unit) != ("M8", "D"):
        raise TypeError(
            f"it is {array.dtype}, a unit that Arrow does not support: save it as {kind}[s], [ms], [us] or [ns]"
        )
    target = np.dtype(f"{kind}[{unit}]")
    lost = _lost(array, target)
    lost = lost.any(axis=tuple(range(1, lost.ndim)))
    if lost.any():
        row = int(lost.argmax())
        raise ValueError(
            f"row {row} of these is {array.view(np.int64)[row]} in {array.dtype}, too large for {arrow_type(target)}"
        )
    return array.astype(target)


def _lost(times: Any, target: Any) -> Any:
    """Which of the times another unit cannot hold, in Arrow."""
    try:
        found = times.astype(target)
    except OverflowError:  # NumPy before 2.5 lets the numbers wrap around
        halves = np.array_split(times, 2)
        return np.concatenate([_lost(half, target) for half in halves]) if len(times) > 1 else np.array([True])
    lost = found.astype(times.dtype).view(np.int64) != times.view(np.int64)
    if target == np.dtype("M8[D]"):
        whole = found.view(np.int64)
        lost |= ~np.isnat(found) & (whole != whole.astype(np.int32))
    return lost


def arrow_type(dtype: Any) -> str:
    """The name of the type of Arrow for times of NumPy in a unit of Arrow.

    Example:
        >>> arrow_type(np.dtype("M8[D]")), arrow_type(np.dtype("m8[ms]"))
        ('date32[day]', 'duration[ms]')
    """
    unit = np.datetime_data(dtype)[0]
    return "date32[day]" if unit == "D" else f"{'timestamp' if dtype.kind == 'M' else 'duration'}[{unit}]"


def times_of(array: Any, device: Any = None) -> tuple[Tensor, str]:
    """Dates and times as integers and the name of their type of Arrow, see ``TensorDict.arrow_types``.

    Raises:
        TypeError: Arrow has no such unit.
        ValueError: one is too large, or NaT, for which there is no integer; names the row.
    """
    missing = np.isnat(array)
    if missing.any():
        raise ValueError(
            f"it has NaT in row {np.argwhere(missing)[0][0]}, for which there is no integer: fill it, and keep "
            "~numpy.isnat(array) as another entry"
        )
    found = in_unit_of_arrow(array)
    kind = arrow_type(found.dtype)
    return tensor_of(found.view(np.int64).astype(np.int32 if kind == "date32[day]" else np.int64), device), kind
