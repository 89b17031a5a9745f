"""The base classes of all collections: the kernel with every family of operations."""

from __future__ import annotations

import types
from collections.abc import Callable, MutableMapping
from typing import Any

from tensordict_lite.hooks.table import HANDLED
from tensordict_lite.keys import KEY_SEPARATOR
from tensordict_lite.ops import Families

__all__ = ["KEY_SEPARATOR", "TensorCollection", "TensorDictBase", "is_tensor_collection"]


class TensorCollection(Families):
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
        >>> from tensordict_lite import TensorDict
        >>> is_tensor_collection(TensorDict()), is_tensor_collection({})
        (True, False)
    """
    if isinstance(value, type):
        return issubclass(value, TensorCollection)
    return isinstance(value, TensorCollection)
