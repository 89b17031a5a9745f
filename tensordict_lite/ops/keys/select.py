"""Operations by key: rename, select, exclude and split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path
from tensordict_lite.ops.arrow_types import name_types, pruned, types_at
from tensordict_lite.settings import MISSING
from tensordict_lite.views import entry_of, leaf_items

KeySet = Sequence[Any] | Mapping[Any, Any] | Callable[[tuple[str, ...], Tensor], bool]


class SelectOps(Kernel):
    """``select``, ``exclude``, ``rename_key_``, ``rename_keys``, ``split_keys`` and ``separates``."""

    __slots__ = ()

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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
            kept = (one and self._select_path(one)) or self._select_tree(_group(keys, False), inplace, strict)
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
        if self._lock is not None:
            raise self._locked_error()
        if entry_of(self, old) is None:
            self._raise_missing(old)
        if old == new:
            return self
        if safe and new[: len(old)] != old and entry_of(self, new) is not None:
            raise KeyError(f"key {new_key!r} is already present in {type(self).__name__}, and safe=True")
        types = types_at(self, [old])
        value = self.pop(old)
        try:
            if len(new) == 1:
                self._set_str(new[0], self._fit(value, new[0]) if len(old) > 1 else value)
            else:
                self._put(new, value)
            name_types(self, [new], types)
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        types = types_at(self, [old for old, _ in moves])
        values = [result.pop(old) for old, _ in moves]
        for (_, new), value in zip(moves, values):
            _check_free(result, new)
            result._put(new, value)
        name_types(result, [new for _, new in moves], types)
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        if self._lock is not None:
            raise self._locked_error()
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
