"""A link to a device that does not exist, for tests: as hostile as a real one may be.

Its device memory is this machine's. Copies run at random points between the call that asks for them and the wait
for a mark: some at once, most as late as they can; the link's stream and the caller's run in any order that their
waits allow. So code that uses memory again too early, or reads too early, gives wrong results here as well, and
the following are errors at once: a source that is freed, or unlocked, before its copy has run.

Device memory that is freed is overwritten as soon as the stream that it was made for comes to it, and what was handed
over to the caller's stream not before that has come as far, too. Page-locks are refused beyond a limit, off a page's
border, and twice. There may be a limit to device memory. And an operation that raises takes the device with it: from
then on every call raises, as after a failed assertion in a kernel. `launch` gives an operation to the caller's stream,
from within a function that runs "on the device".
"""

from __future__ import annotations

import contextlib
import mmap
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from tdmap.memory.links import CudaMark

POISON = 0xA5
"""Every byte of device memory that nothing was copied to."""

DeviceFailed = torch.AcceleratorError
"""What torch raises for work that a device was given."""

_locked: dict[int, int] = {}
"""Page-locked memory of this process: bytes, by address. All links know it, as all CUDA contexts do."""


class FakeStream:
    """Operations in order; each runs when somebody waits for it, or by chance before.

    One thread runs them, but any thread may add one: whichever collects garbage gives back the memory in it.
    """

    def __init__(self) -> None:
        self.operations: deque[Callable[[], None] | FakeMark] = deque()
        self.done = 0

    @property
    def given(self) -> int:
        """How many there have been. No counter: two threads that add one to it may add one together."""
        return self.done + len(self.operations)

    def enqueue(self, operation: Callable[[], None] | FakeMark) -> None:
        """Add an operation, or a mark of another stream to wait for."""
        self.operations.append(operation)

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
        with self.link._device():
            self.stream.run_until(self.number)


