"""Zarr stores and HDF5 files as datasets: an array is a column, a group a nested collection.

    tdmap.open("x.zarr")    names, dtypes and shapes of the arrays are read, and no rows
    a worker                opens the store by its path and reads the rows of its chunks

An array is compressed in blocks, along rows and other dimensions. Blocks of the array with the widest rows decide where
leases and default chunks end, so that no worker decompresses what another one has read. The rest of a block that
a chunk ends in is kept for the next chunk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.entries import path_of
from tdmap.data.kinds import Data
from tdmap.stores.sources import OpenRows, RowSource, content_of, state_of
from tensordict_lite import Ragged, TensorDict, packages
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.format import META
from tensordict_lite.persistent import zarrstore
from tensordict_lite.persistent.entries import walk

SUFFIXES = (".zarr", ".h5", ".hdf5")

ORDER = "tdmap_columns"
"""Attribute of a Zarr store: paths of its arrays, in the order of the columns."""

Path = tuple[str, ...]


def is_arrays(path: str) -> bool:
    """Whether a path of this machine is a Zarr store or an HDF5 file, by its name."""
    return path.rstrip("/").lower().endswith(SUFFIXES) and os.path.exists(path) and not os.path.exists(f"{path}/{META}")


class ArraySource(RowSource):
    """The arrays of a Zarr store or of an HDF5 file, which all have as many rows.

    Args:
        path: the folder or the file.

    Raises:
        DatasetError: it is neither, an array is no column, or arrays differ in their rows; names it.
        ImportError: zarr or h5py is not installed.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        arrays = dict(_arrays_at(self.path))
        lengths = {".".join(key): int(array.shape[0]) for key, array in arrays.items()}
        if not arrays:
            raise DatasetError(self.path, "holds no arrays")
        if len(set(lengths.values())) != 1:
            raise DatasetError(self.path, f"has arrays with different numbers of rows, {lengths}")
        super().__init__(self.path, next(iter(lengths.values())))
        self.block = _block_of(max(arrays.values(), key=row_bytes))
        self.layout = _layout(arrays)

    def open(self) -> ArrayRows:
        folder = zarrstore.StoreFolder(self.path)
        arrays = dict(_arrays_at(self.path))
        if _layout(arrays) != self.layout:
            raise DatasetError(self.path, "has other arrays than it had when it was opened")
        return ArrayRows(folder, arrays)

    def files(self) -> list[str]:
        names = ("", "/zarr.json", "/.zgroup", "/.zarray")
        return [file for name in names if os.path.isfile(file := f"{self.path}{name}")][:1]

    def identity(self) -> str:
        files = (
            [self.path]
            if os.path.isfile(self.path)
            else [os.path.join(root, name) for root, _, names in os.walk(self.path) for name in names]
        )
        found = {os.path.relpath(file, self.path): (os.path.getsize(file), content_of(file)) for file in files}
        return f"{os.path.basename(self.path)}, {self.rows} rows, {state_of(found)}"


