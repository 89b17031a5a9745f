"""Entries of a collection as datasets and groups of an HDF5 file, in the format of the reference package.

`zarrstore` provides the same for Zarr stores, with the methods of h5py that are called here.

==================  ====================================================================================
tensor              a dataset of its shape
collection          a group
string              a scalar of variable-length text, marked ``__tensordict_str__``
column of strings   text of the shape of the batch, in the attribute ``__tensordict_stack__``
==================  ====================================================================================

Text of other programs lacks these marks: it is read as ``bytes``.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import packages
from tensordict_lite.arrays import tensor_of
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.memmap.disk.staging import staged_path
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.paths import absolute_path
from tensordict_lite.persistent import zarrstore

if TYPE_CHECKING:
    import h5py

_STRING, _STACK = "__tensordict_str__", "__tensordict_stack__"


def open_root(place: Any, mode: str, backend: str, allow_pickle: bool | None = None) -> Any:
    """Open the root group of a file or store; errors of HDF5, except system errors, name the file.

    Raises:
        NotImplementedError: the backend is unknown.
        OSError: it cannot be opened, or is a pipe or a device, on which HDF5 would block.
    """
    if backend == "zarr":
        return zarrstore.open_group(place, mode, allow_pickle)
    if backend != "h5":
        raise NotImplementedError(f"Unknown backend {backend!r}. Supported backends are ['h5', 'zarr'].")
    path = absolute_path(place)
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is not a regular file, so it is not an HDF5 file.")
    try:
        return open_hdf5(path, mode)
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{os.fspath(place)}: from_h5() expects an HDF5 file there: {error}") from error
        raise


def open_hdf5(path: str, mode: str = "r") -> h5py.File:
    """Open an HDF5 file, locked as h5py does by default: HDF5 refuses a file that the process has open in another way.

    A reader takes the flags of the process that has it open, and no lock where the file system has none.

    Raises:
        BlockingIOError: another process writes the file.
        OSError: it cannot be opened, or is netCDF 3.
    """
    h5py = packages.h5py()
    try:
        return h5py.File(path, mode)
    except BlockingIOError as error:
        told = f"another process {'writes to it' if mode == 'r' else 'has it open'}: close it there first"
        raise BlockingIOError(error.errno, told, path) from error
    except OSError as error:
        if mode == "r" and "lock" in str(error):
            for locking in (False, True):
                with contextlib.suppress(OSError):
                    return h5py.File(path, mode, locking=locking)
        if mode == "r" and error.errno is None:
            with open(path, "rb") as file:
                if file.read(3) == b"CDF":
                    raise OSError("it is netCDF 3, and only netCDF 4 is HDF5: convert it by `nccopy -k nc4`") from error
        raise


@contextlib.contextmanager
def new_root(place: Any, backend: str, allow_pickle: bool | None) -> Iterator[tuple[Any, Callable[[], None]]]:
    """The root group of a new file or store, which replaces the one that is there if the block succeeds.

    Yields:
        The group, and a function that raises if what was written so far has not arrived.
    """
    if backend == "h5":
        with new_hdf5(absolute_path(place)) as (file, output):
            yield file, output.check
    elif backend == "zarr" and isinstance(place, (str, os.PathLike)):
        with zarrstore.replaced_store(place) as partial:
            yield zarrstore.open_group(packages.zarr().storage.LocalStore(partial), "w", allow_pickle), lambda: None
    else:
        yield open_root(place, "w", backend, allow_pickle), lambda: None


class HDF5Output(io.FileIO):
    """The file that HDF5 writes to. After a write that fails HDF5 ends the process: it is told that all succeed.

    Attributes:
        error: the first that was raised.
    """

    error: OSError | None = None

    def write(self, content: Any) -> int:
        rest = memoryview(content)
        try:
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error, error.filename = error, self.name
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def check(self) -> None:
        """Raise the error of a write that failed."""
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def new_hdf5(path: str, **options: Any) -> Iterator[tuple[h5py.File, HDF5Output]]:
    """A new HDF5 file, which replaces the one at `path` if the block succeeds and is removed otherwise."""
    with staged_path(path) as partial, HDF5Output(partial, "w+") as output:
        try:
            with packages.h5py().File(output, "w", **options) as file:
                yield file, output
        finally:
            output.check()


def is_group(entry: Any) -> bool:
    """Whether an entry of a file is a collection."""
    return not hasattr(entry, "dtype")


def is_text(entry: h5py.Dataset) -> bool:
    """Whether an entry holds text or objects, not a tensor."""
    return entry.dtype.kind in "OSU"


def shape_of(entry: h5py.Dataset) -> torch.Size:
    """Shape of a dataset."""
    return torch.Size(entry.shape or ())


# -- reading -----------------------------------------------------------------------------------------------------


def read(entry: h5py.Dataset, size: torch.Size, device: torch.device | None, as_stack: bool = False) -> Any:
    """A dataset as an entry of a collection with this batch size; see :func:`_read_text` for ``as_stack``."""
    if is_text(entry):
        return _read_text(entry, size, device, as_stack)
    return _as_tensor(entry[()], entry, device)


def read_rows(entry: h5py.Dataset, index: Any, device: torch.device | None) -> Tensor:
    """Rows of a tensor at a normalised index; only these are read if the file supports that index."""
    if _is_plain(index):
        return _as_tensor(entry[index], entry, device)
    if isinstance(index, Tensor) and index.ndim == 1 and index.dtype not in (torch.bool, torch.uint8) and entry.shape:
        rows, length = index.cpu(), entry.shape[0]
        if bool(((rows < -length) | (rows >= length)).any()):
            raise IndexError(f"rows {rows.tolist()} are not all within the {length} rows of {entry.name}")
        first, last = _span(rows % length if length else rows)
        if last - first <= max(4 * len(rows), 1024):
            return _as_tensor(entry[first:last], entry, device)[(rows % max(length, 1) - first).to(device or "cpu")]
        wanted, places = torch.unique(rows % length, return_inverse=True)
        return _as_tensor(entry[wanted.numpy()], entry, device)[places.to(device or "cpu")]
    return _as_tensor(entry[()], entry, device)[index]


def _span(rows: Tensor) -> tuple[int, int]:
    return (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)


def _is_plain(index: Any) -> bool:
    """Whether an index has the same meaning in h5py and torch."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(type(part) is int or (type(part) is slice and (part.step is None or part.step > 0)) for part in parts)


