"""Exceptions on their way from a worker to the driver, with type, traceback and notes."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import NamedTuple

from tdmap.errors import RemoteError, RemoteTraceback
from tdmap.frames import with_lines, without_engine
from tdmap.runtime.wire import byvalue


class PackedError(NamedTuple):
    """An exception as bytes, and what to say when these cannot be read."""

    data: bytes
    type_name: str
    text: str
    """The formatted traceback, without frames of the engine."""


def pack_error(error: BaseException) -> PackedError:
    """`error` for the pipe. Its type is kept when the type can be pickled, else it becomes a `RemoteError`."""
    text = "".join(traceback.format_exception(type(error), error, without_engine(error.__traceback__)))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    with contextlib.suppress(Exception):
        data = byvalue.dumps(error, to_caller=True)
        if type(pickle.loads(data)) is type(error):
            return PackedError(data, name, text)
    return PackedError(b"", name, text)


def unpack_error(packed: PackedError) -> BaseException:
    """The exception, with the worker's traceback as its cause."""
    error: BaseException | None = None
    if packed.data:
        try:
            error = pickle.loads(packed.data)
        except Exception:
            error = None
    if not isinstance(error, BaseException):
        last = packed.text.strip().splitlines()[-1] if packed.text.strip() else packed.type_name
        error = RemoteError(f"the function raised {last} (its type cannot be sent between processes)", packed.type_name)
    error.__cause__ = RemoteTraceback(with_lines(packed.text))
    return error
