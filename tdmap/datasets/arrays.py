"""NumPy's files, HDF5 files and Zarr stores as tables, and back: an array for each column, groups for nested ones.

Nothing outside of the file is read: links to other files, and arrays whose bytes lie in other files, are refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tdmap.datasets.arrow import pyarrow, require_one_each, to_arrow
from tdmap.datasets.extras import need, opened, require_columns
from tdmap.datasets.jagged import Jagged
from tdmap.datasets.table import BATCH_ROWS, Table
from tdmap.datasets.tables.about import joined
from tdmap.memory.scratch import temporary_path
from tensordict_lite.memmap.disk.contents import files_below, put_away, refuse_others
from tensordict_lite.memmap.disk.staging import exchange_in_turn, staged_path

ORDER = "tdmap_columns"
"""Attribute of a Zarr store: paths of its arrays, in the order of the columns."""

PART_BYTES = 32 << 20
"""Bytes of a row group that is read at a time."""


def read_numpy(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """Tables of Arrow's of the arrays in an `.npz` file, or of the one in an `.npy` file, which is called "values"."""
    one = path.endswith(".npy")
    with opened(path) as source:
        found: Any = np.load(path if "://" not in path else source, mmap_mode="r" if one else None)
        there = ["values"] if one else found.files
        if columns is not None:
            require_columns(path, columns, there)
        arrays = [(name, found if one else found[name]) for name in (there if columns is None else columns)]
    yield from _tables(path, arrays, columns)


