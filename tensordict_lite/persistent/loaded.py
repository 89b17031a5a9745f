"""Methods of a TensorDict on entries in a file: all are loaded, and what a method changes in place is written back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.kernel import Kernel

if TYPE_CHECKING:
    from tensordict_lite.persistent.collection import PersistentTensorDict

__all__ = ["LoadedOps"]

_KERNEL = frozenset(vars(Kernel)) | {"memmap_", "share_memory_", "is_memmap", "is_shared", "to_h5"}
_IN_PLACE = re.compile(
    r"[a-z]\w*[a-z0-9]_|clear|pop|popitem|setdefault|set_non_tensor|__i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor)__"
)
_OPERATORS = re.compile(
    r"__r?(?:add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|eq|ne|lt|le|gt|ge)__|__(?:neg|abs|invert)__"
)


def _through_memory(name: str) -> Callable[..., Any]:
    """A method of a TensorDict on the loaded entries; what it changes in place is written back."""
    inherited = getattr(TensorDict, name)
    writes = _IN_PLACE.fullmatch(name) is not None

    @functools.wraps(inherited)
    def method(self: PersistentTensorDict, *args: Any, **kwargs: Any) -> Any:
        memory = self._loaded()
        if self._lock is not None:
            memory.lock_()
        result = getattr(memory, name)(*args, **kwargs)
        if writes or kwargs.get("inplace"):
            self._store(memory)
        return self if result is memory else result

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: PersistentTensorDict, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Cannot call {name} on a PersistentTensorDict, whose entries are in a file. Call to_tensordict() first."
        )

    method.__name__, method.__doc__ = name, "Not of entries in a file: NotImplementedError."
    return method


def _methods() -> dict[str, Callable[..., Any]]:
    """By name: the methods of a TensorDict that say nothing about single entries."""
    out = {}
    for name in dir(TensorDict):
        found = next((vars(base)[name] for base in TensorDict.__mro__ if name in vars(base)), None)
        is_public = not name.startswith("_") or _IN_PLACE.fullmatch(name) or _OPERATORS.fullmatch(name)
        if is_public and name not in _KERNEL and callable(found):
            if not isinstance(found, (classmethod, staticmethod, type)):
                out[name] = _through_memory(name)
    return {**out, **{name: _refused(name) for name in ("share_memory_", "memmap_")}}


class LoadedOps:
    """The methods that load all entries. A class before it in the order of bases has those that need not."""

    __slots__ = ()
    vars().update(_methods())
