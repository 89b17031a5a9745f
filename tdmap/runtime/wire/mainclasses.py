"""Classes of the user's script as bytes, for workers that never import it.

dill makes a class by calling its metaclass with all that is in it. That is wrong for some: an enumeration would be
built from members instead of values; `__init_subclass__` would run again, although what it noted comes along; and a
base that knows its subclasses is a circle. Such a class is made first, empty and without any hook, and filled
afterwards, when the pickle knows it already. Variables of types are made by their definition.
"""

from __future__ import annotations

import abc
import copyreg
import enum
import hashlib
import io
import pickle
import secrets
import sys
import types
import typing
import weakref
from _abc import _abc_init  # type: ignore[import-not-found,unused-ignore]  # what ABCMeta itself calls
from collections.abc import Callable, Iterator
from typing import Any

import dill

HOOK = "__init_subclass__"

_MADE_BY_TYPE = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Entries of a class that are there because of its slots, or of `__dict__` and `__weakref__`."""

_VARIABLES = (typing.TypeVar, typing.ParamSpec, getattr(typing, "TypeVarTuple", typing.TypeVar))

_tokens: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""In the driver: names of classes, the same for each pickle."""

_made: dict[str, Any] = {}
"""In a worker: what was made, by those names."""

_variables: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


_begun: list[type] = []
"""In the driver: classes that are being packed, one within another."""


def reduce_main_class(cls: type) -> Any:
    """How to pack a class of `__main__`, with those classes of `__main__` that it refers to."""
    # Noted in the class when its first instance is pickled: it would be another class from then on.
    copyreg._slotnames(cls)  # type: ignore[attr-defined]
    buffer = io.BytesIO()
    _begun.append(cls)
    try:
        _ClassPickler(buffer).dump(cls)
    finally:
        _begun.pop()
    data = buffer.getvalue()
    return rebuild_main_class, (cls.__qualname__, hashlib.sha1(data).hexdigest(), data)


def reduce_main_member(member: enum.Enum) -> Any:
    """How to pack a member of an enumeration of `__main__`: by its name.

    By its value, as members say themselves, it would be looked for among values that may be equal to none in another
    process. A combination of flags has no name, and its value is a number.
    """
    cls = type(member)
    if cls.__module__ != "__main__" or member._name_ not in cls.__members__:
        return NotImplemented
    return getattr, (cls, member._name_)


def publish(name: str, value: Any) -> None:
    """Put a class into our `__main__`, so that its instances pickle back by name."""
    if "." not in name:
        setattr(sys.modules["__main__"], name, value)


class _ClassPickler(dill.Pickler):  # type: ignore[misc]
    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, byref=False, recurse=True)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            name_bases(value)
            if _goes_empty(value):
                return _reduce_class(value)
            # A base is the same class within a subclass as by itself; in a circle, dill has to see to it.
            is_base = _is_mains(value) and value not in _begun and value in _begun[-1].__mro__
            return reduce_main_class(value) if is_base else NotImplemented
        if isinstance(value, enum.Enum):
            return _reduce_member(value) if type(value).__module__ == "__main__" else NotImplemented
        if isinstance(value, _VARIABLES) and value.__module__ == "__main__":
            names = ("bound", "covariant", "contravariant")
            how = {name: getattr(value, f"__{name}__") for name in names if hasattr(value, f"__{name}__")}
            token = _variables.setdefault(value, secrets.token_hex(8))
            return make_variable, (token, type(value), value.__name__, getattr(value, "__constraints__", ()), how)
        return NotImplemented


def name_bases(cls: type) -> None:
    """Have a class that goes by value say what it derives from, as far as it inherits the answer of a generic base.

    dill would rebuild a subclass of `class Sum(Reducer[Any])` as one of `Reducer[Any]`.
    """
    for one in cls.__mro__:
        by_value = one.__module__ == "__main__" or "<locals>" in one.__qualname__
        if by_value and "__orig_bases__" not in vars(one) and hasattr(one, "__orig_bases__"):
            one.__orig_bases__ = one.__bases__


