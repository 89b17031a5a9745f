"""`tdmap.open` and `tdmap.concat`: datasets by their paths, several of them as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from tdmap.data.entries import keys_by_name, require_list
from tdmap.data.kinds import Data, Dataset, entries_of, is_data, is_dense
from tdmap.data.schema import Schema
from tdmap.edges import edge
from tdmap.errors import OutputMismatch
from tdmap.memory.hidden import AnyPath
from tdmap.process_state import on_host
from tdmap.shards.manifest import MANIFEST, ShardEntry, unpack, why_no_dataset
from tdmap.shards.sharded import ShardedDataset
from tdmap.shards.sources import FolderSource, MemorySource, RowSource, Run, digest_of, spans_of
from tensordict_lite import TensorDict, is_non_tensor, is_tensor_collection
from tensordict_lite.errors import DatasetError, DatasetNotFoundError
from tensordict_lite.memmap.disk.format import META, read_small
from tensordict_lite.memmap.plan import mapped_root
from tensordict_lite.objects.data import same_payload
from tensordict_lite.paths import is_url, local_path

MAX_MANIFEST = 1 << 28

ARRAYS = (".zarr", ".h5", ".hdf5", ".nc", ".nc4", ".netcdf")
"""How the names of Zarr stores and of HDF5 files end."""


@on_host
def open(
    source: AnyPath | RowSource | Sequence[AnyPath | RowSource],
    *,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Any:
    """Open a dataset by its folder or URL, or several datasets as one.

    Args:
        source: a folder that `memmap` or an operation wrote, with or without `rows_per_shard=`; the URL of such a
            folder, such as `"s3://bucket/set"`, in any file system of fsspec; a local Zarr store (`.zarr`), HDF5 file
            (`.h5`, `.hdf5`) or netCDF 4 file (`.nc`, `.nc4`, `.netcdf`), whose arrays become columns; a
            `tdmap.types.RowSource`; or a list of these, whose rows are concatenated.
        columns: names of the entries to open, those of nested ones joined by dots. Default: all, of HDF5 and Zarr
            without single values and coordinates, which are arrays of one dimension that is a later dimension of
            other arrays.
        storage_options: options of fsspec's file system. It finds credentials in the environment, configuration files
            and roles.

    Returns:
        For one folder the result of `TensorDict.load_memmap`, otherwise a `ShardedDataset`.

    Raises:
        DatasetError: a folder is not a dataset, or differs from its manifest; names it.
        DatasetNotFoundError: a folder or bucket does not exist.
        OutputMismatch: (a ValueError) the datasets differ in keys, dtypes or row shapes; names both and the entry.
        KeyError: a requested entry does not exist; lists the entries.
        ValueError: the list is empty, or names a folder twice.
        ImportError: a package for the URL is not installed; names the extra to install.
        PermissionError: the store denies access.

    Example:
        >>> import tempfile, torch, tdmap
        >>> from tensordict_lite import TensorDict
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for n in range(2):
        ...         _ = TensorDict({"x": torch.arange(3) + 10 * n}, [3]).memmap(f"{root}/{n}")
        ...     data = tdmap.open([f"{root}/0", f"{root}/1"])
        ...     data["x"].tolist()
        [0, 1, 2, 10, 11, 12]
    """
    data = _opened(source, require_list(columns), storage_options)
    if columns is None:
        return data
    names = keys_by_name(data, columns)
    return data.select(*(names[name] for name in columns))


def _opened(source: Any, columns: list[str] | None, storage_options: dict[str, Any] | None) -> Any:
    if isinstance(source, RowSource):
        return ShardedDataset(spans_of(_all_of([source])))
    if isinstance(source, (str, os.PathLike)):
        path = _local(source)
        if path is not None and not is_arrays(path) and not os.path.lexists(f"{path}/{MANIFEST}"):
            return _load_folder(path)
        return ShardedDataset(spans_of(_all_of(_members_of(source, columns, storage_options))))
    if not isinstance(source, Iterable):
        raise TypeError(f"open takes a path, a URL or a list of them: got a {type(source).__name__}.")
    sources = list(source)
    if not sources:
        raise ValueError("open got an empty list: give at least one folder.")
    for one in sources:
        if not isinstance(one, (str, os.PathLike, RowSource)):
            raise TypeError(f"open takes paths and URLs: got a {type(one).__name__}. concat() takes opened datasets.")
    _refuse_twice([_canonical(one) for one in sources])
    groups = [_members_of(one, columns, storage_options) for one in sources]
    return _joined([run for group in groups for run in _all_of(group)], firsts=[group[0] for group in groups])


@on_host
def concat(datasets: Iterable[Dataset[Any]]) -> ShardedDataset:
    """Concatenate datasets without copying rows.

    Args:
        datasets: collections with rows in dimension 0, memory-mapped or in memory, or results of `open` and `concat`.

    Raises:
        OutputMismatch: (a ValueError) they differ in keys, dtypes or row shapes.
        ValueError: `datasets` is empty, or has a folder twice.
        TypeError: a dataset is not a collection.

    Example:
        >>> import torch, tdmap
        >>> from tensordict_lite import TensorDict
        >>> halves = [TensorDict({"x": torch.zeros(2)}, [2]), TensorDict({"x": torch.ones(2)}, [2])]
        >>> tdmap.concat(halves)["x"]
        tensor([0., 0., 1., 1.])
    """
    given: list[Data] = [] if is_data(datasets) else list(datasets)
    if not given:
        raise ValueError("concat takes a list of at least one dataset.")
    runs: list[Run] = []
    folders: list[str] = []
    for place, data in enumerate(given):
        if isinstance(data, ShardedDataset):
            if data._keys is not None or data._columns is not None:
                raise TypeError("concat takes whole datasets, without added columns: use select() on its result.")
            runs += [span.run for span in data._spans]
            folders += data.folders
            continue
        if isinstance(data, Tensor) or not is_data(data) or not len(data.shape):
            what = "collection of batch size []" if is_tensor_collection(data) else type(data).__name__
            raise TypeError(f"concat takes datasets, with rows in dimension 0: got a {what}.")
        root = mapped_root(data)
        member: RowSource = MemorySource(f"dataset {place}", data)
        if root is not None:
            folder = FolderSource.at(os.path.realpath(root))
            if _is_all_of(data, TensorDict.load_memmap(folder.name)):
                member = folder
                folders.append(folder.name)
        runs.append((member, 0, member.rows, None))
    _refuse_twice(folders)
    return _joined(runs)


def _is_all_of(data: Any, saved: Any) -> bool:
    """Whether a collection whose tensors are mapped from a folder is what is there: all entries, the same objects."""
    if isinstance(data, Tensor) or isinstance(saved, Tensor):
        return type(data) is type(saved) and (data.is_nested or (data.dtype, data.shape) == (saved.dtype, saved.shape))
    if data.batch_size != saved.batch_size or is_non_tensor(data) is not is_non_tensor(saved):
        return False
    if is_non_tensor(data):
        return same_payload(data.tolist(), saved.tolist())
    if is_dense(data) is not is_dense(saved):
        return False
    if not is_dense(data):
        pairs = list(zip(data.unbind(data.stack_dim), saved.unbind(saved.stack_dim)))
        return data.stack_dim == saved.stack_dim and all(_is_all_of(one, other) for one, other in pairs)
    mine, theirs = entries_of(data), entries_of(saved)
    return mine.keys() == theirs.keys() and all(_is_all_of(value, theirs[key]) for key, value in mine.items())


def _all_of(members: Iterable[RowSource]) -> list[Run]:
    return [(member, 0, member.rows, None) for member in members]


def _joined(runs: list[Run], firsts: list[RowSource] | None = None) -> ShardedDataset:
    """The dataset of members, once they have been found to look alike.

    Args:
        runs: their rows.
        firsts: the members that are looked at; the others are known to be like the one before. Default: all of them.
    """
    data = ShardedDataset(spans_of(runs))
    members = firsts or [member for member, *_ in runs]
    first = Schema(members[0].open().like())
    for member in members[1:]:
        other = Schema(member.open().like())
        if other.digest != first.digest:
            difference = first.difference(other, "the first")
            raise OutputMismatch(
                f"{member.name} and {members[0].name} cannot be one dataset: {difference}. Use .select(...) or "
                ".map(...) on one of them."
            )
    return data


def _refuse_twice(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is given twice: give each folder once.")
        seen.add(name)


def _canonical(source: AnyPath | RowSource) -> str:
    if isinstance(source, RowSource):
        return source.name
    path = _local(source)
    return str(source).rstrip("/") if path is None else os.path.realpath(path)


def _local(source: AnyPath) -> str | None:
    """The path of a folder of this machine; None for a URL of a store."""
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError(f"a path is a string: got {text!r:.80}.")
    return None if is_url(text) else local_path(text)


def is_arrays(path: str) -> bool:
    """Whether a path of this machine is a Zarr store or an HDF5 file, by its name."""
    return path.rstrip("/").lower().endswith(ARRAYS) and os.path.exists(path) and not os.path.exists(f"{path}/{META}")


def _members_of(
    source: AnyPath | RowSource, columns: list[str] | None, storage_options: dict[str, Any] | None
) -> list[RowSource]:
    if isinstance(source, RowSource):
        return [source]
    path = _local(source)
    if path is None:
        return list(edge("dataset at a URL")(str(source), storage_options or {}))
    path = os.path.abspath(path)
    if is_arrays(path):
        return [edge("arrays as rows")(path, columns)]
    if not os.path.lexists(f"{path}/{MANIFEST}"):
        return [_folder_at(path)]
    listed = unpack(f"{path}/{MANIFEST}", read_small(f"{path}/{MANIFEST}", path, MAX_MANIFEST))
    return [_listed(path, shard) for shard in listed]


def _listed(folder: str, shard: ShardEntry) -> FolderSource:
    """A folder that a manifest lists, if it is what the manifest says."""
    path = f"{folder}/{shard.path}"
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), shard.path):
        raise DatasetError(path, "is reached through a symbolic link; a dataset is not followed out of its folder")
    try:
        found = digest_of(path)
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(
            error.path,
            f"{error.reason}, and {folder}/{MANIFEST} lists it with {shard.rows} rows: was the copy complete?",
        ) from None
    if found != shard.meta:
        rows = int(TensorDict.load_memmap(path, device="meta").shape[0])
        what = f"it has {rows} rows, and had {shard.rows}" if rows != shard.rows else "its metadata are others"
        raise DatasetError(path, f"is not the shard that {folder}/{MANIFEST} lists: {what}")
    return FolderSource(path, shard.rows, shard.meta)


def _folder_at(path: str) -> FolderSource:
    try:
        return FolderSource.at(path)
    except DatasetNotFoundError:
        raise _no_dataset(path) from None


def _load_folder(path: str) -> Data:
    try:
        data = TensorDict.load_memmap(path)
    except DatasetNotFoundError:
        raise _no_dataset(path) from None
    return data


def _no_dataset(path: str) -> DatasetNotFoundError:
    if not os.path.lexists(path):
        return DatasetNotFoundError(path, "does not exist")
    if not os.path.isdir(path):
        return DatasetNotFoundError(path, "is a file; a dataset is a folder")
    return DatasetNotFoundError(path, why_no_dataset(os.listdir(path)))
