"""Results that have no output to be written into, on their way from a worker to the driver.

A small result travels as bytes. The tensors of a large one are copied into a *slot*: shared memory of the worker,
which the driver maps once. What the driver yields are tensors over the slot itself; when the last of them has
gone, the number of the slot goes back to the worker with the next lease, and the slot is used again. A consumer
that keeps results instead of using them up gets copies, so that the number of slots stays bounded. A consumer that
forks gives its child the results that it holds: their slots are given up for good, and last as long as they are read
them.

When results go on to a device, the driver page-locks each slot where it maps it, and a member of a pool keeps its slots
from one such job to the next, because locking takes far longer than copying.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import weakref
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdmap.errors import SerializationError
from tdmap.memory.links import PageLocker
from tdmap.memory.shm import align, anonymous_file, map_path
from tdmap.processes import is_forking_worker
from tdmap.runtime.wire.byvalue import Pickler
from tdmap.runtime.wire.messages import Done, Failed, Refused, Segment
from tdmap.runtime.wire.packing import PLAIN_TYPES
from tdmap.runtime.wire.remote import unpack_error
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.mapping import release
from tensordict_lite.ragged import RaggedPart

SMALL_BYTES = 1 << 15
"""Results of at most so many bytes travel through the pipe."""

IN_LINE = 1 << 62
"""For results of any size."""

MAX_SLOTS = 8
"""Slots of one worker that a consumer may hold before results are copied for it."""

MAX_LOCKED_SLOTS = 64
"""The same when they are page-locked: copies to a device hold them, briefly, and their number is bounded elsewhere."""


class Parcel(NamedTuple):
    """A result: its pickle, and its tensors' bytes in line or in a slot."""

    body: bytes
    layout: tuple[tuple[torch.dtype, tuple[int, ...], int], ...]
    """dtype, shape and offset of each tensor."""
    data: bytes
    """The tensors' bytes, or empty when they lie in a slot."""
    slot: int
    path: str
    nbytes: int


class _CollectingPickler(pickle.Pickler):
    """Puts plain tensors aside and leaves their numbers."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors = tensors

    def persistent_id(self, value: object) -> int | None:
        if not (isinstance(value, Tensor) and _is_movable(value)):
            return None
        self.tensors.append(value.detach())
        return len(self.tensors) - 1

    def reducer_override(self, value: object) -> Any:
        return _reduce_part(value)


class _CollectingByValue(Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, to_caller=True)
        self.tensors = tensors

    persistent_id = _CollectingPickler.persistent_id

    def reducer_override(self, value: object) -> Any:
        reduced = _reduce_part(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def _reduce_part(value: object) -> Any:
    """Ragged rows without values but their own: a part of a dataset in files shares those of the whole."""
    return (RaggedPart, tuple(value.alone())) if type(value) is RaggedPart else NotImplemented


def _is_movable(value: Tensor) -> bool:
    return (
        type(value) in PLAIN_TYPES
        and type(value) is not torch.nn.Parameter
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_quantized
    )


class _Slot:
    """A piece of shared memory that a worker owns."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fd, self.path, self._unlink = anonymous_file(self.nbytes)
        self.buffer = torch.frombuffer(map_path(self.path, self.nbytes), dtype=torch.uint8)

    def close(self) -> None:
        release(os.getpid(), self._fd, self._unlink)


