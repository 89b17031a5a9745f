"""The default device of the caller, which functions of the user see and the engine does not.

`torch.set_default_device` and `with torch.device(...)` put a `DeviceContext` on the thread's stack of function modes:
tensors for which no device is named are made there. The engine makes buffers in host memory. So an operation takes
these contexts off the stack, calls each function of the user within the caller's, and puts them back when it returns;
an iterator does so at each step.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Thread(threading.local):
    device: torch.device | None = None


_thread = _Thread()


def caller_device() -> torch.device | None:
    """The device of the context that the caller is in; None: there is no context."""
    modes = _get_current_function_mode_stack() if _len_torch_function_stack() else ()
    found = [mode.device for mode in modes if isinstance(mode, DeviceContext)]
    return found[-1] if found else _thread.device


class Host(contextlib.AbstractContextManager[None]):
    """Within: tensors for which no device is named are made in host memory."""

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


def within(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Within: tensors for which no device is named are made on `device`."""
    return _Within(device)


class _Within(contextlib.AbstractContextManager[None]):
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
    """Run a function, or every method of a class, as within `Host`. Generators and `__iter__` stay as they are."""
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
        except BaseException as error:  # `fn` has left the frames of the engine out
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise

    return call  # type: ignore[return-value]
