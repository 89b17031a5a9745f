"""What the user calls a key, found in the rows of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tdmap.data.kinds import Data, is_data, stored_entry
from tdmap.data.reader import require_entry, rows_of
from tdmap.data.stacks import column_at
from tdmap.keys.codec import KeyCodec, KeyColumn
from tdmap.keys.order import Words
from tdmap.reducers.base import Key
from tdmap.run.identity import parts_of
from tensordict_lite.ragged import is_ragged

KeyLike: TypeAlias = "Key | list[Key] | Callable[[Any], Any]"
"""A key, a nested key (a tuple of strings), a list of several, or a function of a chunk."""

SHOWN = 3
"""Rows that a message names."""


@dataclass(frozen=True)
class KeySpec:
    """Where the key of a row comes from.

    Args:
        names: entries; for a function, what its result is called.
        fn: a function of a chunk, or None.
        casts: dtypes that entries are read as; empty for their own.
    """

    names: tuple[Key, ...]
    fn: Callable[[Any], Any] | None = None
    casts: tuple[torch.dtype, ...] = ()

    @classmethod
    def of(cls, key: KeyLike, what: str, name: str = "key") -> KeySpec:
        """From what the user passed to the operation `what`; `name` is what the result of a function is called.

        Raises:
            TypeError: of another type.
            ValueError: an empty list, or an entry twice.
        """
        if isinstance(key, str) or (isinstance(key, tuple) and key and all(isinstance(part, str) for part in key)):
            return cls((_plain(key),))
        if isinstance(key, list):
            if not key:
                raise ValueError(f"{what} needs at least one key: got an empty list.")
            specs = [cls.of(one, what) for one in key if isinstance(one, (str, tuple))]
            names = tuple(spec.names[0] for spec in specs)
            if len(names) == len(key):
                if len(set(names)) < len(names):
                    raise ValueError(f"{what} takes each key once: got {key!r}.")
                return cls(names)
        elif callable(key):
            return cls((name,), key)
        raise TypeError(
            f"the key of {what} is an entry, a nested entry (a tuple of strings), a list of entries, or a function of "
            f"a chunk: got {key!r}."
        )

    def require(self, data: Data, what: str) -> None:
        """Raise KeyError, or TypeError for data without entries, unless the entries are there and may be keys."""
        if self.fn is not None:
            return
        if isinstance(data, Tensor):
            raise TypeError(f"{what}: a plain tensor has no entries. Pass a function of a chunk as the key.")
        for name in self.names:
            require_entry(data, name, f"the key of {what}")
            # Of all rows: those of a chunk of a lazy stack may be of one length.
            _refuse_lists(column_at(rows_of(data).like, name), name)

    def identity_parts(self) -> dict[str, str]:
        """What a resumed run must find unchanged."""
        names = ", ".join(map(repr, self.names))
        return {"the key": names} | ({} if self.fn is None else parts_of("key function", self.fn))

    def values(self, chunk: Data) -> list[Any]:
        """The key columns of a chunk: tensors, or lists of strings."""
        if self.fn is None:
            found = [_column(chunk, name) for name in self.names]
            return [value.to(dtype) for value, dtype in zip(found, self.casts)] if self.casts else found
        value = as_column(self.fn(chunk), self.fn)
        if len(value) != len(chunk):
            raise ValueError(
                f"the key function returned {len(value)} values for {len(chunk)} rows: it must return one a row."
            )
        return [value]

    def describe(self, index: int) -> str:
        """How messages call a column."""
        return "the result of the key function" if self.fn is not None else f"the key {self.names[index]!r}"

    def codec(
        self, values: Sequence[Any], descending: tuple[bool, ...] = (), none: tuple[int | None, ...] = ()
    ) -> KeyCodec:
        """How columns like these become words; `none` as in `KeyReader`.

        Raises:
            TypeError, ValueError: a column that cannot be a key.
        """
        columns = []
        for index, (value, missing) in enumerate(zip(values, none or repeat(None))):
            if not isinstance(value, Tensor):
                raise TypeError(f"{self.describe(index)} holds {type(value).__name__}, which cannot be a key.")
            columns.append(KeyColumn(self.describe(index), value.dtype, tuple(value.shape[1:]), missing))
        return KeyCodec(tuple(columns), descending)


def _plain(key: Key) -> Key:
    plain: Key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    return plain


def _column(chunk: Data, name: Key) -> Any:
    value = stored_entry(chunk, name)
    if isinstance(value, Tensor):
        return value
    _refuse_lists(value, name)
    if is_data(value) and getattr(value, "tolist", None) is not None:
        return strings_of(value.tolist(), f"the key {name!r}")
    return value


def _refuse_lists(column: object, name: Key) -> None:
    if is_ragged(column) and column.kind == "tensor":
        raise TypeError(f"the key {name!r} holds rows of numbers of different lengths, which cannot be a key.")


def as_column(value: object, fn: object = None) -> Tensor | list[str]:
    """A tensor, or a list of strings, from what a key function may return."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
        return strings_of(value.tolist(), "the result of the key function")
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if all(issubclass(kind, (int, float)) for kind in kinds):
            return torch.tensor(value)
        if all(issubclass(kind, (str, type(None))) for kind in kinds):
            return list(value)
    raise TypeError(
        "a key function returns one number or string for each row, as a tensor, an array or a list: got "
        f"{type(value).__name__}."
    )


