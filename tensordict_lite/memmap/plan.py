"""What a collection becomes on disk: every folder with its metadata, every tensor with its file.

A plan is made in one walk and written later (``save.py``). The leaves are listed in the order of
``collection._leaves()``, so the mapped tensors go back into the same tree with ``_with_leaves``.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.gathering import bytes_of
from tensordict_lite.kernel import Kernel
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import below
from tensordict_lite.memmap.disk.format import (
    MAX_META_BYTES,
    META,
    SUFFIX,
    encode_key,
    is_encodable,
    leaf_meta,
    node_meta,
    raw_key,
)
from tensordict_lite.memmap.disk.mapping import holds_many
from tensordict_lite.memmap.disk.placed import is_placed
from tensordict_lite.memmap.tensor import MemoryMappedTensor, is_whole
from tensordict_lite.ragged import Ragged, RaggedColumn, is_ragged

_STRIDED = torch.strided


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How a collection is saved; the fields are arguments of :meth:`TensorDict.memmap`, but for the last two."""

    copy_existing: bool = False
    num_threads: int = 0
    return_early: bool = False
    share_non_tensor: bool = False
    existsok: bool = True
    robust_key: bool | None = True
    archive: bool | None = None
    compression: str | int | None = None
    allow_pickle: bool | None = False
    reference_format: bool = False
    inplace: bool = False
    """Put the mapped tensors into the collection itself."""
    like: bool = False
    """Make room, copy nothing, keep files that are there."""


@dataclass(slots=True)
class Leaf:
    """One tensor and the file that is to hold it."""

    tensor: Tensor
    file: str
    """Path relative to the root, ``"nested/key.memmap"``."""
    path: tuple[str, ...]
    """Where it is in the collection, for messages."""
    entry: dict[str, Any]
    """Its entry in the metadata of its folder (the same object, so that it can still be changed)."""

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(slots=True)
class FolderPlan:
    """One folder: the collection, its metadata, and small files written as they are."""

    node: Kernel
    path: str
    """Relative to the root, ``""`` for the root itself."""
    meta: dict[str, Any]
    blobs: dict[str, Any] = field(default_factory=dict)
    """File name -> content: bytes (pickled objects), or a contiguous tensor (strings, ragged rows)."""
    compact: bool = False
    """Whether the JSON is written without spaces."""

    def json(self) -> bytes:
        """Content of ``meta.json``."""
        separators = (",", ":") if self.compact else None
        content = json.dumps(self.meta, separators=separators).encode()
        if len(content) > MAX_META_BYTES:
            raise RuntimeError(
                f"the metadata of {self.path or 'the dataset'} would have {len(content):,} bytes, and a reader accepts "
                f"{MAX_META_BYTES:,}: save strings without reference_format=True, and other objects in several entries"
            )
        return content

    def contents(self) -> dict[str, Any]:
        """File name -> content as bytes or a buffer of them; the metadata come last."""
        content = {
            name: bytes_of(blob.as_subclass(Tensor)) if isinstance(blob, Tensor) else blob
            for name, blob in self.blobs.items()
        }
        return {**content, META: self.json()}

    def join(self, name: str) -> str:
        """Path of a file of this folder, relative to the root."""
        return below(self.path, name)


@dataclass(slots=True)
class RaggedFiles:
    """Rows of different lengths, and the files that are to hold their values and offsets."""

    rows: Ragged
    values: tuple[str, Tensor]
    """Path relative to the root, and content."""
    offsets: tuple[str, Tensor]

    def mapped(self, root: str | None) -> RaggedColumn:
        """The rows as the files hold them; without a root, in shared memory."""
        column = RaggedColumn(self.rows.kind, self.values[1], self.offsets[1], device=torch.device("cpu"))
        if root is None:
            column.share_memory_()
        else:
            column.values, column.offsets = (
                MemoryMappedTensor._map(path, content.dtype, content.shape, os.access(path, os.W_OK))
                for path, content in ((f"{root}/{file}", content) for file, content in (self.values, self.offsets))
            )
        return column


