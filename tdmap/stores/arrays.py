"""Zarr stores and HDF5 files as datasets: an array is a column, a group a nested collection.

    tdmap.open("x.zarr")    names, dtypes and shapes of the arrays are read, and no rows
    a worker                opens the store by its path and reads the rows of its chunks

An array is compressed in blocks, along rows and other dimensions. Blocks of the array with the widest rows decide where
leases and default chunks end, so that no worker decompresses what another one has read. The rest of a block that
a chunk ends in is kept for the next chunk.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.entries import no_column, path_of
from tdmap.data.kinds import Data
from tdmap.shards.sources import OpenRows, RowSource, content_of, state_of
from tensordict_lite import Ragged, TensorDict, packages
from tensordict_lite.arrays import tensor_of
from tensordict_lite.errors import DatasetError
from tensordict_lite.persistent import zarrstore
from tensordict_lite.persistent.entries import open_hdf5, walk

if TYPE_CHECKING:
    import h5py

ORDER = "tdmap_columns"
"""Attribute of a Zarr store: paths of its arrays, in the order of the columns."""

Path = tuple[str, ...]


class ArraySource(RowSource):
    """The arrays of a Zarr store or of an HDF5 file, which all have as many rows.

    Args:
        path: the folder or the file.
        columns: names of the arrays that are columns. None: those that `columns_of` chooses.

    Raises:
        DatasetError: it is neither, an array is no column, or arrays differ in their rows; names it.
        KeyError: `columns` names an array that is not there.
        ImportError: zarr or h5py is not installed.
    """

    def __init__(self, path: str, columns: Sequence[str] | None = None) -> None:
        self.path = os.path.abspath(path)
        self.columns = columns
        arrays = self._arrays()
        super().__init__(self.path, int(next(iter(arrays.values())).shape[0]))
        self.block = _block_of(max(arrays.values(), key=row_bytes))
        self.layout = _layout(arrays)

    def open(self) -> ArrayRows:
        folder = zarrstore.StoreFolder(self.path)
        arrays = self._arrays()
        if _layout(arrays) != self.layout:
            arrays.clear()  # closes the file, which the traceback would keep open
            raise DatasetError(self.path, "has other arrays than it had when it was opened")
        return ArrayRows(folder, arrays)

    def _arrays(self) -> dict[Path, Any]:
        """The open arrays of the columns; a file that has none is closed."""
        with contextlib.ExitStack() as on_error:
            try:
                if os.path.isfile(self.path):
                    file = on_error.enter_context(open_hdf5(self.path))
                    of_h5f = packages.h5py().h5f
                    if of_h5f.get_obj_count(file.id, of_h5f.OBJ_ALL) == 1:  # forks would keep the lock
                        fcntl.flock(file.id.get_vfd_handle(), fcntl.LOCK_UN)
                    found = hdf5_arrays(file)
                else:
                    found = [(key, functools.partial(_plain, array)) for key, array in zarr_arrays(self.path)]
                if self.columns is not None:
                    names = [".".join(key) for key, _ in found]
                    for name in self.columns:
                        if name not in names:
                            raise KeyError(no_column(name, names))
                arrays = columns_of(found, self.columns, self._naming)
            except (OSError, ValueError, TypeError) as error:
                if isinstance(error, DatasetError) or getattr(error, "errno", None) is not None:
                    raise
                raise DatasetError(self.path, f"cannot be read: {error}") from error
            for key, array in arrays.items():
                if array.dtype.kind not in "biufcOTUS":
                    what = f"is {array.dtype}; tdmap.datasets.read converts others, and columns= chooses among them"
                    raise DatasetError(self.path, f"the array {'.'.join(key)!r} {what}")
            on_error.pop_all()
        return arrays

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError) as error:
            raise DatasetError(self.path, f"the array {name!r} cannot be read: {error}") from error

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


def columns_of(
    found: Sequence[tuple[Path, Callable[[], Any]]],
    columns: Sequence[str] | None,
    naming: Callable[[str], contextlib.AbstractContextManager[None]],
) -> dict[Path, Any]:
    """The arrays of a file that are columns, opened.

    Without `columns`, single values are left out, and coordinates: arrays of one dimension that is a later dimension of
    other arrays, and not their first one. Names tell dimensions (netCDF, xarray), or lengths where there are no names.

    Args:
        found: each array by its path, behind the function that opens it.
        columns: names of those that are opened; None for all.
        naming: what errors of an array pass through.

    Raises:
        ValueError: there are none, or they have different numbers of rows.
    """
    openers = dict(found)
    if columns is not None:
        named = {".".join(key): key for key in openers}
        openers = {named[name]: openers[named[name]] for name in columns}
    arrays: dict[Path, Any] = {}
    for key, open_array in openers.items():
        with naming(".".join(key)):
            array = open_array()
            if not array.shape and columns is not None:
                raise ValueError("it is one value, or none, and a column has rows: leave it out")
        if array.shape:
            arrays[key] = array
    if columns is None:
        dims = {key: _dims_of(key, array) for key, array in arrays.items()}
        later = {dim for each in dims.values() for dim in each[1:]} - {each[0] for each in dims.values() if each[1:]}
        arrays = {key: array for key, array in arrays.items() if dims[key][1:] or dims[key][0] not in later}
    lengths = {".".join(key): int(array.shape[0]) for key, array in arrays.items()}
    if not lengths:
        raise ValueError(f"it holds no arrays with rows, and single values: {['.'.join(key) for key in openers]}")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its arrays have different numbers of rows, {lengths}: name those of one length by columns=")
    return arrays


def _dims_of(key: Path, array: Any) -> Sequence[str | int]:
    """The dimensions of an array: their names as netCDF and xarray store them, or else their lengths."""
    names: Sequence[str | None] = ()
    array = getattr(array, "entry", array)
    if hasattr(array, "is_scale"):
        names = [array.name] if array.is_scale else [dim[0].name if len(dim) else None for dim in array.dims]
    elif hasattr(array, "metadata"):
        own = getattr(array.metadata, "dimension_names", None) or array.attrs.get(zarrstore.DIMENSIONS) or ()
        names = [name and "/".join((*key[:-1], name)) for name in own]
    return [name or size for name, size in zip(names, array.shape)] if len(names) == len(array.shape) else array.shape


def zarr_arrays(path: str) -> list[tuple[Path, Any]]:
    """Key and array of each column of a Zarr store, in the order of the columns; one array alone is "values"."""
    root = zarrstore.open_store(path)
    if not hasattr(root, "members"):
        return [(("values",), root)]
    members = [(name, member) for name, member in root.members(max_depth=None) if hasattr(member, "dtype")]
    order = {name: number for number, name in enumerate(root.attrs.get(ORDER, ()))}
    members.sort(key=lambda member: (order.get(member[0], len(order)), member[0]))  # not as the folder lists them
    return [(tuple(name.split("/")), array) for name, array in members]


def _plain(array: Any) -> Any:
    if zarrstore.OBJECT in array.attrs:
        raise TypeError("it is an object of a TensorDict: open the store by TensorDict.from_zarr")
    return zarrstore.require_plain(array)


def hdf5_arrays(file: h5py.File) -> list[tuple[Path, Callable[[], Any]]]:
    """Each array of an HDF5 file by its path, behind the function that opens it."""
    return [
        (key, functools.partial(_of_hdf5, entry, reason))
        for key, entry, reason in walk(file)
        if entry is None or BARE not in str(entry.attrs.get("NAME"))
    ]


BARE = "This is a netCDF dimension but not a netCDF variable"
"""In an attribute of what stands for a dimension without coordinates in a file of netCDF 4."""


def _of_hdf5(entry: h5py.Dataset, reason: str) -> Any:
    h5py = packages.h5py()
    if reason:
        raise ValueError(f"it {reason}")
    if h5py.check_ref_dtype(entry.dtype) is not None:
        raise TypeError("it holds references to other entries of the file")
    return entry if h5py.check_string_dtype(entry.dtype) is None else Strings(entry)


class Strings:
    """The strings of an HDF5 file, which are UTF-8 whatever the file says."""

    def __init__(self, entry: h5py.Dataset) -> None:
        self.entry, self.shape, self.dtype, self.chunks = entry, entry.shape, entry.dtype, entry.chunks

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Any:
        values = self.entry[rows]
        if not values.size:
            return values.astype(np.str_)
        text = np.empty(values.size, object)
        for place, value in enumerate(values.ravel().tolist()):
            try:
                text[place] = value.decode()
            except UnicodeDecodeError as error:
                taken = range(self.shape[0])[rows] if isinstance(rows, slice) else rows
                row = taken[place * len(values) // values.size]
                raise ValueError(f"its text in row {row:,} is not UTF-8 ({error})") from None
        return text.reshape(values.shape)


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


def text_column(values: NDArray[Any]) -> Ragged:
    """Strings, bytes or tensors, one a row, as a column.

    Raises:
        TypeError: a row has several.
    """
    if values.ndim != 1:
        raise TypeError(f"it has the shape {list(values.shape)}, and a column has one text a row: reshape it")
    rows = values.tolist()
    if not rows:
        of = dict[str, Any](values.dtype.metadata or {}).get("vlen")  # of h5py's arrays
        if isinstance(of, np.dtype):
            empty: Ragged = Ragged.from_list([tensor_of(np.empty(0, of))])[:0]
            return empty
        none = torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
        return Ragged(*none, "bytes" if values.dtype.kind == "S" else "str")
    if not isinstance(rows[0], (str, bytes)):
        rows = [tensor_of(np.asarray(row)) for row in rows]
    found: Ragged = Ragged.from_list(rows)
    return found
