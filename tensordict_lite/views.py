"""Walks over the entries of a collection, and the view returned by ``keys()``.

Keys of nested collections come after their content, items before it, as in the reference package. Values wrapped as
non-tensor data are entries, never levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict_lite.keys import path_of
from tensordict_lite.settings import settings

if TYPE_CHECKING:
    from tensordict_lite.kernel import Kernel

IsLeaf = Callable[[type], bool]


def default_is_leaf(cls: type) -> bool:
    """Whether a type is a leaf: everything but collections (which include non-tensor data).

    Example:
        >>> default_is_leaf(torch.Tensor), default_is_leaf(TensorDict)
        (True, False)
    """
    return not hasattr(cls, "_is_non_tensor")


def is_leaf_nontensor(cls: type) -> bool:
    """Whether a type is a leaf if non-tensor data counts as one.

    Example:
        >>> from tensordict_lite import NonTensorData, TensorDict
        >>> is_leaf_nontensor(NonTensorData), is_leaf_nontensor(TensorDict)
        (True, False)
    """
    return bool(getattr(cls, "_is_non_tensor", True))


def public(value: Any) -> Any:
    """A raw entry as returned to users: an unbatched one as its tensor."""
    return value._as_value() if getattr(value, "_is_unbatched", False) else value


def as_read(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Direct items with each value as returned to users."""
    if not settings.unbatched:
        return items
    return [(key, public(value)) for key, value in items]


def leaf_keys(td: Kernel, prefix: tuple[str, ...], out: list[Any]) -> list[Any]:
    """Keys of the tensors of the whole tree, for hot loops, without options."""
    source = td._source
    for key, value in source.items() if type(source) is dict else td._key_entries():
        if type(value) is Tensor or isinstance(value, Tensor):
            out.append((*prefix, key) if prefix else key)
        elif value._is_unbatched:
            out.append((*prefix, key) if prefix else key)
        elif not value._is_non_tensor:
            leaf_keys(value, (*prefix, key), out)
    return out


def count_leaves(td: Kernel) -> int:
    """Number of tensors of the whole tree."""
    n = 0
    source = td._source
    for value in source.values() if type(source) is dict else dict(td._key_entries()).values():
        if type(value) is Tensor or isinstance(value, Tensor):
            n += 1
        elif value._is_unbatched:
            n += 1
        elif not value._is_non_tensor:
            n += count_leaves(value)
    return n


def count_entries(td: Kernel) -> int:
    """Number of entries of the whole tree, including collections."""
    source = td._source
    n = 0
    for value in source.values() if type(source) is dict else dict(td._key_entries()).values():
        n += 1
        if type(value) is not Tensor and not isinstance(value, Tensor) and not value._is_non_tensor:
            n += count_entries(value)
    return n


