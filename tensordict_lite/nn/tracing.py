"""Modules under ``torch.fx.symbolic_trace``, where tensors are proxies and shapes are unknown.

The traced graph computes on tensors only. While it is recorded, a plain table (:class:`TracedEntries`) replaces the
tensordict. When the graph runs, a proxy may be a tensordict or a tensor, so the graph begins with :func:`read_inputs`
and ends with :func:`write_outputs`, which accept both::

    graph:  read_inputs(tensordict, args, kwargs, ...) -> tensors -> the wrapped modules -> write_outputs(...)

If the call names its tensors (``module(x=proxy)``), they are tensors, and the graph has neither function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx
from torch.fx import Proxy

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import require_path, unravel_key

__all__ = ["TracedEntries", "is_traced", "read_inputs", "record", "write_outputs"]


class TracedEntries:
    """Replaces a tensordict while a graph is recorded: entries under flat keys, without shapes."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries
        self.written: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        return self.entries.get(unravel_key(key), default)

    def __getitem__(self, key: Any) -> Any:
        key = unravel_key(key)
        if key not in self.entries:
            raise KeyError(f"there is no entry {key!r} while the module is traced; there are {list(self.entries)}")
        return self.entries[key]

    def set(self, key: Any, value: Any) -> TracedEntries:
        key = unravel_key(key)
        self.entries[key] = self.written[key] = value
        return self

    __setitem__ = set

    def keys(self, *args: Any, **kwargs: Any) -> list[Any]:
        return list(self.entries)

    def copy(self) -> TracedEntries:
        return TracedEntries(dict(self.entries))

    def empty(self) -> TracedEntries:
        return TracedEntries({})

    def select(self, *keys: Any, strict: bool = True) -> TracedEntries:
        return TracedEntries({key: self.entries[key] for key in keys if strict or key in self.entries})

    def update(self, other: Any) -> TracedEntries:
        for key, value in (other.entries if isinstance(other, TracedEntries) else other).items():
            self.set(key, value)
        return self

    def __getattr__(self, name: str) -> Any:
        raise TypeError(
            f"a module that uses the tensordict itself (here: .{name}) cannot be traced by torch.fx, which supports "
            "tensors only. torch.export and torch.compile take tensordicts."
        )


def is_traced(tensordict: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call is being recorded by ``torch.fx``."""
    if isinstance(tensordict, Proxy) or type(args) is not tuple or type(kwargs) is not dict:
        return True
    return any(isinstance(value, Proxy) for value in (*args, *kwargs.values()))


def named_inputs(
    positional: tuple[Any, ...], kwargs: dict[str, Any], in_keys: Sequence[Any], separator: str
) -> dict[Any, Any]:
    """The inputs by key; those given by name are removed from ``kwargs``."""
    count = len(positional)
    entries = {}
    for place, key in enumerate(in_keys):
        name = key if type(key) is str else separator.join(require_path(key))
        if place < count:
            if name in kwargs:
                raise RuntimeError(f"Duplicated argument in args and kwargs: {name!r} is given by position and by name")
            entries[key] = positional[place]
        elif name in kwargs:
            entries[key] = kwargs.pop(name)
    return entries


def record(
    run: Callable[[TracedEntries, dict[str, Any]], Any],
    tensordict: Any,
    args: Any,
    kwargs: Any,
    in_keys: list[Any],
    out_keys: list[Any],
    separator: str,
) -> Any:
    """Record a call of a module; ``run`` is its forward on :class:`TracedEntries`."""
    if isinstance(tensordict, Proxy) and not (type(args) is tuple and args) and not _names_inputs(kwargs):
        if type(args) is tuple:  # a call inside a traced module: only this proxy
            return _record_either(run, tensordict, (), {}, in_keys, out_keys, separator, kwargs)
        return _record_either(run, tensordict, args, kwargs, in_keys, out_keys, separator, {})  # the traced module
    positional = () if tensordict is None and not args else (tensordict, *args)
    entries = named_inputs(positional, kwargs, in_keys, separator)
    slots = run(TracedEntries(entries), kwargs)
    out = tuple(slots[key] for key in out_keys if key != "_")
    return out[0] if len(out) == 1 else out


def _names_inputs(kwargs: Any) -> bool:
    return type(kwargs) is dict and any(isinstance(value, Proxy) for value in kwargs.values())


def _record_either(
    run: Any, tensordict: Any, args: Any, kwargs: Any, in_keys: Any, out_keys: Any, separator: str, extra: Any
) -> Any:
    tracer = tensordict.tracer
    spec = (list(in_keys), separator)
    read = tracer.create_proxy("call_function", read_inputs, (tensordict, args, kwargs, *spec), {})
    slots = run(TracedEntries({key: read[place] for place, key in enumerate(in_keys)}), dict(extra))
    keys = [key for key in out_keys if key != "_"]
    values = [slots[key] for key in keys]
    return tracer.create_proxy("call_function", write_outputs, (tensordict, keys, values), {})


@torch.fx.wrap
def read_inputs(tensordict: Any, args: Any, kwargs: Any, in_keys: list[Any], separator: str) -> list[Any]:
    """The tensors of a call with a tensordict or with tensors."""
    keys = [tuple(key) if isinstance(key, list) else key for key in in_keys]
    if isinstance(tensordict, TensorCollection):
        return [tensordict[key] for key in keys]
    args, kwargs = args or (), dict(kwargs or {})
    entries = named_inputs(() if tensordict is None and not args else (tensordict, *args), kwargs, keys, separator)
    return [entries[key] for key in keys]


@torch.fx.wrap
def write_outputs(tensordict: Any, out_keys: list[Any], values: list[Any]) -> Any:
    """The result of the call: the tensordict with the results, or the results."""
    if isinstance(tensordict, TensorCollection):
        for key, value in zip(out_keys, values):
            tensordict.set(tuple(key) if isinstance(key, list) else key, value)
        return tensordict
    return values[0] if len(values) == 1 else tuple(values)
