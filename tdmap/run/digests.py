"""Digests of values, and of the user's code that they lead to: the same in every process.

    value ──► digest of its content, where functions, classes and modules of the user's stand for their names
                │
                ├── a function or class of the function's own module ──► "helper scale", "class Model": what is in it
                ├── another module of the user's ──► "module images": its source, and the modules that it imports
                └── an installed package ──► "package numpy": its version

So a part that differs names what has changed, and circles end by themselves. Of an object of a user's class, only
attributes count that the code reads: a lock, a logger or a unique id beside them changes nothing. Pickled bytes would
not do: they depend on the identity of strings, the order of sets, line numbers and the names of files.
"""

from __future__ import annotations

import abc
import enum
import functools
import hashlib
import re
import struct
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdmap.run.code import (
    EVERYTHING,
    HAS_DOCSTRING,
    Import,
    ModuleSource,
    constants_of,
    find_module,
    is_outdated,
    package_of,
    references,
    source_of,
    text_of,
)
from tdmap.user_code import is_installed_file, is_users_own
from tensordict_lite.gathering import bytes_of

WHOLE_BYTES = 64 << 20
"""The content of a tensor or an array counts whole up to so many bytes; of a larger one so many bytes count, in"""

SAMPLES = 64
"""so many pieces, evenly spread, the first and the last among them."""

_SCALARS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented))

_VALUES = (tuple, frozenset, torch.Size, types.CodeType)
"""Never told apart by identity: whether two equal constants are one object depends on how a module was loaded."""

_LRU = type(functools.lru_cache(lambda: None))

_TRANSPARENT = (object, abc.ABC, typing.Generic, typing.Protocol, torch.nn.Module)
"""Bases whose methods read no attributes of a subclass."""

_MAKING = {"__init__", "__new__", "__post_init__", "__set_name__"}
"""Methods that run before an object is captured: what they read of it is not what its users read."""

_UNCALLED = {"__repr__", "__str__", "__del__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"}
"""Methods that do not count."""


class Contents:
    """Digests of the bytes of tensors and arrays, read once however often they are met.

    Args:
        whole_bytes: contents of more bytes count by pieces; None for none.
    """

    def __init__(self, whole_bytes: int | None = WHOLE_BYTES) -> None:
        self.whole_bytes = whole_bytes
        self._known: dict[int, tuple[Any, str]] = {}

    def digest(self, owner: Any, data: Callable[[], memoryview]) -> str:
        """The digest of the bytes that an object holds."""
        if id(owner) not in self._known:
            self._known[id(owner)] = (owner, self._digest_bytes(data()))
        return self._known[id(owner)][1]

    def _digest_bytes(self, view: memoryview) -> str:
        found, total, size = hashlib.blake2b(digest_size=16), len(view), len(view)
        if self.whole_bytes is not None and total > self.whole_bytes:
            size = self.whole_bytes // SAMPLES
            found.update(f"{total} bytes".encode())
        for number in range(1 if size == total else SAMPLES):
            start = number * (total - size) // (SAMPLES - 1)
            found.update(view[start : start + size])
        return found.hexdigest()


class Used(NamedTuple):
    """A module, and chains of attributes that are asked of it."""

    module: types.ModuleType
    chains: frozenset[tuple[str, ...]]


