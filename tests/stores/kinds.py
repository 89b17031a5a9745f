"""Rows of every kind, for the tests of this folder."""

from typing import Any

import torch

from tensordict_lite import TensorClass, TensorDict, lazy_stack

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


class Pair(TensorClass):
    """A class of rows."""

    a: torch.Tensor
    b: torch.Tensor


def numbers(first: int, count: int) -> TensorDict:
    """Rows that say which they are, nested, and of a batch size of one dimension."""
    rows = torch.arange(first, first + count)
    picture = (rows[:, None] * 7 + torch.arange(6)).to(torch.uint8).view(count, 2, 3)
    return TensorDict({"x": rows, "p": picture, "n": {"y": rows.float() / 2, "m": {"z": -rows}}}, [count])


def all_dtypes(first: int, count: int) -> TensorDict:
    """A column of each dtype, one of rows without elements, and a key that is no name."""
    rows = torch.arange(first, first + count)
    columns: dict[str, Any] = {f"c{k}": (rows % 2).to(dtype) for k, dtype in enumerate(DTYPES)}
    return TensorDict({**columns, "empty": torch.zeros(count, 0), "a/b c": rows}, [count])


def strings(first: int, count: int) -> TensorDict:
    """Strings, and other objects, one a row."""
    rows = range(first, first + count)
    named = TensorDict({"x": torch.arange(first, first + count)}, [count])
    named["s"] = [f"row {row}" for row in rows]
    named["o"] = [{"row": row} for row in rows]
    return named


def two_dims(first: int, count: int) -> TensorDict:
    """Rows that are batches themselves."""
    rows = torch.arange(first * 3, (first + count) * 3).view(count, 3)
    return TensorDict({"x": rows, "f": rows[..., None].expand(count, 3, 2).float()}, [count, 3])


def classes(first: int, count: int) -> Any:
    """A tensorclass."""
    rows = torch.arange(first, first + count)
    return Pair(a=rows, b=rows.float()[:, None].expand(count, 2).contiguous(), batch_size=[count])


def ragged(first: int, count: int) -> Any:
    """A lazy stack of rows of different shapes."""
    return lazy_stack([TensorDict({"x": torch.full((row % 3 + 1,), row)}, []) for row in range(first, first + count)])


KINDS = {kind.__name__: kind for kind in (numbers, all_dtypes, strings, two_dims, classes, ragged)}


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same values, whatever holds them."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if hasattr(a, "keys") and hasattr(a, "batch_size"):
        if tuple(a.batch_size) != tuple(b.batch_size):
            return False
        if not hasattr(a, "_source") or type(a._source) is list or type(b._source) is list:
            return all(same(x, y) for x, y in zip(a.unbind(0), b.unbind(0), strict=True))
        return set(a.keys()) == set(b.keys()) and all(same(a.get(key), b.get(key)) for key in a.keys())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "tolist"):
        return bool(a.tolist() == b.tolist())
    return bool(a == b)
