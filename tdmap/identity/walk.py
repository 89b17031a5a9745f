"""Digests of values, and of the user's functions and classes that they lead to: the same in every process.

    value ──► digest of its content, where a function or a class of the user's stands for its name
                │
                └── the function, the class ──► a part of its own: "helper module.name" ──► and what it leads to

So a part that differs names what has changed, however deep it lies, and circles end by themselves. Pickled bytes would
not do: they depend on the identity of strings, the order of sets, line numbers and the names of files.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap.identity.references import Attributes, global_names, imports_anything, references
from tdmap.identity.sources import Sources, package_of
from tdmap.memory.regions import bytes_of
from tdmap.user_code import is_users_own

WHOLE_BYTES = 64 << 20
"""The content of a tensor or an array counts whole up to so many bytes; of a larger one so many bytes count, in"""

SAMPLES = 64
"""so many pieces, evenly spread, the first and the last among them."""

BUDGET_BYTES, SAMPLE_BYTES = 1 << 30, 1 << 20
"""When so many bytes have been read for one function, the first figure, the second one takes the place of the above."""

_SCALARS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented))

_VALUES = (tuple, frozenset, torch.Size, types.CodeType)
"""Never told apart by identity: whether two equal constants are one object depends on how a module was loaded."""

_NAMED = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
)
"""Made in C: their names say it all."""

_LRU = type(functools.lru_cache(lambda: None))

_METHODS = (types.FunctionType, staticmethod, classmethod, property)

_IGNORED = ("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__")
"""Attributes of classes that do not change what they do; those of `_IGNORED_KINDS` besides."""

_IGNORED_KINDS = ("__static_attributes__", "__annot", "_abc_")
"""How their names begin: Python 3.14 has `__annotate_func__` and `__annotations_cache__`."""


class Reached:
    """What a function leads to: the user's functions and classes, and the packages.

    Args:
        bounded: large contents count by pieces.
        whole_bytes: larger contents do.

    Attributes:
        parts: a digest for each.
        packages: their versions.
    """

    def __init__(self, bounded: bool = True, whole_bytes: int = WHOLE_BYTES) -> None:
        self.bounded = bounded
        self.whole_bytes = whole_bytes
        self.parts: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self._sources = Sources(self.parts, self.packages)
        self._names: dict[int, str] = {}
        self._taken: dict[str, int] = {}
        self._waiting: deque[tuple[str, Callable[[Walk], None]]] = deque()
        self._contents: dict[int, str] = {}
        self._keep: list[Any] = []
        self._bytes = 0

    def digest(self, value: Any) -> str:
        """The digest of a value; what it leads to waits for `settle`."""
        return self.digest_of(lambda walk: walk.add(value))

    def digest_of(self, add: Callable[[Walk], None]) -> str:
        """The digest of what `add` adds."""
        walk = Walk(self)
        add(walk)
        return walk.hash.hexdigest()

    def settle(self) -> dict[str, str]:
        """The parts, once everything that is led to has been looked at."""
        while self._waiting:
            name, add = self._waiting.popleft()
            self.parts[name] = self.digest_of(add)
        return {**self.parts, **{f"package {name}": version for name, version in self.packages.items()}}

    def name_of(self, value: Any, kind: str, add: Callable[[Walk], None]) -> str:
        """What a function or class of the user's is called; it is looked at later, once."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        module = "" if value.__module__ in (None, "__main__", "__mp_main__") else f"{value.__module__}."
        return self._register(id(value), value, f"{kind} {module}{value.__qualname__}", add)

    def module_name(self, module: types.ModuleType) -> str:
        """The name of a part for a whole module."""
        known = self._names.get(id(module))
        return known or self._register(id(module), module, f"module {module.__name__}", lambda w: w.add_members(module))

    def _register(self, key: int, value: Any, name: str, add: Callable[[Walk], None]) -> str:
        self._taken[name] = count = self._taken.get(name, 0) + 1
        name = name if count == 1 else f"{name} ({count})"  # of a function that is made more than once
        self._names[key] = name
        self._keep.append(value)
        self._waiting.append((name, add))
        return name

    def note(self, module: str | None) -> None:
        """Something of an installed package is used."""
        package = package_of(module)
        if package is not None:
            self.packages[package[0]] = package[1]

    def add_imports(self, fn: types.FunctionType) -> None:
        """Follow what a function imports while it runs."""
        if imports_anything(fn.__code__):
            for wanted in references(fn.__code__).imports:
                self._sources.add(wanted, _package_of(fn))

    def skip(self, value: Any) -> None:
        """Have something be known by name alone, because its caller looks at it."""
        self._names[id(value)] = "itself"
        self._keep.append(value)

    def content(self, owner: Any, data: Callable[[], memoryview]) -> str:
        """The digest of many bytes that an object holds, read once however often they are met."""
        known = self._contents.get(id(owner))
        if known is None:
            view = data()
            self._keep.append(owner)
            known = self._contents[id(owner)] = self._digest_bytes(view)
        return known

    def _digest_bytes(self, view: memoryview) -> str:
        found, total = hashlib.blake2b(digest_size=16), len(view)
        most = self.whole_bytes if self._bytes < BUDGET_BYTES else SAMPLE_BYTES
        if total <= most or not self.bounded:
            found.update(view)
            self._bytes += total
            return found.hexdigest()
        size = most // SAMPLES
        for number in range(SAMPLES):
            start = number * (total - size) // (SAMPLES - 1)
            found.update(view[start : start + size])
        self._bytes += most
        return f"{total} bytes, in part {found.hexdigest()}"