class Walk:
    """What values lead to: the user's functions, classes and modules, and the packages.

    Args:
        module: the function's own module, of which functions and classes count one by one.
        reads: the names of attributes that count.
        contents: of tensors and arrays.

    Attributes:
        parts: a digest for each function, class and module; for each package its version.
        reads: the names of attributes that the code reads. More than were given ask for another walk.
    """

    def __init__(
        self, module: str | None, reads: frozenset[str] = frozenset(), contents: Contents | None = None
    ) -> None:
        self.module, self.counted, self.contents = module, reads, contents or Contents()
        self.parts: dict[str, str] = {}
        self.reads: set[str] = set()
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken: dict[str, int] = {}
        self._waiting: deque[tuple[str, Callable[[], Any]]] = deque()
        self._modules: dict[str, bool] = {}
        self._imports: list[tuple[frozenset[Import], str]] = []
        self._sources: dict[str, tuple[ModuleSource, set[str]]] = {}

    def digest(self, value: object) -> str:
        """The digest of a value; what it leads to waits for `settle`."""
        hasher = Hasher(self)
        hasher.add(value)
        return hasher.hash.hexdigest()

    def settle(self) -> dict[str, str]:
        """The parts, once everything that is led to has been looked at."""
        while self._waiting or self._imports:
            if self._imports:
                self._follow(*self._imports.pop())
                continue
            name, find = self._waiting.popleft()
            self.parts[name] = self.digest(find())
        for source, captured in self._sources.values():
            for name, reads in source.reads.items():
                self.reads |= reads if name not in captured else set()
        return self.parts

    def counts(self, name: str) -> bool:
        """Whether an attribute of an object counts."""
        return name in self.counted or EVERYTHING in self.counted

    def name_of(self, value: Any, kind: str, find: Callable[[], Any]) -> str:
        """What a function or class is called. `find` gives what it consists of; it is called later, once."""
        if id(value) not in self._names:
            module = "" if value.__module__ in (None, "__main__", "__mp_main__") else f"{value.__module__}."
            name = f"{kind} {module}{value.__qualname__}"
            self._taken[name] = count = self._taken.get(name, 0) + 1
            name = name if count == 1 else f"{name} ({count})"  # of a function that is made more than once
            self._names[id(value)] = (value, name)
            self._waiting.append((name, find))
        return self._names[id(value)][1]

    def skip(self, value: object) -> None:
        """Have a function be known by name alone, because the caller looks at it."""
        self._names[id(value)] = (value, "itself")

    def note(self, module: str | None) -> None:
        """Something of an installed package is used."""
        package = package_of(module)
        if package is not None:
            self.parts[f"package {package[0]}"] = package[1]

    def read(self, fn: types.FunctionType) -> None:
        """Take over what a function imports, and which attributes it reads."""
        package = fn.__globals__.get("__package__")
        found = references(fn.__code__)
        self.reads |= found.reads if fn.__name__ not in _MAKING else set()
        self._follow(found.imports, (home_of(fn) or "").rpartition(".")[0] if package is None else package)

    def _follow(self, imports: frozenset[Import], package: str) -> None:
        for name in sorted({name for one in imports for name in one.modules(package)}):
            self.has_source(name)

    def has_source(self, name: str | None, captured: str = "") -> bool:
        """Whether a module of the user's counts by its source, and not function by function; then it is a part.

        Args:
            name: of the module.
            captured: the name of a class whose methods count one by one, if there are objects of it.
        """
        if name is None or name in (self.module, "__main__", "__mp_main__"):
            return False
        if name not in self._modules:
            self._modules[name] = False
            self._modules[name] = self._add_module(name)
        if name in self._sources and captured:
            self._sources[name][1].add(captured.partition(".")[0])
        return self._modules[name]

    def _add_module(self, name: str) -> bool:
        spec = find_module(name) if is_users_own(name) else None
        if spec is None or (spec.origin is not None and is_installed_file(spec.origin)):
            self.note(name if spec is not None or not is_users_own(name) else None)
            return False
        text, loaded = text_of(name, spec), sys.modules.get(name)
        if text is None:  # written in C, or a namespace
            if spec.origin is not None:
                self.parts[f"module {name}"] = _digest_file(spec.origin)
            return spec.origin is not None
        try:
            source = source_of(text)
        except (SyntaxError, ValueError):  # an editor writes it at this moment
            source = ModuleSource(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), {}, frozenset())
        outdated = loaded is not None and is_outdated(loaded, text)
        self.parts[f"module {name}"] = source.digest + ", changed since it was loaded" * outdated
        self._sources[name] = (source, set())
        self._imports.append((source.imports, name if spec.submodule_search_locations else name.rpartition(".")[0]))
        return True


