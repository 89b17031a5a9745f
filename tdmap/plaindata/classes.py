"""Classes of the user's: which modules they come from, and which of them data may name."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np
from torch import Tensor

from tensordict_lite import TensorCollection

_PLAIN_NEW = {kind.__new__ for kind in (object, dict, list, set, tuple, int, float, str)}


def find_class(module: str, qualname: str) -> type | None:
    """A class that an imported module defines by itself; None when there is none, or something else of that name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = None if found is None else vars(found).get(part)
        if not isinstance(found, type) or found.__module__ != module:
            return None
    return found  # type: ignore[no-any-return]


def has_plain_new(kind: type) -> bool:
    """Whether making an instance runs nothing of the user's."""
    named_tuple = issubclass(kind, tuple) and getattr(kind.__new__, "__module__", "").startswith("namedtuple_")
    new: Any = kind.__new__
    return named_tuple or new in _PLAIN_NEW


def own_method(kind: type) -> str | None:
    """A method of the user's that runs when an instance is made of its state, looked at, or gone; None without one.

    Example:
        >>> class Temporary:
        ...     def __del__(self): ...
        >>> own_method(Temporary)
        '__del__'
    """
    return _defined(kind, ("__setstate__", "__del__", "__getattr__", "__getattribute__"))


def own_hash(kind: type) -> str | None:
    """A method of the user's that runs when an instance becomes a key or a member of a set; None without one."""
    return None if kind.__hash__ is None else _defined(kind, ("__hash__", "__eq__"))


def _defined(kind: type, names: tuple[str, ...]) -> str | None:
    for base in kind.__mro__:
        for name in names if base.__module__.partition(".")[0] not in _LIBRARIES else ():
            method = vars(base).get(name)
            module = getattr(method, "__module__", None) or "builtins"
            if method is not None and module.partition(".")[0] not in _LIBRARIES:
                return name
    return None


_LIBRARIES = ("builtins", "collections", "dataclasses", "enum", "tensordict_lite", "torch", "typing")
"""Whose methods do nothing but what they say; `dataclasses` has a `__setstate__` for classes with slots."""


def modules_of(*functions: Any) -> frozenset[str]:
    """The modules in which functions, reducers and what they are made of are defined; not those of this library.

    Example:
        >>> import json
        >>> sorted(modules_of(json.dumps)), sorted(modules_of(modules_of))
        (['json'], [])
    """
    found: set[str] = set()
    seen: dict[int, Any] = {}
    waiting = list(functions)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, Tensor, np.ndarray, TensorCollection)):
            continue
        seen[id(value)] = value
        if isinstance(value, (list, tuple, set)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        else:
            found |= {name for name in _defined_in(value) if name.partition(".")[0] not in _NOT_THE_USERS}
            waiting += _parts_of(value)
    return frozenset(found)


_NOT_THE_USERS = ("tdmap", "tensordict_lite", "builtins", "functools", "abc", "typing")


def _defined_in(value: Any) -> list[str]:
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return [value.__module__ or ""]
    kind = value if isinstance(value, type) else type(value)
    return [base.__module__ for base in kind.__mro__]  # a reducer may come from one of another module


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    parts = [value.__wrapped__] if hasattr(value, "__wrapped__") else []
    if type(value).__module__.partition(".")[0] == "tdmap":  # what an operation has put around the user's function
        parts += getattr(value, "__dict__", {}).values()
        parts += [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return parts
