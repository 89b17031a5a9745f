"""Objects of the user's script as bytes, for processes that never import it: cloudpickle, with what it lacks.

Functions and classes of `__main__`, those that a function defines, and those of modules registered by
`cloudpickle.register_pickle_by_value` go by value; all others by name. This module differs from cloudpickle in these
points:

- A process has one class for each class of the caller, however many messages bring it: a class has a number, and is
  rebuilt once. What goes back to the caller becomes the caller's own class.
- Rebuilding a class runs no code of its metaclass, nor `__init_subclass__` of a base that goes by value: these have run
  where the class was defined, and the class has what they left.
- Functions that share a variable of an enclosing function share it in the worker. Names that only the body of a class
  reads go along with the function that holds the class.
- Locks are new and open. A process keeps the cache of a cached function for messages that bring the same function: the
  same code, and the same values of what it refers to.
"""

from __future__ import annotations

import abc
import dis
import enum
import functools
import hashlib
import inspect
import io
import os
import pickle
import secrets
import sys
import threading
import types
import typing
import weakref
from _abc import _abc_init, _get_dump  # type: ignore[import-not-found,unused-ignore]  # what ABCMeta itself calls
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

DIGEST_BYTES = 16 << 20
"""Caches of functions that refer to more than so much are not kept."""

_HOOK = "__init_subclass__"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, most often

_MADE_BY_TYPE = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Entries of a class that are there because of its slots, or of `__dict__` and `__weakref__`."""

_PLAIN = (str, int, float, bool, bytes, types.NoneType)
"""Types of the entries that a class has from the start, so that `__init_subclass__` of a library may read them."""

_READ_BY_CLASS_BODIES = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")

_numbers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Classes and variables of types that have been sent or received, and their numbers."""

_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The same, by number."""

_received: weakref.WeakSet[type] = weakref.WeakSet()
"""Of these, the classes that were rebuilt here. Each message brings their entries up to date."""


def _follow_parent() -> None:
    """A fork may be a worker, of this library or of a pool of the user's: its parent's classes are the caller's."""
    _received.update(value for value in list(_numbers) if isinstance(value, type))


os.register_at_fork(after_in_child=_follow_parent)


def dumps(value: object, to_caller: bool = False) -> bytes:
    """The bytes of `value`, for `pickle.loads` (see `Pickler`)."""
    buffer = io.BytesIO()
    Pickler(buffer, to_caller).dump(value)
    return buffer.getvalue()


