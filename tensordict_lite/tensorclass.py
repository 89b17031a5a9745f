"""Typed collections: ``class Foo(TensorClass)`` and ``@tensorclass``.

A tensorclass *is* the dense storage, with its fields as properties over the same ``_source`` dictionary:

.. code-block:: text

    foo.image ──property──► foo._source["image"] ◄──["image"]── td (a TensorDict)

So every operation is the inherited one, costs what it costs on a TensorDict and gives the same type back.
A field that holds ``None`` is a field without an entry.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from typing_extensions import dataclass_transform

from tensordict_lite import combine as _combine  # noqa: F401 - sets the stack priorities
from tensordict_lite.base import TensorCollection, as_size, check_names
from tensordict_lite.dense import DenseCollection
from tensordict_lite.keys import require_path
from tensordict_lite.tensorclass_fields import (
    FLAGS,
    FieldSpec,
    Flags,
    compile_init,
    converter_for,
    field_property,
    field_specs,
    init_var_names,
    unknown_field_error,
)
from tensordict_lite.tensordict import TensorDict, normalise_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    class BatchSizeField:
        def __get__(self, instance: Any, owner: Any) -> torch.Size: ...
        def __set__(self, instance: Any, value: Sequence[int] | torch.Size | int | None) -> None: ...

    class DeviceField:
        def __get__(self, instance: Any, owner: Any) -> torch.device | None: ...
        def __set__(self, instance: Any, value: torch.device | str | int | None) -> None: ...

    class NamesField:
        def __get__(self, instance: Any, owner: Any) -> list[str | None]: ...
        def __set__(self, instance: Any, value: Sequence[str | None] | None) -> None: ...


__all__ = ["TensorClass", "from_dataclass", "is_tensorclass", "registered_class", "tensorclass"]

T = TypeVar("T")
_MISSING = object()
_KNOWN: WeakValueDictionary[str, type] = WeakValueDictionary()


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
class TensorClassMeta(ABCMeta):
    """Turns the body of ``class Foo(TensorClass)`` into fields, a constructor and properties."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        flags = {key: kwargs.pop(key) for key in FLAGS if key in kwargs}
        extra = {key: kwargs.pop(key) for key in ("kw_only", "cast_filter") if key in kwargs}
        # Without an instance dictionary an unknown attribute is an AttributeError by itself, and the slots are
        # written at full speed, because no __setattr__ is needed to guard them.
        namespace.setdefault("__slots__", ())
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        if any(isinstance(base, TensorClassMeta) for base in bases) and not namespace.get("_is_flag_carrier"):
            build(cls, flags, **extra)
        return cls

    # ABCMeta's own checks serve virtual subclasses, which nobody needs here, and cost a call each.
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


