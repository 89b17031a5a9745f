"""Index arithmetic on a batch size, without touching tensor data.

An index of the user (``td[..., 0]``, ``td[[0, 1], None]``) is normalised once against the batch size. The normalised
index applies unchanged to every leaf and nested collection and leaves their trailing dimensions alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_lite.arrays import tensor_of

_FULL = slice(None)
_PLAIN = frozenset((int, slice))


def _rows_of(part: Any) -> Tensor:
    """A sequence of row numbers, or a mask."""
    if not len(part):
        return torch.empty(0, dtype=torch.long, device="cpu")
    if type(part) is list and type(part[0]) is int and not torch.compiler.is_compiling():
        try:
            numbers = np.array(part)  # four times as fast as torch
        except (TypeError, ValueError):  # lists and tensors among the numbers: let torch convert them
            pass
        else:
            if numbers.dtype == np.int64:
                return torch.as_tensor(numbers, device="cpu")
    try:
        return torch.as_tensor(part if isinstance(part, tuple) else list(part), device="cpu")
    except (TypeError, ValueError) as error:
        if any(isinstance(key, str) for key in part):
            keys = ", ".join(map(repr, part))
            raise TypeError(
                f"a list indexes rows, but [{keys}] contains keys: use td.select({keys}) for several entries, or a "
                "tuple for a nested one"
            ) from error
        raise


def index_part(part: Any) -> Any:
    """An element of an index as torch takes it fastest: a tensor, an int, a slice, None, ``...`` or a bool."""
    cls = type(part)
    if cls is int or cls is slice or part is None or part is Ellipsis or cls is bool:
        return part
    if isinstance(part, Tensor):
        return part
    if cls is list or cls is range:
        return _rows_of(part)
    if isinstance(part, np.ndarray):
        return tensor_of(part, "cpu")
    if isinstance(part, tuple):
        return _rows_of(part)
    if isinstance(part, np.bool_):
        return bool(part)
    if hasattr(part, "__index__"):
        return part.__index__()
    if isinstance(part, bytes):
        raise TypeError(f"a key is a string, got the bytes {part!r}")
    raise IndexError(
        "only integers, slices (`:`), ellipsis (`...`), None, ranges, lists, arrays and long or bool "
        f"tensors are valid indices, got {part!r} of type {cls.__name__}"
    )


def rows_of_mask(mask: Tensor, size: torch.Size) -> Tensor:
    """The positions that a mask over the first batch dimension selects.

    Raises:
        IndexError: its length is not the size of that dimension.
    """
    if mask.shape[0] != size[0]:
        raise IndexError(
            f"the shape of the mask {list(mask.shape)} at index 0 does not match the batch size {list(size)} at index 0"
        )
    return mask.nonzero().squeeze(-1)


def _consumed(part: Any) -> int:
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return 1


def normalise_index(index: Any, batch_dims: int) -> Any:
    """The same index with lists, ranges and arrays as tensors and the ellipsis expanded.

    Args:
        index: any index that torch accepts.
        batch_dims: number of batch dimensions it applies to.

    Raises:
        IndexError: more dimensions are indexed than exist, or an element is not an index.

    Example:
        >>> normalise_index((..., 0), 3)
        (slice(None, None, None), slice(None, None, None), 0)
    """
    if not isinstance(index, tuple):
        if index is Ellipsis:
            return ()
        part = index_part(index)
        used = _consumed(part)
        if used > batch_dims:
            raise _too_many(used, batch_dims)
        return part
    if len(index) <= batch_dims and _PLAIN.issuperset(map(type, index)):
        return index
    parts = [index_part(part) for part in index]
    used = sum(_consumed(part) for part in parts if part is not Ellipsis)
    if used > batch_dims:
        raise _too_many(used, batch_dims)
    where = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(where) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if where:
        parts[where[0] : where[0] + 1] = [_FULL] * (batch_dims - used)
    if len(parts) == 1 and (type(parts[0]) is int or isinstance(parts[0], Tensor)):
        return parts[0]  # torch takes several times as long for a tuple of one tensor
    return tuple(parts)


def is_whole(index: Any, batch_dims: int) -> bool:
    """Whether an index selects all rows unchanged: full slices, an ellipsis, or nothing.

    Example:
        >>> is_whole((slice(None), ...), 2), is_whole(slice(0, 2), 2)
        (True, False)
    """
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if part is not Ellipsis and not (type(part) is slice and part == _FULL):
            return False
    ellipses = parts.count(Ellipsis)
    return ellipses < 2 and len(parts) - ellipses <= batch_dims


def _too_many(used: int, batch_dims: int) -> Exception:
    if not batch_dims:
        return RuntimeError("indexing a tensordict with td.batch_dims==0 is not permitted: it has no rows")
    return IndexError(
        f"too many indices: the index uses {used} dimension(s) but the batch size has {batch_dims}. "
        "Only batch dimensions can be indexed; index the entries for the others."
    )


def index_batch_size(batch_size: torch.Size, index: Any) -> torch.Size:
    """Batch size after a normalised index.

    Example:
        >>> index_batch_size(torch.Size([3, 4]), (slice(None), 0))
        torch.Size([3])
    """
    cls = type(index)
    if cls is int:
        length = batch_size[0]
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {length}")
        return batch_size[1:]
    if cls is slice and (index.step is None or index.step > 0) and not torch.compiler.is_compiling():
        return torch.Size((len(range(*index.indices(batch_size[0]))), *batch_size[1:]))
    if cls is tuple and _PLAIN.issuperset(map(type, index)) and not torch.compiler.is_compiling():
        size = _basic_size(batch_size, index)
        if size is not None:
            return size
    # Advanced indexing follows torch's rules (broadcasting, dimensions that move to the front). A
    # stride-0 view of one byte gives the same shape as a real tensor.
    device = _index_device(index)
    probe = torch.empty((), dtype=torch.bool, device=device).expand(batch_size)
    return probe[index].shape


def assigned_rows(batch_size: torch.Size, index: Any) -> tuple[Any, torch.Size]:
    """A normalised index in the form that is fastest for writing, and the batch size that it selects.

    A mask over the first dimension becomes row numbers, once instead of once per entry. torch checks their range when
    an entry is written.
    """
    if isinstance(index, Tensor) and index.ndim == 1:
        if index.dtype is torch.bool and index.shape[0] == batch_size[0]:
            index = index.nonzero().squeeze(-1)
        if index.dtype is torch.int64:
            return index, torch.Size((index.shape[0], *batch_size[1:]))
    return index, index_batch_size(batch_size, index)


def _basic_size(batch_size: torch.Size, index: tuple[Any, ...]) -> torch.Size | None:
    """Batch size after ints and slices; ``None`` if torch should raise the error."""
    sizes = []
    for part, length in zip(index, batch_size):
        if type(part) is int:
            if not -length <= part < length:
                return None
        elif part.step is None or part.step > 0:
            sizes.append(len(range(*part.indices(length))))
        else:
            return None
    return torch.Size((*sizes, *batch_size[len(index) :]))


def rows_mismatch(rows: torch.Size, source: torch.Size, batch_size: torch.Size, index: Any) -> RuntimeError:
    """The error for assigning a collection to rows of another batch size."""
    return RuntimeError(
        f"indexed destination TensorDict batch size is {rows} (batch_size = {batch_size}, index={index!r}), which "
        f"differs from the source batch size {source}."
    )


def _index_device(index: Any) -> torch.device | None:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, Tensor) and part.device.type != "cpu":
            return part.device
    return None


def index_names(names: list[str | None], index: Any, result_dims: int) -> list[str | None] | None:
    """Dimension names after a normalised index, ``None`` when no name is left.

    Integers drop their name, slices keep it, ``None`` adds an unnamed dimension. The joint result of the tensors is
    where torch puts it: at the first of them if they are adjacent, else in front. It gets the name of the dimension
    indexed by the only one-dimensional tensor with more than one row.
    """
    parts = index if isinstance(index, tuple) else (index,)
    out: list[str | None] = []
    advanced: list[int] = []  # positions of the tensors among the parts
    joint: list[str | None] = []
    joint_at = 0
    joint_wide = False  # a tensor with more than one row was among them
    at = 0
    for position, part in enumerate(parts):
        if part is None or isinstance(part, bool):
            out.append(None)
        elif isinstance(part, slice):
            out.append(names[at])
            at += 1
        elif isinstance(part, Tensor):
            mine: list[str | None] = (
                [names[at]] if part.ndim == 1 else [None] * (1 if part.dtype is torch.bool else part.ndim)
            )
            if not advanced:
                joint_at = len(out)
            if not advanced or part.ndim > len(joint):
                joint = mine
            elif part.ndim == len(joint) == 1:  # of two that broadcast the longer one names the result, of equals none
                wide = part.numel() > 1
                joint = [None] if wide == joint_wide else mine if wide else joint
            joint_wide = joint_wide or part.numel() > 1
            advanced.append(position)
            at += _consumed(part)
        else:
            at += 1
    if advanced:
        adjacent = advanced[-1] - advanced[0] == len(advanced) - 1
        where = joint_at if adjacent else 0
        out[where:where] = joint
    out.extend(names[at:])
    if len(out) != result_dims or all(name is None for name in out):
        return None
    return out
