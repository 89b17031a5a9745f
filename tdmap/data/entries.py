"""What users name: entries by their keys, and rows by their numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import Data, is_dense, stored_entry
from tensordict_lite import TensorDict, is_tensorclass, lazy_stack


def with_types(made: Data, source: Data, names: Mapping[Any, Any] | None = None) -> Data:
    """A collection whose entries of times have the types that they have in another one (`arrow_types`).

    Args:
        made: the collection, which is changed.
        source: the other one.
        names: keys of entries here by those there. None: they are the same.
    """
    types = source.arrow_types if hasattr(source, "arrow_types") else {}
    known = {key if names is None else names[key]: name for key, name in types.items() if names is None or key in names}
    kept = {key: name for key, name in known.items() if made.get(key, None) is not None}
    if kept:
        made.arrow_types = {**made.arrow_types, **kept}
    return made


def as_tensordict(data: Data) -> TensorDict:
    """The entries of a collection in a TensorDict: one that has room for more, which a tensorclass has not."""
    made = TensorDict({key: stored_entry(data, key) for key in data.keys()}, data.shape[:1])
    with_types(made, data)
    return made


def with_room(data: Data) -> Data:
    """The same entries, where they can be had, in a collection of its own that takes more of them, one value a row.

    A copy of another kind has an object of its own for each string.
    """
    if is_dense(data) or len(data.shape) > 1:
        return as_tensordict(data)
    if is_tensorclass(data):
        return lazy_stack([as_tensordict(member) for member in data.unbind(0)])
    return data.clone(False) if data.is_locked else data.copy()


def no_column(name: str, names: Sequence[str]) -> str:
    """The message for an unknown column."""
    close = difflib.get_close_matches(str(name), names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"no column {name!r}. Columns: {', '.join(map(repr, names))}.{hint}"


def require_list(columns: Sequence[str] | None) -> list[str] | None:
    """The names of columns that are asked for, each once; None for all.

    Raises:
        TypeError: it is one string, which is a sequence of letters.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns= is a list of names, as in columns=[{columns!r}]: got a string.")
    return None if columns is None else list(dict.fromkeys(columns))


MASKS = (torch.bool, torch.uint8)
"""What torch takes for a mask."""


def path_of(key: str | Sequence[str]) -> tuple[str, ...]:
    """The path of an entry, whose key may be a single string.

    Example:
        >>> path_of("x"), path_of(["a", "b"])
        (('x',), ('a', 'b'))
    """
    return (key,) if isinstance(key, str) else tuple(key)


def keys_by_name(data: Data, names: Iterable[str]) -> dict[str, Any]:
    """The keys of all entries by their names, which are paths joined by dots.

    Args:
        data: the collection.
        names: those that must be there.

    Raises:
        KeyError: one of `names` is not there; lists the names.
    """
    known = {".".join(path_of(key)): key for key in data.keys(True)}
    for name in names:
        if name not in known:
            raise KeyError(no_column(name, list(known)))
    return known


def row_number(row: int, rows: int) -> int:
    """The number from 0 on of a row that may be counted from the end.

    Raises:
        IndexError: there is no such row.
    """
    if not -rows <= row < rows:
        raise IndexError(f"row {row} of {rows} rows")
    return row + rows if row < 0 else row


def row_numbers(index: Tensor, rows: int) -> Tensor:
    """Numbers from 0 on, int64 `[m]`, of the rows that an index or a mask means, as torch takes it.

    Args:
        index: int64 or int32 numbers of rows of any shape, from the end as well, or a bool or uint8 a row.
        rows: how many there are.

    Raises:
        IndexError: there is no such row, the mask is of another length, or these are no numbers of rows.
    """
    if index.dtype in MASKS:
        if index.shape != (rows,):
            raise IndexError(f"a mask needs one bool per row, shape [{rows}]: got shape {list(index.shape)}.")
        return torch.from_numpy(np.flatnonzero(index.numpy()))  # several times as fast as torch's
    if index.dtype not in (torch.int64, torch.int32):
        raise IndexError(f"rows are taken by int64 or int32 numbers, or by a mask: got {index.dtype}")
    index = index.to(torch.int64).flatten()
    if not len(index):
        return index
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low < -rows or high >= rows:
        raise IndexError(f"row {low if low < -rows else high} of {rows} rows")
    return torch.where(index < 0, index + rows, index) if low < 0 else index
