"""The layout of the rows of a growing dataset, and checks of new rows against it."""

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
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import below
from tensordict_lite.memmap.disk.format import META, SUFFIX, TEXTS, NodeMeta, encode_key, read_json, read_meta
from tensordict_lite.memmap.load import DTYPES
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.memmap.text import CLASS, text_fields
from tensordict_lite.objects.data import NonTensorDataBase, same_payload
from tensordict_lite.ragged import Ragged, form_name, is_ragged

_PICKLED = object()  # an object that is not compared: its pickle is not opened


def _described(meta: dict[str, Any]) -> Any:
    """The description of a row in metadata: entries with dtypes and shapes, and the batch size."""
    if meta.get("_class") == CLASS:
        return meta.get("kind")
    entries = {**meta, **meta.get("_entries", {})}
    return _of_a_row(meta.get("shape")), {
        key: (entry.get("type"), entry.get("dtype"), *(_of_a_row(entry.get(name)) for name in ("shape", "values")))
        for key, entry in entries.items()
        if isinstance(entry, dict) and key != "_entries"
    }


def _of_a_row(shape: Any) -> Any:
    return shape[1:] if isinstance(shape, list) else None


class RowLeaf:
    """One tensor of a row: path in the collection, file, dtype and shape."""

    __slots__ = ("dtype", "file", "path", "row_bytes", "shape")

    def __init__(self, path: tuple[str, ...], file: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.path = path
        self.file = file
        self.dtype = dtype
        self.shape = shape
        self.row_bytes = dtype.itemsize
        for n in shape:
            self.row_bytes *= n


class RaggedLeaf:
    """One ragged entry of a row: path in the collection, files, and description of its rows.

    Args:
        path: path in the collection.
        kind, dtype, shape: description of its rows.
        meta: metadata that store the number of values.
        values, offsets: its files.
        table: for numbers, the file of the shapes of the rows.
    """

    def __init__(
        self,
        path: tuple[str, ...],
        kind: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        meta: str,
        values: str,
        offsets: str,
        table: str | None = None,
    ) -> None:
        self.path, self.kind, self.dtype, self.shape, self.meta = path, kind, dtype, shape, meta
        self.values, self.offsets, self.table = values, offsets, table
        self.value_bytes = dtype.itemsize * torch.Size(shape).numel()
        self.is_listed = False
        """Whether the rows are still a list in the metadata, as few strings are."""

    def parts_of(self, value: Any, count: int, is_batch: bool) -> tuple[Tensor, Tensor]:
        """Values and lengths of some rows, or of one.

        Raises:
            ValueError: another kind, dtype or shape.
        """
        try:
            rows = self._column(value, count, is_batch)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path} should be rows of {self.name}: {error}") from None
        if rows is None or (rows.kind, rows.dtype, tuple(rows.row_shape)) != (self.kind, self.dtype, self.shape):
            found = f"rows of {form_name(rows.kind, rows.dtype, rows.row_shape)}" if rows is not None else _kind(value)
            raise ValueError(f"{self.path} should be rows of {self.name}, got {found}")
        values, offsets = rows.flat()
        return values.as_subclass(Tensor), offsets.as_subclass(Tensor).diff()

    @property
    def name(self) -> str:
        return form_name(self.kind, self.dtype, self.shape)

    def _column(self, value: Any, count: int, is_batch: bool) -> Any:
        """Rows as a ragged column; None for other values."""
        if is_ragged(value):
            return value
        if isinstance(value, Tensor):
            if value.is_nested and is_batch:
                return Ragged.from_nested(value)
            return None if is_batch or self.kind != "tensor" else Ragged.from_list([value.cpu()])
        if not value._is_non_tensor:
            return None
        objects = [value._payload] * count if isinstance(value, NonTensorDataBase) else value.tolist()
        if self.kind == "tensor":
            return Ragged.from_list(objects) if objects else None
        return Ragged._of_list(self.kind, objects, None)

    def set_total(self, meta: dict[str, Any], total: int) -> None:
        """Set the number of values."""
        if self.table is None:
            meta["nbytes"] = total
        else:
            key = self.path[-1]
            entry = meta["_entries"][key] if key in meta.get("_entries", {}) else meta[key]
            entry["values"] = [total, *self.shape]


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    one = isinstance(value, NonTensorDataBase)
    return f"a {type(value._payload).__name__}" if one else f"a {type(value).__name__} of other objects"


