"""Values as data: what the files of a run that can be resumed hold. A pickle is a program; this is none.

    dump(value)  ──► bytes  ──►  load(bytes)

Known are numbers, texts, the containers of Python, tensors, numpy arrays, the collections of `tensordict_lite`, and
some values of the standard library (dates, decimals, paths...). An instance of a class of the user's is written as
its class and its state. When it is read, the class is looked up among those that a module which the program has
imported defines by itself: nothing is imported, no function is called by its name, and neither `__init__` nor a
`__new__` of the user's runs. What else a file says is an error.

Equal values are written once where they are one object, so a value may refer to itself through lists and dicts.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

from tdmap.errors import SerializationError
from tdmap.plaindata.classes import modules_of
from tdmap.plaindata.reader import Reader
from tdmap.plaindata.writer import Writer

__all__ = ["dump", "load", "modules_of"]


def dump(value: Any, modules: Collection[str] = ()) -> bytes:
    """A value as bytes.

    Args:
        value: what is to be written.
        modules: names of the modules whose own classes it may hold instances of.

    Raises:
        SerializationError: it holds something that is no data; says what, and what to do.

    Example:
        >>> import torch
        >>> load(dump({"n": 3, "sums": torch.tensor([1.0, 2.0])}))
        {'n': 3, 'sums': tensor([1., 2.])}
    """
    writer = Writer(frozenset(modules))
    try:
        writer.add(value)
    except RecursionError:
        raise SerializationError("values that lie so deep within each other cannot be kept as data.") from None
    return b"".join(writer.parts)


def load(data: bytes | memoryview, modules: Collection[str] = ()) -> Any:
    """The value that `dump` made these bytes of. Tensors have memory of their own.

    Raises:
        ValueError: they are no such bytes, or name a class that is not there.
    """
    reader = Reader(data, frozenset(modules))
    try:
        value = reader.take()
    except (TypeError, KeyError, IndexError, AttributeError, RuntimeError, OverflowError, struct.error) as error:
        raise ValueError(f"not the data of a value ({type(error).__name__}: {error})") from error
    if reader.at != len(data):
        raise ValueError("not the data of a value (there is more behind it)")
    return value