def _as_tensor(value: Any, entry: h5py.Dataset, device: torch.device | None) -> Tensor:
    try:
        tensor = tensor_of(np.asarray(value), "cpu")
    except TypeError as err:
        raise TypeError(
            f"{entry.name} in {entry.file.filename} has the dtype {entry.dtype}, which no tensor has"
        ) from err
    return tensor if device is None else tensor.to(device)


def _read_text(entry: h5py.Dataset, size: torch.Size, device: torch.device | None, as_stack: bool) -> Any:
    """Text or objects. With ``as_stack``, text of other programs is one string per row if its shape fits the size."""
    value = entry[()]
    if _STACK in entry.attrs:
        rows = value if isinstance(value, list) else value.tolist()
        return _stacked(_decoded(rows), len(entry.attrs[_STACK]), device)
    if as_stack and size and shape_of(entry)[: len(size)] == size:
        return _stacked(value.tolist(), len(size), device)
    if _STRING in entry.attrs:
        value = _decoded(value)
    return NonTensorData(value, batch_size=size, device=device)


def _stacked(rows: Any, dims: int, device: torch.device | None) -> Any:
    members = [NonTensorData(row) if dims == 1 else _stacked(row, dims - 1, device) for row in rows]
    return NonTensorStack(*members, device=device)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


# -- writing -----------------------------------------------------------------------------------------------------


def write(group: h5py.Group, key: str, value: Any, options: dict[str, Any]) -> None:
    """Write an entry to a group. A dataset of the same shape and dtype is overwritten and keeps its compression.

    Raises:
        TypeError: HDF5 cannot store the value.
    """
    if isinstance(value, TensorCollection) and not value._is_non_tensor:
        if key in group:
            del group[key]
        below = group.create_group(key)
        describe(below, value.batch_size, value._names)
        for name, entry in value.items():
            write(below, name, entry, options)
        return
    data, dtype, marks = _stored(group, value, f"{group.name.rstrip('/')}/{key}")
    old = group.get(key)
    if old is not None:
        if dtype is None and hasattr(old, "dtype") and old.dtype == data.dtype and old.shape == data.shape:
            old[...] = data
            return
        del group[key]
    # A scalar has no chunks to compress.
    usable = options if np.ndim(data) and np.size(data) and zarrstore.OBJECT not in marks else {}
    made = group.create_dataset(key, data=data, dtype=dtype, **usable)
    made.attrs.update(marks)


def _array_of(value: Tensor, where: str) -> Any:
    if not value.is_nested and value.layout is torch.strided:
        with contextlib.suppress(TypeError):  # bfloat16 and others
            return value.numpy(force=True)
    kind = "nested" if value.is_nested else f"of layout {value.layout} and dtype {value.dtype}"
    raise TypeError(
        f"the tensor {where} is {kind}, which HDF5 and Zarr cannot store: convert it first, or use memmap()"
    )