# -- in the sender ------------------------------------------------------------------------------------


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes objects; `pickle.loads` reads them in any process that can import this package.

    Args:
        file: a binary file.
        to_caller: the reader has sent the classes that were received here; they go by number alone.
        buffer_callback: as `pickle.Pickler` has it.
    """

    def __init__(
        self,
        file: io.BytesIO,
        to_caller: bool = False,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffer_callback)
        self._to_caller = to_caller

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, types.FunctionType):
            return NotImplemented if _has_name(value) else self._reduce_function(value)
        if isinstance(value, type):
            if not value.__flags__ & _HEAP_TYPE or _has_name(value):
                return super().reducer_override(value)
            if self._to_caller and value in _received:
                return find_class, (_numbers[value], value.__qualname__)
            return _reduce_class(value)
        if isinstance(value, functools._lru_cache_wrapper):
            return self._reduce_cache(value)
        if isinstance(value, enum.Enum) and value._name_ in type(value).__members__ and not _has_name(type(value)):
            return _reduce_member(value)
        return NotImplemented

    def _reduce_function(self, fn: types.FunctionType) -> Any:
        """As cloudpickle does, but for the cells, of which it would make others for each function."""
        make, (code, space, *defaults, _), (attributes, slots), *rest = self._dynamic_function_reduce(
            fn if _can_be_annotated(fn) else _without_annotations(fn)
        )
        for name in _names_in_class_bodies(fn.__code__):
            if name in fn.__globals__:
                slots["__globals__"][name] = fn.__globals__[name]
        return make, (code, space, *defaults, fn.__closure__), (attributes, slots), *rest

    def _reduce_cache(self, cache: Any) -> Any:
        if _has_name(cache):
            return cache.__qualname__
        made = (cache.__wrapped__, cache.cache_parameters())
        return make_cache, (*made, None if self._to_caller else _digest_of(made))

    dispatch_table = ChainMap(
        {
            type(threading.Lock()): lambda lock: (threading.Lock, ()),
            type(threading.RLock()): lambda lock: (threading.RLock, ()),
            types.CellType: lambda cell: _reduce_cell(cell),
            weakref.ref: lambda reference: (make_reference, () if reference() is None else (reference(),)),
            weakref.WeakKeyDictionary: lambda pairs: (weakref.WeakKeyDictionary, (dict(pairs),)),
            weakref.WeakValueDictionary: lambda pairs: (weakref.WeakValueDictionary, (dict(pairs),)),
            **dict.fromkeys(
                (typing.ParamSpec, getattr(typing, "TypeVarTuple", typing.ParamSpec)),
                lambda variable: _reduce_variable(variable),
            ),
        },
        cloudpickle.Pickler.dispatch_table,
    )


def _has_name(value: Any) -> bool:
    """Whether another process finds a class, or another object with a name, by importing its module."""
    module = getattr(value, "__module__", None) or "__main__"
    if module == "__main__":
        return False
    if any(f"{module}.".startswith(f"{name}.") for name in cloudpickle.list_registry_pickle_by_value()):
        return False
    found: Any = sys.modules.get(module)
    for part in getattr(value, "__qualname__", value.__name__).split("."):
        found = getattr(found, part, None)
    return found is value


def _can_be_annotated(value: types.FunctionType | type) -> bool:
    """Whether annotations can be read, as cloudpickle does. Python 3.14 evaluates them then, and a name may be imported
    for type checkers alone."""
    try:
        return value.__annotations__ is not None
    except Exception:
        return False


def _without_annotations(fn: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    for name in ("__kwdefaults__", "__module__", "__qualname__", "__doc__"):
        setattr(copy, name, getattr(fn, name))
    copy.__dict__.update(fn.__dict__)
    return copy


def _number_of(value: object) -> str:
    number = _numbers.setdefault(value, secrets.token_hex(16))
    _known[number] = value
    return number


def _names_in_class_bodies(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if not constant.co_flags & inspect.CO_OPTIMIZED:  # no function
                instructions = dis.get_instructions(constant)
                yield from (one.argval for one in instructions if one.opname in _READ_BY_CLASS_BODIES)
            yield from _names_in_class_bodies(constant)


def _reduce_cell(cell: types.CellType) -> Any:
    """Made empty, and filled when the pickle knows it: it may hold the function that reads it."""
    try:
        return make_cell, (), (cell.cell_contents,), None, None, fill_cell
    except ValueError:  # not assigned yet
        return make_cell, ()


def _digest_of(value: object) -> bytes | None:
    """The digest of what `dumps` gives; None where a part of it needs another pickler, or much is to be read for it."""
    digest = _Digest()
    try:
        Pickler(digest, to_caller=True).dump(value)  # type: ignore[arg-type]
    except Exception:
        return None
    return digest.hash.digest()


class _Digest:
    """A file that keeps the hash of what is written, if that is not much."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b()
        self.left = DIGEST_BYTES

    def write(self, data: Any) -> None:
        self.left -= memoryview(data).nbytes
        if self.left < 0:
            raise ValueError("too many bytes")
        self.hash.update(data)


def _reduce_variable(variable: typing.ParamSpec) -> Any:
    if _has_name(variable):
        return variable.__name__
    return make_variable, (_number_of(variable), type(variable), variable.__name__)


def _reduce_class(cls: type) -> Any:
    _can_be_annotated(cls)  # Python 3.14 keeps in the class what it has read
    entries = {key: entry for key, entry in vars(cls).items() if not isinstance(entry, _MADE_BY_TYPE)}
    entries.pop("__annotate_func__", None)  # Python 3.14: it holds the namespace of the class
    fixed = {key: entry for key, entry in entries.items() if type(entry) in _PLAIN}
    fixed |= {key: entries.pop(key) for key in ("__module__", "__slots__", "__orig_bases__") if key in entries}
    registered = []
    if entries.pop("_abc_impl", None) is not None:
        registered = [found for one in _get_dump(cls)[0] if (found := one()) is not None]
    if isinstance(cls, enum.EnumMeta):  # combinations of flags, which are made when they are asked for
        pairs = entries["_value2member_map_"].items()
        entries["_value2member_map_"] = {value: one for value, one in pairs if one._name_ in cls.__members__}
    # Metaclasses in Python are not called; those of extension modules (torch.Tensor's) set what they need.
    makers = (one for one in inspect.getmro(type(cls)) if not isinstance(one.__new__, types.FunctionType))
    maker = next(one for one in makers if not isinstance(getattr(one, "__init__"), types.FunctionType))  # noqa: B009
    is_named = vars(sys.modules["__main__"]).get(cls.__qualname__) is cls
    made = (_number_of(cls), maker, type(cls), cls.__name__, cls.__qualname__, cls.__bases__, fixed, is_named)
    return make_class, made, (entries, registered), None, None, fill_class


