"""Arrow's columns as tensors and ragged rows, and back; without a copy where the layout allows it.

Arrow                                              here
int, uint, float, half, bool                       tensor [n]
fixed_size_list<...>, fixed_shape_tensor           tensor [n, ...]
list<numbers>, large_list<numbers>                 Ragged of tensors
list<text, list or struct>, map<text, ...>         Ragged of JSON values
string, large_string, string_view                  Ragged of strings
binary, large_binary                               Ragged of bytes
dictionary<...>                                    as its values
timestamp, date, time, duration                    tensor [n], int64 (int32 for 32-bit ones) in its own unit, which
                                                   `TensorDict.arrow_types` keeps; not within lists
struct<a, b>                                       a nested TensorDict
null                                               tensor [n] of zeros, float64; also of lists that are all empty
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from tdmap.data.kinds import Data, Dataset
from tdmap.datasets.columns import (
    VALID,
    Path,
    columns_in,
    is_mask,
    joined,
    mask_of,
    require_one_each,
    rows_in,
    types_in,
)
from tdmap.datasets.jsontext import DEEPEST, decoded, json_texts, json_values, wide
from tdmap.process_state import on_host
from tensordict_lite import Ragged, TensorDict
from tensordict_lite.packages import compute, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1 << 16
"""Rows that go through memory at a time."""

T = TypeVar("T")

NULLS = ("raise", "mask")
NO_TEXT = b"\xff"
"""What `Ragged` holds for None among strings; no byte of UTF-8."""

TO_DO = "encode it as UTF-8, or make it a column of bytes (types= of CSV)"
"""Advice about text of other encodings."""

NAMES_ONLY = ("arrow.uuid", "arrow.json")
"""Types of extensions whose storage is the value."""


def empty_table(schema: pa.Schema) -> Any:
    """A table of a schema without rows."""
    pa = pyarrow()  # whose own `empty_table` has no unions
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def chosen_fields(schema: pa.Schema, columns: Sequence[str] | None) -> Any:
    """A schema of these columns only; None: of all."""
    return schema if columns is None else pyarrow().schema([schema.field(name) for name in columns])


def rows_of(batch: pa.RecordBatch | pa.Table | Part, nulls: str = "raise", start: int = 0) -> TensorDict:
    """The rows of a table or a record batch of Arrow's.

    Args:
        batch: the table, or a `Part`.
        nulls: `"raise"`, or `"mask"`: nulls are zeros and empty rows, and every column gets one of bools beside it,
            named `"x.valid"`.
        start: number of its first row, for messages.

    A column `"x.valid"` of bools that is there already, as a dataset with masks has it, stays the mask of `"x"`.

    Raises:
        TypeError: a column is of a type that has no place here; names it, and what to do.
        ValueError: a column has nulls; names it and the first row. Or two columns have one name.
    """
    if nulls not in NULLS:
        raise ValueError(f"nulls must be 'raise' or 'mask': got {nulls!r}.")
    pa = pyarrow()
    if isinstance(batch, Part):
        columns, rows = batch.columns, batch.num_rows
    else:
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        columns, rows = _flattened(pa, table), table.num_rows
    if not columns:
        raise ValueError(f"a dataset needs columns: got {rows:,} rows without columns.")
    require_one_each([joined(path) for path in columns])
    entries: dict[Path, Any] = {}
    types: dict[Path, str] = {}
    for path, column in columns.items():
        if nulls == "mask" and is_mask(path, columns):
            entries.setdefault(path, None)  # in its place
            continue
        if isinstance(column, (Tensor, Ragged)):
            entries[path] = column
            valid = None
        else:
            array = _decoded(pa, _one(pa, column))
            entries[path] = _value_of(pa, array, joined(path), nulls, start)
            if _is_time(pa, array.type):
                types[path] = str(array.type)
            valid = array
        if nulls == "mask":
            entries[mask_of(path)] = _valid(pa, columns, path, valid, rows)
    return _tree(entries, types, rows)


def _tree(entries: Mapping[Path, Any], types: Mapping[Path, str], rows: int) -> TensorDict:
    found = TensorDict({}, [rows])
    for path, value in entries.items():
        if len(path) > DEEPEST:
            raise ValueError(
                f"the column {joined(path)[:40]!r}... is nested {len(path) - 1:,} levels deep, and {DEEPEST} "
                "is the limit: leave it out with columns=[...]."
            )
        node = found
        for key in path[:-1]:
            below = node.get(key, None)
            if below is None:
                below = TensorDict({}, [rows])
                node.set(key, below)
                below = node.get(key)
            if isinstance(below, (Tensor, Ragged)):
                raise ValueError(
                    f"{key!r} is a column, and also the parent of the column {joined(path)!r}: rename one first."
                )
            node = below
        node.set(path[-1], value)
    if types:
        found.arrow_types = types
    return found


def _flattened(pa: ModuleType, table: pa.Table) -> dict[Path, Any]:
    """The columns of a table by their paths, with those of structs in their place; nulls of a struct are nulls of all.

    Raises:
        TypeError: a struct has no fields.
        ValueError: two columns have one name.
    """
    require_one_each(table.schema.names)
    columns = zip(table.schema.names, table.columns)
    return {path: found for name, column in columns for path, found in _columns_in(pa, (name,), column)}


def _columns_in(pa: Any, path: Path, column: Any) -> Iterator[tuple[Path, Any]]:
    kind = column.type
    if not pa.types.is_struct(kind):
        yield path, column
        return
    if not kind.num_fields:
        raise TypeError(f"the column {joined(path)!r} is a struct without fields: leave it out with columns=[...].")
    names = [kind.field(number).name for number in range(kind.num_fields)]
    require_one_each(names)
    for name, below in zip(names, _one(pa, column).flatten()):
        yield from _columns_in(pa, (*path, name), below)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Say in errors about columns, and in those of the system, which file is read or written."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if path in str(error):
            raise
        kind = ValueError if isinstance(error, UnicodeError) else type(error)
        raise kind(f"{path}: {error}") from None
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def _value_of(pa: ModuleType, array: pa.Array, name: str, nulls: str, start: int) -> Any:
    if array.null_count and nulls == "raise":
        row = start + int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise ValueError(
            f"the column {name!r} has nulls, the first in row {row}: pass nulls='mask' for zeros and a bool column, "
            "or fill them first."
        )
    if _is_text(pa.types, array.type) or pa.types.is_nested(array.type):
        require_utf8(array, f"the column {name!r}", start)
    try:
        return _time_numbers(pa, array) if _is_time(pa, array.type) else value_of(pa, array)
    except TypeError as error:
        raise TypeError(f"the column {name!r} {error}") from None


def _is_time(pa: ModuleType, kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def type_named(pa: ModuleType, name: str) -> Any:
    """Arrow's type that has a name, such as `"timestamp[us, tz=UTC]"`.

    Raises:
        ValueError: there is none.
    """
    unit, _, zone = name.removesuffix("]").partition(", tz=")
    if zone:
        return pa.timestamp(unit.removeprefix("timestamp["), zone)
    return pa.type_for_alias(name)


def _valid(pa: ModuleType, columns: Mapping[Path, Any], path: Path, array: pa.Array, rows: int) -> Tensor:
    """Where a column has values: no nulls, and True in a mask that is a column as well."""
    valid = torch.ones(rows, dtype=torch.bool)
    if array is not None:
        valid = torch.from_numpy(np.asarray(array.is_valid()).copy())
    mask = columns.get(mask_of(path))
    if mask is None:
        return valid
    kind = mask.dtype if isinstance(mask, Tensor) else getattr(mask, "type", "ragged rows")
    if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.dim() == 1:
        return valid & mask
    if kind != pa.bool_():
        raise ValueError(
            f"nulls='mask' adds a bool column {joined(mask_of(path))!r}, and the data have one of {kind} with "
            "this name."
        )
    return valid & torch.from_numpy(np.asarray(_one(pa, mask).fill_null(False)))


def _one(pa: ModuleType, chunks: pa.ChunkedArray) -> Any:
    if isinstance(chunks, pa.ChunkedArray):
        return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.cast(wide(chunks.type)).combine_chunks()
    return chunks


def _decoded(pa: ModuleType, array: pa.Array) -> Any:
    """The values of a dictionary, and of types of extensions that are only names; other arrays stay."""
    if getattr(array.type, "extension_name", None) in NAMES_ONLY:
        return array.storage
    return decoded(array) if pa.types.is_dictionary(array.type) else array


def require_utf8(array: pa.Array, what: str, start: int) -> None:
    """Raise ValueError for text of other encodings, within lists and structs too, and for bytes that are to be text.

    Args:
        array: the column.
        what: words for it.
        start: number of its first row.
    """
    pa = pyarrow()
    array = _one(pa, array)
    array = array.cast(pa.large_string(), safe=False) if _is_binary(pa.types, array.type) else array
    damage = _damage_of(pa, array)
    if damage is None:
        return
    if "UTF8" not in str(damage):
        raise ValueError(f"{what} is damaged: {damage}")
    first, last = 0, len(array)  # the first row that is wrong is among these
    while last - first > 1:
        half = (first + last) // 2
        is_wrong = _damage_of(pa, array.take(pa.array(range(first, half)))) is not None
        first, last = (first, half) if is_wrong else (half, last)
    try:
        array.slice(first, 1).to_pylist()
    except UnicodeDecodeError as error:
        found = error.object[max(error.start - 20, 0) : error.end + 20]
        raise ValueError(f"{what} has text in row {start + first} that is not UTF-8 ({found!r}): {TO_DO}.") from None
    raise ValueError(f"{what} is damaged: {damage}")


def _damage_of(pa: ModuleType, array: pa.Array) -> Exception | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        damage: Exception = error
        return damage
    return None


def value_of(pa: ModuleType, array: pa.Array) -> Any:
    """One array of Arrow's.

    Raises:
        TypeError: there is nothing here for its type; the message begins after the name of the column.
    """
    if isinstance(array, pa.ChunkedArray):
        array = _one(pa, array)
    array = _decoded(pa, array)
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _shaped(pa, array)
    if types.is_null(kind):
        return torch.zeros(len(array), dtype=torch.float64)
    if types.is_boolean(kind):
        filled = array.fill_null(False) if array.null_count else array
        return torch.from_numpy(np.array(filled.to_numpy(zero_copy_only=False), dtype=np.bool_))
    if types.is_integer(kind) or types.is_floating(kind):
        return numbers_of(array.fill_null(0) if array.null_count else array)
    if _is_time(pa, kind):
        raise TypeError(f"has times ({kind}) within its lists, which would become plain numbers: cast them before.")
    if types.is_fixed_size_list(kind):
        return _fixed(pa, array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(pa, array) if _is_plain(types, kind.value_type) else _objects(pa, array)
    if types.is_map(kind) and _is_text(types, kind.key_type):
        return _objects(pa, array)
    for is_kind, name in ((_is_text, "str"), (_is_binary, "bytes")):
        if is_kind(types, kind):
            return _bytes(pa, array, name)
    raise TypeError(_no_place(kind))


def numbers_of(array: pa.Array) -> Tensor:
    """The memory of an array of numbers without nulls."""
    if not len(array):
        return torch.from_numpy(np.empty(0, array.type.to_pandas_dtype()))
    return torch.utils.dlpack.from_dlpack(array)


def _no_place(kind: pa.DataType) -> str:
    return f"has the type {kind}, which a tensor cannot hold: cast it, or leave it out with columns=[...]."


def _time_numbers(pa: ModuleType, array: pa.Array) -> Tensor:
    """Times as whole numbers in their own unit."""
    whole = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return numbers_of(whole.fill_null(0) if whole.null_count else whole)


def _shaped(pa: ModuleType, array: pa.Array) -> Tensor:
    """A column of tensors of one shape, of Arrow's own type or of those of Hugging Face (`Array2D`)."""
    shape, values = getattr(array.type, "shape", None), array.storage
    permutation = list(getattr(array.type, "permutation", None) or ())
    if not isinstance(shape, (tuple, list)) or permutation != sorted(permutation):
        raise TypeError(_no_place(array.type))
    if not pa.types.is_fixed_size_list(values.type):
        for size in shape:
            if values.null_count or bool((np.asarray(compute().list_value_length(values)) != size).any()):
                raise TypeError(f"has tensors that are not of the shape {list(shape)}: cast it to lists before.")
            values = values.flatten()
    return cast(Tensor, value_of(pa, values)).reshape(len(array), *shape)


