"""The mapping interface: keys, values, items, membership, removal, and types of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

from torch import Tensor

from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path
from tensordict_lite.ops.keys.join import JoinOps
from tensordict_lite.ops.keys.nesting import NestingOps
from tensordict_lite.ops.keys.select import SelectOps
from tensordict_lite.ops.keys.update import UpdateOps
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

_new_object = object.__new__


class MappingOps(UpdateOps, SelectOps, NestingOps, JoinOps):
    """The mapping interface, from (nested) keys to entries."""

    __slots__ = ()

    # Whether instances wrap one non-tensor value: entries of such a type are leaves, never levels.
    _is_non_tensor = False
    # Whether instances hold a tensor without batch dimensions.
    _is_unbatched = False
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
            >>> list(td.keys(True, True)), (("b",), "c") in td.keys(True)
            (['a', ('b', 'c')], True)
        """
        if include_nested and leaves_only and not sort and is_leaf is None:
            leaves = _new_object(LeafKeysView)
            leaves._mapping = self
            return leaves
        if include_nested or leaves_only or sort:
            return NestedKeysView(self, include_nested, leaves_only, is_leaf, sort)
        view = _new_object(StringKeysView)
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
            >>> import torch
            >>> from tensordict_lite import TensorDict
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
        parent = self if len(path) == 1 else entry_of(self, path[:-1])
        if parent._lock is not None:
            raise parent._locked_error()
        parent._del_str(path[-1])
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
        if self._lock is not None:
            raise self._locked_error()
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

    # -- non-tensor entries -----------------------------------------------------------------------------------

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Store any object under ``key`` unchanged, also numbers and tensors.

        Raises:
            RuntimeError: the collection is locked.

        Returns:
            self

        Example:
            >>> from tensordict_lite import TensorDict
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
        if self._lock is not None:
            raise self._locked_error()
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
            if node._lock is not None:
                raise node._locked_error()
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
            >>> from tensordict_lite import TensorDict
            >>> TensorDict.fromkeys(["a", ("b", "c")], 1)["b", "c"]
            tensor(1)
        """
        return cls._plain_class()(dict.fromkeys(keys, value), batch_size=())
