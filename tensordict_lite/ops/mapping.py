"""The mapping interface: keys, values, items, membership, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict_lite.keys import missing_key_error, require_path
from tensordict_lite.views import NestedKeysView, StringKeysView, all_items, sort_key

if TYPE_CHECKING:
    from typing_extensions import Self

_MISSING = object()


class MappingOps:
    """Everything that a collection does as a mapping from (nested) keys to entries."""

    __slots__ = ()

    # Whether instances wrap one non-tensor value: entries of such a type are leaves, never levels.
    _is_non_tensor = False

    def _entries(self) -> Iterable[tuple[str, Any]]:
        """Direct items, raw."""
        source = self._source
        if type(source) is dict:
            return source.items()
        return [(key, self._get_str(key)) for key in self._key_list()]

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
            is_leaf: function of a type that says which entries are leaves. Default: tensors are;
                :func:`is_leaf_nontensor` adds non-tensor data.
            sort: alphabetical order, a container before its content.

        Example:
            >>> import torch
            >>> from tensordict_lite import TensorDict
            >>> td = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
            >>> list(td.keys(True, True)), (("b",), "c") in td.keys(True)
            (['a', ('b', 'c')], True)
        """
        if not include_nested and not leaves_only and not sort:
            return StringKeysView(self)
        return NestedKeysView(self, include_nested, leaves_only, is_leaf, sort)

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Pairs of key and raw entry; the options are those of :meth:`keys`, a container before its content."""
        if include_nested:
            items: Any = all_items(self, (), [], leaves_only, is_leaf)
        else:
            items = self._entries()
            if leaves_only:
                if is_leaf is None:
                    items = [item for item in items if isinstance(item[1], Tensor)]
                else:
                    items = [item for item in items if is_leaf(type(item[1]))]
        return sorted(items, key=lambda item: sort_key(item[0])) if sort else items

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Raw entries, in the order of :meth:`items`."""
        if not include_nested and not leaves_only and not sort and type(self._source) is dict:
            return self._source.values()
        return [value for _, value in self.items(include_nested, leaves_only, is_leaf, sort=sort)]

    def __contains__(self, key: Any) -> bool:
        return self._has_path(require_path(key))

    def _has_path(self, path: tuple[str, ...]) -> bool:
        node: Any = self
        for part in path:
            if isinstance(node, Tensor) or node._is_non_tensor:
                return False
            try:
                node = node._get_str(part)
            except KeyError:
                return False
        return True

    # -- update ---------------------------------------------------------------------------------------------

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        is_leaf: Callable[[type], bool] | None = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Writes entries."""
        if self._lock is not None and not inplace and not ignore_lock:
            raise self._locked_error()
        source = input_dict_or_td
        for key, value in source.items():
            if isinstance(value, (Mapping,)) or hasattr(value, "_is_non_tensor"):
                path = require_path(key)
                current = self.get(path, None)
                if current is not None and not isinstance(current, Tensor) and not current._is_non_tensor:
                    current.update(value, clone=clone, inplace=inplace)
                    continue
            if clone and hasattr(value, "clone"):
                value = value.clone()
            self.set(key, value, inplace=inplace, non_blocking=non_blocking)
        return self

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copies values into existing entries."""
        for key, value in input_dict_or_td.items():
            self.set_(key, value, non_blocking=non_blocking)
        return self

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        """Copy of the tree."""
        if recurse:
            return self._rebuild({k: v.clone() for k, v in self._source.items()}, self._batch_size, self._names)
        return self._rebuild(
            {k: v if isinstance(v, Tensor) else v.clone(False) for k, v in self._source.items()},
            self._batch_size,
            self._names,
        )

    def empty(self, recurse: bool = False, **kwargs: Any) -> Self:
        """Same metadata, no entries."""
        if not recurse:
            return self._rebuild({}, self._batch_size, self._names)
        return self._rebuild(
            {k: v.empty(True) for k, v in self._source.items() if not isinstance(v, Tensor)},
            self._batch_size,
            self._names,
        )

    def is_empty(self) -> bool:
        """Whether the tree holds no leaf."""
        return all(not isinstance(v, Tensor) and not v._is_non_tensor and v.is_empty() for _, v in self._entries())

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Removes an entry and returns it."""
        path = require_path(key)
        if not self._has_path(path):
            if default is _MISSING:
                raise missing_key_error(path, self._key_list(), type(self).__name__)
            return default
        value = self[path]
        self.del_(path)
        return value