@dataclass(slots=True)
class SavePlan:
    """Everything that is written for a collection."""

    robust_key: bool = True
    allow_pickle: bool = False
    reference_format: bool = True
    """Whether tensordict opens what is written."""
    ragged_text: bool = False
    """Whether ragged strings and bytes are written as values and offsets even so."""
    objects: bool = True
    """Whether what is no tensor is written, too; otherwise only files and folders are looked at."""
    leaves: list[Leaf] = field(default_factory=list)
    folders: list[FolderPlan] = field(default_factory=list)
    ragged: list[RaggedFiles] = field(default_factory=list)
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """File or folder -> what needs it, to find two entries that would share one."""

    def add(self, node: Kernel, path: str = "", where: tuple[str, ...] = ()) -> str:
        """Plans a collection at a folder; returns the name of its class, for the metadata of the parent."""
        for base in type(node).__mro__:
            planner = _planners.get(base)
            if planner is not None:
                return planner(self, node, path, where)
        raise TypeError(f"a {type(node).__name__} cannot be saved: no on-disk form is known for it")

    def folder(self, node: Kernel, path: str, where: tuple[str, ...], meta: dict[str, Any]) -> FolderPlan:
        """Plans a folder and takes its path."""
        if path:
            self.claim(path, where)
        self.folders.append(FolderPlan(node, path, meta))
        return self.folders[-1]

    def claim(self, file: str, where: tuple[str, ...]) -> str:
        """Takes a path; two entries that want the same one are an error before anything is written."""
        other = self.taken.setdefault(file, where)
        if other is not where or file.rpartition("/")[2] == META:
            raise RuntimeError(
                f"the entry {where} would be saved as {file!r}, which is taken by "
                + (f"the entry {other}" if other is not where else "the metadata")
                + "; rename one of them"
            )
        return file

    def name_of(self, key: str, where: tuple[str, ...]) -> str:
        """File name of a key, without suffix."""
        if not is_encodable(key):
            raise RuntimeError(f"the key {key!r} (of {where}) is not text, and no file has such a name; rename it")
        if self.robust_key:
            return encode_key(key)
        name = raw_key(key)
        if name is None:
            raise RuntimeError(
                f"the key {key!r} (of {where}) is not a file name; save with robust_key=True to encode it"
            )
        return name

    def add_leaf(self, folder: str, key: str, tensor: Tensor, where: tuple[str, ...]) -> dict[str, Any]:
        """Plans a tensor; returns its entry for the metadata."""
        check_savable(tensor, where)
        name = key if key.isidentifier() else self.name_of(key, where)
        file = below(folder, name + SUFFIX)
        if self.taken.setdefault(file, where) is not where:
            self.claim(file, where)
        if not tensor.is_nested:
            entry = {"device": "cpu", "shape": list(tensor.shape), "dtype": str(tensor.dtype), "is_nested": False}
        else:
            self.claim(nested.shape_file(file), where)
            jagged = "jagged" if "jagged" in str(tensor.layout) else None
            shape = (tensor.size(0), tensor.ndim - 1)
            entry = leaf_meta(str(tensor.dtype), shape, True, layout=jagged)
        self.leaves.append(Leaf(tensor, file, where, entry))
        return entry

    def add_ragged(self, folder: FolderPlan, key: str, rows: Any, where: tuple[str, ...]) -> dict[str, Any]:
        """Plans rows of numbers of different lengths, as a strided nested tensor with its offsets beside it; returns
        their entry for the metadata."""
        file = self.claim(folder.join(self.name_of(key, where) + SUFFIX), where)
        values, offsets = rows.flat()
        rest = values.shape[1:]
        shapes = torch.empty((len(offsets) - 1, 1 + len(rest)), dtype=torch.int64, device="cpu")
        if self.objects:
            shapes[:, 0] = offsets.diff()
            shapes[:, 1:] = torch.tensor(rest, dtype=torch.int64, device="cpu")
        for path, content in zip((file, nested.shape_file(file), nested.offsets_file(file)), (values, shapes, offsets)):
            if path is not file:
                self.claim(path, where)
            folder.blobs[path.rpartition("/")[2]] = content.contiguous()
        self.ragged.append(RaggedFiles(rows, (file, values), (nested.offsets_file(file), offsets)))
        return leaf_meta(str(values.dtype), tuple(shapes.shape), True, layout="ragged", values=list(values.shape))


def pickle_allowed(value: Any) -> bool:
    """``allow_pickle`` as a bool: pickles run code, so nothing but ``True`` allows them.

    Raises:
        TypeError: neither a bool nor ``None``.
    """
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"allow_pickle is True, False or None, got {value!r}")
    return value is True


def plan_for(node: Kernel, options: SaveOptions, ragged_text: bool = False) -> SavePlan:
    """The plan of a whole collection.

    Raises:
        RuntimeError: two entries would share a file, or non-tensor data is not JSON and pickling is not allowed.
        TypeError: a tensor of a kind that has no file form (quantized, sparse, meta).
    """
    allow_pickle = pickle_allowed(options.allow_pickle)
    plan = SavePlan(options.robust_key is not False, allow_pickle, options.reference_format, ragged_text)
    plan.add(node)
    return plan


