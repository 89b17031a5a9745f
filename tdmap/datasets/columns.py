"""The columns of a dataset as formats write them: a tensor or a `Ragged` each, by its path.

TensorDict {"x": tensor, "text": Ragged, "pos": {"lat": tensor}}
    ──►  {("x",): tensor, ("text",): Ragged, ("pos", "lat"): tensor}
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from tdmap.data.entries import keys_by_name
from tdmap.data.kinds import Data, has_members, is_data, is_dense, stored_entry
from tdmap.data.objects import objects_of, text_column
from tdmap.data.reader import rows_of, select
from tdmap.data.stacks import ragged_columns
from tensordict_lite import Ragged, TensorDict, is_non_tensor
from tensordict_lite.ragged import is_ragged
from tensordict_lite.views import is_leaf_nontensor

Path: TypeAlias = "tuple[str, ...]"
"""Where a column is: its name behind those of the collections around it."""

VALID = ".valid"
"""Ends the name of a column of bools that is False where another column has nulls."""


def joined(path: str | Path) -> str:
    """The name of a column for messages, and for formats without nesting."""
    return path if isinstance(path, str) else ".".join(path)


def mask_of(path: Path) -> Path:
    """Where the column is that is False where another one has nulls."""
    return (*path[:-1], path[-1] + VALID)


def is_mask(path: Path, columns: Mapping[Path, Any]) -> bool:
    """Whether a column is the mask of another one."""
    return path[-1].endswith(VALID) and (*path[:-1], path[-1].removesuffix(VALID)) in columns


def rows_in(data: Data) -> Any:
    """A dataset with rows: a collection, a dict of columns, or a `Ragged`, which is the column `"rows"`.

    Objects of a collection in memory are columns of strings, bytes, lists or JSON values where they can be: some of
    their rows alone may look like another kind.

    Raises:
        TypeError: it is something else.
        ValueError: the dict has no columns.
    """
    if isinstance(data, Ragged):
        return TensorDict({"rows": data}, [len(data)])
    if isinstance(data, Mapping) and not is_data(data):
        if not data:
            raise ValueError("the dict is empty: a dataset has at least one column.")
        return TensorDict(dict(data), [len(next(iter(data.values())))])
    if isinstance(data, Tensor) or not is_data(data) or not len(data.batch_size):
        what = f"one of batch size {list(data.shape)}" if is_data(data) else f"a {type(data).__name__}"
        raise TypeError(f"data must be a TensorDict with rows, or a dict of columns: got {what}.")
    return _as_columns(ragged_columns(data))


def _as_columns(data: Data) -> Data:
    objects = [] if len(data.batch_size) > 1 or not (is_dense(data) or has_members(data)) else _objects_in(data)
    if objects and has_members(data):
        data = select(data, list(data.keys(True, True, is_leaf_nontensor)))
    found = {}
    for key in objects:
        with contextlib.suppress(TypeError):  # which is said when the column is read
            found[key] = _ragged(stored_entry(data, key), key if isinstance(key, tuple) else (key,))
    return data.copy().update(found) if found else data


def _objects_in(data: Data) -> list[str | tuple[str, ...]]:
    """The entries that are neither tensors nor columns."""
    first = data[:1]  # members of a lazy stack are not stacked for this
    entries = ((key, stored_entry(first, key)) for key in first.keys(True, True, is_leaf_nontensor))
    return [key for key, entry in entries if is_non_tensor(entry) and not is_ragged(entry)]


def columns_in(rows: Data) -> dict[Path, Any]:
    """The columns of a dataset in memory or mapped from files, in their order.

    Raises:
        TypeError: an entry is neither a tensor nor a column of strings, bytes or lists of numbers; names it.
        ValueError: two columns have one name where those of nested collections are joined by dots.
    """
    found: dict[Path, Any] = {}
    _add(rows_of(rows).load(), (), found)
    require_one_each([joined(path) for path in found])
    return found


def _add(node: Any, above: Path, found: dict[Path, Any]) -> None:
    for key in node.keys():
        path, value = (*above, key), stored_entry(node, key)
        if isinstance(value, Tensor):
            found[path] = _ragged(value, path) if value.is_nested else value
        elif getattr(value, "_is_non_tensor", False):
            found[path] = value if is_ragged(value) else _ragged(value, path)
        else:
            _add(value, path, found)


def _ragged(value: Any, path: Path) -> Any:
    try:
        if isinstance(value, Tensor):
            return Ragged.from_nested(value)
        if not len(value):  # nothing tells what they would be: text is by far the most frequent
            return text_column([])
        rows = objects_of(value)
        values = [row for row in rows if row is not None]
        if not values:
            return text_column(rows)
        if all(isinstance(row, (list, dict)) for row in values) and not _are_numbers(rows):
            return Ragged.from_objects(rows)
        return Ragged.from_list(rows)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the column {joined(path)!r} holds neither tensors nor strings, bytes or lists of numbers ({error}): "
            f"convert it, or leave it out with data.exclude({path[0] if len(path) == 1 else path!r})."
        ) from None


def _are_numbers(rows: list[Any]) -> bool:
    """Whether rows are lists of numbers, rather than of text, of lists or of dicts."""
    return all(isinstance(row, list) and all(isinstance(one, (int, float)) for one in row) for row in rows)


def require_one_each(names: Sequence[str]) -> None:
    """Raise where a name stands for two columns: one of them would be lost."""
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise ValueError(f"{counts[twice]} columns have the name {twice!r}: rename them first.")


def types_in(rows: Data) -> dict[Path, str]:
    """The types of Arrow's that are known of columns, by their paths."""
    types: Mapping[Any, str] = getattr(rows, "arrow_types", {})
    return {(key,) if isinstance(key, str) else key: name for key, name in types.items()}


def kinds_in(rows: Data) -> dict[Path, str]:
    """What the columns are, in words: dtype and shape of a row, kind of rows, or type of times."""
    types, found = types_in(rows), {}
    for path, column in columns_in(rows).items():
        shape = list(column.row_shape if isinstance(column, Ragged) else column.shape[1:])
        dtype = f"{str(column.dtype).removeprefix('torch.')} {shape}"
        found[path] = f"rows of {column.kind} {dtype}" if isinstance(column, Ragged) else types.get(path, dtype)
    return found


def require_same(kinds: Mapping[Any, str], path: str, known: Mapping[Any, str], first: str) -> None:
    """Raise ValueError where a file has other columns (`kinds_in`) than the first one; names what differs."""
    for name in {**known, **kinds}:
        if kinds.get(name) != known.get(name):
            told = (kinds.get(name, "absent"), known.get(name, "absent"))
            raise ValueError(
                f"{path} has other columns than {first}: {joined(name)!r} is {told[0]} instead of {told[1]}."
            )


def chosen(data: Data, names: Sequence[str], masked: bool = False) -> Any:
    """A dataset with some of its columns; a name before a dot stands for all behind it.

    Args:
        data: the dataset.
        names: of columns, those of nested ones joined by dots.
        masked: with the masks that say where they are null.

    Raises:
        KeyError: there is no such column; lists the columns.
    """
    known = keys_by_name(data, names)
    masks = [name + VALID for name in names if masked and name + VALID in known]
    return data.select(*(known[name] for name in dict.fromkeys([*names, *masks])))
