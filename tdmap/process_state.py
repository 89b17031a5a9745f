"""State of this process that the engine sets and restores.

    settings               those of the caller, in worker processes and in worker threads
    the default device     seen by functions of the caller, not by the engine
    freed memory           how much a worker keeps
    signal handlers        their exceptions, told from those of the code that they interrupt
    the running operation  the outermost call of this thread

Other files that keep state for their process undo it with `os.register_at_fork` and `atexit.register`; docs/design.md
lists them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import operator
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

# -- settings ------------------------------------------------------------------------------------------

# A worker process starts with the defaults of Python, NumPy and torch, and a new thread begins with those of NumPy and
# torch. Both are given the caller's, so that a function gives the same bits, warnings and errors wherever it runs.

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
"""Of `torch.backends`. The older spellings come first: they set the newer ones as well."""

_AUTOCAST = ("cpu", "cuda")


def _read_flag(flag: str) -> Any:
    """The value of a flag; None where this torch has none, or where its two spellings were set to different values."""
    with contextlib.suppress(AttributeError, RuntimeError):
        return operator.attrgetter(flag)(torch.backends)
    return None


COMPILER_IS_DETERMINISTIC = "TORCHINDUCTOR_DETERMINISTIC"
"""The variable that torch's compiler reads when it is imported."""


def _use_deterministic_algorithms(mode: bool, warn_only: bool) -> None:
    """As torch's function of that name, which imports torch's compiler: a second for each new worker."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
        return
    torch.set_deterministic_debug_mode(("warn" if warn_only else "error") if mode else "default")
    os.environ[COMPILER_IS_DETERMINISTIC] = str(int(mode))


class ProcessSettings(NamedTuple):
    """Settings of a whole process."""

    dtype: torch.dtype
    """torch's default for floats."""
    deterministic: bool
    """Whether torch uses deterministic algorithms only."""
    warn_only: bool
    """Whether it warns, instead of raising, where an operation has no deterministic algorithm."""
    precision: str | None
    """Of matrix products of float32; None where torch has no single word for it."""
    flags: tuple[Any, ...]
    """The values of `_FLAGS`."""
    recursion_limit: int
    """Of Python."""
    warning_filters: tuple[Any, ...]
    """`warnings.filters`."""

    @classmethod
    def here(cls) -> ProcessSettings:
        """The settings that this process has now."""
        precision = None
        with contextlib.suppress(RuntimeError):
            precision = torch.get_float32_matmul_precision()
        return cls(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            precision,
            tuple(map(_read_flag, _FLAGS)),
            sys.getrecursionlimit(),
            tuple(warnings.filters),
        )

    def enter(self) -> None:
        """Set them in this process."""
        torch.set_default_dtype(self.dtype)
        here = ProcessSettings.here()
        if here == self:
            return
        if self.recursion_limit != here.recursion_limit:
            with contextlib.suppress(RecursionError):  # this thread is deeper already
                sys.setrecursionlimit(self.recursion_limit)
        if (self.deterministic, self.warn_only) != (here.deterministic, here.warn_only):
            _use_deterministic_algorithms(self.deterministic, self.warn_only)
        if self.precision is not None and self.precision != here.precision:
            torch.set_float32_matmul_precision(self.precision)
        for flag, wanted in zip(_FLAGS, self.flags):
            if wanted is not None and wanted != _read_flag(flag):
                with contextlib.suppress(AttributeError, RuntimeError):
                    path, _, name = flag.rpartition(".")
                    setattr(operator.attrgetter(path)(torch.backends) if path else torch.backends, name, wanted)
        if self.warning_filters != tuple(warnings.filters):  # modules that the above imports add some
            warnings.resetwarnings()  # and forget which warnings were shown
            warnings.filters.extend(self.warning_filters)  # type: ignore[attr-defined]


