"""Values in a log: written by `torch.save`, and read by `torch.load(weights_only=True)`, which runs no code of a file.

Plain data, tensors and arrays, some types of the standard library, and the collections of `tensordict_lite` can be
read. So can instances of classes that the module of the user's own reducer or function defines, unless the class has
methods that reading would call. Others are declared with `torch.serialization.add_safe_globals`.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import io
import pathlib
import pickle
import sys
import types
import uuid
import zipfile
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdmap.errors import SerializationError
from tensordict_lite import TensorCollection


class Codec(NamedTuple):
    """How the values of a job's chunks are written. Numbers in tensors are read a hundred times as fast as objects."""

    pack: Callable[[Sequence[Any]], Any]
    """Makes data of the values of consecutive chunks; None is the value of a chunk without one."""
    unpack: Callable[[Any], Sequence[Any]]
    """The values again. Raises ValueError, TypeError or LookupError for other data."""


PLAIN = Codec(list, list)


def pack(value: Any, modules: Collection[str] = (), check: bool = False) -> bytes:
    """A value as bytes.

    Args:
        value: what is to be written.
        modules: whose classes `unpack` will accept (see `modules_of`).
        check: read the bytes again.

    Raises:
        SerializationError: the value cannot be written, or (`check`) not be read again; says what to do.
    """
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer, pickle_module=_Pickle)
        if check:
            unpack(buffer.getvalue(), modules)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise SerializationError(
            f"cannot be kept as data ({str(error).splitlines()[0]}). Use tensors, arrays, numbers, strings, "
            "containers of these, or instances of classes at the top of your own module; declare other classes with "
            "torch.serialization.add_safe_globals([...])."
        ) from error
    return buffer.getvalue()


def unpack(content: bytes | memoryview, modules: Collection[str] = ()) -> Any:
    """The value that `pack` was given.

    Raises:
        ValueError: the bytes hold something else, or an instance of a class that is not accepted.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(part.file_size for part in file.infolist()) > len(content):
                raise ValueError("it is compressed")
        declared = set(map(id, torch.serialization.get_safe_globals()))  # those stay when the block ends
        with torch.serialization.safe_globals([x for x in [*_SAFE, *_classes_of(modules)] if id(x) not in declared]):
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # raised by torch, its unpickler or a class: the bytes are untrusted
        text = str(error)
        refused = text.partition("GLOBAL ")[2].partition(" was not")[0]
        told = (text.partition("WeightsUnpickler error:")[2] or text).strip().partition("\n")[0]
        detail = f"{refused} is not accepted" if refused else told
        raise ValueError(f"not the data of a value ({detail})") from error


class _Pickler(pickle.Pickler):
    """Writes the elements of a tensor, and not those of the whole storage or file that it is a view of."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            if type(value) is not Tensor or value.requires_grad or value.untyped_storage().nbytes() > value.nbytes:
                return value.detach().as_subclass(Tensor).clone().__reduce_ex__(2)
        elif isinstance(value, np.memmap):
            return np.array(value).__reduce_ex__(2)
        elif isinstance(value, enum.Enum):  # Python 3.11.0 to 3.11.3 have `getattr` look it up, which is not safe
            return type(value), (value._value_,)
        elif type(value) is collections.defaultdict:  # the unpickler of torch fills no containers but list, dict, set
            return collections.defaultdict, (value.default_factory, dict(value))
        elif type(value) is collections.deque:
            return collections.deque, (list(value), value.maxlen)
        return NotImplemented


class _Pickle:
    """What `torch.save` takes for the module `pickle`."""

    Pickler = _Pickler


def _maker(value: object) -> Any:
    """The function that a pickle calls to make a value."""
    return value.__reduce_ex__(2)[0]


_MOST = 4096
"""Elements of a range, and digits before or behind the point of a number, at most."""


def _range(*args: int) -> range:
    made = range(*args)
    if len(made) > _MOST:
        raise ValueError(f"a range of {len(made):,} numbers")
    return made


