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

_KERNEL = frozenset(vars(Kernel)) | {"memmap_", "share_memory_", "is_memmap", "is_shared", "to_h5", "to_zarr"}
_IN_PLACE = re.compile(
    r"[a-z]\w*[a-z0-9]_|clear|pop|popitem|setdefault|set_non_tensor|__i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor)__"
)
_ALSO = frozenset(
    ("cat_tensors", "create_nested", "load_state_dict", "make_memmap", "make_memmap_from_storage")
    + ("make_memmap_from_tensor", "refine_names", "separates", "stack_tensors")
)
"""What changes a collection in place, though its name does not end in an underscore."""
_OPERATORS = re.compile(
    r"__r?(?:add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|eq|ne|lt|le|gt|ge)__|__(?:neg|abs|invert)__"
)


def _through_memory(name: str) -> Callable[..., Any]:
    """A method of a TensorDict on the loaded entries; what it changes in place is written back."""
    inherited = getattr(TensorDict, name)
    writes = name in _ALSO or _IN_PLACE.fullmatch(name) is not None
    at = _position_of_inplace(inherited)

    @functools.wraps(inherited)
    def method(self: PersistentTensorDict, *args: Any, **kwargs: Any) -> Any:
        memory = self._loaded()
        if self._lock is not None:
            memory.lock_()
        into = kwargs.get("out") is self
        if into:
            kwargs["out"] = memory
        result = getattr(memory, name)(*args, **kwargs)
        if writes or into or kwargs.get("inplace") or (at is not None and len(args) > at and args[at]):
            self._store(memory)
            self._batch_size, self._names = memory._batch_size, memory._names
        return self if result is memory else result

    return method


def _position_of_inplace(method: Any) -> int | None:
    """Which positional argument after ``self`` says that a method works in place; ``None`` where none does."""
    code = getattr(method, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return names.index("inplace") - 1 if "inplace" in names else None


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
