"""Exceptions of signal handlers, told from those of the code that they interrupt.

Python runs a handler between two instructions of whatever the main thread is at. What it raises (a timeout, most
often) comes out of there, and whoever takes every exception there for a sign that an object cannot be pickled, or that
a row is bad, hides it. A handler is called with the frame that it interrupts: that is how a traceback tells.
"""

from __future__ import annotations

import functools
import inspect
import signal
from types import CodeType, FrameType


def interrupting(error: BaseException, handlers: frozenset[CodeType] | None = None) -> BaseException | None:
    """The exception of a signal handler that `error` is, or comes from; None when there is none.

    Args:
        error: what was caught.
        handlers: only of these handlers; see `installed_handlers`.

    Example:
        >>> import signal
        >>> def stop(number, frame): raise ValueError("time is up")
        >>> before = signal.signal(signal.SIGUSR1, stop)
        >>> try:
        ...     signal.raise_signal(signal.SIGUSR1)
        ... except ValueError as caught:
        ...     error = caught
        >>> _ = signal.signal(signal.SIGUSR1, before)
        >>> interrupting(error) is error, interrupting(ValueError())
        (True, None)
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if _is_of_handler(current, handlers):
            return current
        current = current.__cause__ or current.__context__
    return None


def let_through(error: BaseException) -> None:
    """Raise the exception of a signal handler that `error` is, or comes from, if it is one."""
    found = interrupting(error)
    if found is not None:
        raise found


def installed_handlers() -> frozenset[CodeType]:
    """The code of the signal handlers of this moment."""
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


def _is_of_handler(error: BaseException, handlers: frozenset[CodeType] | None) -> bool:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        frame = step.tb_next.tb_frame
        if (handlers is None or frame.f_code in handlers) and _was_given(frame, step.tb_frame):
            return True
        step = step.tb_next
    return False


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Whether a function was called with this frame, as nobody but the interpreter calls a handler."""
    arguments = inspect.getargvalues(frame)
    values = [arguments.locals.get(name) for name in arguments.args]
    if arguments.varargs is not None:
        values += arguments.locals.get(arguments.varargs) or ()
    return any(value is interrupted for value in values)