def _reduce_member(member: Any) -> Any:
    kind = type(member)._member_type_
    if hasattr(kind, "__getnewargs__"):
        content = kind.__getnewargs__(member)
    else:
        content = () if kind.__reduce__ is object.__reduce__ else kind.__reduce__(member)[1]
    state = {key: value for key, value in vars(member).items() if key != "__objclass__"}
    return make_member, (type(member), member._name_, content), state, None, None, fill_member


# -- in the receiver ----------------------------------------------------------------------------------


def make_cell() -> types.CellType:
    """An empty cell."""
    return types.CellType()


def fill_cell(cell: types.CellType, content: tuple[Any]) -> None:
    """Give a cell its content."""
    (cell.cell_contents,) = content


def make_reference(target: object = None) -> weakref.ref[Any]:
    """A weak reference, to nothing where there is no target."""
    return weakref.ref(set() if target is None else target)


_caches: dict[tuple[str, str], tuple[bytes, Any]] = {}
"""The cached functions that were received, by module and name, each with its digest."""


def make_cache(fn: Callable[..., Any], parameters: dict[str, Any], digest: bytes | None) -> Any:
    """A function with an empty cache, or the one of that digest that is here."""
    name = (fn.__module__, fn.__qualname__)
    known, made = _caches.get(name, (None, None))
    if digest is None or digest != known:
        made = functools.lru_cache(**parameters)(fn)
        if digest is not None:
            _caches[name] = digest, made
    return made


def make_variable(number: str, kind: Callable[[str], Any], name: str) -> Any:
    """A variable of types, once."""
    variable = _known.get(number)
    if variable is None:
        variable = _known[number] = kind(name)
        _numbers[variable] = number
    return variable


def find_class(number: str, name: str) -> type:
    """The class that this process has sent.

    Raises:
        pickle.UnpicklingError: it is gone.
    """
    try:
        return _known[number]  # type: ignore[no-any-return]
    except KeyError:
        raise pickle.UnpicklingError(f"the class {name} was deleted before its instances came back") from None


def make_class(
    number: str,
    maker: Any,
    metaclass: type,
    name: str,
    qualname: str,
    bases: tuple[type, ...],
    fixed: dict[str, Any],
    is_named: bool,
) -> type:
    """A class with plain entries, or the one of that number that is here.

    Args:
        number: of the class.
        maker: the class whose `__new__` and `__init__` make it.
        metaclass: its own.
        name: its name.
        qualname: its name with those of the functions and classes around it.
        bases: what it derives from.
        fixed: its entries from the start.
        is_named: `__main__` of the sender has it by its name; so does `__main__` here, for pickles that the function of
            the user makes.
    """
    known: type | None = _known.get(number)
    if known is None:
        above = dict.fromkeys(one for base in bases for one in base.__mro__)
        hooks = [(one, vars(one)[_HOOK]) for one in above if one in _numbers and _HOOK in vars(one)]
        try:
            for one, _ in hooks:
                type.__delattr__(one, _HOOK)
            body = {**fixed, "__qualname__": qualname}
            known = maker.__new__(metaclass, name, bases, body)
            maker.__init__(known, name, bases, body)
        finally:
            for one, hook in hooks:
                type.__setattr__(one, _HOOK, hook)
        if isinstance(known, abc.ABCMeta):
            _abc_init(known)
        _known[number] = known
        _numbers[known] = number
        _received.add(known)
    if is_named and known in _received:
        setattr(sys.modules["__main__"], qualname, known)
    return known


def fill_class(cls: type, state: tuple[dict[str, Any], list[type]]) -> None:
    """Give a class that was received its entries, and an abstract one the classes that are registered with it."""
    entries, registered = state
    if cls in _received:
        for name, entry in entries.items():
            type.__setattr__(cls, name, entry)
        for one in registered:
            abc.ABCMeta.register(cls, one)  # type: ignore[arg-type]


def make_member(cls: type[enum.Enum], name: str, content: tuple[Any, ...]) -> Any:
    """A member of an enumeration that knows nothing yet, or the one that the enumeration has."""
    known = vars(cls).get("_member_map_", {}).get(name)
    if known is not None:
        return known
    kind = next(one for one in cls.__mro__ if isinstance(vars(one).get("__new__"), types.BuiltinFunctionType))
    return kind.__new__(cls, *content)


def fill_member(member: enum.Enum, state: dict[str, Any]) -> None:
    """Give a member its value, and what it has besides."""
    if "_value_" not in vars(member):
        vars(member).update(state, __objclass__=type(member))
