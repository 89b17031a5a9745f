"""Writing to a lazy stack: a value is fitted to the whole stack and split along the stack dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.fitting import Fitting
from tensordict_lite.errors import EntryKindError
from tensordict_lite.indexing import normalise_index
from tensordict_lite.keys import NestedKey, missing_key_error, path_of, require_path
from tensordict_lite.lazy.storage import Stacked, is_ragged, member_size
from tensordict_lite.ops.generated import inplace
from tensordict_lite.ops.operands import pair_alike, with_batch_size
from tensordict_lite.ops.update import check_replaceable, restricted
from tensordict_lite.views import is_leaf_nontensor


def _takes_tensors(parent: Any, item: Tensor, dims: int) -> bool:
    """Whether a level of a member can store a row of the tensor whose leading ``dims`` fit the stack."""
    return (
        isinstance(parent, TensorCollection)
        and type(parent) is parent._plain_class()
        and parent._lock is None
        and parent._device is None
        and len(parent._batch_size) < dims
    )


class LazyWriteOps(Stacked):
    """``set``, ``update``, their in-place and indexed forms, and a stack as an entry of another collection."""

    __slots__ = ()

    # -- writing ------------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: object) -> None:
        cls = type(index)
        if cls is str:
            self.set(index, value)
            return
        if cls is tuple:
            path = path_of(index)
            if path:
                self.set(path, value)
                return
        self._set_index(normalise_index(index, len(self._batch_size)), value)

    def set(
        self, key: NestedKey, item: Any, inplace: bool = False, *, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Write an entry into every member, split along the stack dimension.

        Args:
            key: string or (nested) tuple; missing levels are created.
            item: value with the batch size of the stack, or an object that converts to one. For shapes that differ
                between members, a list with one tensor per member, or a nested tensor.
            inplace: overwrite existing tensors.
            non_blocking: for copies to :attr:`device`.

        Raises:
            RuntimeError: the shape does not fit, or the stack is locked and ``inplace`` is false.

        Returns:
            self
        """
        if type(item) is Tensor and type(key) is str and not inplace and not kwargs and self._set_directly(key, item):
            return self
        path = (key,) if type(key) is str else require_path(key)
        if self._lock is not None and not (inplace and path in self):
            raise self._locked_error()
        if type(item) is Tensor and not inplace and not kwargs and self._set_directly(path[-1], item, path[:-1]):
            return self
        for member, piece in zip(self._source, self._fitting_pieces(item, path, non_blocking)):
            member.set(path, piece, inplace, non_blocking=non_blocking, **kwargs)
        return self

    _member_class: Any = None  # the class of the members, for stacks of one

    def _set_directly(self, key: str, item: Tensor, path: tuple[str, ...] = ()) -> bool:
        """Write a tensor that needs no conversion at ``path``; False if an entry needs the general code."""
        size = self._batch_size
        if self._lock is not None or self._device is not None or self._member_class is not None:
            return False
        if (
            item.is_nested
            or item.shape[: len(size)] != size
            or any(member._lock is not None for member in self._source)
        ):
            return False
        parents = self._source
        for part in path:
            parents = [parent._source.get(part) if type(parent._source) is dict else None for parent in parents]
            if not all(_takes_tensors(parent, item, len(size)) for parent in parents):
                return False
        for parent, piece in zip(parents, item.unbind(self._stack_dim)):
            parent._set_str(key, piece)
        return True

    def _adopt_names(self, names: list[str | None], key: str) -> None:
        self._set_names(list(names))

    def _fitting_pieces(self, item: Any, path: tuple[str, ...], non_blocking: bool = False) -> Sequence[Any]:
        count = len(self._source)
        if item is None:  # no entry in tensorclass members, an object in others
            return [None] * count
        if isinstance(item, (list, tuple)) and len(item) == count and is_ragged(item):
            return item
        if isinstance(item, Tensor) and item.is_nested and item.size(0) == count:
            return item.unbind(0)
        if isinstance(item, list) and len(item) == count and not self._stack_dim and self._takes_one_each(item):
            return item
        if -1 in self._batch_size:
            dim = self._stack_dim
            if isinstance(item, LazyWriteOps) and item._stack_dim == dim and len(item._source) == count:
                return item._source
            if isinstance(item, (Tensor, list, Mapping, TensorCollection)):
                raise RuntimeError(
                    f"the members of this stack have different batch sizes (it has {list(self._batch_size)}): write "
                    f"the entry {'.'.join(path)!r} as a list with one value per member, or member by member"
                )
            return [item] * count
        return self._pieces(self._fit(item, ".".join(path), non_blocking))

    def _takes_one_each(self, values: list[Any]) -> bool:
        """Whether a list with one value per member means that: rows differ in length, or values are strings."""
        return -1 in self._batch_size or (len(self._batch_size) > 1 and all(isinstance(value, str) for value in values))

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Copy a value into an entry that every member has, locked or not."""
        path = (key,) if type(key) is str else require_path(key)
        if type(item) is Tensor and self._copy_directly(path, item, non_blocking):
            return self
        if path not in self:
            with suppress(KeyError):  # less precise than the error below
                self._raise_missing(path)
            raise KeyError(
                "setting a value in-place on a stack of TensorDict needs the key in every member: "
                f"{'.'.join(path)!r} is not in all of them, the common ones are {self._key_list()}"
            )
        for member, piece in zip(self._source, self._fitting_pieces(item, path, non_blocking)):
            member.set_(path, piece, non_blocking=non_blocking)
        return self

    def _copy_directly(self, path: tuple[str, ...], item: Tensor, non_blocking: bool) -> bool:
        """Copy rows of a tensor into entries of their shapes; False if an entry needs the general code."""
        if item.is_nested:
            return False
        shape, dim = item.shape, self._stack_dim
        shape = shape[:dim] + shape[dim + 1 :] if dim else shape[1:]
        entries = []
        for member in self._source:
            node: Any = member
            for part in path:
                source = node._source if isinstance(node, TensorCollection) else None
                node = source.get(part) if type(source) is dict else None
            if not isinstance(node, Tensor) or node.shape != shape:
                return False
            entries.append(node)
        if item.shape[: len(self._batch_size)] != self._batch_size:
            return False
        inplace(torch._foreach_copy_, Tensor.copy_, entries, list(item.unbind(dim)), non_blocking)
        return True

    def _write_in_place(self, key: str, item: Any, non_blocking: bool = False) -> None:
        self.set_(key, item, non_blocking=non_blocking)

    def set_at_(self, key: NestedKey, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        path = require_path(key)
        if path not in self:
            self._raise_missing(path)
        index = normalise_index(index, len(self._batch_size))
        if getattr(self._source[0]._get_path(path), "_is_unbatched", False):  # the tensor of all members
            self._source[0].set_at_(path, value, index)
            return self
        if all(isinstance(member._get_path(path), Tensor) for member in self._source):
            if isinstance(value, (TensorCollection, Mapping)):
                raise EntryKindError(".".join(path), self._source[0]._get_path(path), value)
            self.select(path)._set_index(index, value)  # shares the tensors of the members
            return self
        entry = self._get_path(path)
        written = entry._assign_rows(index, value)
        if entry._is_non_tensor:
            self.set_(path, written)
        return self

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write the entries of a mapping or another collection, split along the stack dimension.

        See :meth:`TensorDict.update`. A lazy stack with the same number of members updates them one by one, so keys and
        shapes may differ. With ``update_batch_size`` members take over the batch sizes of the source, and are replaced
        if the source has another number of them.

        Raises:
            RuntimeError: an entry does not fit, or the stack is locked and ``inplace`` is false.
        """
        if self._lock is not None and not inplace:
            raise self._locked_error()
        options: dict[str, Any] = {k: kwargs.pop(k) for k in ("non_blocking", "is_leaf") if k in kwargs}
        update_batch_size = kwargs.pop("update_batch_size", False)
        kwargs.pop("ignore_lock", None)
        source = input_dict_or_td
        if kwargs:
            self.update(source, clone, inplace, keys_to_update=keys_to_update, **options)
            source = kwargs
        if source is None or source is self:
            return self
        if isinstance(source, TensorCollection):
            if update_batch_size:
                self._update_resized(source, clone, inplace, keys_to_update, options)
                return self
            for member, piece in zip(self._source, self._pieces_of(source)):
                member.update(piece, clone, inplace, keys_to_update=keys_to_update, **options)
            return self
        if keys_to_update is not None:
            source = restricted(source, keys_to_update)
        for key, value in source.items():
            path = require_path(key)
            for member, piece in zip(self._source, self._fitting_pieces(value, path)):
                member.update({path: piece}, clone, inplace, **options)
        return self

    def _update_resized(
        self, source: Any, clone: bool, inplace: bool, keys_to_update: Sequence[Any] | None, options: dict[str, Any]
    ) -> None:
        """:meth:`update` with the batch sizes of a collection: members are resized or replaced."""
        if source._batch_size != self._batch_size:
            if inplace or keys_to_update is not None:
                raise RuntimeError(
                    f"Updating tensordicts of different batch-size with inplace=True or keys_to_update is not "
                    f"supported: got {list(source._batch_size)} for {list(self._batch_size)}"
                )
            check_replaceable(self, source)
        dim = self._stack_dim
        pieces = source.tensordicts if getattr(source, "_stack_dim", None) == dim else source.unbind(dim)
        if len(pieces) == len(self._source):
            for member, piece in zip(self._source, pieces):
                member.update(piece, clone, inplace, update_batch_size=True, keys_to_update=keys_to_update, **options)
        else:
            self._source = [piece.clone(clone) for piece in pieces]
        size = member_size(self._source, False)
        self._batch_size = torch.Size((*size[:dim], len(self._source), *size[dim:]))
        self._names = None if source._names is None else list(source._names)

    def _pieces_of(self, source: Any) -> Sequence[Any]:
        """A collection of this batch size, or of its first dimensions, split into one part for each member."""
        count = len(self._source)
        dim = self._stack_dim
        members = getattr(source, "tensordicts", None)
        if members is not None and source._stack_dim == dim:
            pieces: Sequence[Any] = members
        else:
            if len(source._batch_size) <= dim:  # fewer dimensions than the shapes of its entries
                source = with_batch_size(source, self._batch_size[: dim + 1])
            pieces = source.unbind(dim)
        if len(pieces) != count:
            raise RuntimeError(
                f"the source has {len(pieces)} rows along the stack dim {dim}, the stack {count} members"
            )
        return pieces

    def update_(
        self,
        input_dict_or_td: Any = None,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        for source in (input_dict_or_td, kwargs or None):
            if source is None or source is self:
                continue
            if keys_to_update is not None:
                source = restricted(source, keys_to_update)
            if isinstance(source, TensorCollection):
                pieces = self._pieces_of(source)
                if not non_blocking and copy_whole(self._source, pieces):
                    continue
                for at, (member, piece) in enumerate(zip(list(self._source), pieces)):
                    new = member._overwrite(piece, self)
                    if new is not member:
                        self._source[at] = new
                continue
            for key, value in source.items():
                path = require_path(key)
                is_tree = isinstance(value, (Mapping, TensorCollection))
                if is_tree and not isinstance(value, TensorCollection):
                    if path not in self:
                        raise missing_key_error(path, self._key_list(), type(self).__name__)
                    entry = self._get_path(path)
                    if isinstance(entry, TensorCollection) and not entry._is_non_tensor:
                        entry.update_(value, non_blocking=non_blocking)
                        continue
                # For every element of a tensor, as in a dense collection.
                number = isinstance(value, (int, float)) or (not is_tree and getattr(value, "ndim", None) == 0)
                pieces = [value] * len(self._source) if number else self._fitting_pieces(value, path)
                for member, piece in zip(self._source, pieces):
                    member.update_({path: piece}, non_blocking=non_blocking)
        return self

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
    ) -> Self:
        source = input_dict_or_td
        if keys_to_update is not None:
            source = restricted(source, keys_to_update)
        if isinstance(source, TensorCollection):
            rows = self._index(normalise_index(idx, len(self._batch_size)))
            for key in source.keys(True, True, is_leaf_nontensor):
                if key not in rows:
                    raise missing_key_error(key, rows._key_list(), type(self).__name__)
            self[idx] = source
            return self
        for key, value in source.items():
            if isinstance(value, (Mapping, TensorCollection)) and not getattr(value, "_is_non_tensor", False):
                entry = self._get_path(require_path(key))
                if isinstance(entry, Tensor) or entry._is_non_tensor:
                    raise EntryKindError(str(key), entry, value)
                entry.update_at_(value, idx, non_blocking=non_blocking)
            else:
                self.set_at_(key, value, idx)
        return self

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry from every member that has it."""
        self._require_unlocked()
        path = (key,) if type(key) is str else require_path(key)
        if not any(path in member for member in self._source):
            self._raise_missing(path)
        for member in self._source:
            if path in member:  # again: members may be identical or share nested collections
                member.del_(path)
        return self

    def _parent_for(self, path: tuple[str, ...], *args: Any) -> Any:
        for member in self._source:
            member._parent_for(path, *args)
        return self._get_path_slowly(path[:-1])

    def _assign_rows(self, index: Any, item: Any) -> TensorCollection:
        if getattr(item, "_is_non_tensor", False) is not self._is_non_tensor and isinstance(item, TensorCollection):
            raise EntryKindError("", self, item)
        self._set_index(index, item)
        return self

    def _empty_rows(self, lead: torch.Size, index_dims: int, device: torch.device | None) -> Any:
        """Zero rows for lazy preallocation; the stack dimension is kept unless it is indexed away."""
        dim = self._stack_dim
        if dim < index_dims:  # the member of a row that is not yet written is unknown
            first = self._source[0] if self._source else self._plain_class()._trusted({}, self._member_batch_size())
            return first._empty_rows(lead, index_dims - 1, device)
        at = dim - index_dims
        rest = self._member_batch_size()[index_dims:]
        members = [member._empty_rows(lead, index_dims, device) for member in self._source]
        new = type(self)._of(members, len(lead) + at, torch.Size((*lead, *rest)), device)
        return new

    # Assigned here, since a tensorclass that overrides some precedes `Fitting` among the bases of its stacks.
    _misfit = Fitting._misfit
    _fit = Fitting._fit
    _fit_into = Fitting._fit_into
    _convert = Fitting._convert
    _convert_sequence = Fitting._convert_sequence
    _wrap = Fitting._wrap
    _new_child = Fitting._new_child


def copy_whole(members: Sequence[Any], pieces: Sequence[Any]) -> bool:
    """Copy every piece into its member; False if an entry needs the general code, after which all are written again.

    That is an entry that the member lacks, one of another class, and one that does not fit.
    """
    into: list[Tensor] = []
    values: list[Tensor] = []
    for member, piece in zip(members, pieces):
        if type(member) is not type(piece) or member._batch_size != piece._batch_size:
            return False
        if not pair_alike(member, piece, into, values):
            return False
    try:
        inplace(torch._foreach_copy_, Tensor.copy_, into, values)
    except RuntimeError:  # raised again with the name of the entry when they are written one by one
        return False
    return True
