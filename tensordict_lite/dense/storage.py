"""Dense storage: entries in a dict, each starting with the batch size.

:class:`TensorDict` and tensorclasses share this storage, so operations cost the same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.combine import cat_entries, stack_entries
from tensordict_lite.dense.fitting import Fitting
from tensordict_lite.errors import EntryKindError, InplaceWriteError, KeyThroughLeafError
from tensordict_lite.indexing import (
    assigned_rows,
    index_batch_size,
    is_whole,
    normalise_index,
    rows_mismatch,
    rows_of_mask,
)
from tensordict_lite.kernel import Flat
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path
from tensordict_lite.ops.arrow_types import pruned
from tensordict_lite.ops.cast import SharedLock, mark_shared
from tensordict_lite.ops.put import NUMBERS, as_rows, put_alike, put_rows, write_rows
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.strided import indexed
from tensordict_lite.views import has_entry, public


class DenseCollection(Fitting):
    """Entries in ``_source: dict[str, Tensor | TensorCollection]``, each of shape ``[*batch_size, ...]``."""

    __slots__ = ()
    _source: dict[str, Any]

    _stack_priority: float = 0
    _stack_entries = classmethod(stack_entries)
    _cat_entries = classmethod(cat_entries)

    # -- primitives ------------------------------------------------------------------------------------

    def _leaves(self, ragged: Flat = False) -> list[Tensor]:
        out: list[Tensor] = []
        for value in self._source.values():
            if isinstance(value, Tensor):
                out.append(value)
            else:
                out.extend(value._leaves(ragged))
        return out

    def _with_leaves(self, leaves: Iterator[Tensor], ragged: Flat = False) -> Self:
        return self._rebuild(
            {
                key: next(leaves) if isinstance(value, Tensor) else value._with_leaves(leaves, ragged)
                for key, value in self._source.items()
            },
            self._batch_size,
            self._names,
        )

    def _map_leaves(self, fn: Callable[[Tensor], Tensor], ragged: Flat = False) -> Self:
        return self._rebuild(
            {
                key: fn(value) if isinstance(value, Tensor) else value._map_leaves(fn, ragged)
                for key, value in self._source.items()
            },
            self._batch_size,
            self._names,
        )

    def _get_str(self, key: str) -> Any:
        return self._source[key]

    def _set_str(self, key: str, value: object) -> None:
        self._source[key] = value

    def _del_str(self, key: str) -> None:
        del self._source[key]
        if self._types is not None:
            self._types = pruned(self._types, self._source)

    def _key_list(self) -> list[str]:
        return list(self._source)

    def _nested(self) -> Iterable[TensorCollection]:
        return [value for value in self._source.values() if not isinstance(value, Tensor)]

    def _change_batch_size(self, new: torch.Size) -> None:
        dims = len(new)
        for key, value in self._source.items():
            if (
                isinstance(value, Tensor) and value.is_nested and value.layout is torch.strided
            ):  # a strided nested tensor has no shape
                if dims and (dims > 1 or value.size(0) != new[0]):
                    raise RuntimeError(f"the nested tensor {key} is incompatible with the batch-size {new}.")
            elif value.shape[:dims] != new:
                if isinstance(value, Tensor) or (value.batch_dims >= dims and not value._follows_batch):
                    raise RuntimeError(
                        f"the {type(value).__name__} {key} has shape {value.shape} which is incompatible with the "
                        f"batch-size {new}."
                    )
                value._change_batch_size(new)  # a nested collection takes the size if its entries allow it
        if self._names is not None:
            self._names = [*self._names[:dims], *([None] * (dims - len(self._names)))]
        self._changed_under_lock()
        self._batch_size = new

    # -- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        cls = type(index)
        if cls is str:
            try:
                value = self._source[index]
            except KeyError:
                raise missing_key_error(index, list(self._source), type(self).__name__) from None
            if type(value) is Tensor:
                return value
            return value if isinstance(value, Tensor) else value._as_value()
        if cls is int:
            batch_size = self._batch_size
            if not batch_size:
                raise RuntimeError("indexing a tensordict with td.batch_dims==0 is not permitted: it has no rows")
            source = self._source
            return self._rebuild(
                {key: value[index] for key, value in source.items()},
                batch_size[1:] if source else index_batch_size(batch_size, index),
                None if self._names is None else self._names[1:],
            )
        if cls is slice and self._source and self._batch_size:
            whole = index.start is None and index.stop is None and index.step is None
            return self if whole else self._slice_rows(index)
        if cls is tuple:
            if index and type(index[0]) is int:
                return self._index(normalise_index(index, len(self._batch_size)))
            path = path_of(index)
            if path:
                value = self._get_path(path)
                return value if isinstance(value, Tensor) else value._as_value()
            if index and isinstance(index[0], str):
                raise TypeError(f"{index!r} mixes keys and indices: index the entry, td[{index[0]!r}][...]")
        elif isinstance(index, str):
            return self[str(index)]
        if is_whole(index, len(self._batch_size)):
            return self
        return self._index(normalise_index(index, len(self._batch_size)))

    def _get_path(self, path: tuple[str, ...]) -> Any:
        """The raw entry at a flat path; KeyError with suggestions when there is none."""
        node: Any = self
        try:
            for key in path:
                node = node._source[key]
        except (KeyError, TypeError, AttributeError):
            return self._get_path_slowly(path)
        return node

    def get(
        self,
        key: Any,
        default: Any = MISSING,
        *,
        as_list: bool = False,
        as_nested_tensor: bool = False,
        as_padded_tensor: bool = False,
        **stacked_as: Any,
    ) -> Any:
        """Entry at a nested key, raw: a non-tensor value as its :class:`NonTensorData`.

        Args:
            key: string or (nested) tuple of strings.
            default: returned if there is no such entry, also when the key continues below a tensor. Without it a
                missing key gives ``None``, or KeyError under ``set_get_defaults_to_none(False)``.
            as_list: with the other keywords, the form of an entry whose shape differs between the members of a lazy
                stack: see :meth:`LazyStackedTensorDict.get`.

        Raises:
            KeyThroughLeafError: (a ValueError) the key continues below a tensor, and there is no default.

        Example:
            >>> td = TensorDict({"a": {"b": torch.zeros(3)}}, [3])
            >>> td.get(("a", "b")).shape, td.get("missing", 0), td.get(("a", "b", "c"), 0)
            (torch.Size([3]), 0, 0)
        """
        if type(key) is str:
            value = self._source.get(key, MISSING)
            if value is not MISSING:
                return public(value) if settings.unbatched else value
            if default is not MISSING:  # the error would not be seen: do not build it
                return default
            if settings.get_defaults_to_none:
                return None
            path: tuple[str, ...] = (key,)
        else:
            path = require_path(key)
            node: Any = self
            try:
                for part in path:
                    node = node._source[part]
                return public(node) if settings.unbatched else node
            except KeyError:
                # every `_source` so far was a dict: the entry is missing, whatever its spelling
                if default is not MISSING:
                    return default
                if settings.get_defaults_to_none and not node._is_unbatched:
                    return None
            except (TypeError, AttributeError):
                pass
        try:
            if as_list or as_nested_tensor or as_padded_tensor:
                node = self
                for depth, part in enumerate(path[:-1]):
                    node = node._get_str(part)
                    if isinstance(node, Tensor):
                        break  # the walk below raises the usual error
                    if type(node._source) is list and not node._is_non_tensor:
                        stacked_as.update(
                            as_list=as_list, as_nested_tensor=as_nested_tensor, as_padded_tensor=as_padded_tensor
                        )
                        return node.get(path[depth + 1 :], default, **stacked_as)
            return public(self._get_path_slowly(path))
        except KeyThroughLeafError:
            if default is not MISSING:
                return default
            raise
        except KeyError:
            if default is not MISSING:
                return default
            if settings.get_defaults_to_none:
                return None
            raise

    # -- indexing ----------------------------------------------------------------------------------------

    def _index(self, index: Any) -> Self:
        """Entries under a normalised index (see ``indexing.normalise_index``)."""
        if isinstance(index, Tensor):
            return self._index_tensor(index)
        source = self._source
        try:
            out = {k: value[index] if isinstance(value, Tensor) else value._index(index) for k, value in source.items()}
        except RuntimeError:  # rows of a jagged tensor
            out = {
                k: indexed(value, index) if isinstance(value, Tensor) else value._index(index)
                for k, value in source.items()
            }
        dims = len(self._batch_size)
        for key, value in source.items():
            if isinstance(value, Tensor):  # the batch part of any leaf's shape is the result
                shape = out[key].shape
                size = shape[: len(shape) - (value.ndim - dims)]
                break
        else:
            size = index_batch_size(self._batch_size, index)
        return self._rebuild(out, size, self._index_names(index, len(size)))

    def _slice_rows(self, index: slice) -> Self:
        """Rows of a slice of the first batch dimension."""
        try:
            out = {key: value[index] for key, value in self._source.items()}
        except RuntimeError:  # rows of a jagged tensor
            return self._index((index,))
        first = next(iter(out.values()))
        if type(first) is Tensor and not first.is_nested:  # gives the size at less than half the cost
            return self._rebuild(out, first.shape[: len(self._batch_size)], self._names)
        return self._rebuild(out, index_batch_size(self._batch_size, index), self._names)

    def _index_tensor(self, index: Tensor) -> Self:
        """One long or bool tensor: the common way to sample data, so it has a fast path."""
        if index.dtype is torch.bool and index.ndim == 1:
            index = rows_of_mask(index, self._batch_size)  # once, instead of once per leaf
        elif index.dtype is not torch.int64 or index.ndim != 1:
            return self._index((index,))
        try:
            return self._select_rows(index)
        except (IndexError, RuntimeError):  # negative rows, another device, vmap: torch's general indexing
            return self._index((index,))

    def _select_rows(self, rows: Tensor) -> Self:
        out = {
            key: torch.index_select(value, 0, rows) if isinstance(value, Tensor) else value._select_rows(rows)
            for key, value in self._source.items()
        }
        size = torch.Size((rows.shape[0], *self._batch_size[1:]))
        if not out:
            index_batch_size(self._batch_size, rows)  # no entry has checked the range
        return self._rebuild(out, size, self._names)

    # -- writing -------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: object) -> None:
        cls = type(index)
        if cls is str:
            if self._lock is None and type(value) is Tensor and self._device is None:
                size = self._batch_size
                try:
                    if not size or value.shape[: len(size)] == size:
                        self._source[index] = value
                        return
                except RuntimeError:  # a strided nested tensor has no shape
                    pass
            self.set(index, value)
            return
        if cls is tuple:
            path = path_of(index)
            if path:
                self.set(path, value)
                return
        elif isinstance(index, str):
            self.set(str(index), value)
            return
        self._set_index(normalise_index(index, len(self._batch_size)), value)

    def set(self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False) -> Self:
        """Write an entry, replacing or (``inplace=True``) overwriting an existing one.

        Args:
            key: string or (nested) tuple; missing levels are created.
            item: tensor or collection whose leading shape is the batch size, or a value that converts to one.
            inplace: write into the existing tensor. A missing key is added.
            non_blocking: for the copy to :attr:`device`.

        Raises:
            RuntimeError: the shape does not fit, or the collection is locked and ``inplace`` is false.
            KeyError: ``key`` is neither a string nor a tuple of strings.

        Returns:
            self
        """
        if type(key) is not str:
            path = require_path(key)
            if len(path) > 1:
                made: list[tuple[Any, str]] = []
                parent = self._parent_for(path, made)
                try:
                    parent.set(path[-1], item, inplace, non_blocking=non_blocking)
                except BaseException:  # it does not fit: no empty level is left behind
                    for node, name in reversed(made):
                        node._del_str(name)
                    raise
                return self
            key = path[0]
        if inplace and key in self._source:
            return self._set_inplace(key, item, non_blocking)
        if self._lock is not None:
            raise self._locked_error()
        size = self._batch_size
        try:
            fits = type(item) is Tensor and self._device is None and (len(size) == 0 or item.shape[: len(size)] == size)
        except RuntimeError:  # a strided nested tensor has no shape
            fits = False
        if not fits:
            item = self._fit(item, key, non_blocking)
        self._source[key] = item
        return self

    def _set_inplace(self, key: str, item: Any, non_blocking: bool) -> Self:
        """``set(inplace=True)`` of an existing entry; a nested collection also takes new keys."""
        entry = self._source[key]
        if isinstance(item, (TensorCollection, Mapping)) and not getattr(item, "_is_non_tensor", False):
            if isinstance(entry, TensorCollection) and not entry._is_non_tensor:
                entry.update(item, inplace=True, non_blocking=non_blocking)
                return self
        return self.set_(key, item, non_blocking=non_blocking)

    def _parent_for(self, path: tuple[str, ...], made: list[tuple[Any, str]] | None = None) -> TensorCollection:
        """The collection that holds the last step of ``path``; missing levels are created, and added to ``made``."""
        node: Any = self
        for key in path[:-1]:
            try:
                child = node._get_str(key)
            except KeyError:
                node.set(key, node._new_child())  # which raises for a lock, and for a key that is not a field
                if made is not None:
                    made.append((node, key))
                child = node._get_str(key)  # a lazy stack has split it
            if not isinstance(child, TensorCollection):
                raise KeyError(
                    f"the entry {key!r} is already present in {type(node).__name__} and is a {type(child).__name__}, "
                    f"so {path} cannot be written below it"
                )
            node = child
        return node

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Copy a value into an existing entry, locked or not.

        Raises:
            KeyError: there is no such entry.
            RuntimeError: the shape does not fit.
        """
        if type(key) is str:
            self._write_in_place(key, item, non_blocking)
            return self
        path = require_path(key)
        self._parent_of(path)._write_in_place(path[-1], item, non_blocking)
        return self

    def _parent_of(self, path: tuple[str, ...]) -> Any:
        """The level of the entry at a path, existing or not; KeyThroughLeafError if it is not a collection."""
        if len(path) == 1:
            return self
        parent = self._get_path(path[:-1])
        if isinstance(parent, Tensor) or parent._is_unbatched:
            self._raise_missing(path)
        return parent

    def _write_in_place(self, key: str, item: Any, non_blocking: bool = False) -> None:
        try:
            entry = self._source[key]
        except KeyError:
            raise missing_key_error(key, list(self._source), type(self).__name__) from None
        if not isinstance(entry, Tensor):
            if entry._is_non_tensor:
                self._check_object(key, entry, item)
            elif not isinstance(item, (TensorCollection, Mapping)) or getattr(item, "_is_non_tensor", False):
                raise EntryKindError(key, entry, item)
            replaced = entry._overwrite(item, self)
            if replaced is not entry:
                self._source[key] = replaced
            return
        if type(item) is not Tensor:
            item = self._fit(item, key, False)
        if not isinstance(item, Tensor):
            raise EntryKindError(key, entry, item)
        if item is entry:
            return
        if item.is_nested or item.shape != entry.shape:
            dims = len(self._batch_size)
            if dims and item.shape[:dims] != self._batch_size:
                raise self._misfit(item, key)
        try:
            entry.copy_(item, non_blocking)
        except RuntimeError as err:
            if entry.shape == item.shape:
                raise
            raise InplaceWriteError(
                f"failed to update {key!r} in {type(self).__name__} of batch size {list(self._batch_size)}: the value "
                f"of shape {list(item.shape)} does not fit the entry of shape {list(entry.shape)}"
            ) from err

    def _check_object(self, key: str, entry: Any, item: Any) -> None:
        """Reject a value for a non-tensor entry that ``set`` would convert to a tensor or collection.

        A value of the stored type is accepted (for example a number stored by ``set_non_tensor``).
        """
        if isinstance(item, TensorCollection):
            if not item._is_non_tensor or item._is_unbatched is not entry._is_unbatched:
                raise EntryKindError(key, entry, item)
        elif not entry._holds_type_of(item):
            try:
                is_object = not isinstance(item, Tensor) and getattr(self._fit(item, key), "_is_non_tensor", False)
            except RuntimeError:  # a tensor that does not fit either
                is_object = False
            if not is_object:
                raise EntryKindError(key, entry, item)

    def set_at_(self, key: NestedKey, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """``td.get(key)[index] = value`` in place; arrays and lists of numbers are cast to the dtype of the entry.

        Raises:
            KeyError: there is no such entry.
            EntryKindError: the entry is a tensor and the value not numeric, or vice versa.
        """
        path = (key,) if type(key) is str else require_path(key)
        entry: Any = self
        try:
            for part in path:
                entry = entry._source[part]
        except (KeyError, TypeError, AttributeError):
            node: Any = self
            for depth in range(1, len(path)):
                node = node._get_path(path[depth - 1 : depth])
                if not isinstance(node, TensorCollection):
                    break  # reported below
                if not isinstance(node, DenseCollection):  # a lazy stack returns copies of its tensors
                    node.set_at_(path[depth:], value, index, non_blocking=non_blocking)
                    return self
            entry = self._get_path(path)
        if not isinstance(entry, Tensor):
            if not entry._is_unbatched:
                self._parent_of(path)._assign_entry(normalise_index(index, entry.batch_dims), path[-1], entry, value)
                return self
            entry = entry._plain()  # indexes the tensor itself, like `get(key)[index]`
        if type(index) is list:  # torch takes some for tuples
            index = normalise_index(index, entry.ndim)
        put_rows(entry, index, value, ".".join(path))
        return self

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry.

        Raises:
            KeyError: there is no such entry.
            ValueError: the path runs through a tensor.
            RuntimeError: the collection is locked.
        """
        path = (key,) if type(key) is str else require_path(key)
        if len(path) > 1 and self._lock is None and not has_entry(self, path):
            self._raise_missing(path)
        parent = self._parent_of(path)
        parent._require_unlocked()
        try:
            parent._del_str(path[-1])
        except KeyError:
            raise missing_key_error(path[-1], parent._key_list(), type(self).__name__) from None
        return self

    # -- writing rows ------------------------------------------------------------------------------------------

    def _set_index(self, index: Any, value: Any) -> None:
        """Write rows. Missing keys are allocated, zero-filled."""
        if not isinstance(value, TensorCollection):
            if not isinstance(value, Mapping):
                plain = isinstance(value, NUMBERS)
                for key, entry in self._source.items():
                    if isinstance(entry, Tensor):
                        write_rows(entry, index, value if plain else as_rows(value, entry, key))
                    elif not entry._is_unbatched:  # no rows
                        self._assign_entry(index, key, entry, value)
                return
            size = index_batch_size(self._batch_size, index)
            value = self._plain_class()(self._assign_mappings(index, value), batch_size=size, device=self._device)
        index, size = assigned_rows(self._batch_size, index)
        if value._batch_size[: len(size)] != size:
            value = self._spread_rows(value, size, index)
        if put_alike(self, index, value):
            return
        source = self._source
        for key in value._key_list():
            item = value._get_str(key)
            entry = source.get(key, MISSING)
            if entry is MISSING:
                self._require_unlocked()
                entry = source[key] = self._allocate_like(item, len(size))
            if isinstance(entry, Tensor):
                if not isinstance(item, Tensor):
                    raise EntryKindError(key, entry, item)
                write_rows(entry, index, item)
            else:
                self._assign_entry(index, key, entry, item)

    def _spread_rows(self, value: TensorCollection, size: torch.Size, index: Any) -> TensorCollection:
        """Broadcast a source with fewer batch dimensions to the rows, or use its entries where they fit."""
        theirs = value._batch_size
        dims = len(theirs)
        if 0 < dims < len(size):
            if theirs == size[len(size) - dims :]:
                return value.expand(*size)
            try:
                value = value.copy()
                value._change_batch_size(size)
                return value
            except RuntimeError:
                pass
        raise rows_mismatch(size, theirs, self._batch_size, index)

    def _assign_entry(self, index: Any, key: str, entry: TensorCollection, item: Any) -> None:
        replaced = entry._assign_rows(index, item)
        if replaced is not entry:  # non-tensor data that became a stack
            self._source[key] = replaced

    def _assign_mappings(self, index: Any, value: Mapping[Any, Any]) -> dict[Any, Any]:
        """Write nested mappings into existing collections; return the remaining items."""
        rest = {}
        for key, item in value.items():
            entry = self._source.get(key) if type(key) is str else None
            nested = isinstance(item, Mapping) and not isinstance(item, TensorCollection)
            if nested and isinstance(entry, TensorCollection) and not entry._is_non_tensor:
                entry._set_index(index, item)
            else:
                rest[key] = item
        return rest

    def _assign_rows(self, index: Any, item: Any) -> TensorCollection:
        """``self[index] = item``; return the collection to keep, since non-tensor values may change class."""
        if isinstance(item, TensorCollection) and item._is_non_tensor:
            raise EntryKindError("", self, item)
        self._set_index(index, item)
        return self

    def _allocate_like(self, item: Any, index_dims: int) -> Any:
        """A zero entry of the full batch size for an item without the first ``index_dims`` dimensions."""
        if isinstance(item, Tensor):
            shape = (*self._batch_size, *item.shape[index_dims:])
            device = self._device or item.device
            return torch.zeros(shape, dtype=item.dtype, device=device)
        return item._empty_rows(self._batch_size, index_dims, self._device)

    def _empty_rows(self, lead: torch.Size, index_dims: int, device: torch.device | None) -> TensorCollection:
        size = torch.Size((*lead, *self._batch_size[index_dims:]))
        new = self._rebuild({}, size)
        new._device = device
        return new

    # -- pickling -------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = {
            "device": self._device,
            "names": self._names,
            "types": self._types,
            "locked": self._lock is not None,
            "shared": type(self._lock) is SharedLock,
            "memmap": getattr(self, "_memmap_path", None),
            "extra": getattr(self, "__dict__", None),
        }
        # torch.save inspects each object: leave out unset slots
        state = {key: value for key, value in state.items() if value}
        return {"source": self._source, "batch_size": tuple(self._batch_size), **state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source = state["source"]
        self._batch_size = torch.Size(state["batch_size"])
        self._device = state.get("device")
        self._names = state.get("names")
        self._types = state.get("types")
        self._lock = None
        if "extra" in state:
            self.__dict__.update(state["extra"])
        if "locked" in state:
            self._propagate_lock(None)
            if state.get("shared") and all(leaf.device.type != "cpu" or leaf.is_shared() for leaf in self._leaves()):
                mark_shared(self)  # sent to another process, which shares the memory; a plain pickle is a copy
        path = state.get("memmap")
        if path is not None and not any(type(value) is Tensor for value in self._source.values()):
            self._memmap_path = path  # a deep copy has ordinary tensors and is not mapped