def leaf_items(td: Kernel, prefix: tuple[str, ...], out: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """Items of the tensors of the whole tree."""
    for key, value in td._entries():
        if isinstance(value, Tensor):
            out.append(((*prefix, key) if prefix else key, value))
        elif value._is_unbatched:
            out.append(((*prefix, key) if prefix else key, value._as_value()))
        elif not value._is_non_tensor:
            leaf_items(value, (*prefix, key), out)
    return out


def entry_of(td: Any, path: tuple[str, ...]) -> Any:
    """The raw entry at a flat path, ``None`` if it does not exist (an entry is never None)."""
    node = td
    for depth, part in enumerate(path):
        if isinstance(node, Tensor) or node._is_non_tensor:
            return None
        source = node._source
        if type(source) is dict:
            node = source.get(part)
            if node is None:
                return None
        else:
            # Nothing is stacked to find a missing entry.
            if depth + 1 < len(path) and not has_entry(node, path[depth:]):
                return None
            try:
                node = node._get_str(part)
            except KeyError:
                return None
    return node


def has_entry(td: Any, path: tuple[str, ...]) -> bool:
    """Whether an entry exists at a flat path; in a lazy stack, in each member, without stacking."""
    node = td
    for depth, part in enumerate(path):
        if isinstance(node, Tensor) or node._is_non_tensor:
            return False
        source = node._source
        if type(source) is not dict:
            return bool(source) and all(has_entry(member, path[depth:]) for member in source)
        node = source.get(part)
        if node is None:
            return False
    return True


def all_keys(
    td: Kernel, prefix: tuple[str, ...], out: list[Any], leaves_only: bool, is_leaf: IsLeaf | None
) -> list[Any]:
    """Keys of the whole tree, content before its container."""
    for key, value in td._key_entries():
        full = (*prefix, key) if prefix else key
        if not isinstance(value, Tensor) and not value._is_non_tensor:
            all_keys(value, (*prefix, key), out, leaves_only, is_leaf)
        if not leaves_only or is_leaf(type(public(value))):  # type: ignore[misc]
            out.append(full)
    return out


def all_items(
    td: Kernel, prefix: tuple[str, ...], out: list[Any], leaves_only: bool, is_leaf: IsLeaf | None
) -> list[tuple[Any, Any]]:
    """Items of the whole tree, a container before its content."""
    for key, value in td._entries():
        full = (*prefix, key) if prefix else key
        if isinstance(value, Tensor) or value._is_unbatched:
            if settings.unbatched:
                value = public(value)
            if not leaves_only or is_leaf is None or is_leaf(type(value)):
                out.append((full, value))
            continue
        if not leaves_only or (is_leaf is not None and is_leaf(type(value))):
            out.append((full, value))
        if not value._is_non_tensor:
            all_items(value, (*prefix, key), out, leaves_only, is_leaf)
    return out


def sort_key(key: Any) -> tuple[str, ...]:
    """Order of nested keys: a container right before its content."""
    return (key,) if isinstance(key, str) else key


def _check_key(key: Any) -> tuple[str, ...]:
    if isinstance(key, str):
        return (key,)
    path = path_of(key) if isinstance(key, tuple) else ()
    if not path:
        raise TypeError(
            "keys are always strings: membership is defined for strings and non-empty tuples of strings, "
            f"got {key!r} of type {type(key).__name__}"
        )
    return path


class StringKeysView(KeysView):  # type: ignore[type-arg]
    """Direct keys of a dict of entries: a set-like view of strings, without nested keys."""

    __slots__ = ()
    _mapping: Any

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __contains__(self, key: object) -> bool:
        if type(key) is str:
            return key in self._mapping
        path = _check_key(key)
        return len(path) == 1 and path[0] in self._mapping

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"

    @classmethod
    def _from_iterable(cls, it: Any) -> set[Any]:
        return set(it)


class NestedKeysView(KeysView):  # type: ignore[type-arg]
    """Keys of a tree under the options of :meth:`TensorDict.keys`; membership accepts nested keys."""

    __slots__ = ("_include_nested", "_is_leaf", "_leaves_only", "_sort")

    def __init__(self, td: Kernel, include_nested: bool, leaves_only: bool, is_leaf: IsLeaf | None, sort: bool) -> None:
        self._mapping = td
        self._include_nested = include_nested
        self._leaves_only = leaves_only
        self._is_leaf = is_leaf
        self._sort = sort

    def _list(self) -> list[Any]:
        td: Any = self._mapping
        if self._include_nested:
            if self._leaves_only and (self._is_leaf is None or self._is_leaf is default_is_leaf):
                keys = leaf_keys(td, (), [])
            else:
                keys = all_keys(td, (), [], self._leaves_only, self._is_leaf)
        elif self._leaves_only:
            is_leaf = self._is_leaf or default_is_leaf
            keys = [key for key, value in as_read(td._key_entries()) if is_leaf(type(value))]
        else:
            keys = td._key_list()
        return sorted(keys, key=sort_key) if self._sort else keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def __len__(self) -> int:
        # `list(view)` also calls `len`, so it must cost less than the walk.
        if self._include_nested:
            if not self._leaves_only:
                return count_entries(self._mapping)
            if self._is_leaf is None or self._is_leaf is default_is_leaf:
                return count_leaves(self._mapping)
        return len(self._list())

    @classmethod
    def _from_iterable(cls, it: Any) -> set[Any]:
        return set(it)

    def __contains__(self, key: object) -> bool:
        path = _check_key(key)
        if len(path) > 1 and not self._include_nested:
            return False
        # As in the reference, a collection is "in" the keys even if only leaves are listed.
        return has_entry(self._mapping, path)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._list()},\n    include_nested={self._include_nested},\n"
            f"    leaves_only={self._leaves_only})"
        )


class LeafKeysView(NestedKeysView):
    """``keys(True, True)`` without further options: the most common view."""

    __slots__ = ()
    _include_nested = True
    _leaves_only = True
    _is_leaf = None
    _sort = False

    def _list(self) -> list[Any]:
        return leaf_keys(self._mapping, (), [])

    def __iter__(self) -> Iterator[Any]:
        return iter(leaf_keys(self._mapping, (), []))

    def __len__(self) -> int:
        return count_leaves(self._mapping)
