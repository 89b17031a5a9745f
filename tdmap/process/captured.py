"""Random generators that a function holds: `np.random.default_rng()`, `random.Random()`, `torch.Generator()`...

A function that was sent to several workers has a copy of its generators in each of them, and all would draw the same
numbers. So they are found, wherever the function refers to them, and seeded as the global streams are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from tdmap.process.owners import is_users_own
from tdmap.seeding import derive, own_streams, seed_everything
from tensordict_lite.base import TensorCollection

KINDS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, torch.Generator)

MOST_OBJECTS, MOST_ITEMS = 5_000, 1_000
"""Objects that are looked at, and items of one container: a function may hold a dataset."""

_WITHOUT = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, torch.Tensor, np.ndarray)


class Captured:
    """The generators that a function refers to, in an order that is the same in every process.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> captured = Captured(lambda rows, rng=rng: rng.random(len(rows)))
        >>> captured.seed(1)
        >>> first = float(rng.random())
        >>> captured.seed(1)
        >>> first == float(rng.random())
        True
    """

    def __init__(self, fn: Any) -> None:
        self._found = list(generators_in(fn))

    def __bool__(self) -> bool:
        return bool(self._found)

    def seed(self, value: int) -> None:
        """Begin the streams that a number decides, another one for each generator."""
        for index, generator in enumerate(self._found, 1):
            _seed(generator, derive(value, index))

    def seed_apart(self) -> None:
        """Begin streams that no other process has."""
        self.seed(int.from_bytes(os.urandom(8), "little"))

    def states(self) -> list[Any]:
        """Where the streams are."""
        return [_state(generator) for generator in self._found]

    def restore(self, states: Iterable[Any]) -> None:
        """Go on where the streams were."""
        for generator, state in zip(self._found, states):
            _restore(generator, state)


@contextlib.contextmanager
def seeded(seed: int | None, number: int, captured: Captured) -> Iterator[None]:
    """Random streams that a seed and a number decide, for a function that is called in this thread."""
    if seed is None:
        yield
        return
    with own_streams():
        value, states = derive(seed, number), captured.states()
        try:
            seed_everything(value)
            captured.seed(value)
            yield
        finally:
            captured.restore(states)


def _seed(generator: Any, value: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(value)
    elif isinstance(generator, random.Random):
        generator.seed(value)
    elif isinstance(generator, np.random.RandomState):  # which keeps half of a pair of normal numbers
        bits: Any = type(generator._bit_generator)
        generator.set_state(np.random.RandomState(bits(value)).get_state(legacy=False))
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(value).state


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state


def generators_in(fn: Any) -> Iterator[Any]:
    """The generators that a function refers to: by variables, defaults, attributes, containers and other functions.

    Not the global streams, and not what a package that is installed keeps for itself.
    """
    global_streams = (np.random.mtrand._rand, random._inst, torch.default_generator)
    met, waiting = {id(stream): stream for stream in global_streams}, deque([fn])
    while waiting and len(met) < MOST_OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (*_WITHOUT, TensorCollection)) or id(value) in met:
            continue
        met[id(value)] = value  # kept: a temporary that goes would free its id for another
        if isinstance(value, KINDS):
            if not isinstance(value, random.SystemRandom):
                yield value
        else:
            with contextlib.suppress(Exception):  # of properties of the user's
                waiting.extend(_parts(value))


def _parts(value: Any) -> Iterator[Any]:
    """What an object leads to."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield from (value.__func__, getattr(value, "__self__", None))
    elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):  # `rng.random`
        yield value.__self__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (dict, types.MappingProxyType)):
        yield from islice(value.values(), MOST_ITEMS)
    elif isinstance(value, (tuple, list, deque)):
        yield from islice(value, MOST_ITEMS)
    if isinstance(value, type):
        if is_users_own(value.__module__):
            yield from (*vars(value).values(), *value.__bases__)
    elif not isinstance(value, types.FunctionType):
        yield from _attributes(value)


def _parts_of_function(fn: types.FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values(), *vars(fn).values())
    if not is_users_own(fn.__globals__.get("__name__", fn.__module__)):
        return
    names = list(_names(fn.__code__))
    for name in names:
        found = fn.__globals__.get(name)
        if isinstance(found, types.ModuleType) and is_users_own(found.__name__):
            yield from (vars(found)[other] for other in names if other in vars(found))
        else:
            yield found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attributes(value: Any) -> Iterator[Any]:
    kind = type(value)
    yield getattr(value, "__wrapped__", None) if callable(value) else None
    top = kind.__module__.partition(".")[0]
    if top in sys.stdlib_module_names and kind is not types.SimpleNamespace and top != "_thread":  # `threading.local`
        return
    yield from list(getattr(value, "__dict__", {}).values())
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, slot, None)
    yield kind
