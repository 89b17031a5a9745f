"""Calling functions of a tensordict with tensors.

::

    module(td)                      ->  forward(td)
    module(tensor, key=tensor)      ->  forward(TensorDict of them)  ->  the entries of the result
    module(a torch.fx Proxy)        ->  recorded, see ``tracing``
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import NestedKey, unravel_key_list
from tensordict_lite.nn import tracing

__all__ = ["dispatch"]

_SCALAR = torch.Size(())
_ENABLED = os.environ.get("DISPATCH_TDNN_MODULES", "1").lower() not in ("0", "false", "no", "off")


class dispatch:
    """Let a function of a tensordict be called with tensors: by position or by the name of their key.

    The first argument of the function (after ``self``) must be named ``tensordict``. Called with a tensordict, the
    function is unchanged. Tensors are put into a new TensorDict, and the entries at the output keys are returned: one
    tensor for one key, a tuple for several (``"_"`` is dropped). Other arguments are passed on.

    Args:
        separator: joins the parts of a nested key to the name of an argument: ``("a", "b")`` becomes ``a_b=``.
        source: the input keys, or the name of the attribute that holds them. Default ``"in_keys"``.
        dest: the output keys, or the name of the attribute that holds them. Default ``"out_keys"``.
        auto_batch_size: give the new TensorDict the longest batch size that all inputs share; else an empty one.

    The environment variable ``DISPATCH_TDNN_MODULES=0``, set before the import, leaves decorated functions unchanged.

    Raises:
        RuntimeError: the first argument has another name; an input is given both by position and by name.

    Example:
        >>> class AddOne(torch.nn.Module):
        ...     in_keys, out_keys = ["a"], ["b"]
        ...     @dispatch
        ...     def forward(self, tensordict):
        ...         return tensordict.set("b", tensordict["a"] + 1)
        >>> AddOne()(a=torch.zeros(2)), AddOne()(torch.zeros(2))
        (tensor([1., 1.]), tensor([1., 1.]))
    """

    DEFAULT_SEPARATOR = "_"
    DEFAULT_SOURCE = "in_keys"
    DEFAULT_DEST = "out_keys"

    def __new__(cls, separator: Any = "_", *args: Any, **kwargs: Any) -> Any:
        if callable(separator):  # used without parentheses
            made = object.__new__(cls)
            made.__init__(*args, **kwargs)  # type: ignore[misc]
            return made(separator)
        return object.__new__(cls)

    def __init__(
        self,
        separator: str = "_",
        source: str | Sequence[NestedKey] = "in_keys",
        dest: str | Sequence[NestedKey] = "out_keys",
        auto_batch_size: bool = True,
    ) -> None:
        if not isinstance(separator, str):
            raise TypeError(f"dispatch(separator=) is a string, got {separator!r}")
        self.separator = separator
        self.source = source if isinstance(source, str) else unravel_key_list(list(source))
        self.dest = dest if isinstance(dest, str) else unravel_key_list(list(dest))
        self.auto_batch_size = auto_batch_size

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(func).parameters)
        is_method = names[:1] != ["tensordict"] and len(names) > 1
        first = names[1 if is_method else 0] if names else None
        if first != "tensordict":
            raise RuntimeError(
                f"the first argument of the wrapped function must be named 'tensordict', got {first!r} in "
                f"{getattr(func, '__qualname__', func)!r}"
            )
        if not _ENABLED:
            return func
        call = _Call(self, func)

        def method(self: Any, tensordict: Any = None, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensordict, TensorCollection):
                return func(self, tensordict, *args, **kwargs)
            return call((self,), tensordict, args, kwargs)

        def function(tensordict: Any = None, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensordict, TensorCollection):
                return func(tensordict, *args, **kwargs)
            return call((), tensordict, args, kwargs)

        made = method if is_method else function
        # Not functools.wraps: torch.fx would follow `__wrapped__` and use the inner signature.
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(made, name, getattr(func, name))
        return made


class _Call:
    """The general path of one decorated function: any first argument but a tensordict."""

    __slots__ = ("_auto", "_dest", "_func", "_separator", "_source")

    def __init__(self, options: dispatch, func: Callable[..., Any]) -> None:
        self._func = func
        self._source = options.source
        self._dest = options.dest
        self._separator = options.separator
        self._auto = options.auto_batch_size

    def __call__(self, owner: tuple[Any, ...], tensordict: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(tensordict, tracing.TracedEntries):
            return self._func(*owner, tensordict, *args, **kwargs)
        in_keys = self._keys(self._source, owner)
        if tracing.is_traced(tensordict, args, kwargs):
            out_keys = self._keys(self._dest, owner)
            run = lambda slots, extra: self._func(*owner, slots, **extra)  # noqa: E731
            return tracing.record(run, tensordict, args, kwargs, in_keys, out_keys, self._separator)
        if "tensordict" in kwargs and "tensordict" not in in_keys:
            td = kwargs.pop("tensordict")
            if isinstance(td, (TensorCollection, tracing.TracedEntries)):
                rest = args if tensordict is None else (tensordict, *args)
                return self._func(*owner, td, *rest, **kwargs)
            raise TypeError(f"tensordict= takes a tensordict, got a {type(td).__name__}; the inputs are {in_keys}")
        positional = () if tensordict is None and not args else (tensordict, *args)
        entries = tracing.named_inputs(positional, kwargs, in_keys, self._separator)
        result = self._func(*owner, make_input(entries, self._auto), *positional[len(in_keys) :], **kwargs)
        if not isinstance(result, TensorCollection):
            raise TypeError(
                f"{getattr(self._func, '__qualname__', self._func)} under dispatch must return a tensordict, "
                f"got a {type(result).__name__}"
            )
        # read here, since the call may change the keys
        return outputs_of(result, self._keys(self._dest, owner))

    def _keys(self, keys: Any, owner: tuple[Any, ...]) -> list[Any]:
        if not isinstance(keys, str):
            return keys
        if not owner:
            raise RuntimeError(
                f"dispatch reads the keys from the attribute {keys!r} of self, but this function has no self: give "
                "them, @dispatch(source=[...], dest=[...])"
            )
        return getattr(owner[0], keys)


def make_input(entries: Mapping[Any, Any], auto_batch_size: bool) -> TensorDict:
    """A TensorDict of the inputs; an input that is None is left out."""
    if not auto_batch_size:
        if all(type(value) is Tensor and type(key) is str for key, value in entries.items()):
            return TensorDict._trusted(dict(entries), _SCALAR)
    td = TensorDict({}, batch_size=_SCALAR)
    for key, value in entries.items():
        if value is not None:
            td.set(key, value)
    return td.auto_batch_size_() if auto_batch_size and len(td._source) else td


def outputs_of(result: Any, out_keys: Sequence[Any]) -> Any:
    """The entries at the output keys: the value of one key, a tuple of several."""
    if len(out_keys) == 1 and out_keys[0] != "_":
        return result[out_keys[0]]
    out = tuple([result[key] for key in out_keys if key != "_"])
    return out[0] if len(out) == 1 else out
