"""Functions as other libraries have them: with the numbers of rows, with options, and with plain Python results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import torch

from tdmap.data.kinds import is_data
from tdmap.errors import OutputMismatch
from tdmap.job import function_name, takes_start
from tdmap.resume.fingerprint import function_parts
from tensordict_lite import TensorDict

_PLAIN = (dict, np.ndarray)


def with_habits(
    fn: Callable[..., Any], with_indices: bool = False, fn_kwargs: Mapping[str, Any] | None = None, single: bool = False
) -> Callable[..., Any]:
    """`fn` as the engine calls it: functions may return dicts of columns and arrays, and be called with more.

    Args:
        fn: the function. Functions, methods, partials and callable objects of users are changed; builtins, and
            objects of this package, only if the others ask for it.
        with_indices: call it with the numbers of the rows as second argument: int64 `[rows]`, or one int.
        fn_kwargs: call it with these keyword arguments.
        single: it is called with rows one by one.

    Raises:
        TypeError: `fn_kwargs` is no mapping of names.
    """
    if fn_kwargs is not None:
        if not isinstance(fn_kwargs, Mapping) or not all(isinstance(name, str) for name in fn_kwargs):
            raise TypeError(f"fn_kwargs must be a dict of keyword arguments: got {fn_kwargs!r:.80}.")
        if fn_kwargs:
            fn = functools.partial(fn, **fn_kwargs)
    theirs = not isinstance(fn, (BuiltinFunctionType, type)) and not type(fn).__module__.startswith("tdmap.")
    plain = theirs and not takes_start(fn)
    if with_indices:
        return Numbered(fn, single)
    return Returning(fn, single) if plain else fn


class Returning:
    """Calls a function that may return dicts and arrays, which become rows."""

    def __init__(self, fn: Callable[..., Any], single: bool) -> None:
        self.fn = fn
        self.single = single
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by: this wrapper adds nothing."""
        return function_parts(self.fn)

    def __call__(self, chunk: Any) -> Any:
        return plain_rows(self.fn(chunk), None if self.single else chunk)


class Numbered(Returning):
    """Calls a function with the numbers of its rows besides."""

    takes_start = True

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by, and that it gets row numbers."""
        return {**function_parts(self.fn), "with_indices": "True"}

    def __call__(self, chunk: Any, start: int = 0) -> Any:
        numbers = start if self.single else torch.arange(start, start + int(chunk.shape[0]))
        return plain_rows(self.fn(chunk, numbers), None if self.single else chunk)


def plain_rows(result: Any, chunk: Any) -> Any:
    """What a function has returned; a dict of columns as a TensorDict, an array as a tensor.

    Args:
        result: anything.
        chunk: what the function was called with: says how many rows a dict has that says nothing. None: one row.

    Raises:
        OutputMismatch: the columns of a dict differ in length.
    """
    if not isinstance(result, _PLAIN):
        return result
    if isinstance(result, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(result))
    try:
        return TensorDict(result, [] if chunk is None else [_rows_of(result, chunk)])
    except (RuntimeError, TypeError, ValueError) as error:
        raise OutputMismatch(
            f"the function returned a dict ({', '.join(map(repr, result))}), whose columns are no rows of one "
            f"length: {error}"
        ) from error


def _rows_of(result: dict[str, Any], chunk: Any) -> int:
    for value in result.values():
        if hasattr(value, "shape") and len(value.shape):
            return int(value.shape[0])
        if isinstance(value, list):
            return len(value)
    return int(chunk.shape[0]) if is_data(chunk) else 0
