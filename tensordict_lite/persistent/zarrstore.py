"""Zarr stores: safe opening, replacing and listing, with the h5py methods that collections call.

A level of a collection is a group, whose attribute ``__tensordict__`` holds the batch size; a tensor is an array. A
column of strings is an array of strings; other objects are JSON, or a pickle, in an array of bytes, as the reference
package writes them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict_lite import packages
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.contents import others_in, put_away, refuse_others
from tensordict_lite.memmap.disk.locks import is_at
from tensordict_lite.memmap.disk.staging import exchange_in_turn, remove_stale, temporary_name
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.paths import absolute_path

if TYPE_CHECKING:
    from tensordict_lite.base import TensorCollection

LEVEL, OBJECT, STACK = "__tensordict__", "__tensordict_non_tensor__", "__tensordict_stack__"

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute by which xarray names the dimensions of an array of Zarr 2; those of Zarr 3 have names themselves."""

MOST_BYTES = 255
"""Maximum length of a file name in bytes."""


# -- stores on this machine ----------------------------------------------------------------------------------------


def open_store(path: str | os.PathLike[str], mode: str = "r") -> Any:
    """The group or array at the root of a store in a local folder.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: it is not a Zarr store, or contains a link or a device, which is not followed.
    """
    zarr, place = packages.zarr(), absolute_path(path)
    if not os.path.exists(place):
        raise FileNotFoundError(errno.ENOENT, "There is no Zarr store", place)
    if not os.path.isdir(place):
        raise ValueError(f"{place}: a Zarr store is a folder, but this is a file.")
    _refuse_links(place)
    try:
        return zarr.open(store=place, mode=mode, **_AS_LISTED)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        found = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{place} is not a Zarr store, or is damaged: {found}") from error


_AS_LISTED = {"use_consolidated": False}
"""Names are taken from the folders: consolidated metadata may be outdated or name other folders."""


def _refuse_links(folder: str) -> None:
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise ValueError(
                        f"{folder}: {os.path.relpath(entry.path, folder)} is a symbolic link, a pipe or a device, "
                        "which is not followed: put the file itself there."
                    )