class ThreadSettings(NamedTuple):
    """Settings of one thread."""

    grad: bool
    """Whether torch records operations."""
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    """For each type of device: whether operations choose their own dtype, and which."""
    numpy: Mapping[str, Any]
    """What NumPy does about overflow, division by zero and the like."""
    inference: bool
    """Whether tensors are made in inference mode: a block of `torch.inference_mode`, which no function can set."""
    streams: tuple[Any, ...] = ()
    """The current streams of CUDA devices that are not the default ones, and that of the current device, last."""

    @classmethod
    def here(cls) -> ThreadSettings:
        """The settings of the calling thread. CUDA streams are left out: they are valid in this process only."""
        autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST)
        return cls(torch.is_grad_enabled(), autocast, np.geterr(), torch.is_inference_mode_enabled())

    @classmethod
    def with_streams(cls) -> ThreadSettings:
        """The settings of the calling thread with its CUDA streams, for another thread of this process."""
        here = cls.here()
        if not torch.cuda.is_initialized():
            return here
        own = torch.cuda.current_device()
        # A device that is only looked at must not be entered: that costs a context in its memory.
        others = (number for number in range(torch.cuda.device_count()) if number != own)
        found = [(torch.cuda.current_stream(number), torch.cuda.default_stream(number)) for number in others]
        chosen = [current for current, default in found if current != default]
        return here._replace(streams=(*chosen, torch.cuda.current_stream(own)))

    def enter(self) -> None:
        """Set them in this thread, except inference mode."""
        torch.set_grad_enabled(self.grad)
        np.seterr(**self.numpy)
        for kind, enabled, dtype in self.autocast:
            if enabled != torch.is_autocast_enabled(kind) or dtype != torch.get_autocast_dtype(kind):
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
                torch.clear_autocast_cache()
        for stream in self.streams:  # the device of a stream becomes the current one, so the right one comes last
            torch.cuda.set_stream(stream)


_setting_threads = threading.Lock()
os.register_at_fork(after_in_child=_setting_threads._at_fork_reinit)  # type: ignore[attr-defined]


def use_threads(count: int) -> None:
    """Set how many threads torch uses in this new thread; threads that start later use as many as before.

    `torch.set_num_threads` sets both. A thread that starts between two lines of this function takes its number.

    Args:
        count: number of threads, this one included.

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
    with _setting_threads:
        others = torch.get_num_threads()  # the number that all new threads begin with
        if others != count:
            torch.set_num_threads(count)
            setter = threading.Thread(target=torch.set_num_threads, args=(others,), daemon=True)
            with contextlib.suppress(RuntimeError):  # the system starts no more threads
                setter.start()
                setter.join()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on the calling thread alone, while workers have the cores.

    A parallel operation ends when its last thread does, and one that waits for a core behind a worker lets all others
    wait: joining a batch took ten times as long.
    """
    before = torch.get_num_threads()
    if before == 1:  # nothing is said about threads that start later, which `torch.set_num_threads` is about as well
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- the default device --------------------------------------------------------------------------------

# `torch.set_default_device` and `with torch.device(...)` put a `DeviceContext` on the thread's stack of function modes:
# tensors for which no device is named are made there. The engine makes buffers in host memory. So an operation takes
# these contexts off the stack, calls each function of the user within the caller's, and puts them back when it returns;
# an iterator does so at each step.

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Thread(threading.local):
    device: torch.device | None = None


_thread = _Thread()


