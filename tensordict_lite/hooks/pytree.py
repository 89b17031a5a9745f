"""Pytrees: collections as nodes of ``torch.utils._pytree``, and conversion from and to nested containers.

A node remembers its batch size and the number of dimensions of each entry. New entries that start with the batch size
keep it, whatever follows (a Jacobian has the dimensions of both sides). If they do not, because a mapped function
removed or added a dimension, the batch size follows them. ``torch.vmap`` takes collections whole, see ``vmapping.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from tensordict_lite import registry
from tensordict_lite.arrays import tensor_of
from tensordict_lite.kernel import Kernel
from tensordict_lite.views import entry_of

_TYPE_KEY = "_pytree_type"
_ODD_KEY = "<NON_NESTED>"


class NodeSpec:
    """The context of a node: everything but its children."""

    __slots__ = ("batch_size", "device", "keys", "names", "ndims", "shapes", "template")

    def __init__(
        self, td: Any, keys: tuple[str, ...], ndims: tuple[int, ...], shapes: Sequence[torch.Size] = ()
    ) -> None:
        self.keys = keys
        self.ndims = ndims
        self.shapes = shapes
        """Where all children are tensors."""
        self.batch_size = td._batch_size
        self.device = td._device
        self.names = None if td._names is None else tuple(td._names)
        self.template = td._rebuild({}, td._batch_size, td._names) if shapes else td._non_tensor_part()
        """A collection of the same type with the non-tensor entries only."""
        for key in [key for key, value in self.template._source.items() if _is_tuple(value)]:
            del self.template._source[key]  # its elements are children

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


def _is_tuple(value: Any) -> bool:
    return getattr(value, "_is_tuple", False)


def _flatten(td: Any) -> tuple[list[Any], NodeSpec]:
    source = td._source
    if type(source) is dict and _ONLY_TENSORS.issuperset(map(type, source.values())):
        tensors = list(source.values())
        try:
            shapes = [tensor.shape for tensor in tensors]
            return tensors, NodeSpec(td, tuple(source), tuple(map(len, shapes)), shapes)
        except RuntimeError:  # a strided nested tensor has no shape
            pass
    keys, values = [], []
    for key, value in td._entries():
        # In a tree of other values (dimensions for vmap), children are not tensors.
        if isinstance(value, Tensor) or not getattr(value, "_is_non_tensor", False) or value._is_unbatched:
            keys.append(key)
            values.append(value)
        elif _is_tuple(value):
            keys.append(key)
            values.append(value._payload)
    return values, NodeSpec(td, tuple(keys), tuple(getattr(value, "ndim", 0) for value in values))


_ONLY_TENSORS = frozenset((Tensor,))


def _flatten_with_keys(td: Any) -> tuple[list[tuple[Any, Any]], NodeSpec]:
    values, spec = _flatten(td)
    return [(_pytree.MappingKey(key), value) for key, value in zip(spec.keys, values)], spec


def _unflatten(values: Any, spec: NodeSpec) -> Any:
    values = list(values)
    size = spec.batch_size
    names = spec.names
    kept = _keep_shape(values, spec)
    sized, complete = ([], False) if kept else _sized(values, spec.ndims)
    if sized and complete:
        size = _batch_size_of(sized, spec)
        if names is not None and len(size) != len(names):
            names = _names_of(size, spec.batch_size, names)
    if not kept and any(type(value) is tuple for value in values):
        values = [registry.TupleEntry(value, batch_size=size) if type(value) is tuple else value for value in values]
    if size != spec.batch_size:
        for value in values:
            if _says_nothing(value):  # it follows its parent
                value._change_batch_size(torch.Size((*size, *value._batch_size[len(spec.batch_size) :])))
    entries = dict(zip(spec.keys, values))
    template = spec.template
    if not template._source:
        return template._rebuild(entries, size, None if names is None else list(names))
    out = {}
    for key, value in template._source.items():
        out[key] = resized(value, size)
    return template._rebuild({**entries, **out}, size, None if names is None else list(names))


def _keep_shape(values: list[Any], spec: NodeSpec) -> bool:
    """Whether all entries kept their number of dimensions and the batch size: the common case, checked quickly."""
    size, dims = spec.batch_size, len(spec.batch_size)
    if torch.compiler.is_compiling():
        return False
    if spec.shapes and _ONLY_TENSORS.issuperset(map(type, values)):
        try:
            if [value.shape for value in values] == spec.shapes:
                return True
        except RuntimeError:  # a strided nested tensor has no shape
            pass
    for value, ndim in zip(values, spec.ndims):
        if not isinstance(value, Tensor) and not hasattr(value, "_batch_size"):
            return False
        if value.ndim != ndim or (dims and value.shape[:dims] != size):
            return False
    return True


def _says_nothing(value: Any) -> bool:
    """Whether it is a collection without entries at any depth, so that it has no shape."""
    if not isinstance(value, Kernel) or _is_tuple(value):
        return False
    return all(
        _says_nothing(entry) or (getattr(entry, "_is_non_tensor", False) and not _is_tuple(entry))
        for _, entry in value._entries()
    )


def _sized(values: list[Any], ndims: tuple[int, ...]) -> tuple[list[tuple[torch.Size, int]], bool]:
    """Shapes of new entries with their former number of dimensions, and whether each entry has a shape.

    A tuple (Jacobians by several arguments) has the shapes of its elements; objects have none.
    """
    out, complete = [], True
    for value, ndim in zip(values, ndims):
        parts = value if type(value) is tuple else (value,)
        for part in parts:
            if _says_nothing(part):
                continue
            shape = getattr(part, "shape", None)
            if isinstance(shape, torch.Size):
                out.append((shape, ndim))
            else:
                complete = False
    return out, complete


def _names_of(size: torch.Size, old: torch.Size, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Names after a dimension was removed (with its name) or added (unnamed), inferred from the sizes.

    For repeated sizes the first matching place counts: vmap maps dimension 0 by default.
    """
    if len(size) == len(old) - 1:
        for at in range(len(old)):
            if (*old[:at], *old[at + 1 :]) == tuple(size):
                return (*names[:at], *names[at + 1 :])
    elif len(size) == len(old) + 1:
        for at in range(len(size)):
            if (*size[:at], *size[at + 1 :]) == tuple(old):
                return (*names[:at], None, *names[at:])
    gone = len(old) - len(size)
    return names[gone:] if gone > 0 else (*[None] * -gone, *names)


