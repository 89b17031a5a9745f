"""Random lazy stacks against plain torch: the stacked tensor under the same index or shape operation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack
from tests.differential.harness.strategies import dims, examples, indices, reshapes

Stack = tuple[LazyStackedTensorDict, torch.Tensor]


@st.composite
def stacks(draw: st.DrawFn, min_dims: int = 0) -> Stack:
    """A lazy stack with a scalar and a vector entry, and the tensor that its entry `a` stands for."""
    inner = tuple(draw(st.lists(st.sampled_from((1, 2, 3)), min_size=min_dims, max_size=2)))
    count = draw(st.integers(1, 4))
    dim = draw(st.integers(0, len(inner)))
    size = (*inner[:dim], count, *inner[dim:])
    whole = torch.arange(math.prod(size)).reshape(size)
    members = [
        TensorDict({"a": part.clone(), "n": {"v": part[..., None] + torch.arange(2)}}, inner)
        for part in whole.unbind(dim)
    ]
    return lazy_stack(members, dim), whole


def _same(found: Any, expected: torch.Tensor) -> None:
    assert found.batch_size == expected.shape
    assert torch.equal(found["a"], expected)
    assert torch.equal(found["n", "v"], expected[..., None] + torch.arange(2))


def _evaluate(text: str) -> Any:
    return eval(text, {"torch": torch, "np": np})


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (IndexError, RuntimeError, ValueError, TypeError) as error:
        return error


@examples(200)
@given(st.data())
def test_indexing_is_that_of_the_stacked_tensor(data: st.DataObject) -> None:
    stack, whole = data.draw(stacks())
    index = _evaluate(data.draw(indices(tuple(whole.shape))))
    if index is False:
        return
    expected = _outcome(lambda: whole[_as_torch(index)])
    found = _outcome(lambda: stack[index])
    if isinstance(expected, Exception):
        assert isinstance(found, (IndexError, RuntimeError)), (index, found)
    else:
        assert not isinstance(found, Exception), (index, whole.shape, found)
        _same(found, expected)


def _as_torch(index: Any) -> Any:
    """Ranges and nested lists as torch wants them."""
    if isinstance(index, tuple):
        return tuple(_as_torch(part) for part in index)
    if isinstance(index, (range, list)):
        return torch.tensor(list(index), dtype=torch.long)
    return torch.as_tensor(index) if isinstance(index, np.ndarray) else index


@examples(200)
@given(st.data())
def test_assignment_by_index_is_that_of_the_stacked_tensor(data: st.DataObject) -> None:
    stack, whole = data.draw(stacks())
    index = _evaluate(data.draw(indices(tuple(whole.shape))))
    if index is False:
        return
    rows = _outcome(lambda: whole[_as_torch(index)])
    if isinstance(rows, Exception) or _repeats(whole, index):
        return
    value = -1 - torch.arange(rows.numel()).reshape(rows.shape)
    kind = data.draw(st.sampled_from(("collection", "lazy", "mapping", "number")))
    if kind == "number":
        whole[_as_torch(index)] = 77
        stack[index] = 77
        assert torch.equal(stack["a"], whole)
        return
    entries = {"a": value, "n": {"v": value[..., None] + torch.arange(2)}}
    source: Any = entries if kind == "mapping" else TensorDict(entries, rows.shape)
    if kind == "lazy" and rows.ndim and rows.shape[0]:
        source = lazy_stack(list(source.unbind(0)), 0)
    whole[_as_torch(index)] = value
    stack[index] = source
    _same(stack, whole)


def _repeats(whole: torch.Tensor, index: Any) -> bool:
    """Whether an index names a row twice: which of the two writes wins is not defined."""
    picked = torch.arange(whole.numel()).reshape(whole.shape)[_as_torch(index)].reshape(-1)
    return len(picked.unique()) != len(picked)


SHAPE: dict[str, Callable[[Any, int, tuple[int, ...]], str]] = {
    "reshape": lambda d, n, s: f"x.reshape({d(reshapes(s))})",
    "view": lambda d, n, s: f"x.view({d(reshapes(s))})",
    "permute": lambda d, n, s: f"x.permute({tuple(d(st.permutations(range(n))))})",
    "transpose": lambda d, n, s: f"x.transpose({d(dims(n))}, {d(dims(n))})",
    "movedim": lambda d, n, s: f"x.movedim({d(dims(n))}, {d(dims(n))})",
    "unsqueeze": lambda d, n, s: f"x.unsqueeze({d(dims(n))})",
    "squeeze": lambda d, n, s: f"x.squeeze({d(dims(n))})",
    "squeeze all": lambda d, n, s: "x.squeeze()",
    "expand": lambda d, n, s: f"x.expand({d(st.sampled_from(([], [2], [1, 2]))) + list(s)})",
    "flatten": lambda d, n, s: f"x.flatten({(low := d(st.integers(0, n - 1)))}, {d(st.integers(low, n - 1))})",
    "unflatten": lambda d, n, s: f"x.unflatten({(at := d(st.integers(0, n - 1)))}, {d(st.permutations((1, s[at])))})",
    "narrow": lambda d, n, s: f"x.narrow({d(dims(n))}, {d(st.integers(0, 1))}, {d(st.integers(0, 2))})",
    "flip": lambda d, n, s: f"x.flip({d(dims(n))})",
    "roll": lambda d, n, s: f"x.roll({d(st.integers(-3, 3))}, {d(dims(n))})",
    "repeat": lambda d, n, s: f"x.repeat({tuple(d(st.integers(1, 2)) for _ in s)})",
    "repeat_interleave": lambda d, n, s: f"x.repeat_interleave(2, dim={d(dims(n))})",
    "gather": lambda d, n, s: f"x.gather({(at := d(st.integers(0, n - 1)))}, torch.zeros({_one(s, at)}, dtype=int))",
    "masked_select": lambda d, n, s: f"x.masked_select(torch.arange({math.prod(s)}).reshape({s}) % 2 == 0)",
    "split": lambda d, n, s: f"x.split({d(st.integers(1, 3))}, {d(dims(n))})",
    "chunk": lambda d, n, s: f"x.chunk({d(st.integers(1, 3))}, {d(dims(n))})",
    "tensor_split": lambda d, n, s: f"x.tensor_split({d(st.integers(1, 3))}, {d(dims(n))})",
    "unbind": lambda d, n, s: f"x.unbind({d(dims(n))})",
    "stack": lambda d, n, s: f"torch.stack([x, x], {d(dims(n))})",
    "cat": lambda d, n, s: f"torch.cat([x, x], {d(dims(n))})",
}


def _one(size: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*size[:dim], 2, *size[dim + 1 :])


@pytest.mark.parametrize("name", SHAPE)
def test_shape_operations_are_those_of_the_stacked_tensor(name: str) -> None:
    @examples(20)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        stack, whole = data.draw(stacks())
        text = SHAPE[name](data.draw, whole.ndim, tuple(whole.shape))
        expected = _outcome(lambda: eval(text, {"x": whole, "torch": torch}))
        found = _outcome(lambda: eval(text, {"x": stack, "torch": torch}))
        if isinstance(expected, Exception):
            assert isinstance(found, Exception), text
        elif isinstance(expected, tuple):
            assert len(found) == len(expected)
            for part, rows in zip(found, expected, strict=True):
                _same(part, rows)
        else:
            assert not isinstance(found, Exception), (text, whole.shape, stack.stack_dim, found)
            _same(found, expected)

    check()
