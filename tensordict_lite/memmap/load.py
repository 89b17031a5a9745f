"""Loading a folder of memory maps: one small JSON a folder and one map a tensor, nothing else is read.

Nothing in a dataset is trusted. Metadata and file sizes are checked before a byte is mapped, links are not
followed, no class is imported because a file says so, and a pickle is not opened unless the caller asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from os import lstat
from stat import S_ISREG
from typing import Any

import torch
from torch import Tensor, from_file

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.format import (
    META,
    SUFFIX,
    LeafMeta,
    NodeMeta,
    check_leaf_file,
    encode_key,
    raw_key,
    read_meta,
)
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.tensordict import TensorDict

__all__ = ["Loader", "load_collection"]

_as_subclass = Tensor.as_subclass
_CPU = torch.device("cpu")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
DTYPES: dict[str, torch.dtype] = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(slots=True)
class Loader:
    """How a load was asked for, handed down to the reader of each folder."""

    device: torch.device | None = None
    """``None`` keeps the tensors on the CPU, mapped; ``meta`` opens nothing but the metadata."""
    robust_key: bool = True
    mode: str | None = None
    allow_pickle: bool = False
    empty: bool = False
    """Whether tensors are made without their data (meta device, fake mode)."""

    def load(
        self, folder: str, *, top: bool = False, lead: torch.Size | None = None, rows: int | None = None
    ) -> TensorCollection:
        """The collection of a folder. ``lead``: batch size that it must start with. ``rows``: see :meth:`dense`."""
        meta = read_meta(folder, nested=not top)
        if meta.kind == "tensordict":
            out: TensorCollection = self.dense(meta, rows)
        else:
            out = _reader(meta.kind)(self, meta, lead)
        if lead and out.batch_size[: len(lead)] != lead:
            raise DatasetError(
                folder + "/" + META,
                f"the batch size {list(out.batch_size)} does not start with that of the parent, {list(lead)}",
            )
        return out

    def dense(self, meta: NodeMeta, rows: int | None = None) -> TensorDict:
        """Tensors and sub-folders.

        ``rows``: the parent is a dataset that grows, with this many rows committed; this folder may know of more.
        """
        if "_growing" in meta.raw:
            rows = meta.shape[0] if rows is None else rows
            meta.keep_rows(rows)  # and nothing about the size of the files: they may be growing at this moment
        source: dict[str, Any] = {}
        size = torch.Size(meta.shape)
        folder = meta.path
        leaves, children = meta.leaves, meta.children
        if not children:
            self.leaves(folder, leaves, source)
        else:
            tensors: dict[str, Any] = {}
            self.leaves(folder, leaves, tensors)
            for key in meta.raw if "_entries" not in meta.raw else (*leaves, *children):
                if key in tensors:
                    source[key] = tensors[key]
                elif key in children:
                    source[key] = self.load(self._child(folder, key), lead=size, rows=rows)
        device = self.device if self.device is not None else (None if meta.device is None else _CPU)
        return TensorDict._trusted(source, size, device, meta.names)

    def _child(self, folder: str, key: str) -> str:
        name = encode_key(key) if self.robust_key else raw_key(key)
        path = f"{folder}/{name}"
        if name != key and not os.path.lexists(path):
            raw = raw_key(key)
            if raw is not None and os.path.lexists(f"{folder}/{raw}"):
                return f"{folder}/{raw}"
        if name is None:
            raise DatasetError(folder, f"the key {key!r} is not a file name, and robust_key=False was given")
        return path

    def leaves(self, folder: str, leaves: dict[str, LeafMeta], source: dict[str, Any]) -> None:
        """All tensors of a folder: a loop around the common case, an ordinary tensor in a file of its size."""
        if self.empty or self.mode is not None or self.device not in (None, _CPU):
            for key, leaf in leaves.items():
                source[key] = self.leaf(folder, key, leaf)
            return
        robust = self.robust_key
        for key, leaf in leaves.items():
            dtype, shape, nbytes, is_nested, _, capacity = leaf
            if nbytes and not is_nested and capacity is None and (robust or key.isidentifier()):
                path = f"{folder}/{key if key.isidentifier() else encode_key(key)}.memmap"
                try:
                    info = lstat(path)
                    if info.st_size == nbytes and S_ISREG(info.st_mode):
                        known = DTYPES[dtype]
                        flat = from_file(path, True, nbytes // known.itemsize, dtype=known)
                        out = source[key] = flat if len(shape) == 1 else flat.view(shape)
                        out.__class__ = MemoryMappedTensor
                        continue
                except (OSError, KeyError, RuntimeError):
                    pass  # missing, not writable...: below, with a check and a message for each
            source[key] = self.leaf(folder, key, leaf)

    def leaf(self, folder: str, key: str, leaf: LeafMeta) -> Tensor:
        """One tensor."""
        dtype = DTYPES.get(leaf.dtype)
        if dtype is None:
            raise DatasetError(folder + "/" + META, f"this version of torch has no {leaf.dtype} (entry {key!r})")
        if self.empty:  # of a nested tensor, only the shape of its table of shapes is known without opening it
            return torch.empty(leaf.shape, dtype=dtype, device=self.device)
        path = f"{folder}/{key}{SUFFIX}" if key.isidentifier() else self._file(folder, key)
        if leaf.is_nested:
            return self._move(self._nested(path, dtype, leaf))
        nbytes = leaf.nbytes
        check_leaf_file(path, nbytes, room=leaf.room)
        writable = True if self.mode == "r+" else self._writable(path)
        return self._move(MemoryMappedTensor._map(path, dtype, leaf.shape, writable))

    def _file(self, folder: str, key: str) -> str:
        if self.robust_key:
            path = f"{folder}/{encode_key(key)}{SUFFIX}"
            if os.path.lexists(path):
                return path
        raw = raw_key(key)
        if raw is None:
            if not self.robust_key:
                raise DatasetError(folder, f"the key {key!r} is not a file name, and robust_key=False was given")
            return path
        legacy = f"{folder}/{raw}{SUFFIX}"
        return legacy if not self.robust_key or os.path.lexists(legacy) else path

    def _writable(self, path: str) -> bool:
        return self.mode != "r" and os.access(path, os.W_OK)

    def _nested(self, path: str, dtype: torch.dtype, leaf: LeafMeta) -> Tensor:
        table = nested.shape_file(path)
        check_leaf_file(table, leaf.shape[0] * leaf.shape[1] * 8)
        shapes = MemoryMappedTensor._map(table, torch.int64, leaf.shape, False).as_subclass(Tensor).clone()
        nbytes = nested.check_shapes(table, shapes, leaf.layout, dtype.itemsize)
        check_leaf_file(path, nbytes)
        return map_nested(path, dtype, shapes, leaf.layout, self._writable(path))

    def _move(self, tensor: Tensor) -> Tensor:
        if self.device is None or self.device.type == "cpu":
            return tensor
        return _as_subclass(tensor, Tensor).to(self.device, non_blocking=True)


def map_nested(path: str, dtype: torch.dtype, shapes: Tensor, layout: str | None, writable: bool) -> Tensor:
    """A nested tensor over a file, in the layout that was saved."""
    out = nested.map_file(MemoryMappedTensor, path, dtype, shapes, writable)
    if layout == "jagged":
        return nested.view(out._buffer, shapes, torch.jagged)
    return out


Reader = Callable[[Loader, NodeMeta, "torch.Size | None"], TensorCollection]
_readers: dict[str, Reader] = {}


def register_reader(kind: str, reader: Reader) -> None:
    """Says how folders of a kind other than ``tensordict`` become collections."""
    _readers[kind] = reader


def _reader(kind: str) -> Reader:
    from tensordict_lite.memmap import kinds

    kinds.ensure_registered()
    return _readers[kind]


def load_collection(
    prefix: str | os.PathLike[str],
    device: Any = None,
    non_blocking: bool = False,
    *,
    out: TensorCollection | None = None,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    allow_pickle: bool = False,
) -> TensorCollection:
    """Loads what ``memmap`` or ``save`` wrote; see :meth:`TensorDict.load_memmap`."""
    if mode not in (None, "r", "r+"):
        raise ValueError(f'mode is None, "r" (copy-on-write) or "r+" (writes reach the files): got {mode!r}')
    if device is not None:
        device = torch.device(device)
    if out is not None and out.device is not None:
        if device is not None and device != out.device:
            raise ValueError(f"device={device} was asked for, and out has the device {out.device}")
        device = out.device
    fake = torch._C._get_dispatch_mode(_FAKE) is not None
    loader = Loader(
        device=device,
        robust_key=robust_key is not False,
        mode=mode,
        allow_pickle=bool(allow_pickle),
        empty=fake or (device is not None and device.type == "meta"),
    )
    folder = os.path.abspath(os.fspath(prefix))
    try:
        inner = folder if subpath is None else find_subpath(loader, folder, subpath)
        loaded = loader.load(inner, top=inner == folder)
    except RecursionError:
        raise DatasetError(folder, "is nested too deeply to be a dataset") from None
    if device is not None and not non_blocking:
        _synchronize(device)
    return loaded if out is None else _fill(out, loaded)


def find_subpath(loader: Loader, folder: str, subpath: Any) -> str:
    """The folder of a nested collection, given as ``"a/b"`` or ``("a", "b")``.

    Raises:
        ValueError: there is no such nested collection.
    """
    parts = [part for part in subpath.split("/") if part] if isinstance(subpath, str) else list(_flat(subpath))
    for number, part in enumerate(parts):
        meta = read_meta(folder, nested=number > 0)
        if meta.kind == "tensorclass":
            folder += "/_tensordict"
            meta = read_meta(folder, nested=True)
        known = meta.children if meta.kind == "tensordict" else None
        if known is not None and part not in known:
            raise ValueError(
                f"{folder} has no nested collection {part!r}: it has {sorted(known)} (subpath={subpath!r})"
            )
        if known is None and not part.isdigit():
            raise ValueError(f"{folder} is a {meta.kind}, with numbered elements: {part!r} (subpath={subpath!r})")
        folder = loader._child(folder, part)
    return folder


def _flat(key: Any) -> Any:
    for part in key:
        if isinstance(part, str):
            yield part
        else:
            yield from _flat(part)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fill(out: TensorCollection, loaded: TensorCollection) -> TensorCollection:
    """Puts loaded entries into an existing collection; nested ones are reused, other keys go."""
    for key in out._key_list():
        if key not in loaded._key_list():
            out.del_(key)
    for key in loaded._key_list():
        value = loaded._get_str(key)
        known = out._get_str(key) if key in out._key_list() else None
        if type(known) is TensorDict and type(value) is TensorDict:
            _fill(known, value)
        else:
            out.set(key, value)
    return out