def _is_text(types: ModuleType, kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(types: ModuleType, kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )  # fmt: skip


def _fixed(pa: ModuleType, array: pa.Array) -> Tensor:
    width = array.type.list_size
    if array.null_count:  # a null has values of its own, which are anything
        valid = torch.from_numpy(np.asarray(array.is_valid()).copy())
        inner = array.values.slice(array.offset * width, len(array) * width)
    else:
        valid, inner = None, array.flatten()
    if inner.null_count and valid is None:
        raise TypeError("has nulls within its lists, which have no place in a tensor: fill them before.")
    value = value_of(pa, inner)
    if not isinstance(value, Tensor):
        raise TypeError(f"is of the type {array.type}: only lists of numbers have a place in a tensor.")
    value = value.reshape(len(array), width, *value.shape[1:])
    if valid is not None:
        value = value.clone()
        value[~valid] = 0
    return value


def _lists(pa: ModuleType, array: pa.Array) -> Any:
    if array.null_count:
        array = array.fill_null([])
    inner = array.values
    if inner.null_count:
        raise TypeError("has nulls within its lists, which have no place in a tensor: fill them before.")
    value = value_of(pa, inner)
    if not isinstance(value, Tensor):
        raise TypeError(f"has the type {array.type}: lists of lists and lists of text are not supported here.")
    offsets = numbers_of(array.offsets).to(torch.int64)
    return Ragged._over("tensor", value, offsets)


def _is_plain(types: ModuleType, kind: pa.DataType) -> bool:
    """Whether values of a type are numbers, or lists of a fixed size of them: what a tensor holds."""
    if types.is_fixed_size_list(kind):
        return _is_plain(types, kind.value_type)
    if types.is_dictionary(kind):
        return _is_plain(types, kind.value_type)
    nested = types.is_nested(kind) or _is_text(types, kind) or types.is_map(kind)
    return not nested and not hasattr(kind, "storage_type")


def _objects(pa: ModuleType, array: pa.Array) -> Any:
    """Lists of text, of lists or of structs, and maps, as JSON values; a null is None.

    Raises:
        TypeError: they hold what JSON has not.
    """
    odd = _not_json(pa, array.type)
    if odd is not None:
        raise TypeError(
            f"is of the type {array.type}, and JSON has no {odd}: cast it, or leave it out with columns=[...]."
        )
    return _bytes(pa, json_texts(array), "json")


def _not_json(pa: ModuleType, kind: pa.DataType) -> Any:
    """A type within a nested one whose values JSON has not; None where it has all."""
    types = pa.types
    if types.is_map(kind):
        return kind.key_type if not _is_text(types, kind.key_type) else _not_json(pa, kind.item_type)
    if types.is_dictionary(kind):
        return _not_json(pa, kind.value_type)
    if types.is_struct(kind):
        below = (_not_json(pa, kind.field(number).type) for number in range(kind.num_fields))
        return next((odd for odd in below if odd is not None), None)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _not_json(pa, kind.value_type)
    has = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)
    return None if has or _is_text(types, kind) else kind