class ArrayRows(OpenRows):
    """The rows of arrays that are open."""

    def __init__(self, folder: zarrstore.StoreFolder, arrays: dict[Path, Any]) -> None:
        self.folder, self.path = folder, folder.path
        self.arrays = arrays
        self.blocks = {key: _block_of(array) for key, array in arrays.items()}
        self._kept: dict[Path, tuple[int, int, Any]] = {}
        """Of each array the rest of the last block: its first row, the one past the last, and their values."""

    def read(self, first: int, last: int, keys: Sequence[Any] | None = None) -> Data:
        return self._collection(keys, last - first, lambda key: self._rows(key, first, last))

    def take(self, rows: Tensor, keys: Sequence[Any] | None = None) -> Data:
        wanted, places = torch.unique(rows, return_inverse=True)
        if not len(wanted):
            return self.read(0, 0, keys)
        found = self._collection(keys, len(wanted), lambda key: _chosen(self.arrays[key], wanted.numpy()))
        return found[places]

    def _collection(
        self, keys: Sequence[Any] | None, rows: int, values_of: Callable[[Path], NDArray[Any]]
    ) -> TensorDict:
        wanted = None if keys is None else {path_of(key) for key in keys}
        made = TensorDict({}, [rows])
        for key in self.arrays:
            if wanted is None or any(key[: len(path)] == path for path in wanted):
                with self.folder.reading():
                    try:
                        made[key] = _column(values_of(key))
                    except (TypeError, ValueError, RuntimeError) as error:
                        raise DatasetError(self.path, f"the array {'.'.join(key)!r} cannot be read: {error}") from error
        return made

    def _rows(self, key: Path, first: int, last: int) -> Any:
        """Rows of an array, in memory that no other rows are given in."""
        array, block = self.arrays[key], self.blocks[key]
        begin, end, values = self._kept.pop(key, (0, 0, None))
        pieces = []
        if begin <= first < end:
            pieces.append(values[first - begin : last - begin])
            if last < end:
                self._kept[key] = last, end, values[last - begin :]
            if last <= end:
                return pieces[0]
            first = end
        stop = min(-(-last // block) * block, array.shape[0])
        found = np.asarray(array[first:stop])
        if stop > last:
            self._kept[key] = last, stop, found[last - first :]
        pieces.append(found[: last - first])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _arrays_at(path: str) -> Iterator[tuple[Path, Any]]:
    """Key and open array of each column."""
    try:
        found = _of_hdf5(path) if os.path.isfile(path) else _of_zarr(path)
        for key, array, reason in found:
            if reason or not array.shape or array.dtype.kind not in "biufcOTUS":
                reason = reason or (f"is {array.dtype}" if array.shape else "is one value, and not one for each row")
                raise DatasetError(path, f"the array {'.'.join(key)!r} {reason}; tdmap.datasets.read converts others")
            yield key, array
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, DatasetError) or getattr(error, "errno", None) is not None:
            raise
        raise DatasetError(path, f"cannot be read: {error}") from error


def zarr_arrays(path: str) -> list[tuple[Path, Any]]:
    """Key and array of each column of a Zarr store, in the order of the columns; one array alone is "values"."""
    root = zarrstore.open_store(path)
    if not hasattr(root, "members"):
        return [(("values",), root)]
    members = [(name, member) for name, member in root.members(max_depth=None) if hasattr(member, "dtype")]
    order = {name: number for number, name in enumerate(root.attrs.get(ORDER, ()))}
    members.sort(key=lambda member: (order.get(member[0], len(order)), member[0]))  # not as the folder lists them
    return [(tuple(name.split("/")), array) for name, array in members]


def _of_zarr(path: str) -> Iterator[tuple[Path, Any, str]]:
    for key, array in zarr_arrays(path):
        is_object = zarrstore.OBJECT in array.attrs
        why = "is an object of a TensorDict: open it with TensorDict.from_zarr" if is_object else ""
        yield key, zarrstore.require_plain(array), why


def _of_hdf5(path: str) -> Iterator[tuple[Path, Any, str]]:
    h5py = packages.h5py()
    for key, entry, reason in walk(h5py.File(path, "r", locking=False)):
        if not reason and h5py.check_string_dtype(entry.dtype) is not None:
            entry = entry.asstr()
        yield key, entry, reason


def _block_of(array: Any) -> int:
    """Rows that are compressed together."""
    inner = getattr(array, "shards", None) or getattr(array, "chunks", None)
    return int(inner[0]) if inner else 1


def row_bytes(array: Any) -> int:
    """Bytes of a row of an array."""
    return int(math.prod(array.shape[1:]) * array.dtype.itemsize)


def _layout(arrays: dict[Path, Any]) -> list[Any]:
    return [(key, str(array.dtype), tuple(array.shape)) for key, array in arrays.items()]


def _chosen(array: Any, rows: NDArray[np.int64]) -> Any:
    """Rows of an array, ascending: each block is decompressed once."""
    chosen = getattr(array, "oindex", None)
    return np.asarray(array[rows] if chosen is None else chosen[rows])


def _column(values: NDArray[Any]) -> Any:
    return text_column(values) if values.dtype.kind in "OTUS" else tensor_of(values)


def tensor_of(array: NDArray[Any]) -> Tensor:
    """The numbers of an array; a copy where torch cannot have them as they are.

    Raises:
        TypeError: torch has no such numbers.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(np.require(array, requirements="W"))
    except TypeError:
        raise TypeError(f"it is {array.dtype}, which torch does not support") from None


def text_column(values: NDArray[Any]) -> Ragged:
    """Strings, bytes or tensors, one a row, as a column.

    Raises:
        TypeError: a row has several.
    """
    if values.ndim != 1:
        raise TypeError(f"it has the shape {list(values.shape)}, and a column has one text a row: reshape it")
    rows = values.tolist()
    if not rows:
        none = torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
        return Ragged(*none, "bytes" if values.dtype.kind == "S" else "str")
    if not isinstance(rows[0], (str, bytes)):
        rows = [tensor_of(np.asarray(row)) for row in rows]
    found: Ragged = Ragged.from_list(rows)
    return found
