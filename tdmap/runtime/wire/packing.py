"""Objects as bytes, with tensors as handles to memory that the receiver maps.

This is the way from the driver to a worker: the source, the output and the function of a job. A tensor that lies
in a file or in shared memory becomes its `Region`; other tensors are first copied to shared memory, once. So are the
large buffers (those of numpy arrays, most often) that a function carries. What a function carries is each worker's
own: the receiver copies it again, or maps it copy-on-write where it is large. `parcels` is the way back.

Functions and classes of `__main__` go by value (`byvalue`), because a worker never imports the user's script: no
`if __name__ == "__main__"` guard is needed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdmap.memory.shm import Arena, shared_region, write_bytes
from tdmap.process_state import comes_from_handler, installed_handlers
from tdmap.runtime.wire.byvalue import Pickler
from tdmap.runtime.wire.lending import Loan, lend
from tensordict_lite import MemoryMappedTensor
from tensordict_lite.errors import DatasetError
from tensordict_lite.gathering import bytes_of
from tensordict_lite.memmap.disk.mapping import Region, SharedHandle, region_of

INLINE_BYTES = 4096
"""Tensors of at most so many bytes that are not shared already travel as bytes."""

APART_BYTES = 256 << 10
"""Buffers of so many bytes that a function carries travel through shared memory, not through the pipe."""

LARGE_BYTES = 8 << 20
"""Copies of so many bytes are mapped copy-on-write by their receivers; smaller ones are copied faster than mapped."""

PLAIN_TYPES = (Tensor, torch.nn.Parameter, MemoryMappedTensor)
"""Tensors that are nothing but their numbers, so that a tensor over the same memory may take their place."""


# -- rebuilding, in the receiver --------------------------------------------------------------------


def open_shared(handle: tuple[Any, ...], *fields: Any) -> Tensor:
    """The tensor over memory or a file of another process."""
    return Region(SharedHandle(*handle), *fields).open()


def open_private(handle: tuple[Any, ...], *fields: Any) -> Tensor:
    """A copy of that tensor."""
    return open_shared(handle, *fields).clone()


def open_own(handle: tuple[Any, ...], dtype: torch.dtype, *fields: Any) -> Tensor:
    """That tensor, for memory that no process writes to: this one gets copies of the pages that it writes to.

    Unlike other private mappings it is not known by its file: a function of the user's has it as ordinary memory.
    """
    shared = open_shared(handle, dtype, *fields)
    try:
        storage: Any = torch.UntypedStorage.from_file(handle[0], False, handle[1])
    except RuntimeError:  # the system grants no mapping of so many pages that may be written to
        return shared.clone()
    return torch.empty(0, dtype=dtype).set_(storage, shared.storage_offset(), shared.shape, shared.stride())


def load_with_buffers(data: bytes, buffers: list[tuple[bool, Any, tuple[Any, ...]]]) -> Any:
    """The object whose large buffers were packed apart; of each: whether it may only be read, and what opens it."""
    views = [(readonly, memoryview(build(*fields).numpy())) for readonly, build, fields in buffers]
    return pickle.loads(data, buffers=[view.toreadonly() if readonly else view for readonly, view in views])


def rebuild_bytes(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> Tensor:
    """A tensor from its bytes."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def open_lazily(build: Callable[..., Tensor], fields: tuple[Any, ...], conj: bool, neg: bool) -> Tensor:
    """A tensor that is the conjugate, or the negative, of what `build(*fields)` gives."""
    tensor: Tensor = build(*fields)
    tensor = torch._neg_view(tensor) if neg else tensor
    return tensor.conj() if conj else tensor


def open_parameter(build: Callable[..., Tensor], fields: tuple[Any, ...], requires_grad: bool) -> Tensor:
    """An `nn.Parameter` around what `build(*fields)` gives."""
    return as_parameter(build(*fields), requires_grad)


def open_there(device: str, build: Callable[..., Tensor], fields: tuple[Any, ...]) -> Tensor:
    """A copy on a device of what `build(*fields)` gives."""
    tensor: Tensor = build(*fields)
    return tensor.to(device)


def as_parameter(tensor: Tensor, requires_grad: bool) -> Tensor:
    """An `nn.Parameter` around `tensor`."""
    return torch.nn.Parameter(tensor, requires_grad=requires_grad)


# -- packing, in the driver ---------------------------------------------------------------------------


def is_of_pickling(error: Exception) -> bool:
    """Whether an exception says that an object cannot be pickled, and is not a user's alarm or a fault of a file."""
    other = isinstance(error, (TimeoutError, MemoryError, DatasetError))
    return not (other or comes_from_handler(error, installed_handlers()))


