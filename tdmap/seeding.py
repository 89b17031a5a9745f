"""Random streams that depend on the seed and on the rows, and on nothing else.

Each chunk starts torch, numpy and random at a value derived from (seed, first row), so results do not depend on
which worker runs a chunk, in what order, or how often it is retried.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from tdmap.process import hooks


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
    """

    def __init__(self, seed: int | None, devices: Iterable[torch.device] = ()) -> None:
        self.seed = seed
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

    def end(self) -> None:
        """Put the devices' streams back; those of the CPU are the business of whoever shares them with a caller."""
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


def checked_seed(seed: Any) -> int | None:
    """A seed that a caller gave, any integer; None stays.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, type(None))):
        raise TypeError(f"seed must be an integer or None: got {seed!r}.")
    return None if seed is None else int(seed)


def seed_or_drawn(seed: Any) -> int:
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
    return int(torch.empty((), dtype=torch.int64).random_().item()) if given is None else given


class own_streams(contextlib.AbstractContextManager[None]):
    """The global generators for seeded work in the caller's process: nobody else's meanwhile, and put back at the end.

    All threads of a process share them, so whoever else has seeded work here waits until this is done: two iterations
    draw the numbers that each draws alone. A thread that has them goes on at once. Who has waited `WAIT_SECONDS`
    goes on too, with a warning: those who have them may be waiting for it.

    Args:
        lent: those who have them wait for this work: their threads need not ask.

    Example:
        >>> before = torch.get_rng_state()
        >>> with own_streams():
        ...     seed_everything(1)
        >>> bool((torch.get_rng_state() == before).all())
        True
    """

    def __init__(self, lent: bool = False) -> None:
        self._lent = lent

    def __enter__(self) -> None:
        self._taken = not self._lent and _turn.take()
        try:
            self._states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        except BaseException:
            self._give()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            torch_state, numpy_state, random_state = self._states
            torch.set_rng_state(torch_state)
            np.random.set_state(numpy_state)
            random.setstate(random_state)
        finally:
            self._give()

    def _give(self) -> None:
        if self._taken:
            _turn.give()


def has_streams() -> bool:
    """Whether this thread is within `own_streams`, as the function of a seeded chunk is."""
    return _turn.is_mine()


WAIT_SECONDS = 60.0
"""Whoever has the streams keeps them for a lease, which is over long before, or waits for the one who waits."""


class _Turn:
    """Whose turn it is to draw from the global generators."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._takes = 0
        self._overdue = 0
        """Number of the take for whose end somebody has waited in vain: nobody waits for it again."""

    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()

    def take(self) -> bool:
        """Wait for the turn; returns whether it has to be given back."""
        if self.is_mine():
            return False
        if not self._lock.acquire(blocking=False):
            takes = self._takes
            if takes == self._overdue:
                return False
            if not self._lock.acquire(timeout=WAIT_SECONDS):
                if self._takes == takes:
                    self._overdue = takes
                warnings.warn(
                    f"seeded chunks of two iterations in this process go on at once, after a wait of "
                    f"{WAIT_SECONDS:g} s: the random streams of both may differ from those that each has alone. Run "
                    "one of them in processes (executor='process'), or one after the other.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return False
        self._owner = threading.get_ident()
        self._takes += 1
        return True

    def give(self) -> None:
        """The turn is over."""
        self._owner = 0
        self._lock.release()

    def forget(self) -> None:
        """This process is a fork: other threads of its parent are not here to give anything back."""
        if self._owner and not self.is_mine():
            self._lock, self._owner = threading.Lock(), 0


_turn = _Turn()
hooks.in_child(hooks.TURN, _turn.forget)
