"""Functional parameters: from_module, to_module and TensorDictParams."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from tensordict_lite import TensorDict
from tensordict_lite.nn import TensorDictParams


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_from_module_holds_the_parameters_themselves() -> None:
    module = make_module()
    params = TensorDict.from_module(module)
    assert params["0", "weight"] is module[0].weight
    assert params["1", "running_mean"] is module[1].running_mean
    assert "2" not in params.keys()
    assert "2" in TensorDict.from_module(module, filter_empty=False).keys()


def test_shared_modules_stay_shared() -> None:
    layer = nn.Linear(2, 2)
    params = TensorDict.from_module(nn.ModuleDict({"x": layer, "y": layer}))
    assert params["x", "weight"] is params["y", "weight"]


def test_to_module_restores_the_parameters_when_the_block_ends_even_on_error() -> None:
    module = make_module()
    weight = module[0].weight
    zeros = TensorDict.from_module(module).data.clone().zero_()
    with zeros.to_module(module):
        assert not module[0].weight.any()
    assert module[0].weight is weight
    with pytest.raises(ValueError, match="inside"), zeros.to_module(module):
        raise ValueError("inside")
    assert module[0].weight is weight


def test_to_module_in_place_keeps_the_parameter_objects() -> None:
    module = make_module()
    weight, before = module[0].weight, module[0].weight.detach().clone()
    ones = TensorDict.from_module(module).data.clone().apply(torch.ones_like)
    swap = ones.to_module(module, inplace=True)
    assert module[0].weight is weight and bool((weight == 1).all())
    swap.to_module(module, inplace=True)
    assert torch.equal(module[0].weight, before)


def test_gradients_flow_through_transformed_parameters() -> None:
    module = nn.Linear(3, 1)
    params = TensorDict.from_module(module)
    doubled = params.apply(lambda p: p * 2)
    x = torch.ones(1, 3)
    with doubled.to_module(module):
        module(x).sum().backward()
    assert torch.equal(params["weight"].grad, 2 * x)


def test_an_ensemble_is_a_vmap_over_stacked_parameters() -> None:
    modules = [nn.Linear(3, 2) for _ in range(4)]
    stacked = TensorDict.from_modules(*modules)
    assert stacked.batch_size == (4,) and stacked["weight"].requires_grad
    x = torch.randn(5, 3)

    def call(params: TensorDict) -> torch.Tensor:
        with params.to_module(modules[0]):
            return modules[0](x)

    out = torch.vmap(call)(stacked)
    assert torch.allclose(out, torch.stack([m(x) for m in modules]), atol=1e-6)


def test_an_unknown_parameter_is_a_key_error_that_names_the_module() -> None:
    with pytest.raises(KeyError, match="Linear has no parameter or buffer 'nope'"):
        TensorDict({"nope": torch.zeros(2)}).to_module(nn.Linear(2, 2))


def test_params_are_found_by_the_module_that_holds_them() -> None:
    params = TensorDictParams(TensorDict({"w": torch.ones(3), "n": {"b": torch.zeros(2)}, "i": torch.arange(2)}))
    holder = nn.ModuleDict({"p": params})
    assert [name for name, _ in holder.named_parameters()] == ["p.w", "p.n.b"]
    assert [name for name, _ in holder.named_buffers()] == ["p.i"]
    assert list(holder.state_dict()) == ["p.w", "p.n.b", "p.i"]
    holder.double()
    assert params["w"].dtype is torch.float64 and params["i"].dtype is torch.int64
    other = nn.ModuleDict({"p": TensorDictParams(params.data.clone().zero_())})
    other.load_state_dict(holder.state_dict())
    assert torch.equal(other["p"]["w"], params["w"])


def test_params_train() -> None:
    params = TensorDictParams(TensorDict({"w": torch.ones(3)}))
    optimizer = torch.optim.SGD(params.parameters(), lr=0.5)
    (params["w"] ** 2).sum().backward()
    optimizer.step()
    assert torch.equal(params["w"], torch.zeros(3))
    params.zero_grad()
    assert params["w"].grad is None


def test_params_survive_copies_and_pickling() -> None:
    params = TensorDictParams(TensorDict({"w": torch.ones(3), "i": torch.arange(2)}))
    for twin in (params.clone(), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert isinstance(twin, TensorDictParams)
        assert isinstance(twin["w"], nn.Parameter) and twin["w"] is not params["w"]
        assert torch.equal(twin["w"], params["w"])


def test_new_entries_become_parameters() -> None:
    params = TensorDictParams(TensorDict({"w": torch.ones(3)}))
    params["z"] = torch.zeros(2)
    params.set(("n", "b"), torch.zeros(2))
    assert isinstance(params["z"], nn.Parameter)
    assert [name for name, _ in params.named_parameters()] == ["w", "z", "n.b"]


def test_weights_from_files_go_into_a_module_and_train_there(tmp_path: Path) -> None:
    module = make_module()
    TensorDict.from_module(module).memmap(tmp_path / "weights", num_threads=2)
    params = TensorDict.load_memmap(tmp_path / "weights")
    expected = module(torch.ones(2, 3))
    other = make_module()
    params.to_module(other)
    params["0"].to_module(other[0])
    torch.testing.assert_close(other(torch.ones(2, 3)), expected)
    assert type(other[0].weight) is nn.Parameter and other[0].weight.requires_grad
    with torch.no_grad():
        other[0].weight.fill_(7)  # the parameter is the file's memory
    assert (TensorDict.load_memmap(tmp_path / "weights")["0", "weight"] == 7).all()


def test_from_module_as_a_module_holds_its_parameters() -> None:
    module = make_module()
    params = TensorDict.from_module(module, as_module=True)
    assert isinstance(params, TensorDictParams) and not params.is_locked
    assert params["0", "weight"] is module[0].weight
    assert [name for name, _ in params.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert len(list(params.buffers())) == len(list(module.buffers()))
    assert TensorDict.from_module(module, as_module=True, lock=True).is_locked


def test_an_ensemble_as_a_module_has_parameters_to_optimise() -> None:
    params = TensorDict.from_modules(make_module(), make_module(), as_module=True)
    names = {name for name, _ in params.named_parameters()}
    assert names == {name for name, _ in make_module().named_parameters()}
    assert params["0", "weight"].shape == (2, 4, 3)
