"""Attributes of TensorDictParams: torch finds, swaps, assigns and registers parameters under them."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from tensordict_lite import TensorDict
from tensordict_lite.nn import TensorDictParams


class ByKey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = TensorDictParams(TensorDict(w=torch.ones(2), n=TensorDict(b=torch.zeros(2))))

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.p["w"] + self.p["n", "b"]


class ByAttribute(ByKey):
    def forward(self, x: torch.Tensor) -> Any:
        return x * self.p.w + self.p.n.b


both_kinds = pytest.mark.parametrize("kind", [ByKey, ByAttribute])


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


@both_kinds
def test_a_functional_call_uses_what_it_is_given_and_leaves_the_rest(kind: Any) -> None:
    model = kind()
    before = dict(model.named_parameters())
    given = {"p.w": torch.full((2,), 5.0), "p.n.b": torch.ones(2)}
    torch.testing.assert_close(functional_call(model, given, torch.ones(2)), torch.full((2,), 6.0))
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)


@both_kinds
def test_gradients_go_to_the_parameters_of_a_functional_call(kind: Any) -> None:
    model = kind()
    given = {name: value.detach() for name, value in model.named_parameters()}
    gradients = torch.func.grad(lambda p: functional_call(model, p, torch.full((2,), 3.0)).sum())(given)
    assert gradients["p.w"].tolist() == [3, 3] and gradients["p.n.b"].tolist() == [1, 1]


@both_kinds
def test_an_ensemble_of_modules_is_stacked(kind: Any) -> None:
    models = [kind(), kind()]
    with torch.no_grad():
        models[1].p["n", "b"].add_(2)
    params, _ = stack_module_state(models)
    out = torch.vmap(lambda p, x: functional_call(models[0], p, x), (0, None))(params, torch.ones(2))
    assert out.tolist() == [[1, 1], [3, 3]]


@both_kinds
def test_a_module_is_exported(kind: Any) -> None:
    program = torch.export.export(kind(), (torch.ones(2),))
    assert program.module()(torch.full((2,), 4.0)).tolist() == [4, 4]


def test_nested_attributes_are_read_in_a_graph() -> None:
    model = ByAttribute()
    torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2)).sum().backward()
    assert model.p["n", "b"].grad.tolist() == [1, 1]


def test_a_level_writes_into_the_whole() -> None:
    params = ByKey().p
    params.n.b = nn.Parameter(torch.ones(2))
    assert params["n", "b"].tolist() == [1, 1]
    params.lock_()
    with pytest.raises(RuntimeError, match="locked"):
        params.n.c = nn.Parameter(torch.ones(2))


def test_what_is_assigned_is_a_parameter() -> None:
    model = ByKey()
    model.p.v = nn.Parameter(torch.ones(1))
    model.p.k = nn.Buffer(torch.ones(1))
    model.p.w = nn.Parameter(torch.zeros(2))
    assert names(model) == ["p.w", "p.n.b", "p.v"]
    assert [name for name, _ in model.named_buffers()] == ["p.k"]
    assert model.p["w"].tolist() == [0, 0] and model.p["w"] is dict(model.named_parameters())["p.w"]
    model.p.plain = 3
    assert model.p.plain == 3 and "plain" not in model.p
    del model.p.v
    assert names(model) == ["p.w", "p.n.b"]


def test_modules_stand_beside_the_entries() -> None:
    model = ByKey()
    model.p.head = nn.Linear(1, 1)
    expected = ["p.w", "p.n.b", "p.head.weight", "p.head.bias"]
    assert list(model.p.keys()) == ["w", "n"]
    for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.double()):
        assert names(copied) == expected and list(copied.state_dict()) == expected
    assert {value.dtype for value in model.parameters()} == {torch.float64}
    assert copy.deepcopy(model).p.head.weight is not model.p.head.weight
    model.load_state_dict(copy.deepcopy(model).state_dict())


def test_parameters_and_buffers_are_registered() -> None:
    model = ByKey()
    model.p.register_parameter("v", nn.Parameter(torch.ones(1)))
    model.p.register_parameter("nothing", None)
    model.p.register_buffer("k", torch.ones(1))
    model.p.register_buffer("gone", torch.ones(1), persistent=False)
    assert names(model) == ["p.w", "p.n.b", "p.v"]
    assert [name for name, _ in model.named_buffers()] == ["p.k", "p.gone"]
    assert list(model.state_dict()) == ["p.w", "p.n.b", "p.v", "p.k"]
    with pytest.raises(KeyError, match="already exists"):
        model.p.register_parameter("k", nn.Parameter(torch.ones(1)))
    model.p.register_parameter("w", nn.Parameter(torch.zeros(2)))
    assert model.p["w"].tolist() == [0, 0]


def test_tensors_with_gradients_in_the_place_of_parameters_are_listed() -> None:
    model = ByKey()
    TensorDict.from_module(model).clone().to_module(model)
    assert names(model) == ["p.w", "p.n.b"]
    with TensorDict.from_module(model).data.clone().to_module(model):
        assert names(model) == ["p.w", "p.n.b"]
    skipped = TensorDictParams(TensorDict(a=torch.ones(2, requires_grad=True) * 2), no_convert="skip")
    assert names(skipped) == []