def _bytes(pa: ModuleType, array: pa.Array, kind: str) -> Any:
    wanted = pa.large_string() if kind == "str" else pa.large_binary()
    if array.type != wanted and not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(wanted)
    if array.null_count:
        array = array.fill_null("" if kind == "str" else b"")
    wide = array.type == wanted
    _, offsets, values = array.buffers()
    width = np.int64 if wide else np.int32
    if len(array):
        found = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    else:
        found = np.zeros(1, width)
    content = torch.empty(0, dtype=torch.uint8)
    if values is not None and values.size:
        content = torch.utils.dlpack.from_dlpack(pa.UInt8Array.from_buffers(pa.uint8(), values.size, [None, values]))
    return Ragged._over(kind, content, torch.from_numpy(found.astype(np.int64)))


class Part(NamedTuple):
    """Some rows of a format that is none of Arrow's, whose numbers need not be numbers of Arrow's."""

    num_rows: int
    columns: dict[Path, Any]
    """Tensors, ragged columns, and times as arrays of Arrow's."""


def with_values(table: Any, values: Mapping[str, Any], columns: Sequence[str] | None) -> Any:
    """A table or `Part` with columns that hold one value each.

    Args:
        table: the table.
        values: scalars by names.
        columns: only these, of both; None: all.

    Raises:
        ValueError: the table has such a column.
    """
    pa, rows = pyarrow(), table.num_rows
    more = {name: pa.repeat(value, rows) for name, value in values.items()}
    names = [path[0] for path in table.columns] if isinstance(table, Part) else table.schema.names
    twice = next((name for name in more if name in names), None)
    if twice is not None:
        raise ValueError(f"the file has a column {twice!r}, and so has the name of its folder: rename one.")
    if isinstance(table, Part):
        found = table.columns | {(name,): column for name, column in more.items()}
        return Part(
            rows, {path: found[path] for path in found if columns is None or {path[0], joined(path)} & {*columns}}
        )
    for name, column in more.items():
        table = table.append_column(name, column)
    return table if columns is None else table.select(list(columns))


