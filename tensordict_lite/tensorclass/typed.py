"""``class State(TypedTensorDict)``: a TensorDict whose entries are declared as annotations.

It is dense storage like :class:`TensorDict`, with one property per field over the same entries. Around a lazy stack
(:meth:`TypedTensorDict.from_tensordict`) it is a lazy stack of such instances, of a class created for that.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection, TensorDictBase
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.kernel import DeviceLike
from tensordict_lite.lazy.stack import LazyStackedTensorDict
from tensordict_lite.lazy.typed import StackOfInstances
from tensordict_lite.tensorclass.fields import own_annotations

_OPTIONS = ("shadow", "frozen")


@dataclass_transform(kw_only_default=True)
class TypedTensorDict(DenseCollection, TensorDictBase):
    """A collection whose entries are declared as annotations of its class, and are also attributes.

    Subclasses add fields to those of their parents. An entry whose annotation has a default may be missing: the
    attribute is then the default. Every operation of a TensorDict is available, and results keep the class. Use a
    :class:`TensorClass` for fields that are Python objects.

    Options are set in brackets or in the class statement, ``class State(TypedTensorDict, frozen=True)``; subclasses
    inherit them. ``"frozen"``: the constructor locks. ``"shadow"``: a field may have the name of a method, which it
    hides.

    Args:
        _source: the fields as a mapping, instead of keywords.
        batch_size: leading shape of every entry. Defaults to ``[]``.
        device: entries are moved to it.
        names: a name (or ``None``) for each batch dimension.
        non_blocking: for the copies to ``device``.
        lock: lock the result.
        **kwargs: the fields.

    Raises:
        TypeError: a field without a default is missing, or a field is unknown.
        RuntimeError: an entry does not start with the batch size.

    Example:
        >>> class State(TypedTensorDict):
        ...     position: torch.Tensor
        ...     extra: TensorDict = None
        >>> state = State(position=torch.zeros(2, 3), batch_size=[2])
        >>> state[0].position, type(torch.stack([state, state])).__name__, state.extra is None
        (tensor([0., 0., 0.]), 'State', True)
        >>> td = TensorDict({"position": torch.zeros(2, 3)}, [2])
        >>> State.from_tensordict(td).position = torch.ones(2, 3)
        >>> td["position"].sum()
        tensor(6.)
    """

    __expected_keys__: ClassVar[frozenset[str]] = frozenset()
    __required_keys__: ClassVar[frozenset[str]] = frozenset()
    __optional_keys__: ClassVar[frozenset[str]] = frozenset()
    __field_defaults__: ClassVar[dict[str, Any]] = {}
    _typed_options: ClassVar[frozenset[str]] = frozenset()
    _is_open_base: ClassVar[bool] = True
    _stack_priority = DenseCollection._stack_priority + 0.25

    def __init_subclass__(cls, **options: bool) -> None:
        given = {name: options.pop(name) for name in _OPTIONS if name in options}
        super().__init_subclass__(**options)
        if "_is_open_base" in cls.__dict__:
            return
        cls._is_open_base = False
        chosen = {name for name in cls._typed_options if given.get(name, True)}
        cls._typed_options = frozenset(chosen.union(name for name, wanted in given.items() if wanted))
        if "_typed_fields_done" not in cls.__dict__:
            _declare_fields(cls)

    def __class_getitem__(cls, item: Any) -> Any:
        if not cls._is_open_base:
            raise TypeError(f"{cls.__name__} is not a generic class: options are set on TypedTensorDict[...]")
        names = item if isinstance(item, tuple) else (item,)
        for name in names:
            if name not in _OPTIONS:
                raise ValueError(f"Unknown TypedTensorDict option: {name!r}. Valid options: {', '.join(_OPTIONS)}")
        body = {"_typed_options": frozenset(names), "_is_open_base": True, "__module__": __name__}
        return types.new_class("_".join(("TypedTensorDict", *names)), (cls,), {}, lambda ns: ns.update(body))

    def __init__(
        self,
        _source: Mapping[str, Any] | None = None,
        *,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: DeviceLike | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        if cls._is_open_base:
            raise TypeError(f"{cls.__name__} declares no fields of its own: subclass it and annotate some")
        if _source is not None and not isinstance(_source, (Mapping, TensorCollection)):
            raise ValueError(
                f"the fields of {cls.__name__} are given by keyword or as one mapping, got a {type(_source).__name__}"
            )
        fields = {**(_source or {}), **kwargs}
        cls._check_fields(fields, f"{cls.__name__}()")
        unexpected = [name for name in fields if name not in cls.__expected_keys__]
        if unexpected:
            raise TypeError(f"{cls.__name__}() got unexpected field(s): {', '.join(unexpected)}")
        TensorDict.__init__(self, fields, batch_size, device, names, non_blocking)  # type: ignore[arg-type]
        if lock or "frozen" in cls._typed_options:
            self._propagate_lock(None)

    @classmethod
    def _check_fields(cls, keys: Any, where: str) -> None:
        missing = sorted(name for name in cls.__required_keys__ if name not in keys)
        if missing:
            raise TypeError(f"{where} missing required field(s): {', '.join(missing)}")

    @classmethod
    def _free_class(cls) -> Any:
        return cls

    @classmethod
    def _as_own(cls, made: Any) -> Any:
        return made if cls._is_open_base or type(made) is not TensorDict else cls.from_tensordict(made)

    @classmethod
    def from_tensordict(cls, td: Any, *, check: bool = True) -> Self:
        """An instance over the storage of a collection: writes to one are visible in the other.

        Entries that are not fields are kept.

        Args:
            td: TensorDict, lazy stack, tensorclass or memory-mapped collection, which keeps its lock; or a mapping.
            check: raise if a field without a default is missing.

        Raises:
            TypeError: such a field is missing, or ``td`` is not a collection.
        """
        if isinstance(td, Mapping) and not isinstance(td, TensorCollection):
            td = TensorDict(td)
        if cls._is_open_base or not isinstance(td, TensorCollection) or td._is_non_tensor:
            raise TypeError(f"{cls.__name__}.from_tensordict() makes instances of subclasses, of tensor collections")
        if check:
            cls._check_fields(td._key_list(), f"{cls.__name__}.from_tensordict()")
        if isinstance(td, LazyStackedTensorDict):
            made = _lazy_class(cls)
            members = [cls.from_tensordict(member, check=False) for member in td._source]
            new = made._of(members, td._stack_dim, td._member_batch_size(), td._device, td._names)
        else:
            new = cls._trusted(td._source, td._batch_size, td._device, td._names)
        new._types = td._types
        new._lock = None if td._lock is None else []
        path = getattr(td, "_memmap_path", None)
        if path is not None:
            new._memmap_path = path
        return new


def _declare_fields(cls: Any) -> None:
    """Convert the annotations of the class body to fields: properties, and the sets of names."""
    own = [name for name, hint in own_annotations(cls).items() if _is_field(name, hint)]
    defaults = dict(cls.__field_defaults__)
    for name in own:
        if "shadow" not in cls._typed_options and hasattr(TensorDictBase, name):
            raise AttributeError(
                f"Field {name!r} shadows a TensorDictBase attribute. Use TypedTensorDict['shadow'] to allow this."
            )
        defaults.pop(name, None)
        if name in cls.__dict__:
            defaults[name] = cls.__dict__[name]
        setattr(cls, name, _field_property(name))
    cls.__expected_keys__ = cls.__expected_keys__.union(own)
    cls.__field_defaults__ = defaults
    cls.__optional_keys__ = frozenset(defaults)
    cls.__required_keys__ = cls.__expected_keys__.difference(defaults)


def _is_field(name: str, hint: Any) -> bool:
    if name.startswith("_"):
        return False
    text = hint if isinstance(hint, str) else getattr(hint, "__qualname__", None) or str(hint)
    return "ClassVar" not in text.partition("[")[0]


def _field_property(name: str) -> property:
    def get(self: Any) -> Any:
        try:
            value = self._get_str(name)
        except KeyError:
            defaults = type(self).__field_defaults__
            if name in defaults:
                return defaults[name]
            raise AttributeError(f"{type(self).__name__!r} has field {name!r} declared but not set") from None
        return value if isinstance(value, Tensor) else value._as_value()

    def put(self: Any, value: Any) -> None:
        self.set(name, value)

    get.__name__ = name
    return property(get, put, doc=f"The entry {name!r}.")


# -- around a lazy stack -----------------------------------------------------------------------------------------


def _blank_lazy(cls: Any) -> Any:
    return object.__new__(_lazy_class(cls))


class _LazyTyped(StackOfInstances):
    """The lazy stack behind an instance."""

    __slots__ = ()
    _blank = staticmethod(_blank_lazy)


def _lazy_class(cls: Any) -> Any:
    """The class of instances of ``cls`` around lazy stacks."""
    if issubclass(cls, _LazyTyped):
        return cls
    made = cls.__dict__.get("_lazy_typed")
    if made is None:
        body = {
            "_member_class": cls,
            "_typed_fields_done": True,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            **{name: _field_property(name) for name in cls.__expected_keys__},
        }
        made = cls._lazy_typed = types.new_class(cls.__name__, (_LazyTyped, cls), {}, lambda ns: ns.update(body))
    return made
