"""Stacked parameters of lazy modules, whose shapes are unknown until the first input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tensordict_lite.kernel import DeviceLike
from tensordict_lite.registry import register

__all__ = ["row_of_uninitialized", "stack_uninitialized"]


class _Stacked:
    """Several parameters without shape; :meth:`materialize` takes the shape of one."""

    stack_shape: torch.Size

    def materialize(self, shape: Any, device: DeviceLike | None = None, dtype: Any = None) -> None:
        super().materialize((*self.stack_shape, *shape), device=device, dtype=dtype)  # type: ignore[misc]


class StackedUninitializedParameter(_Stacked, UninitializedParameter):
    """The parameter of several lazy modules, stacked; see ``torch.nn.parameter.UninitializedParameter``."""


class StackedUninitializedBuffer(_Stacked, UninitializedBuffer):
    """The buffer of several lazy modules, stacked; see ``torch.nn.parameter.UninitializedBuffer``."""


def stack_uninitialized(leaves: list[Tensor], requires_grad: bool) -> Any:
    """One uninitialised tensor for several; the first call of the modules sets its shape.

    Raises:
        RuntimeError: some of them have a shape already.
    """
    kinds = {isinstance(leaf, (UninitializedParameter, UninitializedBuffer)) for leaf in leaves}
    if len(kinds) > 1:
        raise RuntimeError("some of the lazy modules have been called and others not: call all of them, or none")
    first = leaves[0]
    cls: Any  # torch's stubs do not declare the arguments
    if isinstance(first, UninitializedParameter):
        cls = StackedUninitializedParameter
        out = cls(requires_grad=requires_grad, device=first.device, dtype=first.dtype)
    else:
        cls = StackedUninitializedBuffer
        out = cls(device=first.device, dtype=first.dtype)
    out.stack_shape = torch.Size((len(leaves),))
    return out


class _Row:
    """One row of a stack inside ``torch.vmap``: its first call sets the shape of the whole stack.

    A module then reads its attribute again to fill it. So the row is told its slot and puts the mapped tensor there.
    """

    _stack: Any
    _dim: int
    _level: int
    _slot: tuple[Any, str] | None = None

    def materialize(self, shape: Any, device: DeviceLike | None = None, dtype: Any = None) -> None:
        self._stack.materialize(shape, device, dtype)
        if self._slot is None:
            raise RuntimeError("a row of uninitialised parameters gets its shape in a module: use to_module()")
        slots, key = self._slot
        slots[key] = torch._C._functorch._add_batch_dim(self._stack, self._dim, self._level)


class RowOfUninitializedParameter(_Row, UninitializedParameter):
    """See :class:`_Row`."""


class RowOfUninitializedBuffer(_Row, UninitializedBuffer):
    """See :class:`_Row`."""


def row_of_uninitialized(stack: Any, dim: int) -> Any:
    """The row of a stack without shape that a function under the innermost ``torch.vmap`` sees."""
    cls: Any = RowOfUninitializedParameter if isinstance(stack, UninitializedParameter) else RowOfUninitializedBuffer
    out = cls(device=stack.device, dtype=stack.dtype)
    out._stack, out._dim, out._level = stack, dim, torch._C._functorch.maybe_current_level()
    return out


def tell_slot(value: object, slots: Any, key: str) -> None:
    """Tell a row in which slot it was put."""
    if isinstance(value, _Row):
        value._slot = (slots, key)


register(row_of_uninitialized=row_of_uninitialized, tell_slot=tell_slot)
