"""Many tensors in one storage: the views of it, made fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

__all__ = ["Place", "pieces_of", "strides_of"]

Place = tuple[int, torch.dtype, "tuple[int, ...]"]
"""Where a tensor is: first byte, element type, shape."""

_empty = torch.empty
# Views that autograd does not know as such: an in-place write to one is no change of the others.
_untracked: Any = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", None)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor in row-major order, in elements.

    Example:
        >>> strides_of((2, 3, 4))
        (12, 4, 1)
    """
    if len(shape) == 1:
        return (1,)
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def pieces_of(storage: UntypedStorage, places: Iterable[Place], kind: type[Tensor] | None = None) -> list[Tensor]:
    """Tensors over parts of a storage, in row-major order. Each stands for itself, as if it had its own storage.

    Args:
        storage: the memory.
        places: (first byte, dtype, shape) of each, aligned to its dtype and inside the storage: nothing is checked.
        kind: subclass of Tensor that they are to be.

    Example:
        >>> import torch
        >>> storage = torch.arange(6, dtype=torch.float32).untyped_storage()
        >>> pieces_of(storage, [(8, torch.float32, (2,)), (16, torch.float32, (2, 1))])
        [tensor([2., 3.]), tensor([[4.],
                [5.]])]
    """
    whole: dict[torch.dtype, Tensor] = {}
    out = []
    with contextlib.nullcontext() if _untracked is None else _untracked():
        for start, dtype, shape in places:
            if _untracked is None:
                piece = _empty(0, dtype=dtype, device=storage.device).set_(storage, start // dtype.itemsize, shape)
            else:
                flat = whole.get(dtype)
                if flat is None:
                    room = (storage.nbytes() // dtype.itemsize,)
                    flat = whole[dtype] = _empty(0, dtype=dtype, device=storage.device).set_(storage, 0, room)
                piece = flat.as_strided(shape, strides_of(shape), start // dtype.itemsize)
            if kind is not None:
                piece.__class__ = kind
            out.append(piece)
    return out
