"""What values are written as: sizes, and the kinds that have a text."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import struct
import uuid
from collections.abc import Callable
from typing import Any

import torch

from tensordict_lite import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_lite.memmap.load import DTYPES

DEPTH = 200
"""Values within values, at most."""

INT64 = 1 << 63
LENGTH = struct.Struct("<Q")
NUMBER = struct.Struct("<q")
FLOATS = struct.Struct("<d")
COMPLEX = struct.Struct("<dd")

TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (fractions.Fraction, str, fractions.Fraction),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "dtype": (torch.dtype, str, lambda name: DTYPES[name]),
    "device": (torch.device, str, torch.device),
}
FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, bytes, list, dict, set, tuple)}

COLLECTIONS: dict[str, Any] = {
    kind.__name__: kind for kind in (TensorDict, NonTensorData, NonTensorStack, LazyStackedTensorDict)
}
