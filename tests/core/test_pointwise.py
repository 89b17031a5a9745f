"""Pointwise operations: the same numbers as torch on every leaf, in the same tree."""

import operator

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.ops.generated import BINARY, DTYPES, PREDICATES, UNARY
from tensordict_lite.ops.stubs import STUB, render


@pytest.mark.parametrize("name", [*UNARY, *PREDICATES])
def test_a_function_of_each_element_is_that_of_torch(name: str) -> None:
    td = TensorDict({"a": torch.rand(2, 3), "n": {"b": torch.rand(2)}}, [2])
    found = getattr(td, name)()
    for key, leaf in td.items(True, True):
        torch.testing.assert_close(found[key], getattr(torch, name)(leaf), rtol=0, atol=0, equal_nan=True)


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


def test_stub_file_is_up_to_date() -> None:
    assert STUB.read_text() == render(), "run `python -m tensordict_lite.ops.stubs`"


def test_generated_methods_are_documented_and_named() -> None:
    for name in [*UNARY, *PREDICATES, *BINARY, *DTYPES, *(f"{name}_" for name in UNARY)]:
        method = getattr(TensorDict, name)
        assert method.__name__ == name and len(method.__doc__) > 20
