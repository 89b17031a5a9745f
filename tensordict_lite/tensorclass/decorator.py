"""Typed collections: ``class Foo(TensorClass)`` and ``@tensorclass``.

A tensorclass *is* dense storage, with its fields as properties over the same ``_source`` dictionary:

.. code-block:: text

    foo.image ──property──► foo._source["image"] ◄──["image"]── td (a TensorDict)

So every operation is inherited, costs as much as on a TensorDict, and returns the same type. A field that holds
``None`` has no entry.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform, overload

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import require_path
from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, is_non_tensor
from tensordict_lite.objects.metadata import MetaData
from tensordict_lite.objects.stack import NonTensorStack
from tensordict_lite.registry import register
from tensordict_lite.settings import MISSING, settings
from tensordict_lite.tensorclass.build import TensorClassMeta, build, registered_class
from tensordict_lite.tensorclass.convert import TensorClassConversions, from_dataclass
from tensordict_lite.tensorclass.fields import FLAGS, METADATA, FieldSpec, Flags, is_key, key_error, unknown_field_error

if TYPE_CHECKING:
    from collections.abc import Iterator

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
__all__ += ["MetaData", "NonTensorData", "NonTensorDataBase", "NonTensorStack", "is_non_tensor"]

T = TypeVar("T")


class TensorClass(TensorClassConversions, metaclass=TensorClassMeta):
    """A dataclass of tensors that share their leading dimensions, with every operation of a TensorDict.

    Subclass it and annotate fields. The constructor takes the fields, by position or keyword, then ``batch_size``,
    ``device`` and ``names`` by keyword; results of operations keep the class.

    Flags are set in brackets, ``TensorClass["nocast", "frozen"]``, or in the class statement, ``class Foo(TensorClass,
    nocast=True)``; type checkers understand the second form.

    Args:
        autocast: call the annotation of a field on its value: ``int`` converts a tensor to an int.
        nocast: keep numbers and arrays; by default they become tensors.
        frozen: only the constructor writes fields; instances are locked and hashable.
        tensor_only: every field is a tensor or a collection (faster to read; strings raise).
        shadow: allow a field to hide a method of the same name.
        skip_post_init_on_rebuild: run ``__post_init__`` only in constructors, not on results of operations such as
            indexing or ``clone``.

    Raises:
        AttributeError: a field has the name of a method, or the constructor gets an unknown field.
        TypeError: a required field is missing, flags conflict, or ``tensor_only`` does not allow an annotation or
            value.

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
    _kind_name = "tensorclass"
    _flags = Flags()
    _field_specs: ClassVar[dict[str, FieldSpec]] = {}
    _cast_filter: ClassVar[Any] = None
    _stack_priority = TensorClassConversions._stack_priority + 0.5

    if TYPE_CHECKING:
        # Arguments of every constructor besides the fields. Their types are descriptors, because the accepted types
        # are wider than the type of the attribute.
        batch_size: BatchSizeField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment,override]
        device: DeviceField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        names: NamesField = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment,override]

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

    # No __getattr__ here, even for a better message: it makes each attribute read a third slower.

    @property  # type: ignore[misc]  # not to be assigned here
    def shape(self) -> torch.Size:
        """Same as :attr:`batch_size`, which can be assigned."""
        return self._batch_size

    # -- fields ------------------------------------------------------------------------------------------

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """The fields, as :func:`dataclasses.fields` returns them."""
        return dataclasses.fields(cls)

    def _fit(self, item: Any, key: str, non_blocking: bool = False) -> Any:
        cls = type(self)
        flags = cls._flags
        wrapped = isinstance(item, TensorCollection) and item._is_non_tensor  # by set_non_tensor(): kept unchanged
        if (
            not isinstance(item, (Tensor, TensorCollection))
            or (flags.autocast and not wrapped)
            or (flags.tensor_only and wrapped)
        ):
            spec = cls._field_specs.get(key)
            if spec is not None:
                item = cls._convert_value(self, spec, item)  # type: ignore[attr-defined]
        return super()._fit(item, key, non_blocking)

    def _convert_plain(self, value: Any) -> Any:
        if type(value) is list and not settings.list_to_stack:
            return self._wrap(value)  # fields keep it unchanged
        return super()._convert(value)

    def _set_field(self, name: str, value: Any) -> None:
        """``self.name = value`` for values that need conversion; ``None`` removes the entry."""
        if self._lock is not None:
            raise self._locked_error()
        if value is None:
            self._source.pop(name, None)
        else:
            self._source[name] = self._fit(value, name)

    def _delete_field(self, name: str) -> None:
        self._require_unlocked()
        if self._source.pop(name, None) is None:
            raise AttributeError(f"the field {name!r} of {type(self).__name__} is not set, so it cannot be deleted")

    def get(self, key: Any, default: Any = MISSING, **stacked_as: Any) -> Any:
        """Value of a field, or of an entry below one: that of the attribute, ``None`` if it is not set.

        Args:
            key: name of the field, or a tuple that continues into nested collections; also ``"batch_size"``,
                ``"shape"``, ``"device"`` and ``"names"``, unless they are fields.
            default: returned if the class has no such field or the path does not exist.
            stacked_as: the form of an entry whose shape differs between the members of a lazy stack: see
                :meth:`LazyStackedTensorDict.get`.
        """
        if type(key) is str:
            value = self._source.get(key, MISSING)
            if value is MISSING:
                if key in METADATA and key not in self._field_specs:
                    return getattr(self, key)
                return None if default is MISSING or key in self._field_specs else default
        else:
            value = super().get(key, None if default is MISSING else default, **stacked_as)
        if isinstance(value, Tensor) or not isinstance(value, TensorCollection):
            return value
        if self._flags.tensor_only and not value._is_unbatched:
            return value
        return value._as_value()

    def set(  # type: ignore[override]  # the interface calls it `value` here
        self, key: Any, value: Any, inplace: bool = False, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Write a field, or an entry below one.

        Args:
            key: name of the field, or a tuple that continues into nested collections.
            value: as in an assignment to the attribute.
            inplace: overwrite the existing tensor.
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
            self._set_inplace(name, value, non_blocking)
        elif value is None:
            self._set_field(name, None)
        else:
            if self._lock is not None:
                raise self._locked_error()
            self._source[name] = self._fit(value, name, non_blocking)
        return self

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        if self.get(key) is None:
            self.set(key, default, inplace=inplace)
        return self.get(key)

    def update(self, input_dict_or_td: Any = None, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        """Write several fields from a mapping, a TensorDict or another tensorclass.

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
        """A mapping passed to ``update`` is a nested collection, not an object."""
        if type(key) is not str or not isinstance(value, Mapping) or isinstance(value, TensorCollection):
            return value
        current = self._source.get(key)
        if current is not None and not isinstance(current, Tensor) and not current._is_non_tensor:
            return value  # merged into the existing collection
        nested = TensorDict(value, batch_size=self._batch_size, device=self._device)
        kind = self._field_specs[key].tensorclass
        return nested if kind is None else kind.from_tensordict(nested)  # type: ignore[attr-defined]

    # -- indexing ------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        kind = type(index)
        if kind is str or (kind is tuple and index and isinstance(index[0], str)):
            raise key_error(type(self), index, "read", f"get({index!r})")
        return _dense_getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_key(index):
            raise key_error(type(self), index, "write", f"set({index!r}, value)")
        if not isinstance(value, (Tensor, TensorCollection, int, float, complex)):
            raise ValueError(
                f"{type(self).__name__}[index] = value takes tensorclasses, tensordicts, numbers and tensors, got a "
                f"{type(value).__name__}"
            )
        super().__setitem__(index, value)

    def _set_index(self, index: Any, value: Any) -> None:
        if isinstance(value, TensorCollection) and type(value) is not type(self):
            try:
                self._check_keys(value._key_list())
            except ValueError as err:
                raise ValueError(f"__setitem__ is only allowed for same-class or compatible class: {err}") from None
        super()._set_index(index, self._without_none(value))

    def _without_none(self, value: Any) -> Any:
        """A mapping without the fields that are None in it and not set here: they have no entries."""
        if isinstance(value, TensorCollection) or not isinstance(value, Mapping):
            return value
        unset = self._field_specs.keys() - self._source.keys()
        return {key: item for key, item in value.items() if item is not None or key not in unset}

    # -- stacking ----------------------------------------------------------------------------------------

    @classmethod
    def _check_kinds(cls, items: Sequence[Any]) -> None:
        for item in items:
            kind = type(item)
            if kind is cls or (issubclass(kind, TensorClass) and (issubclass(kind, cls) or issubclass(cls, kind))):
                continue
            raise TypeError(
                f"cannot combine a {cls.__name__} with a {kind.__name__}: all items must be of one tensorclass. "
                f"Convert with {cls.__name__}.from_tensordict() or to_tensordict() first."
            )


_dense_getitem = TensorClassConversions.__getitem__


@functools.cache
def _flag_carrier(names: tuple[str, ...]) -> Any:
    """``TensorClass["nocast"]``: a base without fields that passes its flags on."""
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
    """Turn a class with annotated fields into a :class:`TensorClass`. A decorator.

    Args:
        cls: the class; omitted if flags are given, ``@tensorclass(nocast=True)``.
        autocast, frozen, nocast, shadow, tensor_only, skip_post_init_on_rebuild: see :class:`TensorClass`.
        cast_filter: default ``cast_filter`` of :meth:`~TensorDict.to` for instances.
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
        if isinstance(cls, TensorClassMeta):  # a subclass of a tensorclass: already built, here are its flags
            build(cls, flags, kw_only=kw_only, cast_filter=cast_filter)
            return cls
        return _rebase(cls, flags, kw_only, cast_filter)

    return decorate if cls is None else decorate(cls)


def _rebase(cls: Any, flags: dict[str, bool], kw_only: bool, cast_filter: Any) -> Any:
    """The same class body on top of :class:`TensorClass`."""
    if not isinstance(cls, type):
        raise TypeError(f"@tensorclass decorates a class, got {cls!r}")
    namespace = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__", "__slots__")}
    namespace["__qualname__"] = cls.__qualname__  # a nested class is pickled under both names
    bases = (*(base for base in cls.__bases__ if base is not object), TensorClass)
    extra: dict[str, Any] = {"kw_only": kw_only, "cast_filter": cast_filter}
    new = TensorClassMeta(cls.__name__, bases, namespace, **flags, **extra)
    # Methods that use super() or __class__ hold the class in a cell, which still refers to the undecorated one.
    for value in namespace.values():
        for function in _functions_of(value):
            for cell in getattr(function, "__closure__", None) or ():
                if _holds(cell, cls):
                    cell.cell_contents = new
    return new


def _holds(cell: types.CellType, cls: Any) -> bool:
    try:
        return cell.cell_contents is cls
    except ValueError:  # not yet filled
        return False


def _functions_of(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return [value.func]
    return [inspect.unwrap(getattr(value, "__func__", value))] if callable(getattr(value, "__func__", value)) else []


register(TensorClass=TensorClass)
