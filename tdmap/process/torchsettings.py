"""Settings of torch that decide what a function computes: those of the process, and those of the thread.

A worker process was started with torch's defaults, and a new thread begins with those. Both are given the caller's, so
that the same function gives the same bits wherever it runs: precision of matrix products, deterministic algorithms,
autocast, whether operations are recorded, and the device and streams that are current.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NamedTuple

import torch

from tdmap.process import hooks

_FLAGS = (
    "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.allow_tf32",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.enabled",
    "fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
)
"""Of `torch.backends`, the older spellings first: they set the newer ones as well, and not the other way round."""

_AUTOCAST = ("cpu", "cuda")


def _holder(flag: str) -> tuple[Any, str]:
    path, _, name = flag.rpartition(".")
    holder: Any = torch.backends
    for part in path.split(".") if path else ():
        holder = getattr(holder, part)
    return holder, name


def _read(flag: str) -> Any:
    """The value of a flag; None where this torch has none, or says that it was set in two ways that differ."""
    with contextlib.suppress(AttributeError, RuntimeError):
        holder, name = _holder(flag)
        return getattr(holder, name)
    return None


def _precision() -> str | None:
    with contextlib.suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    return None


class ProcessSettings(NamedTuple):
    """Of a whole process."""

    dtype: torch.dtype
    """torch's default for floats."""
    deterministic: bool
    """Whether torch uses deterministic algorithms only."""
    warn_only: bool
    """Whether it warns, instead of raising, where an operation has none."""
    precision: str | None
    """Of matrix products of float32; None where torch cannot say it in one word."""
    flags: tuple[Any, ...]
    """The values of `_FLAGS`."""

    @classmethod
    def here(cls) -> ProcessSettings:
        """The settings that this process has now."""
        return cls(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            _precision(),
            tuple(_read(flag) for flag in _FLAGS),
        )

    def enter(self) -> None:
        """Make them those of this process."""
        torch.set_default_dtype(self.dtype)
        here = ProcessSettings.here()
        if here == self:
            return
        if (self.deterministic, self.warn_only) != (here.deterministic, here.warn_only):
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        if self.precision is not None and self.precision != here.precision:
            torch.set_float32_matmul_precision(self.precision)
        for flag, wanted in zip(_FLAGS, self.flags):
            if wanted is not None and wanted != _read(flag):
                with contextlib.suppress(AttributeError, RuntimeError):
                    holder, name = _holder(flag)
                    setattr(holder, name, wanted)


class ThreadSettings(NamedTuple):
    """Of one thread."""

    grad: bool
    """Whether torch records operations."""
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    """For each type of device: whether operations choose their own dtype, and which."""
    streams: tuple[Any, ...] = ()
    """The current streams of CUDA devices that are not the default ones, and that of the current device, last."""
    inference: bool = False
    """Whether tensors are made in inference mode: a block of `torch.inference_mode`, which no function can set."""

    @classmethod
    def here(cls) -> ThreadSettings:
        """The settings of the calling thread. CUDA streams are left out: they are valid in this process only."""
        autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST)
        return cls(torch.is_grad_enabled(), autocast)

    @classmethod
    def with_streams(cls) -> ThreadSettings:
        """The settings of the calling thread with its CUDA streams, for another thread of this process.

        With inference mode, too: outside of it a thread may not write into tensors that the caller has made in it.
        """
        here = cls.here()._replace(inference=torch.is_inference_mode_enabled())
        if not torch.cuda.is_initialized():
            return here
        own = torch.cuda.current_device()
        # A device that is only looked at must not be entered: that costs a context in its memory.
        others = (number for number in range(torch.cuda.device_count()) if number != own)
        found = [(torch.cuda.current_stream(number), torch.cuda.default_stream(number)) for number in others]
        chosen = [current for current, default in found if current != default]
        return here._replace(streams=(*chosen, torch.cuda.current_stream(own)))

    def enter(self) -> None:
        """Make them those of this thread, but for inference mode."""
        torch.set_grad_enabled(self.grad)
        for kind, enabled, dtype in self.autocast:
            if enabled != torch.is_autocast_enabled(kind) or dtype != torch.get_autocast_dtype(kind):
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
                torch.clear_autocast_cache()
        for stream in self.streams:  # the device of a stream becomes the current one, so the right one comes last
            torch.cuda.set_stream(stream)


# -- threads that torch uses ---------------------------------------------------------------------------


class _Setting:
    """One new thread at a time sets how many threads torch uses in it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def forget(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self.lock = threading.Lock()


_setting = _Setting()
hooks.in_child(hooks.SETTINGS, _setting.forget)


def use_threads(count: int) -> None:
    """Have torch use so many threads in this thread, which is new; others that start later use as many as before.

    `torch.set_num_threads` sets both. So while jobs ran, threads that the user started would use one thread each for
    good, and jobs that began and ended at once would leave the number of one another behind. Only threads that start in
    the instant between two lines of this function have its number.

    Args:
        count: of threads, this one included.

    Example:
        >>> def new_thread(fn, *args):
        ...     thread = threading.Thread(target=fn, args=args)
        ...     thread.start()
        ...     thread.join()
        >>> found = []
        >>> new_thread(lambda: found.append(torch.get_num_threads()))
        >>> new_thread(use_threads, 3)
        >>> new_thread(lambda: found.append(torch.get_num_threads()))
        >>> found[0] == found[1]
        True
    """
    with _setting.lock:
        others = torch.get_num_threads()  # a thread that has set nothing has what all new ones begin with
        if others != count:
            torch.set_num_threads(count)
            setter = threading.Thread(target=torch.set_num_threads, args=(others,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: ours goes on, as it has one
                setter.start()
                setter.join()
