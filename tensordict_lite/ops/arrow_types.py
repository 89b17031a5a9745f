"""Arrow types of entries of integers that represent dates, times and durations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import require_path

_WHOLE = (torch.int32, torch.int64)


def types_of(node: Any) -> dict[Any, str]:
    """The types of the entries of a tree, by key."""
    found: dict[Any, str] = {}
    _collect(node, (), found)
    return found


def set_types(root: Any, types: Mapping[Any, str]) -> None:
    """Replace the types of all entries of a tree by those of some keys.

    Raises:
        KeyError: there is no such entry.
        TypeError: an entry is not a tensor of int32 or int64, or a type is not a string.
    """
    levels: dict[tuple[str, ...], dict[str, str]] = {}
    for key, name in types.items():
        path = require_path(key)
        value = root.get(path, None)
        if not isinstance(value, Tensor) and not isinstance(value, Kernel):
            raise KeyError(f"there is no entry {key!r}: there are {', '.join(map(repr, root.keys()))}")
        if not isinstance(value, Tensor) or value.dtype not in _WHOLE:
            what = value.dtype if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise TypeError(f"dates and times are int32 or int64, and the entry {key!r} is {what}")
        if not isinstance(name, str) or not name:
            raise TypeError(f"a type is the name of an Arrow type, such as 'timestamp[us]': got {name!r}")
        levels.setdefault(path[:-1], {})[path[-1]] = name
    _assign(root, (), levels)


def _collect(node: Any, above: tuple[str, ...], found: dict[Any, str]) -> None:
    if getattr(node, "_is_non_tensor", False):
        return
    source = node._source
    if type(source) is not dict:  # a lazy stack: its members have the types
        if source and hasattr(node, "_stack_dim"):
            _collect(source[0], above, found)
        return
    types = node._types
    for key, value in source.items():
        if isinstance(value, Tensor):
            if types is not None and key in types and value.dtype in _WHOLE:
                found[(*above, key) if above else key] = types[key]
        else:
            _collect(value, (*above, key), found)


def _assign(node: Any, above: tuple[str, ...], levels: dict[tuple[str, ...], dict[str, str]]) -> None:
    if getattr(node, "_is_non_tensor", False):
        return
    source = node._source
    if type(source) is not dict:
        for member in source if hasattr(node, "_stack_dim") else ():
            _assign(member, above, levels)
        return
    node._types = levels.get(above)
    for key, value in source.items():
        if not isinstance(value, Tensor):
            _assign(value, (*above, key), levels)


def pruned(types: dict[str, str] | None, keys: Any) -> dict[str, str] | None:
    """The types of some keys."""
    if types is None:
        return None
    return {key: name for key, name in types.items() if key in keys} or None


def joined_types(items: Any) -> dict[str, str] | None:
    """The types of concatenated collections.

    Raises:
        ValueError: an entry has different types, so that equal numbers are different times.
    """
    first = items[0]._types
    for item in items:
        if item._types == first or not len(item._source):
            continue
        for key in {**(first or {}), **(item._types or {})}:
            one, other = (first or {}).get(key), (item._types or {}).get(key)
            if one != other:
                told = " and ".join(name or "plain numbers" for name in (one, other))
                raise ValueError(f"the entry {key!r} is {told} in different collections: cast it to one type first")
    return first


def type_at(root: Any, path: tuple[str, ...]) -> str | None:
    """The type of the entry at a path."""
    types = _level_of(root, path)._types
    return None if types is None else types.get(path[-1])


def name_type(root: Any, path: tuple[str, ...], name: str | None) -> None:
    """Set the type of the entry at a path."""
    node = _level_of(root, path)
    if name is not None:
        node._types = {**(node._types or {}), path[-1]: name}
    elif node._types is not None and path[-1] in node._types:
        node._types = {key: kept for key, kept in node._types.items() if key != path[-1]} or None


def _level_of(root: Any, path: tuple[str, ...]) -> Any:
    return root if len(path) == 1 else root.get(path[:-1])