class FolderSchema:
    """Leaves and metadata files of a dataset; ``head`` is the metadata whose row count is authoritative."""

    def __init__(self) -> None:
        self.leaves: list[RowLeaf] = []
        self.ragged: list[RaggedLeaf] = []
        self.metas: list[str] = []
        self.described: list[Any] = []  # of each ragged leaf
        self.objects: dict[tuple[str, ...], Any] = {}  # shared by all rows: nothing to append
        self.batch: tuple[int, ...] = ()

    @property
    def files(self) -> list[str]:
        """All files with rows."""
        ragged = [file for leaf in self.ragged for file in (leaf.values, leaf.offsets, leaf.table) if file is not None]
        return [leaf.file for leaf in self.leaves if leaf.row_bytes] + ragged

    @property
    def head(self) -> str:
        return self.metas[0]

    @classmethod
    def read(cls, root: str) -> FolderSchema:
        schema = cls()
        schema._walk(root, "", ())
        return schema

    def _walk(self, root: str, folder: str, path: tuple[str, ...]) -> None:
        meta = read_meta(os.path.join(root, folder) if folder else root, nested=bool(folder))
        if meta.kind == "tensorclass":
            self._walk(root, below(folder, "_tensordict"), path)
            return
        if meta.kind == "nontensor" and path:
            self.objects[path] = meta.raw.get("data", _PICKLED)
            return
        if path and (rows := _text(meta, folder, path)) is not None:
            self.ragged.append(rows)
            if not rows.is_listed:
                self.add_meta(rows.meta, meta.raw)
            return
        if meta.kind != "tensordict" or not meta.shape:
            raise DatasetError(meta.path, "a dataset that grows is made of dense collections with a batch dimension")
        if not self.metas:
            self.batch = meta.shape[1:]
        self.add_meta(below(folder, META), meta.raw)
        for key, leaf in meta.leaves.items():
            file = below(folder, encode_key(key) + SUFFIX)
            if leaf.layout == "ragged":
                assert leaf.values is not None
                about = (*path, key), "tensor", DTYPES[leaf.dtype], leaf.values[1:], self.metas[-1]
                self.ragged.append(RaggedLeaf(*about, file, nested.offsets_file(file), nested.shape_file(file)))
                continue
            if leaf.is_nested:
                raise DatasetError(meta.path, f"the nested tensor {key!r} cannot grow: save it as a Ragged")
            self.leaves.append(RowLeaf((*path, key), file, DTYPES[leaf.dtype], leaf.shape[1:]))
        for key in meta.children:
            self._walk(root, below(folder, encode_key(key)), (*path, key))

    def add_meta(self, file: str, meta: dict[str, Any]) -> None:
        """Add metadata with a row count; those of an outer collection come first."""
        self.metas.append(file)
        self.described.append(_described(meta))

    def is_that_of(self, root: str, head: dict[str, Any]) -> bool:
        """Whether a dataset, whose head was just read, has the same entries."""
        metas = itertools.chain([head], (load_head(f"{root}/{file}") for file in self.metas[1:]))
        return all(_described(meta) == before for meta, before in zip(metas, self.described))

    def leaves_of(self, rows: Any) -> tuple[list[Tensor], int]:
        """The tensors of a row or batch, each ``[count, ...]``, in the order of the schema, then values and lengths of
        each ragged entry.
        """
        if not isinstance(rows, TensorCollection):
            raise ValueError(f"rows are a TensorDict or a tensorclass, got a {type(rows).__name__}")
        size = tuple(rows._batch_size)
        lead: tuple[int, ...] = ()
        if size == self.batch:
            count = 1
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
        for rows_leaf in self.ragged:
            out += rows_leaf.parts_of(_node(rows, rows_leaf.path), count, bool(lead))
        self._check_no_more(rows)
        return out, count

    def _check_no_more(self, rows: Any) -> None:
        ragged = {leaf.path for leaf in self.ragged}
        if ragged or len(rows._leaves()) != len(self.leaves):
            known = {leaf.path for leaf in self.leaves} | ragged
            extra = [path for path in _tensor_paths(rows, ()) if path not in known]
            if extra:
                raise ValueError(f"the rows have entries that the dataset lacks: {extra}")
        for path, values in _objects(rows, (), ragged):
            if path not in self.objects:
                raise ValueError(f"the rows have the non-tensor entry {path}, which the dataset lacks")
            one = self.objects[path]
            for value in values if one is not _PICKLED else ():
                if not same_payload(json.loads(json.dumps(value)) if holds_json(value) else value, one):
                    raise ValueError(
                        f"the dataset has one object for all rows at {path}, {one!r}, but a row has {value!r}: use a "
                        "tensor for what differs between rows, such as an index into a list"
                    )

    def check_example(self, row: TensorCollection) -> None:
        try:
            self.leaves_of(row)
        except ValueError as err:
            raise ValueError(f"the existing dataset does not fit the example: {err}") from None