def read_hdf5(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """Tables of Arrow's of the datasets in an HDF5 file; their names, those of groups before them, joined by dots."""
    h5py = need("h5py", "hdf5", "reading HDF5")
    with h5py.File(_local(path), "r") as file:
        yield from _tables(path, list(_of_hdf5(h5py, file, path, "")), columns)


def _of_hdf5(h5py: Any, group: Any, path: str, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{path}: {prefix}{name} is a link, which may lead to another file: copy what it is of.")
        entry = group[name]
        if isinstance(entry, h5py.Group):
            yield from _of_hdf5(h5py, entry, path, f"{prefix}{name}.")
        elif isinstance(entry, h5py.Dataset):
            if entry.is_virtual or entry.external:
                raise ValueError(f"{path}: the bytes of {prefix}{name} lie in other files, which are not read.")
            yield f"{prefix}{name}", entry.asstr() if h5py.check_string_dtype(entry.dtype) else entry


def read_zarr(path: str, columns: Sequence[str] | None) -> Generator[Any, None, None]:
    """Tables of Arrow's of the arrays in a Zarr store, named as those of `read_hdf5`."""
    zarr = need("zarr", "zarr", "reading Zarr")
    group = zarr.open(_local(path), mode="r")
    if not hasattr(group, "members"):
        yield from _tables(path, [("values", group)], columns)
        return
    order = {name: number for number, name in enumerate(group.attrs.get(ORDER, ()))}
    # Not as the folder lists them.
    members = sorted(group.members(max_depth=None), key=lambda member: (order.get(member[0], len(order)), member[0]))
    yield from _tables(path, [(name.replace("/", "."), one) for name, one in members if hasattr(one, "dtype")], columns)


def _tables(path: str, found: list[tuple[str, Any]], columns: Sequence[str] | None) -> Generator[Any, None, None]:
    require_one_each([name for name, _ in found])
    arrays = dict(found)
    if columns is not None:
        require_columns(path, columns, list(arrays))
        arrays = {name: arrays[name] for name in columns}
    lengths = {name: _rows(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{path}: arrays have different numbers of rows, {lengths}: pass columns=.")
    count = next(iter(lengths.values()))
    each = sum(_row_bytes(array) for array in arrays.values())
    step = max(min(PART_BYTES // max(each, 1), BATCH_ROWS), 1)
    for start in range(0, max(count, 1), step):  # an empty one tells the columns
        part = {name: _column(path, name, array[start : start + step]) for name, array in arrays.items()}
        yield _as_arrow(part)


def _as_arrow(part: dict[str, Any]) -> Any:
    """Columns and times, which are arrays of Arrow's, as one table in their order."""
    others = {name: column for name, column in part.items() if isinstance(column, (torch.Tensor, Jagged))}
    table = to_arrow(Table.of(others)) if others else pyarrow().table({})
    for number, (name, column) in enumerate(part.items()):
        if name not in others:
            table = table.add_column(number, name, column)
    return table


def _rows(array: Any) -> int:
    shape = getattr(array, "shape", None)
    return len(array) if shape is None else int(shape[0]) if shape else 0


def _row_bytes(array: Any) -> int:
    shape, dtype = getattr(array, "shape", ()), getattr(array, "dtype", None)
    return int(np.prod(shape[1:], dtype=np.int64)) * getattr(dtype, "itemsize", 16)


def _column(path: str, name: str, values: Any) -> Any:
    array = np.asarray(values)
    if array.dtype.kind in "OTUS":
        rows = array.tolist()
        if not rows and array.dtype.kind in "US":
            return Jagged.of_no_text("str" if array.dtype.kind == "U" else "bytes")
        if not rows:
            raise ValueError(f"{path} has no rows, so nothing tells what {name!r} holds: leave it out with columns=.")
        if not isinstance(rows[0], (str, bytes)):
            rows = [torch.from_numpy(np.array(row)) for row in values]
        return Jagged.from_list(rows)
    if array.dtype.kind in "mM":
        return pyarrow().array(array)
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise TypeError(f"{path}: the array {name!r} is {array.dtype}, which is no tensor ({error}).") from None


def write_numpy(path: str, parts: Iterator[Table]) -> None:
    """Write parts of a table as an `.npz` file; one column alone as an `.npy` file, if that is its name.

    Raises:
        TypeError: a column has lists of different lengths.
        ValueError: its text ends in zeros, or there are several columns for one array.
    """
    found = list(parts)
    table = Table.cat(found) if len(found) > 1 else found[0]
    ragged = next((name for name, column in table.jagged.items() if column.kind == "tensor"), None)
    if ragged is not None:
        raise TypeError(f"the rows of {ragged!r} have different lengths, which no array has: pad them before.")
    arrays = {name: _array_of(table, name) for name in table.keys()}
    with opened(path, "wb") as file:
        if path.endswith(".npy"):
            if len(arrays) != 1:
                raise ValueError(f"{path} holds one array, and there are {len(arrays)} columns: use .npz.")
            np.save(file, next(iter(arrays.values())))
            return
        with zipfile.ZipFile(file, "w") as archive:  # as np.savez does, which has arguments of its own
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _array_of(table: Table, name: str) -> Any:
    column = table[name]
    if isinstance(column, Jagged):
        rows, zero = column.tolist(), "\0" if column.kind == "str" else b"\0"
        if any(row.endswith(zero) for row in rows):
            raise ValueError(f"rows of {name!r} end in zeros, which NumPy cuts off: use Parquet.")
        return np.array(rows, np.str_ if column.kind == "str" else np.bytes_)
    if table.types[name]:
        times = to_arrow(table.select(name)).column(0).to_numpy()
        if times.dtype.kind in "mM":  # NumPy has no time of the day
            return times
    return column.numpy()


def write_hdf5(path: str, parts: Iterator[Table]) -> None:
    """Write parts of a table as an HDF5 file: text as strings, rows of different lengths as `vlen`."""
    h5py = need("h5py", "hdf5", "writing HDF5")
    with staged_path(_local(path)) as partial, h5py.File(partial, "w", track_order=True, locking=False) as file:
        for part in parts:
            for name, values, kind in _arrays(part):
                dtype = values.dtype
                if kind == "str":
                    dtype = h5py.string_dtype()
                elif kind == "tensor":
                    dtype = h5py.vlen_dtype(values[0].dtype if len(values) else np.int64)
                elif kind == "bytes":
                    raise TypeError(f"the rows of {name!r} are bytes, which HDF5 would cut at zeros: use Parquet.")
                if kind == "str" and any("\0" in row for row in values):
                    raise ValueError(f"text of {name!r} has zero characters, which HDF5 has not: use Parquet.")
                if name not in file:
                    shape = (0, *values.shape[1:])
                    file.create_dataset(name, shape, dtype, maxshape=(None, *shape[1:]), chunks=True)
                first = len(file[name])
                file[name].resize(first + len(values), 0)
                if kind != "tensor":
                    file[name][first:] = values
                for number, row in enumerate(values if kind == "tensor" else ()):  # h5py takes one at a time only
                    file[name][first + number] = row


def write_zarr(path: str, parts: Iterator[Table]) -> None:
    """Write parts of a table as a Zarr 3 store; one that is there is replaced when the new one is whole.

    Raises:
        FileExistsError: there are other files in its folder.
    """
    zarr = need("zarr", "zarr", "writing Zarr")
    path = os.path.realpath(_local(path))
    if os.path.lexists(path):
        refuse_others(path, lambda: sorted({*files_below(path)} - _files_of_zarr(files_below(path))))
    partial = temporary_path(f".{os.path.basename(path)[:100]}", os.path.dirname(path))
    try:
        group, made = zarr.open_group(partial, mode="w", zarr_format=3), {}
        for part in parts:
            for name, values, kind in _arrays(part):
                if kind:
                    raise TypeError(f"the rows of {name!r} have different lengths, which no array of Zarr's has.")
                if name not in made:
                    chunks = (max(len(values), 1), *(max(size, 1) for size in values.shape[1:]))
                    made[name] = group.create_array(
                        name, shape=(0, *values.shape[1:]), chunks=chunks, dtype=values.dtype
                    )
                first = made[name].shape[0]
                made[name].resize((first + len(values), *values.shape[1:]))
                made[name][first:] = values
        group.attrs[ORDER] = list(made)
        try:
            os.rename(partial, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            exchange_in_turn(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    put_away(partial, path, _files_of_zarr)


def _files_of_zarr(names: list[str]) -> set[str]:
    """Those of the files below a folder that belong to the Zarr 3 store in it."""
    nodes = {os.path.dirname(name) for name in names if os.path.basename(name) == "zarr.json"}

    def is_chunk(name: str) -> bool:
        parts = name.split("/")
        cuts = [at for at, part in enumerate(parts) if part == "c" and "/".join(parts[:at]) in nodes]
        return any(all(map(str.isdigit, parts[at + 1 :])) for at in cuts)

    if "" not in nodes:
        return set()
    return {name for name in names if os.path.basename(name) == "zarr.json" or is_chunk(name)}


def _arrays(part: Table) -> Iterator[tuple[str, Any, str]]:
    """Path, values and kind of each column, in their order; the kind of tensors is empty.

    Raises:
        TypeError: NumPy has no such numbers.
        ValueError: the name of a column would be the path of another one.
    """
    keys = {joined(key): key for key in part.rows.keys(True, True)}
    for name in part.keys():
        if name not in part.jagged:
            key, leaf = keys[name], part.rows.get(keys[name])
            path = _path(name, [key] if isinstance(key, str) else [*key])
            try:
                yield path, leaf.contiguous().numpy(), ""
            except TypeError:
                raise TypeError(
                    f"the column {name!r} is {leaf.dtype}, which NumPy has not: convert it before."
                ) from None
            continue
        column = part.jagged[name]
        values = np.empty(len(column), dtype=object)
        for number, row in enumerate(column):
            values[number] = row.numpy() if column.kind == "tensor" else row
        yield _path(name, name.split(".")), values, column.kind


def _path(name: str, parts: list[str]) -> str:
    for part in parts:
        if part in ("", ".", "..") or "/" in part:
            raise ValueError(
                f"the column {name!r} cannot have this name here, where a slash leads into a group: rename it before."
            )
    return "/".join(parts)


def _local(path: str) -> str:
    if "://" in path:
        raise ValueError(f"{path}: HDF5 and Zarr are read and written on local disks: copy it there before.")
    return path
