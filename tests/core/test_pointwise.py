"""Pointwise operations: the same numbers as torch on every leaf, in the same tree."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_lite import LazyStackedTensorDict, TensorDict
from tensordict_lite.ops.values.generated import BINARY, DTYPES, PREDICATES, UNARY
from tensordict_lite.ops.values.stubs import STUB, render


def make(dtype: torch.dtype = torch.float32) -> TensorDict:
    """A leaf of the batch size, one with a feature dimension, one nested; values in (0, 1) for floats."""

    def leaf(*shape: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.rand(*shape, dtype=dtype) * 0.9 + 0.05
        return torch.randint(1, 5, shape, dtype=dtype)

    return TensorDict({"a": leaf(2, 3), "b": leaf(2), "n": {"c": leaf(2, 2)}}, [2], names=["x"])


def leaves(td: Any) -> dict[Any, torch.Tensor]:
    return dict(td.items(True, True))


def assert_leaves(td: Any, expected: dict[Any, torch.Tensor]) -> None:
    got = leaves(td)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert got[key].dtype == value.dtype, key
        torch.testing.assert_close(got[key], value, equal_nan=True)


# -- one operand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*UNARY, *PREDICATES])
def test_unary_matches_torch(name: str) -> None:
    td = make()
    new = getattr(td, name)()
    assert_leaves(new, {key: getattr(torch, name)(leaf) for key, leaf in leaves(td).items()})
    assert new.names == ["x"] and new.batch_size == td.batch_size and new["n"].batch_size == td["n"].batch_size


@pytest.mark.parametrize("name", UNARY)
def test_unary_in_place_writes_into_the_same_tensors(name: str) -> None:
    td = make()
    before = leaves(td)
    expected = {key: getattr(torch, name)(leaf) for key, leaf in before.items()}
    assert getattr(td.lock_(), f"{name}_")() is td
    assert_leaves(td, expected)
    assert all(td[key] is leaf for key, leaf in before.items())


def test_integer_leaves_are_promoted_as_torch_promotes_them() -> None:
    td = make(torch.int64)
    assert td.sqrt()["b"].dtype == torch.float32
    assert (td + 1.5)["b"].dtype == torch.float32
    assert (td + np.float32(1.5))["b"].dtype == torch.float32
    assert (td / 2)["b"].dtype == torch.float32
    with pytest.raises(RuntimeError, match="can't be cast"):
        td.sqrt_()


def test_a_result_is_locked_like_its_input() -> None:
    td = make().lock_()
    for new in (td + 1, td.abs(), td + td, td.isnan(), td.lerp(td, 0.5), ~td.bool(), td.maximum(0.5)):
        assert new.is_locked and new["n"].is_locked
    assert not (make() + 1).is_locked


def test_empty_collections_have_nothing_to_compute() -> None:
    td = TensorDict({"n": {}}, [2])
    for new in (td + 1, td + td, td.exp(), td.clamp_min(0), td.isnan(), td.zero_()):
        assert list(new.keys()) == ["n"] and new.batch_size == td.batch_size


# -- two operands ---------------------------------------------------------------------------------------------


def torch_binary(name: str) -> Callable[..., torch.Tensor]:
    return BINARY[name][1]


@pytest.mark.parametrize("name", BINARY)
def test_binary_with_a_collection(name: str) -> None:
    dtype = torch.int64 if name in ("bitwise_and", "logical_and") else torch.float64
    left, right = make(dtype), make(dtype)
    new = getattr(left, name)(right)
    fn = torch_binary(name)
    assert_leaves(new, {key: fn(leaf, right[key]) for key, leaf in leaves(left).items()})


@pytest.mark.parametrize("name", [name for name, row in BINARY.items() if row[4]])
@pytest.mark.parametrize("kind", ["number", "tensor", "collection"])
def test_binary_in_place_equals_the_plain_form(name: str, kind: str) -> None:
    td = make()
    other: Any = {"number": 0.5, "tensor": torch.rand(2), "collection": make()}[kind]
    expected = leaves(getattr(td, name)(other))
    before = leaves(td)
    assert getattr(td, f"{name}_")(other) is td
    assert_leaves(td, expected)
    assert all(td[key] is leaf for key, leaf in before.items())


NUMBERS = [0, -3, 2**31, 2**53 + 1, 2**70, 0.1, 1 / 3, -0.0, 1e300, float("inf"), True]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
def test_a_number_gives_what_it_gives_to_a_tensor_alone(dtype: torch.dtype, shape: tuple[int, ...], count: int) -> None:
    leaf = torch.full(shape, 7.3).to(dtype)
    td = TensorDict({f"k{i}": leaf.clone() for i in range(count)})
    flip = lambda op: lambda a, b: op(b, a)  # noqa: E731
    makers = [operator.add, operator.sub, operator.mul, operator.truediv, operator.gt, operator.eq, flip(operator.sub)]
    for number in NUMBERS:
        for op in [*makers, operator.iadd, operator.isub, operator.imul]:
            try:
                expected = op(leaf.clone(), number)
            except (RuntimeError, OverflowError) as error:
                with pytest.raises(type(error)):
                    op(td.clone(), number)
                continue
            found = op(td.clone(), number)
            for value in found.values():
                torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)


def test_gradients_reach_only_what_needs_them_through_a_number() -> None:
    td = TensorDict({f"k{i}": torch.ones(3, requires_grad=i == 0) for i in range(4)}, [3])
    out = td * 2 + 1
    assert [value.requires_grad for value in out.values()] == [True, False, False, False]
    out["k0"].sum().backward()
    assert td["k0"].grad.equal(torch.full((3,), 2.0))


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod])
@pytest.mark.parametrize("other", [2.5, torch.tensor(2.5), torch.tensor([2.5, 0.5])], ids=["number", "0d", "1d"])
def test_operators_align_the_other_side_with_the_batch(op: Any, other: Any) -> None:
    td = make()
    expected = {}
    for key, leaf in leaves(td).items():
        row = other
        if isinstance(other, torch.Tensor) and other.ndim:
            row = other.reshape(2, *[1] * (leaf.ndim - 1))
        expected[key] = op(leaf, row)
    assert_leaves(op(td, other), expected)


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
@pytest.mark.parametrize("other", [2.5, torch.tensor([2.5, 0.5])], ids=["number", "tensor"])
def test_reflected_operators(op: Any, other: Any) -> None:
    td = make()
    expected = {}
    for key, leaf in leaves(td).items():
        row = other.reshape(2, *[1] * (leaf.ndim - 1)) if isinstance(other, torch.Tensor) else other
        expected[key] = op(row, leaf)
    assert_leaves(op(other, td), expected)


@pytest.mark.parametrize("op", [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow])
def test_augmented_assignment_keeps_the_object(op: Any) -> None:
    td = make().lock_()
    tensor = td["n", "c"]
    expected = op(tensor.clone(), 2.0)
    assert op(td, 2.0) is td and td["n", "c"] is tensor
    torch.testing.assert_close(tensor, expected)


def test_batch_sizes_broadcast() -> None:
    td = make()
    assert (td + torch.ones(5, 2)).batch_size == torch.Size([5, 2])
    assert (td + torch.ones(5, 2)).names == [None, "x"]
    assert (td + torch.ones(2, 1)).batch_size == torch.Size([2, 2])
    assert (td.expand(3, 2) + td).batch_size == (td + td.expand(3, 2)).batch_size == torch.Size([3, 2])
    scalars = TensorDict({"a": 1.0, "b": 2.0, "n": {"c": 3.0}}, [])
    assert_leaves(td + scalars, {"a": td["a"] + 1, "b": td["b"] + 2, ("n", "c"): td["n", "c"] + 3})
    with pytest.raises(RuntimeError, match=r"\[2\].*\[3\]"):
        td + torch.ones(3)
    with pytest.raises(RuntimeError, match="in-place"):
        td.add_(torch.ones(5, 2))


def test_keys_pair_by_name_not_by_order() -> None:
    td = make()
    shuffled = TensorDict({"n": td["n"], "b": td["b"], "a": td["a"]}, [2])
    assert_leaves(td - shuffled, {key: torch.zeros_like(leaf) for key, leaf in leaves(td).items()})


def test_different_keys_are_refused_by_name() -> None:
    td = make()
    with pytest.raises(KeyError, match=r"first TD has keys \['b'\].*second TD has keys \['z'\]"):
        td + TensorDict({"a": td["a"], "z": td["b"], "n": td["n"]}, [2])
    with pytest.raises(KeyError, match=r"\('n', 'c'\)"):
        td.select("a", "b").add_(td)


def test_default_fills_or_drops_keys_that_one_side_lacks() -> None:
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2])
    other = TensorDict({"a": torch.ones(2), "n": {"z": torch.full((2,), 5.0)}}, [2])
    filled = td.sub(other, default=0.0)
    assert_leaves(filled, {"a": torch.zeros(2), ("n", "b"): torch.ones(2), ("n", "z"): torch.full((2,), -5.0)})
    assert list(td.add(other, default="intersection").keys(True, True)) == ["a"]
    assert list(td["n"].keys()) == ["b"] and list(other["n"].keys()) == ["z"]  # inputs are as they were
    with pytest.raises(TypeError, match="intersection"):
        td.add(other, default="union")


def test_alpha_scales_what_is_added_or_subtracted() -> None:
    td = make()
    torch.testing.assert_close(td.add(td, alpha=2)["a"], td["a"] * 3)
    torch.testing.assert_close(td.sub(1, alpha=3)["b"], td["b"] - 3)
    torch.testing.assert_close(td.rsub(1, alpha=3)["b"], 1 - 3 * td["b"])
    torch.testing.assert_close(td.clone().add_(torch.ones(2), alpha=3)["b"], td["b"] + 3)


@pytest.mark.parametrize("other", ["x", None, object(), np.ones(3)])
def test_other_types_are_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="expected a number, a tensor or a tensor collection"):
        make() + other


def test_non_tensor_entries_are_carried_along() -> None:
    td = TensorDict({"a": torch.ones(2), "s": "text"}, [2])
    for new in (td + 1, td * td, td.exp(), td + TensorDict({"a": torch.ones(2)}, [2])):
        assert new["s"] == "text"


def test_bitwise_operators() -> None:
    td = make(torch.int64)
    assert_leaves(td & 1, {key: leaf & 1 for key, leaf in leaves(td).items()})
    assert_leaves(td | 8, {key: leaf | 8 for key, leaf in leaves(td).items()})
    assert_leaves(td ^ td, {key: leaf ^ leaf for key, leaf in leaves(td).items()})
    assert_leaves(~td, {key: ~leaf for key, leaf in leaves(td).items()})


# -- three operands -------------------------------------------------------------------------------------------


def test_clamp_takes_numbers_tensors_or_collections() -> None:
    td = make()
    torch.testing.assert_close(td.clamp(0.3, 0.6)["a"], td["a"].clamp(0.3, 0.6))
    torch.testing.assert_close(td.clamp(max=0.6)["a"], td["a"].clamp(max=0.6))
    torch.testing.assert_close(td.clamp(td * 2, td * 3)["n", "c"], td["n", "c"] * 2)
    low, high = torch.tensor([0.0, 0.4]), torch.tensor([0.2, 0.5])
    torch.testing.assert_close(td.clamp(low, high)["a"], td["a"].clamp(low[:, None], high[:, None]))
    out = td.clone()
    assert td.clamp(0.3, 0.6, out=out) is out
    torch.testing.assert_close(out["b"], td["b"].clamp(0.3, 0.6))
    with pytest.raises(ValueError, match="Mixed"):
        td.clamp(0, td)
    with pytest.raises(TypeError, match="neither"):
        td.clamp()


def test_lerp_addcmul_addcdiv_match_torch() -> None:
    td, end, third = make(), make(), make()
    for weight in (0.3, torch.tensor([0.1, 0.9]), third):
        new = td.lerp(end, weight)
        w = third["a"] if weight is third else weight if isinstance(weight, float) else weight[:, None]
        torch.testing.assert_close(new["a"], td["a"].lerp(end["a"], w))
        torch.testing.assert_close(td.clone().lerp_(end, weight)["a"], new["a"])
    for name in ("addcmul", "addcdiv"):
        expected = getattr(torch, name)(td["a"], end["a"], third["a"], value=2)
        torch.testing.assert_close(getattr(td, name)(end, third, value=2)["a"], expected)
        torch.testing.assert_close(getattr(td.clone(), f"{name}_")(end, third, value=2)["a"], expected)
    with pytest.raises(TypeError, match="two tensors or collections"):
        td.addcmul(2.0, end)


def test_softmax_runs_along_a_batch_dimension() -> None:
    td = make()
    torch.testing.assert_close(td.softmax(-1)["a"], td["a"].softmax(0))
    assert td.softmax(0, dtype=torch.float64)["n", "c"].dtype == torch.float64
    with pytest.raises(IndexError, match="dim 1"):
        td.softmax(1)


# -- writing --------------------------------------------------------------------------------------------------


def test_zero_fill_and_copy_write_in_place() -> None:
    td = make().lock_()
    tensors = leaves(td)
    assert td.zero_() is td and not any(leaf.any() for leaf in tensors.values())
    assert td.fill_("n", 3) is td and (tensors["n", "c"] == 3).all() and not tensors["a"].any()
    assert td.fill_(("n", "c"), 4) is td and (tensors["n", "c"] == 4).all()
    with pytest.raises(KeyError, match="zz"):
        td.fill_("zz", 1)
    other = make()
    assert td.copy_(other) is td and torch.equal(tensors["a"], other["a"])


def test_copy_at_writes_rows() -> None:
    td, row = make(), make()[0]
    assert td.copy_at_(row, 1) is td
    assert torch.equal(td["a"][1], row["a"]) and torch.equal(td["n", "c"][1], row["n", "c"])
    td.copy_at_(td[[0, 0]], torch.tensor([1, 0]))
    assert torch.equal(td["a"][0], td["a"][1])
    with pytest.raises(RuntimeError, match="fast=False"):
        td.copy_at_(TensorDict({"zz": torch.ones(())}), 0)


# -- autograd, vmap, odd leaves -------------------------------------------------------------------------------


def test_gradients_flow_through_beside_an_integer_leaf() -> None:
    x = torch.rand(3, requires_grad=True)
    td = TensorDict({"x": x, "i": torch.arange(3)}, [3])
    td["y"] = torch.rand(3)
    for new in (td * 2, td + td, td.exp(), td.clamp_min(0.0), td.clone(), td**2):
        assert new["x"].requires_grad and not new["i"].requires_grad and not new["y"].requires_grad
    floats = td.select("x", "y")
    for new in (floats * 2, floats.clone(), floats.lerp(floats, 0.5), floats.norm()):
        assert new["x"].requires_grad and not new["y"].requires_grad
    assert (td.detach() + td)["x"].requires_grad
    target = TensorDict({"x": torch.zeros(3), "y": torch.zeros(3), "i": torch.arange(3)}, [3])
    target.add_(td.select("x", "y", "i") * 1)
    assert target["x"].requires_grad and not target["y"].requires_grad
    (td * td)["x"].sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_operations_inside_vmap() -> None:
    a = torch.rand(4, 3)

    def step(row: torch.Tensor) -> torch.Tensor:
        td = TensorDict({"a": row}, [])
        td = (td * 2 + td).exp().clone()
        td += 1
        return td["a"]

    torch.testing.assert_close(torch.vmap(step)(a), (a * 3).exp() + 1)


def test_lazy_stacks_take_part_on_either_side() -> None:
    stack = LazyStackedTensorDict(*[make().unbind(0)[0] for _ in range(2)], stack_dim=0)
    dense = stack.contiguous()
    weights = torch.tensor([2.0, 3.0])
    for new, expected in (
        (stack * 2, dense * 2),
        (stack + dense, dense + dense),
        (dense + stack, dense + dense),
        (stack * weights, dense * weights),
        (stack + stack, dense + dense),
        (2 - stack, 2 - dense),
    ):
        assert_leaves(new, leaves(expected))
    assert type(stack * 2) is LazyStackedTensorDict


def test_stub_file_is_up_to_date() -> None:
    assert STUB.read_text() == render(), "run `python -m tensordict_lite.ops.values.stubs`"


def test_generated_methods_are_documented_and_named() -> None:
    for name in [*UNARY, *PREDICATES, *BINARY, *DTYPES, *(f"{name}_" for name in UNARY)]:
        method = getattr(TensorDict, name)
        assert method.__name__ == name and len(method.__doc__) > 20