def strings_of(values: Any, what: str) -> list[Any]:
    """A list of strings and None, or of bytes; or a TypeError."""
    kinds = set(map(type, values)) if isinstance(values, list) else {list}
    if all(issubclass(kind, (str, type(None))) for kind in kinds) or kinds == {bytes}:
        return values  # type: ignore[no-any-return]
    found = (
        "nested lists"
        if not isinstance(values, list)
        else next(type(one).__name__ for one in values if not isinstance(one, (str, type(None))))
    )
    advice = " beside None: have b'' stand for None, or filter those rows out before" * (kinds == {bytes, type(None)})
    raise TypeError(f"{what} must hold tensors or strings: found {found}{advice}.")


@dataclass(frozen=True)
class KeyReader:
    """The words of chunks.

    Args:
        spec: where the key is.
        codec: how it is encoded.
        dropna: rows whose key is NaN or None: None is an error, True leaves them out, False keeps them.
        what: the operation, for messages.
        none: the number that stands for a string that is None, for each column; empty where there are no strings.
    """

    spec: KeySpec
    codec: KeyCodec
    dropna: bool | None
    what: str
    none: tuple[int | None, ...] = ()

    def integers(self, values: Sequence[Tensor]) -> tuple[NDArray[Any], int] | None:
        """As `KeyCodec.integers`; None as well where some rows are left out, or are an error."""
        if self.dropna is not False and any(number is not None for number in self.none):
            return None
        return self.codec.integers(values)

    def read(self, chunk: Data, start: int) -> tuple[Words, NDArray[np.int64] | None]:
        """The words of rows, and which rows of the chunk these are: None for all of them.

        Raises:
            ValueError: a key is NaN.
        """
        return self.encode(self.values(chunk, start), start)

    def values(self, chunk: Data, start: int) -> list[Tensor]:
        """The key columns of rows.

        Raises:
            ValueError: they are not as in other chunks.
        """
        values = self.spec.values(chunk)
        for index, (value, column) in enumerate(zip(values, self.codec.columns)):
            if not isinstance(value, Tensor) or value.dtype is not column.dtype or value.shape[1:] != column.shape:
                found = f"{value.dtype} {list(value.shape[1:])}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(
                    f"{self.spec.describe(index)} is {found} a row from row {start} on, and "
                    f"{column.dtype} {list(column.shape)} elsewhere: it must be the same in every chunk."
                )
        return values

    def encode(self, values: Sequence[Tensor], start: int) -> tuple[Words, NDArray[np.int64] | None]:
        """As `read`, from the key columns."""
        words = self.codec.encode(values)
        if self.dropna is False:
            return words, None
        missing = self._missing(values)
        if missing is None:
            return words, None
        if self.dropna:
            kept = np.flatnonzero(~missing)
            return [word[kept] for word in words], kept
        rows = np.flatnonzero(missing)
        named = ", ".join(str(start + row) for row in rows[:SHOWN].tolist()) + (", ..." if len(rows) > SHOWN else "")
        raise ValueError(
            f"{self.what}: the key is NaN or None in {'row' if len(rows) == 1 else 'rows'} {named}. Pass dropna=True "
            "to leave these rows out, or dropna=False to make them the last group."
        )

    def _missing(self, values: Sequence[Tensor]) -> NDArray[np.bool_] | None:
        missing: NDArray[np.bool_] | None = None
        for value, column, none in zip(values, self.codec.columns, self.none or repeat(None)):
            if column.is_float or none is not None:
                flat = value.detach().reshape(-1)
                found: NDArray[np.bool_] = (flat.isnan() if none is None else flat == none).numpy()
                if found.any():
                    missing = found if missing is None else missing | found
        return missing


def sample_rows(length: int, runs: int, run: int) -> Tensor:
    """Row numbers of evenly spread runs of consecutive rows: all rows when there are not so many."""
    if length <= runs * run:
        return torch.arange(length)
    starts = torch.arange(runs) * (length - run) // (runs - 1)
    return (starts[:, None] + torch.arange(run)).reshape(-1)
