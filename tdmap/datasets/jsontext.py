"""JSON text of Arrow's values, and back, a column at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdmap.datasets.columns import require_one_each
from tensordict_lite.packages import compute, need, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

DEEPEST = 64
"""Levels of structs, groups and JSON values: parsers call themselves for each, as far as the stack reaches."""

EXACT = 2.0**53
"""Whole numbers below are floats of 64 bits in full."""

MOST_BYTES = 1 << 30
"""Of text that Arrow parses at a time. It counts them in 32 bits."""

PIECE_BYTES = 1 << 20
"""Of text that a thread parses at a time."""

_ESCAPED = r'["\\\x00-\x1f]'
_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_texts(array: pa.Array) -> Any:
    """The JSON of each value, as `json.dumps` writes it without spaces: large strings without nulls.

    Args:
        array: numbers, bools, text, nulls, and lists, structs and maps of them.

    Raises:
        KeyError: a map has a key twice.
        ValueError: a struct has two fields of one name.
    """
    pa, types, kind = pyarrow(), pyarrow().types, array.type
    text = pa.large_string()
    if types.is_dictionary(kind):
        return json_texts(decoded(array))
    if types.is_struct(kind):
        parts = list(map(json_texts, array.flatten()))
        found = join_fields([field.name for field in kind], parts) if parts else pa.array(["{}"] * len(array), text)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = compute().list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.append(0, np.cumsum(lengths, dtype=np.int64)))
        lists = pa.LargeListArray.from_arrays(offsets, json_texts(array.flatten()))
        found = joined_texts("[", compute().binary_join(lists, pa.scalar(",", text)), "]")
    elif types.is_map(kind):
        found = pa.array(list(map(_as_json, array.to_pylist(maps_as_pydicts="strict"))), text)
    elif types.is_floating(kind):
        numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64).tolist()
        found = pa.array(_as_json(numbers)[1:-1].split(",") if numbers else [], text)
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
        found = array.cast(text)
    else:
        found = joined_texts('"', _escaped(array.cast(text)), '"')
    return compute().if_else(array.is_valid(), found, pa.scalar("null", text)) if array.null_count else found


def decoded(array: pa.Array) -> Any:
    """The values of a dictionary. They may be longer than 2 GiB in all, although the dictionary is short."""
    pa = pyarrow()
    if pa.types.is_null(array.type.value_type):
        return pa.nulls(len(array))
    values = array.dictionary.cast(wide(array.type.value_type))
    return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()


def wide(kind: pa.DataType) -> Any:
    """A type with offsets of 64 bits: the chunks of a column may have more than 2 GiB of text together."""
    pa, types = pyarrow(), pyarrow().types
    if types.is_string(kind) or types.is_binary(kind):
        return pa.large_string() if types.is_string(kind) else pa.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.large_list(wide(kind.value_type))
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, wide(kind.value_type), kind.ordered)
    if types.is_map(kind):
        return pa.map_(wide(kind.key_type), wide(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([kind.field(at).with_type(wide(kind.field(at).type)) for at in range(kind.num_fields)])
    return kind


def join_fields(names: Sequence[str], texts: Sequence[Any]) -> Any:
    """Objects of fields whose values are JSON already.

    Raises:
        ValueError: two fields have one name.
    """
    require_one_each(names)
    heads = [f"{',' if number else '{'}{_as_json(name)}:" for number, name in enumerate(names)]
    return joined_texts(*(part for pair in zip(heads, texts) for part in pair), "}")


def joined_texts(*parts: pa.Array) -> Any:
    """Large strings, one after the other in each row; a string is the same in all rows."""
    kind = pyarrow().large_string()
    scalars = [pyarrow().scalar(part, kind) if isinstance(part, str) else part for part in (*parts, "")]
    return compute().binary_join_element_wise(*scalars)


def _escaped(text: pa.Array) -> Any:
    """Text as it is between quotes."""
    odd = compute().match_substring_regex(text, _ESCAPED).fill_null(False)
    if not compute().any(odd).as_py():
        return text
    quoted = [_as_json(one)[1:-1] for one in text.filter(odd).to_pylist()]
    return compute().replace_with_mask(text, odd, pyarrow().array(quoted, pyarrow().large_string()))


def text_bytes(texts: pa.Array) -> Any:
    """The bytes of large strings, one after the other, without a copy."""
    _, offsets, content = texts.buffers()
    if not len(texts) or content is None:
        return b""
    first, last = np.frombuffer(offsets, np.int64)[[texts.offset, texts.offset + len(texts)]].tolist()
    return content.slice(first, last - first)


# -- back ----------------------------------------------------------------------------------------------------------


def json_values(texts: pa.Array, kind: pa.DataType = None) -> Any:
    """The values of JSON, of a type of Arrow's.

    Args:
        texts: large strings of UTF-8.
        kind: the type. None: the one that the values have in common, in which times are text.

    Raises:
        ArrowInvalid: they have no type in common, or not this one; or Arrow cannot parse them in full.
    """
    pa = pyarrow()
    block = text_bytes(joined_texts('{"x":', texts, "}\n"))
    if len(block) > MOST_BYTES or too_deep(block) is not None:
        raise pa.ArrowInvalid("there is too much of it")
    if kind is None:
        found = parsed(block)["x"]
        kind = _without_times(found.type)
        if kind != found.type:
            found = parsed(block, {"x": kind}, "error")["x"]
    else:
        found = parsed(block, {"x": kind}, "error")["x"]
    if is_large(found):
        raise pa.ArrowInvalid("whole numbers would be rounded")
    return found.combine_chunks()


def _without_times(kind: pa.DataType) -> Any:
    pa, types = pyarrow(), pyarrow().types
    if types.is_struct(kind):
        return pa.struct([(field.name, _without_times(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if types.is_timestamp(kind) else kind


def parsed(block: Any, types: Mapping[str, Any] | None = None, unexpected: str = "infer", threads: bool = True) -> Any:
    """A table of lines of JSON objects.

    Args:
        block: the lines.
        types: Arrow's types of columns. None: those that values have in common.
        unexpected: what is done with other columns, as Arrow calls it.
        threads: parse pieces of the block on several threads.

    Raises:
        ArrowInvalid: the lines are not JSON, or do not have these types.
    """
    pa, reader = pyarrow(), need("pyarrow.json", "arrow", "reading JSON Lines")
    schema = pa.schema(list(types.items())) if types else None
    options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    if threads and len(block) > 2 * PIECE_BYTES:
        with contextlib.suppress(pa.ArrowInvalid):  # a row is longer; or the message, which would have another row
            pieces = reader.ReadOptions(use_threads=True, block_size=PIECE_BYTES)
            return reader.read_json(pa.BufferReader(block), pieces, options)
    whole = reader.ReadOptions(use_threads=False, block_size=len(block) + 16)
    return reader.read_json(pa.BufferReader(block), whole, options)


def is_large(column: pa.ChunkedArray) -> bool:
    """Whether a column has floats that whole numbers may have been rounded to, lists and structs included."""
    pa = pyarrow()
    types = pa.types
    if isinstance(column, pa.ChunkedArray):
        return any(is_large(chunk) for chunk in column.chunks)
    if types.is_list(column.type):
        return is_large(column.flatten())
    if types.is_struct(column.type):
        return any(is_large(field) for field in column.flatten())
    if not types.is_float64(column.type):
        return False
    values = column.drop_null().to_numpy()
    return bool(len(values)) and bool((abs(values) >= EXACT).any())


def too_deep(data: bytes | bytearray | memoryview) -> int | None:
    """The number of the first JSON value that is nested more than `DEEPEST` levels deep."""
    data = bytes(data)
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    marks = plain.translate(None, bytes(set(range(256)) - set(b'[]{}"')))
    outside = np.frombuffer(b"".join(marks.split(b'"')[::2]), np.uint8)
    opens = (outside == 91) | (outside == 123)
    depth = np.cumsum(np.where(opens, 1, -1), dtype=np.int32)
    deep = np.flatnonzero(depth > DEEPEST)
    if not len(deep):
        return None
    return int(np.count_nonzero(opens[: deep[0]] & (depth[: deep[0]] == 1))) - 1
