"""How two trees meet whose batch sizes differ: entries of one shape element by element, others by broadcasting."""

import itertools
import operator
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, UnbatchedTensor, lazy_stack, tensorclass

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
ALIKE = [(left, right) for left, right in PAIRS if KINDS[left]().batch_size == KINDS[right]().batch_size]


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


@pytest.mark.parametrize(("left", "right"), ALIKE)
@pytest.mark.parametrize("absent", ["a", "n", ("n", "b")])
def test_a_default_takes_the_place_of_an_entry_that_one_tree_lacks(left: str, right: str, absent: Any) -> None:
    for a, b in ((KINDS[left](), KINDS[right]().exclude(absent)), (KINDS[left]().exclude(absent), KINDS[right]())):
        out = a.sub(b, default=torch.tensor(100.0))
        for key, value in (("a", X), (("n", "b"), X + 1)):
            mine, match = (100.0 if tree.get(key, None) is None else value for tree in (a, b))
            assert out.get(key).equal(torch.as_tensor(mine - match).expand(4, 3)), key


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_an_intersection_leaves_out_what_one_tree_lacks(left: str, right: str) -> None:
    assert set(KINDS[left]().exclude("a").add(KINDS[right](), default="intersection").keys(True, True)) == {("n", "b")}
    assert set(KINDS[left]().add(KINDS[right]().exclude(("n", "b")), default="intersection").keys()) == {"a"}


def test_members_of_a_stack_have_their_own_intersection() -> None:
    stack = lazy_stack([TensorDict(n=TensorDict({key: torch.ones(3)})) for key in "ab"])
    assert (stack.add(stack, default="intersection") == stack * 2).all()
    assert stack.add(lazy_stack([stack[0], stack[0]]), default="intersection")[1].is_empty()


def test_a_tensor_against_a_tree_of_the_same_key_raises_with_a_default_too() -> None:
    tree = _tree([4])
    with pytest.raises(KeyError, match=r"\('n', 'b'\)"):
        tree.add(TensorDict(a=X, n=X, batch_size=[4]), default=0)
    assert set(tree.add(TensorDict(a=X, n=X, batch_size=[4]), default="intersection").keys()) == {"a"}


def test_unbatched_entries_take_a_default_and_no_rows() -> None:
    tree = TensorDict(a=X, u=UnbatchedTensor(torch.ones(2)), batch_size=[4])
    assert tree.sub(tree.exclude("u"), default=3)["u"].tolist() == [-2.0, -2.0]
    assert tree.exclude("u").sub(tree, default=3)["u"].tolist() == [2.0, 2.0]
    for left, right in ((tree, tree.clone().set("u", X)), (tree.clone().set("u", X), tree)):
        with pytest.raises(RuntimeError, match="'u' has rows in one collection"):
            left + right
        with pytest.raises(RuntimeError, match="'u' has rows in one collection"):
            left.add(right, default=0)


def test_members_with_keys_of_other_members_are_a_mismatch() -> None:
    """The members have the same keys taken together."""
    stack = lazy_stack([TensorDict(n=TensorDict({key: torch.ones(3)})) for key in "ab"])
    whole = TensorDict(n=TensorDict({key: torch.ones(2, 3) for key in "ab"}, [2]), batch_size=[2])
    turned = lazy_stack(list(stack.unbind(0))[::-1])
    for left, right in ((stack, turned), (stack, whole), (whole, stack)):
        for tree, operand in ((left, right), (TensorDict(t=left), TensorDict(t=right))):
            with pytest.raises(KeyError, match="keys in tensordicts mismatch.*'n', '[ab]'"):
                tree + operand
            with pytest.raises(KeyError, match="keys in tensordicts mismatch.*'n', '[ab]'"):
                tree.add_(operand)
    assert (stack.add(turned, default=0) == lazy_stack([whole[0], whole[1]])).all()
