"""A consolidated tree as JSON, the way the ``tensordict`` package writes it, and back.

Every level is an object: ``cls``, ``non_tensors`` (key -> object, batch size, device), ``leaves`` (key -> dtype, shape,
first byte, last byte + 1, padding before it), ``cls_metadata`` (batch size, names... of the level), and a key for each
nested level. The file is untrusted: everything is checked before it is used.

``tensordict`` rejects objects with unknown keys, so the extensions of this package are a separate object: ``ragged``,
pairs of path and kind of the entries that the main JSON stores as a jagged tensor or, for few strings and JSON values,
as objects; and ``arrow_types``, pairs of path and type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict_lite.callers import warn_caller
from tensordict_lite.consolidated.layout import JaggedSpot, RaggedSpot, Spot, nbytes_of, with_parts
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.lazy.functions import LazyStackedTensorDict, lazy_stack
from tensordict_lite.memmap.disk.format import (
    ITEMSIZE,
    MAX_NAME,
    check_device,
    check_names,
    check_shape,
    is_count,
    tensor_bytes,
)
from tensordict_lite.memmap.disk.pieces import Place
from tensordict_lite.memmap.load import DTYPES, missing_class
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.ragged import KINDS, Ragged, is_ragged
from tensordict_lite.tensorclass.decorator import TensorClass, registered_class

_RESERVED = ("cls", "non_tensors", "leaves", "cls_metadata")
_PARTS = ("<NJT_VALUES>", "<NJT_OFFSETS>", "<NJT_LENGTHS>")
_CLASS = re.compile(r"<class '([^']*)'>")
_MAX_BYTES = 1 << 62
_CPU = torch.device("cpu")


# -- writing -----------------------------------------------------------------------------------------------------


Told = dict[str, list[Any]]
"""``ragged`` and ``arrow_types``, each a list of pairs."""


def describe(node: Any, spots: Sequence[Spot], locked: bool) -> tuple[bytes, bytes]:
    """The JSON of a tree, and that of the extensions, which is empty if there are none.

    Args:
        node: the tree.
        spots: positions of its tensors and ragged entries.
        locked: whether it is locked after loading.

    Raises:
        RuntimeError: JSON cannot hold an object of the tree, or a key is reserved by the format.
    """
    count = len(node._leaves())
    told: Told = {"ragged": [], "arrow_types": []}
    meta = _level(node, iter(spots[:count]), iter(spots[count:]), (), told)
    meta["cls_metadata"]["is_locked"] = locked
    return json.dumps(meta).encode(), json.dumps(told).encode() if any(told.values()) else b""


def _level(
    node: Any, spots: Iterator[Spot], ragged: Iterator[Spot], path: tuple[str, ...], told: Told
) -> dict[str, Any]:
    if node._is_non_tensor and not hasattr(node, "_stack_dim"):
        raise RuntimeError("an object alone cannot be written to a file: put it in a TensorDict first")
    stacked = isinstance(node, LazyStackedTensorDict) or node._is_non_tensor
    non_tensors: dict[str, Any] = {}
    leaves: dict[str, Any] = {}
    meta: dict[str, Any] = {"cls": _class_name(node, stacked), "non_tensors": non_tensors, "leaves": leaves}
    if stacked:
        dim = node._stack_dim
        name = node._names[dim] if node._names is not None else None
        meta["cls_metadata"] = about = {"stack_dim": dim, "stack_dim_name": name, "is_locked": False}
        if not node._source:
            about["batch_size"] = list(node._batch_size)  # no members determine it
        entries: Any = ((str(number), member) for number, member in enumerate(node._source))
    else:
        device = None if node._device is None else "cpu"
        names, size = node.names, list(node._batch_size)
        meta["cls_metadata"] = {"device": device, "names": names, "batch_size": size, "is_locked": False}
        told["arrow_types"] += [[[*path, key], name] for key, name in (node._types or {}).items()]
        entries = node._source.items()
    for key, value in entries:
        if isinstance(value, Tensor):
            leaves.update(_leaf(key, next(spots), path))
            continue
        spot = None
        if not stacked and is_ragged(value):
            told["ragged"].append([[*path, key], value.kind])
            spot = next(ragged)
        if type(spot) is RaggedSpot:
            leaves.update(_leaf(key, JaggedSpot(spot.values, spot.offsets, None, 1), path))
        elif value._is_non_tensor and not hasattr(value, "_stack_dim"):
            non_tensors[key] = _object(value, (*path, key))
        elif key in _RESERVED:
            raise RuntimeError(
                f"the nested entry {(*path, key)} cannot be written to a consolidated file, which uses the key {key!r} "
                "itself: rename it, or save an archive ('.tdz')"
            )
        else:
            meta[key] = _level(value, spots, ragged, (*path, key), told)
    return meta


def _class_name(node: Any, stacked: bool) -> str:
    if stacked:
        return "NonTensorStack" if node._is_non_tensor else "LazyStackedTensorDict"
    cls = type(node)
    return f"<class '{cls.__module__}.{cls.__qualname__}'>" if issubclass(cls, TensorClass) else "TensorDict"


def _leaf(key: str, spot: Spot, path: tuple[str, ...]) -> dict[str, Any]:
    if key.startswith(_PARTS):
        raise RuntimeError(f"the key {(*path, key)} cannot be written to a consolidated file: rename it")
    if type(spot) is not JaggedSpot:
        return {key: _place(spot)}  # type: ignore[arg-type]
    values, offsets, lengths = _PARTS
    out = {values + key: _place(spot.values)}
    if spot.lengths is not None:
        out[lengths + key] = _place(spot.lengths)
    out[offsets + key] = [*_place(spot.offsets), spot.ragged_idx]
    return out


def _place(place: Place) -> list[Any]:
    start, dtype, shape = place
    return [str(dtype), list(shape), start, start + nbytes_of(place), 0]


def _object(value: Any, path: tuple[str, ...]) -> list[Any]:
    payload = value._payload
    if not holds_json(payload):
        raise RuntimeError(
            f"the non-tensor entry {path} holds a {type(payload).__name__}, which JSON cannot represent, so it cannot "
            "be written to a consolidated file. Store it as strings, numbers, lists and dicts, or save an archive with "
            "memmap('x.tdz', allow_pickle=True)"
        )
    device = None if value._device is None else "cpu"
    return [payload, list(value._batch_size), device]


# -- reading -----------------------------------------------------------------------------------------------------


class Level(NamedTuple):
    """One checked level of a tree."""

    kind: str
    """``dense``, ``lazy`` or ``objects``."""
    cls: Any
    """Tensorclass, ``None`` for a TensorDict."""
    size: torch.Size
    """Batch size; of an empty stack, that of the missing members."""
    device: torch.device | None
    names: list[str | None] | None
    locked: bool
    stack_dim: int
    stack_dim_name: str | None
    entries: list[tuple[str, Any]]
    """Spot, level or arguments of a non-tensor value, by key."""
    ragged: dict[str, str] = {}
    """Kinds of the ragged entries by their keys."""
    types: dict[str, str] | None = None
    """See ``TensorDict.arrow_types``."""


class Value(NamedTuple):
    """A non-tensor value."""

    data: Any
    size: torch.Size
    device: str | None


def parse(path: str, data: Any, told: Any, room: int) -> tuple[Level, list[Spot]]:
    """The tree that the JSON of a file describes, and the positions of its tensors and ragged entries.

    Args:
        path: the file, for messages.
        data: the JSON.
        told: the second JSON; None if absent.
        room: number of bytes before it in the file.

    Raises:
        DatasetError: it does not describe a tree, or a tensor outside those bytes.
    """
    reader = _Reader(path, room, told)
    root = reader.level(data, ())
    reader.check_overlaps()
    return root, [*reader.spots, *reader.ragged]


class _Reader:
    def __init__(self, path: str, room: int, told: Any) -> None:
        self.path = path
        self.kinds = self._told(told, "ragged")
        self.types = self._told(told, "arrow_types")
        if not {kind for level in self.kinds.values() for kind in level.values()} <= {*KINDS}:
            raise DatasetError(path, f"the kinds of ragged entries are {', '.join(KINDS)}, found {str(told)[:100]}")
        self.room = room
        self.spots: list[Spot] = []
        self.ragged: list[Spot] = []
        self.end = 0  # end of the tensors so far, while each begins where the previous one ended
        self.in_order = True
        self.missing: set[str] = set()

    def fail(self, where: tuple[str, ...], what: str) -> DatasetError:
        return DatasetError(self.path, f"the metadata of {where or 'the root'} is wrong: {what}")

    def level(self, data: Any, where: tuple[str, ...]) -> Level:
        if type(data) is not dict:
            raise self.fail(where, "it should be an object with non_tensors, leaves and cls_metadata")
        about, name = data.get("cls_metadata"), data.get("cls")
        if not (type(about) is type(data.get("leaves")) is type(data.get("non_tensors")) is dict):
            raise self.fail(where, "it should be an object with non_tensors, leaves and cls_metadata")
        cls, kind = (None, "dense") if name == "TensorDict" else self._class(name, where)
        if "stack_dim" in about and kind == "dense":  # the form in which the reference writes stacks of tensorclasses
            kind = "lazy"
        locked = about.get("is_locked", False) is True
        if kind == "dense":
            return self._dense(data, about, cls, locked, where)
        dim, name = about.get("stack_dim"), about.get("stack_dim_name")
        if not is_count(dim, 63) or not (name is None or type(name) is str):
            raise self.fail(where, f"a stack has a dimension and maybe a name, found {dim!r} and {name!r}")
        members = {*data["non_tensors"], *data} - {*_RESERVED}
        if data["leaves"] or members != set(map(str, range(len(members)))):
            raise self.fail(where, "the members of a stack are collections, numbered from 0")
        entries = self._entries(data, where, None, {})
        entries.sort(key=lambda entry: int(entry[0]))
        size = () if entries else self._size_of_none(about, dim, where)
        return Level(kind, cls, torch.Size(size), None, None, locked, dim, name, entries)

    def _size_of_none(self, about: Any, dim: int, where: tuple[str, ...]) -> tuple[int, ...]:
        """The batch size of the members of an empty stack (the reference writes none)."""
        size = check_shape(self.path, about.get("batch_size", [0] * (dim + 1)), "batch_size")
        if dim >= len(size) or size[dim] != 0:
            raise self.fail(where, f"a stack without members has none in dim {dim}, found the size {list(size)}")
        return (*size[:dim], *size[dim + 1 :])

    def _class(self, name: Any, where: tuple[str, ...]) -> tuple[Any, str]:
        known = {"LazyStackedTensorDict": "lazy", "NonTensorStack": "objects"}
        if type(name) is str and name in known:
            return None, known[name]
        match = _CLASS.fullmatch(name) if type(name) is str else None
        if match is None:
            raise self.fail(where, f"'cls' should be the class that was saved, found {str(name)[:60]!r}")
        cls = registered_class(match[1])
        if cls is None and match[1] not in self.missing:
            self.missing.add(match[1])
            warn_caller(missing_class(match[1], self.path))
        return cls, "dense"

    def _dense(self, data: Any, about: Any, cls: Any, locked: bool, where: tuple[str, ...]) -> Level:
        size = check_shape(self.path, about.get("batch_size"), "batch_size")
        device = check_device(self.path, about.get("device"))
        names = check_names(self.path, about.get("names"), len(size))
        ragged = self.kinds.get(where, {})
        entries = self._entries(data, where, size, ragged)
        on = None if device is None else _CPU
        return Level("dense", cls, torch.Size(size), on, names, locked, 0, None, entries, ragged, self.types.get(where))

    def _told(self, told: Any, name: str) -> dict[tuple[str, ...], dict[str, str]]:
        """The extensions, by level and key."""
        found: dict[tuple[str, ...], dict[str, str]] = {}
        try:
            for path, text in told[name] if told is not None else ():
                if type(text) is not str or not 0 < len(text) <= MAX_NAME or not all(type(key) is str for key in path):
                    raise TypeError
                found.setdefault(tuple(path[:-1]), {})[path[-1]] = text
        except (TypeError, ValueError, KeyError, IndexError):
            raise DatasetError(
                self.path, f"{name!r} should be pairs of path and name, found {str(told)[:100]}"
            ) from None
        return found

    def _entries(
        self, data: Any, where: tuple[str, ...], batch: tuple[int, ...] | None, ragged: dict[str, str]
    ) -> list[tuple[str, Any]]:
        """Objects, tensors and nested levels; in a dense level all start with its batch size."""
        out: list[tuple[str, Any]] = []
        for key, value in data["non_tensors"].items():
            item = self._object(value, (*where, key))
            self._check_batch(tuple(item.size), batch, (*where, key))
            out.append((key, item))
        leaves, spots = data["leaves"], self.spots
        for key, value in leaves.items():
            spot: Any = self._plain(value, batch)
            if spot is None or key[:1] == "<":
                if key.startswith(_PARTS):
                    if not key.startswith(_PARTS[0]):
                        continue  # part of the entry that begins with the values
                    key = key.removeprefix(_PARTS[0])
                    spot = self._jagged(key, value, leaves, where)
                    lead = batch if batch is None or key in ragged else batch[:1]
                    self._check_batch((spot.offsets[2][0] - 1,), lead, (*where, key))
                    if key in ragged:
                        spot = self._rows(ragged[key], spot, (*where, key))
                        self.ragged.append(spot)
                        out.append((key, spot))
                        continue
                else:
                    spot = self._place(value, (*where, key))
                    self._check_batch(spot[2], batch, (*where, key))
            out.append((key, spot))
            spots.append(spot)
        children = [key for key in data if key not in _RESERVED]
        if "stack_dim" in data["cls_metadata"]:
            children.sort(key=int)
        for key in children:
            out.append((key, self.level(data[key], (*where, key))))
            if key in ragged:
                self.ragged.append(None)
        if len({key for key, _ in out}) != len(out):
            raise self.fail(where, "two entries have one key")
        return out

    def _check_batch(self, size: tuple[int, ...], batch: tuple[int, ...] | None, where: tuple[str, ...]) -> None:
        if batch is not None and size[: len(batch)] != batch:
            raise self.fail(where, f"{list(size)} does not start with the batch size {list(batch)}")

    def _plain(self, value: Any, batch: tuple[int, ...] | None) -> Place | None:
        """The place of an ordinary tensor right after the last one, checked at once; ``None`` for any other."""
        if type(value) is not list or len(value) != 5:
            return None
        dtype, shape, start, stop, _ = value
        known = DTYPES.get(dtype) if type(dtype) is str and type(shape) is list else None
        if known is None or type(start) is not int or type(stop) is not int or batch is None:
            return None
        nbytes = itemsize = known.itemsize
        for n in shape:
            if type(n) is not int or n <= 0:
                return None
            nbytes *= n
        size = tuple(shape)
        if not self.end <= start <= start + nbytes <= stop <= self.room or start % itemsize or len(size) > 64:
            return None
        if size[: len(batch)] != batch:
            return None
        self.end = stop
        return (start, known, size)

    def _object(self, value: Any, where: tuple[str, ...]) -> Value:
        if type(value) is not list or len(value) != 3:
            raise self.fail(where, "an object is listed with its batch size and device")
        data, size, device = value
        return Value(data, torch.Size(check_shape(self.path, size, "batch_size")), check_device(self.path, device))

    def _place(self, value: Any, where: tuple[str, ...], extra: int = 0) -> Place:
        self.in_order = False
        if type(value) is not list or len(value) != 5 + extra:
            raise self.fail(where, "a tensor is listed with dtype, shape, first and last byte and padding")
        dtype, shape, start, stop = value[:4]
        if type(dtype) is not str or dtype not in ITEMSIZE:
            raise self.fail(where, f"the dtype {str(dtype)[:60]!r} is not known")
        known = DTYPES.get(dtype)
        if known is None:
            raise self.fail(where, f"this version of torch has no {dtype}")
        size = check_shape(self.path, shape, ".".join(where))
        needed = tensor_bytes(dtype, size)
        if needed >= _MAX_BYTES or tensor_bytes(dtype, tuple(n or 1 for n in size)) >= _MAX_BYTES:
            raise self.fail(where, f"{list(size)} would have {needed:,} bytes")
        if not is_count(start, self.room) or not is_count(stop, self.room) or start + needed > stop:
            what = f"{needed:,} bytes are not within bytes {start!r} to {stop!r} of the {self.room:,} that are there"
            raise self.fail(where, what)
        if start % known.itemsize:
            raise self.fail(where, f"{dtype} is aligned to {known.itemsize} bytes, but byte {start:,} is not")
        return (start, known, size)

    def _jagged(self, name: str, value: Any, leaves: Any, where: tuple[str, ...]) -> JaggedSpot:
        where = (*where, name)
        values = self._place(value, where)
        offsets = self._place(leaves.get(_PARTS[1] + name), where, 1)
        ragged = leaves[_PARTS[1] + name][5]
        lengths = leaves.get(_PARTS[2] + name)
        table = None if lengths is None else self._place(lengths, where)
        count = offsets[2][0] - 1 if len(offsets[2]) == 1 else -1
        if count < 0 or offsets[1] not in (torch.int64, torch.int32):
            raise self.fail(where, "the offsets of a jagged tensor are a row of integers")
        if table is not None and (table[1] is not offsets[1] or table[2] != (count,)):
            raise self.fail(where, "a jagged tensor has a length for each element")
        if type(ragged) is not int or not 1 <= ragged <= len(values[2]):
            raise self.fail(where, f"the ragged dimension is one of those of the elements, found {ragged!r}")
        return JaggedSpot(values, offsets, table, ragged)

    def _rows(self, kind: str, spot: JaggedSpot, where: tuple[str, ...]) -> RaggedSpot:
        """The places of a ragged entry, stored like those of a jagged tensor."""
        (_, dtype, shape), offsets = spot.values, spot.offsets
        if offsets[1] is not torch.int64 or spot.lengths is not None or spot.ragged_idx != 1:
            raise self.fail(where, "a ragged entry has offsets of int64 and no lengths")
        if kind != "tensor" and (dtype is not torch.uint8 or len(shape) != 1):
            raise self.fail(where, f"rows of {kind} are bytes, found {dtype} {list(shape)}")
        return RaggedSpot(kind, spot.values, offsets)

    def check_overlaps(self) -> None:
        """Check that no two tensors share bytes, except offsets shared by tensors of the same shape."""
        if self.in_order:
            return
        spots = [*self.spots, *self.ragged]
        ranges = sorted({(place[0], place[0] + nbytes_of(place)) for place in with_parts(spots)})
        values: list[Any] = [spot if type(spot) is tuple else spot.values for spot in spots if spot is not None]  # type: ignore[union-attr]
        full = [place for place in values if nbytes_of(place)]
        if len({place[0] for place in full}) < len(full) or any(a[1] > b[0] for a, b in zip(ranges, ranges[1:])):
            raise DatasetError(self.path, "the metadata is wrong: two tensors overlap")


def make(path: str, level: Level, leaves: Iterator[Tensor], ragged: Iterator[Any]) -> Any:
    """The tree of :func:`parse` around its tensors and the values and offsets of its ragged entries.

    Raises:
        DatasetError: entries do not fit a class, or members do not stack.
    """
    entries: dict[str, Any] = {}
    for key, value in level.entries:
        if type(value) is tuple or type(value) is JaggedSpot:
            entries[key] = next(leaves)
        elif type(value) is RaggedSpot:
            values, offsets = next(ragged)
            entries[key] = Ragged._over(value.kind, values, offsets, level.device)
        elif type(value) is Level:
            child = make(path, value, leaves, ragged)
            if key in level.ragged:
                next(ragged)
                child = _ragged(path, key, level.ragged[key], child)
            entries[key] = child
            if child.batch_size[: len(level.size)] != level.size:
                raise DatasetError(path, f"{key!r} of batch size {list(child.batch_size)} is within {list(level.size)}")
        else:
            device = None if value.device is None else "cpu"
            entries[key] = NonTensorData(value.data, batch_size=value.size, device=device)
    try:
        if level.kind == "dense":
            node: Any = TensorDict._trusted(entries, level.size, level.device, level.names)
            if level.cls is not None:
                node = level.cls.from_tensordict(node)
            node._types = level.types
        elif level.kind == "objects":
            node = NonTensorStack(*entries.values(), stack_dim=level.stack_dim, batch_size=level.size)
        elif entries:
            members, cls = list(entries.values()), level.cls
            if cls is not None:
                members = [member if isinstance(member, cls) else cls.from_tensordict(member) for member in members]
            node = lazy_stack(members, level.stack_dim, stack_dim_name=level.stack_dim_name)
        else:
            node = LazyStackedTensorDict(stack_dim=level.stack_dim, batch_size=level.size)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as err:
        raise DatasetError(path, f"the saved entries do not fit together: {err}") from None
    if level.locked:
        node._propagate_lock(None)
    return node


def _ragged(path: str, key: str, kind: str, stack: Any) -> Any:
    """A ragged entry of few rows, stored as objects."""
    rows = stack._payloads() if isinstance(stack, NonTensorStack) and stack.batch_dims == 1 else None
    found = Ragged._of_list(kind, rows, stack._device) if rows is not None and kind in ("str", "json") else None
    if found is None:
        raise DatasetError(path, f"the metadata is wrong: the rows of {key!r} are not all {kind}")
    return found
