"""Small functions on keys, shapes and rows, at the path of the reference package."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Buffer

from tensordict_lite.building.functions import is_bool, is_floating, is_inexact, is_integer
from tensordict_lite.keys import (
    KEY_SEPARATOR,
    NestedKey,
    require_path,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)
from tensordict_lite.memmap import TensorDictFuture
from tensordict_lite.objects.data import is_non_tensor
from tensordict_lite.ops.shape import positive_dim
from tensordict_lite.settings import (
    capture_non_tensor_stack,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_lazy_legacy,
    set_list_to_stack,
)
from tensordict_lite.show.options import get_printoptions, set_printoptions
from tensordict_lite.tensorclass.decorator import is_tensorclass
from tensordict_lite.testing import assert_allclose_td, assert_close
from tensordict_lite.views import entry_of

__all__ = [
    "Buffer",
    "DeviceType",
    "IndexType",
    "KEY_SEPARATOR",
    "NestedKey",
    "TensorDictFuture",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "expand_as_right",
    "expand_right",
    "get_printoptions",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_non_tensor",
    "is_tensorclass",
    "isin",
    "lazy_legacy",
    "list_to_stack",
    "logger",
    "print_directory_tree",
    "remove_duplicates",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

DeviceType: TypeAlias = torch.device | str | int
IndexType: TypeAlias = int | slice | str | Tensor | list[Any] | tuple[Any, ...] | None

logger = logging.getLogger("tensordict_lite")


def expand_as_right(tensor: Any, dest: Any) -> Any:
    """:func:`expand_right` to the shape of a tensor, or the batch size of a collection."""
    return expand_right(tensor, dest.shape)


def expand_right(tensor: Any, shape: Sequence[int]) -> Any:
    """A view of a tensor with dimensions added at the end, as broadcasting adds them in front.

    Args:
        tensor: tensor or collection whose shape is a prefix of ``shape``; dimensions of size 1 are repeated.
        shape: shape of the result.

    Raises:
        RuntimeError: ``shape`` has fewer dimensions, or another prefix.

    Example:
        >>> expand_right(torch.arange(3), (3, 2))
        tensor([[0, 0],
                [1, 1],
                [2, 2]])
    """
    shape = torch.Size(shape)
    dims = tensor.ndim
    if len(shape) < dims or any(n not in (1, m) for n, m in zip(tensor.shape, shape)):
        raise RuntimeError(f"a shape {list(tensor.shape)} cannot be expanded on the right to {list(shape)}")
    for _ in range(len(shape) - dims):
        tensor = tensor.unsqueeze(-1)
    return tensor.expand(shape)


def isin(input: Any, reference: Any, key: NestedKey, dim: int = 0) -> Tensor:
    """For each row of a collection, whether a row of another one has the same value under ``key``.

    Args:
        input: collection whose rows are tested.
        reference: collection with as many batch dimensions.
        key: nested key of a tensor in both.
        dim: batch dimension of the rows.

    Returns:
        A bool tensor of length ``input.batch_size[dim]``.

    Raises:
        KeyError: ``key`` is not a tensor in one of them.
        ValueError: the numbers of batch dimensions differ, or ``dim`` is not a batch dimension.

    Example:
        >>> td = TensorDict({"x": torch.tensor([1, 3, 5])}, [3])
        >>> isin(td, TensorDict({"x": torch.tensor([5, 1])}, [2]), "x")
        tensor([ True, False,  True])
    """
    if input.batch_dims != reference.batch_dims:
        raise ValueError(
            f"the number of batch dimensions differs: {list(input.batch_size)} and {list(reference.batch_size)}"
        )
    rows, known = _rows(input, key, dim), _rows(reference, key, dim)
    if rows.shape[1:] != known.shape[1:]:
        raise ValueError(
            f"the rows of {key!r} differ in shape: {list(rows.shape[1:])} and {list(known.shape[1:])} elements"
        )
    _, numbers = torch.unique(torch.cat([rows, known]), dim=0, return_inverse=True)
    return torch.isin(numbers[: len(rows)], numbers[len(rows) :])


def remove_duplicates(input: Any, key: NestedKey, dim: int = 0, *, return_indices: bool = False) -> Any:
    """A collection with the first of the rows that have the same value under ``key``, sorted by that value.

    Args:
        input: the collection.
        key: nested key of a tensor.
        dim: batch dimension of the rows.
        return_indices: also return, for each row of ``input``, the position of its value in the result.

    Raises:
        KeyError: ``key`` is not a tensor.
        ValueError: ``dim`` is not a batch dimension.

    Example:
        >>> td = TensorDict({"x": torch.tensor([7, 1, 7, 3]), "y": torch.arange(4)}, [4])
        >>> out, indices = remove_duplicates(td, "x", return_indices=True)
        >>> out["y"], indices
        (tensor([1, 3, 0]), tensor([2, 0, 2, 1]))
    """
    rows = _rows(input, key, dim)
    values, numbers = torch.unique(rows, dim=0, return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = torch.full((len(values),), len(rows), device=rows.device)
    first = first.scatter_reduce(0, numbers, order, "amin")
    full = (slice(None),) * (dim % input.batch_dims)
    out = input[(*full, first)]
    return (out, numbers) if return_indices else out


def _rows(td: Any, key: NestedKey, dim: int) -> Tensor:
    """The slices of an entry along a batch dimension, each flattened."""
    value = entry_of(td, require_path(key))
    if not isinstance(value, Tensor):
        kind = "missing" if value is None else f"a {type(value).__name__}"
        raise KeyError(f"the entry {key!r} is {kind}: rows are compared by a tensor")
    try:
        dim = positive_dim(dim, td.batch_dims, td.batch_size)
    except IndexError:
        raise ValueError(f"dim={dim} is not one of the {td.batch_dims} batch dimension(s)") from None
    return value.movedim(dim, 0).reshape(value.shape[dim], -1)


def print_directory_tree(path: str | os.PathLike[str], indent: str = "", display_metadata: bool = True) -> str:
    """Log the files below a folder, one per line, and return the lines.

    Args:
        path: folder or file.
        indent: prefix of each line; a level adds four spaces.
        display_metadata: begin with the total size of all files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = TensorDict({"a": torch.zeros(3)}, [3]).memmap(folder)
        ...     tree = print_directory_tree(folder, display_metadata=False)
        >>> sorted(line.strip() for line in tree.splitlines()[1:])
        ['a.memmap', 'meta.json']
    """
    path = os.fspath(path)
    lines = [f"{indent}Directory size: {_readable(_size(path))}"] if display_metadata else []
    lines += _tree_lines(path, indent)
    for line in lines:
        logger.info(line)
    return "\n".join(lines)


def _tree_lines(path: str, indent: str) -> list[str]:
    name = os.path.basename(os.path.normpath(path))
    if os.path.islink(path) or not os.path.isdir(path):
        return [indent + name]
    lines = [f"{indent}{name}/"]
    for entry in os.listdir(path):
        lines += _tree_lines(os.path.join(path, entry), indent + "    ")
    return lines


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _readable(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TB"
