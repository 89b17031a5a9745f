"""State of this process: what a fork undoes, and what the engine sets and restores.

    which process          Owner, ProcessId
    forks                  pipes that a fork closes, threads that it loses
    settings               those of the caller, in worker processes and in worker threads
    the default device     seen by functions of the caller, not by the engine
    freed memory           how much a worker keeps
    signal handlers        their exceptions, told from those of the code that they interrupt
    the running operation  the outermost call of this thread

Other files that keep state for their process undo it with `os.register_at_fork` and `atexit.register`; docs/design.md
lists them.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import inspect
import operator
import os
import re
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

# -- which process -------------------------------------------------------------------------------------


class Owner:
    """The process that made an object, so that forks of it leave alone what the object stands for.

    A fork has a copy of every object: of pools whose workers it cannot hear, of folders that are being written, of
    iterators that stop their workers when they are collected.

    Args:
        what: how messages call the object.

    Example:
        >>> owner = Owner()
        >>> owner.is_here
        True
    """

    __slots__ = ("pid", "what")

    _current = staticmethod(os.getpid)  # of the class: while the interpreter ends, names of modules are None

    def __init__(self, what: str = "this object") -> None:
        self.pid = os.getpid()
        self.what = what

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a fork of it."""
        return self._current() == self.pid

    def require(self) -> None:
        """Raise RuntimeError in a fork."""
        if os.getpid() != self.pid:
            raise RuntimeError(
                f"{self.what} belongs to process {self.pid}, and cannot be used in its fork, process "
                f"{os.getpid()}. Make a new one in this process."
            )


@functools.cache
def boot_number() -> int:
    """A number that changes when the machine starts anew, and from one machine to another."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()  # random: no two machines have the same
    except OSError:
        text = os.uname().nodename
    return zlib.crc32(text.encode()) | zlib.adler32(text.encode()) << 31


class ProcessId(NamedTuple):
    """A process, across machines, restarts and pids that are used again: different processes are never equal."""

    pid: int
    host: str
    boot: int
    """Of the machine (`boot_number`)."""
    space: int
    """Inode of the namespace that the number belongs to (containers have their own), or 0."""
    start: int
    """When it was started, in ticks since the boot, or 0."""

    @staticmethod
    def own() -> ProcessId:
        """That of this process."""
        global _own_id
        pid = os.getpid()
        if _own_id is None or _own_id.pid != pid:
            _own_id = ProcessId(pid, os.uname().nodename, boot_number(), _namespace(), _start_time(pid) or 0)
        return _own_id

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None for a process of another machine or container."""
        if self.boot != boot_number():
            return False if self.host == os.uname().nodename else None
        if self.space != _namespace():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # of another user
            return True
        return _start_time(self.pid) == (self.start or None)


_own_id: ProcessId | None = None