def _text(meta: NodeMeta, folder: str, path: tuple[str, ...]) -> RaggedLeaf | None:
    """Strings, bytes or JSON values, one per row; None if a folder holds something else."""
    if meta.kind == "text":
        kind, _, _, names = text_fields(meta.path + "/" + META, meta.raw)
    elif meta.kind == "nontensorstack" and listed_rows(meta.raw) is not None:
        kind, names = meta.raw.get("_ragged", "str"), list(TEXTS)
    else:
        return None
    leaf = RaggedLeaf(path, kind, torch.uint8, (), below(folder, META), *(below(folder, name) for name in names))
    leaf.is_listed = meta.kind != "text"
    return leaf


def listed_rows(meta: dict[str, Any]) -> Any:
    """The ragged column stored as a list in metadata; None for other objects."""
    rows: Any = meta.get("data")
    kind = meta.get("_ragged", "str")
    is_plain = type(rows) is list and meta.get("_batch_dims", 1) == 1 and "_batch_size" not in meta
    return Ragged._of_list(kind, rows, None) if is_plain and kind in ("str", "json") else None


def _entry(rows: Any, path: tuple[str, ...]) -> Tensor:
    node = _node(rows, path)
    if not isinstance(node, Tensor):
        raise ValueError(f"{path} should be a tensor, got a {type(node).__name__}")
    return node


def _node(rows: Any, path: tuple[str, ...]) -> Any:
    node = rows
    for part in path:
        try:
            node = node._get_str(part)
        except (KeyError, AttributeError):
            raise ValueError(f"the rows have no entry {path}") from None
    return node


def _tensor_paths(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key in node._key_list():
        value = node._get_str(key)
        if isinstance(value, Tensor):
            yield (*path, key)
        elif not value._is_non_tensor:
            yield from _tensor_paths(value, (*path, key))


def _objects(
    node: Any, path: tuple[str, ...], ragged: set[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Non-tensor entries of rows except ragged ones, each with its objects."""
    if not node._nested():
        return
    for key in node._key_list():
        value = node._get_str(key)
        if isinstance(value, Tensor) or (*path, key) in ragged:
            continue
        if value._is_unbatched:
            raise NotImplementedError(f"UnbatchedTensor entries cannot be appended, but {(*path, key)} is one")
        if not value._is_non_tensor:
            yield from _objects(value, (*path, key), ragged)
        elif isinstance(value, NonTensorDataBase):
            yield (*path, key), [value._payload]
        else:
            yield (*path, key), [row.data for row in value.reshape(-1).unbind(0)]


def load_head(path: str) -> dict[str, Any]:
    """The metadata of a folder with rows."""
    meta = read_json(path, os.path.dirname(path))
    if type(meta) is dict and meta.get("_class") == CLASS:
        return meta
    if type(meta) is not dict or type(meta.get("shape")) is not list or not meta["shape"]:
        raise DatasetError(path, "is not the metadata of a dataset that grows")
    return meta
