"""Digests of functions and datasets that are the same in every process, to tell whether a run may be resumed.

    function ──► {"code": ..., "default 0": ..., "closure scale": ..., "global SIZE": ..., "helper crop": ...}
    dataset  ──► {"('obs', 'image')": "uint8 [1000, 3, 64, 64], image.memmap, 12288000 bytes, changed at ..."}

Both are mappings of a part to its digest or description, so that a mismatch can name the part. Pickled bytes would
not do: they depend on the identity of strings, the order of sets, line numbers and the names of files.

What a function does is its bytecode, its constants, defaults and closure, and the globals that its code names.
Functions and classes of the user's own modules are followed; those of installed packages count by their name.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdmap._data import Data, bytes_of, region_of

OWN_PACKAGES = ("tdmap", "tensordict_lite")
"""Count by name, as installed packages do, wherever they lie."""

_SCALARS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented))

_VALUES = (tuple, frozenset, torch.Size, types.CodeType)
"""Never told apart by identity: whether two equal constants are one object depends on how a module was loaded."""


def function_parts(fn: Any) -> dict[str, str]:
    """The parts that a function consists of, each with its digest.

    Args:
        fn: a function, a bound method, a partial, or any callable object; one with a method `identity_parts` says
            itself what it consists of.

    Example:
        >>> def scale(x, by=2): return x * by
        >>> list(function_parts(scale))
        ['code', 'default 0']
    """
    if isinstance(fn, types.FunctionType):
        return {name: _digest(value) for name, value in _function_parts(fn)}
    if hasattr(type(fn), "identity_parts"):
        return dict(fn.identity_parts())
    if isinstance(fn, functools.partial):
        parts = {f"function {name}": value for name, value in function_parts(fn.func).items()}
        parts |= {f"argument {number}": _digest(value) for number, value in enumerate(fn.args)}
        return parts | {f"argument {name}": _digest(value) for name, value in fn.keywords.items()}
    if isinstance(fn, types.MethodType):
        return {"object": _digest(fn.__self__)} | function_parts(fn.__func__)
    if isinstance(fn, (types.BuiltinFunctionType, type)) or not hasattr(fn, "__dict__"):
        return {"callable": _digest(fn)}
    parts = {"class": _digest(type(fn))}
    if isinstance(fn, torch.nn.Module):
        return parts | {"module": _digest(fn)}
    for name, value in sorted(vars(fn).items()):
        if isinstance(value, (types.FunctionType, functools.partial)) or hasattr(type(value), "identity_parts"):
            parts |= {f"{name}: {part}": digest for part, digest in function_parts(value).items()}
        else:
            parts[f"attribute {name}"] = _digest(value)
    return parts


def source_parts(data: Data, contents: bool = True) -> dict[str, str]:
    """What a dataset consists of: for each tensor its key, dtype, shape and file, or a digest of its content.

    Args:
        data: a tensor or a collection.
        contents: tell one content from another: by the time when a file was last written, or by a digest of
            memory. False for a dataset that the run itself changes.
    """
    return {_key_name(key): _describe_leaf(leaf, contents) for key, leaf in _leaves(data)}


def _leaves(data: Data) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, Tensor):
        yield "the tensor", data
    else:
        from tensordict_lite.views import is_leaf_nontensor

        yield from data.items(True, True, is_leaf_nontensor)


def _key_name(key: Any) -> str:
    return repr(key) if not isinstance(key, tuple) or len(key) > 1 else repr(key[0])


def _describe_leaf(leaf: Any, contents: bool) -> str:
    if not isinstance(leaf, Tensor):
        return f"{type(leaf).__name__} {_digest(getattr(leaf, 'data', None))}"
    text = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    plain = leaf.as_subclass(Tensor) if type(leaf) is not Tensor else leaf
    region = region_of(plain) if leaf.layout is torch.strided else None
    if region is None or region.handle.anonymous:
        return f"{text}, content {_digest(plain)}" if contents else f"{text}, in memory"
    info = os.stat(region.handle.path)
    text += f", {os.path.basename(region.handle.path)} from element {region.offset}, strides {list(region.stride)}"
    text += f", {info.st_size} bytes"
    return f"{text}, written at {info.st_mtime_ns}" if contents else text


# -- functions ---------------------------------------------------------------------------------------


def _function_parts(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield "code", fn.__code__
    for number, value in enumerate(fn.__defaults__ or ()):
        yield f"default {number}", value
    for name, value in sorted((fn.__kwdefaults__ or {}).items()):
        yield f"default {name}", value
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            yield f"closure variable {name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in sorted(_names(fn.__code__)):
        if name in fn.__globals__:
            value = fn.__globals__[name]
            kind = "helper" if callable(value) else "global"
            yield f"{kind} {name}", value


def _names(code: types.CodeType) -> set[str]:
    """Global names (and attributes, which do no harm) that a function and those inside it mention."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.realpath(place) + os.sep for place in places if place)