def check_savable(tensor: Tensor, where: tuple[str, ...]) -> None:
    """TypeError for the kinds of tensors whose numbers alone do not describe them."""
    if type(tensor) is Tensor and tensor.is_cpu and tensor.layout is _STRIDED and not tensor.is_quantized:
        return  # nearly every one
    kind = None
    if tensor.device.type == "meta":
        kind = "has no data (it is on the meta device)"
    elif tensor.is_quantized:
        kind = "is quantized, and its scale would be lost; save tensor.int_repr() and the scale"
    elif tensor.is_nested and (ragged := getattr(tensor, "_ragged_idx", 1)) != 1:
        kind = (
            f"is jagged in dimension {ragged} and not in 1, so its elements do not lie one after the "
            f"other; save tensor.transpose(1, {ragged})"
        )
    elif not tensor.is_nested and tensor.layout is not _STRIDED:
        kind = f"has the layout {tensor.layout}; save tensor.to_dense(), or its indices and values"
    if kind is not None:
        raise TypeError(f"the entry {where} cannot be memory-mapped: it {kind}")


# -- one planner a kind of collection ------------------------------------------------------------------------

Planner = Callable[[SavePlan, Any, str, tuple[str, ...]], str]
_planners: dict[type, Planner] = {}


def register_planner(cls: type, planner: Planner) -> None:
    """Says how a class of collections (and its subclasses) is laid out on disk."""
    _planners[cls] = planner


def plan_dense(plan: SavePlan, node: Any, path: str, where: tuple[str, ...]) -> str:
    """Tensors as files, collections as sub-folders."""
    entries: dict[str, dict[str, Any]] = {}
    folder = plan.folder(node, path, where, {})
    for key, value in node._source.items():
        here = (*where, key)
        if isinstance(value, Tensor):
            entries[key] = plan.add_leaf(path, key, value, here)
        elif is_ragged(value) and value.kind == "tensor":
            entries[key] = plan.add_ragged(folder, key, value, here)
        else:
            entries[key] = {"type": plan.add(value, below(path, plan.name_of(key, here)), here)}
    for key, name in (node._types or {}).items():
        if key in entries and "dtype" in entries[key]:
            entries[key]["arrow"] = name
    names = list(node._names) if node._names is not None else None
    folder.meta = node_meta(entries, tuple(node._batch_size), names)
    return "TensorDict"


def holds_json(value: Any) -> bool:
    """Whether JSON gives the value back (tuples come back as lists)."""
    kind = type(value)
    if kind in (str, bool, type(None), int, float):
        return True
    if kind in (list, tuple):
        return all(holds_json(item) for item in value)
    if kind is dict:
        return all(type(key) is str for key in value) and all(holds_json(item) for item in value.values())
    return False


def pickled(plan: SavePlan, value: Any, content: Any, where: tuple[str, ...]) -> bytes:
    """Pickle of what JSON cannot hold, where the caller allowed it."""
    if not plan.allow_pickle:
        raise RuntimeError(
            f"the non-tensor entry {where} holds a {type(value).__name__}, which JSON cannot represent. Pass "
            "allow_pickle=True to save it with pickle (it will only load with allow_pickle=True), or store it as "
            "strings, numbers, lists and dicts."
        )
    return pickle.dumps(content)


def mapped_root(node: Kernel, plan: SavePlan | None = None) -> str | None:
    """The folder that every tensor is mapped from, whole and under the name that it would be saved with."""
    known = getattr(node, "_memmap_path", None)
    if known:
        return str(known)
    root: str | None = None
    if plan is None:
        if not any(isinstance(leaf, MemoryMappedTensor) for leaf in node._leaves()):
            return None
        plan = SavePlan(objects=False)
        plan.add(node)
    for leaf in plan.leaves:
        file = file_of(leaf.tensor)
        found = None if file is None else relative_root(file, leaf.file)
        if found is None or (root is not None and found != root) or not is_whole(leaf.tensor):
            return None
        root = found
    return root


def file_of(tensor: Tensor) -> str | None:
    """The file of a memory-mapped tensor; ``None`` for others, for anonymous memory, and for one of many in a file."""
    if not isinstance(tensor, MemoryMappedTensor) or holds_many(tensor.untyped_storage()):
        return None
    try:
        return tensor.filename
    except RuntimeError:
        return None


def replaced_file(node: Kernel) -> str | None:
    """A file that a tensor is mapped from and in whose place a later save has put another; None if there is none."""
    for leaf in node._leaves():
        file = file_of(leaf)
        if file is not None and not is_placed(leaf.untyped_storage(), file):
            return file
    return None


def relative_root(path: str, file: str) -> str | None:
    """The root below which ``path`` is ``file``, if there is one."""
    suffix = os.sep + file
    return path[: -len(suffix)] if path.endswith(suffix) else None
