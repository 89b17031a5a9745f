"""Many tensors in one storage: fast creation of views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

Place = tuple[int, torch.dtype, "tuple[int, ...]"]
"""Position of a tensor: first byte, element type, shape."""

# Views unknown to autograd: an in-place write to one does not count as a change of the others.
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


class Pieces:
    """Tensors over parts of one storage, in row-major order. Each acts as if it had its own storage.

    Args:
        storage: the memory.
        kind: subclass of Tensor for them.

    Example:
        >>> pieces = Pieces(torch.arange(6, dtype=torch.float32).untyped_storage())
        >>> pieces.at([(8, torch.float32, (2,)), (16, torch.float32, (2, 1))])
        [tensor([2., 3.]), tensor([[4.],
                [5.]])]
    """

    __slots__ = ("_kind", "_whole", "storage")

    def __init__(self, storage: UntypedStorage, kind: type[Tensor] | None = None) -> None:
        self.storage = storage
        self._kind = kind
        self._whole: dict[torch.dtype, Tensor] = {}  # the storage as elements of a dtype

    def at(self, places: Iterable[Place]) -> list[Tensor]:
        """The tensors at some places: (first byte, dtype, shape), aligned to the dtype and inside the storage.

        Nothing is checked.
        """
        if _untracked is None:
            out = [
                self._of(dtype).new_empty(0).set_(self.storage, at // dtype.itemsize, n, strides_of(n))
                for at, dtype, n in places
            ]
        else:
            whole, out = self._whole, []
            with _untracked():
                for start, dtype, shape in places:
                    flat = whole.get(dtype)
                    if flat is None:
                        flat = self._of(dtype)
                    out.append(flat.as_strided(shape, strides_of(shape), start // dtype.itemsize))
        if self._kind is not None:
            for piece in out:
                piece.__class__ = self._kind
        return out

    def _of(self, dtype: torch.dtype) -> Tensor:
        room = (self.storage.nbytes() // dtype.itemsize,)
        flat = torch.empty(0, dtype=dtype, device=self.storage.device).set_(self.storage, 0, room, (1,))
        self._whole[dtype] = flat
        return flat