class Hasher:
    """Feeds a value, piece by piece, to a hash. An object that was met before counts by when that was."""

    def __init__(self, walk: Walk) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.walk = walk
        self._met: dict[int, tuple[Any, int]] = {}  # a temporary that goes would free its id for another

    def tag(self, *pieces: Any) -> None:
        """Add some words."""
        data = "\0".join(map(str, pieces)).encode("utf-8", "surrogatepass")
        self.hash.update(struct.pack("<q", len(data)) + data)

    def add(self, value: object) -> None:
        """Add any value."""
        if type(value) in _SCALARS:
            self.tag(type(value).__name__, repr(value))
            return
        if type(value) not in _VALUES:
            if id(value) in self._met:
                self.tag("again", self._met[id(value)][1])
                return
            self._met[id(value)] = (value, len(self._met))
        handler = _HANDLERS.get(type(value))
        if handler is not None:
            handler(self, value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.ModuleType):
            self.add(Used(value, frozenset({()})))
        elif isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        else:
            self._add_object(value)

    def _add_all(self, kind: str, values: Any) -> None:
        values = list(values)
        self.tag(kind, len(values))
        for value in values:
            self.add(value)

    def _add_unordered(self, kind: str, values: Any) -> None:
        """Each with all that it leads to: names would be given in another order in another process."""
        if all(type(value) in _SCALARS for value in values):
            self.tag(kind, *sorted(f"{type(value).__name__} {value!r}" for value in values))
            return
        walks = [(Walk(self.walk.module, self.walk.counted, self.walk.contents), value) for value in values]
        self.tag(kind, *sorted(repr((walk.digest(value), sorted(walk.settle().items()))) for walk, value in walks))
        self.walk.reads.update(*(walk.reads for walk, _ in walks))

    def _add_mapping(self, mapping: Any) -> None:
        self.tag("mapping", len(mapping))
        for key, value in mapping.items():
            self.add(key)
            self.add(value)

    # -- code ----------------------------------------------------------------------------------------

    def _add_code(self, code: types.CodeType) -> None:
        """Add bytecode. Neither names of files nor numbers of lines: moving a function does not change what it does."""
        flags = code.co_flags & ~HAS_DOCSTRING
        self.tag("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags)
        self._add_all("names", (*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars))
        self.tag("bytecode", code.co_code.hex())
        self._add_all("constants", constants_of(code))

    def _add_function(self, fn: types.FunctionType) -> None:
        home = home_of(fn)
        if not is_users_own(home):
            self.tag("function", fn.__qualname__, "of", home)
            self.walk.note(home)
            for value in _own_contents(fn):  # a decorator of an installed package, around something of the user's
                self.add(value)
        elif self.walk.has_source(home):
            self.tag("function", fn.__qualname__, "of", home)
            if "<" in fn.__qualname__:  # there may be several of the name
                self.add(fn.__code__)
            self._add_all("captured", [value for _, value in _cells(fn)])
        else:
            self.tag("function", self.walk.name_of(fn, "helper", lambda: function_pieces(self.walk, fn)))

    def _add_module(self, used: Used) -> None:
        module = used.module
        self.tag("module", module.__name__)
        if not _is_own_module(module):
            self.walk.note(module.__name__)
            return
        whole = not self.walk.has_source(module.__name__)
        for chain in sorted(used.chains):
            value: Any = module
            for attribute in chain:
                if _is_own_module(value):
                    value = getattr(value, attribute, None)
            self.tag(*chain)
            if value is not module:
                self.add(value)
            elif whole and id(module) not in self._met:
                self._met[id(module)] = (module, len(self._met))
                self._add_mapping({k: v for k, v in sorted(vars(module).items()) if k[:2] != "__"})

    # -- classes and objects -------------------------------------------------------------------------

    def _add_class(self, cls: type) -> None:
        self.tag("class", cls.__qualname__, "of", cls.__module__)
        if not is_users_own(cls.__module__):
            self.walk.note(cls.__module__)
        elif not self.walk.has_source(cls.__module__) or "<locals>" in cls.__qualname__:
            members = [(name, one.value) for name, one in cls.__members__.items()] if issubclass(cls, enum.Enum) else []
            self.tag(self.walk.name_of(cls, "class", lambda: [*cls.__bases__, members, *members_of(self.walk, cls)]))

    def _add_wrapped(self, value: object) -> None:
        """Add a property, static or class method, or a function with a cache, which does not count."""
        parameters = getattr(value, "cache_parameters", None)
        self.tag(type(value).__name__, "" if parameters is None else sorted(parameters().items()))
        self._add_all("functions", _unwrapped(value))

    def _add_tensor(self, tensor: Tensor) -> None:
        # The symbol that stands for a ragged length is another one in each process.
        self.tag(
            "tensor", tensor.dtype, tensor.dim() if tensor.is_nested else tuple(tensor.shape), tensor.requires_grad
        )
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            self.add(type(tensor))
        if tensor.is_nested:
            self._add_all("rows", tensor.detach().unbind())
        elif tensor.is_quantized:
            self._add_all("quantized", (tensor.int_repr(), tensor.dequantize()))
        elif tensor.layout is not torch.strided:
            self.add(tensor.detach().__reduce_ex__(4)[1])
        elif not tensor.is_meta:
            plain = tensor.detach().as_subclass(Tensor)
            flat = lambda: bytes_of(plain.cpu().resolve_conj().resolve_neg().contiguous())  # noqa: E731
            self.tag(self.walk.contents.digest(tensor, flat))

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        self.tag("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self._add_all("objects", array.ravel().tolist())
        elif array.size:
            flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.tag(self.walk.contents.digest(array, lambda: memoryview(flat)))

    def _add_object(self, value: Any) -> None:
        """An object of a user's class is what the code reads of it; any other is what it would be pickled as."""
        inner = _compiled(value)
        if inner is None and hasattr(type(value), "identity_parts"):
            inner = sorted(value.identity_parts().items())
        if inner is not None:
            self.tag("of", type(value).__qualname__)
            self.add(inner)
            return
        self.add(type(value))
        state = state_of(self.walk, value)
        if state is not None:
            self.add(state)
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # locks, files, handles
            return
        if isinstance(reduced, str):  # of something that is found by its name
            self.tag("name", reduced, getattr(value, "__module__", ""))
            self.walk.note(getattr(value, "__module__", None))
            return
        make, arguments, state, items, pairs = (*reduced, *(None,) * 5)[:5]
        self.add((getattr(make, "__qualname__", ""), arguments, state))
        self._add_all("items", items or ())
        self._add_all("pairs", pairs or ())


def digest_alone(value: object, contents: Contents | None = None) -> str:
    """The digest of a value and of all that it leads to, as one."""
    found = _walked(_module_of(value), contents, lambda walk: {"": walk.digest(value)})
    return hashlib.blake2b(repr(sorted(found.items())).encode(), digest_size=16).hexdigest()


def code_parts(fn: Any) -> dict[str, str]:
    """Digests of what a function, a method or an object that is called consists of, and of what it leads to."""
    inner: Any = fn.__func__ if isinstance(fn, types.MethodType) else fn
    is_users = isinstance(inner, types.FunctionType) and is_users_own(home_of(inner))

    def find(walk: Walk) -> dict[str, str]:
        found = {} if fn is inner else pieces(walk, "object", fn.__self__)
        if is_users:
            walk.skip(inner)
            found |= function_pieces(walk, inner)
        elif fn is inner:
            found |= pieces(walk, "callable", fn)
        return {name: walk.digest(value) for name, value in found.items()}

    return _walked(_module_of(inner), None, find)


def _module_of(value: object) -> str | None:
    """The module of which functions count one by one: of a decorated function, that of the inner one."""
    module: str | None = (value if isinstance(value, types.FunctionType) else type(value)).__module__
    return home_of(value) if isinstance(value, types.FunctionType) and is_users_own(home_of(value)) else module


def _walked(module: str | None, contents: Contents | None, find: Callable[[Walk], dict[str, str]]) -> dict[str, str]:
    """What `find` finds and what that leads to. A walk knows at its end which attributes the code reads: it is repeated
    until it finds no more of them."""
    reads: frozenset[str] = frozenset()
    contents = contents or Contents()
    while True:
        walk = Walk(module, reads, contents)
        parts = find(walk)
        parts |= walk.settle()
        if walk.reads <= reads:
            return parts
        reads |= walk.reads


def home_of(fn: types.FunctionType) -> str | None:
    """The module that the code of a function is in: `functools.wraps` changes its `__module__`."""
    home: str | None = fn.__globals__.get("__name__", fn.__module__)
    return home


def _cells(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of outer functions that a function holds, as far as they are set."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def function_pieces(walk: Walk, fn: types.FunctionType) -> dict[str, Any]:
    """What a function consists of."""
    walk.read(fn)
    chains = references(fn.__code__).names
    held = {f"default {number}": value for number, value in enumerate(fn.__defaults__ or ())}
    held |= {f"default {name}": value for name, value in sorted((fn.__kwdefaults__ or {}).items())}
    held |= {f"closure variable {name}": value for name, value in _cells(fn)}
    held |= {f"global {name}": fn.__globals__[name] for name in sorted(chains) if name in fn.__globals__}
    held |= {f"attribute {name}": value for name, value in sorted(fn.__dict__.items()) if walk.counts(name)}
    found: dict[str, Any] = {"code": fn.__code__}
    for label, value in held.items():
        if isinstance(value, types.ModuleType):
            found[label] = Used(value, chains.get(label.rpartition(" ")[2], frozenset({()})))
        else:
            found |= pieces(walk, label, value)
    return found


def pieces(walk: Walk, label: str, value: object) -> dict[str, Any]:
    """A value as parts: of an object of a user's class, the class and each attribute that counts."""
    state = state_of(walk, value)
    if state is None:
        return {label: value}
    return {label: type(value), **{f"{label}.{name}": attribute for name, attribute in state.items()}}


def state_of(walk: Walk, value: object) -> dict[str, Any] | None:
    """The attributes that count of an object of a user's class; None for any other, and for a builtin's subclass."""
    cls = type(value)
    if not is_users_own(cls.__module__) or issubclass(cls, type) or _compiled(value) is not None:
        return None
    if not all(base in _TRANSPARENT or is_users_own(base.__module__) for base in cls.__mro__):
        return None
    state = dict(getattr(value, "__dict__", {}))
    for base in cls.__mro__:
        if is_users_own(base.__module__):
            walk.has_source(base.__module__, base.__qualname__)
            for name, member in members_of(walk, base):
                if isinstance(member, functools.cached_property):
                    state.pop(name, None)
                elif isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                    state[name] = getattr(value, name)
                for fn in _unwrapped(member):
                    if isinstance(fn, types.FunctionType):
                        walk.read(fn)
    own = isinstance(value, torch.nn.Module)  # parameters and buffers
    return {n: v for n, v in sorted(state.items()) if walk.counts(n) or own and (n[0] == "_" or n == "training")}


def members_of(walk: Walk, cls: type) -> Iterator[tuple[str, Any]]:
    """What counts of a class: what the code names, and what the interpreter or a base of an installed package calls."""
    foreign = [base for base in cls.__mro__ if not is_users_own(base.__module__)]
    for name, value in sorted(vars(cls).items()):
        if name in _UNCALLED or (name.startswith("__") and (not _unwrapped(value) or name.startswith("__annotat"))):
            continue
        if name.startswith("__") or walk.counts(name) or any(hasattr(base, name) for base in foreign):
            yield name, value


def _unwrapped(value: object) -> list[Any]:
    """The functions in what may stand in a class; none for anything else."""
    if isinstance(value, types.FunctionType):
        return [value]
    names = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
    if isinstance(value, (property, staticmethod, classmethod, functools.cached_property, functools.partial, _LRU)):
        return [inner for name in names if (inner := getattr(value, name, None)) is not None]
    return []


def _own_contents(fn: types.FunctionType) -> Iterator[Any]:
    """What a function of an installed package holds of the user's."""
    cells = [value for _, value in _cells(fn)]
    registry = getattr(fn, "registry", None)  # of functools.singledispatch
    if isinstance(registry, types.MappingProxyType):
        cells += [other for _, other in sorted(registry.items(), key=lambda pair: pair[0].__qualname__)]
    for value in (*cells, *(fn.__defaults__ or ()), getattr(fn, "__wrapped__", None)):
        inner = getattr(value, "__func__", getattr(value, "func", value))
        if isinstance(inner, (types.FunctionType, type, _LRU)) and value is not fn:
            home = getattr(inner, "__globals__", {}).get("__name__", getattr(inner, "__module__", None))
            if is_users_own(home):
                yield value


def _compiled(value: object) -> Any:
    """What a compiler has made something of: a function, or a script; None for anything else."""
    if isinstance(value, torch.jit.ScriptFunction):
        return re.sub(r" *#.*", "", str(value.inlined_graph))
    if isinstance(value, torch.jit.ScriptModule):
        return [value.code, value.state_dict()]
    names = ("py_func", "_torchdynamo_orig_callable", "_orig_mod")  # of numba, and of torch.compile
    found = (getattr(value, name, None) for name in names if callable(value) and not isinstance(value, type))
    return next((inner for inner in found if inner is not None), None)


def _digest_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    except OSError:
        return "cannot be read"


def _is_own_module(value: object) -> bool:
    return isinstance(value, types.ModuleType) and is_users_own(value.__name__)


_HANDLERS: dict[type, Any] = {
    list: lambda hasher, value: hasher._add_all("list", value),
    tuple: lambda hasher, value: hasher._add_all("tuple", value),
    dict: Hasher._add_mapping,
    types.MappingProxyType: Hasher._add_mapping,
    set: lambda hasher, value: hasher._add_unordered("set", value),
    frozenset: lambda hasher, value: hasher._add_unordered("frozenset", value),
    types.CodeType: Hasher._add_code,
    types.FunctionType: Hasher._add_function,
    types.MethodType: lambda hasher, value: hasher._add_all("method", (value.__func__, value.__self__)),
    functools.partial: lambda hasher, value: hasher._add_all("partial", (value.func, value.args, value.keywords)),
    **dict.fromkeys((property, staticmethod, classmethod, functools.cached_property, _LRU), Hasher._add_wrapped),
    torch.Generator: lambda hasher, value: hasher._add_all("generator", (str(value.device), value.get_state())),
    Used: Hasher._add_module,
}
