"""NumPy's files, HDF5 files and Zarr stores as datasets, and back: an array for each column, groups for nested ones.

Nothing outside of the file is read: links to other files, and arrays whose bytes lie in other files, are refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from tdmap.data.kinds import concatenated
from tdmap.data.objects import objects_of
from tdmap.datasets.arrow import BATCH_ROWS, Part, to_arrow
from tdmap.datasets.columns import Path, columns_in, joined, require_one_each, types_in
from tdmap.datasets.extras import opened, require_columns
from tdmap.errors import UnreadableFile, add_note
from tdmap.stores.arrays import ORDER, columns_of, hdf5_arrays, row_bytes, text_column, zarr_arrays
from tdmap.tuning import current
from tensordict_lite import Ragged, TensorDict, packages
from tensordict_lite.arrays import in_unit_of_arrow, tensor_of
from tensordict_lite.packages import pyarrow
from tensordict_lite.paths import is_url
from tensordict_lite.persistent import zarrstore
from tensordict_lite.persistent.entries import new_hdf5, open_hdf5

FIRST_ROWS = 1 << 10
"""Rows that are read first where nothing tells how long they are."""


def read_numpy(path: str, columns: Sequence[str] | None) -> Generator[Part, None, None]:
    """Parts of the arrays in an `.npz` file, or of the one in an `.npy` file, which is called "values".

    Which of them it is, its first bytes say.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(opened(path))
        head = source.read(6)
        source.seek(0)
        if head == b"\x93NUMPY":
            yield from _parts_of(path, [(("values",), functools.partial(_stored_array, source))], columns)
            return
        if not head.startswith(b"PK"):
            raise UnreadableFile(f"{path} is neither a .npy nor a .npz file of NumPy's.")
        archive = stack.enter_context(zipfile.ZipFile(source))
        found = [
            ((entry.filename.removesuffix(".npy"),), functools.partial(_member, stack, archive, entry))
            for entry in archive.infolist()
        ]
        yield from _parts_of(path, found, columns)