# -- back --------------------------------------------------------------------------------------------------------------


@on_host
def to_arrow(data: Dataset[Any], *, nulls: str | None = None) -> Any:
    """A table of Arrow's, sharing memory where it can.

    Args:
        data: a collection with rows, a dict of columns, a `Ragged`; or a table of Arrow's, which stays.
        nulls: `"mask"`: values are nulls where the bools in `"x.valid"` are False, as `from_arrow` makes them of nulls.
            Default: these are columns like others.

    Raises:
        TypeError: a column has no type there; names it.
        ValueError: `nulls` is something else, a mask is no bool a row, two columns would have one name, or text is not
            UTF-8, which has no lone surrogates.
    """
    return part_to_arrow(data, nulls, 0)


def part_to_arrow(data: Data, nulls: str | None, start: int, nested: AsArrow | None = None) -> Any:
    """`to_arrow` of a part that begins at this row, for messages.

    Args:
        data, nulls: as `to_arrow`.
        start: the number of its first row.
        nested: makes arrays of columns of JSON values. None: of the type that the values of the part have in common.
    """
    pa = pyarrow()
    if isinstance(data, pa.Table):
        return data
    arrays = part_arrays(data, nulls, start, nested or (lambda path, texts: _values_in_common(texts)))
    names, found = nested_in(arrays, lambda names, below: pa.StructArray.from_arrays(below, names=names))
    return pa.Table.from_arrays(found, names=names)