def resized(value: Any, size: torch.Size) -> Any:
    """Non-tensor data under another batch size; rows that lost their dimension become a list."""
    if value._batch_size == size:
        return value._with_leaves(iter(()))
    if type(value._source) is dict:
        new = value.copy()
        new._change_batch_size(size)
        return new
    return registry.NonTensorData(value.tolist(), batch_size=size, device=value._device)


def _batch_size_of(sized: list[tuple[torch.Size, int]], spec: NodeSpec) -> torch.Size:
    """The batch size of new entries with known shapes and former numbers of dimensions."""
    size = spec.batch_size
    dims = len(size)
    shapes = [shape for shape, _ in sized]
    # Under torch.compile torch.vmap uses this: an added dimension is a batch dimension, even for
    # equal sizes.
    exact = not torch.compiler.is_compiling() or all(len(shape) == ndim for shape, ndim in sized)
    for start in range(dims if exact else 0):  # all of it, or the rest after mapped dimensions
        rest = size[start:]
        if all(shape[: len(rest)] == rest for shape in shapes):
            return rest
    delta = min(len(shape) - ndim for shape, ndim in sized)
    size = shapes[0][: max(0, dims + delta)]
    for shape in shapes[1:]:
        n = 0
        for a, b in zip(size, shape):
            if a != b:
                break
            n += 1
        size = size[:n]
    return torch.Size(size)


def _flatten_unbatched(td: Any) -> tuple[list[Any], Any]:
    """The tensor is an ordinary child; the batch size does not depend on it."""
    payload = td._payload  # in a tree of other values, not a tensor
    return [td._leaves()[0] if isinstance(payload, Tensor) else payload], _Opaque(td)


def _unflatten_unbatched(values: Any, spec: Any) -> Any:
    (value,) = values
    return spec.value._around(value)


def _flatten_payload(td: Any) -> tuple[list[Any], Any]:
    """Non-tensor data has no children; it is the context."""
    return [], _Opaque(td)


