"""Arrays of other libraries as entries: numpy's arrays of strings and objects, and columns of pandas, Arrow and Polars.

An array with as many rows as the batch is a column with one value per row; indexing, sorting and joining
apply to it. (The reference package stores the array as one object, which then no longer matches the rows.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensordict_lite import registry
from tensordict_lite.kernel import DeviceLike

_LIBRARIES = frozenset(("pandas", "pyarrow", "polars"))
_PLAIN = frozenset((str, int, float, bool, bytes, dict, list, tuple, type(None)))


def require_unmasked(value: Any, what: str) -> None:
    """Raise ValueError for a masked numpy array, or a list of them: tensors have no mask.

    Args:
        value: any value.
        what: its description in the message.
    """
    arrays = value if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray) else [value]
    if any(isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array) for array in arrays):
        raise ValueError(
            f"{what} has masked values, which a tensor would show: fill them by array.filled(value), and keep "
            "array.mask as another entry where it matters."
        )


def column_of(item: Any, batch_size: torch.Size, device: DeviceLike | None = None) -> Any:
    """Convert an array with one row per batch element to an entry.

    Args:
        item: an array of numpy, or a Series, Index or Array of pandas, Arrow or Polars.
        batch_size: batch size of the collection that will hold it.
        device: its device.

    Returns:
        A tensor for numbers and booleans, a :class:`~tensordict_lite.NonTensorStack` for other values; ``None`` for
        other objects and for arrays with another number of rows.

    Example:
        >>> column_of(np.array(["a", "b"]), torch.Size([2])).tolist()
        ['a', 'b']
    """
    dims = len(batch_size)
    if not dims:
        return None
    array = item if isinstance(item, np.ndarray) else _array_of(item, batch_size[0])
    if array is None or array.shape[:dims] != tuple(batch_size):
        return None
    if array.dtype.kind in "biufc":
        return torch.tensor(array, device=device)  # a copy: arrays of these libraries are read-only
    return _stacked(array, device)


def _array_of(item: Any, rows: int) -> np.ndarray | None:
    """A column of another library as an array, missing values as None; ``None`` for other objects."""
    # torch.compile cannot trace `__module__` or columns of these libraries.
    if type(item) in _PLAIN or torch.compiler.is_compiling():
        return None
    if type(item).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    if not hasattr(item, "__len__") or getattr(item, "ndim", 1) != 1 or len(item) != rows:
        return None
    if hasattr(item, "to_pylist"):  # Arrow
        values = item.to_pylist()
    elif hasattr(item, "to_list"):  # pandas, Polars; pandas' extension arrays have tolist()
        values = item.to_list()
    elif hasattr(item, "tolist"):
        values = item.tolist()
    else:
        return None
    if all(type(value) in (bool, int, float) for value in values) and _is_numeric(item):
        return np.asarray(item)
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = None if _is_missing(value) else value
    return array


def _is_numeric(item: Any) -> bool:
    try:
        return bool(np.asarray(item).dtype.kind in "biufc")
    except (TypeError, ValueError):
        return False


def _is_missing(value: Any) -> bool:
    """Whether a value is missing: NA and NaT of pandas, NaN among objects."""
    name = type(value).__name__
    return name in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _stacked(array: np.ndarray, device: Any) -> Any:
    if array.ndim == 1:
        values = (
            array.tolist() if array.dtype.kind in "OUS" else list(array)
        )  # numpy's own dates keep units, structured arrays their fields
        if not registry.holds_collections(values):
            return registry.NonTensorStack._of_objects(values, device=device)
        rows = [registry.NonTensorData(value, device=device) for value in values]
    else:
        rows = [_stacked(row, device) for row in array]
    return registry.NonTensorStack._of(rows, 0, torch.Size(array.shape[1:]), device)
