"""A collection in an HDF5 file, or in a Zarr store.

Reading and writing single entries and rows accesses the file; every other method loads the entries and uses the method
of :class:`TensorDict`. One whose name ends with an underscore writes its changes back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of
from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.indexing import index_batch_size, normalise_index, rows_of_mask
from tensordict_lite.kernel import DeviceLike, Flat, as_size, check_names, normalise_device
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path
from tensordict_lite.persistent import entries, zarrstore
from tensordict_lite.persistent.loaded import LoadedOps
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.views import default_is_leaf


class PersistentTensorDict(LoadedOps, DenseCollection, TensorDictBase):
    """A collection whose entries stay in an HDF5 file or a Zarr store: read on access, written on assignment.

    ``data["a"]`` reads a new tensor each time: changing it in place does not change the file; ``data["a"] = x``,
    ``set_``, ``data[:10] = rows`` and methods that end with an underscore do. ``data[rows]`` is a TensorDict of these
    rows in memory. Methods that do not concern single entries or rows load all entries first.

    Open a file with :meth:`from_h5` or :meth:`from_zarr`, create one with :meth:`from_dict`, :meth:`TensorDict.to_h5`
    or :meth:`TensorDict.to_zarr`, and :meth:`close` it. Datasets that only this library reads are better saved with
    :meth:`TensorDict.memmap`.

    Args:
        batch_size: leading shape of every entry. Defaults to ``[]``.
        filename: the file; for Zarr, the folder, or a ``zarr.abc.store.Store``.
        group: an open ``h5py.Group`` instead of a file.
        mode: as for :class:`h5py.File`: ``"r"`` (default), ``"r+"``, ``"w"``, ``"a"``.
        backend: ``"h5"`` or ``"zarr"``.
        device: device of entries when they are read.
        names: names of the batch dimensions.
        non_tensor_as_stack: read text of other programs, one string per row, as a :class:`NonTensorStack`. By default
            it is one object, an array.
        allow_pickle: write objects that JSON cannot hold to a Zarr store as pickles, and read them. Reading a pickle
            runs code: pass True only if you trust the author of the store.
        **options: passed to :meth:`h5py.Group.create_dataset`, for example ``compression="gzip"``, or
            :meth:`zarr.Group.create_array`, for example ``chunks=(100,)`` for the leading dimensions. By default, a
            Zarr array is one uncompressed chunk.

    Raises:
        ImportError: h5py or zarr is not installed.
        FileNotFoundError: the file does not exist.
        RuntimeError: neither a file nor a group is given.
        ValueError: an entry does not start with the batch size, is a link, is stored in another file, or is a group
            with two names. Nothing outside of the file is read, and no link in a store is followed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> data = TensorDict({"x": torch.arange(3), "n": {"y": torch.zeros(3, 2)}}, [3])
        >>> data = data.to_h5(f"{folder.name}/data.h5")
        >>> data["x"] = data["x"] + 1
        >>> data[:2]["x"], data["n", "y"].shape
        (tensor([1, 2]), torch.Size([3, 2]))
        >>> data.close()
    """

    __slots__ = ("_as_stack", "_group", "_options")
    _kind_name = "PersistentTensorDict"
    _stack_priority = 0.5

    def __init__(
        self,
        *,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        filename: str | os.PathLike[str] | None = None,
        group: Any = None,
        mode: str = "r",
        backend: str = "h5",
        device: DeviceLike | None = None,
        names: Sequence[str | None] | None = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        **options: Any,
    ) -> None:
        if (filename is None) == (group is None):
            raise RuntimeError(
                f"Either group or filename must be provided, and not both. Got group={group} and filename={filename}."
            )
        if group is None:
            group = entries.open_root(filename, mode, backend, allow_pickle)
        self._group, self._as_stack = group, non_tensor_as_stack
        self._options = options
        self._batch_size = torch.Size(()) if batch_size is None else as_size(batch_size)
        self._device = None if device is None else normalise_device(device)
        self._names = None if names is None else check_names(names, len(self._batch_size))
        self._types = None
        self._lock = None
        try:
            self._change_batch_size(self._batch_size)
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    # -- opening and closing ----------------------------------------------------------------------------------

    @classmethod
    def from_h5(  # type: ignore[override]  # the options by name
        cls,
        filename: str | os.PathLike[str],
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        non_tensor_as_stack: bool = False,
        device: DeviceLike | None = None,
    ) -> PersistentTensorDict:
        """Open an HDF5 file.

        Args:
            filename: the file.
            mode: ``"r"`` to read (default), ``"r+"`` to write too.
            auto_batch_size: use the largest leading shape that all entries share (the default).
            batch_dims: maximum number of dimensions for that.
            batch_size: leading shape of every entry.
            non_tensor_as_stack: as for the class.
            device: device of entries when they are read.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: it is not an HDF5 file.
            TypeError: both ``batch_size`` and ``auto_batch_size``.
        """
        _require_one_size("from_h5", auto_batch_size, batch_size)
        new = PersistentTensorDict(
            filename=filename, mode=mode, batch_size=batch_size, device=device, non_tensor_as_stack=non_tensor_as_stack
        )
        if batch_size is None:
            new.batch_size = entries.shared_size(new._group, batch_dims)
        return new

    @classmethod
    def from_zarr(  # type: ignore[override]  # the options by name
        cls,
        filename: Any,
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        device: DeviceLike | None = None,
    ) -> PersistentTensorDict:
        """Open a Zarr store.

        Args:
            filename: the folder of the store, or a ``zarr.abc.store.Store``.
            mode: ``"r"`` to read (default), ``"r+"`` to write too.
            auto_batch_size: use the largest leading shape that all entries share. Default: the batch size recorded by
                :meth:`TensorDict.to_zarr`, and for stores of other programs that shape.
            batch_dims: with ``auto_batch_size``, the maximum number of dimensions of the batch size.
            batch_size: leading shape of every entry.
            non_tensor_as_stack, allow_pickle: as for the class.
            device: device of entries when they are read.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: it is not a Zarr store, or contains a link.
            TypeError: both ``batch_size`` and ``auto_batch_size``.
        """
        _require_one_size("from_zarr", auto_batch_size, batch_size)
        batch_size = None if batch_size is None else as_size(batch_size)
        group = entries.open_root(filename, mode, "zarr", allow_pickle)
        noted = group.described()
        if batch_size is None and (auto_batch_size or noted is None):
            batch_size = entries.shared_size(group, batch_dims if auto_batch_size else None)
        size, names = noted if noted is not None and batch_size in (None, noted[0]) else (batch_size, None)
        return PersistentTensorDict(
            group=group, batch_size=size, device=device, names=names, non_tensor_as_stack=non_tensor_as_stack
        )

    @classmethod
    def from_dict(  # type: ignore[override]  # a file is needed
        cls,
        input_dict: Any,
        filename: Any,
        *,
        batch_size: Sequence[int] | torch.Size | None = None,
        device: DeviceLike | None = None,
        backend: str = "h5",
        batch_dims: int | None = None,
        allow_pickle: bool | None = None,
        **options: Any,
    ) -> PersistentTensorDict:
        """Write a mapping or collection into a new file, which is then open for reading and writing.

        Args:
            input_dict: the entries.
            filename: the file; an existing one is replaced. For Zarr, the folder, which is replaced after the new one
                is complete, or a ``zarr.abc.store.Store``.
            batch_size: default: that of a collection; of a mapping, the largest leading shape that its entries share.
            device: device of entries when they are read.
            backend: ``"h5"`` or ``"zarr"``.
            batch_dims: for a mapping, the maximum number of dimensions of the batch size.
            allow_pickle, **options: as for the class.
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError("batch_size and batch_dims exclude each other: give one of them")
        data = input_dict if isinstance(input_dict, TensorCollection) else TensorDict(input_dict)
        if batch_size is None and data is input_dict:
            batch_size = data.batch_size
        names = data._names if batch_size == data.batch_size else None
        with entries.new_root(filename, backend, allow_pickle) as (group, check):
            if batch_size is not None:  # arrays of Zarr name the dimensions of the batch
                entries.describe(group, as_size(batch_size), names)
            for key, value in data.items():
                entries.write(group, key, value, options)
                check()
            size = entries.shared_size(group, batch_dims) if batch_size is None else as_size(batch_size)
            entries.describe(group, size, names)
        if backend == "h5" or isinstance(filename, (str, os.PathLike)):
            group = entries.open_root(filename, "r+", backend, allow_pickle)
        return cls(group=group, batch_size=size, device=device, names=names, **options)

    @classmethod
    def from_schema(  # type: ignore[override]  # a file is needed
        cls,
        schema: Any,
        *,
        filename: Any,
        batch_size: Any = None,
        device: DeviceLike | None = None,
        backend: str = "h5",
        **options: Any,
    ) -> Any:
        """A new file with allocated entries of these shapes and dtypes; see :meth:`TensorDict.from_schema`."""
        size = as_size(batch_size if batch_size is not None else ())
        new = cls(filename=filename, mode="w", device=device, backend=backend, **options)
        entries.describe(new._group, size, None)
        for key, (shape, dtype) in schema.items():
            *above, name = require_path(key)
            group = new._group.require_group("/".join(above)) if above else new._group
            entries.allocate(group, name, (*size, *shape), dtype, options)
        new._batch_size = size
        return new

    def close(self) -> None:
        """Close the file; entries can no longer be read."""
        self._group.file.close()

    @property
    def filename(self) -> str | None:
        """The path of the file; None for a store that was passed open."""
        path = self._group.file.filename
        return None if path is None else str(path)

    @property
    def file(self) -> Any:
        """The open ``h5py.File``, or its equivalent for a store."""
        return self._group.file

    @property
    def group(self) -> Any:
        """The open ``h5py.Group`` of this collection, or its equivalent for a store."""
        return self._group

    @property
    def mode(self) -> str:
        """``"r"`` or ``"r+"``."""
        return str(self._group.file.mode)

    # -- the kernel's primitives --------------------------------------------------------------------------------

    @property
    def _source(self) -> dict[str, Any]:  # type: ignore[override]
        """The entries, loaded, as other collections see them."""
        return self._loaded()._source

    @classmethod
    def _trusted(cls, *args: Any, **kwargs: Any) -> Any:
        return TensorDict._trusted(*args, **kwargs)

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        return TensorDict._trusted(source, batch_size, self._device, names)

    @classmethod
    def _free_class(cls) -> Any:
        return TensorDict

    def _loaded(self) -> TensorDict:
        return entries.in_memory(self._group, self._batch_size, self._device, self._names, self._as_stack)

    def _store(self, changed: Any) -> None:
        """Write back the changes of a method to :meth:`_loaded`."""
        for key in [key for key in self._group if key not in changed._source]:
            del self._group[key]
        for key, value in changed._source.items():
            below = self._group.get(key)
            if below is not None and entries.is_group(below) and isinstance(value, TensorDict):
                self._child(below)._store(value)
            else:
                entries.write(self._group, key, value, self._options)

    def _child(self, group: Any) -> PersistentTensorDict:
        new = object.__new__(PersistentTensorDict)
        new._group, new._options, new._device, new._as_stack = group, self._options, self._device, self._as_stack
        new._batch_size, new._names = entries.described(group, self._batch_size, self._names)
        new._types = None
        new._lock = None if self._lock is None else [weakref.ref(self)]
        return new

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        return self._loaded()._leaves(ragged)

    def _get_str(self, key: str) -> Any:
        entry = self._group[key] if key in self._key_list() else None
        if entry is None:
            raise KeyError(key)
        if entries.is_group(entry):
            return self._child(entry)
        return entries.read(entry, self._batch_size, self._device, self._as_stack)

    def _set_str(self, key: str, value: Any) -> None:
        entries.write(self._group, key, value, self._options)

    def _del_str(self, key: str) -> None:
        del self._group[key]

    def _key_list(self) -> list[str]:
        if not self._group:
            raise KeyError(f"the file of this {type(self).__name__} is closed: open it again")
        return list(self._group)

    def _nested(self) -> list[Any]:
        return [self._child(entry) for entry in self._group.values() if entries.is_group(entry)]

    def _lockable(self) -> Any:
        return ()  # nested collections are created on each access, and locked like this one

    def _entries(self) -> Iterator[tuple[str, Any]]:
        return ((key, self._get_str(key)) for key in self._key_list())

    _key_entries = _entries

    def _set_names(self, names: list[str | None] | None) -> None:
        self._names = names

    def _change_batch_size(self, new: torch.Size) -> None:
        for key, entry in entries.datasets(self._group):
            shape = entries.shape_of(entry)
            if not entries.is_text(entry) and shape[: len(new)] != new:
                raise RuntimeError(
                    f"batch size and array size mismatch: the entry {key} has the shape {list(shape)}, which does not "
                    f"begin with the batch size {list(new)}"
                )
        if self._names is not None:
            self._names = [*self._names[: len(new)], *([None] * (len(new) - len(self._names)))]
        self._batch_size = new

    # -- reading -------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        path = (index,) if isinstance(index, str) else path_of(index) if type(index) is tuple else ()
        if path:
            value = self._get_path(path)
            return value if isinstance(value, Tensor) else value._as_value()
        return self._index(normalise_index(index, len(self._batch_size)))

    _get_path = TensorCollection._get_path_slowly

    def get(self, key: Any, default: Any = MISSING, **stacked_as: Any) -> Any:
        try:
            return self._get_path(require_path(key))
        except (KeyError, KeyThroughLeafError) as error:
            if default is not MISSING:
                return default
            if isinstance(error, KeyThroughLeafError) or not settings.get_defaults_to_none:
                raise
            return None

    def get_at(self, key: Any, index: Any, default: Any = MISSING) -> Any:
        path = require_path(key)
        entry = self._group.get("/".join(path)) if self._has(path) else None
        if entry is None or entries.is_group(entry) or entries.is_text(entry):
            return super().get_at(key, index, default)
        return entries.read_rows(entry, normalise_index(index, len(entry.shape)), self._device)

    def _index(self, index: Any) -> Any:
        if isinstance(index, Tensor) and index.dtype is torch.bool and index.ndim == 1:
            index = rows_of_mask(index, self._batch_size)
        if not self._batch_size:
            return self._loaded()[index]
        size = index_batch_size(self._batch_size, index)
        return self._rows(index, size, self._index_names(index, len(size)))

    def _rows(self, index: Any, size: torch.Size, names: Any) -> TensorDict:
        out: dict[str, Any] = {}
        for key, entry in self._group.items():
            if entries.is_group(entry):
                child = self._child(entry)
                more = len(self._batch_size)
                inner = None if child._names is None else [*(names or [None] * len(size)), *child._names[more:]]
                out[key] = child._rows(index, torch.Size((*size, *child._batch_size[more:])), inner)
            elif entries.is_text(entry):
                out[key] = entries.read(entry, self._batch_size, self._device, self._as_stack)[index]
            else:
                out[key] = entries.read_rows(entry, index, self._device)
        return TensorDict._trusted(out, size, self._device, names)

    def __iter__(self) -> Iterator[Any]:
        if not self._batch_size:
            raise TypeError("iteration over a PersistentTensorDict without batch dimensions: use its items()")
        return (self[row] for row in range(self._batch_size[0]))

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        if is_leaf is not None and is_leaf is not default_is_leaf:
            return self._loaded().keys(include_nested, leaves_only, is_leaf, sort=sort)
        found: list[Any] = []
        entries.list_keys(self._group, (), include_nested, leaves_only, found)
        if sort:
            found.sort(key=lambda key: (key,) if isinstance(key, str) else key)
        return dict.fromkeys(found).keys()

    def items(self, *args: Any, **options: Any) -> Any:
        return ((key, self.get(key)) for key in self.keys(*args, **options))

    def values(self, *args: Any, **options: Any) -> Any:
        return (value for _, value in self.items(*args, **options))

    def _has(self, path: tuple[str, ...]) -> bool:
        group = self._group
        for part in path:
            if not entries.is_group(group) or part not in list(group):  # "a/b" is not a key
                return False
            group = group[part]
        return True

    def __contains__(self, key: Any) -> bool:
        return self._has(require_path(key))

    def is_empty(self) -> bool:
        return next(iter(entries.datasets(self._group)), None) is None

    def to_tensordict(self, **kwargs: Any) -> TensorDict:
        return self._loaded().to_tensordict(**kwargs)

    def contiguous(self, **kwargs: Any) -> TensorDict:  # type: ignore[override]  # in memory
        return self._loaded()

    def select(self, *keys: Any, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Any:
        """The entries under these keys, in memory; others are not read."""
        if inplace:
            raise NotImplementedError("select(inplace=True) would remove entries from the file: use del_()")
        out = TensorDict({}, batch_size=self._batch_size, device=self._device, names=self._names)
        for key in keys:
            value = self.get(key, None)
            if value is not None:
                out.set(key, value._loaded() if isinstance(value, PersistentTensorDict) else value)
            elif strict:
                raise missing_key_error(key, self._key_list(), type(self).__name__)
        return out

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """With a device: this file, with entries moved there when they are read. Otherwise as for a TensorDict."""
        if kwargs.get("inplace"):
            raise TypeError("to(inplace=True) would change the file: write what to() gives, update(data.to(...))")
        parsed: Any = (None, None)
        with contextlib.suppress(TypeError, RuntimeError):  # not arguments of Tensor.to
            parsed = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = parsed[:2]
        if device is None or dtype is not None:
            return self._loaded().to(*args, **kwargs)
        new = self.clone(False)
        new._device = normalise_device(device)
        return new

    def clone(self, recurse: bool = True) -> Any:
        """``recurse=False``: another object for the same file. By default the entries in memory."""
        if recurse:
            return self._loaded()
        new = self._child(self._group)
        new._lock = None
        return new

    def copy(self) -> Any:
        return self.clone(False)

    # -- writing ----------------------------------------------------------------------------------------------------

    def set(self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Self:
        path = require_path(key)
        if inplace and self._has(path):
            return self.set_(key, item)
        self._require_unlocked()
        node = self
        for part in path[:-1]:
            if not node._has((part,)):
                node._group.create_group(part)
            node = node._get_str(part)
            if not isinstance(node, PersistentTensorDict):
                raise KeyError(f"{part!r} is an entry already, so {path} cannot be written below it")
        node._set_str(path[-1], node._fit(item, path[-1]))
        return self

    def __setitem__(self, index: Any, value: object) -> None:
        path = (index,) if isinstance(index, str) else path_of(index) if type(index) is tuple else ()
        if path:
            self.set(path, value)
            return
        index = normalise_index(index, len(self._batch_size))
        size = index_batch_size(self._batch_size, index)
        if not isinstance(value, TensorCollection):
            memory = self._loaded()
            memory[index] = value
            self._store(memory)
            return
        if value.batch_size != size:
            value = value.expand(size)
        self._write_rows(index, value, len(size))

    def _write_rows(self, index: Any, rows: Any, dims: int) -> None:
        for key, value in rows.items():
            if not self._has((key,)):
                self._require_unlocked()
                if isinstance(value, Tensor):
                    shape = (*self._batch_size, *value.shape[dims:])
                    entries.allocate(self._group, key, shape, value.dtype, self._options)
                else:
                    self._set_str(key, self._allocate_like(value, dims))
            entry = self._group[key]
            if entries.is_group(entry):
                self._child(entry)._write_rows(index, value, dims)
            elif isinstance(value, Tensor) and not entries.is_text(entry):
                entries.write_rows(entry, index, value)
            else:
                memory = TensorDict({key: self._get_str(key)}, batch_size=self._batch_size)
                memory[index] = TensorDict({key: value}, batch_size=rows.batch_size)
                self._set_str(key, memory.get(key))

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        path = require_path(key)
        if not self._has(path):
            self._raise_missing(path)
        parent, name = (self if len(path) == 1 else self._get_path(path[:-1])), path[-1]
        old, new = parent._group[name], parent._fit(item, name)
        if isinstance(new, TensorCollection) and entries.is_group(old):
            parent._child(old).update_(new)
        elif isinstance(new, Tensor) and not entries.is_group(old) and not entries.is_text(old):
            if torch.Size(old.shape) != new.shape:
                new = new.expand(old.shape)
            old[...] = new.detach().cpu().numpy()
        else:
            parent._set_str(name, new)
        return self

    def set_at_(self, key: NestedKey, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        path = require_path(key)
        if not self._has(path):
            self._raise_missing(path)
        entry = self._group["/".join(path)]
        if entries.is_group(entry) or entries.is_text(entry):
            memory = self._loaded()
            memory.set_at_(key, value, index)
            self.set_(key, memory.get(key))
        else:
            value = tensor_of(value)
            entries.write_rows(entry, normalise_index(index, len(entry.shape)), value)
        return self

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        return self._write_entries(input_dict_or_td, kwargs, inplace, self._lock is not None)

    def update_(self, input_dict_or_td: Any = None, **kwargs: Any) -> Self:
        return self._write_entries(input_dict_or_td, kwargs, True, True)

    def _write_entries(self, source: Any, kwargs: dict[str, Any], inplace: bool, only: bool) -> Self:
        wanted = kwargs.pop("keys_to_update", None)
        for option in ("non_blocking", "is_leaf", "update_batch_size", "ignore_lock"):
            kwargs.pop(option, None)
        wanted = None if wanted is None else {require_path(key) for key in wanted}
        for key, value in {**dict(() if source is None else source.items()), **kwargs}.items():
            path = require_path(key)
            below = None if wanted is None else [rest[len(path) :] for rest in wanted if rest[: len(path)] == path]
            if below == []:
                continue
            nested = isinstance(value, Mapping) or (isinstance(value, TensorCollection) and not value._is_non_tensor)
            if nested and self._has(path) and entries.is_group(self._group["/".join(path)]):
                rest = {} if below is None or () in below else {"keys_to_update": below}
                self._get_path(path)._write_entries(value, rest, inplace, only)
            elif only or (inplace and self._has(path)):
                self.set_(path, value)
            else:
                self.set(path, value)
        return self

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        self._require_unlocked()
        old, new = require_path(old_key), require_path(new_key)
        if not self._has(old):
            self._raise_missing(old)
        if old == new:
            return self
        if safe and self._has(new):
            raise KeyError(f"key {new_key!r} already present in {type(self).__name__}.")
        for depth in range(1, len(new)):
            level, leaves = new[:depth], new[: len(old)] == old and depth >= len(old)
            if not leaves and self._has(level) and not entries.is_group(self._group["/".join(level)]):
                raise KeyError(f"{level} is an entry, so {new} cannot be written below it")
        if old[: len(new)] == new or new[: len(old)] == old:  # from within the entry that it replaces, or onto itself
            aside = next(name for name in map("_{}".format, itertools.count()) if name not in self._group)
            self._group.move("/".join(old), aside)
            old = (aside,)
        if self._has(new):
            del self._group["/".join(new)]
        self._group.move("/".join(old), "/".join(new))
        return self

    # -- the rest ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if not self._group:
            return f"{type(self).__name__}(closed)"
        fields = []
        for key, entry in self._group.items():
            if entries.is_group(entry):
                text = repr(self._child(entry)).replace("\n", "\n    ")
            else:
                text = "text" if entries.is_text(entry) else f"{entry.dtype}{list(entry.shape)}"
            fields.append(f"\n    {key}: {text}")
        head = f"{type(self).__name__}(batch_size={list(self._batch_size)}, fields={{"
        return head + ",".join(fields) + "})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        file = self._group.file
        root: tuple[Any, ...] = (file.filename, self.mode, "h5")
        if isinstance(self._group, zarrstore.Group):
            root = (file.place, self.mode, "zarr", file.allow_pickle)
        how = {"batch_size": tuple(self._batch_size), "device": self._device, "names": self._names}
        return _reopen, (root, self._group.name, {**how, "non_tensor_as_stack": self._as_stack, **self._options})


def _reopen(root: tuple[Any, ...], group: str, how: dict[str, Any]) -> PersistentTensorDict:
    return PersistentTensorDict(group=entries.open_root(*root)[group], **how)


def _require_one_size(name: str, auto_batch_size: bool, batch_size: Any) -> None:
    if auto_batch_size and batch_size is not None:
        raise TypeError(f"Conflicting batch sizes in {name}: batch_size and auto_batch_size cannot be both specified.")
