"""Arrow tables as collections and back; memory is shared where both use the same layout."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.keys import require_path
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.packages import pyarrow

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

Path = tuple[str, ...]


def from_arrow(
    table: Any,
    *,
    copy: bool | None = None,
    nulls: str = "raise",
    mask_key: Any = None,
    device: DeviceLike | None = None,
) -> TensorDict:
    """An entry for each column of a table.

    Numbers, bools and fixed-size lists become tensors, lists of numbers jagged nested tensors, structs nested
    collections, and other columns one object per row.

    Args:
        table: a ``pyarrow.Table`` or ``RecordBatch``, or an argument of ``pyarrow.table`` such as a Polars data frame.
        copy: True: copy the data. False: share the memory of the table; writing to a tensor that was read from a mapped
            file ends the program. None: share what Arrow marks as mutable.
        nulls: ``"raise"``; ``"fill"`` with NaN, 0, False, an empty list or None; or ``"mask"``: fill, and add a bool
            entry ``(*mask_key, *key)``, False for nulls, for each entry with nulls.
        mask_key: default ``"_mask"``.
        device: device of the result.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: a column has nulls and ``nulls`` is ``"raise"``; names it. Two columns have the same name, or a
            column has the name of the masks.
        TypeError: the object is not a table.

    Example:
        >>> import pyarrow
        >>> from tensordict_lite import from_arrow
        >>> from_arrow(pyarrow.table({"x": [1, 2], "word": ["ant", "bee"]}))["x"]
        tensor([1, 2])
    """
    if nulls not in ("raise", "fill", "mask"):
        raise ValueError(f"nulls must be one of ('raise', 'fill', 'mask'), got {nulls!r}.")
    if mask_key is not None and nulls != "mask":
        raise ValueError(f"from_arrow got a mask_key but nulls={nulls!r}, not 'mask'.")
    pa = pyarrow()
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif not isinstance(table, pa.Table):
        table = pa.table(table)
    above = require_path("_mask" if mask_key is None else mask_key)
    _require_one_each(table.schema.names, above[0] if nulls == "mask" else None)
    reading = _Reading(pa, copy, nulls)
    size = torch.Size([table.num_rows])
    out = TensorDict({}, batch_size=size)
    for name, column in zip(table.schema.names, table.columns):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        out._set_str(name, reading.entry(array, (name,), size))
    for path, mask in reading.masks.items():
        out.set((*above, *path), mask)
    return out if device is None else out.to(device)


def _require_one_each(names: list[str], mask: str | None) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"two columns have the name {twice!r}: rename one of them first.")
    if mask in names:
        raise ValueError(f"nulls='mask' writes the masks under the key {mask!r}, which is a column of the table.")


class _Reading:
    def __init__(self, pa: ModuleType, copy: bool | None, nulls: str) -> None:
        self.pa, self.copy, self.nulls = pa, copy, nulls
        self.masks: dict[Path, Tensor] = {}

    def entry(self, array: Any, path: Path, size: torch.Size) -> Any:
        types = self.pa.types
        if types.is_struct(array.type):
            names = [field.name for field in array.type]
            _require_one_each(names, None)
            inner = {name: self.entry(each, (*path, name), size) for name, each in zip(names, array.flatten())}
            return TensorDict._trusted(inner, size, None, None)
        found = self.nulls != "raise" or _nulls_in(types, array)
        if self.nulls == "raise" and found:
            raise ValueError(
                f"The Arrow column {path} has {found} null value(s). Pass nulls='fill' to fill them, or "
                "nulls='mask' to also get a mask entry."
            )
        if array.null_count and self.nulls == "mask":
            self.masks[path] = torch.from_numpy(np.array(array.is_valid(), dtype=np.bool_))
        if types.is_list(array.type) or types.is_large_list(array.type):
            values = self.tensor(array.flatten())
            if values is not None:
                lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
                offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
                return torch.nested.nested_tensor_from_jagged(values, offsets)
        tensor = self.tensor(array)
        if tensor is not None:
            return tensor
        return NonTensorStack(*map(NonTensorData, array.to_pylist()))

    def tensor(self, array: Any) -> Tensor | None:
        """Numbers, or fixed-size lists of them; None for other types."""
        pa, types, kind = self.pa, self.pa.types, array.type
        if isinstance(kind, pa.FixedShapeTensorType):
            values = self.tensor(array.storage)
            assert values is not None
            values = values.reshape(len(array), *kind.shape)
            return values if kind.permutation is None else values.permute(0, *(1 + at for at in kind.permutation))
        if types.is_fixed_size_list(kind):
            width, valid = kind.list_size, None
            if array.null_count:  # null rows hold undefined values
                valid = torch.from_numpy(np.array(array.is_valid(), dtype=np.bool_))
            inner = self.tensor(array.values.slice(array.offset * width, len(array) * width))
            if inner is None:
                return None
            inner = inner.reshape(len(array), width, *inner.shape[1:])
            return inner if valid is None else inner.masked_fill(~valid.view(-1, *[1] * (inner.dim() - 1)), 0)
        if types.is_boolean(kind):
            return torch.from_numpy(np.array(array.fill_null(False), dtype=np.bool_))
        if not (types.is_integer(kind) or types.is_floating(kind)):
            return None
        if array.null_count:
            return numbers_of(array.fill_null(float("nan") if types.is_floating(kind) else 0))
        shared = self.copy is False or (self.copy is None and array.buffers()[-1] and array.buffers()[-1].is_mutable)
        return numbers_of(array) if shared else numbers_of(array).clone()


def _nulls_in(types: Any, array: Any) -> int:
    """The number of rows that are null or contain a null."""
    count = int(array.null_count)
    kind = array.type
    if count or not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return count
    return _nulls_in(types, array.flatten())


def numbers_of(array: Any) -> Tensor:
    """The memory of an array of numbers without nulls."""
    if not len(array):
        return torch.from_numpy(np.empty(0, array.type.to_pandas_dtype()))
    return torch.utils.dlpack.from_dlpack(array)


# -- back ----------------------------------------------------------------------------------------------------------


def to_arrow(td: TensorCollection) -> Any:
    """An Arrow table with the rows of the collection and a column for each entry: the inverse of :func:`from_arrow`.

    Tensors ``[n]`` share their memory, others become ``fixed_shape_tensor`` columns, jagged nested tensors large lists,
    nested collections structs, and objects the type that ``pyarrow.array`` infers.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: Arrow has no type for the dtype or the objects of an entry; names the entry.
        ValueError: the batch size is not ``[n]``, or an entry has no column form; names it.

    Example:
        >>> from tensordict_lite import TensorDict, to_arrow
        >>> to_arrow(TensorDict({"x": torch.arange(2), "n": {"word": ["ant", "bee"]}}, [2])).to_pylist()
        [{'x': 0, 'n': {'word': 'ant'}}, {'x': 1, 'n': {'word': 'bee'}}]
    """
    pa = pyarrow()
    if not hasattr(td, "batch_dims"):
        raise TypeError(f"to_arrow needs a collection, got a {type(td).__name__}.")
    if td.batch_dims != 1:
        raise ValueError(
            f"to_arrow needs a tensordict with one batch dimension, got the batch size {td.batch_size}. Call "
            "td.reshape(-1) first to flatten it."
        )
    columns = _columns(pa, td, (), td.batch_size[0])
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _columns(pa: ModuleType, td: Any, path: Path, rows: int) -> dict[str, Any]:
    return {key: _column(pa, value, (*path, key), rows) for key, value in td._entries()}


def _column(pa: ModuleType, value: Any, path: Path, rows: int) -> Any:
    name = repr(path[0] if len(path) == 1 else path)
    if isinstance(value, Tensor):
        value = value.detach().cpu().as_subclass(Tensor) if not value.is_nested else value.detach().cpu()
        return _lists(pa, value, name) if value.is_nested else _fixed(pa, value, name)
    if value._is_unbatched:
        raise ValueError(
            f"the entry {name} is a tensor shared by all rows, which a table cannot contain: exclude it first."
        )
    if value._is_non_tensor:
        held = value.tolist() if value.batch_size and hasattr(value, "_stack_dim") else [value._as_value()] * rows
        try:
            return pa.array(list(held))
        except (pa.ArrowException, OverflowError) as error:
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"the entry {name} has objects without an Arrow type: {error}") from error
    inner = _columns(pa, value, path, rows)
    if not inner:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(list(inner.values()), names=list(inner))


def _fixed(pa: ModuleType, tensor: Tensor, name: str) -> Any:
    """A tensor as numbers, or as tensors of one shape."""
    try:
        values = pa.array(tensor.contiguous().numpy(force=True).reshape(-1))
    except (TypeError, pa.ArrowException) as error:
        raise TypeError(f"the entry {name} is {tensor.dtype}, which Arrow lacks: convert it first.") from error
    if tensor.dim() == 1:
        return values
    shape = tuple(tensor.shape[1:])
    if 0 in shape:
        raise ValueError(
            f"the entry {name} has the shape {list(tensor.shape)}, but an Arrow column cannot contain empty tensors."
        )
    storage = pa.FixedSizeListArray.from_arrays(values, tensor[:1].numel() if len(tensor) else int(np.prod(shape)))
    kind = pa.fixed_shape_tensor(values.type, shape, permutation=tuple(range(len(shape))) if len(tensor) else None)
    return pa.ExtensionArray.from_storage(kind, storage)


def _lists(pa: ModuleType, tensor: Any, name: str) -> Any:
    """A jagged nested tensor as lists."""
    if tensor.layout is not torch.jagged:
        raise ValueError(
            f"to_arrow converts nested tensors of the layout torch.jagged only: {name} is {tensor.layout}."
        )
    if tensor._ragged_idx != 1:
        raise ValueError(
            f"to_arrow needs the ragged dim of the jagged tensor {name} at position 1, got "
            f"{tensor._ragged_idx}. Move it there first, for example with .transpose(1, 2)."
        )
    tensor = tensor.contiguous()
    offsets = pa.array(tensor.offsets().to(torch.int64).numpy(force=True))
    return pa.LargeListArray.from_arrays(offsets, _fixed(pa, tensor.values(), name))