class _Opaque:
    """Non-tensor data as the context of a node. It equals any other, because only the tree is compared."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque)

    def __hash__(self) -> int:
        return 0


class LazySpec:
    """The context of a lazy stack, whose children are its members.

    Under torch.compile ``torch.vmap`` uses this and maps a dimension of the children: there they are the stacked
    entries, if these stack.
    """

    __slots__ = ("batch_size", "cls", "dense", "device", "names", "stack_dim")

    def __init__(self, td: Any, dense: NodeSpec | None) -> None:
        self.cls = type(td)
        self.dense = dense
        self.stack_dim = td._stack_dim
        self.batch_size = td._batch_size
        self.device = td._device
        self.names = td._names

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LazySpec)
            and self.cls is other.cls
            and self.dense == other.dense
            and self.stack_dim == other.stack_dim
        )

    def __hash__(self) -> int:
        return hash((self.cls, self.stack_dim))


def _flatten_lazy(td: Any) -> tuple[list[Any], LazySpec]:
    members = td._source
    if torch.compiler.is_compiling() and members and len({frozenset(member._key_list()) for member in members}) == 1:
        try:
            entries = dict(td._entries())
        except RuntimeError:  # shapes differ
            return list(members), LazySpec(td, None)
        values, spec = _flatten(td._plain_class()._trusted(entries, td._batch_size, td._device, td._names))
        return values, LazySpec(td, spec)
    return list(members), LazySpec(td, None)


def _unflatten_lazy(values: Any, spec: LazySpec) -> Any:
    if spec.dense is None:
        return _restacked(list(values), spec)
    typed = getattr(spec.cls, "_member_class", None)
    dense = _unflatten(values, spec.dense)
    plain = all(isinstance(value, Tensor) or isinstance(value, Kernel) for value in dense._source.values())
    if dense._batch_size != spec.dense.batch_size or not plain:
        return dense
    if typed is not None:
        members = [typed.from_tensordict(member) for member in dense.unbind(spec.stack_dim)]
        return spec.cls._of(members, spec.stack_dim, members[0]._batch_size, dense._device, dense._names)
    at, size = spec.stack_dim, dense._batch_size
    members = list(dense.unbind(at))
    return registry.LazyStackedTensorDict._of(
        members, at, torch.Size((*size[:at], *size[at + 1 :])), dense._device, dense._names
    )


def _restacked(members: list[Any], spec: LazySpec) -> Any:
    """The stack around new members, which may have lost dimensions or changed class."""
    if not members:
        at, size = spec.stack_dim, spec.batch_size
        return spec.cls._of([], at, torch.Size((*size[:at], *size[at + 1 :])), spec.device, spec.names)
    first = members[0]._batch_size
    cls = spec.cls._class_for(members)
    dims = len(first)
    if any(member._batch_size != first for member in members):
        return cls(*members, stack_dim=min(spec.stack_dim, dims))
    names = spec.names if dims == len(spec.batch_size) - 1 else None
    return cls._of(members, min(spec.stack_dim, dims), first, spec.device, None if names is None else list(names))


def _unflatten_params(values: Any, spec: NodeSpec) -> Any:
    """A :class:`TensorDictParams` if all leaves are parameters; otherwise a TensorDict."""
    out = _unflatten(values, spec)
    if torch.compiler.is_compiling() or not values or not _holds_parameters(out):
        return out
    return registry.TensorDictParams(out, no_convert=True)


def _holds_parameters(td: Any) -> bool:
    """Whether all entries are parameters or buffers."""
    return all(
        _holds_parameters(value) if isinstance(value, Kernel) else isinstance(value, (nn.Parameter, nn.Buffer))
        for _, value in td._entries()
    )


def register(cls: Any) -> None:
    """Make instances of a class of collections nodes of pytrees."""
    if cls._is_unbatched:
        _pytree.register_pytree_node(cls, _flatten_unbatched, _unflatten_unbatched)
    elif cls._is_non_tensor:
        _pytree.register_pytree_node(cls, _flatten_payload, lambda _, spec: spec.value)
    elif hasattr(cls, "stack_dim"):
        _pytree.register_pytree_node(cls, _flatten_lazy, _unflatten_lazy)
    else:
        back = _unflatten_params if issubclass(cls, nn.Module) else _unflatten
        _pytree.register_pytree_node(cls, _flatten, back, flatten_with_keys_fn=_flatten_with_keys)


# -- nested containers --------------------------------------------------------------------------------------


def from_pytree(
    pytree: Any,
    *,
    batch_size: Sequence[int] | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
) -> Any:
    """A TensorDict from nested lists, tuples, named tuples and dicts of tensors.

    Each level records its type, so that :meth:`TensorDict.to_pytree` rebuilds it. A single leaf is returned as a
    tensor, a collection unchanged.

    Args:
        pytree: the containers.
        batch_size: batch size of the result and its levels.
        auto_batch_size: infer the batch size.
        batch_dims: longest batch size to infer.

    Example:
        >>> td = from_pytree({"a": torch.zeros(3), "b": (torch.ones(3), torch.ones(3, 2))}, auto_batch_size=True)
        >>> td.batch_size, type(td.to_pytree()["b"])
        (torch.Size([3]), <class 'tuple'>)
    """
    if isinstance(pytree, Kernel):
        return pytree
    if not isinstance(pytree, (list, tuple, Mapping)):
        return pytree if isinstance(pytree, Tensor) else tensor_of(pytree)
    td = _level(pytree, torch.Size(batch_size if batch_size is not None else ()))
    return td.auto_batch_size_(batch_dims) if auto_batch_size else td


def _level(node: Any, size: torch.Size) -> Any:
    td = registry.TensorDict({}, batch_size=size)
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
            td.set(f"{_ODD_KEY}{i}", registry.TensorDict({"value": entry}, batch_size=size).set_non_tensor("key", key))
    return td.set_non_tensor(_TYPE_KEY, type(node))


def _entry(value: Any, size: torch.Size) -> Any:
    if isinstance(value, (list, tuple, Mapping)) and not isinstance(value, Kernel):
        return _level(value, size)
    if isinstance(value, Tensor) or isinstance(value, Kernel):
        return value
    if isinstance(value, (int, float, bool, complex, np.ndarray)) and not size:
        return tensor_of(value)
    return registry.NonTensorData(value, batch_size=size)


def to_pytree(td: Any) -> Any:
    """The containers that :func:`from_pytree` converted; the collection itself if it was not made that way."""
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
