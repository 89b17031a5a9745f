"""What commands say of a dataset: its entries, their types, sizes and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdmap.data.kinds import Data

SHOWN = 8
"""Numbers of a value that are shown."""

LOOKED_AT = 100
"""Objects of a column whose types stand for all."""


def leaves_of(data: Data, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """The entries of a dataset that have none themselves: key, value and bytes."""
    data = outline(data)
    for name in sorted(data.keys()):
        value = data.get(name)
        if is_branch(value):
            yield from leaves_of(value, (*prefix, name))
        else:
            yield (*prefix, name), value, size_of(value)


def outline(data: Data) -> Any:
    """What stands for a dataset of several folders, of which no column is loaded for its name and shape; or itself.

    Of a lazy stack whose members differ in length, its columns.
    """
    from tdmap.data.reader import rows_of
    from tdmap.data.stacks import ragged_columns

    return ragged_columns(rows_of(data).outline())


def is_branch(value: Any) -> bool:
    """Whether an entry has entries."""
    from tensordict_lite import is_non_tensor, is_tensor_collection

    return bool(is_tensor_collection(value)) and not is_non_tensor(value)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an entry; none for what has none. Of rows of different lengths, their number."""
    return tuple(getattr(value, "shape", ()))


def size_of(value: Any) -> int:
    """Bytes of a tensor, or of all rows of different lengths."""
    import torch

    from tensordict_lite.ragged import is_ragged

    if is_ragged(value):
        return int(value.lengths.sum()) * int(value.row_shape.numel()) * int(value.dtype.itemsize)
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def type_name(value: Any) -> str:
    """The dtype of an entry; of objects the type that they all have, judged by the first ones.

    Example:
        >>> from tensordict_lite import TensorDict
        >>> type_name(TensorDict({"name": ["a", "b"]}, [2]).get("name"))
        'str'
    """
    from tensordict_lite import is_non_tensor
    from tensordict_lite.ragged import is_ragged

    if is_ragged(value):
        return f"ragged {_name(value.dtype)}" if value.kind == "tensor" else str(value.kind)
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return _name(dtype)
    if not is_non_tensor(value):
        return type(value).__name__
    first = value[:LOOKED_AT].tolist() if value.batch_dims else [value.data]
    for _ in range(value.batch_dims - 1):
        first = [item for row in first for item in row]
    kinds = {type(item).__name__ for item in first}
    return kinds.pop() if len(kinds) == 1 else "object"


def time_types(data: Data) -> dict[str, Any]:
    """The entries of a dataset that are times, by their names with dots, each with its `TimeType`."""
    from tdmap.times import time_type

    types = getattr(outline(data), "arrow_types", {})
    found = {key if isinstance(key, str) else ".".join(key): time_type(kind) for key, kind in types.items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def writer_of(kind: Any) -> Callable[[Any], str]:
    """How numbers are written: as times, if they have a type of time."""
    if kind is None:
        return lambda number: f"{number:.6g}" if isinstance(number, float) else str(number)
    from tdmap.times import text_of

    return lambda number: text_of(round(number), kind) if number == number else "nan"


def listed(values: Any, written: Callable[[Any], str]) -> str:
    """The first of several values, each as it is `written`."""
    more = [f"... {len(values) - SHOWN:,} more"] if len(values) > SHOWN else []
    return f"[{', '.join([*map(written, values[:SHOWN].tolist()), *more])}]"
