"""Random streams that depend on the seed and on the rows, and on nothing else.

Each chunk starts torch, numpy and random at a value derived from (seed, first row), so results do not depend on
which worker runs a chunk, in what order, or how often it is retried. Generators that a function holds start there too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from tdmap.frames import warn_user
from tdmap.tuning import current
from tdmap.user_code import is_users_own
from tensordict_lite.base import TensorCollection


def derive(seed: int, row: int) -> int:
    """A 64-bit seed for the chunk that begins at `row` (BLAKE2b of both numbers).

    Example:
        >>> derive(0, 0) == derive(0, 0), derive(0, 0) == derive(0, 1), derive(0, 0) == derive(1, 0)
        (True, False, False)
    """
    key = (seed % (1 << 64)).to_bytes(8, "little") + row.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def permutation(length: int, seed: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """The order that a seed gives to so many rows, every order being equally likely; int64 `[length]`.

    Example:
        >>> order = permutation(1000, seed=1)
        >>> torch.equal(order, permutation(1000, seed=1)), torch.equal(order, permutation(1000, seed=2))
        (True, False)
    """
    own = torch.Generator()
    own.manual_seed(seed % (1 << 63))
    return torch.randperm(length, generator=own, out=out)


def seed_everything(value: int) -> None:
    """Start the global generators of torch (CPU), numpy and random at `value`."""
    torch.default_generator.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def generator_of(device: torch.device) -> torch.Generator | None:
    """torch's own random stream of a device that is in use here; None for the CPU, and for devices without one."""
    if device.type in ("cuda", "xpu"):
        own: tuple[torch.Generator, ...] = torch.get_device_module(device).default_generators
        return own[device.index or 0] if own else None
    if device.type == "mps":
        generator: torch.Generator = torch.mps._get_default_mps_generator()
        return generator
    return None


class ChunkStreams:
    """The random streams that the function of a loop draws from, started anew for each chunk.

    Args:
        seed: of the job; None: streams are left alone.
        devices: where the function draws random numbers, beside the CPU.
        captured: generators that it holds.
    """

    def __init__(
        self, seed: int | None, devices: Iterable[torch.device] = (), captured: Captured | None = None
    ) -> None:
        self.seed = seed
        self._captured = captured or None
        self._states: list[Any] | None = None
        found = [] if seed is None else [generator_of(device) for device in devices]
        self._generators = [generator for generator in found if generator is not None]
        self._before: list[torch.Tensor] = []

    def start(self, row: int) -> None:
        """A chunk begins at `row`."""
        if self.seed is None:
            return
        value = derive(self.seed, row)
        seed_everything(value)
        if self._generators and not self._before:
            self._before = [generator.get_state() for generator in self._generators]
        for generator in self._generators:
            generator.manual_seed(value)
        if self._captured is not None:
            self._states = self._captured.states() if self._states is None else self._states
            self._captured.seed(value)

    def end(self) -> None:
        """Restore captured streams. `own_streams` restores the global ones."""
        if self._captured is not None and self._states is not None:
            self._captured.restore(self._states)
            self._states = None
        for generator, state in zip(self._generators, self._before):
            generator.set_state(state)
        self._before = []


def base_seed(seed: int | None, generator: torch.Generator | None) -> int | None:
    """The seed of a job: `seed` itself, or one draw from `generator`, or None.

    Raises:
        ValueError: both are given.
        TypeError: `seed` is no integer.
    """
    checked = checked_seed(seed)
    if generator is None:
        return checked
    if seed is not None:
        raise ValueError("map takes seed or generator, not both: drop one of them.")
    return int(torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator).item())


def checked_seed(seed: int | None) -> int | None:
    """A seed that a caller gave, any integer; None stays.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, type(None))):
        raise TypeError(f"seed must be an integer or None: got {seed!r}.")
    return None if seed is None else int(seed)


def seed_or_drawn(seed: int | None) -> int:
    """The seed that a caller gave, or one of torch's global random stream, which `torch.manual_seed` begins.

    Raises:
        TypeError: it is no integer.

    Example:
        >>> seed_or_drawn(3)
        3
        >>> _ = torch.manual_seed(0)
        >>> first = seed_or_drawn(None)
        >>> _ = torch.manual_seed(0)
        >>> first == seed_or_drawn(None)
        True
    """
    given = checked_seed(seed)
    return drawn_seed() if given is None else given


def drawn_seed() -> int:
    """A seed out of torch's global random stream: that of the caller, and not of a seeded chunk in another thread."""
    place = _Place()
    try:
        _turn.take(place)
        return int(torch.empty((), dtype=torch.int64).random_().item())
    finally:
        _turn.leave(place)


class own_streams(contextlib.AbstractContextManager[None]):
    """Hold the global generators for seeded work in the caller's process, and put them back at the end.

    All threads of a process share them, so other seeded work in this process waits until this is done: two iterations
    draw the numbers that each draws alone. A thread that has them continues at once. A thread that has waited a minute
    for one and the same work continues too, with a warning: that work may be waiting for it.

    Example:
        >>> before = torch.get_rng_state()
        >>> with own_streams():
        ...     seed_everything(1)
        >>> bool((torch.get_rng_state() == before).all())
        True
    """

    _states: tuple[torch.Tensor, Any, Any] | None = None

    def __init__(self) -> None:
        self._place = _Place()

    def __enter__(self) -> None:
        try:
            _turn.take(self._place)
            self._states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        except BaseException:
            self._end()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        except BaseException:  # out of a signal handler, in the middle of it
            self._end()
            raise

    def _end(self) -> None:
        """Put the streams back, and let the next one have them. May be called again."""
        if self._states is not None:
            torch_state, numpy_state, random_state = self._states
            torch.set_rng_state(torch_state)
            np.random.set_state(numpy_state)
            random.setstate(random_state)
            self._states = None
        _turn.leave(self._place)

    def __del__(self) -> None:  # an exception from a signal handler has come before the first line of `__exit__`
        if self._states is not None:
            self._end()


