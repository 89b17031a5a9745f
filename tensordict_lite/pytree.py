"""Pytrees: collections as nodes of ``torch.utils._pytree``, and the way from nested containers and back.

A node remembers its batch size and how many dimensions each entry had. When the entries that come back have
more or fewer (``torch.vmap`` takes a dimension away and puts one back, a mapped function reduces), the batch
size follows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from tensordict_lite.views import entry_of

__all__ = ["from_pytree", "register", "to_pytree"]

_TYPE_KEY = "_pytree_type"
_ODD_KEY = "<NON_NESTED>"


class NodeSpec:
    """What a node of a pytree keeps apart from its children."""

    __slots__ = ("batch_size", "device", "keys", "names", "ndims", "template")

    def __init__(self, td: Any, keys: tuple[str, ...], ndims: tuple[int, ...]) -> None:
        self.keys = keys
        self.ndims = ndims
        self.batch_size = td._batch_size
        self.device = td._device
        self.names = None if td._names is None else tuple(td._names)
        self.template = td._non_tensor_part()
        """A collection of the same type with the non-tensor entries only."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NodeSpec)
            and self.keys == other.keys
            and type(self.template) is type(other.template)
            and self.device == other.device
        )

    def __hash__(self) -> int:
        return hash((self.keys, type(self.template)))

    def __repr__(self) -> str:
        return f"NodeSpec({type(self.template).__name__}, keys={list(self.keys)}, batch_size={list(self.batch_size)})"


def _flatten(td: Any) -> tuple[list[Any], NodeSpec]:
    keys, values = [], []
    for key, value in td._entries():
        if isinstance(value, Tensor) or not value._is_non_tensor:
            keys.append(key)
            values.append(value)
    return values, NodeSpec(td, tuple(keys), tuple(value.ndim for value in values))


def _flatten_with_keys(td: Any) -> tuple[list[tuple[Any, Any]], NodeSpec]:
    values, spec = _flatten(td)
    return [(_pytree.MappingKey(key), value) for key, value in zip(spec.keys, values)], spec


def _unflatten(values: Any, spec: NodeSpec) -> Any:
    values = list(values)
    size = spec.batch_size
    names = spec.names
    shapes = [getattr(value, "shape", None) for value in values]
    if shapes and all(isinstance(shape, torch.Size) for shape in shapes):
        size = _batch_size_of(shapes, spec)
        if names is not None and len(size) != len(names):
            # A dimension went (its name with it) or came in front, as vmap does by default.
            gone = len(names) - len(size)
            names = names[gone:] if gone > 0 else (*[None] * -gone, *names)
    entries = dict(zip(spec.keys, values))
    template = spec.template
    if not template._source:
        return template._rebuild(entries, size, None if names is None else list(names))
    out = {}
    for key, value in template._source.items():
        new = value.copy()
        if new._batch_size != size:
            new._change_batch_size(size)
        out[key] = new
    return template._rebuild({**entries, **out}, size, None if names is None else list(names))


def _batch_size_of(shapes: list[torch.Size], spec: NodeSpec) -> torch.Size:
    """The batch size of new entries: as many dimensions more or less as the entries have."""
    dims = len(spec.batch_size)
    delta = min(len(shape) - ndim for shape, ndim in zip(shapes, spec.ndims))
    size = shapes[0][: max(0, dims + delta)]
    for shape in shapes[1:]:
        n = 0
        for a, b in zip(size, shape):
            if a != b:
                break
            n += 1
        size = size[:n]
    return torch.Size(size)


def register(cls: type) -> None:
    """Makes instances of ``cls`` nodes of pytrees."""
    _pytree.register_pytree_node(
        cls,
        _flatten,
        _unflatten,
        flatten_with_keys_fn=_flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )


# -- nested containers --------------------------------------------------------------------------------------


def from_pytree(
    pytree: Any,
    *,
    batch_size: Sequence[int] | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
) -> Any:
    """A TensorDict from nested lists, tuples, named tuples and dicts of tensors.

    Each level records its type, so that :meth:`TensorDict.to_pytree` rebuilds it. A leaf alone is returned as a
    tensor, a collection as it is.

    Args:
        pytree: the containers.
        batch_size: batch size of the result and its levels.
        auto_batch_size: infer the batch size.
        batch_dims: longest batch size to infer.

    Example:
        >>> import torch
        >>> td = from_pytree({"a": torch.zeros(3), "b": (torch.ones(3), torch.ones(3, 2))}, auto_batch_size=True)
        >>> td.batch_size, type(td.to_pytree()["b"])
        (torch.Size([3]), <class 'tuple'>)
    """
    if hasattr(pytree, "_entries"):
        return pytree
    if not isinstance(pytree, (list, tuple, Mapping)):
        return pytree if isinstance(pytree, Tensor) else torch.as_tensor(pytree)
    td = _level(pytree, torch.Size(batch_size if batch_size is not None else ()))
    return td.auto_batch_size_(batch_dims) if auto_batch_size else td


def _level(node: Any, size: torch.Size) -> Any:
    from tensordict_lite.tensordict import TensorDict

    td = TensorDict({}, batch_size=size)
    if isinstance(node, Mapping):
        items = list(node.items())
    elif hasattr(node, "_fields"):
        items = list(zip(node._fields, node))
    else:
        items = [(str(i), value) for i, value in enumerate(node)]
    for i, (key, value) in enumerate(items):
        entry = _entry(value, size)
        if isinstance(key, str):
            td.set(key, entry)
        else:
            td.set(f"{_ODD_KEY}{i}", TensorDict({"value": entry}, batch_size=size).set_non_tensor("key", key))
    return td.set_non_tensor(_TYPE_KEY, type(node))


def _entry(value: Any, size: torch.Size) -> Any:
    if isinstance(value, (list, tuple, Mapping)) and not hasattr(value, "_entries"):
        return _level(value, size)
    if isinstance(value, Tensor) or hasattr(value, "_entries"):
        return value
    if isinstance(value, (int, float, bool, complex, np.ndarray)) and not size:
        return torch.as_tensor(value)
    from tensordict_lite.nontensor import NonTensorData

    return NonTensorData(value, batch_size=size)


def to_pytree(td: Any) -> Any:
    """The containers that :func:`from_pytree` made a TensorDict from; the collection itself if it did not."""
    kind = entry_of(td, (_TYPE_KEY,))
    if kind is None:
        return td
    cls = kind._as_value()
    items = []
    for key, value in td._entries():
        if key == _TYPE_KEY:
            continue
        if key.startswith(_ODD_KEY):
            key, value = value.get_non_tensor("key"), value.get("value")
        if not isinstance(value, Tensor):
            value = value._as_value() if value._is_non_tensor else to_pytree(value)
        items.append((key, value))
    if issubclass(cls, Mapping):
        return cls(items) if cls is not dict else dict(items)
    if hasattr(cls, "_fields"):
        return cls(**dict(items))
    return cls(value for _, value in sorted(items, key=lambda item: int(item[0])))
