"""The same leaves in another tree: flat and nested keys, empty trees, filters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.kernel import DeviceLike, Kernel
from tensordict_lite.settings import MISSING
from tensordict_lite.views import entry_of, public

IsLeaf = Callable[[type], bool]


class NestingOps(Kernel):
    """``flatten_keys``, ``unflatten_keys``, ``empty`` and the filters."""

    __slots__ = ()

    def flatten_keys(self, separator: str = ".", inplace: bool = False, is_leaf: IsLeaf | None = None) -> Self:
        """Nested entries under joined names: ``("a", "b")`` becomes ``"a.b"``. Leaves are shared.

        As a context manager, the result of the block is written back in nested form.

        Args:
            separator: string between the names.
            inplace: move the entries here and return ``self``.
            is_leaf: function of a type: collections of these types are kept. Default: :func:`is_leaf_nontensor`.

        Raises:
            KeyError: two keys become equal.
            RuntimeError: the collection is locked (``inplace``).

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
            >>> list(td.flatten_keys().keys())
            ['a', 'b.c']
        """
        if inplace:
            if self._lock is not None:
                raise self._locked_error()
        flat: dict[str, Any] = {}
        if _flatten_into(self, "", separator, is_leaf, flat):
            names = _collisions(self, separator, is_leaf)
            raise KeyError(f"Flattening keys in tensordict causes keys {names} to collide (separator {separator!r})")
        if inplace:
            # Entries that were at the top before come first.
            flat = {**{key: flat[key] for key in self._key_list() if key in flat}, **flat}
            self._keep(flat)
            new = self
        else:
            new = self._plain_rebuild(flat)
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
        if inplace:
            self._keep(root._source)
            root = self
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
            new.names = names
        if recurse:
            for key, value in self._entries():
                if isinstance(value, Tensor) or value._is_unbatched:
                    continue
                if value._batch_size[: len(size)] != size:
                    raise RuntimeError(
                        f"empty(recurse=True) cannot give the batch size {list(size)} to the entry {key!r}: its batch "
                        f"size {list(value._batch_size)} does not start with it"
                    )
                device_kwarg = {} if device is MISSING else {"device": device}
                new._set_str(key, value.copy() if value._is_non_tensor else value.empty(True, **device_kwarg))
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
                if self._lock is not None:
                    raise self._locked_error()
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


def _flatten_into(td: Any, prefix: str, separator: str, is_leaf: IsLeaf | None, out: dict[str, Any]) -> bool:
    """Add the leaves of a tree under joined names; return whether two of them collide."""
    collide = False
    for key, value in td._entries():
        name = prefix + key
        if isinstance(value, Tensor) or (value._is_non_tensor if is_leaf is None else is_leaf(type(public(value)))):
            collide |= name in out
            out[name] = value
        elif not value._is_non_tensor:
            collide |= _flatten_into(value, name + separator, separator, is_leaf, out)
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
