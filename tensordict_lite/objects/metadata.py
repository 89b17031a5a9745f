"""Values that belong to a whole tree, not to its rows: :class:`MetaData`."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

import torch

from tensordict_lite.kernel import stacked_names
from tensordict_lite.objects.data import NonTensorData, NonTensorDataBase, same_payload, spread
from tensordict_lite.settings import settings

_typed: dict[Any, type[MetaData]] = {}


class MetaData(NonTensorDataBase):
    """One Python object that describes a whole tree: a unit, a version, the settings of a recording.

    Entries of a tree share its batch size; that of metadata follows it. When collections are stacked,
    :class:`NonTensorData` becomes one value per row; equal metadata stays one value. Metadata that differs gives a
    :class:`NonTensorStack` with the value of each.

    ``MetaData[int]`` is a subclass that accepts only ints.

    Args:
        data: the object.
        batch_size: the batch size; in a tree, that of the tree.
        device: stored only.
        names: names of the batch dimensions.

    Raises:
        TypeError: the object is not of the type in the brackets.

    Example:
        >>> td = TensorDict({"x": torch.zeros(2), "unit": MetaData("cm")}, [2])
        >>> torch.stack([td, td])["unit"], td.expand(3, 2).get("unit").batch_size
        ('cm', torch.Size([3, 2]))
    """

    __slots__ = ()
    _parameter: Any = Any
    _follows_batch = True

    def __class_getitem__(cls, parameter: Any) -> type[MetaData]:
        known = _typed.get(parameter)
        if known is None:
            if cls._parameter is not Any:
                raise TypeError(f"{cls.__name__} has its type already")
            name = f"MetaData[{_name_of(parameter)}]"
            known = _typed[parameter] = type(name, (MetaData,), {"__slots__": (), "_parameter": parameter})
            known.__module__ = cls.__module__
        return known

    def __init__(self, data: Any, **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        self._check_type(self._payload)

    @classmethod
    def accepts(cls, value: object) -> bool:
        """Whether an object is of the type in the brackets.

        Example:
            >>> MetaData[int].accepts("x"), MetaData.accepts("x")
            (False, True)
        """
        return cls._parameter is Any or _is_instance(value, cls._parameter)

    def _check_type(self, payload: object) -> None:
        if not self.accepts(payload):
            raise TypeError(
                f"Expected data of type {_name_of(self._parameter)}, got {type(payload).__name__}: "
                f"a {type(self).__name__} cannot hold {payload!r}"
            )

    def _replace(self, payload: object) -> None:
        self._check_type(payload)
        super()._replace(payload)

    def maybe_to_stack(self) -> Any:
        """A :class:`NonTensorStack` with the object once per element; ``self`` without batch dimensions."""
        if not self._batch_size:
            return self
        rows = NonTensorData(self._payload, batch_size=self._batch_size, device=self._device)
        rows._names = self._names
        return spread(rows)

    def _fit_into(self, parent: Any, key: str, non_blocking: bool) -> Any:
        dims = parent.batch_dims
        if self._batch_size[:dims] == parent._batch_size:
            return super()._fit_into(parent, key, non_blocking)
        return self._rebuild({}, parent._batch_size)._fit_into(parent, key, non_blocking)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._parameter is Any:
            return super().__reduce_ex__(protocol)
        # No module defines a class of this name; builtin types use theirs, which is safe to load.
        known = _SAVED_TYPES.get(getattr(self._parameter, "__name__", "")) is self._parameter
        return _restored, (self._parameter.__name__ if known else self._parameter, self.__getstate__())

    @classmethod
    def _stack_entries(cls, items: Sequence[Any], dim: int) -> Any:
        one = joined(items, dim)
        return super()._stack_entries(items, dim) if one is None else one


def joined(items: Sequence[Any], dim: int) -> NonTensorDataBase | None:
    """The stack of equal metadata along a new dimension, which is metadata again; ``None`` for other values.

    Under ``set_capture_non_tensor_stack(True)`` this applies to every object, unless lengths differ: one object for all
    rows cannot represent them.
    """
    first = items[0]
    if not (isinstance(first, MetaData) or (settings.capture_non_tensor_stack and isinstance(first, NonTensorData))):
        return None
    for item in items[1:]:
        if type(item) is not type(first) or item._batch_size != first._batch_size:
            return None
        if not same_payload(item._payload, first._payload):
            return None
    size = first._batch_size
    return first._rebuild({}, torch.Size((*size[:dim], len(items), *size[dim:])), stacked_names(items[:1], dim))


def _restored(parameter: Any, state: dict[str, Any]) -> MetaData:
    parameter = _SAVED_TYPES[parameter] if isinstance(parameter, str) else parameter
    new = object.__new__(MetaData.__class_getitem__(parameter))
    new.__setstate__(state)
    return new


def _name_of(parameter: Any) -> str:
    return parameter.__name__ if isinstance(parameter, type) and not typing.get_args(parameter) else str(parameter)


def _is_instance(value: object, expected: Any) -> bool:
    """``isinstance`` that checks the origin of ``list[int]`` and accepts what cannot be checked."""
    if isinstance(expected, types.UnionType) or typing.get_origin(expected) is typing.Union:
        return any(_is_instance(value, member) for member in typing.get_args(expected))
    if expected is None:
        return value is None
    kind = typing.get_origin(expected) or expected
    return not isinstance(kind, type) or isinstance(value, kind)


# Types that a saved folder may name: nothing is imported for it.
_SAVED_TYPES = {kind.__name__: kind for kind in (str, int, float, bool, complex, bytes, list, tuple, dict, set)}


def typed_by_name(name: str) -> type[MetaData]:
    """``MetaData[int]`` for ``"MetaData[int]"``; ``MetaData`` for types that this program has not used."""
    for cls in _typed.values():
        if cls.__name__ == name:
            return cls
    kind = _SAVED_TYPES.get(name.removeprefix("MetaData[").removesuffix("]"))
    return MetaData if kind is None else MetaData.__class_getitem__(kind)
