"""Tensorclasses from and to other forms: TensorDict, dict, dataclass, state dict."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.tensorclass.build import fill_slots
from tensordict_lite.tensorclass.fields import FLAGS, FieldSpec, init_var_names


class TensorClassConversions(DenseCollection):
    """Constructors that check keys and convert nested fields, and exports that support ``None`` fields."""

    __slots__ = ()
    _field_specs: ClassVar[dict[str, FieldSpec]]

    @classmethod
    def _check_keys(cls, keys: Sequence[str]) -> None:
        unknown = [key for key in keys if key not in cls._field_specs]
        if unknown:
            raise ValueError(
                f"keys {sorted(keys)} must correspond to the fields of {cls.__name__}, which are "
                f"{sorted(cls._field_specs)}: {sorted(unknown)} do not belong to the class"
            )

    @classmethod
    def from_tensordict(cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None) -> Self:
        """An instance around the entries of a TensorDict, which it shares.

        Entries whose field is annotated with a tensorclass are converted to it. Fields without an entry are ``None``,
        not their default.

        Args:
            tensordict: source of the fields, with batch size, device, names and lock.
            non_tensordict: further fields by name: any objects, kept unchanged.

        Raises:
            RuntimeError: ``tensordict`` is not a tensor collection.
            ValueError: a key that is not a field.
            KeyError: a field in both arguments.

        Example:
            >>> from tensordict_lite import TensorClass, TensorDict
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
        if type(tensordict._source) is not dict:
            return cls._from_lazy(tensordict, extra)
        new = TensorCollection._trusted.__func__(  # type: ignore[attr-defined]
            cls, cls._typed_entries(tensordict._source), tensordict._batch_size, tensordict._device, tensordict._names
        )
        if extra:
            new._source = dict(new._source)  # a separate one: the TensorDict gets no new entries
        for name, value in extra.items():
            entry = value if isinstance(value, (Tensor, TensorCollection)) else new._wrap(value)
            new._source[name] = new._fit(entry, name)
        new._types = tensordict._types
        new._lock = None if tensordict._lock is None else []
        path = getattr(tensordict, "_memmap_path", None)
        if path is not None:
            new._memmap_path = path
        new._run_post_init()
        return new

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
        """A lazy stack of instances of this class, around the members of a lazy stack."""
        members = [cls.from_tensordict(member) for member in tensordict._source]
        new = registry.typed_stack_class(cls)._of(
            members, tensordict._stack_dim, tensordict._member_batch_size(), tensordict._device, tensordict._names
        )
        for name, value in extra.items():
            new.set(name, value)
        return new

    def _run_post_init(self) -> None:
        post_init = getattr(self, "__post_init__", None)
        if post_init is not None:
            defaults = list(init_var_names(type(self)).values())
            if dataclasses.MISSING not in defaults:
                post_init(*defaults)

    @classmethod
    def _as_own(cls, made: Any) -> Any:
        return made if isinstance(made, TensorClassConversions) else cls.from_tensordict(made)

    @classmethod
    def from_dict(cls, input_dict: Any, *others: Any, **kwargs: Any) -> Any:
        """An instance from a nested dict; the arguments are those of :meth:`TensorDict.from_dict`.

        A field that is None in the dict has no entry.

        Raises:
            ValueError: a key that is not a field.
        """
        if isinstance(input_dict, Mapping) and not isinstance(input_dict, TensorCollection):
            input_dict = {key: value for key, value in input_dict.items() if value is not None}
        return cls._as_own(TensorDict.from_dict(input_dict, *others, **kwargs))

    @classmethod
    def from_any(cls, obj: Any, **kwargs: Any) -> Any:
        if dataclasses.is_dataclass(obj) and not isinstance(obj, (type, TensorCollection)):
            kwargs = {k: v for k, v in kwargs.items() if k in ("auto_batch_size", "batch_dims", "device", "batch_size")}
            return from_dataclass(obj, dest_cls=cls, **kwargs)
        return cls._as_own(TensorDict.from_any(obj, **kwargs))

    @classmethod
    def from_dataclass(
        cls, dataclass: Any, *, dest_cls: Any = None, as_tensorclass: bool = False, **kwargs: Any
    ) -> Any:
        return from_dataclass(dataclass, dest_cls=dest_cls or cls, **kwargs)

    @classmethod
    def fromkeys(cls, keys: Any, value: Any = 0) -> Any:
        return cls._as_own(TensorDict.fromkeys(keys, value))

    @classmethod
    def from_namedtuple(cls, named_tuple: Any, **kwargs: Any) -> Any:
        return cls._as_own(TensorDict.from_namedtuple(named_tuple, **kwargs))

    @classmethod
    def from_pytree(cls, pytree: Any, **kwargs: Any) -> Any:
        return cls._as_own(TensorDict.from_pytree(pytree, **kwargs))

    # -- exports -----------------------------------------------------------------------------------------------

    def _none_fields(self) -> list[str]:
        return [name for name in self._field_specs if name not in self._source]

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """A plain, unlocked TensorDict with copies of all tensors, nested tensorclasses converted too.

        Args:
            retain_none: write ``None`` fields as non-tensor data. By default they are dropped.
        """
        out = super().to_tensordict(retain_none=retain_none)
        if retain_none:
            for name in self._none_fields():
                out._source[name] = NonTensorData(None, batch_size=self._batch_size, device=self._device)
        return out

    def to_dict(self, *, retain_none: bool = True, **kwargs: Any) -> dict[str, Any]:
        """The fields as a nested dict; those that are ``None`` too, with ``retain_none``."""
        out = super().to_dict(retain_none=retain_none, **kwargs)
        if retain_none:
            out.update(dict.fromkeys(self._none_fields()))
        return out

    def flatten_keys(self, separator: str = ".", *args: Any, **kwargs: Any) -> Any:
        """The entries of all levels in one, see :meth:`TensorDict.flatten_keys`.

        An instance without nested collections keeps its class; otherwise the joined keys are not fields, and the result
        is a plain TensorDict.
        """
        flat = super().flatten_keys(separator, *args, **kwargs)
        if all(name in self._field_specs for name in flat._key_list()):
            return flat if isinstance(flat, TensorClassConversions) else type(self).from_tensordict(flat)
        return flat

    def _stated(self) -> Iterable[tuple[str, Any]]:
        return [(key, value) for key, value in super()._stated() if not getattr(value, "_is_non_tensor", False)]

    def _level_metadata(self) -> dict[str, Any]:
        entries = dict(self._entries())
        held = {name: entries.get(name) for name in self._field_specs}
        held = {name: value for name, value in held.items() if value is None or getattr(value, "_is_non_tensor", False)}
        stacks = [name for name, value in held.items() if value is not None and type(value._source) is list]
        objects = {
            name: None if value is None else value.tolist() if name in stacks else value._as_value()
            for name, value in held.items()
        }
        known = {**super()._level_metadata(), "_type": type(self).__qualname__, "_non_tensor": objects}
        return {**known, "_stacks": stacks} if stacks else known

    def _load_objects(self, objects: Mapping[str, Any], stacks: Sequence[str] = ()) -> None:
        super()._load_objects({name: value for name, value in objects.items() if name in self._field_specs}, stacks)
        entries = dict(self._entries())
        for name, value in objects.items():
            if value is None and entries.get(name) is not None:
                setattr(self, name, None)

    def _load_level(self, state: Mapping[str, Any], strict: bool, assign: bool, complete: bool = True) -> None:
        if "_tensordict" in state and "_tensordict" not in self._field_specs:  # as versions before 0.2 wrote it
            self._load_objects(state.get("_non_tensordict") or {})
            state = state["_tensordict"]
        super()._load_level(state, strict, assign, complete)

    def _check_state_keys(self, items: Mapping[str, Any], complete: bool) -> None:
        for key in items:
            if key not in self._field_specs:
                raise KeyError(
                    f"the key {key!r} of the state dict does not belong to {type(self).__name__}, whose fields are "
                    f"{sorted(self._field_specs)}"
                )
        super()._check_state_keys(items, complete)

    def _load_entry(self, key: str, value: Any, strict: bool, assign: bool) -> None:
        if key in self._field_specs:
            super()._load_entry(key, value, strict, assign)


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
    device: DeviceLike | None = None,
    **flags: bool,
) -> Any:
    """A tensorclass with the fields of a dataclass: the class for a class, an instance for an instance.

    Args:
        obj: a dataclass or an instance of one; nested instances are converted too.
        dest_cls: tensorclass of the result; by default ``<name>_tc`` is created, once per class.
        auto_batch_size: give the result the leading shape that its tensors share, up to ``batch_dims``.
        batch_dims: see ``auto_batch_size``.
        batch_size: batch size of the result, ``[]`` by default.
        device: device of the result.
        **flags: flags of :class:`TensorClass`, for the new class.

    Raises:
        TypeError: ``obj`` is not a dataclass, or a flag is unknown.

    Example:
        >>> import dataclasses, torch
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
            options: dict[str, Any] = {"batch_size": batch_size, "device": device, **flags}
            value = from_dataclass(value, **options)
        values[field.name] = value
    new = object.__new__(cls)
    fill_slots(new, batch_size, device)
    cls._check_keys(list(values))
    for name, value in values.items():
        new._set_field(name, value)
    new._run_post_init()
    return new.auto_batch_size_(batch_dims) if auto_batch_size else new


@functools.cache
def _class_of(kind: Any, flags: frozenset[str]) -> Any:
    """The tensorclass for a dataclass, with its methods."""
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
    return types.new_class(f"{kind.__name__}_tc", (registry.TensorClass,), keywords, lambda ns: ns.update(namespace))
