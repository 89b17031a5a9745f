"""Lazy stacks of tensorclasses: a stack that has the fields and methods of the class of its members.

The stack is a lazy stack in its storage and an instance of the tensorclass for whoever asks with ``isinstance``:
reading a field stacks the entries of the members, writing one cuts the value.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from tensordict_lite.lazystack_class import LazyStackedTensorDict

__all__ = ["typed_stack_class"]

_CLASSES: WeakKeyDictionary[type, type[LazyStackedTensorDict]] = WeakKeyDictionary()
_MISSING = object()


def typed_stack_class(kind: Any) -> type[LazyStackedTensorDict]:
    """The class of the lazy stacks of a tensorclass, made once."""
    found = _CLASSES.get(kind)
    if found is None:
        found = _CLASSES[kind] = _make_class(kind)
    return found


def _make_class(kind: Any) -> type[LazyStackedTensorDict]:
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__doc__": f"A lazy stack of {kind.__qualname__} instances.",
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__class__": property(lambda self: kind),
        "__reduce_ex__": _reduce,
        "_member_class": kind,
        "_stack_priority": LazyStackedTensorDict._stack_priority + 0.5,
        "get": _get,
        "_class_for": classmethod(_class_for),
        "fields": classmethod(lambda cls: kind.fields()),
    }
    for base in reversed(kind.__mro__):
        if hasattr(base, "_field_specs") and base.__module__ != "tensordict_lite.tensorclass":
            own = {name: value for name, value in vars(base).items() if not name.startswith("_")}
            namespace.update({name: value for name, value in own.items() if name not in kind._field_specs})
    for name in kind._field_specs:
        namespace[name] = _field(name)
    return type(kind.__name__, (LazyStackedTensorDict,), namespace)


def _field(name: str) -> property:
    def read(self: Any) -> Any:
        return self.get(name)

    def write(self: Any, value: Any) -> None:
        self.set(name, value)

    return property(read, write, doc=f"The field ``{name}`` of the members, stacked.")


def _class_for(cls: Any, members: Any) -> Any:
    """Members that an operation turned into another kind (TensorDicts, say) make an ordinary stack."""
    kind = cls._member_class
    return cls if all(getattr(m, "_member_class", type(m)) is kind for m in members) else LazyStackedTensorDict


def _get(self: Any, key: Any, default: Any = _MISSING, **how: Any) -> Any:
    """Value of a field, stacked; see :meth:`LazyStackedTensorDict.get`."""
    extra = () if default is _MISSING else (default,)
    value = LazyStackedTensorDict.get(self, key, *extra, **how)
    return value if isinstance(value, (Tensor, list)) or not hasattr(value, "_as_value") else value._as_value()


def _reduce(self: Any, protocol: Any) -> Any:
    _, _, state = LazyStackedTensorDict.__reduce_ex__(self, protocol)
    return _blank_typed, (self._member_class,), state


def _blank_typed(kind: type) -> Any:
    return object.__new__(typed_stack_class(kind))
