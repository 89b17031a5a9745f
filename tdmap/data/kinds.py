"""What a dataset may be, and what it consists of.

Everything else in the engine treats a dataset and a result as opaque values. The files of this room are the only
ones that look into the collections of `tensordict_lite`. Dense ones go through the trusted constructor, because a chunk
of a valid collection is valid; other kinds (lazy stacks, non-tensor data) go through their public interface.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import NonTensorData
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.ops.put import signed_view as signed_view

Data: TypeAlias = Any
"""A tensor or any collection of `tensordict_lite`."""


def is_data(value: object) -> bool:
    """Whether `value` is a tensor or a collection of tensors."""
    return isinstance(value, (Tensor, TensorCollection))


def is_dense(value: object) -> bool:
    """A collection whose entries are in a plain dict: `TensorDict` and tensorclasses."""
    return isinstance(value, DenseCollection) and type(value._source) is dict and not value._is_non_tensor


def has_members(value: Any) -> bool:
    """A lazy stack of collections, along its `stack_dim`."""
    if not isinstance(value, TensorCollection) or value._is_non_tensor:
        return False
    return getattr(value, "stack_dim", None) is not None


def is_opened_by_row(data: object) -> bool:
    """Whether rows of a dataset are opened when they are read: a `tdmap.stores.ShardedDataset`."""
    return hasattr(type(data), "member_files")


def is_remote(data: Any) -> bool:
    """Whether rows of a dataset are fetched from an object store."""
    return is_opened_by_row(data) and bool(data.is_remote)


def borders_of(data: Any) -> list[int]:
    """Rows with which another folder of a dataset begins, without the first."""
    return list(data.borders) if is_opened_by_row(data) else []


def members_of(data: Data) -> list[Data]:
    """The parts of a dataset that are open, or in memory: itself, or those of several folders that are no folders."""
    return list(data.in_memory()) if is_opened_by_row(data) else [data]


def folders_read(data: Data) -> list[str]:
    """The folders or URLs of a dataset of several folders, whose rows are opened when they are read."""
    return list(data.folders) if is_opened_by_row(data) else []


def member_files(data: Data) -> list[str]:
    """A file in each of these folders, which is there wherever the folder is."""
    return list(data.member_files()) if is_opened_by_row(data) else []


def is_read_anew(value: object) -> bool:
    """Whether entries and rows are copies in memory of what a file holds: a `PersistentTensorDict`."""
    return hasattr(type(value), "_loaded")


def require_writable(out: object) -> None:
    """Raise ValueError for an output whose rows are copies: what is written into them would be lost."""
    if is_opened_by_row(out):
        raise ValueError(
            "a dataset of several folders is read only, so it cannot be out: pass out=the path of a new folder (with "
            "rows_per_shard= for several), out=None, or a dataset that TensorDict.load_memmap gave."
        )
    if isinstance(out, TensorCollection):
        _require_views(out, ())


def _require_views(out: Any, path: tuple[str, ...]) -> None:
    if is_read_anew(out):
        where = f"the entry {path[0] if len(path) == 1 else path!r} of out" if path else "out"
        raise ValueError(
            f"{where} is a {type(out).__name__}, whose rows are copies in memory, so no result would reach its file: "
            "pass out=the path of a new folder or out=None, and assign the result, as in data[:] = result."
        )
    if is_dense(out):
        for key, entry in out._source.items():
            if isinstance(entry, TensorCollection):
                _require_views(entry, (*path, key))
    elif has_members(out):
        for member in out.tensordicts:
            _require_views(member, path)


def instead_of_data(value: Any) -> str:
    """What was passed where a dataset is needed, and how to make one of it."""
    if isinstance(value, np.ndarray):
        return "a numpy array: use torch.from_numpy(array)."
    if isinstance(value, Mapping):
        return f"a {type(value).__name__}: use TensorDict(mapping, batch_size=[rows])."
    if isinstance(value, (str, os.PathLike)):
        return f"the path {os.fspath(value)!r}: use TensorDict.load_memmap(path)."
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__}: use torch.tensor(values), or TensorDict({{'value': values}}, [len(values)])."
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return f"a {type(value).__name__}: use TensorDict({{name: table[name] for name in table}}, [len(table)])."
    return f"a {type(value).__name__}: use a torch.Tensor, a TensorDict or a tensorclass."


def data_length(data: Data, dim: int) -> int:
    """Rows of `data` along `dim`."""
    return int(data.shape[dim])


def tensors_of(data: Data) -> list[Tensor]:
    """The tensors in `data`, as a flat list. Of a dataset of several folders none: they are not open."""
    if isinstance(data, Tensor):
        return [data]
    if is_opened_by_row(data):
        return []
    return list(data._leaves())


def with_tensors(data: Data, tensors: Sequence[Tensor]) -> Data:
    """The same tree around other tensors of the same batch size, in the order of `tensors_of`."""
    return tensors[0] if isinstance(data, Tensor) else data._with_leaves(iter(tensors))


def entries_of(data: Data) -> Mapping[str, Any]:
    """The entries of a dense collection as they are: what `items()` would unwrap is not."""
    entries: Mapping[str, Any] = data._source
    return entries


def with_entries(example: Data, entries: dict[str, Any], rows: int | None = None) -> Data:
    """A dense collection like `example` with other entries, and another number of rows, if that is given."""
    shape = example._batch_size
    return example._rebuild(entries, shape if rows is None else torch.Size((rows, *shape[1:])), example._names)


def payload_of(value: NonTensorData) -> Any:
    """The object that an entry without tensors holds, as it is."""
    return value._payload


def leaves_hold_rows(data: Data) -> bool:
    """Whether every tensor in `data` has the rows along the same dim; the members of a lazy stack need not."""
    if isinstance(data, Tensor):
        return True
    if is_opened_by_row(data):
        return False
    if is_dense(data):
        return all(leaves_hold_rows(value) for value in data._source.values())
    return not data._leaves()


def tensor_bytes(data: Data, length: int) -> int:
    """Bytes that the tensors of `data` take in one of its `length` rows; see `tdmap.data.sizes` for all of a row.

    Of a dataset of several folders with objects, which it reads anyway.
    """
    if is_opened_by_row(data):
        return int(data.row_bytes)
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(data)) // max(length, 1)
