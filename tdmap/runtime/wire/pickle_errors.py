"""Finds what cannot be sent to a worker, so that the error can name it."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator

from tdmap.job import function_name
from tdmap.runtime.wire.packing import Packer, is_of_pickling

MAX_DEPTH = 4


def explain_unpicklable(fn: object, error: BaseException) -> str:
    """A message that names the object inside `fn` which cannot be serialised."""
    path, value = find_unpicklable(fn)
    head = f"the function {function_name(fn)} cannot be sent to the workers: "
    tail = (
        ' Open or build it inside the function, keep it in a module that workers can import, or use executor="thread".'
    )
    reason = f"{type(error).__name__}: {error}"
    if _is_compiled(value):
        what = f"it refers to {path}, which was" if path else "it was"
        return f"{head}{what} compiled by torch.compile. Compile it in the worker, on first use: see functools.cache."
    if not path:
        return f"{head}{reason}.{tail}"
    return f"{head}it refers to {path}, a {type(value).__qualname__}, which is not serialisable ({reason}).{tail}"


def _is_compiled(value: object) -> bool:
    return isinstance(value, types.FunctionType) and hasattr(value, "_torchdynamo_orig_callable")


def find_unpicklable(value: object, path: str = "", depth: int = 0) -> tuple[str, object]:
    """The innermost part of `value` that cannot be packed, and how one gets there."""
    if depth < MAX_DEPTH:
        for name, part in _parts(value):
            if not _packs(part):
                separator = "" if not path or not name or name[0] in ".[" else ", "
                return find_unpicklable(part, f"{path}{separator}{name}", depth + 1)
    return path, value


def _packs(value: object) -> bool:
    try:
        Packer(private=True).dumps(value)
    except Exception as error:
        if not is_of_pickling(error):
            raise
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """What an object refers to, by the name that its author uses; empty where that is not the caller."""
    if isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif _is_compiled(value):
        return
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield f"{value.__name__}'s variable {name!r}", cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        for name, parameter in inspect.signature(value).parameters.items():
            if parameter.default is not parameter.empty:
                yield f"{value.__name__}'s default of {name!r}", parameter.default
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield f"{value.__name__}'s global {name!r}", value.__globals__[name]
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    else:
        parts = getattr(value, "__dict__", {}).items()
        own = type(value).__module__.partition(".")[0] == "tdmap"
        yield from (("" if own else f".{name}", part) for name, part in parts)