def _stored(group: Any, value: Any, where: str) -> tuple[Any, Any, dict[str, Any]]:
    """The stored form: data, dtype if numpy lacks it, and marks."""
    if isinstance(value, Tensor):
        return _array_of(value, where), None, {}
    if isinstance(group, zarrstore.Group):
        return group.stored(value, where)
    text = packages.h5py().string_dtype()
    if isinstance(value, NonTensorStack):
        rows = value.tolist()
        array = np.array(rows, dtype=object)
        if array.shape != tuple(value.batch_size) or not all(isinstance(each, str) for each in array.flat):
            raise TypeError(f"of objects, HDF5 stores strings: {where} holds others. Store numbers as tensors")
        return array, text, {_STACK: np.array(value.batch_size, dtype=np.int64)}
    payload = value.data
    if isinstance(payload, (str, bytes)):
        return payload, text, {_STRING: True} if isinstance(payload, str) else {}
    raise TypeError(
        f"the entry {where} is a {type(payload).__name__}; of objects, HDF5 stores strings. Store numbers as tensors, "
        "or save the collection with memmap(folder, allow_pickle=True)"
    )


def write_rows(entry: h5py.Dataset, index: Any, value: Any) -> None:
    """``entry[index] = value`` for a tensor in a file."""
    if _is_plain(index):
        entry[index] = _array_of(value, entry.name) if isinstance(value, Tensor) else value
        return
    whole = torch.tensor(entry[()], device="cpu")
    whole[index] = value
    entry[...] = whole.numpy()


def allocate(group: h5py.Group, key: str, shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Allocate a tensor of zeros without writing it."""
    kind = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    group.create_dataset(key, shape=shape, dtype=kind, **(options if shape and 0 not in shape else {}))


def in_memory(
    group: h5py.Group, size: torch.Size, device: torch.device | None, names: Any, as_stack: bool = False
) -> TensorDict:
    """A whole group, loaded."""
    source: dict[str, Any] = {}
    for key, entry in group.items():
        if is_group(entry):
            inner_size, inner_names = described(entry, size, names)
            source[key] = in_memory(entry, inner_size, device, inner_names, as_stack)
        else:
            source[key] = read(entry, size, device, as_stack)
    return TensorDict._trusted(source, size, device, names)


def describe(group: Any, size: torch.Size, names: Any) -> None:
    """Record batch size and names in a Zarr store; HDF5 files of the reference package do not have them."""
    if isinstance(group, zarrstore.Group):
        group.describe(size, names)


def described(group: Any, size: torch.Size, names: Any) -> tuple[torch.Size, Any]:
    """Batch size and names of a collection within another one of this size."""
    noted = group.described() if isinstance(group, zarrstore.Group) else None
    return noted if noted is not None and noted[0][: len(size)] == size else (size, names)


# -- looking without reading --------------------------------------------------------------------------------------


def walk(group: Any) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Key and dataset of each entry below a group that is not a group, and the reason why it is not read, or "".

    Entries outside the file are not read, nor a group with two names, which may contain itself.
    """
    h5py = packages.h5py()
    seen = {h5py.h5o.get_info(group.id).addr}
    levels: list[tuple[tuple[str, ...], Any, Iterator[str]]] = [((), group, iter(group))]
    while levels:
        path, group, names = levels[-1]
        name = next(names, None)
        if name is None:
            levels.pop()
            continue
        key = (*path, name)
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield key, None, "is a link, which may lead to another file: copy what it is of"
            continue
        entry = group[name]
        if isinstance(entry, h5py.Dataset):
            yield key, entry, "lies in other files, which are not read" if entry.is_virtual or entry.external else ""
        elif isinstance(entry, h5py.Group):
            address = h5py.h5o.get_info(entry.id).addr
            if address in seen:
                yield key, None, "is a group that has another name in the file"
            else:
                seen.add(address)
                levels.append((key, entry, iter(entry)))


def datasets(group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The entries below a group that are not groups.

    Raises:
        ValueError: an entry must not be read; names it.
    """
    if isinstance(group, zarrstore.Group):
        yield from group.arrays()
        return
    for key, entry, reason in walk(group):
        if reason:
            raise ValueError(f"{group.file.filename}: {'.'.join(key)} {reason}.")
        yield key, entry


def list_keys(group: Any, path: tuple[str, ...], nested: bool, leaves_only: bool, out: list[Any]) -> None:
    """Append the keys below a group, those of collections after their content."""
    for key, entry in group.items():
        is_level = is_group(entry)
        if nested and is_level:
            list_keys(entry, (*path, key), nested, leaves_only, out)
        if not leaves_only or not (is_level or is_text(entry)):
            out.append((*path, key) if path else key)


def shared_size(group: Any, dims: int | None) -> torch.Size:
    """The largest leading shape that all entries of a file share."""
    shapes = [shape_of(entry) for _, entry in datasets(group) if entry.shape or not is_text(entry)]
    if not shapes:
        return torch.Size(())
    shared = os.path.commonprefix([list(shape) for shape in shapes])
    return torch.Size(shared[:dims])