class StoreFolder:
    """The folder of a store that is read, which must not be replaced meanwhile.

    Chunks that a new store lacks would be read as zeros, and others have other rows.

    Args:
        path: of the folder; of another store object, or of a file, nothing is asked.
    """

    __slots__ = ("__weakref__", "_fd", "path")

    def __init__(self, path: Any) -> None:
        self.path = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        self._fd = -1
        if os.path.isdir(self.path):
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Raise DatasetError at the end of a block, in place of its own error, if the folder was replaced."""
        try:
            yield
        except Exception:
            self._require()
            raise
        self._require()

    def _require(self) -> None:
        if self._fd >= 0 and not is_at(self._fd, self.path):
            raise DatasetError(self.path, "was replaced while it was read: open it again")


def require_plain(array: Any) -> Any:
    """The array, if no codec runs code when reading it.

    Raises:
        TypeError: its chunks are pickles.
    """
    codecs = (*(array.filters or ()), *(array.compressors or ()))
    if any(getattr(codec, "codec_id", None) == "pickle" for codec in codecs):
        raise TypeError("Python objects are pickled, and pickles run code: save numbers or text")
    return array


@contextlib.contextmanager
def replaced_store(path: str | os.PathLike[str]) -> Iterator[str]:
    """The folder of a new store, which replaces the old one if the block succeeds and is removed otherwise.

    Raises:
        FileExistsError: the folder contains files that are not part of a Zarr 3 store.
    """
    place = os.path.realpath(absolute_path(path))
    _refuse_others(place)
    parent, name = os.path.split(place)
    os.makedirs(parent, exist_ok=True)
    remove_stale(parent)
    partial = os.path.join(parent, f".{name[:100]}{temporary_name()}")
    try:
        yield partial
        try:
            os.rename(partial, place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            exchange_in_turn(partial, place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    put_away(partial, place, _files_of_store)


def _refuse_others(place: str) -> None:
    if os.path.isdir(place):
        refuse_others(place, lambda: others_in(place, _files_of_store))
    elif os.path.lexists(place):
        raise FileExistsError(errno.EEXIST, "A Zarr store is a folder, but this is a file", place)


def _files_of_store(names: list[str]) -> set[str]:
    """The files below a folder that belong to its Zarr 3 store."""
    nodes = {os.path.dirname(name) for name in names if os.path.basename(name) == "zarr.json"}

    def is_chunk(name: str) -> bool:
        parts = name.split("/")
        cuts = [at for at, part in enumerate(parts) if part == "c" and "/".join(parts[:at]) in nodes]
        return any(all(map(str.isdigit, parts[at + 1 :])) for at in cuts)

    if "" not in nodes:
        return set()
    return {name for name in names if os.path.basename(name) == "zarr.json" or is_chunk(name)}


def require_name(name: str) -> None:
    """Raise ValueError for a name that a group or array of a store cannot have."""
    if name in ("", ".", "..") or any(character in name for character in "\0\\/"):
        raise ValueError(f"{name!r} cannot be the name of an array of a store, where a slash leads into a group")
    if name == "zarr.json":
        raise ValueError("a store has its own file of the name 'zarr.json'")
    content = name.encode("utf-8", "replace")
    if content.decode() != name or len(content) > MOST_BYTES:
        raise ValueError(f"{name[:50]!r} is {len(content)} bytes of UTF-8, but a file name has at most {MOST_BYTES}")


def named_dims(group: Any, name: str, shape: Sequence[int], shared: Sequence[str]) -> dict[str, Any]:
    """The options of ``create_array`` that name dimensions for xarray: those shared by all arrays, then its own."""
    names = [*shared, *(f"{name}_dim_{dim}" for dim in range(len(shared), len(shape)))][: len(shape)]
    if group.metadata.zarr_format == 2:
        return {"attributes": {DIMENSIONS: names}}
    return {"dimension_names": names}


# -- collections in a store ----------------------------------------------------------------------------------------


class OpenStore:
    """An open store: the equivalent of ``h5py.File``."""

    __slots__ = ("allow_pickle", "filename", "folder", "is_open", "mode", "place")

    def __init__(self, place: Any, mode: str, allow_pickle: bool) -> None:
        self.place, self.mode, self.allow_pickle, self.is_open = place, mode, allow_pickle, True
        self.folder = StoreFolder(place)
        self.filename = self.folder.path or None

    def close(self) -> None:
        """End reading and writing; a store object that was passed in is closed by its owner."""
        self.is_open = False


def open_group(place: Any, mode: str, allow_pickle: bool | None) -> Group:
    """The group at the root of a store, in a folder or a ``zarr.abc.store.Store``."""
    zarr = packages.zarr()
    if mode not in ("r", "r+", "w", "w-", "x", "a"):
        raise ValueError(f"mode={mode!r}: expected 'r', 'r+', 'w', 'w-' or 'a'")
    mode = mode.replace("x", "w-")
    is_path = isinstance(place, (str, os.PathLike))
    if is_path:
        place = absolute_path(place)
        if mode == "w":
            _refuse_others(os.path.realpath(place))
    if is_path and (mode in ("r", "r+") or (mode == "a" and os.path.exists(place))):
        inner = open_store(place, mode)
        if not hasattr(inner, "members"):
            raise ValueError(f"{place} is one array, but a collection is a group of arrays.")
    else:
        inner = zarr.open_group(store=place, mode=mode, **_AS_LISTED)
    if mode in ("r+", "a") and zarr.open_group(store=place, mode="r").metadata.consolidated_metadata is not None:
        inner.attrs.put(dict(inner.attrs))  # removes consolidated metadata, which would not list new entries
    return Group(inner, OpenStore(place, "r" if mode == "r" else "r+", bool(allow_pickle)))


class Group:
    """A group of a store, with the methods of ``h5py.Group`` that collections call."""

    __slots__ = ("file", "inner")

    def __init__(self, inner: Any, file: OpenStore) -> None:
        self.inner, self.file = inner, file

    @property
    def name(self) -> str:
        return "/" + self.inner.path

    def __bool__(self) -> bool:
        return self.file.is_open

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.inner.keys()))

    def __contains__(self, name: str) -> bool:
        return name in self.inner

    def __getitem__(self, path: str) -> Any:
        return self._wrapped(self.inner[path])

    def _wrapped(self, node: TensorCollection) -> Any:
        return Array(node, self.file) if hasattr(node, "dtype") else Group(node, self.file)

    def get(self, name: str) -> Any:
        return self[name] if name in self else None

    def items(self) -> Iterator[tuple[str, Any]]:
        for name, node in sorted(self.inner.members(), key=lambda member: str(member[0])):
            yield name, self._wrapped(node)

    def values(self) -> Iterator[Any]:
        return (node for _, node in self.items())

    def create_group(self, name: str) -> Group:
        require_name(name)
        return Group(self.inner.create_group(name), self.file)

    def require_group(self, path: str) -> Group:
        for part in path.split("/"):
            require_name(part)
        return Group(self.inner.require_group(path), self.file)

    def create_dataset(
        self, name: str, data: Any = None, shape: Any = None, dtype: Any = None, **options: Any
    ) -> Array:
        """A new array, by default one uncompressed chunk. ``chunks`` covers the leading dimensions."""
        require_name(name)
        shape = tuple(data.shape if data is not None else shape)
        chunks = options.pop("chunks", None)
        if not isinstance(chunks, str):  # "auto", zarr's own choice
            first = (chunks,) if isinstance(chunks, int) else tuple(chunks or ())
            chunks = tuple(max(1, min(pair)) for pair in zip((*first, *shape[len(first) :]), shape))
        size, names = self.described() or (torch.Size(()), None)
        fits = tuple(size) == shape[: len(size)]
        shared = [given or f"dim_{dim}" for dim, given in enumerate(names or [None] * len(size))] if fits else []
        options = {**named_dims(self.inner, name, shape, shared), **options}
        options = {"compressors": None, "filters": None, "config": {"write_empty_chunks": data is not None}, **options}
        made = self.inner.create_array(name, shape=shape, chunks=chunks, dtype=dtype or data.dtype, **options)
        if data is not None and data.size:
            made[...] = data
        return Array(made, self.file)

    def __delitem__(self, name: str) -> None:
        del self.inner[name]

    def move(self, old: str, new: str) -> None:
        """Rename an entry and create the groups needed for that."""
        *above, name = new.split("/")
        require_name(name)
        target = self.require_group("/".join(above)) if above else self
        root = getattr(self.inner.store, "root", None)
        if root is None:
            raise NotImplementedError(f"{old!r} cannot be renamed in a {type(self.inner.store).__name__}: copy it.")
        os.rename(root / self.inner.path / old, root / target.inner.path / name)

    def stored(self, value: Any, where: str) -> tuple[Any, Any, dict[str, Any]]:
        """The stored form of an object: the array, its dtype, and its marks.

        Raises:
            TypeError: JSON cannot hold it, and ``allow_pickle`` is false.
        """
        marks: dict[str, Any] = {}
        held = value.tolist() if hasattr(value, "_stack_dim") else value._as_value()
        if hasattr(value, "_stack_dim"):
            marks[STACK] = list(value.batch_size)
            rows = np.array(held, dtype=object)
            if rows.size == value.batch_size.numel() and all(map(_is_unicode, rows.flat)):
                return rows.reshape(tuple(value.batch_size)), str, marks
        if holds_json(held):
            content, encoding = json.dumps(held).encode(), "json"
        elif self.file.allow_pickle:
            content, encoding = pickle.dumps(held), "pickle"
        else:
            raise TypeError(
                f"the entry {where} holds a {type(held).__name__}, which JSON cannot represent: pass allow_pickle=True "
                "to pickle it (it is read with allow_pickle=True only), or store strings, numbers, lists and dicts."
            )
        marks[OBJECT] = {"encoding": encoding}
        return np.frombuffer(content, dtype=np.uint8), np.uint8, marks

    def describe(self, size: torch.Size, names: Any) -> None:
        """Record the batch size of the collection and the names of its dimensions."""
        level: dict[str, Any] = {"batch_size": list(size), "version": 1}
        if names is not None and any(name is not None for name in names):
            level["names"] = list(names)
        self.inner.attrs[LEVEL] = level

    def described(self) -> tuple[torch.Size, list[str | None] | None] | None:
        """Batch size and names recorded by :meth:`describe`; None for groups of other programs."""
        level = self.inner.attrs.get(LEVEL)
        size = level.get("batch_size") if isinstance(level, dict) else None
        if not isinstance(size, list) or not all(type(n) is int and n >= 0 for n in size):
            return None
        names = level.get("names")
        fits = isinstance(names, list) and len(names) == len(size)
        return torch.Size(size), names if fits and all(isinstance(n, str | None) for n in names) else None

    def arrays(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Array]]:
        """Key and array of each entry below the group that is not a group."""
        for name, node in self.items():
            if isinstance(node, Group):
                yield from node.arrays((*path, name))
            else:
                yield (*path, name), node


class Array:
    """An array of a store, with the methods of ``h5py.Dataset`` that collections call."""

    __slots__ = ("attrs", "dtype", "file", "inner")

    def __init__(self, inner: Any, file: OpenStore) -> None:
        self.inner, self.file, self.attrs = inner, file, inner.attrs
        is_object = OBJECT in self.attrs or inner.dtype.kind == "T"
        self.dtype = np.dtype(object) if is_object else inner.dtype

    @property
    def name(self) -> str:
        return "/" + str(self.inner.path)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.attrs.get(STACK, ()) if OBJECT in self.attrs else self.inner.shape)

    def __getitem__(self, index: Any) -> Any:
        require_plain(self.inner)
        if OBJECT in self.attrs:
            return self._object()
        value = self._read(index)
        return np.asarray(value, dtype=object) if self.inner.dtype.kind == "T" else value

    def __setitem__(self, index: Any, value: object) -> None:
        self.inner[index] = value.numpy(force=True) if isinstance(value, torch.Tensor) else value

    def _read(self, index: Any) -> Any:
        with self.file.folder.reading():
            try:
                return self.inner.oindex[index] if isinstance(index, np.ndarray) else self.inner[index]
            except (
                ValueError,
                RuntimeError,
                EOFError,
                zlib.error,
            ) as error:  # errors of codecs, and of chunks that are too short
                raise ValueError(f"{self.file.place}: the array {self.name} is damaged: {error}") from error

    def _object(self) -> Any:
        mark, content = self.attrs[OBJECT], bytes(self._read(...))
        encoding = mark.get("encoding") if isinstance(mark, dict) else None
        if encoding == "json":
            return json.loads(content)
        if encoding != "pickle":
            raise ValueError(f"{self.name} of {self.file.place} has the encoding {encoding!r}: expected json or pickle")
        if not self.file.allow_pickle:
            raise RuntimeError(
                f"{self.name} of {self.file.place} is pickled, and a pickle can run any code when it is read. Pass "
                "allow_pickle=True only if you trust the author of the store."
            )
        return pickle.loads(content)


def _is_unicode(value: object) -> bool:
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value