def _namespace() -> int:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _start_time(pid: int) -> int | None:
    """When a process was started; None when it has ended, or `/proc` does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(fields[18])
    return None


# -- forks ---------------------------------------------------------------------------------------------

# The driver's ends of every pipe. A fork, the engine's or the user's, must not hold them: a worker sees that its driver
# has ended only when the last copy of the other end is closed. Objects, not descriptors: closing an object twice is
# harmless, closing a descriptor twice may close an unrelated file that has its number by then.
_driver_ends: dict[int, Any] = {}

_fork = threading.local()


def register_end(end: Any) -> None:
    """Close `end`, an object with a `close` method, in every fork of this process."""
    _driver_ends[id(end)] = end


def close_end(end: Any) -> None:
    """Close `end` here and forget it."""
    _driver_ends.pop(id(end), None)
    with contextlib.suppress(OSError):
        end.close()


def _close_ends_in_child() -> None:
    for end in list(_driver_ends.values()):
        close_end(end)


os.register_at_fork(after_in_child=_close_ends_in_child)


@contextlib.contextmanager
def forking_worker() -> Iterator[None]:
    """In this block, a child that the thread forks is a worker."""
    _fork.worker = True
    try:
        yield
    finally:
        _fork.worker = False


def is_forking_worker() -> bool:
    """Whether the fork that this thread makes is a worker."""
    return getattr(_fork, "worker", False)


# A fork has only the thread that made it. Python knows its own threads; threads that a library starts appear in
# `/proc/self/task` alone. OpenMP, OpenBLAS, Arrow, jemalloc and torch start theirs anew in a fork, or do not use them
# there. Rayon (Polars), OpenCV and most others wait for threads that do not exist in the fork, for ever. The library of
# a thread that waits is read from the return addresses on its stack.

_SURVIVES = re.compile(r"libgomp|libomp|libiomp|openblas|libmkl|libtorch|libc10|libpthreadpool|libarrow|libparquet")
"""Libraries whose threads may be lost in a fork."""

_RUNTIME = re.compile(r"libc[.-]|libpthread[.-]|libstdc\+\+|libgcc_s|libm[.-]|ld-linux|ld-musl|\[vdso\]")
"""Libraries in which threads of every library wait."""

_ALLOCATOR = "jemalloc_bg_thd"
_STACK_BYTES = 2048
_POOL_SPINS_SECONDS = 0.4
"""OpenMP and BLAS threads spin after an operation before they wait: those of OpenBLAS for 0.1 s."""

_harmless: set[str] = set()
"""Threads that survive a fork; their stacks are not read again."""


def threads_that_break_in_forks() -> list[str]:
    """The names of the threads of native code that a fork would break; empty where the system has no `/proc`.

    A thread counts unless it belongs to a library of `_SURVIVES`. Where stacks cannot be read, it counts when it has a
    name of its own.
    """
    global _harmless
    try:
        alive = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
    except OSError:
        return []
    _harmless &= alive
    unknown = alive - _harmless
    if not unknown:
        return []
    code = _Code()
    found = []
    for thread in sorted(unknown):
        try:
            name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
        except OSError:
            continue  # ended
        if name == _ALLOCATOR or _survives(thread, name, code):
            _harmless.add(thread)
        else:
            found.append(name)
    return found


def _survives(thread: str, name: str, code: _Code) -> bool:
    try:
        libraries = code.on_stack(thread)
    except FileNotFoundError:
        return not os.path.exists(f"/proc/self/task/{thread}") or _has_common_name(name)
    except (OSError, ValueError):
        return _has_common_name(name)
    return bool(libraries) and all(_SURVIVES.search(library) for library in libraries)


def _has_common_name(name: str) -> bool:
    """Whether a thread has the default name: that of the program."""
    return name == Path("/proc/self/comm").read_text().strip()


class _Code:
    """Where the code of each library lies in memory."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, str]] = []
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, mode, _, _, _, *path = line.split(maxsplit=5)
            if "x" in mode:
                start, stop = (int(end, 16) for end in span.split("-"))
                self._starts.append(start)
                self._ranges.append((stop, os.path.basename(path[0]) if path else ""))

    def on_stack(self, thread: str) -> set[str]:
        """The libraries that a thread is in, without those of `_RUNTIME`; none when it does not come to rest.

        Raises:
            OSError, ValueError: its stack cannot be read.
        """
        deadline = time.monotonic() + _POOL_SPINS_SECONDS
        while (words := Path(f"/proc/self/task/{thread}/syscall").read_text().split())[0] == "running":
            if time.monotonic() > deadline:
                return set()
            time.sleep(0.001)
        top, counter = int(words[-2], 16), int(words[-1], 16)
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(memory, _STACK_BYTES, top)
        finally:
            os.close(memory)
        # Addresses have 48 bits; a processor that signs them uses the others.
        addresses = (word & (1 << 48) - 1 for word in struct.unpack(f"{len(data) // 8}Q", data[: len(data) // 8 * 8]))
        found = {self._library(address) for address in (counter, *addresses)}
        return {library for library in found if library is not None and not _RUNTIME.match(library)}

    def _library(self, address: int) -> str | None:
        place = bisect.bisect_right(self._starts, address) - 1
        return self._ranges[place][1] if place >= 0 and address < self._ranges[place][0] else None


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