class Walk:
    """Feeds a value, piece by piece, to a hash. An object that was met before counts by when that was."""

    def __init__(self, reached: Reached) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self.reached = reached
        self._met: dict[int, int] = {}
        self._keep: list[Any] = []

    def tag(self, *pieces: Any) -> None:
        """Add some words."""
        data = "\0".join(map(str, pieces)).encode("utf-8", "surrogatepass")
        self.hash.update(struct.pack("<q", len(data)) + data)

    def add(self, value: Any) -> None:
        """Add any value."""
        if isinstance(value, _SCALARS) and type(value) in _SCALARS:
            self.tag(type(value).__name__, repr(value))
            return
        if type(value) not in _VALUES:
            if id(value) in self._met:
                self.tag("again", self._met[id(value)])
                return
            self._met[id(value)] = len(self._met)
            self._keep.append(value)  # a temporary that goes would free its id for another
        handler = _handlers.get(type(value))
        if handler is not None:
            handler(self, value)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, types.ModuleType):
            self.add_module(value, frozenset({()}))
        elif isinstance(value, Tensor):
            self.add_tensor(value)
        elif isinstance(value, np.ndarray):
            self.add_array(value)
        else:
            self.add_object(value)

    def add_all(self, kind: str, values: Any) -> None:
        """Add values in their order."""
        values = list(values)
        self.tag(kind, len(values))
        for value in values:
            self.add(value)

    def add_unordered(self, kind: str, values: Any) -> None:
        """Add values that have no order: each counts with all that it leads to."""
        self.tag(kind, *sorted(digest_alone(value) for value in values))

    def add_mapping(self, mapping: Any) -> None:
        """Add keys and values in their order."""
        self.tag("mapping", len(mapping))
        for key, value in mapping.items():
            self.add(key)
            self.add(value)

    # -- code ----------------------------------------------------------------------------------------

    def add_code(self, code: types.CodeType) -> None:
        """Add bytecode. Neither names of files nor numbers of lines: moving a function does not change what it does."""
        self.tag("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add_all("names", (*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars))
        self.tag("bytecode", code.co_code.hex())
        self.add_all("constants", code.co_consts)

    def add_function(self, fn: types.FunctionType) -> None:
        """Add a function: of the user's by its name, which is looked at on its own; any other by its name alone."""
        home = fn.__globals__.get("__name__", fn.__module__)  # where its code is: `functools.wraps` changes __module__
        if is_users_own(home):
            self.tag("function", self.reached.name_of(fn, "helper", lambda walk: walk.add_body(fn)))
            return
        self.tag("function", fn.__qualname__, "of", home)
        self.reached.note(home)
        for value in own_contents(fn):  # a decorator of an installed package, around something of the user's
            self.add(value)

    def add_body(self, fn: types.FunctionType) -> None:
        """Add what a function consists of."""
        for name, add in function_pieces(fn):
            self.tag(name)
            add(self)
        self.reached.add_imports(fn)

    def add_module(self, module: types.ModuleType, chains: frozenset[Attributes]) -> None:
        """Add what is used of a module; all of it where it is used as it is."""
        if not _is_own_module(module):
            self.tag("module", module.__name__)
            self.reached.note(module.__name__)
            return
        for chain in sorted(chains):
            self.tag("module", module.__name__, *chain)
            value: Any = module
            for attribute in chain:
                if not _is_own_module(value):
                    break
                value = getattr(value, attribute, None)
            if _is_own_module(value):
                self.tag(self.reached.module_name(value))
            elif isinstance(value, types.ModuleType):
                self.add_module(value, frozenset({()}))
            else:
                self.add(value)

    def add_members(self, module: types.ModuleType) -> None:
        """Add everything that a module of the user's defines."""
        for name, value in sorted(vars(module).items()):
            if isinstance(value, types.ModuleType):
                self.tag(name, "module", value.__name__)
            elif not name.startswith("__"):
                self.tag(name)
                self.add(value)

    # -- classes and objects -------------------------------------------------------------------------

    def add_class(self, cls: type) -> None:
        """Add a class, as `add_function` a function."""
        if is_users_own(cls.__module__):
            self.tag("class", self.reached.name_of(cls, "class", lambda walk: walk.add_class_body(cls)))
        else:
            self.tag("class", cls.__qualname__, "of", cls.__module__)
            self.reached.note(cls.__module__)

    def add_class_body(self, cls: type) -> None:
        """Add what a class consists of."""
        self.add_all("bases", cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name in _IGNORED or name.startswith(_IGNORED_KINDS):
                continue
            if name.startswith("__") and not isinstance(
                value, (types.FunctionType, staticmethod, classmethod, property)
            ):
                continue
            self.tag(name)
            self.add(value)

    def add_property(self, value: property) -> None:
        """Add its functions."""
        self.add_all("property", (value.fget, value.fset, value.fdel))

    def add_wrapped(self, value: Any) -> None:
        """Add a static or class method, or a function with a cache, which does not count."""
        parameters = getattr(value, "cache_parameters", None)
        self.tag(type(value).__name__, "" if parameters is None else sorted(parameters().items()))
        self.add(value.__wrapped__ if parameters is not None else value.__func__)

    def add_named(self, value: Any) -> None:
        """Add something that was made in C."""
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        self.tag("builtin", value.__name__, getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        if isinstance(owner, type):
            self.add_class(owner)
        elif owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)
        self.reached.note(getattr(value, "__module__", None))

    def add_tensor(self, tensor: Tensor) -> None:
        """Add its content."""
        # The symbol that stands for a ragged length is another one in each process.
        shape = tensor.dim() if tensor.is_nested else tuple(tensor.shape)
        self.tag("tensor", tensor.dtype, shape, tensor.layout, tensor.requires_grad)
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            self.add_class(type(tensor))
        parts = _tensors_within(tensor)
        if parts is not None:
            self.add_all("parts", parts)
            return
        plain = tensor.detach().as_subclass(Tensor)
        self.tag(self.reached.content(tensor, lambda: bytes_of(plain.cpu().resolve_conj().resolve_neg().contiguous())))

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        """Add its content."""
        self.tag("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self.add_all("objects", array.ravel().tolist())
        elif array.size:
            flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.tag(self.reached.content(array, lambda: memoryview(flat)))

    def add_generator(self, generator: torch.Generator) -> None:
        """Add where a random stream is."""
        self.tag("generator", generator.device)
        self.add_tensor(generator.get_state())

    def add_object(self, value: Any) -> None:
        """An object is what it would be pickled as."""
        if self._add_compiled(value):
            return
        self.tag("object")
        self.add(type(value))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # locks, files, handles: of the user's own, the attributes are all there is
            if is_users_own(type(value).__module__):
                self.add_mapping(getattr(value, "__dict__", {}))
            return
        if isinstance(reduced, str):
            self.tag("name", reduced)
            return
        make, arguments, state, items, pairs = (*reduced, *(None,) * 5)[:5]
        self.add((getattr(make, "__qualname__", ""), arguments, state))
        self.add_all("items", items or ())
        self.add_all("pairs", pairs or ())

    def _add_compiled(self, value: Any) -> bool:
        """Add a function that a compiler has made of another one; False for anything else."""
        if isinstance(value, torch.jit.ScriptFunction):
            self.tag("script", re.sub(r" *#.*", "", str(value.inlined_graph)))
            return True
        if isinstance(value, torch.jit.ScriptModule):
            self.tag("script", value.code)
            self.add_mapping(value.state_dict())
            return True
        for name in ("py_func", "_torchdynamo_orig_callable", "_orig_mod"):  # of numba, and of torch.compile
            inner = getattr(value, name, None)
            if inner is not None and callable(value):
                self.tag("compiled", type(value).__qualname__)
                self.add(inner)
                return True
        return False


def _tensors_within(tensor: Any) -> list[Any] | None:
    """What a tensor that is no block of numbers consists of; None for one that is. (To print it shows a part of it.)"""
    if tensor.is_meta:
        return []
    tensor = tensor.detach()
    if tensor.layout is torch.jagged:
        return [tensor.values(), tensor.offsets(), tensor.lengths()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        scales = (
            (tensor.q_scale(), tensor.q_zero_point())
            if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
            else (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), tensor.q_per_channel_axis())
        )
        return [tensor.int_repr(), *scales]
    return None if tensor.layout is torch.strided else [tensor.to_dense()]


def digest_alone(value: Any) -> str:
    """The digest of a value and of all that it leads to, as one."""
    reached = Reached()
    digest = reached.digest(value)
    return hashlib.blake2b(repr((digest, sorted(reached.settle().items()))).encode(), digest_size=16).hexdigest()


def _package_of(fn: types.FunctionType) -> str | None:
    """What relative imports in a function are relative to."""
    package = fn.__globals__.get("__package__")
    return package if package is not None else str(fn.__globals__.get("__name__", "")).rpartition(".")[0]


def function_pieces(fn: types.FunctionType) -> Iterator[tuple[str, Callable[[Walk], None]]]:
    """The parts of a function: their names, and what adds them to a walk."""

    def of(value: Any) -> Callable[[Walk], None]:
        return lambda walk: walk.add(value)

    def of_variable(name: str, value: Any) -> Callable[[Walk], None]:
        if not isinstance(value, types.ModuleType):
            return of(value)
        used = references(fn.__code__).chains.get(name, frozenset()) if _is_own_module(value) else frozenset()
        return lambda walk: walk.add_module(value, used)

    yield "code", of(fn.__code__)
    for number, default in enumerate(fn.__defaults__ or ()):
        yield f"default {number}", of(default)
    for name, default in sorted((fn.__kwdefaults__ or {}).items()):
        yield f"default {name}", of(default)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            yield f"closure variable {name}", of_variable(name, cell.cell_contents)
        except ValueError:  # not set yet
            continue
    for name in sorted(global_names(fn.__code__)):
        if name in fn.__globals__:
            yield f"global {name}", of_variable(name, fn.__globals__[name])
    for name, value in sorted(fn.__dict__.items()):
        if name != "__wrapped__":
            yield f"attribute {name}", of(value)


def own_contents(fn: types.FunctionType) -> Iterator[Any]:
    """What a function of an installed package holds of the user's."""
    cells = []
    for cell in fn.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            continue
    registry = getattr(fn, "registry", None)  # of functools.singledispatch
    if isinstance(registry, types.MappingProxyType):
        cells += [other for _, other in sorted(registry.items(), key=lambda pair: pair[0].__qualname__)]
    for value in (*cells, *(fn.__defaults__ or ()), getattr(fn, "__wrapped__", None)):
        inner = getattr(value, "__func__", getattr(value, "func", value))
        if isinstance(inner, (types.FunctionType, type, _LRU)) and value is not fn:
            home = getattr(inner, "__globals__", {}).get("__name__", getattr(inner, "__module__", None))
            if is_users_own(home):
                yield value


_handlers: dict[type, Any] = {
    list: lambda walk, value: walk.add_all("list", value),
    tuple: lambda walk, value: walk.add_all("tuple", value),
    dict: Walk.add_mapping,
    types.MappingProxyType: Walk.add_mapping,
    set: lambda walk, value: walk.add_unordered("set", value),
    frozenset: lambda walk, value: walk.add_unordered("frozenset", value),
    types.CodeType: Walk.add_code,
    types.FunctionType: Walk.add_function,
    types.MethodType: lambda walk, value: walk.add_all("method", (value.__func__, value.__self__)),
    functools.partial: lambda walk, value: walk.add_all("partial", (value.func, value.args, value.keywords)),
    property: Walk.add_property,
    staticmethod: Walk.add_wrapped,
    classmethod: Walk.add_wrapped,
    _LRU: Walk.add_wrapped,
    torch.Generator: Walk.add_generator,
    torch.dtype: lambda walk, value: walk.tag("dtype", value),
    torch.device: lambda walk, value: walk.tag("device", value),
    torch.Size: lambda walk, value: walk.add_all("size", value),
    np.ndarray: Walk.add_array,
    **dict.fromkeys(_NAMED, Walk.add_named),
}


def _is_own_module(value: object) -> bool:
    return isinstance(value, types.ModuleType) and is_users_own(value.__name__)
