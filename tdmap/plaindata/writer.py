"""A value as bytes: one letter for what it is, then what it holds."""

from __future__ import annotations

import array
import collections
import copyreg
import datetime
import enum
import json
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.data.kinds import payload_of
from tdmap.errors import SerializationError
from tdmap.memory.regions import bytes_of
from tdmap.plaindata.classes import find_class, has_plain_new, own_hash, own_method
from tdmap.plaindata.kinds import COLLECTIONS, COMPLEX, DEPTH, FACTORIES, FLOATS, INT64, LENGTH, NUMBER, TEXTS
from tensordict_lite import NonTensorData, TensorCollection
from tensordict_lite.tensorclass.build import registered_class

_TEXT_NAMES = {kind: name for name, (kind, _, _) in TEXTS.items()}

_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"z", torch.Size: b"Z"}


class Writer:
    def __init__(self, modules: frozenset[str]) -> None:
        self.parts: list[bytes | memoryview] = []
        self.modules = modules
        self.depth = 0
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._keep: list[Any] = []  # so that no other object gets their address

    def add(self, value: Any) -> None:
        """Write a value."""
        put, kind = self.parts.append, type(value)
        if value is None or kind is bool:
            put(b"N" if value is None else b"T" if value else b"F")
        elif kind is int:
            self._integer(value)
        elif kind is float:
            put(b"d" + FLOATS.pack(value))
        elif kind is complex:
            put(b"c" + COMPLEX.pack(value.real, value.imag))
        elif kind is str:
            self._bytes(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            self._bytes(b"b", value)
        elif kind in _TEXT_NAMES:
            self._text(value)
        elif kind in (range, slice):
            put(b"R" if kind is range else b"L")
            self._all((value.start, value.stop, value.step))
        elif kind is datetime.timedelta:
            put(b"D")
            self._all((value.days, value.seconds, value.microseconds))
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        """A value that may be in several places."""
        number = self._known.get(id(value))
        if number is not None:
            if id(value) in self._open:
                raise SerializationError(f"a {type(value).__name__} that holds itself cannot be kept as data.")
            self.parts.append(b"r" + LENGTH.pack(number))
            return
        self._known[id(value)] = len(self._known)
        self._keep.append(value)
        self.depth += 1
        if self.depth > DEPTH:
            raise RecursionError
        self._contents(value)
        self.depth -= 1

    def _contents(self, value: Any) -> None:
        kind = type(value)
        if kind in _SEQUENCES:
            self.parts.append(_SEQUENCES[kind])
            with_itself = kind is list
            if kind in (set, frozenset):
                self._require_keys(value)
            if not with_itself:
                self._open.add(id(value))
            self._sequence(value)
            self._open.discard(id(value))
        elif kind is dict or kind in (collections.OrderedDict, collections.Counter, collections.defaultdict):
            self._mapping(value)
        elif kind is bytearray:
            self._bytes(b"y", bytes(value))
        elif kind is collections.deque:
            self.parts.append(b"Q")
            self.add(value.maxlen)
            self._sequence(value)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(value)
        elif isinstance(value, TensorCollection):
            self._collection(value)
        else:
            self._instance(value)

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _bytes(self, tag: bytes, data: Any) -> None:
        self.parts += (tag + LENGTH.pack(len(data)), data)

    def _integer(self, value: int) -> None:
        if -INT64 <= value < INT64:
            self.parts.append(b"i" + NUMBER.pack(value))
        else:
            self._bytes(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _text(self, value: Any) -> None:
        name = _TEXT_NAMES[type(value)]
        if getattr(value, "tzinfo", None) is not None and type(value.tzinfo) is not datetime.timezone:
            raise self._refused(value, "a time zone other than datetime.timezone")
        self.parts.append(b"w")
        self._all((name, TEXTS[name][1](value)))

    def _sequence(self, values: Collection[Any]) -> None:
        """Many values; numbers and texts of one kind go together, which is a hundred times as fast."""
        items = list(values)
        kinds = set(map(type, items))
        if kinds == {int} and -INT64 <= min(items) and max(items) < INT64:
            self._bytes(b"q", array.array("q", items).tobytes())
        elif kinds == {float}:
            self._bytes(b"f", array.array("d", items).tobytes())
        elif kinds == {str}:
            self._bytes(b"j", json.dumps(items).encode())
        else:
            self.parts.append(b"v" + LENGTH.pack(len(items)))
            self._all(items)

    def _mapping(self, value: dict[Any, Any]) -> None:
        names = {dict: b"m", collections.OrderedDict: b"o", collections.Counter: b"k", collections.defaultdict: b"p"}
        self.parts.append(names[type(value)])
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            if factory is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
                raise self._refused(value, "a defaultdict whose default is made by a function")
            self.add(None if factory is None else factory.__name__)
        self._require_keys(value)
        self._sequence(value.keys())
        self._sequence(value.values())

    def _tensor(self, value: Tensor) -> None:
        kind = type(value)
        if kind not in (Tensor, torch.nn.Parameter) and kind.__name__ != "MemoryMappedTensor":
            raise self._refused(value, "a tensor of a class of its own")
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta" or value.is_nested:
            raise self._refused(value, "a tensor that is sparse, nested, quantized or without data; store it dense")
        compact = value.detach().as_subclass(Tensor)
        for dim, stride in enumerate(value.stride()):
            if stride == 0 and compact.shape[dim] > 1:  # expanded: one element stands for all
                compact = compact.narrow(dim, 0, 1)
        compact = compact.resolve_conj().resolve_neg().cpu().contiguous()
        self.parts.append(b"X")
        header = (str(value.dtype), tuple(compact.shape), tuple(value.shape), str(value.device), value.requires_grad)
        self._all(header)
        self._bytes(b"b", bytes_of(compact) if compact.numel() else b"")  # not copied before all is put together

    def _array(self, value: Any) -> None:
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise self._refused(value, "an array of a class of its own")
        dtype = value.dtype
        if dtype.hasobject:
            if dtype.names is not None:
                raise self._refused(value, "an array whose fields are objects")
            self.parts.append(b"B")
            self.add(tuple(value.shape))
            self._sequence(value.reshape(-1).tolist())
            return
        self.parts.append(b"A")
        self._all((isinstance(value, np.generic), dtype.descr if dtype.names else dtype.str, tuple(value.shape)))
        self._bytes(b"b", value.tobytes())

    def _collection(self, value: Any) -> None:
        self._require_plain(value)
        name, state = type(value).__name__, value.__reduce_ex__(4)[2]
        if isinstance(value, NonTensorData):
            name, state = "NonTensorData", {**state, "payload": payload_of(value)}
        if COLLECTIONS.get(name) is None or type(value).__module__.partition(".")[0] != "tensordict_lite":
            name = self._class_name(value)
        self.parts.append(b"C")
        self._keep.append(state)
        self._all((name, {key: part for key, part in state.items() if key != "memmap"}))

    def _class_name(self, value: Any) -> str:
        for kind, prefix in ((type(value), ""), (getattr(value, "_member_class", None), "stack of ")):
            if kind is not None:
                name = f"{kind.__module__}.{kind.__qualname__}"
                if registered_class(name) is kind:
                    return prefix + name
        raise self._refused(value, "a collection that is no TensorDict, stack, or tensorclass of your own")

    def _instance(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__ not in self.modules or find_class(kind.__module__, kind.__qualname__) is not kind:
            raise self._refused(value)
        self.parts.append(b"O")
        self._all((kind.__module__, kind.__qualname__))
        if isinstance(value, enum.Enum):
            if kind.__members__.get(value.name) is not value:
                raise self._refused(value, "a combination of flags")
            self.add(value.name)
            return
        reduced = value.__reduce_ex__(4)
        if type(reduced) is not tuple or reduced[0] is not copyreg.__newobj__ or reduced[1][0] is not kind:  # type: ignore[attr-defined]
            raise self._refused(value, "an object that is made again by a call (__reduce__)")
        if not has_plain_new(kind):
            raise self._refused(value, "an object whose class has a __new__ of its own")
        self._require_plain(value)
        self._keep.append(reduced)
        arguments, state, items, pairs = reduced[1][1:], *(*reduced[2:], None, None, None)[:3]
        pairs = None if pairs is None else list(pairs)
        self._require_keys(key for key, _ in pairs or ())
        self._open.add(id(value))
        self.add(arguments)
        self._open.discard(id(value))
        self._all((state, None if items is None else list(items), pairs))

    def _require_plain(self, value: Any) -> None:
        if name := own_method(type(value)):
            raise self._refused(value, f"a {type(value).__qualname__}, whose class defines {name},")

    def _require_keys(self, keys: Iterable[Any]) -> None:
        for kind, key in {type(key): key for key in keys}.items():
            if name := own_hash(kind):
                raise self._refused(key, f"a {kind.__qualname__} as a key, whose class defines {name},")

    def _refused(self, value: Any, what: str = "") -> SerializationError:
        kind = type(value)
        own = ", ".join(sorted(self.modules)) or "the module of your function"
        return SerializationError(
            f"{what or f'a {kind.__module__}.{kind.__qualname__}'} cannot be kept as data, which a run that can be "
            "resumed needs. Keep tensors, arrays, numbers, texts and containers of them; or instances of classes "
            f"that are defined at the top of {own}, whose __getstate__ gives such data. Or leave out resume=."
        )
