"""The outline of a dataset: its entries with their types, shapes and sizes.

`outline_of` takes it from an open dataset. `read_outline` reads it from the `meta.json` files of a plain folder without
torch, whose import takes longer than the rest of the command. It knows tensors, ragged columns, text, single objects,
nested collections and lazy stacks of equal members. All else it leaves to the loader of `tensordict_lite`: other kinds,
and folders that look damaged, for which the loader has the right message.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tdmap.cli.describe import LOOKED_AT, is_branch, outline, shape_of, size_of, time_types, type_name
from tdmap.memory import hidden

DEEPEST = 64
"""Levels of folders that are read; deeper datasets are left to the loader."""

ITEMSIZE = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
_RESERVED = frozenset({"shape", "device", "_type", "_format_version", "_class", "_entries"})
_PLAIN_KEY = re.compile(r"[\w.+-]*\w")  # stored under its own name
_TEXT_FILE = re.compile(r"(values|offsets)(-[0-9a-f]{8})?\.memmap")


@dataclass
class Outline:
    """A dataset or an entry of it."""

    kind: str
    """Name of the class of a collection; dtype of an entry, or type of its objects."""
    shape: list[int]
    bytes: int = 0
    time: str | None = None
    """The type of time of whole numbers, such as "timestamp[us]"."""
    entries: dict[str, Outline] | None = None
    """Of a collection, sorted by name."""

    def leaves(self, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Outline]]:
        """The entries that have none themselves."""
        for name, entry in (self.entries or {}).items():
            yield from [((*key, name), entry)] if entry.entries is None else entry.leaves((*key, name))


def outline_of(data: Any) -> Outline:
    """The outline of an open dataset."""
    return _outline_of(data, time_types(data), "")


def _outline_of(data: Any, times: dict[str, Any], above: str) -> Outline:
    columns, entries = outline(data), {}
    for name in sorted(columns.keys()):
        value, time = columns.get(name), times.get(above + name)
        if is_branch(value):
            entries[name] = _outline_of(value, times, f"{above}{name}.")
        else:
            entries[name] = Outline(type_name(value), list(shape_of(value)), size_of(value), time and time.name)
    return Outline(type(data).__name__, list(data.batch_size), entries=entries)


def bytes_text(count: int) -> str:
    """A number of bytes for people, as that of the same name in `tensordict_lite`, which this module does not import.

    Example:
        >>> bytes_text(12), bytes_text(1_572_864), bytes_text(1000 << 10)
        ('12 B', '1.5 MiB', '1000.0 KiB')
    """
    scale = max(0, min((count.bit_length() - 1) // 10, 4))
    return f"{count / (1 << 10 * scale):.1f} {'KMGT'[scale - 1]}iB" if scale else f"{count} B"


def read_outline(path: Path) -> Outline | None:
    """The outline of the dataset in a folder, from its metadata and the sizes of its files; None: open it."""
    try:
        folder = os.path.realpath(path)
        others = (f"{folder}/{hidden.SHARDS}", f"{os.path.dirname(folder)}/meta.json")  # an outer dataset has the lock
        if any(map(os.path.lexists, others)):
            return None
        fd = hidden.open_folder(folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # no save replaces files meanwhile
            found = _read(folder, [], 0)
            return found if found.entries is not None and os.path.samestat(os.fstat(fd), os.stat(folder)) else None
        finally:
            os.close(fd)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):  # metadata that this module does not know
        return None


def _read(folder: str, batch: list[int], depth: int) -> Outline:
    """The outline of a folder within a collection of a batch size. Raises if it is not one of the common kinds."""
    meta: Any = hidden.parse_json(hidden.read(f"{folder}/meta.json", own=False) or b"")
    _require(depth <= DEEPEST and not {"_growing", "_names", "_batch_size", "_batch_dims"} & meta.keys())
    name = meta["_type"].removeprefix("<class '").removesuffix("'>")
    if name == "tensordict.tensorclass.NonTensorData":
        _require(math.prod(batch) > 0)
        return Outline(type(meta["data"]).__name__, batch)
    _require(_sizes([meta["_format_version"]]) == [1])
    if name == "tensordict._td.TensorDict":
        found = _dense(folder, meta, depth)
    elif name == "tensordict._lazy.LazyStackedTensorDict":
        found = _stack(folder, meta, depth)
    elif name == "tensordict_lite.TextStack":
        kind, (rows, nbytes), files = meta["kind"], _sizes([meta["rows"], meta["nbytes"]]), meta["files"]
        _require(kind in ("str", "bytes", "json") and all(map(_TEXT_FILE.fullmatch, files)))
        for file, size in zip(files, (nbytes, 8 * (rows + 1)), strict=True):
            _require_file(f"{folder}/{file}", size)
        found = Outline(kind, [rows], nbytes)
    else:
        _require(name == "tensordict.tensorclass.NonTensorStack")
        found = _objects(meta)
    _require(found.shape[: len(batch)] == batch)
    return found


def _dense(folder: str, meta: dict[str, Any], depth: int) -> Outline:
    batch = _sizes(meta["shape"])
    _require(meta["device"] == "cpu")
    named = {key: entry for key, entry in meta.items() if type(entry) is dict and key not in _RESERVED}
    entries = {}
    for key, entry in sorted({**named, **meta.get("_entries", {})}.items()):
        _require(_PLAIN_KEY.fullmatch(key))
        nested = isinstance(entry.get("type"), str)
        entries[key] = _read(f"{folder}/{key}", batch, depth + 1) if nested else _leaf(f"{folder}/{key}", entry, batch)
    return Outline("TensorDict", batch, entries=entries)


def _leaf(stem: str, entry: dict[str, Any], batch: list[int]) -> Outline:
    """A tensor, or a ragged column."""
    dtype, shape = entry["dtype"].removeprefix("torch."), _sizes(entry["shape"])
    is_ragged, itemsize = entry.get("layout") == "ragged", ITEMSIZE[dtype]
    known = {"device", "shape", "dtype", "is_nested", "arrow"} | ({"layout", "values"} if is_ragged else set())
    _require(entry.keys() <= known and entry["is_nested"] is is_ragged)
    stored = _sizes(entry["values"]) if is_ragged else shape
    _require_file(f"{stem}.memmap", itemsize * math.prod(stored))
    if is_ragged:
        rows, dims = shape
        _require(len(stored) == dims and [rows] == batch[:1])
        _require_file(f"{stem}.shape.memmap", 8 * rows * dims)
        _require_file(f"{stem}.offsets.memmap", 8 * (rows + 1))
        return Outline(f"ragged {dtype}", [rows], itemsize * math.prod(stored))
    _require(shape[: len(batch)] == batch)
    return Outline(dtype, shape, itemsize * math.prod(shape), _time_of(entry.get("arrow"), dtype))


def _time_of(arrow: str | None, dtype: str) -> str | None:
    if arrow is None or dtype not in ("int32", "int64"):
        return None
    from tdmap.times import time_type

    kind = time_type(arrow)
    return None if kind is None else kind.name


def _objects(meta: dict[str, Any]) -> Outline:
    """Objects of one dimension that are no lists."""
    values = meta["data"]
    _require(type(values) is list and meta["stack_dim"] == 0)
    _require(all(value is None or type(value) in (str, int, float, bool) for value in values))
    kinds, ragged = {type(value).__name__ for value in values[:LOOKED_AT]}, meta.get("_ragged")
    _require(ragged is None or (ragged == "str" and None not in values))
    nbytes = sum(len(value.encode()) for value in values) if ragged else 0
    return Outline(ragged or (kinds.pop() if len(kinds) == 1 else "object"), [len(values)], nbytes)


def _stack(folder: str, meta: dict[str, Any], depth: int) -> Outline:
    """A lazy stack of members with the same entries of the same shapes."""
    (count, dim), first = _sizes([meta["_length"], meta["stack_dim"]]), _read(f"{folder}/0", [], depth + 1)
    _require(meta.get("stack_dim_name") is None and first.kind == "TensorDict" and dim <= len(first.shape))
    _require(all(leaf.kind in ITEMSIZE for _, leaf in first.leaves()))
    _require(all(_read(f"{folder}/{number}", [], depth + 1) == first for number in range(1, count)) and count)
    return _stacked(first, count, dim)


def _stacked(one: Outline, count: int, dim: int) -> Outline:
    shape, entries = [*one.shape[:dim], count, *one.shape[dim:]], one.entries
    if entries is None:
        return replace(one, shape=shape, bytes=one.bytes * count)
    return Outline(
        "LazyStackedTensorDict", shape, entries={name: _stacked(entry, count, dim) for name, entry in entries.items()}
    )


def _sizes(value: Any) -> list[int]:
    _require(type(value) is list and len(value) <= 64 and all(type(n) is int and n >= 0 for n in value))
    return list(value)


def _require_file(path: str, nbytes: int) -> None:
    if nbytes or os.path.lexists(path):
        info = os.lstat(path)
        _require(stat.S_ISREG(info.st_mode) and info.st_size == nbytes and os.access(path, os.R_OK))


def _require(known: object) -> None:
    if not known:
        raise ValueError("not one of the common kinds")
