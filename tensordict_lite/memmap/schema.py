"""What rows of a dataset that grows look like, and whether rows that wait fit the dataset that is there."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.format import META, SUFFIX, encode_key, read_json, read_meta
from tensordict_lite.memmap.load import DTYPES
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.objects.data import NonTensorDataBase, same_payload

__all__ = ["RowLeaf", "Schema", "load_head"]

_PICKLED = object()  # an object that is not compared: its pickle is not opened


def _described(meta: dict[str, Any]) -> Any:
    """What metadata say of a row: the entries with their dtypes and shapes, and the batch size."""
    entries = {**meta, **meta.get("_entries", {})}
    return _of_a_row(meta["shape"]), {
        key: (entry.get("type"), entry.get("dtype"), _of_a_row(entry.get("shape")))
        for key, entry in entries.items()
        if isinstance(entry, dict) and key != "_entries"
    }


def _of_a_row(shape: Any) -> Any:
    return shape[1:] if isinstance(shape, list) else None


class RowLeaf:
    """One tensor of a row: where it is in the collection, on disk, and what it looks like."""

    __slots__ = ("dtype", "file", "path", "row_bytes", "shape")

    def __init__(self, path: tuple[str, ...], file: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.path = path
        self.file = file
        self.dtype = dtype
        self.shape = shape
        self.row_bytes = dtype.itemsize
        for n in shape:
            self.row_bytes *= n


class Schema:
    """Leaves and metadata files of a dataset; ``head`` is the metadata whose row count rules."""

    def __init__(self) -> None:
        self.leaves: list[RowLeaf] = []
        self.metas: list[str] = []
        self.described: list[Any] = []  # by each of them
        self.objects: dict[tuple[str, ...], Any] = {}  # one for all rows: there is nothing to append
        self.batch: tuple[int, ...] = ()

    @property
    def head(self) -> str:
        return self.metas[0]

    @classmethod
    def read(cls, root: str) -> Schema:
        schema = cls()
        schema._walk(root, "", ())
        return schema

    def _walk(self, root: str, folder: str, path: tuple[str, ...]) -> None:
        meta = read_meta(os.path.join(root, folder) if folder else root, nested=bool(folder))
        if meta.kind == "tensorclass":
            self._walk(root, _join(folder, "_tensordict"), path)
            return
        if meta.kind == "nontensor" and path:
            self.objects[path] = meta.raw.get("data", _PICKLED)
            return
        if meta.kind != "tensordict" or not meta.shape:
            raise DatasetError(meta.path, "a dataset that grows is made of dense collections with a batch dimension")
        if not self.metas:
            self.batch = meta.shape[1:]
        self.metas.append(_join(folder, META))
        self.described.append(_described(meta.raw))
        for key, leaf in meta.leaves.items():
            if leaf.is_nested:
                raise DatasetError(meta.path, f"the nested tensor {key!r} cannot grow")
            file = _join(folder, encode_key(key) + SUFFIX)
            self.leaves.append(RowLeaf((*path, key), file, DTYPES[leaf.dtype], leaf.shape[1:]))
        for key in meta.children:
            self._walk(root, _join(folder, encode_key(key)), (*path, key))

    def is_that_of(self, root: str, head: dict[str, Any]) -> bool:
        """Whether a dataset, whose head was read just now, has the same entries."""
        metas = itertools.chain([head], (load_head(f"{root}/{file}") for file in self.metas[1:]))
        return all(_described(meta) == before for meta, before in zip(metas, self.described))

    def leaves_of(self, rows: Any) -> tuple[list[Tensor], int]:
        """The tensors of a row or a batch, each ``[count, ...]``, in the order of the schema."""
        if not isinstance(rows, TensorCollection):
            raise ValueError(f"rows are a TensorDict or a tensorclass, got a {type(rows).__name__}")
        size = tuple(rows._batch_size)
        if size == self.batch:
            count, lead = 1, ()
        elif size[1:] == self.batch and len(size) == len(self.batch) + 1:
            count, lead = size[0], size[:1]
        else:
            raise ValueError(
                f"a row has the batch size {list(self.batch)} and a batch of rows one more dimension in front: got "
                f"{list(size)}"
            )
        out = []
        for leaf in self.leaves:
            tensor = _entry(rows, leaf.path)
            if tensor.dtype != leaf.dtype or tuple(tensor.shape) != (*lead, *leaf.shape):
                raise ValueError(
                    f"{leaf.path} should be {leaf.dtype} of shape {[*lead, *leaf.shape]}, got {tensor.dtype} of shape "
                    f"{list(tensor.shape)}"
                )
            out.append(tensor if lead else tensor.unsqueeze(0))
        self._check_no_more(rows)
        return out, count

    def _check_no_more(self, rows: Any) -> None:
        if len(rows._leaves()) != len(self.leaves):
            known = {leaf.path for leaf in self.leaves}
            extra = [path for path in _tensor_paths(rows, ()) if path not in known]
            raise ValueError(f"the rows have entries that the dataset lacks: {extra}")
        for path, values in _objects(rows, ()):
            if path not in self.objects:
                raise ValueError(f"the rows have the non-tensor entry {path}, which the dataset lacks")
            one = self.objects[path]
            for value in values if one is not _PICKLED else ():
                if not same_payload(json.loads(json.dumps(value)) if holds_json(value) else value, one):
                    raise ValueError(
                        f"the dataset has one object for all rows at {path}, {one!r}, and a row has {value!r}. What "
                        "differs from row to row has to be a tensor, such as an index into a list."
                    )

    def check_example(self, row: TensorCollection) -> None:
        try:
            self.leaves_of(row)
        except ValueError as err:
            raise ValueError(f"the dataset that is there does not fit the example: {err}") from None


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _entry(rows: Any, path: tuple[str, ...]) -> Tensor:
    node = rows
    for part in path:
        try:
            node = node._get_str(part)
        except (KeyError, AttributeError):
            raise ValueError(f"the rows have no entry {path}") from None
    if not isinstance(node, Tensor):
        raise ValueError(f"{path} should be a tensor, got a {type(node).__name__}")
    return node


def _tensor_paths(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key in node._key_list():
        value = node._get_str(key)
        if isinstance(value, Tensor):
            yield (*path, key)
        else:
            yield from _tensor_paths(value, (*path, key))


def _objects(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Non-tensor entries of rows, each with its objects."""
    if not node._nested():
        return
    for key in node._key_list():
        value = node._get_str(key)
        if isinstance(value, Tensor):
            continue
        if value._is_unbatched:
            raise NotImplementedError(f"UnbatchedTensor entries cannot be appended, but {(*path, key)} is one")
        if not value._is_non_tensor:
            yield from _objects(value, (*path, key))
        elif isinstance(value, NonTensorDataBase):
            yield (*path, key), [value._payload]
        else:
            yield (*path, key), [row.data for row in value.reshape(-1).unbind(0)]


def load_head(path: str) -> dict[str, Any]:
    """The metadata of a folder with rows."""
    meta = read_json(path, os.path.dirname(path))
    if type(meta) is not dict or type(meta.get("shape")) is not list or not meta["shape"]:
        raise DatasetError(path, "is not the metadata of a dataset that grows")
    return meta
