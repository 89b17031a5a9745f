"""Attributes of a :class:`TensorDictParams`: what torch reads, swaps and registers in its ``_parameters``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.storage import DenseCollection
from tensordict_lite.strided import UninitializedTensorMixin

__all__ = ["SlotLevel", "ModuleState", "TensorSlots"]

_set = object.__setattr__


class SlotLevel:
    """The entries of a nested collection as attributes, inside a graph."""

    def __init__(self, td: Any) -> None:
        self._td = td

    def __getattr__(self, name: str) -> Any:
        value = self._td._source.get(name)
        if value is None:
            raise AttributeError(f"these parameters have no entry {name!r}")
        return value if isinstance(value, Tensor) else SlotLevel(value)


class TensorSlots(dict[str, Any]):
    """Tensors of a collection by dotted name, as torch looks them up; assignments and deletions change the collection.

    Used by :func:`torch.func.functional_call`, which swaps tensors in and out.
    """

    def __init__(self, found: dict[str, Any], root: Any) -> None:
        super().__init__(found)
        self._root = root

    def _level(self, name: str) -> tuple[dict[str, Any], str]:
        *path, key = name.split(".")
        node = self._root
        if name not in node._source:
            for part in path:
                node = node._source[part]
            return node._source, key
        return node._source, name

    def __setitem__(self, name: str, value: object) -> None:
        source, key = self._level(name)
        if value is None:
            source.pop(key, None)
        else:
            source[key] = value
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        source, key = self._level(name)
        del source[key]
        super().__delitem__(name)


class ModuleState(DenseCollection):
    """Mixin for entries as attributes, and sub-modules next to the entries."""

    __slots__ = ()

    # Dotted names whose tensors ``to_module`` replaced by tensors that carry gradients, and that are not Parameters.
    _places: set[str]

    def _is_parameter(self, name: str, value: Tensor) -> bool:
        if isinstance(value, nn.Parameter):
            return True
        return name in self._places and value.requires_grad and not isinstance(value, nn.Buffer)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            _set(self, name, value)
        elif isinstance(value, (nn.Parameter, nn.Buffer, UninitializedTensorMixin)):
            self._forget(name)
            self.set(name, value)
        elif not isinstance(value, TensorCollection) and isinstance(value, nn.Module):
            self._drop(name)
            self._forget(name)
            self.__dict__["_modules"][name] = value
        elif isinstance(self._source.get(name), Tensor):
            self._assign(name, value)
        else:
            _set(self, name, value)

    def _assign(self, name: str, value: Any) -> None:
        """Replace a tensor: None removes it, a plain tensor may replace a buffer."""
        if value is None:
            self.del_(name)
        elif self._is_parameter(name, self._source[name]):
            raise TypeError(
                f"cannot assign {_kind(value)!r} as parameter {name!r} (torch.nn.Parameter or None expected): "
                f"wrap it in a torch.nn.Parameter, or copy into the one that is there, params.set_({name!r}, ...)"
            )
        elif isinstance(value, Tensor):
            self.set(name, nn.Buffer(value))
        else:
            raise TypeError(
                f"cannot assign {type(value).__name__!r} as buffer {name!r} (torch.nn.Buffer, torch.Tensor or None "
                "expected): delete the entry first"
            )

    def _forget(self, name: str) -> None:
        """Remove attributes of this name that were not entries."""
        self.__dict__.pop(name, None)
        self.__dict__["_modules"].pop(name, None)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        elif name in self.__dict__["_modules"]:
            del self.__dict__["_modules"][name]
        elif name in self._source:
            self.del_(name)
        else:
            object.__delattr__(self, name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter as an entry, or replace one; None adds nothing.

        Raises:
            KeyError: the name is taken by an attribute or by an entry that is not a parameter, or has a dot.
            TypeError: not a parameter.
        """
        self._check_name(name, self._parameters)  # type: ignore[attr-defined]
        if param is None:
            self._drop(name)
            return
        if not isinstance(param, nn.Parameter):
            raise TypeError(
                f"cannot assign {_kind(param)!r} object to parameter {name!r} (torch.nn.Parameter or None "
                "required): wrap a tensor in a torch.nn.Parameter"
            )
        self.set(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer as an entry, or replace one; None adds nothing.

        Args:
            name: its name.
            tensor: the tensor.
            persistent: whether it is in the state dict.

        Raises:
            KeyError: the name is taken by an attribute or by an entry that is not a buffer, or has a dot.
            TypeError: not a tensor.
        """
        self._check_name(name, self._buffers)  # type: ignore[attr-defined]
        if tensor is None:
            self._drop(name)
            return
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign {type(tensor).__name__!r} object to buffer {name!r} (torch.Tensor or None required)"
            )
        self.set(name, nn.Buffer(tensor, persistent=persistent))
        if not persistent:
            self.__dict__["_non_persistent_buffers_set"].add(name)

    def _check_name(self, name: str, replaceable: Any) -> None:
        if "." in name or not name:
            raise KeyError(f"the name of a parameter or buffer has no dot and is not empty, got {name!r}")
        if name not in replaceable and (name in self._source or hasattr(self, name)):
            raise KeyError(f"attribute {name!r} already exists: choose another name, or delete it first")

    def _drop(self, name: str) -> None:
        if name in self._source:
            self.del_(name)


def _kind(value: object) -> str:
    return value.type() if isinstance(value, Tensor) else type(value).__name__
