"""Mapping and value operations of a lazy stack, member by member, or on its dense form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.errors import KeyThroughLeafError
from tensordict_lite.keys import NestedKey, missing_key_error, require_path
from tensordict_lite.lazy.ragged import nested
from tensordict_lite.lazy.storage import Stacked, through_dense
from tensordict_lite.settings import MISSING
from tensordict_lite.views import NestedKeysView, StringKeysView, entry_of


class LazyStringKeysView(StringKeysView):
    """Direct keys of a lazy stack, listed without stacking."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return iter(self._mapping._key_list())

    def __len__(self) -> int:
        return len(self._mapping._key_list())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._mapping._key_list()


class LazyValueOps(Stacked):
    """Overrides of the mapping and value families for stacks."""

    __slots__ = ()

    # -- keys ---------------------------------------------------------------------------------------------------

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        if include_nested or leaves_only or sort:
            return NestedKeysView(self, include_nested, leaves_only, is_leaf, sort)
        return LazyStringKeysView(self)

    def _key_entries(self) -> Any:
        return self._skeleton()._source.items()

    def valid_keys(self, *args: Any, **kwargs: Any) -> Any:
        """Same as :meth:`keys`."""
        return self.keys(*args, **kwargs)

    def _skeleton(self) -> Any:
        """A dense collection with the keys of the stack and a representative entry under each."""
        out: dict[str, Any] = {}
        if self._source:
            first = self._source[0]
            if isinstance(first, LazyValueOps):
                first = first._skeleton()
            for key in self._key_list():
                value = first._get_str(key)
                if not isinstance(value, Tensor) and not value._is_non_tensor:
                    values = [member._get_str(key) for member in self._source]
                    if not all(isinstance(other, TensorCollection) for other in values):
                        continue
                    value = type(self)._of(values, 0, values[0]._batch_size)._skeleton()
                out[key] = value
        return self._plain_class()._trusted(out, self._batch_size)

    def is_empty(self) -> bool:
        return all(member.is_empty() for member in self._source)

    @property
    def depth(self) -> int:
        return self._skeleton().depth

    def get_item_shape(self, key: NestedKey) -> torch.Size:
        """Shape of an entry, -1 where it differs from member to member."""
        path = require_path(key)
        if path not in self:
            self._raise_missing(path)
        shapes = [member.get_item_shape(path) for member in self._source]
        if any(len(shape) != len(shapes[0]) for shape in shapes):
            raise RuntimeError(f"the entry {key!r} has a different number of dimensions in some members: {shapes}")
        common = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes)]
        dim = self._stack_dim
        return torch.Size((*common[:dim], len(self._source), *common[dim:]))

    def _raise_missing(self, path: tuple[str, ...]) -> None:
        """KeyError for a path that a member lacks; ValueError if a tensor blocks it in all members."""
        through: KeyThroughLeafError | None = None
        for member in self._source:
            if path in member:
                continue
            try:
                member._raise_missing(path)
            except KeyThroughLeafError as error:
                through = error
            except KeyError:
                through = None
                break
        raise through or missing_key_error(path, self._key_list(), type(self).__name__)

    def entry_class(self, key: NestedKey) -> type:
        path = require_path(key)
        if path not in self:
            with suppress(KeyError):
                self._raise_missing(path)
            return type(None)
        kind: type = self._source[0].entry_class(path)
        return kind if issubclass(kind, Tensor) else type(self._get_path(path))

    # -- member by member -----------------------------------------------------------------------------------------

    def _each(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._with_members([getattr(member, name)(*args, **kwargs) for member in self._source])

    def _each_in_place(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._require_unlocked()
        for member in {id(member): member for member in self._source}.values():  # a repeated member once
            getattr(member, name)(*args, **kwargs)
        return self

    def select(self, *keys: Any, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        if inplace:
            return self._each_in_place("select", *keys, inplace=True, strict=strict)
        return self._each("select", *keys, strict=strict)

    def exclude(self, *keys: Any, inplace: bool = False) -> Self:
        return self._each_in_place("exclude", *keys, inplace=True) if inplace else self._each("exclude", *keys)

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        """Move an entry of every member to another key, in place; none if a member lacks it."""
        if require_path(old_key) not in self:
            self._raise_missing(require_path(old_key))
        return self._each_in_place("rename_key_", old_key, new_key, safe)

    def rename_keys(self, mapping: Mapping[Any, Any], *, strict: bool = True) -> Self:
        return self._each("rename_keys", mapping, strict=strict)

    def flatten_keys(self, separator: str = ".", inplace: bool = False, is_leaf: Any = None) -> Self:
        each = self._each_in_place if inplace else self._each
        out = each("flatten_keys", separator, inplace, is_leaf)
        out._last_op = (weakref.ref(self), lambda td: td.unflatten_keys(separator))
        return out

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        each = self._each_in_place if inplace else self._each
        out = each("unflatten_keys", separator, inplace)
        out._last_op = (weakref.ref(self), lambda td: td.flatten_keys(separator))
        return out

    def _blank(self, size: torch.Size, repeat: bool) -> Any:
        """A lazy stack of this batch size with empty members along its first dimension."""
        if not size:
            return self._plain_class()._trusted({}, size, self._device)
        first = self._source[0] if self._source else self._plain_class()._trusted({}, self._member_batch_size())
        nested = type(first._source) is not dict
        members = [
            first._blank(size[1:], repeat) if nested else first._rebuild({}, size[1:], None) for _ in range(size[0])
        ]
        return type(self)._class_for(members)._of(members, 0, size[1:], self._device)

    def empty(self, recurse: bool = False, *, batch_size: Sequence[int] | None = None, **kwargs: Any) -> Self:
        """A stack of as many empty members; with another batch size, a dense collection or instance."""
        if batch_size is not None:
            names = kwargs.pop("names", None)
            typed = hasattr(self, "_member_class") and self._source
            out = self._source[0] if typed else self._plain_class()._trusted({}, self._batch_size, self._device)
            return out.empty(batch_size=batch_size, names=names, **kwargs)
        names = kwargs.pop("names", self._names)
        new = self._each("empty", recurse, **kwargs)
        if self._source:
            new._device = new._source[0]._device
        if names is not self._names:
            new._assign_names(names)
        return new

    def filter_empty_(self) -> Self:
        """Remove nested collections without a leaf from every member, also of a locked stack."""
        for member in self._source:
            member.filter_empty_()
        return self

    def filter_non_tensor_data(self) -> Self:
        return self._each("filter_non_tensor_data")

    def create_nested(self, key: NestedKey) -> Self:
        return self._each_in_place("create_nested", key)

    # -- apply -------------------------------------------------------------------------------------------------------

    def _apply_level(self, call: Any, others: list[Any], prefix: tuple[str, ...]) -> Any:
        if call.batch_size is not None and call.batch_size != self._batch_size:
            return self._densified()._apply_level(call, others, prefix)
        if call.batch_size is not None:  # the members have one dimension less: keep theirs
            call = replace(call, batch_size=None)
        results = [
            member._apply_level(call, arguments, prefix)
            for member, arguments in zip(self._source, self._other_rows(others))
        ]
        if all(result is None for result in results) and results:
            return None
        members = [
            member._rebuild({}, member._batch_size) if result is None else result
            for member, result in zip(self._source, results)
        ]
        new = self._restacked(members, self._stack_dim, self._names, locked=False)
        new._device = members[0]._device if members else self._device
        return new

    def _apply_into(self, call: Any, others: list[Any], prefix: tuple[str, ...], out: Any) -> None:
        if out is self:
            if call.batch_size is not None or call.device not in (MISSING, None):
                raise ValueError(
                    "batch_size and device are not supported with inplace=True on a lazy stack, whose members keep "
                    "theirs: omit them, or omit inplace"
                )
            targets: Sequence[Any] = self._source
        elif getattr(out, "_stack_dim", None) == self._stack_dim and len(out._source) == len(self._source):
            targets = out._source
        else:  # rows of another collection are views or copies, which add no entries to it
            result = self._apply_level(replace(call, inplace=False), others, prefix)
            for key, value in () if result is None else result._entries():
                if call.inplace and entry_of(out, (key,)) is not None:
                    out.set_(key, value)
                else:
                    out.set(key, value)
            return
        for member, arguments, target in zip(self._source, self._other_rows(others), targets):
            member._apply_into(call, arguments, prefix, target)

    def _other_rows(self, others: list[Any]) -> list[list[Any]]:
        """The further arguments of ``apply`` for each member; a default is passed on."""
        count = len(self._source)
        columns = [
            self._pieces_of(other) if isinstance(other, TensorCollection) else [other] * count for other in others
        ]
        return [list(row) for row in zip(*columns)] if columns else [[] for _ in range(count)]

    # -- dense -------------------------------------------------------------------------------------------------------

    cat_tensors = through_dense("cat_tensors")
    stack_tensors = through_dense("stack_tensors")
    cat_from_tensordict = through_dense("cat_from_tensordict")
    stack_from_tensordict = through_dense("stack_from_tensordict")

    def _densified(self) -> Any:
        """The dense collection of the entries that all members have; RuntimeError if the shapes of an entry differ."""
        out: dict[str, Any] = {}
        for key in self._key_list():
            value = self._get_str(key)
            if not isinstance(value, Tensor):
                if value._is_non_tensor:  # rows of their own, as stacked tensors are
                    value = value._with_leaves(iter(()))
                elif isinstance(value, LazyValueOps):
                    value = value._densified()
            out[key] = value
        if self._source and not isinstance(self._source[0], LazyValueOps):
            return self._source[0]._rebuild(out, self._batch_size, self._names)
        return self._rebuild(out, self._batch_size, self._names)

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """The dense collection of the entries that all members have; RuntimeError if the shapes of an entry differ."""
        self._refuse_inplace("contiguous", inplace)
        return self._densified()

    def is_contiguous(self) -> bool:
        """False: the entries are stacked when they are read."""
        return False

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """A TensorDict with copies of the entries that all members have; RuntimeError if the shapes of one differ."""
        dense = self._densified()
        return dense.to_tensordict(retain_none=retain_none) if hasattr(dense, "to_tensordict") else dense

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """A dense collection; entries whose shapes differ become nested tensors of the given layout.

        An entry that some members lack is empty in those.

        Raises:
            NotImplementedError: shapes differ and ``stack_dim`` is not 0 (nested tensors are ragged along the first).
        """
        out: dict[str, Any] = {}
        for key in self._all_keys():
            values = [member._get_str(key) if key in member else None for member in self._source]
            out[key] = self._densify_column(key, values, layout)
        return self._rebuild(out, self._batch_size, self._names)

    def _all_keys(self) -> list[str]:
        """Direct keys of any member: the common ones first."""
        keys = dict.fromkeys(self._key_list())
        for member in self._source:
            keys.update(dict.fromkeys(member._key_list()))
        return list(keys)

    def _densify_column(self, key: str, values: list[Any], layout: torch.layout) -> Any:
        kinds = [value for value in values if value is not None]
        if isinstance(kinds[0], Tensor):
            blank = kinds[0].new_empty((0,) * kinds[0].ndim)
            tensors = [blank if value is None else value for value in values]
            if len(kinds) == len(values) and all(value.shape == tensors[0].shape for value in tensors):
                return torch.stack(tensors, self._stack_dim)
            if self._stack_dim:
                raise NotImplementedError(
                    f"the shapes of the entry {key!r} differ and the stack dim is {self._stack_dim}: nested tensors "
                    "are ragged along the first dimension only"
                )
            return nested(tensors, layout)
        if len(kinds) < len(values):
            empty = kinds[0]._rebuild({}, kinds[0]._batch_size)
            values = [empty if value is None else value for value in values]
        stack = registry.stack_lazily(values, self._stack_dim)
        if stack._is_non_tensor:
            return stack
        dense = stack.densify(layout)
        if self._names is not None:
            dense.names = [*self._names, *dense.names[len(self._names) :]]
        return dense

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Any:
        dim = self._positive(dim)
        if dim == self._stack_dim:
            dense = self._densified().softmax(dim, dtype)
            return self._restacked(list(dense.unbind(dim)), dim, self._names)
        return self._each("softmax", self._inner(dim), dtype)

    def to_padded_tensor(self, padding: float = 0.0, mask_key: Any = None) -> Any:
        """The stack of the members with padded tensors for nested ones.

        Entries whose shapes differ between members stay separate: ``densify().to_padded_tensor()`` pads those.

        Raises:
            RuntimeError: ``mask_key`` is given; it needs one tensor per entry.
        """
        if mask_key is not None:
            raise RuntimeError(
                "mask_key needs one tensor per entry: make the stack dense first, "
                "td.densify(layout=torch.jagged).to_padded_tensor(mask_key=...)"
            )
        return self._each("to_padded_tensor", padding)

    @classmethod
    def from_list(cls, input: Sequence[Any], *, lazy: bool | None = True, **kwargs: Any) -> Any:
        """A lazy stack of the elements of a list, see :meth:`TensorDict.from_list`."""
        return registry.TensorDict.from_list(input, lazy=lazy, **kwargs)

    @classmethod
    def from_dict(cls, input_dict: Mapping[Any, Any], *, stack_dim: int = 0, **kwargs: Any) -> Any:
        """A lazy stack of the values of a mapping, each of which is the mapping of a member."""
        return registry.lazy_stack(
            [registry.TensorDict.from_dict(value, **kwargs) for value in input_dict.values()], stack_dim
        )