class ParcelWriter:
    """The worker's side: packs results, and owns the slots.

    Args:
        small_bytes: results of at most so many bytes go in line.
    """

    def __init__(self, small_bytes: int = SMALL_BYTES) -> None:
        self.small_bytes = small_bytes
        self._slots: dict[int, _Slot] = {}
        self._free: set[int] = set()
        self._next = 0

    def pack(self, result: object) -> Parcel:
        """A parcel for `result`; the result may be changed afterwards.

        Raises:
            SerializationError: it cannot be pickled.
        """
        tensors: list[Tensor] = []
        body = self._body(result, tensors)
        layout, offset = [], 0
        for tensor in tensors:
            start = align(offset)
            layout.append((tensor.dtype, tuple(tensor.shape), start))
            offset = start + tensor.numel() * tensor.element_size()
        if offset == 0:
            return Parcel(body, tuple(layout), b"", -1, "", 0)
        slot = None if offset <= self.small_bytes else self._take(offset)
        buffer = torch.empty(offset, dtype=torch.uint8) if slot is None else slot.buffer
        for tensor, (dtype, shape, start) in zip(tensors, layout):
            nbytes = tensor.numel() * tensor.element_size()
            if nbytes:
                buffer[start : start + nbytes].view(dtype).view(shape).copy_(tensor)
        if slot is None:
            return Parcel(body, tuple(layout), buffer.numpy().tobytes(), -1, "", offset)
        return Parcel(body, tuple(layout), b"", slot.number, slot.path, slot.nbytes)

    def _body(self, result: object, tensors: list[Tensor]) -> bytes:
        buffer = io.BytesIO()
        try:
            _CollectingPickler(buffer, tensors).dump(result)
            return buffer.getvalue()
        except Exception:
            tensors.clear()
        buffer = io.BytesIO()
        try:
            _CollectingByValue(buffer, tensors).dump(result)
        except DatasetError:
            raise  # of a file that the result's rows lie in
        except Exception as error:
            raise SerializationError(
                f"the function returned a {type(result).__name__} that cannot be sent back from the worker: "
                f"{type(error).__name__}: {error}. Return tensors, collections of tensors or plain values."
            ) from error
        return buffer.getvalue()

    def _take(self, nbytes: int) -> _Slot:
        fitting = [n for n in self._free if self._slots[n].nbytes >= nbytes]
        if fitting:
            number = min(fitting, key=lambda n: self._slots[n].nbytes)
            self._free.remove(number)
            return self._slots[number]
        if self._free:  # all too small: replace one, so that growing results do not leave a trail of slots
            number = self._free.pop()
            self._slots[number].close()
        else:
            number, self._next = self._next, self._next + 1
        slot = self._slots[number] = _Slot(number, nbytes)
        return slot

    def freed(self, numbers: tuple[int, ...]) -> None:
        """The driver has finished with these slots; with those of a number `~n`, which others may read, for good."""
        for number in numbers:
            if number in self._slots:
                self._free.add(number)
            elif number < 0 and ~number in self._slots:
                self._slots.pop(~number).close()

    def close(self) -> None:
        """Give up every slot; what the driver has mapped stays."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._free.clear()


class ParcelReader:
    """The driver's side, one for each worker and job; with page-locked slots it may serve several jobs.

    Args:
        locker: page-locks slots; None leaves them as they are.
    """

    def __init__(self, locker: PageLocker | None = None) -> None:
        self.locker = locker
        self._maps: dict[int, mmap.mmap] = {}
        self._locked: dict[int, int] = {}
        self._freed: deque[int] = deque()
        self._held: set[int] = set()
        self._shared: set[int] = set()
        _readers.add(self)

    def open(self, message: object) -> Any:
        """A message of the worker, with results and exceptions as they were.

        Raises:
            OSError: a result cannot be read any more, since its process has ended.
        """
        if isinstance(message, Segment) and message.kind.travels:
            return message._replace(values=tuple(map(self.unpack, message.values)))
        if isinstance(message, Done) and message.segment is not None:
            return message._replace(segment=self.open(message.segment))
        if isinstance(message, (Failed, Refused)):
            return message._replace(error=unpack_error(message.error))
        return message

    def unpack(self, parcel: Parcel) -> Any:
        """The result.

        Raises:
            OSError: its slot has gone, because the worker has.
        """
        return _Unpickler(io.BytesIO(parcel.body), self._tensors(parcel)).load()

    def _tensors(self, parcel: Parcel) -> list[Tensor]:
        if parcel.slot < 0:
            buffer = bytearray(parcel.data)
            return [_over(buffer, *entry) for entry in parcel.layout]
        mapped = self._maps.get(parcel.slot)
        if mapped is None or len(mapped) != parcel.nbytes:  # a slot that was too small is replaced by a larger one
            mapped = self._map(parcel)
        view = memoryview(mapped)
        tensors = [_over(view, *entry) for entry in parcel.layout]
        if len(self._held) >= (MAX_SLOTS if self.locker is None else MAX_LOCKED_SLOTS):
            tensors = [tensor.clone() for tensor in tensors]
            self._freed.append(parcel.slot)
            return tensors
        self._held.add(parcel.slot)
        weakref.finalize(view, self._release, parcel.slot).atexit = False
        return tensors

    def _map(self, parcel: Parcel) -> mmap.mmap:
        mapped = map_path(parcel.path, parcel.nbytes)
        self._unlock(parcel.slot)
        if self.locker is not None:
            address = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
            if self.locker.lock(address, parcel.nbytes):
                self._locked[parcel.slot] = address
        self._maps[parcel.slot] = mapped
        return mapped

    def relock(self, locker: PageLocker | None) -> None:
        """Another job begins, whose slots are locked by `locker`; None: they are not, nor are those of the last job."""
        if locker is None:
            self._unlock_all()
        self.locker = locker

    def _unlock(self, slot: int) -> None:
        address = self._locked.pop(slot, None)
        if address is not None and self.locker is not None:
            self.locker.unlock(address)

    def close(self) -> None:
        """Undo the page-locks. Tensors over the slots stay valid, as ordinary memory."""
        self._unlock_all()
        self._maps.clear()

    def _unlock_all(self) -> None:
        if self._locked and self.locker is not None:
            with contextlib.suppress(RuntimeError):  # the device is lost, and reads nothing any more
                self.locker.synchronize()
            for slot in list(self._locked):
                self._unlock(slot)

    def _release(self, slot: int) -> None:
        self._held.discard(slot)
        if slot in self._shared:
            self._shared.discard(slot)
            self._unlock(slot)
            self._maps.pop(slot, None)
            slot = ~slot
        self._freed.append(slot)

    def share(self) -> None:
        """The results that are held now will be held by a fork as well."""
        self._shared |= self._held

    def take_freed(self) -> tuple[int, ...]:
        """Slots whose last reader has gone since the last call."""
        freed = []
        while self._freed:
            freed.append(self._freed.popleft())
        return tuple(freed)


_readers: weakref.WeakSet[ParcelReader] = weakref.WeakSet()


def _share_with_fork() -> None:
    if not is_forking_worker():  # which does not use them
        for reader in list(_readers):
            reader.share()


os.register_at_fork(before=_share_with_fork)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _over(buffer: bytearray | memoryview, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    count = 1
    for n in shape:
        count *= n
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)
