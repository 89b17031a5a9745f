"""Lazy stacks whose members differ in length, as columns of ragged rows.

    lazy_stack([{"x": [3, 4]}, {"x": [5, 4]}])  ──►  TensorDict({"x": Ragged of rows [3, 4] and [5, 4]}, [2])

An operation that writes rows of its data into a new dataset has to know their schema before it reads them. One chunk of
such a stack may have members of one length, and the next one of several.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tdmap.data.alike import not_alike
from tdmap.data.kinds import Data, KeyPath, has_members, is_dense, key_name, stored_entry, stored_leaves
from tdmap.data.schema import Schema, plain
from tdmap.errors import OutputMismatch
from tensordict_lite import LazyStackedTensorDict, NonTensorData, NonTensorStack, Ragged, is_non_tensor


def ragged_columns(data: Data, path: KeyPath = ()) -> Data:
    """The dataset with columns in place of lazy stacks whose members differ in length; itself if it has none.

    The columns are copies in memory. A collection that has a ragged one among them keeps one batch dimension.

    Raises:
        OutputMismatch: members differ in keys, dtypes, or in a dimension that is not their first; names row and key.
    """
    if has_members(data):
        return _columns(list(data.unbind(0)), path) if data.stack_dim == 0 and _differ(data) else data
    if isinstance(data, Tensor) or not is_dense(data):
        return data
    found = {key: ragged_columns(value, (*path, key)) for key, value in data._source.items()}
    if all(found[key] is value for key, value in data._source.items()):
        return data
    return data._rebuild(found, data.batch_size[:1], None)


def columns_read(data: Data, keys: Iterable[KeyPath | str | None]) -> Data:
    """:func:`ragged_columns` for a reader of some entries: the others of a lazy stack may differ in any way.

    Args:
        data: the dataset.
        keys: the entries; a None among them reads whole rows.
    """
    wanted = dict.fromkeys(keys)
    return ragged_columns(data.select(*wanted) if None not in wanted and has_members(data) else data)


def column_at(data: Data, key: str | tuple[str, ...]) -> Any:
    """An entry as it is stored, where members of a lazy stack differ in length a ragged column; None if it is absent.

    Raises:
        OutputMismatch: as `ragged_columns`.
    """
    try:
        return stored_entry(data, key)
    except RuntimeError:  # they cannot be stacked
        return stored_entry(ragged_columns(data.select(key)), key)


def _differ(stack: LazyStackedTensorDict) -> bool:
    """Whether an entry of a member has another shape than that of the first one."""
    shapes = ({path: leaf.shape for path, leaf in stored_leaves(member)} for member in stack.unbind(0))
    first = next(shapes, None)
    return any(other != first for other in shapes)


def _columns(members: list[Data], path: KeyPath) -> Data:
    members = [_dense(member, number, path) for number, member in enumerate(members)]
    first = Schema(members[0])
    for number, member in enumerate(members):
        difference = first.difference(Schema(member), hint="")
        if difference:
            where = f"row {number}{f' of {key_name(path)}' if path else ''}, unlike row 0"
            raise not_alike(difference, where, "rows", advice="Only the first dimension of an entry may differ.")
    columns = {key: _column([member._source[key] for member in members], (*path, key)) for key in members[0]._source}
    return members[0]._rebuild(columns, torch.Size([len(members)]), None)


def _dense(member: Data, number: int, path: KeyPath) -> Data:
    """A member that is no lazy stack itself."""
    if not has_members(member):
        return member
    try:
        return member.contiguous()
    except RuntimeError as error:
        raise OutputMismatch(
            f"row {number}: {key_name(path, 'it')} is a lazy stack whose members differ ({error}). Rows may differ in "
            "length, the members of a row may not: pad them, or put a tensordict_lite.Ragged in their place."
        ) from error


def _column(values: list[Any], path: KeyPath) -> Any:
    """One entry of all members."""
    if not isinstance(values[0], Tensor):
        if not is_non_tensor(values[0]):
            return _columns(values, path)
        rows = [value.data if isinstance(value, NonTensorData) else value.tolist() for value in values]
        return NonTensorStack(*map(NonTensorData, rows))
    rows = [plain(value, path) for value in values]
    if all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)
    try:
        return Ragged.from_list(rows)
    except TypeError as error:
        raise OutputMismatch(f"{key_name(path)}: {error}.") from None