LONGEST_NAP = 0.05
"""Seconds after which one who waits looks whether an exception has kept the one before from waking it."""


class _Place:
    """One who has the turn, or waits for it."""

    __slots__ = ("overdue", "thread", "woken")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.woken = threading.Lock()
        self.overdue = False
        """A thread has waited for its end in vain: no thread waits for it again."""


class _Turn:
    """A fair queue of threads that draw from the global generators: the first in the line has its turn.

    A signal handler may ask for the turn at any instruction, and an exception of one may come at any. So being in the
    line is one operation of the interpreter, and leaving it is another, which may be done again. The collector may do
    it in another thread.
    """

    def __init__(self) -> None:
        self._line: deque[_Place] = deque()

    def take(self, place: _Place) -> None:
        """Wait for the turn, unless this thread has it already. `leave` is due then, whatever has been raised here."""
        first = self._first()
        if first is not None and first.thread == place.thread:
            return
        place.woken.acquire(blocking=False)
        self._line.append(place)
        awaited, end, seconds = None, 0.0, current().turn_seconds
        while (first := self._first()) is not place and first is not None:
            if first.thread == place.thread:  # we are a signal handler, on top of one who waits: it has the turn now
                return self.leave(place)
            now = time.monotonic()
            if first is not awaited:
                awaited, end = first, now + seconds
            if first.overdue or now >= end:
                is_news, first.overdue = not first.overdue, True
                self.leave(place)
                return _warn_of_both(seconds) if is_news else None
            place.woken.acquire(timeout=min(end - now, LONGEST_NAP))
        return None

    def leave(self, place: _Place) -> None:
        """Leave the line: the turn is over, or no longer wanted."""
        with contextlib.suppress(ValueError):  # it has left already
            self._line.remove(place)
        first = self._first()
        if first is not None:
            with contextlib.suppress(RuntimeError):  # it was woken already
                first.woken.release()

    def forget(self) -> None:
        """This process is a fork: other threads of its parent are not here to leave."""
        me = threading.get_ident()
        self._line = deque(place for place in self._line if place.thread == me)

    def _first(self) -> _Place | None:
        return (*self._line, None)[0]


def _warn_of_both(seconds: float) -> None:
    warn_user(
        f"seeded chunks of two iterations in this process go on at once, after a wait of {seconds:g} s: the "
        "random streams of both may differ from the streams that each has alone. Run one of them in processes "
        "(executor='process'), or one after the other."
    )


_turn = _Turn()
os.register_at_fork(after_in_child=_turn.forget)


# -- generators that a function holds ------------------------------------------------------------------

# `np.random.default_rng()`, `random.Random()`, `torch.Generator()`... A function that was sent to several workers has a
# copy of its generators in each of them, and all would draw the same numbers. So they are found, wherever the function
# refers to them, and seeded as the global streams are.

_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, torch.Generator)

_MOST_OBJECTS, _MOST_ITEMS = 5_000, 1_000
"""Limits on objects that are looked at, and on items of one container: a function may hold a dataset."""

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

    def __init__(self, fn: object) -> None:
        self._found = list(generators_in(fn))

    def __bool__(self) -> bool:
        return bool(self._found)

    def seed(self, value: int) -> None:
        """Start the streams that a number decides, another one for each generator."""
        for index, generator in enumerate(self._found, 1):
            _seed(generator, derive(value, index))

    def seed_apart(self) -> None:
        """Start streams that no other process has."""
        self.seed(int.from_bytes(os.urandom(8), "little"))

    def states(self) -> list[Any]:
        return [_state(generator) for generator in self._found]

    def restore(self, states: Iterable[Any]) -> None:
        """Put the streams back to these states."""
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


def generators_in(fn: object) -> Iterator[Any]:
    """The generators that a function refers to: by variables, defaults, attributes, containers and other functions.

    The global streams are left out, and the generators of installed packages.
    """
    global_streams = (np.random.mtrand._rand, random._inst, torch.default_generator)
    met, waiting = {id(stream): stream for stream in global_streams}, deque[Any]([fn])
    while waiting and len(met) < _MOST_OBJECTS:
        value = waiting.popleft()
        if isinstance(value, (*_WITHOUT, TensorCollection)) or id(value) in met:
            continue
        met[id(value)] = value  # kept: a temporary that goes would free its id for another
        if isinstance(value, _GENERATORS):
            if not isinstance(value, random.SystemRandom):
                yield value
        else:
            with contextlib.suppress(Exception):  # of properties of the user's
                waiting.extend(_parts(value))


def _parts(value: object) -> Iterator[Any]:
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
        yield from islice(value.values(), _MOST_ITEMS)
    elif isinstance(value, (tuple, list, deque)):
        yield from islice(value, _MOST_ITEMS)
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


def _attributes(value: object) -> Iterator[Any]:
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
