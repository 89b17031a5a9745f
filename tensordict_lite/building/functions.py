"""Function forms of methods, and small predicates on values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_lite.dense.tensordict import TensorDict
from tensordict_lite.keys import NestedKey, unravel_key
from tensordict_lite.lazy.functions import LazyStackedTensorDict, maybe_dense_stack


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Stack a list of collections, or the members of a lazy stack, densely where keys and shapes allow it.

    Args:
        td_list: the collections; a TensorDict is returned as it is.
        dim: position of the new dimension; a lazy stack uses its own.

    Raises:
        ValueError: a list without ``dim``.
    """
    if isinstance(td_list, LazyStackedTensorDict):
        return maybe_dense_stack(td_list.tensordicts, td_list.stack_dim)
    if isinstance(td_list, TensorDict):
        return td_list
    if dim is None:
        raise ValueError("dense_stack_tds() needs dim= to stack a list: only a lazy stack has a dimension of its own")
    return maybe_dense_stack(list(td_list), dim)


def from_module(
    module: torch.nn.Module, as_module: bool = False, lock: bool = True, use_state_dict: bool = False
) -> Any:
    """Parameters and buffers of a module, locked, see :meth:`TensorDict.from_module`."""
    return TensorDict.from_module(module, as_module=as_module, lock=lock, use_state_dict=use_state_dict)


def group_by(tensordict: Any, key: NestedKey) -> tuple[Any, tuple[Any, ...]]:
    """Split the rows of the first batch dimension by the value of an entry.

    Args:
        tensordict: collection with at least one batch dimension.
        key: nested key of an entry with one value per row; non-tensor data is compared as Python objects.

    Returns:
        The distinct values, sorted (objects in order of appearance), and for each a collection with its rows in their
        original order.

    Raises:
        KeyError: there is no such entry.
        ValueError: the collection has no batch dimension, or the entry has more than one value per row.

    Example:
        >>> td = TensorDict({"label": torch.tensor([1, 0, 1]), "x": torch.arange(3)}, [3])
        >>> values, groups = group_by(td, "label")
        >>> values, groups[1]["x"]
        (tensor([0, 1]), tensor([0, 2]))
    """
    if not tensordict.batch_dims:
        raise ValueError("group_by() needs a batch dimension: this collection has none")
    key = unravel_key(key)
    column = tensordict[key]
    rows: list[list[int]] = []
    if isinstance(column, Tensor):
        if column.ndim != 1:
            raise ValueError(f"the entry {key!r} of shape {list(column.shape)} must have one value per row")
        values, inverse = torch.unique(column, return_inverse=True)
        order = torch.argsort(inverse, stable=True)
        counts = torch.bincount(inverse, minlength=len(values)).tolist()
        return values, tuple(tensordict[part] for part in order.split(counts))
    items = tensordict.get(key).tolist()
    found: list[Any] = []
    for row, value in enumerate(items):
        if value not in found:
            found.append(value)
            rows.append([])
        rows[found.index(value)].append(row)
    return found, tuple(tensordict[torch.tensor(part, device="cpu")] for part in rows)


def is_floating(*args: Any) -> bool:
    """Whether the last argument is a floating-point tensor; a key may come before it."""
    return isinstance(args[-1], Tensor) and args[-1].is_floating_point()


def is_inexact(*args: Any) -> bool:
    """Whether the last argument is a floating-point or complex tensor; a key may come before it."""
    return isinstance(args[-1], Tensor) and (args[-1].is_floating_point() or args[-1].is_complex())


def is_bool(*args: Any) -> bool:
    """Whether the last argument is a bool tensor; a key may come before it."""
    return isinstance(args[-1], Tensor) and args[-1].dtype is torch.bool


def is_integer(*args: Any) -> bool:
    """Whether the last argument is an integer tensor (not bool); a key may come before it."""
    return isinstance(args[-1], Tensor) and not is_inexact(args[-1]) and args[-1].dtype is not torch.bool
