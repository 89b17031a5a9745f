"""Writing many entries at once: ``update`` and its in-place and indexed forms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.errors import EntryKindError
from tensordict_lite.indexing import index_batch_size, normalise_index
from tensordict_lite.kernel import Kernel
from tensordict_lite.keys import missing_key_error, require_path
from tensordict_lite.ops.generated import any_requires_grad
from tensordict_lite.ops.operands import pair_alike
from tensordict_lite.ops.put import put_alike, put_rows
from tensordict_lite.views import entry_of, has_entry, leaf_items

IsLeaf = Callable[[type], bool]
_ONLY_TENSORS = frozenset((Tensor,))


class UpdateOps(Kernel):
    """``update``, ``update_``, ``update_at_`` and ``replace``."""

    __slots__ = ()

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        is_leaf: IsLeaf | None = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Write the entries of a mapping or another collection. Nested collections are merged, not replaced.

        The update is not atomic: if an entry does not fit, those before it are written.

        Args:
            input_dict_or_td: collection, or mapping from (nested) keys to values.
            clone: copy the values first; by default tensors and new nested collections are shared.
            inplace: overwrite existing tensors instead of replacing them.
            non_blocking: for copies to :attr:`device`.
            keys_to_update: nested keys to write; others are ignored.
            is_leaf: function of a type: values of these types replace entries instead of being merged. Default:
                :func:`is_leaf_nontensor`.
            update_batch_size: take over the batch size of the input where it differs, here or in a nested collection;
                the input must then hold every key.
            ignore_lock: deprecated and ignored.
            **kwargs: more entries; they override those of the input.

        Raises:
            RuntimeError: an entry does not fit, the batch sizes conflict, or the collection is locked and ``inplace``
                is false.
            KeyError: a key is not a nested key.

        Returns:
            self

        Example:
            >>> td = TensorDict({"n": {"x": torch.zeros(3)}}, [3])
            >>> sorted(td.update({"n": {"y": torch.ones(3)}}, z=torch.ones(3)).keys(True, True), key=str)
            [('n', 'x'), ('n', 'y'), 'z']
        """
        if ignore_lock:
            warnings.warn(
                "update(ignore_lock=True) has no effect any more: use `with td.unlock_(): td.update(...)`",
                DeprecationWarning,
                stacklevel=2,
            )
        if self._lock is not None and not inplace:
            raise self._locked_error()
        if input_dict_or_td is self:
            return self.update(kwargs, clone, inplace) if kwargs else self
        if kwargs:
            if input_dict_or_td is not None:
                self.update(
                    _without(input_dict_or_td, kwargs),
                    clone,
                    inplace,
                    non_blocking=non_blocking,
                    keys_to_update=keys_to_update,
                    is_leaf=is_leaf,
                    update_batch_size=update_batch_size,
                )
            input_dict_or_td = kwargs
        elif input_dict_or_td is None:
            return self
        if keys_to_update is not None:
            if update_batch_size and not _compatible(self, input_dict_or_td):
                raise RuntimeError(
                    "Updating tensordicts of different batch-size with keys_to_update is not supported: the entries "
                    f"that are left out have batch size {list(self._batch_size)}, those of the source "
                    f"{list(input_dict_or_td._batch_size)}"
                )
            input_dict_or_td = _restrict(input_dict_or_td, {require_path(key) for key in keys_to_update})
        self._merge(input_dict_or_td, clone, inplace, non_blocking, is_leaf, update_batch_size)
        return self

    def _merge(
        self,
        other: Any,
        clone: bool,
        inplace: bool,
        non_blocking: bool,
        is_leaf: IsLeaf | None,
        update_batch_size: bool = False,
    ) -> None:
        """:meth:`update` from one mapping or collection, at one level."""
        if self._lock is not None and not inplace:
            raise self._locked_error()
        if isinstance(other, Kernel):
            same = other._batch_size == self._batch_size
            if not same:
                self._reconcile_batch_size(other, update_batch_size, inplace)
            source = other._source
            if (
                same
                and not (clone or inplace)
                and type(source) is dict is type(self._source)
                and self._device is None
                and self._writes_directly
                and _ONLY_TENSORS.issuperset(map(type, source.values()))
            ):
                self._source.update(source)
                return
            items = source.items() if type(source) is dict else other._entries()
            self._update_items(items, clone, inplace, non_blocking, is_leaf, same, update_batch_size)
        else:
            self._update_items(other.items(), clone, inplace, non_blocking, is_leaf, False, update_batch_size)

    def _update_items(
        self,
        items: Iterable[tuple[Any, Any]],
        clone: bool,
        inplace: bool,
        non_blocking: bool,
        is_leaf: IsLeaf | None,
        fitting: bool,
        resize: bool,
    ) -> None:
        """Write entries; ``fitting``: their tensors are known to start with the batch size.

        ``resize``: nested collections also take over batch sizes.
        """
        source = self._source
        # The common case, new tensors by reference into a dict, is a dictionary write after one comparison of shapes.
        dense = type(source) is dict
        direct = dense and not inplace and self._device is None and self._writes_directly
        size = self._batch_size
        dims = len(size)
        # One dimension is the common case, and comparing an int takes half the time of slicing a shape.
        rows = size[0] if dims == 1 else -1
        for key, value in items:
            if type(key) is str:
                cls = type(value)
                if cls is Tensor:
                    if clone:
                        value = value.clone()
                    try:
                        if direct and (
                            fitting
                            or not dims
                            or ((shape := value.shape) and shape[0] == rows)
                            or (dims > 1 and shape[:dims] == size)
                        ):
                            source[key] = value
                            continue
                    except RuntimeError:  # a strided nested tensor has no shape
                        pass
                    self.set(key, value, inplace, non_blocking=non_blocking)
                    continue
                current = source.get(key) if dense else entry_of(self, (key,))
            else:
                path = require_path(key)
                if len(path) > 1:
                    child = self._level_on(path)
                    child.update({path[1:]: value}, clone, inplace, non_blocking=non_blocking, is_leaf=is_leaf)
                    continue
                key, cls = path[0], type(value)
                current = entry_of(self, path)
            if current is not None and not isinstance(current, Tensor) and _is_level(value, cls, is_leaf):
                if not current._is_non_tensor:
                    into_dense = cls is not dict and type(current._source) is dict
                    if into_dense and type(getattr(value, "_source", None)) is list:
                        lazily = _merge_lazy(current, value, clone, inplace, non_blocking, is_leaf, resize)
                        if lazily is not current:
                            self.set(key, lazily)
                    elif current._merges_directly:
                        current._merge(value, clone, inplace, non_blocking, is_leaf, resize)
                    else:
                        options = {"non_blocking": non_blocking, "is_leaf": is_leaf, "update_batch_size": resize}
                        current.update(value, clone, inplace, **options)
                    continue
            if clone:
                value = _cloned(value)
            self.set(key, value, inplace, non_blocking=non_blocking)

    def _level_on(self, path: tuple[str, ...]) -> Any:
        """The nested collection at the first step of a path, created if missing."""
        child = entry_of(self, path[:1])
        if child is None or isinstance(child, Tensor) or child._is_non_tensor:
            self._parent_for(path)
            child = entry_of(self, path[:1])
        return child

    # The `update` of other classes (lazy stacks, field checks) is called as a method.
    _merges_directly = False

    # Classes with their own `set` (such as field checks of tensorclasses) disable the shortcut.
    _writes_directly = True

    def _reconcile_batch_size(self, other: Any, update_batch_size: bool, inplace: bool) -> None:
        if _compatible(self, other):
            return  # one is a prefix of the other: the entries decide
        mine, theirs = self._batch_size, other._batch_size
        if not update_batch_size or inplace:
            raise RuntimeError(
                f"update() got a source of batch size {list(theirs)} for a destination of batch size {list(mine)}. "
                "Pass update_batch_size=True (and inplace=False) to take over the batch size of the source."
            )
        check_replaceable(self, other)
        # Remove entries that the new ones replace; nested collections are kept and updated in turn.
        self._source = {
            key: value
            for key, value in self._source.items()
            if not isinstance(value, Tensor) and not value._is_non_tensor and _is_tree(entry_of(other, (key,)))
        }
        self._batch_size = theirs
        self._names = None if other._names is None else list(other._names)

    def update_(
        self,
        input_dict_or_td: Any = None,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copy values into existing entries, also of a locked collection.

        Args:
            input_dict_or_td: collection, or mapping from (nested) keys to values, for some or all entries.
            non_blocking: for copies between devices.
            keys_to_update: nested keys to write; others are ignored.
            **kwargs: more entries.

        Raises:
            KeyError: there is no entry under a key.
            RuntimeError: a value does not fit its entry.

        Returns:
            self
        """
        if input_dict_or_td is self and not kwargs:
            return self
        if input_dict_or_td is not None:
            if keys_to_update is not None:
                input_dict_or_td = _restrict(input_dict_or_td, {require_path(key) for key in keys_to_update})
            self._copy_entries(input_dict_or_td, non_blocking)
        if kwargs:
            if keys_to_update is not None:
                kwargs = _restrict(kwargs, {require_path(key) for key in keys_to_update})
            self._copy_entries(kwargs, non_blocking)
        return self

    def _copy_entries(self, source: Any, non_blocking: bool) -> None:
        """:meth:`update_` from one mapping or collection: one walk, one fused copy."""
        into: list[Tensor] = []
        values: list[Tensor] = []
        if not (type(source) is type(self) and pair_alike(self, source, into, values)):
            into, values = [], []
            items = source._entries() if isinstance(source, Kernel) else source.items()
            self._pair_leaves(items, (), into, values, non_blocking)
        if into:
            try:
                # What `inplace` does, inlined: a call would take a small tree a tenth longer.
                if any_requires_grad()(*into, *values) and torch.is_grad_enabled():
                    for entry, value in zip(into, values):
                        entry.copy_(value, non_blocking=non_blocking)
                else:
                    torch._foreach_copy_(into, values, non_blocking)
            except RuntimeError:
                self._name_misfit(into, values, non_blocking)
                raise

    def _name_misfit(self, into: list[Tensor], values: list[Tensor], non_blocking: bool) -> None:
        """After a failed fused copy: copy one by one, so that the error names the entry."""
        names = {id(leaf): key for key, leaf in leaf_items(self, (), [])}
        for entry, value in zip(into, values):
            path = names[id(entry)]
            _copy_into(self, entry, value, (path,) if isinstance(path, str) else path, non_blocking)

    def _pair_leaves(
        self,
        items: Iterable[tuple[Any, Any]],
        above: tuple[Any, ...],
        into: list[Tensor],
        values: list[Tensor],
        non_blocking: bool,
    ) -> None:
        """Collect the tensors for one fused copy; write all other entries on the way.

        ``above`` is the path to here as a chain ``(chain, key)``, which only errors spell out.
        """
        source = self._source
        if type(source) is not dict:
            for key, value in items:
                if not has_entry(self, require_path(key)):
                    raise _not_in_destination(self, _spelled(above), key)
                self.set_(key, value, non_blocking=non_blocking)
            return
        for key, value in items:
            if type(key) is not str:
                key = require_path(key)
                if len(key) > 1:
                    child = source.get(key[0])
                    if child is None or isinstance(child, Tensor) or child._is_non_tensor:
                        raise _not_in_destination(self, _spelled(above), key)
                    child._pair_leaves([(key[1:], value)], (above, key[0]), into, values, non_blocking)
                    continue
                key = key[0]
            current = source.get(key)
            if current is None:
                if self._leaves_unset(key, value):
                    continue
                raise _not_in_destination(self, _spelled(above), key)
            if type(current) is Tensor or isinstance(current, Tensor):
                if type(value) is Tensor or isinstance(value, Tensor):
                    into.append(current)
                    values.append(value)
                else:
                    _copy_into(self, current, value, (*_spelled(above), key), non_blocking)
            elif current._is_non_tensor:
                self._write_in_place(key, value, non_blocking)
            elif type(current._source) is not dict:
                current.update_(value, non_blocking=non_blocking)
            else:
                chain = (above, key)
                alike = type(value) is type(current)
                items = value._source.items() if alike else _items_of(value, current, chain)
                current._pair_leaves(items, chain, into, values, non_blocking)

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
    ) -> Self:
        """Copy values into the rows ``idx`` of existing entries, also of a locked collection.

        Args:
            input_dict_or_td: collection or mapping; values have the shape of the rows.
            idx: any index on the batch dimensions.
            non_blocking: for copies between devices.
            keys_to_update: nested keys to write; others are ignored.

        Raises:
            KeyError: there is no entry under a key.
            RuntimeError: a value does not fit the rows.

        Returns:
            self

        Example:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.update_at_({"a": torch.ones(2)}, slice(0, 2))["a"]
            tensor([1., 1., 0.])
        """
        source = input_dict_or_td
        if keys_to_update is not None:
            source = _restrict(source, {require_path(key) for key in keys_to_update})
        index = normalise_index(idx, len(self._batch_size))
        if put_alike(self, index, source):
            return self
        for key, value in source._entries() if isinstance(source, Kernel) else source.items():
            path = require_path(key)
            entry = entry_of(self, path)
            if entry is None:
                if self._leaves_unset(key, value):
                    continue
                raise missing_key_error(path, list(self.keys(True)), type(self).__name__)
            if isinstance(entry, Tensor):
                put_rows(entry, index, value, ".".join(path))
            elif entry._is_non_tensor:
                parent = entry_of(self, path[:-1])
                if not isinstance(value, Kernel):
                    value = entry._like_rows(value, index_batch_size(self._batch_size, index))
                parent._set_index(index, parent.empty(batch_size=value._batch_size)._with(path[-1], value))
            elif _is_tree(value) or isinstance(value, Mapping):
                entry.update_at_(value, index, non_blocking=non_blocking)
            elif isinstance(value, (Tensor, int, float)):  # for every tensor of the collection
                entry._set_index(index, value)
            else:
                raise EntryKindError(".".join(path), entry, value)
        return self

    def _overwrite(self, item: Any, parent: Any) -> Any:
        """In-place write of a whole nested collection."""
        self.update_(item)
        return self

    def _with(self, key: str, value: Any) -> Self:
        self._set_str(key, value)
        return self

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """A shallow copy with some entries replaced, merged as in :meth:`update`; ``self`` if there are no entries.

        Args:
            *args: at most one mapping or collection.
            **kwargs: more entries, with precedence.

        Raises:
            RuntimeError: more than one positional argument, or an argument that is not a mapping.

        Example:
            >>> td = TensorDict(a=torch.zeros(1), b=torch.zeros(1))
            >>> td.replace(a=torch.ones(1))["a"], td["a"]
            (tensor([1.]), tensor([0.]))
        """
        if len(args) > 1:
            raise RuntimeError(
                f"replace() takes one mapping (or collection) of the entries to replace, got {len(args)} arguments"
            )
        source = args[0] if args else None
        if source is not None and not isinstance(source, Kernel) and not isinstance(source, Mapping):
            raise RuntimeError(f"replace() takes a mapping or a collection, not a {type(source).__name__}")
        if not kwargs and (source is None or not len(list(source.keys()))):
            return self
        return self.copy().update(source, **kwargs)


def _compatible(td: Any, other: Any) -> bool:
    """Whether one batch size is a prefix of the other; a mapping has none."""
    if not isinstance(other, Kernel):
        return True
    mine, theirs = td._batch_size, other._batch_size
    short = min(len(mine), len(theirs))
    return bool(mine[:short] == theirs[:short])


def _is_tree(value: Any) -> bool:
    return isinstance(value, Kernel) and not value._is_non_tensor


def check_replaceable(td: Any, other: Any) -> None:
    """RuntimeError if ``other``, which replaces every entry, lacks one."""
    missing = set(td.keys(True)) - set(other.keys(True))
    if missing:
        raise RuntimeError(
            "update(update_batch_size=True) changes the batch size, so the source must hold every key of the "
            f"destination: {sorted(missing, key=str)} are missing from the source of batch size "
            f"{list(other._batch_size)} (the destination has {list(td._batch_size)})"
        )


def _is_level(value: Any, cls: type, is_leaf: IsLeaf | None) -> bool:
    """Whether a new value is merged key by key."""
    if is_leaf is not None and is_leaf(cls):
        return False
    if cls is dict:
        return True
    if hasattr(cls, "_is_non_tensor"):
        return not cls._is_non_tensor
    return isinstance(value, (dict, Mapping)) and not isinstance(value, Tensor)


def _merge_lazy(
    current: Any,
    value: Any,
    clone: bool,
    inplace: bool,
    non_blocking: bool,
    is_leaf: IsLeaf | None,
    resize: bool,
) -> Any:
    """The result of merging a lazy stack into a dense level.

    Merged row by row, since each member may have different entries and shapes. With ``inplace`` the level is kept
    unless a row got a new entry.
    """
    if resize and not inplace and not _compatible(current, value):
        check_replaceable(current, value)
        return value.clone(clone)
    dim, members = value._stack_dim, value._source
    level = current
    if current.batch_dims <= dim or current._batch_size[dim] != len(members):
        level = current.copy()
        level._change_batch_size(value._batch_size)
    rows = level.unbind(dim)
    before = [row.keys(True)._list() for row in rows] if inplace else None
    for row, member in zip(rows, members):
        row.update(member, clone, inplace, non_blocking=non_blocking, is_leaf=is_leaf, update_batch_size=resize)
    if inplace and before == [row.keys(True)._list() for row in rows]:
        return current
    return registry.stack_lazily(list(rows), dim)


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor) or isinstance(value, Kernel):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return value


def _without(source: Any, names: Mapping[str, Any]) -> Any:
    """The input without the top-level entries that keywords override."""
    if isinstance(source, Kernel):
        return source.exclude(*names) if any(name in source for name in names) else source
    return {key: value for key, value in source.items() if key not in names}


def restricted(source: Any, keys_to_update: Sequence[Any]) -> Any:
    """The entries of a mapping or collection that ``keys_to_update`` names, in the same type.

    For a lazy stack, entries of only some members are kept as well.
    """
    wanted = {require_path(key) for key in keys_to_update}
    if not isinstance(source, Kernel):
        return _restrict(source, wanted)
    if type(source._source) is not dict:
        return source._with_members([restricted(member, keys_to_update) for member in source._source])
    return source.select(*wanted, strict=False)


def _restrict(source: Any, wanted: set[tuple[str, ...]]) -> dict[Any, Any]:
    """Nested items of a mapping or collection at or below a wanted path."""
    out: dict[Any, Any] = {}
    for key, value in source._entries() if isinstance(source, Kernel) else source.items():
        path = require_path(key)
        if any(path[:depth] in wanted for depth in range(1, len(path) + 1)):
            out[key] = value
            continue
        below = {full[len(path) :] for full in wanted if full[: len(path)] == path}
        if below and (isinstance(value, Kernel) or isinstance(value, Mapping)):
            inner = _restrict(value, below)
            if inner:
                out[key] = inner
    return out


def _spelled(chain: tuple[Any, ...]) -> tuple[str, ...]:
    """The keys of a chain ``(chain, key)``, from the root."""
    keys: list[str] = []
    while chain:
        chain, key = chain
        keys.append(key)
    return tuple(reversed(keys))


def _items_of(value: Any, entry: Any, chain: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Kernel) and not value._is_non_tensor:
        return value._entries()
    if isinstance(value, Mapping) and not isinstance(value, Kernel):
        return value.items()
    raise EntryKindError(".".join(_spelled(chain)), entry, value)


def _copy_into(td: Any, entry: Tensor, value: Any, path: tuple[str, ...], non_blocking: bool) -> None:
    """A copy that may broadcast or convert, with an error that names the entry."""
    if not isinstance(value, Tensor):
        if not isinstance(value, Kernel):
            value = td._convert(value)
        if not isinstance(value, Tensor):
            raise EntryKindError(".".join(path), entry, value)
    try:
        entry.copy_(value, non_blocking=non_blocking)
    except RuntimeError as err:
        raise RuntimeError(
            f"update_() cannot copy a value of shape {list(value.shape)} into the entry "
            f"{path[0] if len(path) == 1 else path!r} of shape {list(entry.shape)}: {err}"
        ) from err


def _not_in_destination(td: Any, prefix: tuple[str, ...], key: Any) -> KeyError:
    path = (*prefix, *require_path(key))
    return missing_key_error(path, [(*prefix, *require_path(k)) for k in td.keys(True)], "the destination")
