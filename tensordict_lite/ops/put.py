"""Writing numbers in any form into rows of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of
from tensordict_lite.building.arrays import require_unmasked
from tensordict_lite.errors import EntryKindError
from tensordict_lite.ops.operands import pair_alike

NUMBERS = (Tensor, int, float, complex)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SIGNED |= {
    getattr(torch, name): torch.uint8
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}


def signed_view(tensor: Tensor) -> Tensor:
    """The same bits in a dtype that torch can index: it cannot index wide unsigned integers or one-byte floats."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def write_rows(entry: Tensor, index: Any, value: Any) -> None:
    """``entry[index] = value`` for a number or a tensor, of any device, and of dtypes that torch cannot index."""
    try:
        entry[index] = value
    except RuntimeError as error:
        if isinstance(value, Tensor) and value.device != entry.device:  # torch copies to slices of another device only
            return write_rows(entry, index, value.to(entry.device))
        if not isinstance(error, NotImplementedError) or entry.dtype not in _SIGNED:
            raise  # no unsigned dtype that torch refuses to index: the shape or the index is wrong
        value = torch.as_tensor(value, dtype=entry.dtype, device=entry.device)
        signed_view(entry)[index] = signed_view(value)


def put_alike(td: Any, index: Any, source: Any) -> bool:
    """``td[index] = source`` for two similar trees of tensors. Return whether it was done.

    Args:
        td: a collection.
        index: a normalised index of its batch dimensions.
        source: another collection, which may lack entries.
    """
    into: list[Tensor] = []
    values: list[Tensor] = []
    if type(source) is not type(td) or not pair_alike(td, source, into, values):
        return False
    for entry, value in zip(into, values):
        write_rows(entry, index, value)
    return True


def put_rows(entry: Tensor, index: Any, value: object, key: str) -> None:
    """``entry[index] = value``, with arrays and lists of numbers in the dtype of the entry.

    Raises:
        EntryKindError: the value is neither a number nor an array of them.
    """
    write_rows(entry, index, value if isinstance(value, NUMBERS) else as_rows(value, entry, key))


def as_rows(value: Any, entry: Tensor, key: str) -> Tensor:
    """An array, list or tuple of numbers as a tensor with the dtype and device of ``entry``."""
    if isinstance(value, (np.ndarray, np.generic, list, tuple)):
        require_unmasked(value, f"the value for {key!r}")
        try:
            return tensor_of(np.asarray(value) if isinstance(value, np.generic) else value, "cpu").to(entry)
        except (TypeError, ValueError, RuntimeError):  # strings, ragged lists
            pass
    raise EntryKindError(key, entry, value)
