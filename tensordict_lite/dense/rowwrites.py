"""``td[index] = value``: write rows into entries, which are allocated if missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import EntryKindError
from tensordict_lite.indexing import assigned_rows, index_batch_size, rows_mismatch
from tensordict_lite.ops.put import NUMBERS, as_rows, put_alike, write_rows
from tensordict_lite.settings import MISSING


class RowWrites(TensorCollection):
    """Writes at an index; a mixin of the storage classes."""

    __slots__ = ()

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
                if self._lock is not None:
                    raise self._locked_error()
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
