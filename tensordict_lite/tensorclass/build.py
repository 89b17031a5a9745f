"""Conversion of a class body to a tensorclass: fields, flags, constructor, registry.

:class:`TensorClassMeta` runs in the class statement, so that ``class Foo(TensorClass)`` needs no decorator; the
decorator applies the same function to an existing class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import Any, dataclass_transform
from weakref import WeakValueDictionary

import torch

from tensordict_lite.base import TensorCollection
from tensordict_lite.kernel import DeviceLike, Kernel, as_size, check_names, normalise_device
from tensordict_lite.settings import MISSING
from tensordict_lite.tensorclass.fields import (
    FLAGS,
    FieldSpec,
    Flags,
    compile_init,
    converter_for,
    field_property,
    field_specs,
    init_var_names,
    own_annotations,
    unknown_field_error,
)

_STORAGE = frozenset((*Kernel.__slots__, "_stack_dim"))
# Not __module__: pickling by value uses it to find the globals of a function.
_WRAPPED = ("__name__", "__qualname__", "__doc__", "__annotations__")
_KNOWN: WeakValueDictionary[str, type] = WeakValueDictionary()


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
class TensorClassMeta(ABCMeta):
    """Converts the body of ``class Foo(TensorClass)`` to fields, a constructor and properties."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        flags = {key: kwargs.pop(key) for key in FLAGS if key in kwargs}
        extra = {key: kwargs.pop(key) for key in ("kw_only", "cast_filter") if key in kwargs}
        # Without an instance dictionary an unknown attribute raises AttributeError by itself, and slots are written at
        # full speed, because no __setattr__ is needed. A cached_property keeps its value in the dictionary.
        if not any(isinstance(value, functools.cached_property) for value in namespace.values()):
            namespace.setdefault("__slots__", ())
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        if any(isinstance(base, TensorClassMeta) for base in bases) and not namespace.get("_is_flag_carrier"):
            build(cls, flags, **extra)
        return cls

    # ABCMeta's own checks serve virtual subclasses, which are not needed here, and cost a call each.
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


