"""The mapping interface: keys, entries, selection, renaming, and the same leaves in another tree."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.indexing import normalise_index
from tensordict_lite.kernel import DeviceLike, Kernel
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path, unravel_key
from tensordict_lite.ops.arrow_types import name_type, pruned, type_at
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.views import (
    LeafKeysView,
    NestedKeysView,
    StringKeysView,
    all_items,
    as_read,
    default_is_leaf,
    entry_of,
    has_entry,
    leaf_items,
    public,
    sort_key,
)

KeySet = Sequence[Any] | Mapping[Any, Any] | Callable[[tuple[str, ...], Tensor], bool]
IsLeaf = Callable[[type], bool]


class KeyOps(Kernel):
    """Operations on keys: ``keys``, ``pop``, ``select``, ``rename_key_``, ``flatten_keys`` and others."""

    __slots__ = ()

    # Whether instances wrap one non-tensor value: entries of such a type are leaves, never levels.
    _is_non_tensor = False
    # Whether instances hold a tensor without batch dimensions.
    _is_unbatched = False
    # Whether an instance is a ragged column of numbers.
    _is_ragged_numbers = False
    # Whether instances fit any batch size, since none of their own dimensions is in it.
    _follows_batch = False

    def _entries(self) -> Iterable[tuple[str, Any]]:
        """Direct items, raw."""
        source = self._source
        if type(source) is dict:
            return source.items()
        return [(key, self._get_str(key)) for key in self._key_list()]

    # The items for a walk over keys; a lazy stack lists its keys without stacking.
    _key_entries = _entries

    # -- views --------------------------------------------------------------------------------------------

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """The keys: strings, and tuples of strings for the entries of nested collections.

        Args:
            include_nested: the keys of the whole tree, a container after its content.
            leaves_only: leave out the keys of collections.
            is_leaf: function of a type that decides which entries are leaves. Default: tensors;
                :func:`is_leaf_nontensor` adds non-tensor data.
            sort: alphabetical order, a container before its content.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
            >>> list(td.keys(True, True)), (("b",), "c") in td.keys(True)
            (['a', ('b', 'c')], True)
        """
        if include_nested and leaves_only and not sort and is_leaf is None:
            leaves = object.__new__(LeafKeysView)
            leaves._mapping = self
            return leaves
        if include_nested or leaves_only or sort:
            return NestedKeysView(self, include_nested, leaves_only, is_leaf, sort)
        view = object.__new__(StringKeysView)
        view._mapping = self._source
        return view

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Pairs of key and raw entry.

        The options are those of :meth:`keys`; in a tree, a container comes before its content. Non-tensor values are
        returned as :class:`NonTensorData`.

        Example:
            >>> td = TensorDict({"a": {"b": torch.tensor(1)}})
            >>> list(td.items(include_nested=True, leaves_only=True))
            [(('a', 'b'), tensor(1))]
        """
        if include_nested:
            if leaves_only and (is_leaf is None or is_leaf is default_is_leaf):
                items: Any = leaf_items(self, (), [])
            else:
                items = all_items(self, (), [], leaves_only, is_leaf)
        elif leaves_only:
            is_leaf = is_leaf or default_is_leaf
            items = [item for item in as_read(self._entries()) if is_leaf(type(item[1]))]
        elif not sort:
            source = self._source
            if settings.unbatched:
                return as_read(self._entries())
            return source.items() if type(source) is dict else self._entries()
        else:
            items = as_read(self._entries())
        return sorted(items, key=lambda item: sort_key(item[0])) if sort else items

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Raw entries, in the order of :meth:`items` and under the same options."""
        if not (include_nested or leaves_only or sort or settings.unbatched):
            try:
                return self._source.values()
            except AttributeError:  # a lazy stack: its members are a list
                pass
        return [value for _, value in self.items(include_nested, leaves_only, is_leaf, sort=sort)]

    @property
    def sorted_keys(self) -> list[str]:
        """Direct keys in alphabetical order."""
        return sorted(self._key_list())

    def __contains__(self, key: Any) -> bool:
        if type(key) is str:
            return key in self._source
        path = path_of(key) if isinstance(key, tuple) else (key,) if isinstance(key, str) else ()
        if path:
            node: Any = self
            try:
                for part in path:
                    node = node._source[part]
                return True
            except (KeyError, TypeError, AttributeError):  # a lazy stack or a tensor on the path
                return has_entry(self, path)
        else:
            raise RuntimeError(
                f"`in` takes a key, a string or a non-empty tuple of strings; got {key!r} of type "
                f"{type(key).__name__}. To look for a value, go through .values()."
            )

    # -- one entry ------------------------------------------------------------------------------------------

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        """The raw entry at ``key``; if it is missing, write ``default`` first.

        Raises:
            RuntimeError: the key is missing and the collection is locked, or ``default`` does not fit.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            self.set(path, default, inplace=inplace)
            value = entry_of(self, path)
        return public(value)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """Remove an entry and return it, raw.

        Args:
            key: nested key; collections on its path are kept.
            default: returned when there is no such entry.

        Raises:
            KeyError: there is no such entry and no default.
            ValueError: the path runs through a tensor, and there is no default.
            RuntimeError: the entry exists and the collection that holds it is locked.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            if default is MISSING:
                self._raise_missing(path)
            return default
        self.del_(path)
        return public(value)

    def _raise_missing(self, path: tuple[str, ...]) -> None:
        """KeyError for a path that does not exist or leads below an object, ValueError if a tensor blocks it."""
        node: Any = self
        for depth, key in enumerate(path):
            if isinstance(node, Tensor) or node._is_non_tensor:
                what = f"{path[depth - 1]!r}" if depth else "it"
                message = (
                    f"{what} is a {type(node).__name__}, not a tensordict, so it has no entry {key!r} "
                    f"(looking for {path})"
                )
                is_tensor = isinstance(node, Tensor) or node._is_unbatched
                raise KeyThroughLeafError(message) if is_tensor else KeyError(message)
            if depth and hasattr(node, "_stack_dim"):  # a lazy stack, whose entries may not stack
                node._raise_missing(path[depth:])
            following = entry_of(node, (key,))
            if following is None:
                keys = node._key_list() if len(path) == 1 else self.keys(True)
                raise missing_key_error(path if len(path) > 1 else key, list(keys), type(self).__name__)
            node = following

    def popitem(self) -> tuple[str, Any]:
        """Remove the last added entry and return it with its key.

        Raises:
            KeyError: there is no entry.
            RuntimeError: the collection is locked.
        """
        self._require_unlocked()
        keys = self._key_list()
        if not keys:
            raise KeyError(f"popitem(): the {type(self).__name__} is empty")
        value = self._get_str(keys[-1])
        self._del_str(keys[-1])
        return keys[-1], public(value)

    def entry_class(self, key: NestedKey) -> type:
        """Type of an entry, ``NoneType`` if it is missing.

        Raises:
            ValueError: the path runs through a tensor.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            with suppress(KeyError):
                self._raise_missing(path)
        return type(public(value))

    def get_item_shape(self, key: NestedKey) -> Any:
        """Shape of an entry.

        Raises:
            KeyError: there is no such entry.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            self._raise_missing(path)
        return public(value).shape

    def _get_path_slowly(self, path: tuple[str, ...]) -> Any:
        """Lazy stacks on the path, or an error that names the failing step."""
        node: Any = self
        for depth, key in enumerate(path):
            if not isinstance(node, Kernel) or node._is_unbatched:
                rest = path[depth:]
                raise KeyThroughLeafError(
                    f"{path[depth - 1]!r} is a {type(node).__name__}, not a tensordict, so it has no entry "
                    f"{rest[0] if len(rest) == 1 else rest!r} (looking for {path})."
                )
            try:
                node = node._get_str(key)
            except KeyError as err:
                if err.args and err.args[0] == key:
                    raise missing_key_error(key, node._key_list(), type(node).__name__) from None
                raise
            except RuntimeError:  # a failed stack on the path says nothing about the entry
                if hasattr(node, "_stack_dim") and not has_entry(node, path[depth:]):
                    node._raise_missing(path[depth:])
                raise
        return node

    def get_at(self, key: NestedKey, index: Any, default: Any = MISSING) -> Any:
        """``td.get(key)[index]``; the default if :meth:`get` returns it, unindexed."""
        value = self.get(key) if default is MISSING else self.get(key, default)
        if type(index) is list and isinstance(value, Tensor):  # torch takes some for tuples
            index = normalise_index(index, value.ndim)
        return value if value is default or value is None else value[index]

    def __delitem__(self, key: Any) -> None:
        self.del_(key)

    # -- non-tensor entries -----------------------------------------------------------------------------------

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Store any object under ``key`` unchanged, also numbers and tensors.

        Raises:
            RuntimeError: the collection is locked.

        Returns:
            self

        Example:
            >>> TensorDict().set_non_tensor(("a", "n"), 1)["a", "n"]
            1
        """
        path = require_path(key)
        parent = self if len(path) == 1 else self._parent_for(path)
        return self if parent.set(path[-1], parent._wrap(value)) is not None else self

    def get_non_tensor(self, key: NestedKey, default: Any = MISSING) -> Any:
        """The object of a non-tensor entry; other entries unchanged.

        Raises:
            KeyError: there is no such entry and no default.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            if default is MISSING:
                self._raise_missing(path)
            return default
        return value if isinstance(value, Tensor) else value._as_value()

    def is_non_tensor(self, key: NestedKey) -> bool:
        """Whether the entry is non-tensor data.

        Raises:
            KeyError: there is no such entry.
        """
        path = require_path(key)
        value = entry_of(self, path)
        if value is None:
            self._raise_missing(path)
        return not isinstance(value, Tensor) and value._is_non_tensor and not value._is_unbatched

    def non_tensor_items(self, include_nested: bool = False) -> tuple[tuple[Any, Any], ...]:
        """Items whose value is non-tensor data, as :class:`NonTensorData`."""
        classes = {key: self.entry_class(key) for key in self.keys(include_nested)}
        objects = [key for key, cls in classes.items() if getattr(cls, "_is_non_tensor", False)]
        return tuple((key, self._get_path(require_path(key))) for key in objects)

    # -- the whole ----------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Levels of nested collections above the deepest leaf: 0 for a flat collection."""
        below = [sub.depth + 1 for sub in self._nested() if not sub._is_non_tensor and not sub.is_empty()]
        return max(below, default=0)

    def is_empty(self) -> bool:
        """Whether the tree holds no leaf; non-tensor data is a leaf."""
        source = self._source
        for value in source.values() if type(source) is dict else self.values():
            if type(value) is Tensor or isinstance(value, Tensor) or value._is_non_tensor or not value.is_empty():
                return False
        return True

    def clear(self) -> Self:
        """Remove every entry.

        Raises:
            RuntimeError: the collection is locked.
        """
        self._require_unlocked()
        for key in self._key_list():
            self._del_str(key)
        return self

    def create_nested(self, key: NestedKey) -> Self:
        """Put an empty collection of the same batch size at ``key``, replacing an existing entry.

        Collections on the path are kept, other entries on it are replaced.

        Raises:
            RuntimeError: the collection is locked.

        Returns:
            self
        """
        node: Any = self
        path = require_path(key)
        for depth, part in enumerate(path):
            node._require_unlocked()
            child = entry_of(node, (part,))
            kept = depth < len(path) - 1 and child is not None and not isinstance(child, Tensor)
            if not kept or child._is_non_tensor or child._lock is not None:
                node._set_str(part, node._new_child())
                child = node._get_str(part)  # a lazy stack has split it
            node = child
        return self

    @classmethod
    def fromkeys(cls, keys: Sequence[Any], value: Any = 0) -> Any:
        """A TensorDict without batch dimensions that holds ``value`` under every key.

        Example:
            >>> TensorDict.fromkeys(["a", ("b", "c")], 1)["b", "c"]
            tensor(1)
        """
        return cls._plain_class()(dict.fromkeys(keys, value), batch_size=())

    # -- select, exclude ------------------------------------------------------------------------------------

    def select(self, *keys: Any, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """A collection with only these entries; values are shared, the result is not locked.

        Args:
            *keys: nested keys. The key of a nested collection selects all of it.
            inplace: remove the other entries here and return ``self``.
            strict: raise KeyError for a missing key; ``False`` ignores it.
            as_tensordict: return a TensorDict for a tensorclass.

        Raises:
            KeyError: a key is missing (``strict``).
            RuntimeError: the collection is locked (``inplace``), or an argument is not a nested key.

        Example:
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3), "d": torch.ones(3)}}, [3])
            >>> list(td.select("a", ("b", "c")).keys(True, True))
            ['a', ('b', 'c')]
        """
        if inplace and self._lock is not None:
            raise self._locked_error()
        source = self._source
        try:
            kept = {key: source[key] for key in keys if type(key) is str}
        except (KeyError, TypeError):
            kept = {}
        if len(kept) != len(keys):  # nested keys, missing ones or duplicates
            one = path_of(keys[0]) if len(keys) == 1 and type(keys[0]) is tuple and not inplace else ()
            groups = _group(keys, False)
            if inplace and strict:
                self._select_tree(groups, False, True)  # raises before a nested collection has changed
            kept = (one and self._select_path(one)) or self._select_tree(groups, inplace, strict)
        if inplace:
            self._keep(kept)
            return self
        if as_tensordict:
            new: Any = self._plain_class()._trusted(kept, self._batch_size, self._device, self._names)
        else:
            new = self._rebuild(kept, self._batch_size, self._names)
        new._types = self._types if self._types is None else pruned(self._types, kept)
        return new

    def _select_path(self, path: tuple[str, ...]) -> dict[str, Any] | None:
        """The entry at a path below levels of tensors, with these levels; ``None`` for anything else."""
        nodes: list[Any] = []
        node: Any = self
        for key in path:
            if isinstance(node, Tensor) or type(node._source) is not dict or key not in node._source:
                return None
            nodes.append(node)
            node = node._source[key]
        for at in range(len(path) - 1, 0, -1):
            node = nodes[at]._rebuild({path[at]: node}, nodes[at]._batch_size, nodes[at]._names)
        return {path[0]: node}

    def _select_tree(self, groups: dict[str, list[Any] | None], inplace: bool, strict: bool) -> dict[str, Any]:
        kept = {}
        for key, below in groups.items():
            value = entry_of(self, (key,))
            if value is None:
                if strict:
                    raise missing_key_error(key, self._key_list(), type(self).__name__)
            elif below is None:
                kept[key] = value
            elif isinstance(value, Tensor) or value._is_non_tensor:
                if strict:
                    raise KeyError(
                        f"{key!r} is a {type(value).__name__}, not a tensordict, so it has no entry {below[0]!r}"
                    )
            else:
                kept[key] = value.select(*below, inplace=inplace, strict=strict)
        return kept

    def _keep(self, kept: dict[str, Any]) -> None:
        """Replace the entries of this collection by ``kept``."""
        self._source = kept
        self._types = pruned(self._types, kept)

    def exclude(self, *keys: Any, inplace: bool = False) -> Self:
        """A collection without these entries; values are shared, missing keys are ignored, the result is unlocked.

        Args:
            *keys: nested keys. A nested collection that loses all its entries is kept, empty.
            inplace: remove the entries here and return ``self``.

        Raises:
            RuntimeError: the collection is locked (``inplace``), or an argument is not a nested key.
        """
        if inplace and self._lock is not None:
            raise self._locked_error()
        source = self._source
        kept = source.copy() if type(source) is dict else dict(self._entries())
        for key, below in _group(keys, True).items():
            if below is None:
                kept.pop(key, None)
                continue
            value = kept.get(key)
            if value is not None and not isinstance(value, Tensor) and not value._is_non_tensor:
                kept[key] = value.exclude(*below, inplace=inplace)
        if inplace:
            self._keep(kept)
            return self
        new = self._rebuild(kept, self._batch_size, self._names)
        if new._types is not None:
            new._types = pruned(new._types, kept)
        return new

    # -- rename -----------------------------------------------------------------------------------------------

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        """Move an entry to another key, in place.

        Args:
            old_key: nested key of an entry.
            new_key: nested key; an existing entry is overwritten.
            safe: raise KeyError if ``new_key`` exists.

        Raises:
            KeyError: no entry under ``old_key``, or one under ``new_key`` (``safe``).
            TypeError: a key is neither a string nor a tuple.
            RuntimeError: the collection is locked.

        Returns:
            self
        """
        for name, key in (("old_key", old_key), ("new_key", new_key)):
            if not isinstance(key, (str, tuple)):
                raise TypeError(
                    f"{name} must be a string or a tuple of strings, got {key!r} of type {type(key).__name__}"
                )
        old, new = require_path(old_key), require_path(new_key)
        self._require_unlocked()
        value = entry_of(self, old)
        if value is None:
            self._raise_missing(old)
        if old == new:
            return self
        if safe and new[: len(old)] != old and entry_of(self, new) is not None:
            raise KeyError(f"key {new_key!r} is already present in {type(self).__name__}, and safe=True")
        arrow_type = type_at(self, old)
        self.del_(old)
        try:
            if len(new) == 1:
                self._set_str(new[0], self._fit(value, new[0]) if len(old) > 1 else value)
            else:
                self._put(new, value)
            name_type(self, new, arrow_type)
        except Exception:  # it cannot be stored there: below a tensor, or not a field
            self._put(old, value)
            raise
        return self

    def _put(self, key: NestedKey, value: object) -> None:
        """``set``; an unset field of a tensorclass becomes a level, as in any other tree."""
        path = require_path(key)
        if len(path) > 1 and entry_of(self, path[:1]) is None:
            self.set(path[0], self._new_child())
        self.set(path, value)

    def rename_keys(self, mapping: Mapping[Any, Any], *, strict: bool = True) -> Self:
        """A collection with several keys renamed at once; values are shared, ``self`` is unchanged.

        All entries are removed before the first is added, so swaps and chains work. A nested collection that becomes
        empty is dropped.

        Args:
            mapping: new nested keys by old nested keys.
            strict: raise KeyError for a missing key; ``False`` ignores it.

        Raises:
            KeyError: a key is missing (``strict``) or empty.
            ValueError: two destinations collide, a source or destination lies inside another one, or a destination is
                an existing entry that is not renamed.

        Example:
            >>> td = TensorDict(a=torch.tensor(0), b=torch.tensor(1))
            >>> td.rename_keys({"a": "b", "b": "a"})["a"]
            tensor(1)
        """
        moves = []
        for old_key, new_key in mapping.items():
            old, new = require_path(old_key), require_path(new_key)
            if entry_of(self, old) is not None:
                moves.append((old, new))
            elif strict:
                raise missing_key_error(old_key, list(self.keys(True)), type(self).__name__)
        _check_disjoint([old for old, _ in moves], "source")
        _check_disjoint([new for _, new in moves], "destination")
        result = self.copy()
        moved = [(type_at(self, old), result.pop(old)) for old, _ in moves]
        for (_, new), (arrow_type, value) in zip(moves, moved):
            _check_free(result, new)
            result._put(new, value)
            name_type(result, new, arrow_type)
        for old, _ in moves:
            for depth in range(len(old) - 1, 0, -1):
                parent = entry_of(result, old[:depth])
                if parent is None or isinstance(parent, Tensor) or parent._is_non_tensor or parent._key_list():
                    break
                result.del_(old[:depth])
        return result

    # -- split ------------------------------------------------------------------------------------------------

    def split_keys(
        self,
        *key_sets: KeySet,
        inplace: bool = False,
        default: Any = MISSING,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """One collection for each set of keys, and a last one with the remaining entries.

        Args:
            *key_sets: each a sequence of nested keys, a mapping from nested keys to the names in the result, or a
                function ``fn(path, tensor) -> bool`` over the remaining leaves.
            inplace: remove the entries from ``self``, which is then the last of the results.
            default: value for a missing key (with ``strict=False``).
            strict: raise KeyError for a missing key.
            reproduce_struct: keep the tree of nested collections in every result, including empty ones. By default
                empty levels are dropped from the last one.

        Raises:
            KeyError: a key is missing (``strict``).
            RuntimeError: the collection is locked (``inplace``).

        Example:
            >>> td = TensorDict(a=torch.tensor(0), b=torch.tensor(1), c=torch.tensor(2))
            >>> [sorted(part.keys()) for part in td.split_keys(["a"], {"b": "x"})]
            [['a'], ['x'], ['c']]
        """
        if inplace and self._lock is not None:
            raise self._locked_error()
        rest = self.copy()
        parts, moved = [], []
        for key_set in key_sets:
            part = self._levels() if reproduce_struct else self.empty()
            for old, new in _as_moves(key_set, rest):
                path = require_path(old)
                if entry_of(rest, path) is not None:
                    value = rest.pop(old)
                    part._put(new, entry_of(self, path) if inplace else value)
                    moved.append(old)
                elif strict:
                    raise missing_key_error(old, list(rest.keys(True)), type(self).__name__)
                elif default is not MISSING and default is not None:
                    part._put(new, default)
            parts.append(part)
        if inplace:  # now that no key is missing
            rest = self
            for old in moved:
                rest.pop(old)
        if not reproduce_struct:
            rest.filter_empty_()
        return (*parts, rest)

    def _levels(self) -> Self:
        """The tree of nested collections without leaves and non-tensor entries."""
        new = self.empty()
        for key, value in self._entries():
            if not isinstance(value, Tensor) and not value._is_non_tensor:
                new._set_str(key, value._levels())
        return new

    def separates(self, *keys: Any, default: Any = MISSING, strict: bool = True, filter_empty: bool = True) -> Self:
        """Remove entries from this collection and return them in a new one.

        Args:
            *keys: nested keys.
            default: value in the result for a missing key.
            strict: without a default, raise KeyError for a missing key; ``False`` gives a ``None`` entry.
            filter_empty: drop levels of ``self`` that become empty.

        Raises:
            KeyError: a key is missing (``strict``).
            RuntimeError: the collection is locked.
        """
        self._require_unlocked()
        paths = [require_path(key) for key in keys]
        if strict and default is MISSING:
            for path in paths:
                if entry_of(self, path) is None:
                    self._raise_missing(path)
        part = self.empty()
        for path in paths:
            if entry_of(self, path) is not None:
                part._put(path, self.pop(path))
            else:
                part._put(path, None if default is MISSING else default)
        if filter_empty:
            self.filter_empty_()
        return part

    # -- the same leaves in another tree -----------------------------------------------------------------------------

    def flatten_keys(self, separator: str = ".", inplace: bool = False, is_leaf: IsLeaf | None = None) -> Self:
        """Flatten nested keys: ``("a", "b")`` becomes ``"a.b"``. Leaves are shared.

        As a context manager, the result of the block is written back in nested form.

        Args:
            separator: string between the names.
            inplace: move the entries here and return ``self``.
            is_leaf: called with the type of an entry; True keeps collections of that type as they are. Default:
                :func:`is_leaf_nontensor`.

        Raises:
            KeyError: two keys become equal.
            RuntimeError: the collection is locked (``inplace``).

        Example:
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
            >>> list(td.flatten_keys().keys())
            ['a', 'b.c']
        """
        if inplace:
            self._require_unlocked()
        flat: dict[str, Any] = {}
        types: dict[str, str] = {}
        if _flatten_into(self, "", separator, is_leaf, flat, types):
            names = _collisions(self, separator, is_leaf)
            raise KeyError(f"Flattening keys in tensordict causes keys {names} to collide (separator {separator!r})")
        if inplace:
            # Entries that were at the top before come first.
            flat = {**{key: flat[key] for key in self._key_list() if key in flat}, **flat}
            self._keep(flat)
            new = self
        else:
            new = self._plain_rebuild(flat)
        if types:
            new._types = types
        new._last_op = (weakref.ref(self), lambda td: td.unflatten_keys(separator))
        return new

    def _plain_rebuild(self, source: dict[str, Any]) -> Any:
        """A collection with other keys: a TensorDict, also for a tensorclass, whose fields are fixed."""
        return self._free_class()._trusted(source, self._batch_size, self._device, self._names)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Entries with joined names in nested collections: ``"a.b"`` becomes ``("a", "b")``. Leaves are shared.

        As a context manager, the result of the block is written back in flat form.

        Args:
            separator: string between the names.
            inplace: move the entries here and return ``self``.

        Raises:
            KeyError: a nested key would overwrite an entry or continue below one.
            RuntimeError: the collection is locked (``inplace``).
        """
        if inplace and self._lock is not None:
            raise self._locked_error()
        entries = list(self._entries())
        root = self._rebuild({}, self._batch_size, self._names)
        root._source.update([item for item in entries if separator not in item[0]])
        levels: dict[str, Any] = {}  # collections of the result; those of `self` are copied before a write
        for key, value in entries:
            if separator in key:
                head, _, last = key.rpartition(separator)
                level = levels.get(head)
                if level is None:
                    level = levels[head] = _open_level(root, head, levels, separator)
                if type(level._source) is not dict:
                    if entry_of(level, (last,)) is not None:
                        raise _exists(key, separator)
                    level._set_str(last, value)
                elif last in level._source:
                    raise _exists(key, separator)
                else:
                    level._source[last] = value
        types = pruned(self._types, self._source)
        if inplace:
            self._keep(root._source)
            root = self
        for key, name in (types or {}).items():
            name_type(root, tuple(key.split(separator)), name)
        root._last_op = (weakref.ref(self), lambda td: td.flatten_keys(separator))
        return root

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Sequence[int] | None = None,
        device: DeviceLike | None = MISSING,
        names: Any = MISSING,
    ) -> Self:
        """A collection without entries, with the metadata of this one, unlocked.

        Args:
            recurse: keep the (empty) nested collections, and non-tensor data.
            batch_size: another batch size.
            device: another device; ``None`` for no device.
            names: other names of the batch dimensions.

        Raises:
            RuntimeError: ``recurse`` with a batch size that a nested collection does not start with.
        """
        size = self._batch_size if batch_size is None else torch.Size(batch_size)
        new = self._rebuild({}, size, self._names if batch_size is None else None)
        if device is not MISSING:
            new._device = None if device is None else torch.device(device)
        if names is not MISSING:
            new._assign_names(names)
        if recurse:
            for key, value in self._entries():
                if isinstance(value, Tensor) or value._is_unbatched:
                    continue
                if value._batch_size[: len(size)] != size:
                    raise RuntimeError(
                        f"empty(recurse=True) cannot give the batch size {list(size)} to the entry {key!r}: its batch "
                        f"size {list(value._batch_size)} does not start with it"
                    )
                child = value.copy() if value._is_non_tensor else value.empty(True, device=device)
                if value._is_non_tensor and device is not MISSING:
                    child._device = new._device
                new._set_str(key, child)
        return new

    def filter_empty_(self) -> Self:
        """Remove nested collections without a leaf, at any depth; non-tensor data is a leaf.

        Raises:
            RuntimeError: the collection is locked and has such a collection.

        Returns:
            self
        """
        for key, value in list(self._entries()):
            if isinstance(value, Tensor) or value._is_non_tensor:
                continue
            if value.is_empty():
                self._require_unlocked()
                self._del_str(key)
            else:
                value.filter_empty_()
        return self

    def filter_non_tensor_data(self) -> Self:
        """A collection without the non-tensor entries, at any depth; tensors are shared."""
        kept = {}
        for key, value in self._entries():
            if isinstance(value, Tensor):
                kept[key] = value
            elif value._is_unbatched:
                kept[key] = value
            elif not value._is_non_tensor:
                kept[key] = value.filter_non_tensor_data()
        return self._rebuild(kept, self._batch_size, self._names)

    def _non_tensor_part(self) -> Self:
        """The non-tensor entries only."""
        kept = {
            key: value
            for key, value in self._entries()
            if getattr(value, "_is_non_tensor", False) and not value._is_unbatched
        }
        return self._rebuild(kept, self._batch_size, self._names)

    # -- joining entries ---------------------------------------------------------------------------------------------

    def cat_tensors(self, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False) -> Self:
        """Concatenate entries into a new one and remove them.

        Args:
            *keys: nested keys of tensors.
            out_key: nested key of the result.
            dim: dimension of the entries (not of the batch).
            keep_entries: do not remove the entries.

        Raises:
            RuntimeError: the entries or the result do not fit, or the collection is locked. Nothing has changed then.

        Returns:
            self

        Example:
            >>> TensorDict(a=torch.zeros(1), b=torch.ones(1)).cat_tensors("a", "b", out_key="c")["c"]
            tensor([0., 1.])
        """
        return self._join(torch.cat, keys, out_key, dim, keep_entries)

    def stack_tensors(self, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False) -> Self:
        """Stack entries into a new one and remove them; arguments as for :meth:`cat_tensors`."""
        return self._join(torch.stack, keys, out_key, dim, keep_entries)

    def _join(self, join: Any, keys: tuple[Any, ...], out_key: Any, dim: int, keep_entries: bool) -> Self:
        self._require_unlocked()
        paths = [unravel_key(key) for key in keys]
        target = unravel_key(out_key)
        entries = []
        for path in paths:
            entries.append(self.get(path, None))
            if entries[-1] is None:
                self._raise_missing(require_path(path))
        result = join(entries, dim)
        for node in (self.copy(), self):  # the copy raises before anything is removed
            if not keep_entries:
                for path in dict.fromkeys(paths):
                    node.del_(path)
            node.set(target, result)
        return self

    def cat_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None) -> Tensor:
        """All tensors of the tree, concatenated.

        Args:
            dim: dimension of the tensors.
            sorted: ``True`` for alphabetical order, ``None`` or ``False`` for the order of insertion, or the list of
                all leaf keys in the wanted order.
            out: tensor to write to.

        Raises:
            RuntimeError: the tensors do not fit each other, or a list of keys does not match the leaves.
        """
        return torch.cat(self._ordered_leaves(sorted), dim, out=out)

    def stack_from_tensordict(self, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None) -> Tensor:
        """All tensors of the tree, stacked; arguments as for :meth:`cat_from_tensordict`."""
        return torch.stack(self._ordered_leaves(sorted), dim, out=out)

    def _ordered_leaves(self, order: Any) -> list[Tensor]:
        if order is None or order is False:
            return [value for _, value in leaf_items(self, (), [])]
        if order is True:
            return list(self.values(True, True, default_is_leaf, sort=True))
        keys = [unravel_key(key) for key in order]
        leaves = dict(leaf_items(self, (), []))
        if set(keys) != set(leaves) or len(keys) != len(leaves):
            raise RuntimeError(f"sorted= must list every leaf once: got {keys}, the leaves are {list(leaves)}")
        return [leaves[key] for key in keys]


def _group(keys: Sequence[Any], whole_wins: bool) -> dict[str, list[Any] | None]:
    """First steps of nested keys with the remaining paths; ``None`` stands for the whole entry.

    ``"a"`` and ``("a", "b")`` together exclude all of ``"a"``, and select only ``("a", "b")``.
    """
    groups: dict[str, list[Any] | None] = {}
    for key in keys:
        if type(key) is str:
            if whole_wins or key not in groups:
                groups[key] = None
            continue
        path = path_of(key) if isinstance(key, tuple) else (key,) if isinstance(key, str) else ()
        if not path:
            raise RuntimeError(
                f"keys are passed one by one, each a string or a non-empty tuple of strings; got {key!r} of type "
                f"{type(key).__name__}"
            )
        first = path[0]
        if len(path) == 1:
            if whole_wins or first not in groups:
                groups[first] = None
            continue
        below = groups.setdefault(first, [])
        if below is None and not whole_wins:
            below = groups[first] = []
        if below is not None:
            below.append(path[1:] if len(path) > 2 else path[1])
    return groups


def _as_moves(key_set: KeySet, rest: Any) -> list[tuple[Any, Any]]:
    """Pairs of key and new key for a key set."""
    if isinstance(key_set, Mapping):
        return list(key_set.items())
    if callable(key_set):
        items = [((key,) if isinstance(key, str) else key, value) for key, value in leaf_items(rest, (), [])]
        return [(path, path) for path, value in items if key_set(path, value)]
    return [(key, key) for key in key_set]


def _check_disjoint(paths: list[tuple[str, ...]], what: str) -> None:
    seen = set(paths)
    if len(seen) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"{twice} is a {what} more than once")
    for path in paths:
        for depth in range(1, len(path)):
            if path[:depth] in seen:
                raise ValueError(
                    f"the {what} {path} lies inside the {what} {path[:depth]}, so the order of the mapping would decide"
                )


def _check_free(td: Any, path: tuple[str, ...]) -> None:
    for depth in range(1, len(path) + 1):
        value = entry_of(td, path[:depth])
        if value is None:
            return
        if depth == len(path):
            raise ValueError(f"the destination {path} is already present and is not renamed away")
        if isinstance(value, Tensor) or value._is_non_tensor:
            raise ValueError(f"the destination {path} runs through the entry {path[:depth]}, which is not a tensordict")


def _flatten_into(
    td: Any, prefix: str, separator: str, is_leaf: IsLeaf | None, out: dict[str, Any], types: dict[str, str]
) -> bool:
    """Add the leaves of a tree, and their Arrow types, under joined names; return whether two names collide."""
    collide = False
    if td._types is not None:
        types.update((prefix + key, name) for key, name in td._types.items())
    for key, value in td._entries():
        name = prefix + key
        if isinstance(value, Tensor) or (value._is_non_tensor if is_leaf is None else is_leaf(type(public(value)))):
            collide |= name in out
            out[name] = value
        elif not value._is_non_tensor:
            collide |= _flatten_into(value, name + separator, separator, is_leaf, out, types)
    return collide


def _collisions(td: Any, separator: str, is_leaf: IsLeaf | None) -> list[str]:
    names = [key if isinstance(key, str) else separator.join(key) for key, _ in td.items(True, True, is_leaf)]
    return sorted({name for name in names if names.count(name) > 1})


def _exists(key: str, separator: str) -> KeyError:
    path = tuple(key.split(separator))
    return KeyError(f"Unflattening key(s) in tensordict will override an existing entry: unflatten_keys() makes {path}")


def _open_level(root: Any, name: str, levels: dict[str, Any], separator: str) -> Any:
    """The collection at a path of the result, created (or copied from the original) if missing."""
    above, found, part = name.rpartition(separator)
    if not found:
        node = root
    else:
        node = levels.get(above)
        if node is None:
            node = levels[above] = _open_level(root, above, levels, separator)
    child = entry_of(node, (part,))
    if child is None:
        child = node._new_child()
    elif isinstance(child, Tensor) or child._is_non_tensor:
        path = tuple(name.split(separator))
        raise KeyError(
            "Unflattening key(s) in tensordict will override an existing entry: unflatten_keys() makes one below "
            f"{path}, which is not a collection"
        )
    else:
        child = child.copy()
    node._set_str(part, child)
    return child
