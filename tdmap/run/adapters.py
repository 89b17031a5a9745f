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
from tdmap.functions import Around, InDefaultDevice, ModuleFunction, Named, OnPictures
from tdmap.job import function_name, takes_start
from tdmap.memory.rowfiles import SharedTensors
from tdmap.plan import ChunkPlan
from tdmap.run.fingerprint import function_parts
from tensordict_lite import TensorDict
from tensordict_lite.building.arrays import require_unmasked

_PLAIN = (dict, np.ndarray)

ANY = ()
"""A chunk that says nothing about the rows of a result."""


def adapted(
    fn: Callable[..., Any], plan: ChunkPlan, with_indices: bool = False, fn_kwargs: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`fn` as the engine calls it: it may return dicts of columns and arrays, and be called with more.

    Functions, methods, partials, callable objects and modules of users are changed; builtins, and objects of this
    package, only if the other arguments ask for it. Arguments as `called_with`.
    """
    made = called = called_with(fn, plan, with_indices, fn_kwargs)
    if isinstance(called, InDefaultDevice):
        called = called.fn
    ours = isinstance(called, (BuiltinFunctionType, type)) or type(called).__module__.startswith("tdmap.")
    plain = isinstance(called, _AS_THEY_ARE) or not (ours or takes_start(called))
    return Returning(made, plan) if plain else made


def called_with(
    fn: Callable[..., Any],
    plan: ChunkPlan,
    with_indices: bool = False,
    fn_kwargs: Mapping[str, Any] | None = None,
    numbers: SharedTensors | None = None,
) -> Callable[..., Any]:
    """`fn`, called with more than its chunk.

    Args:
        fn: the function.
        plan: how its rows are cut.
        with_indices: call it with the numbers of the rows as second argument: int64 `[rows]`, or one int where it is
            called with rows one by one.
        fn_kwargs: call it with these keyword arguments.
        numbers: of one tensor, int64: the rows that the plan cuts, where they are in another order.

    Raises:
        TypeError: `fn_kwargs` is no mapping of names.
    """
    if fn_kwargs is not None:
        if not isinstance(fn_kwargs, Mapping) or not all(isinstance(name, str) for name in fn_kwargs):
            raise TypeError(f"fn_kwargs must be a dict of keyword arguments: got {fn_kwargs!r:.80}.")
        if fn_kwargs:
            fn = _with_options(fn, fn_kwargs)
    return Numbered(fn, plan, numbers) if with_indices else fn


def _with_options(fn: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    if isinstance(fn, InDefaultDevice):
        return InDefaultDevice(_with_options(fn.fn, options), fn.default)
    return fn.with_options(options) if isinstance(fn, Named) else functools.partial(fn, **options)


class Numbered(Around):
    """Calls a function with the numbers of its rows besides."""

    takes_start = True

    def __init__(self, fn: Callable[..., Any], plan: ChunkPlan, numbers: SharedTensors | None) -> None:
        self.fn = fn
        self.dim, self.single = plan.dim, plan.unbind
        self.numbers = numbers
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by, and that it gets row numbers."""
        return {**function_parts(self.fn), "with_indices": "True"}

    def __call__(self, chunk: Any, start: int = 0) -> Any:
        if self.single:
            return self.fn(chunk, start if self.numbers is None else int(self.numbers.tensors[0][start]))
        stop = start + int(chunk.shape[self.dim])
        if self.numbers is None:
            return self.fn(chunk, torch.arange(start, stop, device=self.device))
        numbers = self.numbers.tensors[0][start:stop].clone()  # others read these numbers too
        return self.fn(chunk, numbers if self.device is None else numbers.to(self.device))


class Returning(Around):
    """Calls a function that may return dicts and arrays, which become rows."""

    def __init__(self, fn: Callable[..., Any], plan: ChunkPlan) -> None:
        self.fn = fn
        self.dim, self.single = plan.dim, plan.unbind
        self.takes_start = takes_start(fn)
        self.__qualname__ = function_name(fn)

    def identity_parts(self) -> dict[str, str]:
        """The parts that the function is known by: this wrapper adds nothing."""
        return function_parts(self.fn)

    def __call__(self, chunk: Any, *start: int) -> Any:
        return plain_rows(self.fn(chunk, *start), None if self.single else chunk, self.dim)


_AS_THEY_ARE = (Numbered, ModuleFunction, OnPictures)
"""What gives back whatever the user's function has returned."""


def plain_rows(result: Any, chunk: Any, dim: int = 0) -> Any:
    """What a function has returned; a dict of columns as a TensorDict, an array as a tensor.

    Args:
        result: anything.
        chunk: what the function was called with: says how many rows a dict has that says nothing. None: one row.
            `ANY`: it may have any number of rows.
        dim: where its rows lie.

    Raises:
        OutputMismatch: the columns of a dict differ in length.
    """
    if not isinstance(result, _PLAIN):
        return result
    if isinstance(result, np.ndarray):
        require_unmasked(result, "the array that the function returned")
        return torch.from_numpy(np.require(_native(result), requirements=["C", "W"]))
    result = {name: _entry(value) for name, value in result.items()}
    try:
        return TensorDict(result, [] if chunk is None else _batch_size_of(result, chunk, dim))
    except (RuntimeError, TypeError, ValueError) as error:
        raise OutputMismatch(
            f"the function returned a dict ({', '.join(map(repr, result))}), whose columns are no rows of one "
            f"length: {error}"
        ) from error


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in the byte order of this machine, the only one that torch has."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _entry(value: Any) -> Any:
    """A column of a dict as a TensorDict takes it: arrays that may be written to."""
    if not isinstance(value, np.ndarray):
        return value
    value = _native(value)
    return value.copy() if not value.flags.writeable or min(value.strides, default=0) < 0 else value


def plain_group(result: Any) -> Any:
    """What a function has returned that may return one row or many: a dict without any column of rows is one."""
    single = isinstance(result, dict) and _rows_of(result, 0) is None
    return plain_rows(result, None if single else ANY)


def _batch_size_of(result: dict[str, Any], chunk: Any, dim: int) -> list[int]:
    found = _rows_of(result, dim)
    return found if found is not None else list(chunk.shape[: dim + 1]) if is_data(chunk) else [0]


def _rows_of(result: dict[str, Any], dim: int) -> list[int] | None:
    """The batch size that the first column with rows has; None: there is no such column."""
    for value in result.values():
        if hasattr(value, "shape") and len(value.shape) > dim:
            return list(value.shape[: dim + 1])
        if isinstance(value, list) and not dim:
            return [len(value)]
        if isinstance(value, dict) and (found := _rows_of(value, dim)) is not None:
            return found
    return None