def _member(stack: contextlib.ExitStack, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    return _stored_array(stack.enter_context(archive.open(entry)))


def _stored_array(file: Any) -> _Rows | np.memmap[Any, Any]:
    """An array in NumPy's format.

    Raises:
        TypeError: it holds objects of Python, which are pickled.
        ValueError: it is none, or has another size than it says.
    """
    version = np.lib.format.read_magic(file)
    readers: dict[Any, Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"its header has the version {version}, of fields with names that are not latin-1")
    shape, by_columns, dtype = readers[version](file)
    if dtype.hasobject:
        raise TypeError("it holds objects of Python, which are pickled, and pickles run code: save numbers or text")
    is_local = isinstance(file, io.BufferedReader)
    begin, size = file.tell() if is_local else 0, math.prod(shape) * dtype.itemsize
    if is_local and os.fstat(file.fileno()).st_size != begin + size:
        raise ValueError(f"{os.fstat(file.fileno()).st_size - begin:,} bytes follow its header, and it has {size:,}")
    if not by_columns or len(shape) < 2 or not size:
        return _Rows(file, shape, dtype)
    if not is_local:  # its rows do not lie together, so it cannot be read row by row
        copy = tempfile.TemporaryFile(prefix="tdmap-")
        shutil.copyfileobj(file, copy)
        if copy.tell() != size:
            raise ValueError(f"{copy.tell():,} bytes follow its header, and it has {size:,}")
        file = copy
    return np.memmap(file, dtype, "r", begin, shape, "F")


class _Rows:
    """An array in a file whose rows are read once, one after the other."""

    def __init__(self, file: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.file, self.shape, self.dtype = file, shape, dtype

    def __getitem__(self, rows: slice) -> Any:
        count = min(rows.stop, self.shape[0]) - rows.start
        content = self.file.read(count * row_bytes(self))
        if len(content) < count * row_bytes(self):
            raise ValueError(f"it is cut short in row {rows.start + len(content) // row_bytes(self):,}")
        if rows.stop >= self.shape[0] and self.file.read(1):  # a zip file compares checksums at the end
            raise ValueError("it has more bytes than its header says")
        return np.ndarray((count, *self.shape[1:]), self.dtype, content)


def read_hdf5(path: str, columns: Sequence[str] | None) -> Generator[Part, None, None]:
    """Parts of the datasets in an HDF5 file; groups are nested collections."""
    with open_hdf5(_local(path)) as file:
        yield from _parts_of(path, hdf5_arrays(file), columns)


def read_zarr(path: str, columns: Sequence[str] | None) -> Generator[Part, None, None]:
    """Parts of the arrays in a Zarr store, named as those of `read_hdf5`."""
    folder = zarrstore.StoreFolder(_local(path))
    try:
        with folder.reading():
            arrays = zarr_arrays(folder.path)
    except TypeError as error:  # of zarr's, for a fill value that a type has not
        raise UnreadableFile(f"{path} cannot be read as zarr: {error}") from error
    found = [(name, functools.partial(zarrstore.require_plain, array)) for name, array in arrays]
    parts = _parts_of(path, found, columns)
    while True:
        with folder.reading():
            part = next(parts, None)
        if part is None:
            return
        yield part


def _parts_of(
    path: str, found: Sequence[tuple[Path, Callable[[], Any]]], columns: Sequence[str] | None
) -> Generator[Part, None, None]:
    """Rows of arrays, each behind what opens it: those that are not wanted are not looked at.

    Raises:
        UnreadableFile: an array cannot be read; names it.
        TypeError: it holds what no column has; names it.
    """
    names = [joined(name) for name, _ in found]
    require_one_each(names)
    require_columns(path, columns, names)
    if not found:
        raise UnreadableFile(f"{path} holds no arrays.")
    try:
        arrays = columns_of(found, columns, functools.partial(_naming, path))
    except ValueError as error:
        if isinstance(error, UnreadableFile):
            raise
        raise ValueError(f"{path}: {error}.") from error
    count, start = int(next(iter(arrays.values())).shape[0]), 0
    read_bytes = current().read_bytes
    step = read_bytes // max(sum(map(row_bytes, arrays.values())), 1)
    if any(array.dtype.kind in "OT" for array in arrays.values()):
        step = min(step, FIRST_ROWS)
    while start < count or not start:  # an empty one tells the columns
        stop, part = min(start + max(min(step, BATCH_ROWS), 1), count), {}
        for name, array in arrays.items():
            with _naming(path, joined(name), f" (rows {start}:{stop})"):
                part[name] = _column(array[start:stop])
        yield Part(stop - start, part)
        size = sum(_bytes_of(column) for column in part.values())
        start, step = max(stop, 1), read_bytes * max(stop - start, 1) // max(size, 1)


@contextlib.contextmanager
def _naming(path: str, name: str, rows: str = "") -> Iterator[None]:
    """Say in errors of NumPy, h5py and zarr which array they are about."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            add_note(error, f"while the array {name!r} of {path} was read")
            raise
        kind = TypeError if isinstance(error, TypeError) else UnreadableFile
        raise kind(f"{path}: the array {name!r} cannot be read{rows}: {error or type(error).__name__}") from error


def _bytes_of(column: Any) -> int:
    return int(column.lengths.sum()) * column.dtype.itemsize if isinstance(column, Ragged) else int(column.nbytes)


def _column(values: Any) -> Any:
    """Rows of an array as a tensor, a ragged column, or times of Arrow's."""
    array = np.asarray(values)
    if array.dtype.kind in "OTUS":
        if array.dtype.kind == "O" and not len(array) and not array.dtype.metadata:
            raise ValueError("it has no rows, so its type is unknown: leave it out with columns=")
        return text_column(array)
    return _times(array) if array.dtype.kind in "mM" else tensor_of(array)


def _times(array: Any) -> Any:
    """Dates and times of NumPy's as Arrow's, in a unit that both have."""
    if array.ndim != 1:
        raise TypeError(f"it is {array.dtype} of the shape {list(array.shape)}, and a column has one time a row")
    return pyarrow().array(in_unit_of_arrow(array))


def write_numpy(path: str, parts: Iterator[Any]) -> None:
    """Write parts of a dataset as an `.npz` file; one column alone as an `.npy` file, if that is its name.

    Raises:
        TypeError: a column has lists of different lengths.
        ValueError: its text ends in zeros, or there are several columns for one array.
    """
    rows = concatenated(list(parts))
    columns, types = columns_in(rows), types_in(rows)
    arrays = {joined(name): _array_of(joined(name), column, types.get(name)) for name, column in columns.items()}
    for name in arrays:
        _require_name(name, "\0")
    with opened(path, "wb") as file:
        if path.lower().endswith(".npy"):
            if len(arrays) != 1:
                raise ValueError(f"{path} can hold only one array, and the data have {len(arrays)} columns: use .npz.")
            np.save(file, next(iter(arrays.values())))
            return
        with zipfile.ZipFile(file, "w") as archive:  # as np.savez does, which has arguments of its own
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _array_of(name: str, column: Any, time: str | None) -> Any:
    if isinstance(column, Ragged):
        if column.kind == "tensor":
            raise TypeError(f"the rows of {name!r} have different lengths, which an array cannot hold: pad them first.")
        rows, zero = column.tolist(), "\0" if column.kind == "str" else b"\0"
        if any(row.endswith(zero) for row in rows):
            raise ValueError(f"rows of {name!r} end in zeros, which NumPy cuts off: use Parquet.")
        return np.array(rows, np.str_ if column.kind == "str" else np.bytes_)
    if time is not None:
        alone = TensorDict({name: column}, [len(column)])
        alone.arrow_types = {name: time}
        times = to_arrow(alone).column(0).to_numpy()
        if times.dtype.kind in "mM":  # NumPy has no time of the day
            return times
    return numpy_of(name, column)


def numpy_of(name: str, tensor: Tensor) -> Any:
    """The array of a column.

    Raises:
        TypeError: NumPy has no such numbers; names the column.
    """
    try:
        return tensor.contiguous().numpy(force=True)
    except TypeError:
        raise TypeError(
            f"the column {name!r} is {tensor.dtype}, which NumPy does not support: convert it first."
        ) from None


def write_hdf5(path: str, parts: Iterator[Any]) -> None:
    """Write parts of a dataset as an HDF5 file: text as strings, rows of different lengths as `vlen`."""
    h5py = packages.h5py()
    with new_hdf5(_local(path), track_order=True) as (file, output):
        for part in parts:
            for name, values, kind in _arrays(part, "\0"):
                with _naming_column(name):
                    _append_hdf5(h5py, file, name, values, kind)
                    output.check()


def _append_hdf5(h5py: ModuleType, file: Any, name: str, values: Any, kind: str) -> None:
    dtype = values.dtype
    if kind == "str":
        dtype = h5py.string_dtype()
    elif kind == "tensor":
        dtype = h5py.vlen_dtype(values[0].dtype if len(values) else np.int64)
    elif kind == "bytes":
        raise TypeError("its rows are bytes, which HDF5 would cut at zeros: use Parquet")
    if kind == "str" and any("\0" in row for row in values):
        raise ValueError("its text has zero characters, which HDF5 does not support: use Parquet")
    if kind == "tensor" and any(row.ndim != 1 for row in values):
        raise TypeError("its rows have two or more dimensions, which HDF5 does not support: use Parquet")
    if name not in file:
        shape = (0, *values.shape[1:])
        file.create_dataset(name, shape, dtype, maxshape=(None, *shape[1:]), chunks=True)
    first = len(file[name])
    file[name].resize(first + len(values), 0)
    if kind != "tensor":
        file[name][first:] = values
    for number, row in enumerate(values if kind == "tensor" else ()):  # h5py takes one at a time only
        file[name][first + number] = row


@contextlib.contextmanager
def _naming_column(name: str) -> Iterator[None]:
    """Say in errors of h5py and zarr which column they are about."""
    name = name.replace("/", ".")
    try:
        yield
    except OSError as error:
        add_note(error, f"while the column {name!r} was written")
        raise
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the column {name!r} cannot be written: {error}.") from error


def write_zarr(path: str, parts: Iterator[Any]) -> None:
    """Write parts of a dataset as a Zarr 3 store; one that is there is replaced when the new one is whole.

    Raises:
        FileExistsError: there are other files in its folder.
    """
    with zarrstore.replaced_store(_local(path)) as partial:
        group = packages.zarr().open_group(partial, mode="w", zarr_format=3)
        made: dict[str, Any] = {}
        for part in parts:
            for name, values, kind in _arrays(part, "\0\\"):
                with _naming_column(name):
                    if kind in ("tensor", "bytes"):
                        what = "bytes" if kind == "bytes" else "of different lengths"
                        raise TypeError(f"its rows are {what}, which Zarr does not support: use Parquet")
                    _append_zarr(group, made, name, values)
        group.attrs[ORDER] = list(made)


def _append_zarr(group: Any, made: dict[str, Any], name: str, values: Any) -> None:
    for part in name.split("/"):
        zarrstore.require_name(part)
    if name not in made:
        made[name] = group.create_array(
            name,
            shape=(0, *values.shape[1:]),
            chunks=(max(len(values), 1), *(max(size, 1) for size in values.shape[1:])),
            dtype=str if values.dtype.kind == "O" else values.dtype,
            config={"write_empty_chunks": True},  # those of -0.0 are not those of 0.0
            **zarrstore.named_dims(group, name.rpartition("/")[2], values.shape, ["dim_0"]),
        )
    first = made[name].shape[0]
    made[name].resize((first + len(values), *values.shape[1:]))
    made[name][first:] = values


def _arrays(part: Any, not_in: str) -> Iterator[tuple[str, Any, str]]:
    """Path, values and kind of each column, in their order; the kind of tensors is empty. Names lack some characters.

    Raises:
        TypeError: NumPy has no such numbers.
        ValueError: the name of a column would be the path of another one.
    """
    for path, column in columns_in(part).items():
        name = joined(path)
        for each in path:
            _require_name(each, not_in)
        if isinstance(column, Tensor):
            yield _path(name, path), numpy_of(name, column), ""
            continue
        values = np.empty(len(column), dtype=object)
        for number, row in enumerate(objects_of(column)):
            values[number] = numpy_of(name, row) if column.kind == "tensor" else row
        yield _path(name, path), values, column.kind


def _path(name: str, parts: Sequence[str]) -> str:
    for part in parts:
        if part in ("", ".", "..") or "/" in part:
            raise ValueError(
                f"the column {name!r} has a slash in its name, which separates groups in this format: rename it first."
            )
    return "/".join(parts)


def _require_name(name: str, not_in: str) -> None:
    if any(character in name for character in not_in) or not _is_unicode(name):
        raise ValueError(
            f"the name of the column {name!r} has a character that this format does not support: rename it first."
        )


def _is_unicode(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


def _local(path: str) -> str:
    if is_url(path):
        raise ValueError(f"{path}: HDF5 and Zarr are supported on local disks only: copy the file first.")
    return path
