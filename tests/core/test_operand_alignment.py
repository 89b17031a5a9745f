"""How two trees meet whose batch sizes differ: entries of one shape element by element, others by broadcasting."""

import itertools
import operator
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack, tensorclass

X = torch.arange(12.0).view(4, 3)


@tensorclass
class Rows:
    a: torch.Tensor
    n: Any


def _tree(batch: list[int]) -> TensorDict:
    return TensorDict({"a": X.clone(), "n": TensorDict({"b": X + 1}, batch)}, batch)


KINDS = {
    "[]": lambda: _tree([]),
    "[4]": lambda: _tree([4]),
    "[4, 3]": lambda: _tree([4, 3]),
    "lazy 0": lambda: lazy_stack([_tree([4, 3])[i] for i in range(4)], 0),
    "lazy 1": lambda: lazy_stack([_tree([4, 3])[:, i] for i in range(3)], 1),
    "lazy of lazy": lambda: lazy_stack([lazy_stack(list(row.unbind(0)), 0) for row in _tree([4, 3]).unbind(0)], 0),
    "class": lambda: Rows(a=X.clone(), n=TensorDict({"b": X + 1}, [4]), batch_size=[4]),
    "locked": lambda: _tree([4, 3]).lock_(),
    "mapped": lambda: _tree([4]).memmap(),
}
PAIRS = list(itertools.product(KINDS, KINDS))


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_equal_trees_are_equal_whatever_their_batch_sizes(left: str, right: str) -> None:
    a, b = KINDS[left](), KINDS[right]()
    assert (a == b).all() and not (a != b).any()
    assert (a <= b).all() and not (a < b).any()
    assert (a == b).get("a").shape == (4, 3)
    b.zero_()
    assert not (a == b).all()


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_arithmetic_of_equal_shapes_is_element_by_element(left: str, right: str) -> None:
    for name in ("add", "mul", "maximum", "div"):
        out = getattr(KINDS[left](), name)(KINDS[right]() + 1)
        want = getattr(torch, "maximum" if name == "maximum" else name)(X, X + 1)
        assert out.get("a").equal(want), name
        assert out.get(("n", "b")).shape == (4, 3)
        longest = max(KINDS[left]().batch_size, KINDS[right]().batch_size, key=len)
        assert out.batch_size == longest


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_arithmetic_in_place_keeps_the_batch_size(left: str, right: str) -> None:
    a, b = KINDS[left](), KINDS[right]()
    size = a.batch_size
    assert a.add_(b) is a and a.batch_size == size
    assert a.get("a").equal(X + X)
    assert a.get(("n", "b")).equal(X + 1 + X + 1)


def test_an_entry_without_batch_dimensions_broadcasts_as_torch_does() -> None:
    td = TensorDict({"a": torch.ones(3, 4), "b": torch.ones(3, 4, 5)}, [3, 4])
    other = TensorDict({"a": torch.arange(4.0), "b": torch.arange(5.0)}, [])
    assert (td * other)["a"].equal(torch.ones(3, 4) * torch.arange(4.0))
    assert (other * td)["b"].equal(torch.ones(3, 4, 5) * torch.arange(5.0))
    assert (td == other)["a"].shape == (3, 4)
    # what does not fit its counterpart is an entry of every element
    odd = TensorDict({"a": torch.ones(3)}, [3]) + TensorDict({"a": torch.ones(2, 3)}, [])
    assert odd["a"].shape == (3, 2, 3) and odd.batch_size == (3,)


def test_batch_sizes_that_do_not_go_together_are_refused() -> None:
    a, b = TensorDict({"a": torch.ones(4)}, [4]), TensorDict({"a": torch.ones(4, 3)}, [4, 3])
    for op in (operator.add, operator.eq):
        with pytest.raises(RuntimeError, match="do not broadcast"):
            op(a, b)
    with pytest.raises(RuntimeError, match="cannot change the batch size"):
        TensorDict({"a": torch.ones(3)}, [3]).add_(TensorDict({"a": torch.ones(2, 3)}, [2, 3]))


TERNARY = {
    "clamp": lambda td, a, b: td.clamp(a, b),
    "lerp": lambda td, a, b: td.lerp(a, b),
    "addcmul": lambda td, a, b: td.addcmul(a, b),
    "addcdiv": lambda td, a, b: td.addcdiv(a, b),
}
ON_TENSORS = {"clamp": torch.clamp, "lerp": torch.lerp, "addcmul": torch.addcmul, "addcdiv": torch.addcdiv}


@pytest.mark.parametrize("name", TERNARY)
@pytest.mark.parametrize("sizes", list(itertools.product([[], [3, 4], [2, 3, 4]], repeat=2)), ids=str)
@pytest.mark.parametrize("as_tree", [True, False])
def test_operations_of_three_operands_broadcast_the_batch(name: str, sizes: Any, as_tree: bool) -> None:
    x = torch.linspace(-2, 2, 12).view(3, 4)
    low, high = torch.full(sizes[0], -0.5), torch.full(sizes[1], 0.75)
    td = TensorDict({"a": x, "n": TensorDict({"b": x[..., None]}, [3, 4])}, [3, 4], names=["x", "y"])

    def operand(value: torch.Tensor) -> Any:
        if not as_tree:
            return value
        return TensorDict({"a": value, "n": {"b": value[..., None]}}, value.shape)

    out = TERNARY[name](td, operand(low), operand(high))
    want = ON_TENSORS[name](x, low, high)
    assert out["a"].equal(want) and out["n", "b"].equal(want[..., None])
    assert out.batch_size == want.shape and out["n"].batch_size == want.shape


def test_three_operands_in_place_refuse_a_larger_batch() -> None:
    td = TensorDict({"a": torch.zeros(3)}, [3])
    with pytest.raises(RuntimeError, match="in-place operation cannot change the batch size"):
        td.addcmul_(torch.ones(2, 3), torch.ones(2, 3))
    assert td.addcmul_(torch.ones(3), TensorDict({"a": torch.ones(3)}, [3]))["a"].equal(torch.ones(3))


def test_clamp_takes_a_tensor_beside_a_number() -> None:
    td = TensorDict({"a": torch.tensor([-2.0, 0.5, 3.0])}, [3])
    assert td.clamp(0, torch.ones(3))["a"].tolist() == [0.0, 0.5, 1.0]
    assert td.clamp(torch.zeros(3), 1)["a"].tolist() == [0.0, 0.5, 1.0]