AsArrow: TypeAlias = "Callable[[Path, Any], Any]"
"""Makes an array of the texts of a column of JSON values. Raises TypeError with what follows the column's name."""


def part_arrays(data: Data, nulls: str | None, start: int, nested: AsArrow) -> dict[Path, Any]:
    """The columns of a part as arrays of Arrow's, by their paths. Arguments and errors as `part_to_arrow`."""
    if nulls not in (None, "mask"):
        raise ValueError(
            f"nulls must be 'mask', for nulls where the column 'x.valid' is False, or None: got {nulls!r}."
        )
    pa, rows = pyarrow(), rows_in(data)
    types = types_in(rows)
    arrays: dict[Path, Any] = {}
    for path, column in columns_in(rows).items():
        what = f"the column {joined(path)!r}"
        try:
            if not isinstance(column, Ragged):
                arrays[path] = _timed(pa, array_of(pa, column), types.get(path, ""))
                continue
            array = ragged_array(pa, column, what, start)
            arrays[path] = nested(path, array) if column.kind == "json" else array
        except TypeError as error:
            raise TypeError(f"{what} {error}") from None
    for mask in [path for path in arrays if nulls and is_mask(path, arrays)]:
        _put_nulls(pa, arrays, (*mask[:-1], mask[-1].removesuffix(VALID)), arrays.pop(mask))
    return arrays


def nested_in(arrays: Mapping[Path, Any], join: Callable[[list[str], list[Any]], Any]) -> tuple[list[str], list[Any]]:
    """Names and arrays of one level; `join` makes one array of those of a level below."""
    levels: dict[str, Any] = {}
    for path, array in arrays.items():
        if len(path) == 1:
            levels[path[0]] = array
        else:
            levels.setdefault(path[0], {})[path[1:]] = array
    found = [join(*nested_in(level, join)) if isinstance(level, dict) else level for level in levels.values()]
    return list(levels), found


def _timed(pa: ModuleType, array: pa.Array, name: str) -> Any:
    """Whole numbers as the times that they are; others, and where no type is known, stay."""
    if not name or not pa.types.is_integer(array.type):
        return array
    try:
        kind = type_named(pa, name)
    except ValueError:
        raise TypeError(f"is {name!r} in arrow_types, which is not a type of Arrow: set another type.") from None
    return array.view(kind) if array.type.bit_width == kind.bit_width else array


def _put_nulls(pa: ModuleType, arrays: dict[Path, Any], path: Path, valid: pa.Array) -> None:
    if valid.type != pa.bool_():
        name = joined(path)
        raise ValueError(f"the column {name + VALID!r} must hold one bool per row: False where {name!r} is null.")
    # By an index with nulls: fixed lists of a row that is null need no values of their own then.
    rows = np.arange(len(valid))
    arrays[path] = arrays[path].take(pa.array(rows, mask=~np.asarray(valid)))