class Packer:
    """Packs what a worker needs; keep it alive as long as workers may open what it packed.

    Args:
        private: tensors are copied by each receiver (for what a function carries), instead of shared. An object
            with a method `shared_tensors` says which parameters in it are shared all the same.

    Attributes:
        staged: pairs of a tensor and its copy in shared memory.
    """

    def __init__(self, private: bool = False) -> None:
        self.private = private
        self.staged: list[tuple[Tensor, Tensor]] = []
        self._keep: list[Tensor] = []
        self._shared: set[int] = set()
        self._loans: list[Loan] = []
        self._copies: dict[tuple[Any, ...], Tensor] = {}
        self._arena = Arena()

    def dumps(self, value: object) -> bytes:
        """The bytes of `value`."""
        file = io.BytesIO()
        if not self.private:
            _Pickler(self, file, None).dump(value)
            return file.getvalue()
        apart = _Apart()
        _Pickler(self, file, lambda buffer: self._stays(buffer, apart)).dump(value)
        apart.data = file.getvalue()
        return pickle.dumps(apart, pickle.HIGHEST_PROTOCOL) if apart.buffers else apart.data

    def _stays(self, buffer: pickle.PickleBuffer, apart: _Apart) -> bool:
        """Copy a large buffer to shared memory; whether it stays in the pickle instead."""
        view = memoryview(buffer)
        if view.nbytes < APART_BYTES or not view.contiguous:
            return True
        copy = self._arena.empty(torch.uint8, torch.Size([view.nbytes]))
        write_bytes(copy, buffer.raw())
        self._keep.append(copy)
        apart.buffers.append((view.readonly, *self._reduce_copy(copy)))
        return False

    def reduce(self, value: Any) -> Any:
        """How to pack one object; NotImplemented leaves it to `byvalue`."""
        if isinstance(value, Tensor):
            if type(value) is torch.nn.Parameter:
                return self._reduce_parameter(value)
            return self._reduce_tensor(value, self.private) if type(value) in PLAIN_TYPES else NotImplemented
        if self.private and hasattr(type(value), "shared_tensors"):
            self._shared.update(id(tensor) for tensor in value.shared_tensors())
        return NotImplemented

    def take_loans(self) -> list[Loan]:
        """The memory of devices that was lent since the last call: to one receiver, for what was packed for it."""
        loans, self._loans = self._loans, []
        return loans

    def _reduce_parameter(self, parameter: torch.nn.Parameter) -> Any:
        if id(parameter) in self._shared:
            lendable = is_lendable(parameter)
            reduce = self._reduce_through_memory if lendable else self._reduce_tensor
            reduced = reduce(parameter.data, private=False)
            if reduced is not NotImplemented:
                return open_parameter, (*reduced, parameter.requires_grad)
        return as_parameter, (parameter.data, parameter.requires_grad)

    def _reduce_tensor(self, tensor: Tensor, private: bool) -> Any:
        if not private and is_lendable(tensor):
            # torch's own way to lend a device's memory to another process: a handle, and a count of its users.
            memory, conj, neg = _memory_of(tensor.detach())
            build, fields, loan = lend(memory)
            self._loans.append(loan)
            return open_lazily, (build, fields, conj, neg)
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
            return NotImplemented
        return self._reduce_here(tensor.detach(), private)

    def _reduce_here(self, tensor: Tensor, private: bool) -> Any:
        if tensor.is_conj() or tensor.is_neg():  # no region says that its memory is not its values
            memory, conj, neg = _memory_of(tensor)
            return open_lazily, (*self._reduce_here(memory, private), conj, neg)
        region = shared_region(tensor)
        if region is None:
            nbytes = tensor.numel() * tensor.element_size()
            if nbytes == 0 or (private and nbytes <= INLINE_BYTES):
                return rebuild_bytes, (tensor.dtype, tuple(tensor.shape), _raw(tensor))
            return self._reduce_copy(self._stage(tensor), private)
        self._keep.append(tensor)
        build = open_private if private and region.handle.anonymous else open_shared
        return build, (tuple(region.handle), *region[1:])

    def _reduce_copy(self, copy: Tensor, private: bool = True) -> Any:
        """How to pack what was copied to shared memory, and will not be written to if it is private."""
        region = region_of(copy)
        assert region is not None
        own = open_own if copy.numel() * copy.element_size() >= LARGE_BYTES else open_private
        return own if private else open_shared, (tuple(region.handle), *region[1:])

    def _reduce_through_memory(self, tensor: Tensor, private: bool) -> Any:
        """A copy on the device for each receiver, by way of one in shared memory.

        What is lent to one receiver after the other would have to be counted for each; and a worker that runs a module
        on a device has its own buffers there as well.
        """
        build, fields = self._reduce_here(tensor.cpu(), private)
        return open_there, (str(tensor.device), build, fields)

    def _stage(self, tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = self._arena.copy_of(tensor)
            self.staged.append((tensor, copy))
        return copy


def is_lendable(tensor: Tensor) -> bool:
    """Whether a tensor's memory is a device's that torch can lend."""
    return tensor.device.type == "cuda"


def _memory_of(tensor: Tensor) -> tuple[Tensor, bool, bool]:
    """The values that lie in the memory of a tensor, and whether it is their conjugate and their negative."""
    conj, neg = tensor.is_conj(), tensor.is_neg()
    memory = tensor.conj() if conj else tensor
    return torch._neg_view(memory) if neg else memory, conj, neg


def _raw(tensor: Tensor) -> bytes:
    return bytes_of(tensor.contiguous()).tobytes()


class _Apart:
    """An object as bytes, and its large buffers apart from them; unpickled, it is the object."""

    def __init__(self) -> None:
        self.data = b""
        self.buffers: list[tuple[bool, Any, tuple[Any, ...]]] = []

    def __reduce__(self) -> Any:
        return load_with_buffers, (self.data, self.buffers)


class _Pickler(Pickler):
    def __init__(
        self, packer: Packer, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(file, buffer_callback=buffer_callback)
        self._packer = packer

    def reducer_override(self, value: object) -> Any:
        reduced = self._packer.reduce(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


unpack = pickle.loads
"""What `Packer.dumps` packed."""
