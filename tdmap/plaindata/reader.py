"""The value that bytes stand for, and nothing else that somebody might have put into them."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import json
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.memory.regions import bytes_of
from tdmap.plaindata.classes import find_class, has_plain_new, own_hash, own_method
from tdmap.plaindata.kinds import COLLECTIONS, COMPLEX, DEPTH, FACTORIES, FLOATS, LENGTH, NUMBER, TEXTS
from tensordict_lite import NonTensorStack, TensorCollection
from tensordict_lite.lazy.typed import typed_stack_class
from tensordict_lite.memmap.load import DTYPES
from tensordict_lite.objects.data import holds_collections
from tensordict_lite.tensorclass.build import registered_class


class Reader:
    def __init__(self, data: bytes | memoryview, modules: frozenset[str]) -> None:
        self.data = memoryview(data)
        self.at = 0
        self.modules = modules
        self.depth = 0
        self._known: list[Any] = []

    def take(self) -> Any:
        """The next value."""
        tag = bytes(self._raw(1))
        if tag in b"NTF":
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag in _SIMPLE:
            return _SIMPLE[tag](self)
        if tag == b"r":
            value = self._known[self._length()]
            if value is _UNFINISHED:
                raise ValueError("a value that holds itself")
            return value
        self.depth += 1
        if self.depth > DEPTH:
            raise ValueError("values that lie too deep within each other")
        number = len(self._known)
        self._known.append(_UNFINISHED)
        value = _OBJECTS[tag](self, number)
        self._known[number] = value
        self.depth -= 1
        return value

    def _raw(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise ValueError("the data of a value end too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def _length(self) -> int:
        return int(LENGTH.unpack(self._raw(8))[0])

    def _block(self) -> memoryview:
        return self._raw(self._length())

    def _bytes_value(self) -> memoryview:
        if bytes(self._raw(1)) != b"b":
            raise ValueError("bytes are missing")
        return self._block()

    def _of(self, kind: type) -> Any:
        value = self.take()
        if type(value) is not kind:
            raise ValueError(f"a {kind.__name__} is missing")
        return value

    def _sequence(self) -> list[Any]:
        tag = bytes(self._raw(1))
        if tag == b"v":
            return [self.take() for _ in range(self._length())]
        block = self._block()
        if tag == b"j":
            texts = json.loads(bytes(block))
            if type(texts) is not list or not all(type(text) is str for text in texts):
                raise ValueError("texts are missing")
            return texts
        return array.array({b"q": "q", b"f": "d"}[tag], bytes(block)).tolist()

    def _text(self) -> Any:
        name, text = self._of(str), self._of(str)
        return TEXTS[name][2](text)

    # -- objects: they get their number before what they hold is read

    def _list(self, number: int) -> list[Any]:
        value: list[Any] = []
        self._known[number] = value
        value += self._sequence()
        return value

    def _mapping(self, number: int, value: dict[Any, Any]) -> dict[Any, Any]:
        self._known[number] = value
        keys, values = self._keys(), self._sequence()
        if len(keys) != len(values):
            raise ValueError("keys and values differ in number")
        if isinstance(value, collections.OrderedDict):
            value.update(zip(keys, values))
        else:  # a Counter would add them
            dict.update(value, zip(keys, values))
        return value

    def _keys(self) -> list[Any]:
        """The keys of a dict, or the members of a set, which Python calls `__hash__` and `__eq__` of."""
        keys = self._sequence()
        for kind in set(map(type, keys)):
            _require_no_method(kind, own_hash(kind))
        return keys

    def _default_dict(self, number: int) -> Any:
        factory = self.take()
        made: Any = collections.defaultdict(None if factory is None else FACTORIES[factory])
        return self._mapping(number, made)

    def _deque(self, number: int) -> Any:
        most = self.take()
        value: collections.deque[Any] = collections.deque(maxlen=most)
        self._known[number] = value
        value.extend(self._sequence())
        return value

    def _tensor(self, number: int) -> Tensor:
        dtype, compact, shape, device, needs_grad = DTYPES[self._of(str)], *(self.take() for _ in range(4))
        block = self._bytes_value()
        out = _empty(torch.Size(compact), dtype.itemsize, len(block), lambda size: torch.empty(size, dtype=dtype))
        if len(block):
            bytes_of(out)[:] = block
        out = out if tuple(compact) == tuple(shape) else out.expand(shape)
        placed: Tensor = out if device == "cpu" else out.to(device)
        return placed.requires_grad_() if needs_grad is True else placed

    def _array(self, number: int) -> Any:
        scalar, named, shape = self._of(bool), self.take(), self._of(tuple)
        dtype = np.dtype(named if type(named) is str else [tuple(field) for field in named])
        if dtype.hasobject:
            raise ValueError("an array of objects has no bytes")
        block = self._bytes_value()
        out = _empty(torch.Size(shape), dtype.itemsize, len(block), lambda size: np.empty(tuple(size), dtype))
        if len(block):
            out.reshape(-1).view(np.uint8)[:] = np.frombuffer(block, np.uint8)
        return out[()] if scalar else out

    def _object_array(self, number: int) -> Any:
        shape, items = self._of(tuple), self._sequence()
        out = np.empty(len(items), dtype=object)
        for at, item in enumerate(items):
            out[at] = item
        return out.reshape(shape)

    def _collection(self, number: int) -> Any:
        name, state = self._of(str), self._of(dict)
        kind = COLLECTIONS.get(name)
        if kind is None:
            member = registered_class(name.removeprefix("stack of "))
            kind = member if not name.startswith("stack of ") or member is None else typed_stack_class(member)
        if kind is None:
            raise ValueError(f"a {name} is stored, and this program has defined no tensorclass of that name")
        _require_no_method(kind, own_method(kind))
        _check_collection(kind, state)
        value = object.__new__(kind)
        value.__setstate__(state)
        return value

    def _instance(self, number: int) -> Any:
        module, qualname = self._of(str), self._of(str)
        kind = find_class(module, qualname) if module in self.modules else None
        if kind is None:
            raise ValueError(f"a {module}.{qualname} is stored, and the function's own modules define no such class")
        if issubclass(kind, enum.Enum):
            return kind[self._of(str)]
        if not has_plain_new(kind):
            raise ValueError(f"{module}.{qualname} has a __new__ of its own")
        _require_no_method(kind, own_method(kind))
        value: Any = kind.__new__(kind, *self._of(tuple))
        self._known[number] = value
        state, items, pairs = self.take(), self.take(), self.take()
        _set_state(value, state)
        list.extend(value, items) if items is not None else None
        for key, item in pairs or ():
            _require_no_method(type(key), own_hash(type(key)))
            dict.__setitem__(value, key, item)
        return value


_UNFINISHED = object()

_SIMPLE: dict[bytes, Callable[[Reader], Any]] = {
    b"i": lambda r: NUMBER.unpack(r._raw(8))[0],
    b"I": lambda r: int.from_bytes(r._block(), "little", signed=True),
    b"d": lambda r: FLOATS.unpack(r._raw(8))[0],
    b"c": lambda r: complex(*COMPLEX.unpack(r._raw(16))),
    b"s": lambda r: bytes(r._block()).decode("utf-8", "surrogatepass"),
    b"b": lambda r: bytes(r._block()),
    b"w": Reader._text,
    b"R": lambda r: range(r.take(), r.take(), r.take()),
    b"L": lambda r: slice(r.take(), r.take(), r.take()),
    b"D": lambda r: datetime.timedelta(r.take(), r.take(), r.take()),
}

_OBJECTS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"l": Reader._list,
    b"t": lambda r, n: tuple(r._sequence()),
    b"S": lambda r, n: set(r._keys()),
    b"z": lambda r, n: frozenset(r._keys()),
    b"Z": lambda r, n: torch.Size(r._sequence()),
    b"m": lambda r, n: r._mapping(n, {}),
    b"o": lambda r, n: r._mapping(n, collections.OrderedDict()),
    b"k": lambda r, n: r._mapping(n, collections.Counter()),
    b"p": Reader._default_dict,
    b"y": lambda r, n: bytearray(r._block()),
    b"Q": Reader._deque,
    b"X": Reader._tensor,
    b"A": Reader._array,
    b"B": Reader._object_array,
    b"C": Reader._collection,
    b"O": Reader._instance,
}


def _empty(shape: torch.Size, itemsize: int, nbytes: int, make: Callable[[torch.Size], Any]) -> Any:
    """Memory of a shape, if so many bytes fill it."""
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("an impossible shape")
    count = itemsize
    for n in shape:
        count *= n
    if count != nbytes:
        raise ValueError(f"{nbytes} bytes do not fill the shape {tuple(shape)}")
    return make(shape)


def _check_collection(kind: Any, state: dict[str, Any]) -> None:
    """Raise ValueError unless entries are tensors and collections, and a column is one of objects."""
    if "objects" in state:
        _check_column(kind, state)
        return
    entries = state.get("source", state.get("members"))
    values = entries.values() if type(entries) is dict else entries if type(entries) is list else None
    if values is None or not all(isinstance(value, (Tensor, TensorCollection)) for value in values):
        raise ValueError("the entries of a collection are missing")
    if type(entries) is dict and not all(type(key) is str for key in entries):
        raise ValueError("the keys of a collection are texts")


def _check_column(kind: Any, state: dict[str, Any]) -> None:
    objects, size, dim = state["objects"], state.get("size"), state.get("stack_dim")
    if kind is not NonTensorStack or type(objects) is not list or holds_collections(objects):
        raise ValueError("the objects of a column are missing")
    if type(size) is not tuple or not all(type(n) is int and n >= 0 for n in size):
        raise ValueError("the batch size of a column consists of numbers")
    if type(dim) is not int or not 0 <= dim <= len(size):
        raise ValueError(f"a column is stacked along one of its {len(size) + 1} dimensions, and not along {dim!r}")


def _require_no_method(kind: type, name: str | None) -> None:
    if name is not None:
        raise ValueError(f"{kind.__module__}.{kind.__qualname__} defines {name}, which data may not have called")


def _set_state(value: Any, state: Any) -> None:
    """What pickle does with the state of an object."""
    if state is None:
        return
    if hasattr(type(value), "__setstate__"):  # of `dataclasses`
        value.__setstate__(state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    for name, item in (attributes or {}).items():
        value.__dict__[name] = item
    for name, item in (slots or {}).items():
        if not isinstance(getattr(type(value), name, None), types.MemberDescriptorType):
            raise ValueError(f"a {type(value).__qualname__} has no slot {name}")
        object.__setattr__(value, name, item)
