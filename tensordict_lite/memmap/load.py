"""Loading a folder of memory maps: one small JSON file per folder and one mapping per tensor.

:class:`Loader` walks the folders of the format; its methods ``meta``, ``exists``, ``names``, ``content``, ``flat`` and
``finish`` access the files. :class:`ArchiveLoader` overrides them for an archive.

All input is untrusted. Metadata and file sizes are checked before mapping, links are not followed, no class is imported
because a file names it, and a pickle is opened only if the caller asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from os import lstat
from stat import S_ISREG
from typing import Any

import torch
from torch import Tensor, from_file

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.callers import warn_caller
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.kernel import DeviceLike, normalise_device
from tensordict_lite.memmap import nested
from tensordict_lite.memmap.disk.files import is_there
from tensordict_lite.memmap.disk.format import (
    MAX_BYTES,
    META,
    SUFFIX,
    LeafMeta,
    NodeMeta,
    check_leaf_file,
    encode_key,
    raw_key,
    read_meta,
    read_small,
)
from tensordict_lite.memmap.disk.locks import reading
from tensordict_lite.memmap.disk.mapping import available_memory
from tensordict_lite.memmap.plan import pickle_allowed
from tensordict_lite.memmap.tensor import MemoryMappedTensor
from tensordict_lite.paths import absolute_path
from tensordict_lite.ragged import Ragged

_as_subclass = Tensor.as_subclass
_CPU = torch.device("cpu")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
DTYPES: dict[str, torch.dtype] = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(slots=True)
class Loader:
    """The options of a load, passed to the reader of each folder."""

    device: torch.device | None = None
    """``None`` maps tensors on the CPU; ``meta`` opens only the metadata."""
    robust_key: bool = True
    mode: str | None = None
    allow_pickle: bool = False
    empty: bool = False
    """Whether tensors are made without data (meta device, fake mode)."""
    missing: set[str] = field(default_factory=set)
    """Saved classes that the program lacks: each is warned about once."""
    known: dict[bytes, NodeMeta] = field(default_factory=dict)
    """Parsed metadata by content, see :func:`parse_content`."""

    # -- where the bytes are -------------------------------------------------------------------------------

    def meta(self, folder: str, *, nested: bool = False) -> NodeMeta:
        """The metadata of a folder, see :func:`read_meta`."""
        return self._complete(read_meta(folder, nested=nested, known=self.known))

    def exists(self, path: str) -> bool:
        """Whether a file or folder (or a link, which is refused later) exists."""
        return is_there(path, follow=False)

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder."""
        return os.listdir(folder)

    def content(self, path: str) -> bytes:
        """The content of a file that is not a tensor; FileNotFoundError if it does not exist."""
        return read_small(path, os.path.dirname(path), available_memory())

    def flat(self, path: str, dtype: torch.dtype, shape: tuple[int, ...], nbytes: int, room: int | None) -> Tensor:
        """The tensor in a file, whose size is checked to be ``nbytes`` (at most ``room``)."""
        check_leaf_file(path, nbytes, room=room)
        return MemoryMappedTensor._map(path, dtype, shape, self.mode == "r+" or self._writable(path))

    def finish(self) -> None:
        """Called after the walk to do deferred work."""

    def _writable(self, path: str) -> bool:
        return self.mode != "r" and os.access(path, os.W_OK)

    # -- walking -------------------------------------------------------------------------------------------

    def load(
        self, folder: str, *, top: bool = False, lead: torch.Size | None = None, rows: int | None = None
    ) -> TensorCollection:
        """The collection of a folder. ``lead``: leading batch size to check. ``rows``: see :meth:`dense`."""
        meta = self.meta(folder, nested=not top)
        if meta.kind == "tensordict":
            out: TensorCollection = self.dense(meta, rows)
        else:
            out = _readers[meta.kind](self, meta, lead)
            if rows is not None and meta.kind == "text":
                out = out[:rows]
        if lead and out.batch_size[: len(lead)] != lead:
            raise DatasetError(
                folder + "/" + META,
                f"the batch size {list(out.batch_size)} does not start with that of the parent, {list(lead)}",
            )
        return out

    def dense(self, meta: NodeMeta, rows: int | None = None) -> TensorDict:
        """Tensors and sub-folders.

        ``rows``: committed rows of the parent, a growing dataset; this folder may have more.
        """
        if "_growing" in meta.raw:
            rows = meta.shape[0] if rows is None else rows
            meta.keep_rows(rows)  # without checking file sizes: they may be growing
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
        cls = TensorDict if not meta.is_foreign else self._class_of(meta)
        new = cls._trusted(source, size, device, meta.names)
        if meta.types:
            new._types = meta.types
        return new

    def _complete(self, meta: NodeMeta) -> NodeMeta:
        """Add nested collections to metadata that does not list them: all sub-folders with metadata."""
        if meta.kind == "tensordict" and not meta.lists_children:
            for name in sorted(self.names(meta.path)):
                if name not in meta.leaves and self.exists(f"{meta.path}/{name}/{META}"):
                    meta.children[name] = "TensorDict"
                    meta.raw[name] = {"type": "TensorDict"}
        return meta

    def _class_of(self, meta: NodeMeta) -> type[TensorDict]:
        """The saved subclass of TensorDict, if the program has defined it."""
        found = _subclass(TensorDict, meta.class_name)
        if found is None:
            self.warn_missing(meta.class_name, meta.path)
        return found or TensorDict

    def warn_missing(self, class_name: str, path: str) -> None:
        """Warn once about a saved class that is not defined, and name its replacement."""
        if class_name not in self.missing:
            self.missing.add(class_name)
            warn_caller(missing_class(class_name, path))

    def _child(self, folder: str, key: str) -> str:
        name = encode_key(key) if self.robust_key else raw_key(key)
        path = f"{folder}/{name}"
        if name != key and not self.exists(path):
            raw = raw_key(key)
            if raw is not None and self.exists(f"{folder}/{raw}"):
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
            dtype, shape, nbytes, is_nested, _, capacity, _, _ = leaf
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
                    pass  # missing, not writable...: handled below with a check and a message for each
            source[key] = self.leaf(folder, key, leaf)

    def leaf(self, folder: str, key: str, leaf: LeafMeta) -> Any:
        """One tensor, or ragged rows."""
        dtype = DTYPES.get(leaf.dtype)
        if dtype is None:
            raise DatasetError(folder + "/" + META, f"this version of torch has no {leaf.dtype} (entry {key!r})")
        if self.empty and leaf.layout == "ragged":
            none = torch.zeros(leaf.shape[0] + 1, dtype=torch.int64, device="cpu")
            values = torch.empty((0, *(leaf.values or ())[1:]), dtype=dtype, device="cpu")
            return Ragged._over("tensor", values, none, self.device or _CPU)
        if self.empty:  # of a nested tensor without data, only the shape of its table of shapes is known
            return torch.empty(leaf.shape, dtype=dtype, device=self.device)
        path = f"{folder}/{key}{SUFFIX}" if key.isidentifier() else self._file(folder, key)
        if leaf.layout == "ragged":
            return self._ragged(path, dtype, leaf)
        if leaf.is_nested:
            return self._move(self._nested(path, dtype, leaf))
        return self._move(self.flat(path, dtype, leaf.shape, leaf.nbytes, leaf.room))

    def _file(self, folder: str, key: str) -> str:
        if self.robust_key:
            path = f"{folder}/{encode_key(key)}{SUFFIX}"
            if self.exists(path):
                return path
        raw = raw_key(key)
        if raw is None:
            if not self.robust_key:
                raise DatasetError(folder, f"the key {key!r} is not a file name, and robust_key=False was given")
            return path
        legacy = f"{folder}/{raw}{SUFFIX}"
        return legacy if not self.robust_key or self.exists(legacy) else path

    def _nested(self, path: str, dtype: torch.dtype, leaf: LeafMeta) -> Tensor:
        table = nested.shape_file(path)
        nbytes = leaf.shape[0] * leaf.shape[1] * 8
        room = nbytes + leaf.slack
        shapes = _as_subclass(self.flat(table, torch.int64, leaf.shape, nbytes, room), Tensor).clone()
        nbytes = nested.check_shapes(table, shapes, leaf.layout, dtype.itemsize)
        buffer = self.flat(path, dtype, (nbytes // dtype.itemsize,), nbytes, nbytes + leaf.slack)
        return nested.mapped_view(buffer, shapes, leaf.layout)

    def _ragged(self, path: str, dtype: torch.dtype, leaf: LeafMeta) -> Any:
        """Rows of numbers: map offsets and values; the table of shapes is redundant and not read."""
        assert leaf.values is not None
        is_growing = leaf.capacity is not None
        self.values(nested.shape_file(path), torch.int64, leaf.shape, is_growing)
        offsets = self.values(nested.offsets_file(path), torch.int64, (leaf.shape[0] + 1,), is_growing)
        values = self.values(path, dtype, leaf.values, is_growing)
        return Ragged._over("tensor", values, offsets, self.device or _CPU)

    def values(self, path: str, dtype: torch.dtype, shape: tuple[int, ...], is_growing: bool = False) -> Tensor:
        """The tensor in a file, checked; an empty tensor needs no file.

        ``is_growing``: the file may have any number of additional bytes.
        """
        nbytes = dtype.itemsize * torch.Size(shape).numel()
        if not nbytes:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return self.flat(path, dtype, shape, nbytes, MAX_BYTES if is_growing else None)

    def _move(self, tensor: Tensor) -> Tensor:
        if self.device is None or self.device.type == "cpu":
            return tensor
        return _as_subclass(tensor, Tensor).to(self.device, non_blocking=True)


def missing_class(class_name: str, path: str) -> str:
    """The warning about a saved class that the program lacks."""
    return (
        f"{path}: a {class_name} was saved, and this program has defined no class of that name. It opens as a "
        "TensorDict of its entries. Define or import the class before loading to get it back: a dataset never imports "
        "code"
    )


def _subclass(cls: type[TensorDict], name: str) -> type[TensorDict] | None:
    for sub in cls.__subclasses__():
        if f"{sub.__module__}.{sub.__qualname__}" == name:
            return sub
        found = _subclass(sub, name)
        if found is not None:
            return found
    return None


Reader = Callable[[Loader, NodeMeta, "torch.Size | None"], TensorCollection]
_readers: dict[str, Reader] = {}


def register_reader(kind: str, reader: Reader) -> None:
    """Register a reader for folders of a kind other than ``tensordict``."""
    _readers[kind] = reader


def load_collection(
    prefix: str | os.PathLike[str],
    device: DeviceLike | None = None,
    non_blocking: bool = False,
    *,
    out: TensorCollection | None = None,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = False,
) -> TensorCollection:
    """Load what ``memmap`` or ``save`` wrote; see :meth:`TensorDict.load_memmap`."""
    if mode not in (None, "r", "r+"):
        raise ValueError(f'mode is None, "r" (copy-on-write) or "r+" (writes reach the files): got {mode!r}')
    if device is not None:
        device = normalise_device(device)
    if out is not None and out.device is not None:
        if device is not None and device != out.device:
            raise ValueError(f"device={device} was requested, but out is on {out.device}")
        device = out.device
    fake = torch._C._get_dispatch_mode(_FAKE) is not None
    folder = absolute_path(prefix)
    options: dict[str, Any] = {
        "device": device,
        "robust_key": robust_key is not False,
        "mode": mode,
        "allow_pickle": pickle_allowed(allow_pickle),
        "empty": fake or (device is not None and device.type == "meta"),
    }
    if os.path.isfile(folder):
        loaded = _read(registry.open_archive(folder, num_threads, options), folder, subpath)
    else:
        with reading(folder):
            loaded = _read(Loader(**options), folder, subpath)
    if device is not None and device.type == "cuda" and not non_blocking:
        torch.cuda.synchronize(device)
    return loaded if out is None else _fill(out, loaded)


def _read(loader: Loader, folder: str, subpath: Any) -> TensorCollection:
    try:
        inner = folder if subpath is None else find_subpath(loader, folder, subpath)
        loaded = loader.load(inner, top=inner == folder)
        loader.finish()
    except RecursionError:
        raise DatasetError(folder, "is nested too deeply to be a dataset") from None
    return loaded


def find_subpath(loader: Loader, folder: str, subpath: Any) -> str:
    """The folder of a nested collection, given as ``"a/b"`` or ``("a", "b")``.

    Raises:
        ValueError: there is no such nested collection.
    """
    parts = [part for part in subpath.split("/") if part] if isinstance(subpath, str) else list(_flat(subpath))
    for number, part in enumerate(parts):
        meta = loader.meta(folder, nested=number > 0)
        if meta.kind == "tensorclass":
            folder += "/_tensordict"
            meta = loader.meta(folder, nested=True)
        known = meta.children if meta.kind == "tensordict" else None
        if known is not None and part not in known:
            raise ValueError(
                f"No tensordict found under subpath {subpath!r}: {folder} has no nested collection {part!r}, it has "
                f"{sorted(known)}"
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


def _fill(out: TensorCollection, loaded: TensorCollection) -> TensorCollection:
    """Put loaded entries into an existing collection; nested ones are reused, other keys are removed."""
    if type(out._source) is list and type(loaded._source) is list and len(out._source) == len(loaded._source):
        for member, part in zip(out._source, loaded._source):
            _fill(member, part)
        return out
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