def build(
    cls: Any,
    flags: Mapping[str, bool],
    kw_only: bool = False,
    cast_filter: Callable[..., bool] | None = None,
    namespaces: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add fields to a class: dataclass metadata, specifications, constructor, properties."""
    _check_private_names(cls)
    name = cls.__qualname__
    copied = "_field_specs" in cls.__dict__ and _KNOWN.get(_public_name(cls)) is not cls
    base_flags = next(base._flags for base in cls.__mro__ if "_flags" in base.__dict__)
    cls._flags = options = base_flags.updated(flags, name)
    own = own_annotations(cls)
    _restore_defaults(cls, own)
    documented = cls.__dict__.get("__doc__") is not None
    custom_init = cls.__dict__.get("__init__")
    custom_init = getattr(custom_init, "_tensorclass_wraps", custom_init)
    _check_frozen(cls, options)
    _guard_setattr(cls)
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    for field in own.keys() & cls.__dataclass_fields__:
        cls.__dataclass_fields__[field].type = own[field]
    fields = [field.name for field in dataclasses.fields(cls)]
    if not options.shadow:
        _check_reserved(cls, own)
    specs = field_specs(cls, fields, [*namespaces, _caller_locals(own)])
    if options.tensor_only:
        _check_tensor_only(name, specs)
    cls._field_specs = specs
    cls._convert_value = staticmethod(converter_for(options))
    for spec in specs.values():
        setattr(cls, spec.name, field_property(name, spec, options, f"Field of {cls.__name__}: {spec.hint}."))
    if custom_init is None or hasattr(custom_init, "_tensorclass_generated"):
        cls.__init__ = compile_init(cls, specs, options)
    else:
        cls.__init__ = _wrap_init(cls, custom_init)
    if not documented:
        cls.__doc__ = f"{cls.__name__}{inspect.signature(cls.__init__)}".replace("(self, ", "(").replace("(self)", "()")
    if cast_filter is not None:
        _install_cast_filter(cls, cast_filter)
    _install_rebuild(cls, options)
    _finish(cls, options)
    if copied:  # unpickled by value: has the name of a class that this program may define itself
        _KNOWN.setdefault(_public_name(cls), cls)
    else:
        _KNOWN[_public_name(cls)] = cls


def _restore_defaults(cls: Any, own: Mapping[str, Any]) -> None:
    """Put defaults where ``dataclasses`` expects them, instead of the properties of inherited fields."""
    raw = cls.__dict__.get("_raw_defaults", {})
    for field in own:
        current = cls.__dict__.get(field, MISSING)
        if current is MISSING or (isinstance(current, property) and field in raw):
            value = raw.get(field, MISSING)
            if value is MISSING:
                inherited = _inherited_field(cls, field)
                value = inherited.default if inherited is not None else dataclasses.MISSING
            if value is not dataclasses.MISSING:
                setattr(cls, field, value)
            elif current is not MISSING or hasattr(cls, field):
                setattr(cls, field, dataclasses.field())
    cls._raw_defaults = {field: cls.__dict__.get(field, dataclasses.MISSING) for field in own}


def _inherited_field(cls: Any, name: str) -> Any:
    for base in cls.__mro__[1:]:
        found = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if found is not None:
            return found
    return None


def _guard_setattr(cls: Any) -> None:
    """Hide the storage of instances from a user-defined ``__setattr__``, which sees only fields and attributes."""
    own = cls.__dict__.get("__setattr__")
    if own is None or hasattr(own, "_guards"):
        return

    @functools.wraps(own)
    def guarded(self: Any, name: str, value: object) -> None:
        if name in _STORAGE:
            object.__setattr__(self, name, value)
        else:
            own(self, name, value)

    guarded._guards = own  # type: ignore[attr-defined]
    cls.__setattr__ = guarded


def _check_frozen(cls: Any, options: Flags) -> None:
    """Frozen and other classes cannot be mixed in an inheritance chain, as in dataclasses."""
    for base in cls.__mro__[1:]:
        if base.__dict__.get("_field_specs") and base._flags.frozen is not options.frozen:
            kinds = ("frozen", "non-frozen") if options.frozen else ("non-frozen", "frozen")
            raise TypeError(
                f"{cls.__qualname__}: cannot inherit {kinds[0]} dataclass from a {kinds[1]} one ({base.__qualname__}). "
                "Set frozen on both or on neither."
            )


def _root(cls: Any) -> Any:
    """``TensorClass`` itself, whose members are reserved names."""
    return next(base for base in reversed(cls.__mro__) if isinstance(base, TensorClassMeta))


def _check_reserved(cls: Any, own: Mapping[str, Any]) -> None:
    root = _root(cls)
    for field in own:
        if hasattr(root, field) and field not in _FREE_NAMES:
            raise AttributeError(
                f"{cls.__qualname__}: Attribute name {field} can't be used with @tensorclass, as tensorclasses have a "
                "member of that name. Rename it, or pass shadow=True to hide the member."
            )


# Members that a field may hide anyway: `data` is a common name of a single field.
_FREE_NAMES = frozenset(("data", "fields", "checksum"))


def _check_private_names(cls: Any) -> None:
    """Reject methods with names of the storage, which start with one underscore: hiding one would break it."""
    root = _root(cls)
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return  # a class of this package
    built = "_field_specs" in cls.__dict__  # by the class statement, and again by a decorator
    names = {*cls.__dict__, *own_annotations(cls)} - (_BOOKKEEPING if built else _FROM_PYTHON)
    for name in sorted(names):
        if name.startswith("_") and not name.startswith("__") and hasattr(root, name):
            raise AttributeError(
                f"{cls.__qualname__}: the name {name} is used by the storage of tensorclasses and cannot be redefined. "
                "Rename the field or method."
            )


# Methods that create an empty instance first and fill it afterwards.
_SHELL_FILLERS = ("_apply_level", "_apply_plainly")

_FROM_PYTHON = frozenset(("_abc_impl", "_is_protocol"))
_BOOKKEEPING = frozenset(
    ("_flags", "_field_specs", "_raw_defaults", "_convert_value", "_cast_filter", "_abc_impl", "_is_flag_carrier")
    + _SHELL_FILLERS
    + ("_rebuild", "_trusted", "_is_protocol", "_typed_stack", "_member_class")
)


def _check_tensor_only(name: str, specs: Mapping[str, FieldSpec]) -> None:
    for spec in specs.values():
        if not spec.tensors:
            raise TypeError(
                f"{name}.{spec.name}: tensor_only requires types to be Tensor, Tensor-subtypes, tensor collections or "
                f"None, got the annotation {spec.hint!r}"
            )


def _caller_locals(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Local names at the class statement, for string annotations of classes defined in a function."""
    if not any(isinstance(hint, str) for hint in own.values()):
        return {}
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "abc", "types", "typing"):
        frame = frame.f_back  # type: ignore[assignment]
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _wrap_init(cls: Any, init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a user-defined constructor: set the slots before it runs, and check the fields after it."""
    parameters = inspect.signature(init).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    @functools.wraps(init, assigned=_WRAPPED)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {key: kwargs[key] for key in ("batch_size", "device", "names") if key in kwargs}
        fill_slots(self, **given)
        for key in given:
            if key not in parameters and not takes_any:
                del kwargs[key]
        for field in dataclasses.fields(self):
            if field.default is not dataclasses.MISSING and field.default is not None:
                self._source[field.name] = self._fit(field.default, field.name)
        init(self, *args, **kwargs)
        for field in dataclasses.fields(self):
            optional = "None" in str(field.type) or "Any" in str(field.type) or "Optional" in str(field.type)
            if field.name not in self._source and field.default is dataclasses.MISSING and not optional:
                raise TypeError(f"{cls.__qualname__}.__init__() did not set the required field {field.name!r}")
        if cls._flags.frozen:
            self._propagate_lock(None)

    __init__._tensorclass_wraps = init  # type: ignore[attr-defined]
    return __init__


def fill_slots(new: Any, batch_size: Any = None, device: DeviceLike | None = None, names: Any = None) -> None:
    size = torch.Size(()) if batch_size is None else as_size(batch_size)
    new._source = {}
    new._batch_size = size
    new._device = None if device is None else normalise_device(device)
    new._names = None if names is None else check_names(names, len(size))
    new._types = None
    new._lock = None


def _install_rebuild(cls: Any, options: Flags) -> None:
    """Make ``__post_init__`` run on the results of operations, for classes that define and want it."""
    if getattr(cls, "__post_init__", None) is None:
        return
    defaults = list(init_var_names(cls).values())
    if options.skip_post_init_on_rebuild or dataclasses.MISSING in defaults:
        cls._rebuild = TensorCollection._rebuild
        cls._trusted = classmethod(TensorCollection._trusted.__func__)  # type: ignore[attr-defined]
        for name in _SHELL_FILLERS:
            setattr(cls, name, getattr(TensorCollection, name))
        return

    def _rebuild(self: Any, source: Any, batch_size: torch.Size, names: Any = None) -> Any:
        new = TensorCollection._rebuild(self, source, batch_size, names)
        if source:  # instances of empty() are filled later
            new.__post_init__(*defaults)
        return new

    def _trusted(
        kind: Any, source: Any, batch_size: torch.Size, device: DeviceLike | None = None, names: Any = None
    ) -> Any:
        new = TensorCollection._trusted.__func__(kind, source, batch_size, device, names)  # type: ignore[attr-defined]
        if source:
            new.__post_init__(*defaults)
        return new

    cls._rebuild = _rebuild
    cls._trusted = classmethod(_trusted)
    for name in _SHELL_FILLERS:
        setattr(cls, name, _with_post_init(getattr(TensorCollection, name), defaults))


def _with_post_init(method: Callable[..., Any], defaults: list[Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        new = method(self, *args)
        if new is not None:
            new.__post_init__(*defaults)
        return new

    return call


def _install_cast_filter(cls: Any, cast_filter: Callable[..., bool]) -> None:
    """Make a filter the default of :meth:`to` and of the named casts."""
    cls._cast_filter = staticmethod(cast_filter)
    for name in ("to", "float", "double", "half", "bfloat16", "int", "type"):
        method = getattr(_root(cls), name)

        def cast(self: Any, *args: Any, _method: Any = method, **kwargs: Any) -> Any:
            kwargs.setdefault("cast_filter", cast_filter)
            return _method(self, *args, **kwargs)

        setattr(cls, name, functools.wraps(method, assigned=_WRAPPED)(cast))


def _finish(cls: Any, options: Flags) -> None:
    """Set what depends on flags or bases: hash and fixed metadata of frozen classes, the attribute guard."""
    if options.frozen:
        cls.__hash__ = object.__hash__
        for name in ("batch_size", "names"):
            inherited = getattr(cls, name)
            if name not in cls._field_specs and isinstance(inherited, property):
                setattr(
                    cls, name, property(inherited.fget, _frozen_setter(cls.__qualname__, name), None, inherited.__doc__)
                )
    if any("__dict__" in base.__dict__ for base in cls.__mro__ if base is not object):
        cls.__setattr__ = _guarded_setattr


def _frozen_setter(owner: str, name: str) -> Callable[[Any, Any], None]:
    def refuse(self: Any, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r} of the frozen class {owner}")

    return refuse


def _guarded_setattr(self: Any, name: str, value: object) -> None:
    """Unknown attributes raise, also if a mixin adds an instance dictionary."""
    if not hasattr(type(self), name):
        raise unknown_field_error(type(self), name)
    object.__setattr__(self, name, value)


def _public_name(cls: type) -> str:
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


def registered_class(name: str) -> Any:
    """The tensorclass of this module and qualified name if the program has defined it, else ``None``.

    Saved data names its class. It is looked up here and never imported, so that data cannot run code.

    Example:
        >>> from tensordict_lite import TensorClass
        >>> class Point(TensorClass):
        ...     xy: torch.Tensor
        >>> registered_class(f"{Point.__module__}.{Point.__qualname__}") is Point
        True
    """
    return _KNOWN.get(name.replace("__mp_main__.", "__main__.", 1))
