"""How bytes get to a device and back, without a wait that can be avoided.

    page-locked memory ──copy()──► the link's own stream ──► device memory ──hand_over()──► the caller's stream
           ▲                                │
           └── used again once a ──────── mark() ── is done

A `CudaLink` is one stream of copies to one device. Copies are only begun when they are asked for: source and
destination must stay as they are, and alive, until a mark that was made later is done. The tests have a link of their
own (`tests/device/fakelink.py`), which delays copies as far as CUDA may.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Device: TypeAlias = "torch.device | str | int"
"""What a user writes: `"cuda"`, `"cuda:1"`, `1`, `torch.device("cpu")`."""


def is_copied(tensor: Tensor) -> bool:
    """Whether a link copies a tensor's bytes; others (sparse ones, those on a device) move by themselves."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized


class PageLocker(Protocol):
    """Page-locks memory that a device copies from; a `CudaLink` is one."""

    def lock(self, address: int, nbytes: int) -> bool:
        """Page-lock memory of this process; False where that fails."""
        ...

    def unlock(self, address: int) -> None:
        """Undo `lock`."""
        ...

    def synchronize(self) -> None:
        """Wait for every copy."""
        ...


# -- CUDA --------------------------------------------------------------------------------------------

_PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for every device of the process."""


class CudaMark:
    """A point in the stream of a link: everything given to it before. A wait sleeps: workers need the cores."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(blocking=True)
        self.event.record(stream)

    def is_done(self) -> bool:
        """Whether the stream has come past this point; does not wait."""
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class CudaLink:
    """A stream of copies between this machine's memory and one CUDA device.

    Args:
        device: a CUDA device with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def empty_like(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Device memory for copies of `tensors`, used by the link's stream first."""
        with torch.cuda.stream(self.stream):  # the allocator gives memory to the stream that is current
            return [torch.empty_like(tensor, device=self.device) for tensor in tensors]

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Begin copies: (destination, source) pairs, in order."""
        with torch.cuda.stream(self.stream):
            for destination, source in pairs:
                destination.copy_(source, non_blocking=True)

    def mark(self) -> CudaMark:
        """A mark after everything so far."""
        return CudaMark(self.stream)

    def follow(self) -> None:
        """Copies from here on wait for what the caller has given to its current stream of the device."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def hand_over(self, mark: CudaMark, tensors: Iterable[Tensor]) -> None:
        """What the caller gives to its current stream from here on waits for `mark`; it will use `tensors` there."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(mark.event)
        for tensor in tensors:
            # Allocated for our stream, used on another: its memory must not return to ours before that has ended.
            tensor.record_stream(current)

    def context(self) -> AbstractContextManager[Any]:
        """In it, the device is the one that torch means by default."""
        return torch.cuda.device(self.device)

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies in this machine's memory of what the caller's current stream computes; complete on return.

        The tensors are not lazily conjugated or negated: their bytes are what is copied.
        """
        copies, others = [], set()
        for tensor in tensors:
            if tensor.device.type == "cuda" and tensor.device != self.device:
                others.add(tensor.device)  # of a function that uses several
            if is_copied(tensor):
                copies.append(tensor)  # in this machine's memory already
            elif tensor.layout is torch.strided and not tensor.is_quantized:
                copy = _page_locked(tuple(tensor.shape), tensor.dtype)
                copies.append(copy.copy_(tensor, non_blocking=True))
            else:
                copies.append(tensor.cpu())
        self.settle()
        for device in others:
            CudaMark(torch.cuda.current_stream(device)).wait()
        return copies

    def settle(self) -> None:
        """Wait for everything that the caller has given to its current stream of the device."""
        CudaMark(torch.cuda.current_stream(self.device)).wait()

    def synchronize(self) -> None:
        """Wait for every copy."""
        CudaMark(self.stream).wait()

    def memory(self) -> tuple[int, int]:
        """Bytes of the device's memory: free, and in total."""
        free, total = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept, total

    def is_lost(self) -> bool:
        """Whether this process can use the device no more; waits for what it was given, and asks."""
        return is_lost(self.device)

    def staging(self, nbytes: int) -> Tensor:
        """`nbytes` of page-locked memory (uint8), or of ordinary memory, with a warning, where there is no more."""
        return _page_locked((nbytes,), torch.uint8)

    def is_locked(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in page-locked memory, from which copies are asynchronous."""
        return bool(tensor.is_pinned())

    def lock(self, address: int, nbytes: int) -> bool:
        """Page-lock memory of this process; False, with a warning, where that fails: copies from it are slower."""
        with torch.cuda.device(self.device):
            code = torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE)
            if int(code) == 0:
                return True
            _not_locked(nbytes, f"cudaHostRegister: {_cuda_words(code)}")
            # A failed call leaves its error for the next kernel launch to find: let that one be ours.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=self.device)
        return False

    def unlock(self, address: int) -> None:
        """Undo `lock`, before the memory is given back. No copy may be under way."""
        with torch.cuda.device(self.device):
            torch.cuda.cudart().cudaHostUnregister(address)


def is_lost(device: torch.device) -> bool:
    """Whether every call to a CUDA device raises from now on, as after a failed assertion or a wild address there.

    Such an error belongs to the process: it stays until the process ends. Others, such as memory that was asked for and
    not had, do not.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _cuda_words(code: Any) -> str:
    """An error code of CUDA, with what it means where the library says so."""
    with contextlib.suppress(Exception):  # only words, and not every build of torch hands them on
        return f"error {int(code)}, {torch.cuda.cudart().cudaGetErrorString(code)}"
    return f"error {int(code)}"


def _page_locked(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        _not_locked(torch.Size(shape).numel() * dtype.itemsize, str(error).partition("\n")[0])
        return torch.empty(shape, dtype=dtype)


def _not_locked(nbytes: int, reason: str) -> None:
    warnings.warn(
        f"{nbytes:,} bytes could not be page-locked ({reason}): copies between them and the device are slower. "
        "Use a smaller chunksize or fewer workers, or give the program (in a container: the container) more memory "
        "that may be locked.",
        RuntimeWarning,
        stacklevel=3,
    )


# -- which device ------------------------------------------------------------------------------------

NO_FORKS = {"cuda"}
"""Types of device that a fork of this process cannot use, once anything here has asked for one."""

LINKS: dict[str, Callable[[torch.device], Any]] = {"cuda": CudaLink}
"""What opens a link, by type of device. Tests put fakes here."""


_OTHERS = ("mps", "xpu", "hpu", "mtia")
"""Accelerators that torch knows and this library has no link to: memory of theirs cannot be page-locked or lent."""


def open_link(device: torch.device) -> CudaLink:
    """A link to a device that `resolve_device` has given, other than the CPU."""
    link: CudaLink = LINKS[device.type](device)
    return link


def resolve_device(device: Device, name: str = "device") -> torch.device:
    """The device that is meant, with its index; without an index the current one.

    Args:
        device: as `torch.device` takes it.
        name: of the argument, for messages.

    Raises:
        ValueError: it does not exist here, or data cannot be moved to it.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
        >>> resolve_device("meta")
        Traceback (most recent call last):
        ...
        ValueError: device='meta': data can be moved to "cuda" (with an index or without) or stay on "cpu".
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}={device!r} is not a device of torch: {str(error).partition(chr(10))[0]}") from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type not in LINKS:
        way = ""
        if found.type in _OTHERS and name == "device":
            way = (
                f" For {found.type}, move each batch in the loop: for batch in tdmap.map_iter(data, fn): "
                f'batch = batch.to({found.type!r}). Data that lie there already can be mapped with executor="thread".'
            )
        raise ValueError(
            f'{name}={str(found)!r}: data can be moved to "cuda" (with an index or without) or stay on "cpu".{way}'
        )
    if found.type != "cuda":
        return torch.device(found.type, found.index or 0)
    _check_cuda(found, name)
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def _check_cuda(device: torch.device, name: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return
    plural = "device" if count == 1 else "devices"
    if count:
        hint = f"Use one of cuda:0 to cuda:{count - 1}." if count > 1 else "Use cuda:0."
    elif torch.backends.cuda.is_built():
        hint = "Is a driver installed, and CUDA_VISIBLE_DEVICES right? Without a GPU, leave the argument out."
    else:
        hint = "This torch was built without CUDA. Without a GPU, leave the argument out."
    raise ValueError(f"{name}: {device} does not exist: this machine has {count} CUDA {plural}. {hint}")
