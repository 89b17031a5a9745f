"""Nested tensors of torch's strided layout as entries, with the shape that torch does not provide.

``torch.nested.nested_tensor([...])`` raises at ``.shape``, which batch sizes need. Such a tensor gets a shape when it
becomes an entry: ``[n, ...]`` with -1 for a dimension in which the elements differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # torch's stubs leave it out

__all__ = ["StridedNestedTensor", "UninitializedTensorMixin", "indexed", "shape_of", "with_shape"]


def shape_of(tensor: Tensor) -> torch.Size:
    """The shape of any tensor, ``[n, ...]`` with -1 for a ragged dimension of a nested one or an unknown shape.

    Example:
        >>> shape_of(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))
        torch.Size([2, -1, 3])
    """
    if isinstance(tensor, UninitializedTensorMixin):
        return torch.Size((*getattr(tensor, "stack_shape", ()), -1))
    if not tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.shape
    columns = zip(*tensor.as_subclass(Tensor)._nested_tensor_size().tolist())
    rest = [column[0] if len(set(column)) == 1 else -1 for column in columns]
    return torch.Size((tensor.size(0), *(rest or [-1] * (tensor.ndim - 1))))


def with_shape(tensor: Tensor) -> Tensor:
    """The same tensor with a ``.shape``, if it is a strided nested tensor."""
    if type(tensor) is Tensor and tensor.is_nested:
        return tensor.as_subclass(StridedNestedTensor)
    return tensor


def indexed(tensor: Tensor, index: Any) -> Tensor:
    """``tensor[index]``, also for a jagged tensor, whose rows torch cannot slice or select.

    Consecutive rows share the memory of the values.

    Example:
        >>> three = torch.nested.nested_tensor([torch.zeros(2), torch.ones(1), torch.ones(0)], layout=torch.jagged)
        >>> [row.tolist() for row in indexed(three, slice(1, None)).unbind()]
        [[1.0], []]
    """
    if tensor.layout is not torch.jagged or tensor._ragged_idx != 1 or type(index) is int:  # type: ignore[attr-defined]
        return tensor[index]
    offsets = tensor.offsets()  # type: ignore[attr-defined]
    lengths = tensor._lengths  # type: ignore[attr-defined]
    starts = offsets[:-1]
    lengths = offsets.diff() if lengths is None else lengths
    starts, lengths, values = starts[index], lengths[index], tensor.values()
    ends = starts + lengths
    new = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    if not len(starts):
        values = values[:0]
    elif torch.equal(starts[1:], ends[:-1]):
        values = values[int(starts[0]) : int(ends[-1])]
    else:
        shifts = torch.repeat_interleave(starts - new[:-1], lengths)
        values = values.index_select(0, shifts + torch.arange(len(shifts), device=values.device))
    return torch.nested.nested_tensor_from_jagged(values, new)


class StridedNestedTensor(Tensor):
    """A nested tensor of the strided layout that has a shape; see :func:`shape_of`."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """``[n, ...]``, with -1 for a dimension in which the elements differ."""
        return shape_of(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return with_shape(out) if isinstance(out, Tensor) else out