class FakeLink:
    """A `CudaLink` to nowhere.

    Args:
        device: ignored; its tensors are on the CPU.
        seed: of its whims.
        lockable: how many blocks of memory can be page-locked; None: any number.
        locked: the table of page-locked memory; None: that of this process.
        caller_streams: the caller gives its work to `current`, as kernels are; else it runs at once, as tests do.
        memory: bytes of the device's memory.

    Attributes:
        current: the caller's stream, to which a test may add work.
        locked: page-locked memory: its bytes, by address.
        pageable: copies that were asked of memory that is not page-locked.
        refused: page-locks that were not given.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        seed: int = 0,
        lockable: int | None = None,
        locked: dict[int, int] | None = None,
        caller_streams: bool = False,
        memory: int = 1 << 40,
    ) -> None:
        self.device = torch.device("cpu")
        self.current = FakeStream()
        self.locked = _locked if locked is None else locked
        self._memory: dict[int, int] = {}
        self._blocks: dict[int, bytearray] = {}
        self._total = memory
        self._handed_over: set[int] = set()
        self._error: BaseException | None = None
        self.refused = 0
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
        with self._device():
            for _ in range(self._random.randrange(4)):
                self._random.choice((self.current, self._copies)).step()

    @contextlib.contextmanager
    def _device(self) -> Iterator[None]:
        """Around what asks the device for anything: once it is lost, all of that raises."""
        if self._error is not None:
            raise DeviceFailed(str(self._error))
        try:
            yield
        except DeviceFailed as error:
            self._error = error
            raise

    # -- the link ------------------------------------------------------------------------------------

    def empty_like(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        with self._device():
            return [self._empty(tensor) for tensor in tensors]

    def _empty(self, like: Tensor) -> Tensor:
        nbytes = like.numel() * like.element_size()
        free, total = self.memory()
        if nbytes > free:
            raise torch.OutOfMemoryError(f"out of memory: tried to allocate {nbytes} bytes, {free} of {total} are free")
        if not nbytes:
            return torch.empty_like(like)
        memory = bytearray([POISON]) * nbytes
        block = torch.frombuffer(memory, dtype=torch.uint8)
        if like.dtype is torch.bool:
            block.fill_(1)
        address = block.data_ptr()
        self._memory[address] = nbytes
        self._blocks[address] = memory
        weakref.finalize(block.untyped_storage(), self._freed, address, memory).atexit = False
        return block.view(like.dtype).view(like.shape)

    def _freed(self, address: int, memory: bytearray) -> None:
        """Device memory is given back: it may be used again once the streams that know of it have come so far."""
        self._memory.pop(address, None)
        self._blocks.pop(address, None)
        if address in self._handed_over:
            self._handed_over.remove(address)
            self._copies.enqueue(FakeMark(self, self.current))
        self._copies.enqueue(_used_again(memory))

    def raw(self, tensor: Tensor) -> Tensor:
        """The same memory as a kernel knows it: by its address, without keeping it from being freed."""
        start = tensor.untyped_storage().data_ptr()
        offset = tensor.data_ptr() - start
        whole = torch.frombuffer(self._blocks[start], dtype=torch.uint8)
        return whole[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def _register(self, where: dict[int, int], tensor: Tensor) -> None:
        address = tensor.data_ptr()
        where[address] = tensor.numel() * tensor.element_size()
        weakref.finalize(tensor.untyped_storage(), where.pop, address, None).atexit = False

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        with self._device():
            pairs = list(pairs)
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

    def hand_over(self, mark: CudaMark, tensors: Iterable[Tensor]) -> None:
        assert isinstance(mark, FakeMark)
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_quantized:
                raise NotImplementedError(f"record_stream: not for tensors of {tensor.layout}")
            address = tensor.untyped_storage().data_ptr()
            if address in self._memory:
                self._handed_over.add(address)
        self.current.enqueue(mark)
        if not self._caller_streams:
            self.settle()

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        before, _inside.link = getattr(_inside, "link", None), self
        try:
            yield
        finally:
            _inside.link = before

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.settle()
        return [_bytes_of(tensor).clone() for tensor in tensors]

    def settle(self) -> None:
        with self._device():
            self.current.run_until(self.current.given)

    def synchronize(self) -> None:
        with self._device():
            self._copies.run_until(self._copies.given)

    def memory(self) -> tuple[int, int]:
        return self._total - sum(self._memory.copy().values()), self._total

    def is_lost(self) -> bool:
        with contextlib.suppress(DeviceFailed):
            self.settle()
            self.synchronize()
        return self._error is not None

    # -- page-locked memory --------------------------------------------------------------------------

    def staging(self, nbytes: int) -> Tensor:
        block = torch.full((nbytes,), POISON, dtype=torch.uint8)
        if self._lockable is None or len(self.locked) < self._lockable:
            self._register(self.locked, block)
        return block

    def is_locked(self, tensor: Tensor) -> bool:
        return _within(self.locked, tensor)

    def lock(self, address: int, nbytes: int) -> bool:
        whole = address % mmap.PAGESIZE == 0 == nbytes % mmap.PAGESIZE
        twice = any(start < address + nbytes and address < start + size for start, size in self.locked.copy().items())
        if not whole or twice or (self._lockable is not None and len(self.locked) >= self._lockable):
            self.refused += 1
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
    address = tensor.data_ptr()  # copied at once: the collector and other threads change it between two items
    return any(start <= address < start + nbytes for start, nbytes in blocks.copy().items())


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


def _used_again(memory: bytearray) -> Callable[[], None]:
    def run() -> None:
        memory[:] = bytes([POISON]) * len(memory)

    return run


def _bytes_of(tensor: Tensor) -> Tensor:
    """What a copy of a tensor's memory reads, which knows nothing of a conjugate or a sign that waits to be taken."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


_inside = threading.local()


def launch(operation: Callable[[], None]) -> None:
    """Give an operation to the caller's stream, from a function that a runner calls: it runs some time later."""
    link: FakeLink = _inside.link
    link.current.enqueue(operation)
    link.wander()
