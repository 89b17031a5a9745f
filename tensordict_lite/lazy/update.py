"""Writing many entries of a lazy stack at once: ``update`` and its in-place and indexed forms, member by member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import EntryKindError
from tensordict_lite.indexing import normalise_index
from tensordict_lite.keys import missing_key_error, require_path
from tensordict_lite.lazy.storage import Stacked, member_size
from tensordict_lite.lazy.write import copy_whole
from tensordict_lite.ops.keys.update import check_replaceable, restricted
from tensordict_lite.views import is_leaf_nontensor


class LazyUpdateOps(Stacked):
    """``update``, ``update_`` and ``update_at_`` of stacks."""

    __slots__ = ()

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
        """A collection of this batch size split into one part for each member."""
        count = len(self._source)
        dim = self._stack_dim
        members = getattr(source, "tensordicts", None)
        if members is not None and source._stack_dim == dim:
            pieces: Sequence[Any] = members
        elif len(source._batch_size) > dim:
            pieces = source.unbind(dim)
        else:
            raise RuntimeError(
                f"a collection of batch size {list(source._batch_size)} cannot be cut along the stack dim {dim} of a "
                f"stack of batch size {list(self._batch_size)}"
            )
        if len(pieces) != count:
            raise RuntimeError(
                f"the source has {len(pieces)} rows along the stack dim {dim}, the stack {count} members"
            )
        return pieces

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copy values into existing entries, also of a locked stack.

        Raises:
            KeyError: a member has no such entry.
            RuntimeError: a value does not fit its entry.
        """
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
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
    ) -> Self:
        """Copy values into the rows ``idx`` of existing entries, also of a locked stack.

        Raises:
            KeyError: a member has no such entry.
        """
        source = input_dict_or_td
        if keys_to_update is not None:
            source = restricted(source, keys_to_update)
        if isinstance(source, TensorCollection):
            rows = self._index(normalise_index(idx, len(self._batch_size)))
            for key in source.keys(True, True, is_leaf_nontensor):
                if key not in rows:
                    raise missing_key_error(key, rows._key_list(), type(self).__name__)
            self[idx] = source  # type: ignore[index]
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

    def _pair_leaves(
        self, items: Any, prefix: tuple[str, ...], into: list[Tensor], values: list[Tensor], non_blocking: bool
    ) -> None:
        for key, value in items:
            self.set_(key, value, non_blocking=non_blocking)
