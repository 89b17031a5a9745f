"""Functions that build collections from dicts, tuples, dataclasses and structured arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite import registry
from tensordict_lite.kernel import DeviceLike, Kernel


def from_mapping(
    cls: Any,
    data: Any,
    like: Any,
    auto_batch_size: bool | None,
    batch_size: Any,
    device: Any,
    batch_dims: int | None,
    names: Any,
) -> Any:
    if batch_size is not None and batch_dims is not None:
        raise ValueError(f"give either batch_size or batch_dims, not both: got {batch_size} and {batch_dims}")
    if isinstance(data, (list, tuple)) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in data):
        data = dict(data)
    if not isinstance(data, Mapping):
        raise TypeError(f"expected a mapping from keys to values, got a {type(data).__name__}")
    size = torch.Size(batch_size if batch_size is not None else ())
    new = cls({}, batch_size=size, device=device, names=names if size else None)
    entries = new._source
    direct = new._device is None
    dims = len(size)
    # Nested keys come last, as in the constructor.
    items = data.items() if all(type(key) is str for key in data) else sorted(data.items(), key=_is_nested)
    for key, value in items:
        if (
            type(value) is Tensor
            and direct
            and type(key) is str
            and (not dims or (not value.is_nested and value.shape[:dims] == size))
        ):
            entries[key] = value
            continue
        if like is None and type(value) is dict and type(key) is str and key not in entries:
            entries[key] = from_mapping(cls, value, None, None, size, device, None, new._names)
            continue
        if like is not None and like._leaves_unset(key, value):
            continue
        template = like.get(key, None) if like is not None else None
        held = getattr(template, "_payload", template)  # unwrapped
        if (size or type(held) is type(value)) and type(value) in (int, float, bool):
            new.set_non_tensor(key, value)
        elif template is not None and isinstance(value, Mapping) and isinstance(template, Kernel):
            new.set(key, _from_template(template, value, size, device))
        else:
            # update(): a nested dict and a tuple key may extend the same level.
            new.update({key: _as_entry(value, size, device)})
    if batch_size is None and (auto_batch_size or (auto_batch_size is None and batch_dims is not None)):
        new.auto_batch_size_(batch_dims)
    return new


def _is_nested(item: tuple[Any, Any]) -> bool:
    return type(item[0]) is not str


def _from_template(template: Any, value: Mapping[Any, Any], size: torch.Size, device: DeviceLike | None) -> Any:
    """A nested dict in the class that the template has under this key."""
    if template._is_non_tensor:
        return value
    plain = template._plain_class()
    td = from_mapping(plain, value, template, None, size, device, None, None)
    if isinstance(template, plain) or not hasattr(type(template), "from_tensordict"):
        return td
    return type(template).from_tensordict(td)


def _as_entry(value: Any, size: torch.Size, device: Any) -> Any:
    """A value of a dict as an entry: containers become collections; ``set`` converts the rest."""
    if isinstance(value, Mapping) and not isinstance(value, Kernel):
        return from_any(value, batch_size=size, device=device)
    if isinstance(value, list):
        return _from_list_value(value, device)
    if isinstance(value, tuple) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return value if isinstance(value, Kernel) else from_any(value, batch_size=size, device=device)
    return value


def from_any(
    obj: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: DeviceLike | None = None,
    batch_size: Sequence[int] | None = None,
) -> Any:
    """Convert containers to collections, recursively.

    Mappings, tuples, named tuples, dataclasses and structured arrays become TensorDicts. A list becomes a
    tensor if it holds numbers, else a :class:`NonTensorStack`. Other objects are returned unchanged.

    Args:
        obj: the object.
        auto_batch_size: infer the batch size from the entries.
        batch_dims: longest batch size to infer.
        device: device of the result.
        batch_size: the batch size.

    Example:
        >>> td = from_any({"obs": torch.zeros(3), "pair": (torch.zeros(3), 1)})
        >>> sorted(td.keys(True, True), key=str)
        [('pair', '0'), ('pair', '1'), 'obs']
    """
    options: dict[str, Any] = {
        "auto_batch_size": auto_batch_size,
        "batch_dims": batch_dims,
        "device": device,
        "batch_size": batch_size,
    }
    if isinstance(obj, Tensor) or isinstance(obj, Kernel):
        return obj
    if isinstance(obj, Mapping):
        if batch_dims is not None and (batch_size is not None or not auto_batch_size):
            options["batch_dims"] = None
        return registry.TensorDict.from_dict(obj, **options)
    if isinstance(obj, np.ndarray) and obj.dtype.names:
        return from_struct_array(obj, **options)
    if isinstance(obj, tuple):
        return from_namedtuple(obj, **options) if hasattr(obj, "_fields") else from_tuple(obj, **options)
    if isinstance(obj, list):
        return _from_list_value(obj, device)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return registry.TensorDict.from_dataclass(obj, **options)
    return obj


def _from_list_value(obj: list[Any], device: Any) -> Any:
    first: Any = obj
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, Kernel) and not first._is_non_tensor:
        return registry.from_sequence(obj, torch.Size(()), device)
    if not isinstance(first, Kernel):  # torch would turn these into rows without elements
        with suppress(TypeError, ValueError, RuntimeError):
            return torch.as_tensor(obj, device=device)
    if all(isinstance(part, list) for part in obj):  # one dimension per level, as in the constructor
        return registry.NonTensorStack.from_list(obj, device=device)
    return registry.NonTensorStack(*obj, device=device)


def from_namedtuple(
    named_tuple: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: DeviceLike | None = None,
    batch_size: Sequence[int] | None = None,
) -> Any:
    """A TensorDict with the fields of a named tuple, each converted with :func:`from_any`.

    Example:
        >>> from_namedtuple(torch.tensor([[2, 0, 1]]).max(dim=1))["indices"]
        tensor([0])
    """
    fields = getattr(named_tuple, "_fields", None)
    if fields is None:  # torch's return types have no _fields
        fields = [name for name in dir(type(named_tuple)) if _is_field(named_tuple, name)]
    data = {name: getattr(named_tuple, name) for name in fields}
    return build(data, "from_namedtuple", auto_batch_size, batch_dims, device, batch_size)


def _is_field(value: object, name: str) -> bool:
    return type(getattr(type(value), name)).__name__ == "member_descriptor" and not name.startswith("_")


def from_tuple(
    obj: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: DeviceLike | None = None,
    batch_size: Sequence[int] | None = None,
) -> Any:
    """A TensorDict with the elements of a tuple under ``"0"``, ``"1"``..., each converted with :func:`from_any`.

    Example:
        >>> from_tuple((torch.zeros(3, 4), torch.ones(3)), auto_batch_size=True).batch_size
        torch.Size([3])
    """
    data = {str(i): item for i, item in enumerate(obj)}
    return build(data, "from_tuple", auto_batch_size, batch_dims, device, batch_size)


def build(
    data: dict[str, Any],
    caller: str,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: DeviceLike | None = None,
    batch_size: Sequence[int] | None = None,
) -> Any:
    if auto_batch_size and batch_size is not None:
        raise TypeError(
            f"{caller}() infers the batch size (auto_batch_size=True) or is given one, not both: {batch_size}"
        )
    entries = {key: from_any(value, device=device) for key, value in data.items()}
    size = torch.Size(batch_size if batch_size is not None else ())
    new = registry.TensorDict(entries, batch_size=size, device=device)
    return new.auto_batch_size_(batch_dims) if auto_batch_size else new


def from_struct_array(
    struct_array: np.ndarray,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: DeviceLike | None = None,
    batch_size: Sequence[int] | None = None,
) -> Any:
    """A TensorDict with the fields of a numpy structured array; numbers share its memory where torch can.

    Args:
        struct_array: the array. Nested fields become nested collections, text and objects non-tensor data.
        auto_batch_size: infer the batch size instead of taking the shape of the array.
        batch_dims: longest batch size to infer.
        device: device of the result.
        batch_size: the batch size, by default the shape of the array.

    Raises:
        TypeError: both ``auto_batch_size`` and ``batch_size``.

    Example:
        >>> import numpy as np
        >>> people = np.array([(9, 81.0), (3, 27.0)], dtype=[("age", "i4"), ("weight", "f4")])
        >>> from_struct_array(people)["age"]
        tensor([9, 3], dtype=torch.int32)
    """
    if auto_batch_size and batch_size is not None:
        raise TypeError(f"from_struct_array() infers the batch size or is given one, not both: {batch_size}")
    size = torch.Size(struct_array.shape if batch_size is None else batch_size)
    entries: dict[str, Any] = {}
    for name in struct_array.dtype.names or ():
        column = struct_array[name]
        if column.dtype.names:
            entries[name] = from_struct_array(column, device=device)
        else:
            entries[name] = column
    new = registry.TensorDict(entries, batch_size=size, device=device)
    return new.auto_batch_size_(batch_dims) if auto_batch_size else new


def tensors_of_dlpack(arrays: Any, path: tuple[Any, ...] = ()) -> dict[Any, Any]:
    """Nested mappings of arrays of any library as nested dicts of tensors that share their memory.

    Args:
        arrays: the mapping.
        path: position in the mapping of the caller, for messages.

    Raises:
        TypeError: a value does not support DLPack.
        ValueError: a library cannot export an array: missing values, or a dtype that the protocol lacks.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(f"expected arrays under their keys, got a {type(arrays).__name__}: from_dlpack({{'x': array}})")
    out: dict[Any, Any] = {}
    for key, value in arrays.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            out[key] = tensors_of_dlpack(value, here)
        elif isinstance(value, Tensor):
            out[key] = value
        elif not hasattr(type(value), "__dlpack__"):
            raise TypeError(f"the entry {here} is a {type(value).__name__}, which has no __dlpack__: use from_dict()")
        else:
            try:
                out[key] = torch.utils.dlpack.from_dlpack(value)
            except Exception as err:  # each library raises its own exceptions
                raise ValueError(f"the entry {here}, a {type(value).__name__}, cannot be shared: {err}") from err
    return out


def make_tensordict(
    input_dict: Any = None,
    batch_size: Sequence[int] | torch.Size | None = None,
    device: DeviceLike | None = None,
    auto_batch_size: bool | None = None,
    **kwargs: Any,
) -> Any:
    """A TensorDict from a dict, keyword arguments, or both (the dict has precedence).

    Args:
        input_dict: the entries.
        batch_size: the batch size.
        device: device of the result.
        auto_batch_size: infer the batch size, at each level.
        **kwargs: more entries.

    Example:
        >>> make_tensordict(a=torch.zeros(3, 4), auto_batch_size=True).batch_size
        torch.Size([3, 4])
    """
    if input_dict is not None:
        kwargs.update(input_dict.items() if hasattr(input_dict, "items") else input_dict)
    return registry.TensorDict.from_dict(kwargs, auto_batch_size=auto_batch_size, batch_size=batch_size, device=device)
