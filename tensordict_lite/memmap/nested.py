"""Nested tensors in memory maps: consecutive elements, and a table of their shapes.

The table is an int64 ``[n, dims]`` tensor; for ``x.memmap`` it is ``x.shape.memmap``. Both the strided and the jagged
layout of torch are stored this way.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, UntypedStorage

from tensordict_lite import registry
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap.disk.files import write_tensor
from tensordict_lite.memmap.disk.mapping import SharedHandle, anonymous_storage, is_reachable, region_of
from tensordict_lite.memmap.disk.mapping import map_file as _map_storage

if TYPE_CHECKING:
    from tensordict_lite.memmap.tensor import MemoryMappedTensor


def shape_file(path: str) -> str:
    """``x.memmap`` -> ``x.shape.memmap``, the file of the shapes of the elements."""
    return path.removesuffix(".memmap") + ".shape.memmap"


def offsets_file(path: str) -> str:
    """``x.memmap`` -> ``x.offsets.memmap``, the file of the starts and ends of the rows of a ragged entry."""
    return path.removesuffix(".memmap") + ".offsets.memmap"


def sizes(tensor: Tensor) -> Tensor:
    """Shapes of the elements, int64 ``[n, dims]``."""
    if tensor.layout is torch.jagged:
        return torch.tensor([list(part.shape) for part in tensor.unbind()], dtype=torch.int64, device="cpu").reshape(
            tensor.shape[0], tensor.ndim - 1
        )
    return tensor._nested_tensor_size()


def count(tensor: Tensor) -> int:
    """Total number of elements."""
    return int(sizes(tensor).prod(-1).sum())


def buffer_of(tensor: Tensor) -> Tensor:
    """All elements in one dimension, each in row-major order."""
    parts = [part.detach().reshape(-1) for part in tensor.unbind()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=tensor.dtype, device="cpu")


def view(buffer: Tensor, shapes: Tensor, layout: torch.layout = torch.strided) -> Tensor:
    """The nested tensor over a flat buffer, sharing its memory."""
    shapes = shapes.to("cpu", torch.int64)
    counts = shapes.prod(-1)
    if layout is torch.jagged:
        return _jagged_view(buffer, shapes)
    strides = torch.ones_like(shapes)
    for dim in range(shapes.shape[1] - 2, -1, -1):
        strides[:, dim] = strides[:, dim + 1] * shapes[:, dim + 1]
    # torch counts them from the start of the storage.
    offsets: Any = counts.cumsum(0) - counts + buffer.storage_offset()
    try:
        _is_first.pop()
    except IndexError:
        return torch._nested_view_from_buffer(buffer, shapes, strides, offsets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch._nested_view_from_buffer(buffer, shapes, strides, offsets)


_is_first = [True]
"""torch warns once per process that the strided layout is a prototype. Warning filters are global: threads that
changed and restored them at every call would undo the changes of each other.
"""


def _jagged_view(buffer: Tensor, shapes: Tensor) -> Tensor:
    """Jagged layout: only the first dimension of the elements may differ."""
    lengths = shapes[:, 0]
    offsets = torch.zeros(len(shapes) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(lengths, 0, out=offsets[1:])
    rest = shapes[0, 1:].tolist() if len(shapes) else []
    return torch.nested.nested_tensor_from_jagged(buffer.view(int(offsets[-1]), *rest), offsets)


def check_shapes(path: str, shapes: Tensor, layout: str | None, itemsize: int) -> int:
    """Bytes of the elements of a table of shapes from a file; DatasetError if it is invalid."""
    total = 0
    for row in shapes.tolist():
        size = extent = itemsize
        for n in row:
            size *= n
            extent *= n or 1
        if min(row, default=0) < 0 or extent >= 1 << 62:
            raise DatasetError(path, f"an element of the nested tensor has the impossible shape {row}")
        total += size
    if total >= 1 << 62:
        raise DatasetError(path, f"the elements of the nested tensor would have {total:,} bytes")
    if layout == "jagged" and len(shapes) and bool((shapes[:, 1:] != shapes[0, 1:]).any()):
        raise DatasetError(path, "a jagged tensor has elements that differ in their first dimension only")
    return total


def _mapped(cls: type[MemoryMappedTensor], buffer: Tensor, shapes: Tensor) -> MemoryMappedTensor:
    out = view(buffer, shapes).as_subclass(registry.MappedNestedTensor)
    out._buffer = buffer
    return out


def mapped_view(buffer: Tensor, shapes: Tensor, layout: str | None) -> Tensor:
    """A nested tensor over the elements in a file, in the saved layout."""
    if layout == "jagged":
        return view(buffer, shapes, torch.jagged)
    return _mapped(registry.MemoryMappedTensor, buffer, shapes)


def over_storage(
    cls: type[MemoryMappedTensor], storage: UntypedStorage, dtype: torch.dtype, shapes: Tensor
) -> MemoryMappedTensor:
    """A nested tensor over the start of a storage."""
    numel = int(shapes.prod(-1).sum())
    if numel * dtype.itemsize > storage.nbytes():
        raise RuntimeError(
            f"the shapes need {numel * dtype.itemsize:,} bytes of {dtype}; the storage has {storage.nbytes():,}"
        )
    return _mapped(cls, torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (numel,), (1,)), shapes)


def map_file(
    cls: type[MemoryMappedTensor], path: str, dtype: torch.dtype, shapes: Tensor, writable: bool
) -> MemoryMappedTensor:
    """Map a file of elements with known shapes."""
    nbytes = int(shapes.prod(-1).sum()) * dtype.itemsize
    found = os.stat(path).st_size if nbytes else 0
    if found < nbytes:
        raise ValueError(f"{path} holds {found:,} bytes; the shapes of {dtype} need {nbytes:,}")
    if not nbytes:
        return _mapped(cls, torch.empty(0, dtype=dtype, device="cpu"), shapes)
    return over_storage(cls, _map_storage(path, nbytes, writable=writable), dtype, shapes)


def make(
    cls: type[MemoryMappedTensor], shapes: Tensor, dtype: torch.dtype, path: str | None, existsok: bool
) -> MemoryMappedTensor:
    """A zero-filled nested tensor, in a file (with its table of shapes) or in anonymous memory."""
    nbytes = int(shapes.prod(-1).sum()) * dtype.itemsize
    if path is None:
        if not nbytes:
            return _mapped(cls, torch.empty(0, dtype=dtype, device="cpu"), shapes)
        return over_storage(cls, anonymous_storage(nbytes), dtype, shapes)
    write_tensor(
        path, torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="cpu"), existsok=existsok, copy_data=False
    )
    write_tensor(shape_file(path), shapes.to("cpu", torch.int64), existsok=existsok)
    return map_file(cls, path, dtype, shapes, True)


def from_tensor(
    cls: type[MemoryMappedTensor], tensor: Tensor, path: str | None, existsok: bool, copy_data: bool
) -> MemoryMappedTensor:
    """A mapped copy of a nested tensor, in the strided layout."""
    shapes = sizes(tensor)
    if path is None or not copy_data:
        out = make(cls, shapes, tensor.dtype, path, existsok)
        if copy_data:
            out._buffer.copy_(buffer_of(tensor))
        return out
    write_tensor(path, buffer_of(tensor), existsok=existsok)
    write_tensor(shape_file(path), shapes, existsok=existsok)
    return map_file(cls, path, tensor.dtype, shapes, True)


def reduce(tensor: MemoryMappedTensor) -> tuple[Any, ...]:
    """The pickle of a mapped nested tensor: the region of its buffer, and the shapes."""
    buffer = getattr(tensor, "_buffer", None)
    region = None if buffer is None else region_of(buffer)
    shapes = sizes(tensor).tolist()
    if buffer is None or region is None or not is_reachable(region.handle, buffer.untyped_storage()):
        return _rebuild_values, (buffer_of(tensor), shapes)
    return _rebuild_mapped, (region.handle, tensor.dtype, shapes)


def _rebuild_mapped(handle: SharedHandle, dtype: torch.dtype, shapes: list[list[int]]) -> Tensor:
    return over_storage(registry.MemoryMappedTensor, handle.open(), dtype, torch.tensor(shapes, device="cpu"))


def _rebuild_values(buffer: Tensor, shapes: list[list[int]]) -> Tensor:
    return view(buffer, torch.tensor(shapes, device="cpu"))