def array_of(pa: ModuleType, tensor: Tensor) -> Any:
    """A tensor `[n, ...]` as an array: dimensions behind the first one are lists of a fixed size.

    Raises:
        TypeError: Arrow has no such numbers, or rows have no elements; the message begins after the name of the column.
    """
    if 0 in tensor.shape[1:]:
        shape = list(tensor.shape[1:])
        raise TypeError(f"has rows of shape {shape}, without elements, which Arrow does not support: leave it out.")
    tensor = tensor.detach().cpu().as_subclass(Tensor)
    try:
        values = tensor.contiguous().numpy(force=True)
        array = pa.array(values.reshape(-1))
    except (TypeError, RuntimeError, pa.ArrowException) as error:
        raise TypeError(f"is {tensor.dtype}, which Arrow does not support ({error}): convert it first.") from None
    for size in reversed(tensor.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


class TypesGrew(Exception):
    """Rows that were given on before have types that do not hold those of later rows: begin anew."""


def attempt(run: Callable[[], T]) -> T:
    """Call a function until the types that it begins with hold all rows."""
    while True:
        try:
            return run()
        except TypesGrew:
            pass


class NestedTypes:
    """The types of Arrow's that hold all values of columns of JSON values. The first rows tell them."""

    def __init__(self) -> None:
        self._known: dict[Path, Any] = {}
        self.grew = False

    def __call__(self, path: Path, texts: pa.Array) -> Any:
        """The values of some rows of a column (`AsArrow`)."""
        pa, known = pyarrow(), self._known.get(path)
        if known is not None:
            with contextlib.suppress(pa.ArrowInvalid):
                return json_values(texts, known)
        array = _values_in_common(texts)
        if known is None:
            self._known[path] = array.type
        elif (kind := _common(known, array.type)) != known:
            self._known[path], self.grew = kind, True
        elif array.type != known:
            array = _from_objects(texts, known)
        return array

    def finish(self) -> None:
        """All rows were seen.

        Raises:
            TypesGrew: the first rows have types that do not hold all of them.
        """
        if self.grew:
            raise TypesGrew


def _values_in_common(texts: pa.Array) -> Any:
    try:
        return json_values(texts)
    except pyarrow().ArrowInvalid:
        return _from_objects(texts, None)


def _from_objects(texts: pa.Array, kind: pa.DataType) -> Any:
    pa = pyarrow()
    try:
        return pa.array([json.loads(text) for text in texts.to_pylist()], kind)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as error:
        raise _nothing_in_common(error) from None


def _common(one: pa.DataType, other: pa.DataType) -> Any:
    pa = pyarrow()
    try:
        schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException as error:
        raise _nothing_in_common(error) from None


def _nothing_in_common(error: Exception) -> TypeError:
    return TypeError(
        f"holds JSON values that have no type of Arrow's in common ({error}): write JSON Lines, or convert them."
    )


def ragged_array(pa: ModuleType, column: Ragged, what: str, start: int) -> Any:
    """Rows of different lengths as large lists, strings or bytes, JSON values as their text; None is null.

    Raises:
        ValueError: text is not UTF-8; see `require_utf8`.
    """
    flat, starts = column.flat()
    flat, offsets = flat.as_subclass(Tensor).contiguous(), starts.as_subclass(Tensor).numpy()
    if column.kind == "tensor":
        return pa.LargeListArray.from_arrays(pa.array(offsets), array_of(pa, flat))
    kind = pa.large_binary() if column.kind == "bytes" else pa.large_string()
    array = pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(offsets), pa.py_buffer(flat.numpy())])
    if column.kind == "json":
        empty = compute().equal(compute().binary_length(array), 0)  # as of a row that was skipped
        array = compute().if_else(empty, pa.scalar("null", kind), array) if compute().any(empty).as_py() else array
    if column.kind == "bytes" or flat.numpy().max(initial=0) < 128:  # ASCII, which takes a tenth of the time to see
        return array
    if _damage_of(pa, array) is None:  # None is damage, too
        return array
    if column.has_none:
        none = compute().equal(array.cast(pa.large_binary()), pa.scalar(NO_TEXT, pa.large_binary()))
        array = compute().if_else(none, pa.scalar(None, kind), array)
    require_utf8(array, what, start)
    return array
