"""Describe any value of either library as plain data, and say where two descriptions differ.

Two trees are the same when type name, batch size, names, device, lock state, keys and leaves are; two leaves
are the same when dtype, shape and every element are (NaN equals NaN); everything else compares with ``==``.
"""

import dataclasses
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any

import numpy as np
import torch

_NON_TENSOR = ("NonTensorData", "NonTensorStack")


@dataclasses.dataclass
class Leaf:
    """A tensor: what can be seen of it without knowing which library it came from."""

    kind: str
    value: torch.Tensor
    requires_grad: bool


@dataclasses.dataclass
class Tree:
    """A tensor collection: its own attributes, and its entries by key (or by position, for a lazy stack)."""

    kind: str
    attributes: dict[str, Any]
    entries: dict[Any, Any]


@dataclasses.dataclass
class NonTensor:
    """A non-tensor entry: the Python values it holds, whether shared by the batch or one for each element."""

    batch_size: tuple[int, ...]
    values: Any


def snapshot(value: Any) -> Any:
    """Describe ``value``; containers are described item by item, tensors are copied."""
    if isinstance(value, torch.Tensor):
        return _leaf(value)
    if _is_collection(value):
        return _tree(value)
    if isinstance(value, tuple) and type(value).__module__ == "torch.return_types":
        return (f"torch.return_types.{type(value).__name__}", *(snapshot(item) for item in value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": type(value).__name__, **{k: snapshot(getattr(value, k)) for k in value._fields}}
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    if type(value) is tuple:
        return tuple(snapshot(item) for item in value)
    if isinstance(value, dict):
        return {("type",): type(value).__name__, **{k: snapshot(v) for k, v in value.items()}}
    if isinstance(value, np.ndarray):
        return ("numpy", str(value.dtype), value.shape, repr(value.tolist()))
    if isinstance(value, type):
        return ("class", value.__name__)
    if "Keys" in type(value).__name__ or isinstance(value, (KeysView, ValuesView, ItemsView)):
        return [snapshot(item) for item in value]
    return value


def _is_collection(value: Any) -> bool:
    return hasattr(value, "batch_size") and hasattr(value, "keys") and not isinstance(value, type)


def _leaf(value: torch.Tensor) -> Leaf:
    kind = "Tensor" if type(value) is torch.Tensor else type(value).__name__
    plain = value.detach()
    if plain.is_nested and plain.layout is torch.jagged:
        rows = [
            torch.nn.functional.pad(row.flatten(), (1, 0), value=len(row)) for row in plain.unbind()
        ]  # with lengths
        plain, kind = torch.nested.nested_tensor(rows or [torch.empty(0, dtype=plain.dtype)]), "JaggedTensor"
    plain = plain.as_subclass(torch.Tensor)
    if plain.is_nested:
        plain = torch.nested.to_padded_tensor(plain, 0.0)
        kind = kind if kind == "JaggedTensor" else "NestedTensor"
    return Leaf(kind, plain.clone(), value.requires_grad)


def _tree(value: Any) -> Any:
    kind = type(value).__name__
    if kind in _NON_TENSOR:
        return NonTensor(tuple(value.batch_size), snapshot(value.tolist()))
    attributes = {
        "batch_size": tuple(value.batch_size),
        "names": list(value.names),
        "device": value.device,
        "is_locked": value.is_locked,
    }
    if hasattr(value, "tensordicts"):
        attributes["stack_dim"] = value.stack_dim
        # A lazy stack of a tensorclass: the reference shows the trees within its members.
        members = value.tensordicts if kind.startswith("LazyStacked") else value.unbind(value.stack_dim)
        return Tree(kind, attributes, {i: snapshot(td) for i, td in enumerate(members)})
    return Tree(kind, attributes, {key: snapshot(item) for key, item in value.items()})


def differences(expected: Any, found: Any, path: str = "result", rtol: float = 0.0) -> list[str]:
    """Where ``found`` departs from ``expected``, one readable line each; empty when they agree."""
    if type(expected) is not type(found):
        return [f"{path}: expected {_brief(expected)}, found {_brief(found)}"]
    if isinstance(expected, Leaf):
        return _leaf_differences(expected, found, path, rtol)
    if isinstance(expected, Tree):
        return _tree_differences(expected, found, path, rtol)
    if isinstance(expected, NonTensor):
        return _mapping_differences(vars(expected), vars(found), path, rtol)
    if isinstance(expected, dict):
        return _mapping_differences(expected, found, path, rtol)
    if isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return [f"{path}: expected {len(expected)} items, found {len(found)}: {_brief(found)}"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]", rtol)]
    if isinstance(expected, float) and expected != expected and found != found:
        return []
    same = expected is found or bool(expected == found) or (_is_opaque(expected) and type(expected) is type(found))
    return [] if same else [f"{path}: expected {_brief(expected)}, found {_brief(found)}"]


def _is_opaque(value: Any) -> bool:
    """Objects that the row itself made, and that know no equality: their type is all there is to compare."""
    return type(value).__eq__ is object.__eq__


def _leaf_differences(expected: Leaf, found: Leaf, path: str, rtol: float) -> list[str]:
    lines = []
    for name in ("kind", "requires_grad"):
        a, b = getattr(expected, name), getattr(found, name)
        if a != b:
            lines.append(f"{path}.{name}: expected {a}, found {b}")
    a, b = expected.value, found.value
    for name in ("dtype", "shape", "device"):
        if getattr(a, name) != getattr(b, name):
            lines.append(f"{path}.{name}: expected {getattr(a, name)}, found {getattr(b, name)}")
    if not lines and not a.is_meta and not _same_values(a, b, rtol):
        lines.append(f"{path}: expected values {_brief(expected)}, found {_brief(found)}")
    return lines


def _same_values(a: torch.Tensor, b: torch.Tensor, rtol: float) -> bool:
    if any(getattr(a, "names", ())):  # torch 2.13 gives tensors none, and older ones do not compare tensors with names
        a, b = a.rename(None), b.rename(None)
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return bool(torch.allclose(a, b, rtol=rtol, atol=0.0, equal_nan=True))
    return torch.equal(a, b)


def _tree_differences(expected: Tree, found: Tree, path: str, rtol: float) -> list[str]:
    lines = []
    if expected.kind != found.kind:
        lines.append(f"{path}: expected a {expected.kind}, found a {found.kind}")
    for name, value in expected.attributes.items():
        other = found.attributes.get(name)
        if value != other:
            lines.append(f"{path}.{name}: expected {value}, found {other}")
    return lines + _mapping_differences(expected.entries, found.entries, path, rtol)


def _mapping_differences(expected: dict[Any, Any], found: dict[Any, Any], path: str, rtol: float) -> list[str]:
    lines = []
    missing = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    if missing or extra:
        lines.append(f"{path}: missing keys {missing}, unexpected keys {extra}")
    for key in expected:
        if key in found:
            lines += differences(expected[key], found[key], f"{path}[{key!r}]", rtol)
    return lines


def _brief(value: Any) -> str:
    if isinstance(value, Leaf):
        numbers = value.value.flatten()[:6].tolist() if not value.value.is_meta else "meta"
        return f"{value.kind} {value.value.dtype} {list(value.value.shape)} {numbers}"
    if isinstance(value, Tree):
        return f"{value.kind}(keys={list(value.entries)}, batch_size={list(value.attributes['batch_size'])})"
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
