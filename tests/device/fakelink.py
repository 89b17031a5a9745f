"""A link to a device that does not exist, for tests: as hostile as a real one may be.

Its device memory is this machine's. Copies run at random points between the call that asks for them and the wait
for a mark: some at once, most as late as they can; the link's stream and the caller's run in any order that their
waits allow. So code that uses memory again too early, or reads too early, gives wrong results here as well, and
the following are errors at once: a source that is freed, or unlocked, before its copy has run.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tdmap.runtime.device import Mark

POISON = 0xA5
"""Every byte of device memory that nothing was copied to."""

_locked: dict[int, int] = {}
"""Page-locked memory of this process: bytes, by address. All links know it, as all CUDA contexts do."""


class FakeStream:
    """Operations in order; each runs when somebody waits for it, or by chance before."""

    def __init__(self) -> None:
        self.operations: deque[Callable[[], None] | FakeMark] = deque()
        self.given = 0
        self.done = 0

    def enqueue(self, operation: Callable[[], None] | FakeMark) -> None:
        """Add an operation, or a mark of another stream to wait for."""
        self.operations.append(operation)
        self.given += 1

    def step(self) -> bool:
        """Run the next operation; False when there is none or it has to wait."""
        if not self.operations:
            return False
        first = self.operations[0]
        if isinstance(first, FakeMark):
            if first.stream.done < first.number:
                return False
        else:
            first()
        self.operations.popleft()
        self.done += 1
        return True

    def run_until(self, number: int) -> None:
        """Run operations, and those of other streams that they wait for, until `number` are done."""
        while self.done < number:
            first = self.operations[0]
            if isinstance(first, FakeMark):
                first.stream.run_until(first.number)
            self.step()


class FakeMark:
    """A point in a `FakeStream`."""

    def __init__(self, link: FakeLink, stream: FakeStream) -> None:
        self.link = link
        self.stream = stream
        self.number = stream.given

    def is_done(self) -> bool:
        self.link.wander()
        return self.stream.done >= self.number

    def wait(self) -> None:
        self.stream.run_until(self.number)


class FakeLink:
    """A `DeviceLink` to nowhere.

    Args:
        device: ignored; its tensors are on the CPU.
        seed: of its whims.
        lockable: how many blocks of memory can be page-locked; None: any number.
        locked: the table of page-locked memory; None: that of this process.
        caller_streams: the caller gives its work to `current`, as kernels are; else it runs at once, as tests do.

    Attributes:
        current: the caller's stream, to which a test may add work.
        locked: page-locked memory: its bytes, by address.
        pageable: copies that were asked of memory that is not page-locked.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        seed: int = 0,
        lockable: int | None = None,
        locked: dict[int, int] | None = None,
        caller_streams: bool = False,
    ) -> None:
        self.device = torch.device("cpu")
        self.current = FakeStream()
        self.locked = _locked if locked is None else locked
        self._memory: dict[int, int] = {}
        self.locks = 0
        self.pageable = 0
        self.copied_bytes = 0
        self._lockable = lockable
        self._caller_streams = caller_streams
        self._copies = FakeStream()
        self._pending: deque[tuple[int, int]] = deque()
        self._random = random.Random(seed)

    def wander(self) -> None:
        """Let time pass: perhaps nothing happens, perhaps some operations run."""
        if self._random.random() < 0.6:
            return
        for _ in range(self._random.randrange(4)):
            self._random.choice((self.current, self._copies)).step()

    # -- the link ------------------------------------------------------------------------------------

    def empty_like(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        new = [_poisoned(torch.empty_like(tensor)) for tensor in tensors]
        for tensor in new:
            self._register(self._memory, tensor)
        return new

    def _register(self, where: dict[int, int], tensor: Tensor) -> None:
        address = tensor.data_ptr()
        where[address] = tensor.numel() * tensor.element_size()
        weakref.finalize(tensor.untyped_storage(), where.pop, address, None).atexit = False

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        for destination, source in pairs:
            self.copied_bytes += source.numel() * source.element_size()
            if source.numel() and not (self.is_locked(source) or _within(self._memory, source)):
                self.pageable += 1
                self._copies.enqueue(_late_copy(destination, source.clone()))  # CUDA too reads such memory at once
            else:
                self._pending.append((self._copies.given, source.data_ptr()))
                self._copies.enqueue(_copy_of_living(destination, source))
            self.wander()

    def mark(self) -> FakeMark:
        return FakeMark(self, self._copies)

    def follow(self) -> None:
        self._copies.enqueue(FakeMark(self, self.current))

    def hand_over(self, mark: Mark, tensors: Iterable[Tensor]) -> None:
        assert isinstance(mark, FakeMark)
        self.current.enqueue(mark)
        if not self._caller_streams:
            self.settle()

    def context(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.settle()
        return [tensor.clone() for tensor in tensors]

    def settle(self) -> None:
        self.current.run_until(self.current.given)

    def synchronize(self) -> None:
        self._copies.run_until(self._copies.given)

    # -- page-locked memory --------------------------------------------------------------------------

    def staging(self, nbytes: int) -> Tensor:
        block = _poisoned(torch.empty(nbytes, dtype=torch.uint8))
        self._register(self.locked, block)
        return block

    def is_locked(self, tensor: Tensor) -> bool:
        return _within(self.locked, tensor)

    def lock(self, address: int, nbytes: int) -> bool:
        if self._lockable is not None and len(self.locked) >= self._lockable:
            return False
        self.locked[address] = nbytes
        self.locks += 1
        return True

    def unlock(self, address: int) -> None:
        nbytes = self.locked.pop(address)
        for number, source in self._pending:
            if number >= self._copies.done and address <= source < address + nbytes:
                raise RuntimeError("page-locked memory was unlocked before a copy from it had run")
        while self._pending and self._pending[0][0] < self._copies.done:
            self._pending.popleft()


def _within(blocks: dict[int, int], tensor: Tensor) -> bool:
    address = tensor.data_ptr()
    return any(start <= address < start + nbytes for start, nbytes in blocks.items())


def _late_copy(destination: Tensor, source: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            destination.copy_(source)

    return run


def _copy_of_living(destination: Tensor, source: Tensor) -> Callable[[], None]:
    alive = weakref.ref(source)  # CUDA holds an address, nothing more

    def run() -> None:
        found = alive()
        if found is None:
            raise RuntimeError("the source of a copy was freed before the copy had run")
        with torch.no_grad():
            destination.copy_(found)

    return run


def _poisoned(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.bool:
        return tensor.fill_(True)
    flat = torch.full((tensor.numel() * tensor.element_size(),), POISON, dtype=torch.uint8)
    with torch.no_grad():
        return tensor.copy_(flat.view(tensor.dtype).view(tensor.shape)) if tensor.numel() else tensor
