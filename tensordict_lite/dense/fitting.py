"""Values as entries: converted, moved to the device, checked against the batch size."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.arrays import tensor_of, times_of
from tensordict_lite.base import TensorCollection
from tensordict_lite.building.arrays import column_of, require_unmasked
from tensordict_lite.strided import with_shape


class Fitting(TensorCollection):
    """Conversion of values to entries; a mixin of the storage classes."""

    __slots__ = ()

    def _misfit(self, value: Any, key: str) -> RuntimeError:
        return RuntimeError(
            f"batch dimension mismatch, got self.batch_size={self._batch_size} and value.shape={value.shape} for key "
            f"{key!r}. The leading dimensions of a value must match the batch size."
        )

    def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any:
        """``item`` as an entry: converted, on this device, starting with the batch size."""
        if not isinstance(item, (Tensor, TensorCollection)):
            require_unmasked(item, f"the entry {key!r}")
            item = self._from_array(item, key) if isinstance(item, np.ndarray) else self._convert(item)
        dims = len(self._batch_size)
        if isinstance(item, Tensor):
            if hasattr(item, "_as_entry"):  # an UnbatchedTensor
                return item._as_entry(self._batch_size, self._device, non_blocking)
            if item.is_nested:
                item = with_shape(item)
            if dims and item.shape[:dims] != self._batch_size:
                raise self._misfit(item, key)
            if self._device is not None and item.device != self._device:
                item = item.to(self._device, non_blocking=non_blocking)
            return item
        return item._fit_into(self, key, non_blocking)

    def _fit_into(self, parent: TensorCollection, key: str, non_blocking: bool) -> TensorCollection:
        """This collection as an entry of ``parent``: matching batch size, device and names."""
        item: Any = self
        dims = parent.batch_dims
        if item._batch_size[:dims] != parent._batch_size:
            if item.batch_dims >= dims and item._source:
                raise parent._misfit(item, key)
            try:
                item._change_batch_size(parent._batch_size)
            except RuntimeError as err:
                raise RuntimeError(f"{parent._misfit(item, key)} {err}") from None
        if parent._device is not None and item._device != parent._device:
            item = item.to(parent._device, non_blocking=non_blocking)
        if parent._names is None:
            if item._names is not None and not all(name is None for name in item._names[:dims]):
                parent._adopt_names(item._names[:dims], key)
        elif item.names[:dims] != parent._names:
            for own, wanted in zip(item.names, parent._names):
                if own is not None and own != wanted:
                    raise RuntimeError(
                        f"the dimension names of {key!r}, {item.names}, contradict those of its parent, {parent._names}"
                    )
            item = item.clone(recurse=False)
            item._set_names([*parent._names, *item.names[dims:]])
        return item

    def _adopt_names(self, names: list[str | None], key: str) -> None:
        """Take over the names that an entry has for the dimensions of this collection; other entries follow."""
        names = list(names)
        for other, sub in self._entries():
            if other != key and not isinstance(sub, Tensor):
                for own, wanted in zip(sub.names, names):
                    if own is not None and own != wanted:
                        raise RuntimeError(
                            f"the dimension names of {key!r}, {names}, contradict those of {other!r}, {sub.names}"
                        )
        self._set_names(names)

    def _from_array(self, array: np.ndarray, key: str) -> Any:
        """An array as an entry: times, a value a row, are integers whose type is noted."""
        kind, size = array.dtype.kind, self._batch_size
        try:
            if kind not in "mM" or not size or array.shape[: len(size)] != size:
                return self._convert(array)
            tensor, name = times_of(array, self._device)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the entry {key!r} cannot be a tensor: {error}") from error
        self._types = {**(self._types or {}), key: name}
        return tensor

    def _convert(self, item: Any) -> Any:
        """A tensor, a nested collection or a non-tensor wrapper for a plain Python value."""
        if isinstance(item, (dict, Mapping)):
            return self._plain_class()(item, batch_size=self._batch_size, device=self._device, names=self._names)
        if isinstance(item, (numbers.Real, bool, np.generic)) and not isinstance(item, (np.str_, np.bytes_)):
            if isinstance(item, np.generic) and item.dtype.kind not in "biufc":
                return self._wrap(item)
            try:
                return torch.as_tensor(item, device=self._device)
            except RuntimeError:  # another numeric type, such as a fraction
                return self._wrap(item)
        if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
            return tensor_of(item, self._device)
        if isinstance(item, (list, tuple)):
            return self._convert_sequence(item)
        column = column_of(item, self._batch_size, self._device)
        return self._wrap(item) if column is None else column

    def _convert_sequence(self, item: Any) -> Any:
        """A tensor for regular nested numbers, a stack for rows of tensors, else the object."""
        return registry.from_sequence(item, self._batch_size, self._device)

    def _wrap(self, item: Any) -> Any:
        return registry.NonTensorData(item, batch_size=self._batch_size, device=self._device)

    def _new_child(self) -> TensorCollection:
        return self._plain_class()._trusted({}, self._batch_size, self._device, self._names)


def build_source(new: TensorCollection, source: Mapping[Any, Any], non_blocking: bool) -> None:
    """Fill a new collection from a mapping, validating each entry once."""
    size = new._batch_size
    dims = len(size)
    entries = new._source
    rows = size[0] if dims == 1 else None  # with one batch dimension, the usual case, compare two ints
    fitting: Any = None  # the last shape that fitted: with several dimensions slicing costs more than comparing
    nested = []
    for key, item in source.items():
        if type(key) is not str:
            nested.append((key, item))
            continue
        try:
            if type(item) is Tensor:  # only its shape needs a check; other values go through _fit
                if not dims:
                    entries[key] = item
                    continue
                shape = item.shape
                if shape == fitting or (shape and shape[0] == rows):
                    entries[key] = item
                    continue
                if rows is None and shape[:dims] == size:
                    fitting = shape
                    entries[key] = item
                    continue
        except RuntimeError:  # a strided nested tensor has no shape
            pass
        entries[key] = new._fit(item, key, non_blocking)
    for key, item in nested:  # last, since other entries may create the levels on their path
        new.set(key, item, non_blocking=non_blocking)
    device = new._device
    if device is not None:
        for key, item in entries.items():
            if type(item) is Tensor and item.device != device:
                entries[key] = item.to(device, non_blocking=non_blocking)