def build(
    cls: Any,
    flags: Mapping[str, bool],
    kw_only: bool = False,
    cast_filter: Callable[..., bool] | None = None,
    namespaces: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Gives a class its fields: dataclass metadata, specifications, constructor, properties."""
    name = cls.__qualname__
    base_flags = next((base._flags for base in cls.__mro__[1:] if "_flags" in base.__dict__), Flags())
    cls._flags = options = base_flags.updated(flags, name)
    own = inspect.get_annotations(cls)
    _check_private_names(cls)
    _restore_defaults(cls, own)
    documented = cls.__dict__.get("__doc__") is not None
    custom_init = cls.__dict__.get("__init__")
    _check_frozen(cls, options)
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    if not options.shadow:
        _check_reserved(cls, own)
    specs = field_specs(cls, fields, [*namespaces, _caller_locals(own)])
    if options.tensor_only:
        _check_tensor_only(name, specs)
    cls._field_specs = specs
    cls._convert_value = staticmethod(converter_for(options))
    for spec in specs.values():
        setattr(cls, spec.name, field_property(name, spec, options))
    if custom_init is None or hasattr(custom_init, "_tensorclass_generated"):
        cls.__init__ = compile_init(cls, specs, options)
    else:
        cls.__init__ = _wrap_init(cls, custom_init)
    if not documented:
        cls.__doc__ = f"{cls.__name__}{inspect.signature(cls.__init__)}".replace("(self, ", "(").replace("(self)", "()")
    if cast_filter is not None:
        cls._cast_filter = staticmethod(cast_filter)
    _install_rebuild(cls, options)
    _finish(cls, options)
    _KNOWN[_public_name(cls)] = cls


def _restore_defaults(cls: Any, own: Mapping[str, Any]) -> None:
    """Puts defaults where ``dataclasses`` looks for them, and not the properties of a parent's field."""
    raw = cls.__dict__.get("_raw_defaults", {})
    for field in own:
        current = cls.__dict__.get(field, _MISSING)
        if current is _MISSING or (isinstance(current, property) and field in raw):
            value = raw.get(field, _MISSING)
            if value is _MISSING:
                inherited = _inherited_field(cls, field)
                value = inherited.default if inherited is not None else dataclasses.MISSING
            if value is not dataclasses.MISSING:
                setattr(cls, field, value)
            elif current is not _MISSING or hasattr(cls, field):
                setattr(cls, field, dataclasses.field())
    cls._raw_defaults = {field: cls.__dict__.get(field, dataclasses.MISSING) for field in own}


def _inherited_field(cls: Any, name: str) -> Any:
    for base in cls.__mro__[1:]:
        found = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if found is not None:
            return found
    return None


def _check_frozen(cls: Any, options: Flags) -> None:
    """Frozen and other classes do not mix along a line of inheritance, as with dataclasses."""
    for base in cls.__mro__[1:]:
        if base.__dict__.get("_field_specs") and base._flags.frozen is not options.frozen:
            kinds = ("frozen", "non-frozen") if options.frozen else ("non-frozen", "frozen")
            raise TypeError(
                f"{cls.__qualname__}: cannot inherit {kinds[0]} dataclass from a {kinds[1]} one ({base.__qualname__}). "
                "Set frozen on both or on neither."
            )


def _check_reserved(cls: Any, own: Mapping[str, Any]) -> None:
    for field in own:
        if hasattr(TensorClass, field):
            raise AttributeError(
                f"{cls.__qualname__}: the attribute name {field} can't be used for a field, as tensorclasses have a "
                "member of that name. Rename it, or pass shadow=True to hide the member."
            )


def _check_private_names(cls: Any) -> None:
    """The storage keeps its own methods under names with one underscore: hiding one would corrupt it."""
    names = {*cls.__dict__, *inspect.get_annotations(cls)} - _BOOKKEEPING
    for name in sorted(names):
        if name.startswith("_") and not name.startswith("__") and hasattr(TensorClass, name):
            raise AttributeError(
                f"{cls.__qualname__}: the name {name} is used by the storage of tensorclasses and cannot be redefined. "
                "Rename the field or method."
            )


_BOOKKEEPING = frozenset(
    ("_flags", "_field_specs", "_raw_defaults", "_convert_value", "_cast_filter", "_abc_impl", "_is_flag_carrier")
    + ("_rebuild", "_trusted", "_is_protocol", "_lazy_class")
)


def _check_tensor_only(name: str, specs: Mapping[str, FieldSpec]) -> None:
    for spec in specs.values():
        if not spec.tensors:
            raise TypeError(
                f"{name}.{spec.name}: tensor_only requires types to be Tensor, Tensor-subtypes, tensor collections or "
                f"None, got the annotation {spec.hint!r}"
            )


def _caller_locals(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Local names at the class statement, for string annotations of classes that are defined in a function."""
    if not any(isinstance(hint, str) for hint in own.values()):
        return {}
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "abc", "types", "typing"):
        frame = frame.f_back  # type: ignore[assignment]
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _wrap_init(cls: Any, init: Callable[..., None]) -> Callable[..., None]:
    """A constructor of the user's own: the slots exist before it runs, and the fields must be set after it."""
    parameters = inspect.signature(init).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {key: kwargs[key] for key in ("batch_size", "device", "names") if key in kwargs}
        _fill_slots(self, **given)
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

    return __init__


def _fill_slots(new: Any, batch_size: Any = None, device: Any = None, names: Any = None) -> None:
    size = torch.Size(()) if batch_size is None else as_size(batch_size)
    new._source = {}
    new._batch_size = size
    new._device = None if device is None else normalise_device(device)
    new._names = None if names is None else check_names(names, len(size))
    new._lock = None


def _install_rebuild(cls: Any, options: Flags) -> None:
    """Lets ``__post_init__`` run on the results of operations, for the classes that have one and want that."""
    if getattr(cls, "__post_init__", None) is None:
        return
    defaults = list(init_var_names(cls).values())
    if options.skip_post_init_on_rebuild or dataclasses.MISSING in defaults:
        cls._rebuild = TensorCollection._rebuild
        cls._trusted = classmethod(TensorCollection._trusted.__func__)  # type: ignore[attr-defined]
        return

    def _rebuild(self: Any, source: Any, batch_size: torch.Size, names: Any = None) -> Any:
        new = TensorCollection._rebuild(self, source, batch_size, names)
        if source:  # the shells of empty() are filled later
            new.__post_init__(*defaults)
        return new

    def _trusted(kind: Any, source: Any, batch_size: torch.Size, device: Any = None, names: Any = None) -> Any:
        new = TensorCollection._trusted.__func__(kind, source, batch_size, device, names)  # type: ignore[attr-defined]
        if source:
            new.__post_init__(*defaults)
        return new

    cls._rebuild = _rebuild
    cls._trusted = classmethod(_trusted)


def _finish(cls: Any, options: Flags) -> None:
    """What depends on the flags or the bases: hash and fixed metadata of frozen classes, the attribute guard."""
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
    def refuse(self: Any, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r} of the frozen class {owner}")

    return refuse


def _guarded_setattr(self: Any, name: str, value: Any) -> None:
    """Unknown attributes are an error also where a mixin brought an instance dictionary along."""
    if not hasattr(type(self), name):
        raise unknown_field_error(type(self), name)
    object.__setattr__(self, name, value)


def _public_name(cls: type) -> str:
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


def registered_class(name: str) -> type[TensorClass] | None:
    """The tensorclass of this module and qualified name if the program has defined it, else ``None``.

    Saved data names its class; it is looked up here and never imported, so that data cannot run code.

    Example:
        >>> class Point(TensorClass):
        ...     xy: torch.Tensor
        >>> registered_class(f"{Point.__module__}.{Point.__qualname__}") is Point
        True
    """
    return _KNOWN.get(name.replace("__mp_main__.", "__main__.", 1))


class TensorClass(DenseCollection, metaclass=TensorClassMeta):
    """A dataclass of tensors that share their leading dimensions, with every operation of a TensorDict.

    Subclass it and annotate fields. The constructor takes the fields, by position or keyword, then
    ``batch_size``, ``device`` and ``names`` by keyword; results of operations keep the class.

    Flags go into brackets, ``TensorClass["nocast", "frozen"]``, or into the class statement,
    ``class Foo(TensorClass, nocast=True)``; the second spelling is the one that type checkers read.

    Args:
        autocast: call the annotation on the value of a field: ``int`` on a tensor gives an int.
        nocast: keep numbers and arrays as they are; by default they become tensors.
        frozen: fields are written by the constructor only; instances are locked and hashable.
        tensor_only: every field is a tensor or a collection (faster to read, strings are refused).
        shadow: allow a field to hide a method of the same name.
        skip_post_init_on_rebuild: run ``__post_init__`` in constructors only and not on the results of
            operations such as indexing or ``clone``.

    Raises:
        AttributeError: a field name that a method owns, or an unknown field in the constructor.
        TypeError: a required field is missing, contradictory flags, or an annotation or value that
            ``tensor_only`` does not allow.

    Example:
        >>> from typing import Any
        >>> class Photo(TensorClass):
        ...     image: torch.Tensor
        ...     caption: str = "none"
        ...     def brighter(self):
        ...         return self.image + 1
        >>> photos = Photo(torch.zeros(2, 3, 8, 8), caption="two cats", batch_size=[2])
        >>> photos[0].caption, photos.brighter().mean()
        ('two cats', tensor(1.))
        >>> type(torch.stack([photos, photos])).__name__
        'Photo'
    """

    __slots__ = ()
    _flags = Flags()
    _field_specs: ClassVar[dict[str, FieldSpec]] = {}
    _cast_filter: ClassVar[Any] = None
    _stack_priority = DenseCollection._stack_priority + 0.5  # type: ignore[attr-defined]

    if TYPE_CHECKING:
        # What every constructor takes besides the fields. The types are descriptors, because what may be passed
        # is wider than what the attribute gives back.
        batch_size: BatchSizeField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        device: DeviceField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        names: NamesField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]

        def __init_subclass__(
            cls,
            *,
            autocast: bool = False,
            nocast: bool = False,
            frozen: bool = False,
            tensor_only: bool = False,
            shadow: bool = False,
            skip_post_init_on_rebuild: bool = False,
            kw_only: bool = False,
            cast_filter: Callable[..., bool] | None = None,
        ) -> None: ...

        def __iter__(self) -> Iterator[Self]: ...

    def __class_getitem__(cls, item: Any) -> Any:
        if cls is not TensorClass:
            if not hasattr(super(), "__class_getitem__"):
                raise TypeError(
                    f"{cls.__name__} is not a generic class: flags are set on TensorClass[...], or by keyword in the "
                    f"class statement, `class Foo({cls.__name__}, nocast=True)`"
                )
            return super().__class_getitem__(item)  # type: ignore[misc]
        names = item if isinstance(item, tuple) else (item,)
        if any(name not in FLAGS for name in names):
            raise TypeError(f"TensorClass[...] takes the flags {FLAGS}, got {names}")
        return _flag_carrier(tuple(dict.fromkeys(names)))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no fields of its own: subclass it and annotate some")

    if not TYPE_CHECKING:  # to a type checker, a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            """Called for an attribute that was not found: says which fields there are."""
            cls = type(self)
            if hasattr(cls, name) and name not in TensorCollection.__slots__:
                return object.__getattribute__(self, name)  # a property that failed: show its own error
            if name.startswith("_"):
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
            raise AttributeError(
                f"{cls.__name__!r} object has no attribute or field {name!r}. Its fields are {sorted(cls._field_specs)}."
            )

    # -- fields ------------------------------------------------------------------------------------------

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The fields, as :func:`dataclasses.fields` gives them."""
        return dataclasses.fields(cls)

    def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any:
        cls = type(self)
        flags = cls._flags
        if (
            not isinstance(item, (Tensor, TensorCollection))
            or flags.autocast
            or (flags.tensor_only and not isinstance(item, Tensor) and item._is_non_tensor)
        ):
            spec = cls._field_specs.get(key)
            if spec is not None:
                item = cls._convert_value(self, spec, item)  # type: ignore[attr-defined]
        return super()._fit(item, key, non_blocking)

    def _convert_plain(self, value: Any) -> Any:
        return super()._convert(value)

    def _set_field(self, name: str, value: Any) -> None:
        """``self.name = value`` where the value needs a look; ``None`` removes the entry."""
        if self._lock is not None:
            raise self._locked_error()
        if value is None:
            self._source.pop(name, None)
        else:
            self._source[name] = self._fit(value, name)

    def _delete_field(self, name: str) -> None:
        if self._lock is not None:
            raise self._locked_error()
        if self._source.pop(name, None) is None:
            raise AttributeError(f"the field {name!r} of {type(self).__name__} is not set, so it cannot be deleted")

    def get(self, key: Any, default: Any = _MISSING) -> Any:
        """Value of a field, or of an entry below one: what the attribute gives, ``None`` when it is not set.

        Args:
            key: name of the field, or a tuple that goes on into nested collections.
            default: returned when the class has no such field or nothing is at the path.
        """
        if type(key) is str:
            value = self._source.get(key, _MISSING)
            if value is _MISSING:
                return None if default is _MISSING or key in self._field_specs else default
        else:
            value = super().get(key, None if default is _MISSING else default)
        if isinstance(value, Tensor) or not isinstance(value, TensorCollection) or self._flags.tensor_only:
            return value
        return value._as_value()

    def set(self, key: Any, value: Any, inplace: bool = False, non_blocking: bool = False, **kwargs: Any) -> Self:
        """Writes a field, or an entry below one.

        Args:
            key: name of the field, or a tuple that goes on into nested collections.
            value: as in an assignment to the attribute.
            inplace: overwrite the tensor that is there.
            non_blocking: for the copy to :attr:`device`.

        Raises:
            AttributeError: the class has no such field.
            RuntimeError: the shape does not fit, or the collection is locked.

        Returns:
            self
        """
        path = (key,) if type(key) is str else require_path(key)
        name = path[0]
        if name not in self._field_specs and name not in self._source:
            raise unknown_field_error(type(self), name)
        if len(path) > 1:
            child = self._source.get(name)
            if not isinstance(child, TensorCollection):
                kind = "not set" if child is None else f"a {type(child).__name__}"
                raise AttributeError(f"cannot set {path}: the field {name!r} of {type(self).__name__} is {kind}")
            child.set(path[1:] if len(path) > 2 else path[1], value, inplace, non_blocking=non_blocking, **kwargs)
        elif inplace and name in self._source:
            self.set_(name, value, non_blocking=non_blocking)
        elif value is None:
            self._set_field(name, None)
        else:
            if self._lock is not None:
                raise self._locked_error()
            self._source[name] = self._fit(value, name, non_blocking)
        return self

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        """Writes several fields from a mapping, a TensorDict or another tensorclass.

        Raises:
            ValueError: a key is not a field of the class.
        """
        source = {} if input_dict_or_td is None else input_dict_or_td
        if isinstance(source, TensorCollection):
            self._check_keys(source._key_list())
        elif isinstance(source, Mapping):
            self._check_keys([require_path(key)[0] for key in source])
            source = {key: self._as_nested(key, value) for key, value in source.items()}
        return super().update(source, clone, inplace, **kwargs)

    def _as_nested(self, key: Any, value: Any) -> Any:
        """A mapping that arrives through ``update`` is a nested collection, not an object."""
        if type(key) is not str or not isinstance(value, Mapping) or isinstance(value, TensorCollection):
            return value
        current = self._source.get(key)
        if current is not None and not isinstance(current, Tensor) and not current._is_non_tensor:
            return value  # merged into the collection that is there
        nested = TensorDict(value, batch_size=self._batch_size, device=self._device)
        kind = self._field_specs[key].tensorclass
        return nested if kind is None else kind.from_tensordict(nested)  # type: ignore[attr-defined]

    @classmethod
    def _check_keys(cls, keys: Sequence[str]) -> None:
        unknown = [key for key in keys if key not in cls._field_specs]
        if unknown:
            raise ValueError(
                f"keys {sorted(keys)} must correspond to the fields of {cls.__name__}, which are "
                f"{sorted(cls._field_specs)}: {sorted(unknown)} do not belong to the class"
            )

    # -- indexing ------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        if type(index) is not int and _is_key(index):
            raise ValueError(
                f"invalid index {index!r}: a {type(self).__name__} is indexed along its batch dimensions; to read a "
                f"field, use the attribute or get({index!r})"
            )
        return super().__getitem__(index)  # type: ignore[no-any-return]

    def __setitem__(self, index: Any, value: Any) -> None:
        if _is_key(index):
            raise ValueError(
                f"invalid index {index!r}: a {type(self).__name__} is indexed along its batch dimensions; to write a "
                f"field, use the attribute or set({index!r}, value)"
            )
        if not isinstance(value, (Tensor, TensorCollection, int, float, complex)):
            raise ValueError(
                f"{type(self).__name__}[index] = value takes tensorclasses, tensordicts, numbers and tensors, got a "
                f"{type(value).__name__}"
            )
        super().__setitem__(index, value)

    def _set_index(self, index: Any, value: Any) -> None:
        if isinstance(value, TensorCollection) and type(value) is not type(self):
            self._check_keys(value._key_list())
        super()._set_index(index, value)

    def __contains__(self, key: Any) -> bool:
        raise TypeError(
            f"`in` has no meaning for a {type(self).__name__}: use `name in tc.keys()` for fields that are set, or "
            "(tc == value).any() for values"
        )

    # -- conversion ----------------------------------------------------------------------------------------

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None, safe: bool | None = True
    ) -> Self:
        """An instance around the entries of a TensorDict, which it shares.

        Entries whose field is annotated with a tensorclass are converted to it. Fields without an entry are
        ``None``, whatever their default.

        Args:
            tensordict: source of the fields, with batch size, device, names and lock.
            non_tensordict: further fields by name, any objects.
            safe: accepted for compatibility; keys are always checked.

        Raises:
            RuntimeError: ``tensordict`` is not a tensor collection.
            ValueError: a key that is not a field.
            KeyError: a field in both arguments.

        Example:
            >>> from tensordict_lite import TensorDict
            >>> class Point(TensorClass):
            ...     xy: torch.Tensor
            >>> Point.from_tensordict(TensorDict({"xy": torch.zeros(5, 2)}, [5])).xy.shape
            torch.Size([5, 2])
        """
        if not isinstance(tensordict, TensorCollection) or tensordict._is_non_tensor:
            raise RuntimeError(
                f"{cls.__name__}.from_tensordict expects a TensorDict, got a {type(tensordict).__name__}"
            )
        cls._check_keys(tensordict._key_list())
        extra = {name: value for name, value in (non_tensordict or {}).items() if value is not None}
        cls._check_keys(list(extra))
        both = sorted(name for name in extra if name in tensordict._key_list())
        if both:
            raise KeyError(f"{both[0]} is present in both tensor and non-tensor dicts of {cls.__name__}")
        if not isinstance(tensordict, DenseCollection):
            return cls._from_lazy(tensordict, extra)  # type: ignore[no-any-return]
        new = TensorCollection._trusted.__func__(  # type: ignore[attr-defined]
            cls, cls._typed_entries(tensordict._source), tensordict._batch_size, tensordict._device, tensordict._names
        )
        for name, value in extra.items():
            new._source = {**new._source, name: new._fit(value, name)}
        new._lock = None if tensordict._lock is None else []
        path = getattr(tensordict, "_memmap_path", None)
        if path is not None:
            new._memmap_path = path
        new._run_post_init()
        return new  # type: ignore[no-any-return]

    @classmethod
    def _typed_entries(cls, source: dict[str, Any]) -> dict[str, Any]:
        """The same dictionary, or one with plain nested TensorDicts converted to the tensorclass of their field."""
        changed = {}
        for name, spec in cls._field_specs.items():
            if spec.tensorclass is not None and isinstance(source.get(name), TensorDict):
                changed[name] = spec.tensorclass.from_tensordict(source[name])  # type: ignore[attr-defined]
        return {**source, **changed} if changed else source

    @classmethod
    def _from_lazy(cls, tensordict: Any, extra: Mapping[str, Any]) -> Any:
        raise RuntimeError(
            f"{cls.__name__} holds dense entries: call contiguous() on the {type(tensordict).__name__} first"
        )

    def _run_post_init(self) -> None:
        post_init = getattr(self, "__post_init__", None)
        if post_init is not None:
            defaults = list(init_var_names(type(self)).values())
            if dataclasses.MISSING not in defaults:
                post_init(*defaults)


def _is_key(index: Any) -> bool:
    """Whether an index is a field name, or a tuple of them, by mistake."""
    return isinstance(index, str) or (type(index) is tuple and bool(index) and isinstance(index[0], str))


@functools.cache
def _flag_carrier(names: tuple[str, ...]) -> Any:
    """``TensorClass["nocast"]``: a base without fields that hands its flags down."""
    name = "_".join(("TensorClass", *names))
    flags = Flags().updated(dict.fromkeys(names, True), name)
    return types.new_class(
        name, (TensorClass,), {}, lambda ns: ns.update(_flags=flags, _is_flag_carrier=True, __module__=__name__)
    )


def is_tensorclass(value: Any) -> bool:
    """Whether ``value`` (an instance or a class) is a tensorclass. Non-tensor data counts as one.

    Example:
        >>> is_tensorclass(TensorClass), is_tensorclass(TensorDict())
        (True, False)
    """
    cls = value if isinstance(value, type) else type(value)
    return issubclass(cls, TensorClass) or (issubclass(cls, TensorCollection) and bool(cls._is_non_tensor))


@overload
def tensorclass(cls: type[T], /) -> type[T]: ...


@overload
def tensorclass(
    cls: None = None,
    /,
    *,
    autocast: bool = ...,
    frozen: bool = ...,
    nocast: bool = ...,
    shadow: bool = ...,
    tensor_only: bool = ...,
    skip_post_init_on_rebuild: bool = ...,
    cast_filter: Callable[..., bool] | None = ...,
    kw_only: bool = ...,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
def tensorclass(
    cls: Any = None,
    /,
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: Callable[..., bool] | None = None,
    kw_only: bool = False,
) -> Any:
    """Decorator that makes a :class:`TensorClass` of an ordinary class with annotated fields.

    Args:
        cls: the class; left out when the flags are given, ``@tensorclass(nocast=True)``.
        autocast, frozen, nocast, shadow, tensor_only, skip_post_init_on_rebuild: see :class:`TensorClass`.
        cast_filter: default ``cast_filter`` of :meth:`~TensorDict.to` on instances.
        kw_only: fields of this class are keyword-only in the constructor.

    Example:
        >>> @tensorclass
        ... class Photo:
        ...     image: torch.Tensor
        ...     label: torch.Tensor
        ...     def of(self, label):
        ...         return self[self.label == label]
        >>> photos = Photo(torch.zeros(4, 8, 8), torch.tensor([0, 1, 1, 2]), batch_size=[4])
        >>> photos.of(1).shape
        torch.Size([2])
    """
    given = {"autocast": autocast, "frozen": frozen, "nocast": nocast, "shadow": shadow, "tensor_only": tensor_only}
    given["skip_post_init_on_rebuild"] = skip_post_init_on_rebuild
    flags = {name: True for name, value in given.items() if value}
    Flags().updated(flags, "@tensorclass")

    def decorate(cls: Any) -> Any:
        if isinstance(cls, TensorClassMeta):  # a subclass of a tensorclass: built already, here are its flags
            build(cls, flags, kw_only=kw_only, cast_filter=cast_filter)
            return cls
        return _rebase(cls, flags, kw_only, cast_filter)

    return decorate if cls is None else decorate(cls)


def _rebase(cls: Any, flags: dict[str, bool], kw_only: bool, cast_filter: Any) -> Any:
    """The same class body on top of :class:`TensorClass`."""
    if not isinstance(cls, type):
        raise TypeError(f"@tensorclass decorates a class, got {cls!r}")
    namespace = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__", "__slots__")}
    bases = (*(base for base in cls.__bases__ if base is not object), TensorClass)
    extra: dict[str, Any] = {"kw_only": kw_only, "cast_filter": cast_filter}
    new = TensorClassMeta(cls.__name__, bases, namespace, **flags, **extra)
    # Methods that say super() or __class__ hold the class in a cell, which still names the undecorated one.
    for value in namespace.values():
        for function in _functions_of(value):
            for cell in getattr(function, "__closure__", None) or ():
                if cell.cell_contents is cls:
                    cell.cell_contents = new
    return new


def _functions_of(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return [inspect.unwrap(getattr(value, "__func__", value))] if callable(getattr(value, "__func__", value)) else []


# -- dataclasses -----------------------------------------------------------------------------------------------

_GENERATED = frozenset(
    "__dict__ __weakref__ __slots__ __init__ __repr__ __eq__ __hash__ __match_args__ __dataclass_fields__ __replace__ "
    "__dataclass_params__ __setattr__ __delattr__ __annotations__ __annotate_func__ __annotations_cache__".split()
)


def from_dataclass(
    obj: Any,
    *,
    dest_cls: type | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | torch.Size | int | None = None,
    device: Any = None,
    inplace: bool = False,
    **flags: bool,
) -> Any:
    """A tensorclass with the fields of a dataclass: the class for a class, an instance for an instance.

    Args:
        obj: a dataclass or an instance of one; nested instances are converted too.
        dest_cls: tensorclass of the result; by default one named ``<name>_tc`` is made, once a class.
        auto_batch_size: give the result the leading shape that its tensors share, up to ``batch_dims``.
        batch_dims: see ``auto_batch_size``.
        batch_size: of the result, ``[]`` by default.
        device: of the result.
        inplace: accepted for compatibility.
        **flags: of :class:`TensorClass`, for the class that is made.

    Raises:
        TypeError: ``obj`` is not a dataclass, or a flag is not known.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Point:
        ...     xy: torch.Tensor
        ...     name: str
        >>> from_dataclass(Point(torch.zeros(5, 2), "p"), batch_size=[5]).xy.shape
        torch.Size([5, 2])
    """
    unknown = sorted(set(flags) - set(FLAGS))
    if unknown:
        raise TypeError(f"from_dataclass() got unexpected keyword arguments {unknown}: the flags are {FLAGS}")
    if not dataclasses.is_dataclass(obj):
        raise TypeError(f"from_dataclass expects a dataclass or an instance of one, got a {type(obj).__name__}")
    made = frozenset(name for name, value in flags.items() if value)
    if isinstance(obj, type):
        return dest_cls or _class_of(obj, made)
    cls: Any = dest_cls or _class_of(type(obj), made)
    values = {}
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, TensorCollection)):
            value = from_dataclass(value, batch_size=batch_size, device=device, **flags)
        values[field.name] = value
    new = cls.from_dict(values, batch_size=batch_size, device=device)
    return new.auto_batch_size_(batch_dims) if auto_batch_size else new


@functools.cache
def _class_of(kind: Any, flags: frozenset[str]) -> Any:
    """The tensorclass that stands for a dataclass, with its methods."""
    namespace: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        namespace.update({name: value for name, value in base.__dict__.items() if name not in _GENERATED})
    annotations = {}
    for field in dataclasses.fields(kind):
        annotations[field.name] = field.type
        options = {name: getattr(field, name) for name in ("init", "kw_only", "metadata")}
        namespace[field.name] = dataclasses.field(
            **options,
            **{k: v for k in ("default", "default_factory") if (v := getattr(field, k)) is not dataclasses.MISSING},
        )
    namespace["__annotations__"] = annotations
    namespace["__module__"] = kind.__module__
    keywords: dict[str, Any] = dict.fromkeys(flags, True)
    return types.new_class(f"{kind.__name__}_tc", (TensorClass,), keywords, lambda ns: ns.update(namespace))
