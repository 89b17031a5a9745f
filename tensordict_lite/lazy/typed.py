"""Lazy stacks of tensorclass instances, used like one instance.

``lazy_stack([foo, foo])`` is an instance of ``Foo`` and of :class:`LazyStackedTensorDict`: fields and methods come from
``Foo``, everything else from the lazy stack. Its class is created once per tensorclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import blank
from tensordict_lite.keys import NestedKey, require_path
from tensordict_lite.lazy.stack import LazyStackedTensorDict
from tensordict_lite.registry import register
from tensordict_lite.settings import MISSING
from tensordict_lite.tensorclass.build import TensorClassMeta
from tensordict_lite.tensorclass.fields import METADATA, is_key, key_error, unknown_field_error

_MAKERS = tuple(
    f"from_{source}"
    for source in ("any", "dataclass", "dict", "list", "namedtuple", "pytree", "struct_array", "tensordict", "tuple")
) + ("fromkeys",)


class StackOfInstances(LazyStackedTensorDict):
    """A lazy stack whose members are instances of ``_member_class``, as it is itself."""

    __slots__ = ()
    _blank: Any  # function of the class of the members: a stack without state, to be unpickled

    @classmethod
    def _class_for(cls, members: Any) -> Any:
        """An operation that turned the members into another kind (such as TensorDicts) gives an ordinary stack."""
        kind = cls._member_class
        return cls if all(getattr(m, "_member_class", type(m)) is kind for m in members) else LazyStackedTensorDict

    def _rebuild(self, source: Any, batch_size: torch.Size, names: list[str | None] | None = None) -> Any:
        if type(source) is dict:
            return self._member_class._trusted(source, batch_size, self._device, names)
        return super()._rebuild(source, batch_size, names)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if reduced[0] is not blank:
            return reduced  # that of a consolidated stack
        return self._blank, (self._member_class,), reduced[2]


def _blank_lazy(cls: Any) -> Any:
    return object.__new__(typed_stack_class(cls))


class TypedLazyStack(StackOfInstances):
    """Access by field to a lazy stack of tensorclass instances."""

    __slots__ = ()
    _field_specs: Any = {}
    _stack_priority = LazyStackedTensorDict._stack_priority + 0.5
    _blank = staticmethod(_blank_lazy)

    def get(self, key: Any, default: Any = MISSING, **kwargs: Any) -> Any:
        """The value of the field attribute; keywords are those of :meth:`LazyStackedTensorDict.get`."""
        if type(key) is str and key in METADATA and key not in self._field_specs:
            return getattr(self, key)
        absent = None if default is MISSING or key in self._field_specs else default
        value = super().get(key, absent, **kwargs)
        if isinstance(value, TensorCollection) and value._is_non_tensor:
            return value._as_value()
        return value

    def set(self, key: NestedKey, value: object, *args: Any, **kwargs: Any) -> Self:  # type: ignore[override]  # names of TensorClass.set
        """Write a field of every member, see :meth:`TensorClass.set`."""
        path = (key,) if type(key) is str else require_path(key)
        if path[0] not in self._field_specs:
            raise unknown_field_error(type(self), path[0])
        if value is None:
            self._delete_field(path[0])
            return self
        flags = self._member_class._flags
        if len(path) == 1 and isinstance(value, Mapping) and not isinstance(value, TensorCollection):
            if not (flags.autocast or flags.tensor_only):
                value = self._wrap(value)  # a field keeps a dict as an object
        return super().set(key, value, *args, **kwargs)

    def _set_field(self, name: str, value: object) -> None:
        self.set(name, value)

    def _delete_field(self, name: str) -> None:
        self._require_unlocked()
        for member in self._source:
            member._source.pop(name, None)

    def __getitem__(self, index: Any) -> Any:
        if is_key(index):
            raise key_error(type(self), index, "read", f"get({index!r})")
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: object) -> None:
        if is_key(index):
            raise key_error(type(self), index, "write", f"set({index!r}, value)")
        super().__setitem__(index, value)

    def _check_member(self, value: Any) -> Any:
        if not isinstance(value, self._member_class):
            raise TypeError(
                f"a member of a lazy stack of {type(self).__name__} is a {type(self).__name__}, got a "
                f"{type(value).__name__}"
            )
        return super()._check_member(value)

    def from_dict_instance(self, input_dict: Any, *others: Any, **kwargs: Any) -> Any:
        if not self._source:
            return self._member_class.from_dict(input_dict, *others, **kwargs)
        return self._source[0].from_dict_instance(input_dict, *others, **kwargs)

    def _none_fields(self) -> list[str]:
        present = set(self._key_list())
        return [name for name in self._field_specs if name not in present]


def typed_stack_class(cls: Any) -> Any:
    """The class of lazy stacks of instances of ``cls``."""
    made = cls.__dict__.get("_typed_stack")
    if made is not None:
        return made
    if issubclass(cls, TypedLazyStack):
        return cls
    namespace: dict[str, Any] = {"_member_class": cls, "_field_specs": cls._field_specs, "_is_flag_carrier": True}
    namespace.update(_own_methods(cls))
    namespace.update({name: _lazy_property(name) for name in cls._field_specs})
    namespace.update({name: _maker(name) for name in _MAKERS})
    namespace.update(__module__=cls.__module__, __qualname__=cls.__qualname__, __doc__=cls.__doc__)
    cls._typed_stack = made = TensorClassMeta(cls.__name__, (TypedLazyStack, cls), namespace)
    return made


def _own_methods(cls: Any) -> dict[str, Any]:
    """Methods that the class itself defines and that take precedence over the lazy stack."""
    out: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if isinstance(base, TensorClassMeta) and base.__dict__.get("_field_specs"):
            for name, value in base.__dict__.items():
                if not name.startswith("_") and name not in cls._field_specs and hasattr(LazyStackedTensorDict, name):
                    out[name] = value
    return out


def _maker(name: str) -> classmethod[Any, Any, Any]:
    """The class method of that name of the members' class, which makes an instance, not a stack."""

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(cls._member_class, name)(*args, **kwargs)

    make.__name__ = name
    return classmethod(make)


def _lazy_property(name: str) -> property:
    def get(self: Any) -> Any:
        try:
            value = self._get_str(name)
        except KeyError:
            return None
        return value if isinstance(value, Tensor) else value._as_value()

    def set(self: Any, value: object) -> None:
        self.set(name, value)

    def delete(self: Any) -> None:
        self._delete_field(name)

    get.__name__ = name
    return property(get, set, delete)


register(typed_stack_class=typed_stack_class)
