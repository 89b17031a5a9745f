"""New entries in a memory-mapped collection: ``make_memmap`` and related methods."""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.errors import DatasetNotFoundError
from tensordict_lite.keys import require_path
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import is_same_file, refuse_link, replace_file
from tensordict_lite.memmap.disk.format import META, RESERVED, SUFFIX, encode_key, leaf_meta, node_meta, read_json
from tensordict_lite.memmap.disk.locks import locked
from tensordict_lite.memmap.disk.mapping import file_of
from tensordict_lite.memmap.plan import mapped_root, replaced_file
from tensordict_lite.memmap.tensor import MemoryMappedTensor


def make(node: Any, key: Any, shape: Any, dtype: torch.dtype | None, robust_key: bool | None) -> MemoryMappedTensor:

    def build(path: str | None) -> MemoryMappedTensor:
        return MemoryMappedTensor.empty(shape, dtype=dtype, filename=path, existsok=True)

    is_plain = not isinstance(shape, Tensor) or shape.ndim != 2  # otherwise a table of the shapes of ragged rows
    like = torch.empty(tuple(torch.Size(shape)), dtype=dtype, device="meta") if is_plain else None
    return _add(node, key, build, robust_key, like)


def make_from_tensor(
    node: Any, key: Any, tensor: Tensor, copy_data: bool, existsok: bool, robust_key: bool | None
) -> MemoryMappedTensor:
    """An entry with a copy of a tensor."""

    def build(path: str | None) -> MemoryMappedTensor:
        return MemoryMappedTensor.from_tensor(
            tensor.detach(), filename=path, existsok=existsok, copy_existing=True, copy_data=copy_data
        )

    return _add(node, key, build, robust_key, tensor)


def make_from_storage(
    node: Any,
    key: Any,
    storage: torch.UntypedStorage,
    shape: Any,
    dtype: torch.dtype | None,
    robust_key: bool | None,
) -> MemoryMappedTensor:
    """An entry over a storage that already maps the file of the entry."""

    def build(path: str | None) -> MemoryMappedTensor:
        own = file_of(storage)
        if path is not None and storage.nbytes() and (own is None or not is_same_file(own, path)):
            raise RuntimeError(
                f"the storage of {key!r} is not mapped from {path}"
                f" ({'it has no file' if own is None else f'it is {own}'}), so the entry would be missing when the "
                "dataset is loaded: use make_memmap_from_tensor, which copies it there"
            )
        return MemoryMappedTensor.from_storage(
            storage, shape=shape, dtype=dtype or torch.get_default_dtype(), filename=path if own else None
        )

    return _add(node, key, build, robust_key)


def _add(
    node: Any,
    key: Any,
    build: Callable[[str | None], MemoryMappedTensor],
    robust_key: bool | None,
    like: Tensor | None = None,
) -> MemoryMappedTensor:
    """Add an entry. ``like``: its description, if known before anything is written."""
    path = require_path(key)
    for part in path[:-1]:
        node = _child(node, part, robust_key)
    name = path[-1]
    folder = _folder(node)
    if name in node._key_list():
        raise RuntimeError(f"the key {name!r} exists already in this collection: delete it, or write into it in place")
    file = os.path.join(folder, _name(name, robust_key) + SUFFIX) if folder else None
    if like is not None:
        _check_batch(node, name, like)
    if folder:
        _require_free(node, folder, name)
    tensor = build(file)
    _check_batch(node, name, tensor)
    if folder:
        _describe(node, folder, name, _entry(tensor))
    node._changed_under_lock()
    node._set_str(name, tensor)
    return tensor


def _require_free(node: Any, folder: str, key: str) -> None:
    """Raise RuntimeError if the dataset was replaced or got this entry meanwhile."""
    replaced = replaced_file(node)
    if replaced is not None:
        raise RuntimeError(
            f"the new entry {key!r} would be added to another dataset: a later save replaced {replaced}. Load the "
            "dataset again"
        )
    with locked(folder), contextlib.suppress(DatasetNotFoundError):
        if key in read_json(os.path.join(folder, META), folder) and key not in RESERVED:
            raise RuntimeError(
                f"the dataset in {folder} got an entry {key!r} after it was loaded: load it again, and write into that "
                "entry in place"
            )


def _child(node: Any, key: str, robust_key: bool | None) -> Any:
    """The nested collection of that name, created and mapped if missing."""
    if key in node._key_list():
        return node._get_str(key)
    folder = _folder(node)
    child = node._new_child()
    if folder:
        path = os.path.join(folder, _name(key, robust_key))
        refuse_link(path)
        child.memmap_(path)
        _describe(node, folder, key, {"type": "TensorDict"})
    else:
        child.memmap_()
    node._changed_under_lock()
    node._set_str(key, child)
    child._types = None
    child._lock = None
    child._propagate_lock(weakref.ref(node))
    return child


def _folder(node: Any) -> str:
    """Folder of the entries of a mapped collection, ``""`` for anonymous memory."""
    folder = getattr(node, "_memmap_path", None)
    if folder is None:
        folder = mapped_root(node)  # a dataset that was loaded
        if folder is None or not os.path.exists(os.path.join(folder, META)):
            raise RuntimeError(
                "an entry can only be made within a memory-mapped collection that is a whole dataset: call memmap_() "
                "first"
            )
    inner = os.path.join(folder, "_tensordict")
    return (
        inner
        if folder and os.path.exists(os.path.join(inner, META)) and "_tensordict" not in node._key_list()
        else folder
    )


def _name(key: str, robust_key: bool | None) -> str:
    return key if robust_key is False else encode_key(key)


def _check_batch(node: Any, key: str, tensor: Tensor) -> None:
    dims = len(node._batch_size)
    lead = (tensor.size(0),) if tensor.is_nested else tensor.shape
    if tuple(lead[:dims]) != tuple(node._batch_size[: len(lead)]) or (not tensor.is_nested and len(lead) < dims):
        raise RuntimeError(
            f"the new entry {key!r} of shape {tuple(tensor.shape)} does not start with the batch size "
            f"{list(node._batch_size)}"
        )


def _entry(tensor: Tensor) -> dict[str, Any]:
    if tensor.is_nested:
        return leaf_meta(str(tensor.dtype), tuple(nested.sizes(tensor).shape), True)
    return leaf_meta(str(tensor.dtype), tuple(tensor.shape))


def _describe(node: Any, folder: str, key: str, entry: dict[str, Any]) -> None:
    """Add an entry to the metadata of a folder; readers see the old or the new one, and no entry is lost."""
    path = os.path.join(folder, META)
    with locked(folder):
        try:
            meta = read_json(path, folder)
        except DatasetNotFoundError:
            meta = node_meta({}, tuple(node._batch_size), node._names)
        if key in RESERVED:
            meta.setdefault("_entries", {})[key] = entry
        else:
            meta = {key: entry, **meta} if key not in meta else {**meta, key: entry}
        replace_file(path, json.dumps(meta).encode())
