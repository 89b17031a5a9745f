"""Arrow's types of columns of text files: asked for, joined where parts of a file differ, and whole numbers in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tdmap.datasets.arrow import type_named
from tensordict_lite.packages import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

Numbered = tuple[int, Any]
"""The number of a row, and its value as Python has it."""


def asked_types(types: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arrow's types of what a caller asks for: dtypes of torch, types of Arrow or their names, `str` and `bytes`.

    Raises:
        TypeError: it is none of those, or Arrow has no such type; names the column.
    """
    pa, found = pyarrow(), {}
    for name, kind in (types or {}).items():
        try:
            if isinstance(kind, torch.dtype):
                found[name] = pa.from_numpy_dtype(torch.empty(0, dtype=kind).numpy().dtype)
            elif isinstance(kind, str):
                found[name] = type_named(pa, kind)
            else:
                found[name] = {str: pa.string(), bytes: pa.binary()}.get(kind, kind)
            if not isinstance(found[name], pa.DataType) or pa.types.is_float16(found[name]):  # which no parser has
                raise TypeError
        except (TypeError, ValueError, pa.ArrowException):
            raise TypeError(
                f"types= has {kind!r} for the column {name!r}: pass a dtype of torch, a type of Arrow or its name "
                "(such as 'string' or 'timestamp[us]'), str or bytes."
            ) from None
    return found


def joined_kind(one: pa.DataType, other: pa.DataType, as_text: bool) -> Any:
    """The type that holds the values of two types in full.

    Args:
        one, other: types of Arrow's.
        as_text: values that have no other type in common are text, as those of CSV are by nature.

    Returns:
        The type. None: there is none.
    """
    pa = pyarrow()
    types = pa.types
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = joined_kind(fields.get(field.name, pa.null()), field.type, as_text)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if types.is_list(one) and types.is_list(other):
        inner = joined_kind(one.value_type, other.value_type, as_text)
        return None if inner is None else pa.list_(inner)
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in (one, other)):
        # Where a value does not fit, parsing says so.
        return pa.float64() if types.is_floating(one) or types.is_floating(other) else pa.uint64()
    if as_text and all(types.is_date(kind) or types.is_timestamp(kind) for kind in (one, other)):
        times = [kind for kind in (one, other) if types.is_timestamp(kind)]
        if len({kind.tz for kind in times}) == 1:
            return next((kind for kind in times if kind.unit == "ns"), times[0])
    if as_text or (types.is_timestamp(one) and types.is_string(other)):
        return pa.string()
    if types.is_timestamp(other) and types.is_string(one):
        return pa.string()
    return None


def with_given(kind: pa.DataType, name: str, given: Mapping[str, Any]) -> Any:
    """A type, with those that are given for the column or for fields of it, by their names joined by dots."""
    pa = pyarrow()
    if name in given:
        return given[name]
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([(field.name, with_given(field.type, f"{name}.{field.name}", given)) for field in kind])


def exact_kind(kind: pa.DataType, values: Iterable[Numbered], what: str, is_known: bool) -> Any:
    """The type of a column with its whole numbers in full, where Arrow takes those that are large for floats.

    Args:
        kind: Arrow's type.
        values: all values of some rows.
        what: words for the column.
        is_known: the type is that of the rows before.

    Raises:
        ValueError: a whole number does not fit; names the column and the row.
    """
    pa = pyarrow()
    rows = [(row, value) for row, value in values if value is not None]
    if pa.types.is_struct(kind):
        fields = []
        for field in kind:
            inner = [(row, value.get(field.name)) for row, value in rows]
            fields.append((field.name, exact_kind(field.type, inner, f"{what} (field {field.name!r})", is_known)))
        return pa.struct(fields)
    if pa.types.is_list(kind):
        return pa.list_(
            exact_kind(kind.value_type, [(row, one) for row, value in rows for one in value], what, is_known)
        )
    if not pa.types.is_float64(kind):
        return kind
    whole = [(row, value) for row, value in rows if isinstance(value, int)]
    limit = 2**63 if any(value < 0 for _, value in whole) else 2**64
    for row, value in whole:
        if not -(2**63) <= value < limit:
            beside = " besides negative integers" if 0 < value < 2**64 else ""
            raise ValueError(
                f"{what} has the integer {value} in row {row}{beside}, which no type of 64 bits holds: to "
                "round it, declare the column float64 in types=."
            )
    if whole and len(whole) == len(rows) and not is_known:
        return pa.uint64() if max(value for _, value in whole) >= 2**63 else pa.int64()
    for row, value in whole:
        if int(float(value)) != value:
            raise ValueError(
                f"{what} has the integer {value} in row {row} besides fractions, and float64 would round it: "
                "to allow that, declare the column float64 in types=."
            )
    return kind
