"""The base classes of all collections: the kernel with every family of operations."""

from __future__ import annotations

import types
from collections.abc import Callable, MutableMapping
from typing import Any

from tensordict_lite.api.convert import ConvertOps
from tensordict_lite.api.distributed import DistributedOps
from tensordict_lite.api.engine import EngineOps
from tensordict_lite.api.modules import ModuleOps
from tensordict_lite.api.storage import StorageOps
from tensordict_lite.api.tables import TableOps
from tensordict_lite.keys import KEY_SEPARATOR
from tensordict_lite.ops.cast import CastOps
from tensordict_lite.ops.keys import KeyOps
from tensordict_lite.ops.reduce import ReductionOps
from tensordict_lite.ops.rows import RowOps
from tensordict_lite.ops.update import UpdateOps
from tensordict_lite.ops.values import ValueOps

__all__ = ["KEY_SEPARATOR", "TensorCollection", "TensorDictBase", "is_tensor_collection"]


HANDLED: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The meaning of torch functions on collections; ``hooks/torch_function.py`` fills it."""


class TensorCollection(
    KeyOps,
    UpdateOps,
    RowOps,
    ValueOps,
    ReductionOps,
    CastOps,
    ConvertOps,
    TableOps,
    StorageOps,
    ModuleOps,
    DistributedOps,
    EngineOps,
):
    """Base class of everything that holds tensors under keys with a shared leading shape.

    ``isinstance(x, TensorCollection)`` is true for :class:`TensorDict`, lazy stacks, tensorclasses and non-tensor data;
    :class:`TensorDictBase` excludes tensorclasses.
    """

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        handler = HANDLED.get(func)
        if handler is None:
            return NotImplemented
        return handler(*args, **kwargs) if kwargs else handler(*args)


class TensorDictBase(TensorCollection):
    """Base of :class:`TensorDict` and :class:`LazyStackedTensorDict`, not of tensorclasses."""

    __slots__ = ()
    __class_getitem__: Any = classmethod(types.GenericAlias)  # TensorDict[str, Tensor], in annotations


MutableMapping.register(TensorDictBase)


def is_tensor_collection(value: object) -> bool:
    """Whether ``value`` (an instance or a class) is a TensorDict, a lazy stack, a tensorclass or another collection.

    Example:
        >>> is_tensor_collection(TensorDict()), is_tensor_collection({})
        (True, False)
    """
    if isinstance(value, type):
        return issubclass(value, TensorCollection)
    return isinstance(value, TensorCollection)
