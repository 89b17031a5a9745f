"""Functions as other libraries have them: with the numbers of rows, with options, and with plain Python results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
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
        fn: the function. Only plain functions, methods and partials are changed, unless the others ask for it.
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
    plain = isinstance(fn, (FunctionType, MethodType, functools.partial)) and not takes_start(fn)
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
        result = self.fn(chunk)
        return self.rows(result, chunk) if isinstance(result, _PLAIN) else result

    def rows(self, result: Any, chunk: Any) -> Any:
        """A dict as a TensorDict, an array as a tensor; rows without their dimension where the chunk is a row."""
        if isinstance(result, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(result))
        try:
            if self.single:
                return TensorDict(result, [])
            rows = _rows_of(result, chunk)
            return TensorDict(result, [rows])
        except (RuntimeError, TypeError, ValueError) as error:
            raise OutputMismatch(
                f"the function returned a dict ({', '.join(map(repr, result))}), whose columns are no rows of one "
                f"length: {error}"
            ) from error


class Numbered(Returning):
    """Calls a function with the numbers of its rows besides."""

    takes_start = True

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by, and that it gets row numbers."""
        return {**function_parts(self.fn), "with_indices": "True"}

    def __call__(self, chunk: Any, start: int = 0) -> Any:
        numbers = start if self.single else torch.arange(start, start + int(chunk.shape[0]))
        result = self.fn(chunk, numbers)
        return self.rows(result, chunk) if isinstance(result, _PLAIN) else result


def _rows_of(result: dict[str, Any], chunk: Any) -> int:
    for value in result.values():
        if hasattr(value, "shape") and len(value.shape):
            return int(value.shape[0])
        if isinstance(value, list):
            return len(value)
    return int(chunk.shape[0]) if is_data(chunk) else 0
