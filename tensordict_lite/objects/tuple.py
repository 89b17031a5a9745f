"""A tuple as an entry: the Jacobians of an entry by several arguments, whose tensors transforms still see."""

from __future__ import annotations

from tensordict_lite.objects.data import NonTensorData
from tensordict_lite.registry import register

__all__ = ["TupleEntry"]


class TupleEntry(NonTensorData):
    """Non-tensor data that holds a tuple of tensors or collections, and is a node of pytrees with these children."""

    __slots__ = ()
    _is_tuple = True


register(TupleEntry=TupleEntry)
