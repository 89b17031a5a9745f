"""What is copied in place by one fused call: autograd records it for the entries that need it, and no others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict, lazy_stack

WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "update_": lambda td, other: td.update_(other),
    "update_ of a mapping": lambda td, other: td.update_(other.to_dict() if not _is_lazy(other) else other),
    "update(inplace=True)": lambda td, other: td.update(other, inplace=True),
    "copy_": lambda td, other: td.copy_(other),
    "[:] =": lambda td, other: td.__setitem__(slice(None), other),
    "[0] =": lambda td, other: td.__setitem__(0, other[0]),
}


def _is_lazy(td: Any) -> bool:
    return isinstance(td, LazyStackedTensorDict)


def _rows(value: torch.Tensor) -> TensorDict:
    return TensorDict({"a": value, "n": {"b": torch.ones(2)}}, [2])


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lazy", [False, True], ids=["dense", "lazy"])
def test_only_what_was_given_a_tracked_value_is_tracked(write: str, lazy: bool) -> None:
    """The others would hold on to a graph that has nothing to do with them."""
    weight = torch.full((2,), 3.0, requires_grad=True)
    made: Callable[[torch.Tensor], Any] = (lambda x: lazy_stack([_rows(x), _rows(x)])) if lazy else _rows
    td, other = made(torch.zeros(2)), made(weight * 2)
    WRITES[write](td, other)
    first = td[0]
    assert first["a"].requires_grad and not first["n", "b"].requires_grad
    first["a"].sum().backward()
    assert weight.grad is not None and weight.grad.any()
    with torch.no_grad():
        td = made(torch.zeros(2))
        WRITES[write](td, other)
    assert not td[0]["a"].requires_grad and td[0]["a"].flatten()[0] == 6


def test_a_tracked_value_marks_one_key_of_a_stack_alone() -> None:
    """set_() of a tensor that requires grad: in every member, and under its key."""
    stack = lazy_stack([_rows(torch.zeros(2)) for _ in range(3)])
    stack.set_("a", torch.ones(3, 2, requires_grad=True) * 2)
    assert [member["a"].requires_grad for member in stack.tensordicts] == [True] * 3
    assert not any(member["n", "b"].requires_grad for member in stack.tensordicts)


def test_rows_of_other_shapes_and_dtypes_are_written_as_before() -> None:
    """A member that is written whole takes numbers of another dtype, broadcasts, and refuses what does not fit."""
    stack = lazy_stack([_rows(torch.zeros(2)) for _ in range(2)])
    stack[0] = TensorDict({"a": torch.full((2,), 7), "n": {"b": torch.zeros(2)}}, [2])
    assert stack["a"].tolist() == [[7.0, 7.0], [0.0, 0.0]] and stack["a"].dtype is torch.float32
    stack[1] = TensorDict({"n": {"b": torch.full((2,), 5.0)}}, [2])  # a part of the keys
    assert stack["n", "b"].tolist() == [[0.0, 0.0], [5.0, 5.0]]
    stack[1] = TensorDict({"z": torch.ones(2)}, [2])  # a key that only this member gets
    assert "z" in stack.tensordicts[1] and "z" not in stack.tensordicts[0]
    with pytest.raises(RuntimeError):
        stack[0] = TensorDict({"a": torch.ones(2, 3)}, [2])
    assert stack.tensordicts[0]["a"].tolist() == [7.0, 7.0]