def _bytes(*args: bytes) -> bytes:
    if any(type(arg) is not bytes for arg in args):
        raise ValueError("bytes of something else")
    return bytes(*args)


def _decimal(value: str) -> decimal.Decimal:
    made = decimal.Decimal(value)
    if made.is_finite() and abs(made.adjusted()) > _MOST:
        raise ValueError("a number of too many digits")
    return made


def _fraction(*args: int | str) -> fractions.Fraction:
    if any("e" in str(arg).lower() for arg in args):
        raise ValueError("a fraction with an exponent")
    return fractions.Fraction(*args)


def _array(*args: object) -> np.ndarray[Any, Any]:
    return np.empty(0)  # what follows gives its shape with its elements


def _scalar(dtype: np.dtype[Any], value: bytes) -> Any:
    return _maker(np.float64(0))(dtype, value)  # no element without its bytes


def _named(call: Callable[..., Any], kind: Any) -> tuple[Callable[..., Any], str]:
    """A function, and the name of the one that it replaces."""
    return call, f"{kind.__module__}.{kind.__qualname__}"


_SAFE: list[Any] = [
    *(int, float, bool, str, list, dict, set, tuple, frozenset, slice),
    *(collections.defaultdict, collections.deque, type(pathlib.Path()), uuid.UUID),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
    *(np.dtype, *map(type, map(np.dtype, np.sctypeDict.values()))),
    *(_named(_range, range), _named(_bytes, bytes)),
    *(_named(_decimal, decimal.Decimal), _named(_fraction, fractions.Fraction)),
    *(_named(_array, _maker(np.zeros(1))), _named(_scalar, _maker(np.float64(0))), _named(_array, np.ndarray)),
    (np.ndarray, "\n"),  # may be filled; no file can hold this name, so none calls it with a shape
]
"""What `torch.load` builds besides its own list, and that of `tensordict_lite`. Nothing is larger than its data."""


def _classes_of(modules: Collection[str]) -> list[type]:
    """The classes that imported modules define at their top, and whose instances are data."""
    found = (value for name in modules for value in list(vars(sys.modules.get(name, object)).values()))
    return [kind for kind in found if isinstance(kind, type) and kind.__module__ in modules and not own_method(kind)]


def own_method(kind: type) -> str | None:
    """A method of the user's that reading an instance, or dropping it, would call; None without one.

    Example:
        >>> class Temporary:
        ...     def __del__(self): ...
        >>> own_method(Temporary)
        '__del__'
    """
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name in _CALLED:
            method = vars(base).get(name)
            module = getattr(method, "__module__", None) or "builtins"
            generated = getattr(getattr(method, "__code__", None), "co_filename", "") == "<string>"  # of a dataclass
            if not generated and module.partition(".")[0] not in _LIBRARIES:
                return name
    return None


_CALLED = ("__new__", "__init_subclass__", "__setstate__", "__del__", "__getattr__", "__getattribute__", "__hash__")
_LIBRARIES = ("builtins", "collections", "dataclasses", "enum", "tensordict_lite", "torch", "typing")
_NOT_THE_USERS = ("tdmap", "tensordict_lite", "builtins", "functools", "abc", "typing")


def modules_of(*functions: Any) -> frozenset[str]:
    """The modules that define functions, reducers and what they are made of; not those of this library.

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


def _defined_in(value: object) -> list[str]:
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return [value.__module__ or ""]
    kind = value if isinstance(value, type) else type(value)
    return [base.__module__ for base in kind.__mro__]  # a reducer may come from one of another module


def _parts_of(value: object) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    parts = [value.__wrapped__] if hasattr(value, "__wrapped__") else []
    if type(value).__module__.partition(".")[0] == "tdmap":  # what an operation has put around the user's function
        parts += getattr(value, "__dict__", {}).values()
        parts += [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return parts
