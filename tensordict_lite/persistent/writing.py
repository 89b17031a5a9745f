"""Writing entries and rows of a collection in an HDF5 file, without reading others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.indexing import index_batch_size, normalise_index
from tensordict_lite.keys import NestedKey, path_of, require_path
from tensordict_lite.persistent import entries


class FileWrites(DenseCollection):
    """Methods that write single entries or rows; a mixin of the collection in a file."""

    __slots__ = ()

    if TYPE_CHECKING:
        _group: Any
        _options: dict[str, Any]
        _child: Any
        _has: Any
        _loaded: Any
        _store: Any

    def set(self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Self:
        """Write an entry to the file; see :meth:`TensorDict.set`."""
        path = require_path(key)
        if inplace and self._has(path):
            return self.set_(key, item)
        if self._lock is not None:
            raise self._locked_error()
        node = self
        for part in path[:-1]:
            if not node._has((part,)):
                node._group.create_group(part)
            node = node._get_str(part)
            if not isinstance(node, FileWrites):
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
                if self._lock is not None:
                    raise self._locked_error()
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
        """Overwrite an existing entry, also in a locked collection."""
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
        """Overwrite rows of an existing entry."""
        path = require_path(key)
        if not self._has(path):
            self._raise_missing(path)
        entry = self._group["/".join(path)]
        if entries.is_group(entry) or entries.is_text(entry):
            memory = self._loaded()
            memory.set_at_(key, value, index)
            self.set_(key, memory.get(key))
        else:
            value = torch.as_tensor(value)
            entries.write_rows(entry, normalise_index(index, len(entry.shape)), value)
        return self

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        """Write the entries of a mapping or another collection; nested collections are merged."""
        return self._write_entries(input_dict_or_td, kwargs, inplace, self._lock is not None)

    def update_(self, input_dict_or_td: Any = None, clone: bool = False, **kwargs: Any) -> Self:
        """Overwrite existing entries."""
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
        """Move an entry to another key."""
        if self._lock is not None:
            raise self._locked_error()
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
