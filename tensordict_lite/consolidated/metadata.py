"""A consolidated tree as JSON, the way the ``tensordict`` package writes it, and back.

Every level is an object: ``cls``, ``non_tensors`` (key -> object, batch size, device), ``leaves`` (key -> dtype, shape,
first byte, last byte + 1, bytes of padding before that), ``cls_metadata`` (batch size, names... of the level), and a
key for each nested level. What is read comes from outside: it is checked before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict_lite.callers import warn_caller
from tensordict_lite.consolidated.layout import JaggedSpot, Spot, nbytes_of, with_parts
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.errors import DatasetError
from tensordict_lite.lazy.functions import LazyStackedTensorDict, lazy_stack
from tensordict_lite.memmap.disk.format import ITEMSIZE, check_device, check_names, check_shape, is_count, tensor_bytes
from tensordict_lite.memmap.disk.pieces import Place
from tensordict_lite.memmap.load import DTYPES, missing_class
from tensordict_lite.memmap.plan import holds_json
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.ragged import Ragged
from tensordict_lite.tensorclass.decorator import TensorClass, registered_class

__all__ = ["Level", "describe", "make", "parse"]

_RESERVED = ("cls", "non_tensors", "leaves", "cls_metadata")
_PARTS = ("<NJT_VALUES>", "<NJT_OFFSETS>", "<NJT_LENGTHS>")
_CLASS = re.compile(r"<class '([^']*)'>")
_MAX_BYTES = 1 << 62
_CPU = torch.device("cpu")


# -- writing -----------------------------------------------------------------------------------------------------


def describe(node: Any, spots: Sequence[Spot], locked: bool) -> bytes:
    """The JSON of a tree.

    Args:
        node: the tree.
        spots: where its tensors are.
        locked: whether it is to be locked when it is loaded.

    Raises:
        RuntimeError: JSON cannot hold an object of the tree, or a key that the format uses itself.
    """
    meta = _level(node, iter(spots), ())
    meta["cls_metadata"]["is_locked"] = locked
    return json.dumps(meta).encode()


def _level(node: Any, spots: Iterator[Spot], path: tuple[str, ...]) -> dict[str, Any]:
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
            about["batch_size"] = list(node._batch_size)  # no members tell it
        entries: Any = ((str(number), member) for number, member in enumerate(node._source))
    else:
        device = None if node._device is None else "cpu"
        names, size = node.names, list(node._batch_size)
        meta["cls_metadata"] = {"device": device, "names": names, "batch_size": size, "is_locked": False}
        entries = node._source.items()
    for key, value in entries:
        if isinstance(value, Tensor):
            leaves.update(_leaf(key, next(spots), path))
        elif value._is_non_tensor and not hasattr(value, "_stack_dim"):
            non_tensors[key] = _object(value, (*path, key))
        elif isinstance(value, Ragged) and value.column is not None and value.kind in ("tensor", "bytes"):
            rows = "numbers" if value.kind == "tensor" else value.kind
            raise RuntimeError(
                f"the entry {(*path, key)} holds rows of {rows} of different lengths, which a consolidated file "
                "cannot hold: save a folder or an archive with memmap(), or consolidate without a file"
            )
        elif key in _RESERVED:
            raise RuntimeError(
                f"the nested entry {(*path, key)} cannot be written to a consolidated file, which uses the key {key!r} "
                "itself: rename it, or save an archive ('.tdz')"
            )
        else:
            meta[key] = _level(value, spots, (*path, key))
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
    """One level of a tree, checked."""

    kind: str
    """``dense``, ``lazy`` or ``objects``."""
    cls: Any
    """Tensorclass, ``None`` for a TensorDict."""
    size: torch.Size
    """Batch size; of a stack, that of the members which it does not have."""
    device: torch.device | None
    names: list[str | None] | None
    locked: bool
    stack_dim: int
    stack_dim_name: str | None
    entries: list[tuple[str, Any]]
    """Key, and a spot, a level, or the arguments of a non-tensor value."""


class Value(NamedTuple):
    """A non-tensor value."""

    data: Any
    size: torch.Size
    device: str | None


def parse(path: str, data: Any, room: int) -> tuple[Level, list[Spot]]:
    """The tree that the JSON of a file describes, and where its tensors are.

    Args:
        path: the file, for messages.
        data: the JSON.
        room: bytes of the file before it.

    Raises:
        DatasetError: it is not such a tree, or one whose tensors are not in those bytes.
    """
    reader = _Reader(path, room)
    root = reader.level(data, ())
    reader.check_overlaps()
    return root, reader.spots


class _Reader:
    def __init__(self, path: str, room: int) -> None:
        self.path = path
        self.room = room
        self.spots: list[Spot] = []
        self.end = 0  # of the tensors so far, as long as each begins where another has ended
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
        if "stack_dim" in about and kind == "dense":  # the reference writes stacks of tensorclasses so
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
        entries = self._entries(data, where, None)
        entries.sort(key=lambda entry: int(entry[0]))
        size = () if entries else self._size_of_none(about, dim, where)
        return Level(kind, cls, torch.Size(size), None, None, locked, dim, name, entries)

    def _size_of_none(self, about: Any, dim: int, where: tuple[str, ...]) -> tuple[int, ...]:
        """The batch size of the members that a stack does not have (the reference writes none)."""
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
        entries = self._entries(data, where, size)
        return Level("dense", cls, torch.Size(size), None if device is None else _CPU, names, locked, 0, None, entries)

    def _entries(self, data: Any, where: tuple[str, ...], batch: tuple[int, ...] | None) -> list[tuple[str, Any]]:
        """Objects, tensors and levels of a level, all of which start with the batch size of a dense one."""
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
                        continue  # a part of the one that begins with the values
                    key = key.removeprefix(_PARTS[0])
                    spot = self._jagged(key, value, leaves, where)
                    self._check_batch((spot.offsets[2][0] - 1,), None if batch is None else batch[:1], (*where, key))
                else:
                    spot = self._place(value, (*where, key))
                    self._check_batch(spot[2], batch, (*where, key))
            out.append((key, spot))
            spots.append(spot)
        children = [key for key in data if key not in _RESERVED]
        if "stack_dim" in data["cls_metadata"]:
            children.sort(key=int)
        out += [(key, self.level(data[key], (*where, key))) for key in children]
        if len({key for key, _ in out}) != len(out):
            raise self.fail(where, "two entries have one key")
        return out

    def _check_batch(self, size: tuple[int, ...], batch: tuple[int, ...] | None, where: tuple[str, ...]) -> None:
        if batch is not None and size[: len(batch)] != batch:
            raise self.fail(where, f"{list(size)} does not start with the batch size {list(batch)}")

    def _plain(self, value: Any, batch: tuple[int, ...] | None) -> Place | None:
        """The place of an ordinary tensor behind the last one, checked in one go; ``None`` for any other."""
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
            raise self.fail(where, f"{dtype} is aligned to {known.itemsize} bytes, and byte {start:,} is not")
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

    def check_overlaps(self) -> None:
        """No byte belongs to two tensors, but to the offsets of several that have one shape."""
        if self.in_order:
            return
        ranges = sorted({(place[0], place[0] + nbytes_of(place)) for place in with_parts(self.spots)})
        values = [spot.values if type(spot) is JaggedSpot else spot for spot in self.spots]
        full = [place for place in values if nbytes_of(place)]  # type: ignore[arg-type]
        if len({place[0] for place in full}) < len(full) or any(a[1] > b[0] for a, b in zip(ranges, ranges[1:])):
            raise DatasetError(self.path, "the metadata is wrong: two tensors overlap")


def make(path: str, level: Level, leaves: Iterator[Tensor]) -> Any:
    """The tree of :func:`parse` around its tensors.

    Raises:
        DatasetError: entries do not fit a class, or members do not stack.
    """
    entries: dict[str, Any] = {}
    for key, value in level.entries:
        if type(value) is tuple or type(value) is JaggedSpot:
            entries[key] = next(leaves)
        elif type(value) is Level:
            child = entries[key] = make(path, value, leaves)
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
        elif level.kind == "objects":
            node = NonTensorStack(*entries.values(), stack_dim=level.stack_dim, batch_size=level.size)
        elif entries:
            members = [_as(level.cls, member) for member in entries.values()]
            node = lazy_stack(members, level.stack_dim, stack_dim_name=level.stack_dim_name)
        else:
            node = LazyStackedTensorDict(stack_dim=level.stack_dim, batch_size=level.size)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as err:
        raise DatasetError(path, f"what was saved does not fit together: {err}") from None
    if level.locked:
        node._propagate_lock(None)
    return node


def _as(cls: Any, member: Any) -> Any:
    return member if cls is None or isinstance(member, cls) else cls.from_tensordict(member)
