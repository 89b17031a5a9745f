"""Comparing collections in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_lite.base import TensorCollection
from tensordict_lite.keys import unravel_key_to_tuple
from tensordict_lite.views import public


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    intersection: bool = False,
    msg: str = "",
    prefix: Any = (),
) -> bool:
    """Assert that two collections have the same keys and close tensors.

    Tensors are compared with :func:`torch.testing.assert_close` (including dtypes, shapes and devices). Batch sizes,
    names and non-tensor data are not compared.

    Args:
        actual: collection to check.
        expected: collection with the expected values.
        rtol, atol: relative and absolute tolerance; by default those of torch for the dtype.
        equal_nan: whether two NaN are equal.
        intersection: compare only the common keys.
        msg: text for the error message.
        prefix: key to prepend in the error message.

    Raises:
        TypeError: an argument is not a collection.
        KeyError: the keys differ.
        AssertionError: values differ; names the key and the root mean squared error.
        RuntimeError: the shapes of two tensors do not broadcast.

    Returns:
        True

    Example:
        >>> assert_close(TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(2) + 1e-9))
        True
    """
    if not isinstance(actual, TensorCollection) or not isinstance(expected, TensorCollection):
        raise TypeError(
            f"assert_close compares two collections, got {type(actual).__name__} and {type(expected).__name__}"
        )
    path = unravel_key_to_tuple(prefix)
    if _both_lazy(actual, expected):
        for left, right in zip(actual._source, expected._source):
            assert_close(left, right, rtol, atol, equal_nan, intersection, msg, path)
        return True
    mine, theirs = actual._key_list(), expected._key_list()
    if not intersection and set(mine) != set(theirs):
        raise KeyError(
            f"the keys differ{f' below {path}' if path else ''}: only the first has {sorted(set(mine) - set(theirs))}, "
            f"only the second has {sorted(set(theirs) - set(mine))}"
        )
    for key in sorted(set(mine) & set(theirs)):
        left, right = public(actual._get_str(key)), public(expected._get_str(key))
        if isinstance(left, TensorCollection) and isinstance(right, TensorCollection):
            if not left._is_non_tensor and not right._is_non_tensor:
                assert_close(left, right, rtol, atol, equal_nan, intersection, msg, (*path, key))
            continue
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            raise AssertionError(
                f"key {(*path, key)} does not match: a {type(left).__name__} and a {type(right).__name__}"
            )
        _assert_leaf(left, right, (*path, key), rtol, atol, equal_nan, msg)
    return True


assert_allclose_td = assert_close


def _both_lazy(actual: Any, expected: Any) -> bool:
    if not isinstance(actual._source, list) or not isinstance(expected._source, list):
        return False
    return actual._stack_dim == expected._stack_dim and len(actual._source) == len(expected._source)


def _assert_leaf(
    left: Tensor, right: Tensor, path: tuple[str, ...], rtol: Any, atol: Any, equal_nan: bool, msg: str
) -> None:
    try:
        difference = (left.double() - right.double()).square().mean().sqrt().item() if left.numel() else 0.0
    except RuntimeError as err:
        raise RuntimeError(
            f"cannot compare key {path}: shapes {list(left.shape)} and {list(right.shape)} ({err})"
        ) from err
    head = f"key {path} does not match, got mse = {difference:4.4f}" + (f", {msg}" if msg else "")
    torch.testing.assert_close(
        left, right, rtol=rtol, atol=atol, equal_nan=equal_nan, msg=lambda text: f"{head}\n{text}"
    )