def _goes_empty(cls: type) -> bool:
    if cls.__module__ != "__main__":
        return False
    return isinstance(cls, enum.EnumMeta) or any(HOOK in vars(one) for one in cls.__mro__ if _is_mains(one))


def _is_mains(cls: type) -> bool:
    return cls.__module__ == "__main__"


def _reduce_class(cls: type) -> Any:
    token = _tokens.setdefault(cls, secrets.token_hex(8))
    entries = {key: entry for key, entry in vars(cls).items() if not isinstance(entry, _MADE_BY_TYPE)}
    fixed: dict[str, Any] = {key: entries.pop(key) for key in ("__module__", "__slots__") if key in entries}
    fixed["__qualname__"] = cls.__qualname__
    if isinstance(cls, abc.ABCMeta):
        entries.pop("_abc_impl", None)
        entries.pop("__abstractmethods__", None)
    made = (token, type(cls), cls.__name__, cls.__bases__, fixed)
    return make_class, made, entries, None, None, fill_class


def _reduce_member(member: enum.Enum) -> Any:
    kind = type(member)._member_type_  # type: ignore[attr-defined]
    arguments = getattr(kind, "__getnewargs__", None)
    content = () if arguments is None else arguments(member)
    state = {key: value for key, value in vars(member).items() if key != "__objclass__"}
    return make_member, (type(member), member._name_, content), (member._value_, state), None, None, fill_member


# -- in the receiver ----------------------------------------------------------------------------------

_main_classes: dict[tuple[str, str], type] = {}


def rebuild_main_class(name: str, digest: str, data: bytes) -> type:
    """A class of the driver's `__main__`, made once and put into ours, so that its instances pickle back by name."""
    known = _main_classes.get((name, digest))
    if known is None:
        known = _main_classes[name, digest] = dill.loads(data)
        publish(name, known)
    return known


def make_class(token: str, metaclass: type[type], name: str, bases: tuple[type, ...], fixed: dict[str, Any]) -> type:
    """An empty class, or the one that was made before."""
    known: type | None = _made.get(token)
    if known is None:
        hooks = list(_hooks(bases))
        try:
            for base, _ in hooks:
                type.__delattr__(base, HOOK)
            known = type.__new__(metaclass, name, bases, dict(fixed))
        finally:
            for base, hook in hooks:
                type.__setattr__(base, HOOK, hook)
        _made[token] = known
        publish(fixed["__qualname__"], known)
    return known


def _hooks(bases: tuple[type, ...]) -> Iterator[tuple[type, Any]]:
    """The hooks of classes of `__main__` that would be called for a new subclass."""
    for one in dict.fromkeys(one for base in bases for one in base.__mro__):
        if _is_mains(one) and HOOK in vars(one):
            yield one, vars(one)[HOOK]


def fill_class(cls: type, entries: dict[str, Any]) -> None:
    """Give a class what is in it; no hook of a metaclass is asked."""
    for name, entry in entries.items():
        type.__setattr__(cls, name, entry)
    if isinstance(cls, abc.ABCMeta):
        _abc_init(cls)


def make_member(cls: Any, name: str | None, content: tuple[Any, ...]) -> Any:
    """A member of an enumeration that knows nothing yet, or the one that the enumeration has."""
    known = vars(cls).get("_member_map_", {}).get(name)
    if known is not None:
        return known
    kind: Callable[..., Any] = _kind_of(cls).__new__
    return kind(cls, *content)


def _kind_of(cls: type) -> type:
    """What the members of an enumeration, which may be empty yet, are besides."""
    for one in cls.__mro__[1:]:
        if one.__module__ == "builtins":
            return one
    return object


def fill_member(member: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Give a member its value and what it has besides."""
    if "_value_" not in vars(member):
        value, attributes = state
        vars(member).update(attributes, _value_=value, __objclass__=type(member))


def make_variable(
    token: str, kind: Callable[..., Any], name: str, constraints: tuple[Any, ...], how: dict[str, Any]
) -> Any:
    """A variable of types, of their parameters or of several of them, once."""
    known = _made.get(token)
    if known is None:
        known = _made[token] = kind(name, *constraints, **how)
        known.__module__ = "__main__"
    return known