def is_users_own(module: str | None) -> bool:
    """Whether a module is the user's: `__main__`, or a file outside the standard library and installed packages."""
    if module is None or module.partition(".")[0] in OWN_PACKAGES:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if module in ("__main__", "__mp_main__"):
        return True
    return file is not None and not os.path.realpath(file).startswith(_installed())


# -- any value ---------------------------------------------------------------------------------------


def _digest(value: Any) -> str:
    walk = _Walk()
    walk.add(value)
    return walk.hash.hexdigest()


class _Walk:
    """Feeds a value, piece by piece, to a hash. An object that was met before counts by when that was."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._met: dict[int, int] = {}
        self._keep: list[Any] = []

    def tag(self, *pieces: Any) -> None:
        data = "\0".join(map(str, pieces)).encode("utf-8", "surrogatepass")
        self.hash.update(struct.pack("<q", len(data)) + data)

    def add(self, value: Any) -> None:
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
        elif isinstance(value, Tensor):
            self.add_tensor(value)
        else:
            self.add_object(value)

    def add_all(self, kind: str, values: Any) -> None:
        values = list(values)
        self.tag(kind, len(values))
        for value in values:
            self.add(value)

    def add_unordered(self, kind: str, values: Any) -> None:
        self.tag(kind, *sorted(_digest(value) for value in values))

    def add_code(self, code: types.CodeType) -> None:
        # Neither names of files nor numbers of lines: moving a function does not change what it does.
        self.tag("code", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add_all("names", (*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars))
        self.tag("bytecode", code.co_code.hex())
        self.add_all("constants", code.co_consts)

    def add_function(self, fn: types.FunctionType) -> None:
        self.tag("function", fn.__qualname__)
        if is_users_own(fn.__module__):
            for name, value in _function_parts(fn):
                self.tag(name)
                self.add(value)
        else:
            self.tag("of", fn.__module__)

    def add_class(self, cls: type) -> None:
        self.tag("class", cls.__qualname__)
        if not is_users_own(cls.__module__):
            self.tag("of", cls.__module__)
            return
        self.add_all("bases", cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if isinstance(value, property):
                value = (value.fget, value.fset, value.fdel)
            if isinstance(value, types.FunctionType) or (not name.startswith("__") and _is_plain(value)):
                self.tag(name)
                self.add(value)

    def add_tensor(self, tensor: Tensor) -> None:
        self.tag("tensor", tensor.dtype, tuple(tensor.shape), tensor.layout, tensor.requires_grad)
        if tensor.layout is not torch.strided or tensor.is_quantized:
            self.add(str(tensor))
            return
        flat = tensor.detach().as_subclass(Tensor).cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        for part in flat.split(1 << 24):
            if part.numel():
                self.hash.update(bytes_of(part))

    def add_array(self, array: np.ndarray[Any, Any]) -> None:
        self.tag("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self.add_all("objects", array.ravel().tolist())
        else:
            self.hash.update(np.ascontiguousarray(array).tobytes())

    def add_generator(self, generator: torch.Generator) -> None:
        self.tag("generator", generator.device)
        self.add_tensor(generator.get_state())

    def add_object(self, value: Any) -> None:
        """An object is what it would be pickled as."""
        self.tag("object")
        self.add(type(value))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # it cannot be pickled: locks, files, handles. Its attributes are all there is
            self.add_mapping(getattr(value, "__dict__", {}))
            return
        if isinstance(reduced, str):
            self.tag("name", reduced)
            return
        make, arguments, state, items, pairs = (*reduced, *(None,) * 5)[:5]
        self.add((getattr(make, "__qualname__", ""), arguments, state))
        self.add_all("items", items or ())
        self.add_all("pairs", pairs or ())

    def add_mapping(self, mapping: Any) -> None:
        self.tag("mapping", len(mapping))
        for key, value in mapping.items():
            self.add(key)
            self.add(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (*_SCALARS, tuple, list, dict, set, frozenset, Tensor, np.ndarray))


_handlers: dict[type, Any] = {
    list: lambda walk, value: walk.add_all("list", value),
    tuple: lambda walk, value: walk.add_all("tuple", value),
    dict: _Walk.add_mapping,
    set: lambda walk, value: walk.add_unordered("set", value),
    frozenset: lambda walk, value: walk.add_unordered("frozenset", value),
    types.CodeType: _Walk.add_code,
    types.FunctionType: _Walk.add_function,
    types.ModuleType: lambda walk, value: walk.tag("module", value.__name__),
    types.BuiltinFunctionType: lambda walk, value: walk.tag("builtin", value.__module__, value.__qualname__),
    types.MethodType: lambda walk, value: walk.add_all("method", (value.__func__, value.__self__)),
    functools.partial: lambda walk, value: walk.add_all("partial", (value.func, value.args, value.keywords)),
    torch.Generator: _Walk.add_generator,
    torch.dtype: lambda walk, value: walk.tag("dtype", value),
    torch.device: lambda walk, value: walk.tag("device", value),
    torch.Size: lambda walk, value: walk.add_all("size", value),
    np.ndarray: _Walk.add_array,
}