def caller_device() -> torch.device | None:
    """The default device of the caller; None when it has set none."""
    if not _len_torch_function_stack():
        return _thread.device
    found = [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return found[-1] if found else _thread.device


class Host(contextlib.AbstractContextManager[None]):
    """In this block, tensors for which no device is named are made in host memory."""

    _modes: Sequence[Any] = ()

    def __enter__(self) -> None:
        if not _len_torch_function_stack():
            return
        modes = _get_current_function_mode_stack()
        others = [mode for mode in modes if not isinstance(mode, DeviceContext)]
        if len(others) < len(modes):
            self._before, _thread.device = _thread.device, caller_device()
            self._modes = modes
            _replace_modes(others)

    def __exit__(self, *error: object) -> None:
        if self._modes:
            _replace_modes(self._modes)
            _thread.device = self._before


class DefaultDevice(contextlib.AbstractContextManager[None]):
    """In this block, tensors for which no device is named are made on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._modes = _get_current_function_mode_stack()
        _push_mode(DeviceContext(self._device))

    def __exit__(self, *error: object) -> None:
        _replace_modes(self._modes)  # the function may have called torch.set_default_device


def _replace_modes(modes: Sequence[Any]) -> None:
    for _ in range(_len_torch_function_stack()):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


def on_host(fn: Decorated) -> Decorated:
    """Run a function, or every method of a class, in a `Host` block. Generators and `__iter__` stay as they are."""
    if isinstance(fn, type):
        for name, value in list(vars(fn).items()):
            if isinstance(value, (classmethod, staticmethod)):
                setattr(fn, name, type(value)(on_host(value.__func__)))
            elif isinstance(value, property) and value.fget is not None:
                setattr(fn, name, property(on_host(value.fget), value.fset, value.fdel, value.__doc__))
            elif isinstance(value, FunctionType) and not (name == "__iter__" or inspect.isgeneratorfunction(value)):
                setattr(fn, name, on_host(value))
        return fn

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not _len_torch_function_stack():
                return fn(*args, **kwargs)
            with Host():
                return fn(*args, **kwargs)
        except BaseException as error:  # `fn` has left out the frames of the engine
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise

    return call  # type: ignore[return-value]


# -- freed memory --------------------------------------------------------------------------------------

# A chunk's temporaries are freed before those of the next chunk are made. By default, glibc gives such memory back to
# the system and asks for it again, chunk after chunk, and the kernel has to find and clear the same pages each time: up
# to a third of a worker's time, depending on what lies at the end of its heap.

KEPT_BYTES = 32 << 20
"""Free memory that is kept at the end of the heap."""

OWN_BYTES = 16 << 20
"""Objects of this size get pages of their own, which go back to the system when they are freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> None:
    """Keep freed memory in this process, up to `KEPT_BYTES`. Variables of the environment take precedence."""
    chosen = any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = _glibc("mallopt")
    if mallopt is not None and not chosen:
        mallopt(_MMAP_THRESHOLD, OWN_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Give free memory back to the system, before a pause."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Any:
    """A function of glibc; None where the C library is another one."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None


# -- signal handlers -----------------------------------------------------------------------------------


def installed_handlers() -> frozenset[CodeType]:
    """The code of the signal handlers that are installed now."""
    found = (signal.getsignal(number) for number in signal.valid_signals())
    return frozenset(code for code in map(_code_of, found) if code is not None)


def _code_of(handler: object) -> CodeType | None:
    if isinstance(handler, functools.partial):
        return _code_of(handler.func)
    plain = getattr(handler, "__func__", handler)
    if not hasattr(plain, "__code__"):  # an object that can be called
        plain = inspect.getattr_static(type(plain), "__call__", None)
    code = getattr(plain, "__code__", None)
    return code if isinstance(code, CodeType) else None


def comes_from_handler(error: BaseException, handlers: frozenset[CodeType]) -> bool:
    """Whether an exception was raised by one of these signal handlers, or comes from one that was.

    Python runs a handler between two instructions of the main thread, and what it raises (the alarm of a timeout, most
    often) comes out of the code that it interrupts.

    Example:
        >>> import signal
        >>> def stop(number, frame): raise ValueError("time is up")
        >>> before = signal.signal(signal.SIGUSR1, stop)
        >>> handlers = installed_handlers()
        >>> try:
        ...     signal.raise_signal(signal.SIGUSR1)
        ... except ValueError as caught:
        ...     error = caught
        >>> _ = signal.signal(signal.SIGUSR1, before)
        >>> comes_from_handler(error, handlers), comes_from_handler(ValueError(), handlers)
        (True, False)
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(current.__traceback__)):
            return True
        current = current.__cause__ or current.__context__
    return False


# -- the running operation -----------------------------------------------------------------------------


class Running(contextlib.ExitStack):
    """An operation that a user has called and that has not returned yet; its callbacks are called when it has.

    Args:
        name: name of the function.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


CURRENT: ContextVar[Running | None] = ContextVar("running", default=None)


def running_operation() -> Running | None:
    """The operation that was called in this thread: the outermost one, where one calls another."""
    return CURRENT.get()
