"""Models run with parameters of a collection: round trips, training, ensembles, torch.func, files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensordict_lite import TensorDict
from tensordict_lite.nn import TensorDictModule, TensorDictParams


def transformer(**options: Any) -> nn.Transformer:
    return nn.Transformer(16, 2, 1, 1, 32, batch_first=True, **options)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 3))


def same_bits(a: Any, b: Any) -> None:
    torch.testing.assert_close(dict(a), dict(b), rtol=0, atol=0)


# -- round trips ---------------------------------------------------------------------------------------------------


def test_a_transformer_goes_out_and_comes_back() -> None:
    model, other = transformer().eval(), transformer().eval()
    params = TensorDict.from_module(model)
    assert sorted(params.flatten_keys(".").keys()) == sorted(model.state_dict())
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    wanted, own = model(source, target), other(source, target)
    names = [name for name, _ in other.named_parameters()]
    with params.to_module(other, strict=True):
        assert torch.equal(other(source, target), wanted)
        assert other.encoder.layers[0].self_attn.in_proj_weight is model.encoder.layers[0].self_attn.in_proj_weight
    assert torch.equal(other(source, target), own)
    assert [name for name, _ in other.named_parameters()] == names  # an optimiser relies on their order
    params.to_module(other)
    assert torch.equal(other(source, target), wanted)


def test_a_model_without_memory_runs_on_the_weights_of_another() -> None:
    """The way to run many sets of weights with one model: its own tensors take no memory."""
    model = transformer().eval()
    with torch.device("meta"):
        empty = transformer().eval()
    source = torch.randn(2, 5, 16)
    with TensorDict.from_module(model).to_module(empty):
        assert torch.equal(empty(source, source), model(source, source))
    assert all(p.is_meta for p in empty.parameters())


def test_a_slice_of_a_model_is_loaded_alone(tmp_path: Path) -> None:
    model = transformer().eval()
    TensorDict.from_module(model).memmap(tmp_path / "weights", num_threads=16)
    layer = TensorDict.load_memmap(tmp_path / "weights" / "encoder" / "layers" / "0")
    other = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with layer.to_module(other, strict=True):
        assert torch.equal(other(x), model.encoder.layers[0](x))
    copies = [copy.deepcopy(model) for _ in range(3)]
    TensorDict.from_modules(*copies).memmap(tmp_path / "ensemble", num_threads=16)
    second = TensorDict.load_memmap(tmp_path / "ensemble")[1]
    second.to_module(copies[0])
    same_bits(copies[0].state_dict(), model.state_dict())


def test_weights_from_files_go_into_a_module_and_train_there(tmp_path: Path) -> None:
    model, x = classifier().eval(), torch.ones(2, 6)
    TensorDict.from_module(model).memmap(tmp_path / "weights", num_threads=2)
    params = TensorDict.load_memmap(tmp_path / "weights")
    other = classifier().eval()
    params.to_module(other)
    params["0"].to_module(other[0])
    torch.testing.assert_close(other(x), model(x))
    assert type(other[0].weight) is nn.Parameter and other[0].weight.requires_grad
    with torch.no_grad():
        other[0].weight.fill_(7)  # the parameter is the file's memory
    assert (TensorDict.load_memmap(tmp_path / "weights")["0", "weight"] == 7).all()


# -- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_functional_training_step_is_the_stateful_one_to_the_last_bit(optimizer: Any) -> None:
    stateful = classifier()
    model = classifier()
    params = TensorDict.from_module(copy.deepcopy(model), as_module=True)
    x, y = torch.randn(3, 12, 6), torch.randint(3, (3, 12))
    options = {"lr": 0.1, "weight_decay": 0.01}
    ours = optimizer(params.parameters(), **options)
    theirs = optimizer(stateful.parameters(), **options)
    untouched = copy.deepcopy(model.state_dict())
    for step in range(3):
        torch.manual_seed(step)  # the dropout
        F.cross_entropy(stateful(x[step]), y[step]).backward()
        theirs.step()
        theirs.zero_grad()
        torch.manual_seed(step)
        with params.to_module(model):
            F.cross_entropy(model(x[step]), y[step]).backward()
        ours.step()
        ours.zero_grad()
    same_bits(params.state_dict(), stateful.state_dict())  # running statistics and counters too
    same_bits(model.state_dict(), untouched)


def test_optimisers_over_tensordicts() -> None:
    """A step written with arithmetic of collections, and a foreach optimiser over the leaves."""
    model, x = classifier().eval(), torch.randn(4, 6)
    params = TensorDict.from_module(model).select("0", "4")
    before = params.data.clone()
    model(x).square().sum().backward()
    grads = params.grad
    wanted = {key: p - 0.1 * p.grad for key, p in params.items(True, True)}
    with torch.no_grad():
        params.data.sub_(grads, alpha=0.1)
    for key, value in wanted.items():
        torch.testing.assert_close(params[key], value)
    momentum = before.clone().zero_()
    momentum.lerp_(grads, 0.5)
    torch.testing.assert_close(momentum["0", "weight"], model[0].weight.grad * 0.5)
    params.data.update_(before)
    optimizer = torch.optim.SGD(list(params.values(True, True)), lr=0.1, foreach=True)
    optimizer.step()
    for key, value in wanted.items():
        torch.testing.assert_close(params[key], value)


def test_a_tied_weight_has_one_gradient_and_stays_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    model = Tied()
    params = TensorDict.from_module(model, as_module=True)
    assert len(list(params.parameters())) == 1
    twin = params.clone()
    assert twin["embed", "weight"] is twin["head", "weight"] and len(list(twin.parameters())) == 1
    with twin.to_module(model):
        assert model.head.weight is model.embed.weight is twin["embed", "weight"]
        model(torch.tensor([1, 2])).sum().backward()
    assert twin["head", "weight"].grad is not None and params["head", "weight"].grad is None
    assert model.head.weight is model.embed.weight is params["head", "weight"]
    loose = params.data.clone()
    with loose.to_module(model):
        assert model.head.weight is not model.embed.weight
    assert model.head.weight is model.embed.weight


# -- what to_module does to a module -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda td: td.set(("4", "weight"), torch.zeros(8, 3)), r"'4.weight' has the shape \[3, 8\].*\[8, 3\]"),
        (
            lambda td: td.set(("4", "scale"), torch.zeros(3)),
            "Linear at '4' has no parameter or buffer 'scale'; it has 'bias', 'weight'",
        ),
        (
            lambda td: td.set(("9", "weight"), torch.zeros(3)),
            "Sequential has no sub-module '9'; it has '0.bias', '0.weight', '1.bias'",
        ),
        (
            lambda td: td.set("4", torch.zeros(3)),
            "Sequential has no parameter or buffer '4'; it has '0.bias', '0.weight', '1.bias'",
        ),
        (lambda td: td.set(("2", "x"), torch.zeros(3)), "'2' has no parameter or buffer 'x'; it has no parameters and"),
        (lambda td: td.expand(2), r"shape \[8, 6\] in the module and \[2, 8, 6\].*torch.vmap"),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_collection_that_does_not_fit_leaves_the_module_as_it_was(change: Any, error: str, inplace: bool) -> None:
    model = classifier()
    before, bits = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    params = TensorDict.from_module(model).data.clone().zero_().unlock_()
    with pytest.raises((KeyError, RuntimeError), match=error):
        change(params).to_module(model, inplace=inplace)
    assert all(value is before[name] for name, value in model.named_parameters())
    same_bits(model.state_dict(), bits)


def test_strict_wants_every_parameter_and_buffer() -> None:
    model = classifier()
    params = TensorDict.from_module(model).data.clone().unlock_()
    del params["1"]["running_mean"], params["4"]
    with params.to_module(model):
        pass
    with pytest.raises(KeyError, match=r"lacks \['1.running_mean'\] of BatchNorm1d"):
        params.to_module(model, strict=True)
    params.set(("1", "running_mean"), torch.zeros(8))
    with pytest.raises(KeyError, match=r"lacks \['4'\] of Sequential"):
        params.to_module(model, strict=True)
    with pytest.raises(TypeError, match="needs a torch.nn.Module, got a function"):
        params.to_module(F.relu)


def test_what_was_in_the_module_can_be_kept_in_a_collection() -> None:
    model = nn.Linear(2, 2)
    weight, kept = model.weight, TensorDict()
    with TensorDict(weight=torch.zeros(2, 2)).to_module(model, swap_dest=kept) as params:
        assert params is kept and kept["weight"] is weight and not model.weight.any()
        kept["weight"] = torch.ones(2, 2)
    assert model.weight is weight
    with pytest.raises(RuntimeError, match="lock"):
        TensorDict(weight=torch.zeros(2, 2)).to_module(model, swap_dest=TensorDict().lock_())
    assert model.weight is weight


def test_tensors_go_in_as_they_are_without_preserve_module_state() -> None:
    model, value = nn.Linear(2, 2), torch.zeros(2, 2)
    weight, names = model.weight, [name for name, _ in model.named_parameters()]
    with TensorDict(weight=value).to_module(model, preserve_module_state=False):
        assert model.weight is value and list(dict(model.named_parameters())) == ["bias"]
        with TensorDict(weight=value + 1).to_module(model, preserve_module_state=False):
            assert (model.weight == 1).all()
        assert model.weight is value
    assert model.weight is weight and [name for name, _ in model.named_parameters()] == names


def test_a_place_that_is_empty_is_filled_for_the_block_unless_strict() -> None:
    model, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    model.register_buffer("shift", None)
    extra = TensorDict(bias=torch.full((2,), 100.0), shift=torch.ones(2))
    wanted = torch.func.functional_call(model, {"bias": extra["bias"]}, (x,))
    with extra.to_module(model) as taken:
        assert torch.equal(model(x), wanted) and torch.equal(model.shift, torch.ones(2))
    assert model.bias is None and model.shift is None and taken["bias"] is None
    extra.to_module(model).to_module(model)
    assert model.bias is None and [name for name, _ in model.named_parameters()] == ["weight"]
    for options in ({"strict": True}, {"inplace": True}):
        with pytest.raises(KeyError, match=r"'bias': Linear is without 'bias' \(it is None\)"):
            extra.to_module(model, **options)


@pytest.mark.parametrize("inplace", [False, True])
def test_contexts_nest_and_blocks_that_fail_restore(inplace: bool) -> None:
    model = classifier()
    before, bits = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    one, two = (TensorDict.from_module(model).data.clone().zero_() + value for value in (1, 2))
    with pytest.raises(ZeroDivisionError), one.to_module(model, inplace=inplace):
        with two.to_module(model, inplace=inplace):
            assert (model[0].weight == 2).all()
        assert (model[0].weight == 1).all()
        raise ZeroDivisionError
    assert all(value is before[name] for name, value in model.named_parameters())
    same_bits(model.state_dict(), bits)


# -- ensembles -----------------------------------------------------------------------------------------------------


def test_a_model_of_models_is_a_nested_vmap() -> None:
    groups = [[nn.Linear(3, 2) for _ in range(2)] for _ in range(4)]
    params = torch.stack([TensorDict.from_modules(*group) for group in groups])
    assert params.batch_size == (4, 2)
    model, x = copy.deepcopy(groups[0][0]), torch.randn(5, 3)

    def call(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(model):
            return model(x)

    out = torch.vmap(torch.vmap(call, (0, None)), (0, None))(params, x)
    torch.testing.assert_close(out, torch.stack([torch.stack([layer(x) for layer in group]) for group in groups]))
    rows = torch.vmap(torch.vmap(torch.vmap(call, (None, 0)), (0, None)), (0, None))(params, x)
    torch.testing.assert_close(rows, out)
    inner = torch.vmap(torch.vmap(call, (0, None)), (1, None))(params, x)
    torch.testing.assert_close(inner, out.transpose(0, 1))


def test_parameter_sets_stack_into_parameters_that_train() -> None:
    sets = [TensorDict.from_module(nn.Linear(3, 1), as_module=True) for _ in range(2)]
    stack = torch.stack(sets)
    assert type(stack) is TensorDict and stack["weight"].grad_fn is not None
    params = TensorDictParams(stack)
    assert isinstance(params["weight"], nn.Parameter) and params.batch_size == (2,)
    assert params[1]["weight"].shape == (1, 3)
    model, x = nn.Linear(3, 1), torch.randn(5, 3)

    def call(params: TensorDict) -> torch.Tensor:
        with params.to_module(model):
            return model(x)

    torch.vmap(call)(params).sum().backward()
    torch.testing.assert_close(params["weight"].grad, x.sum(0).expand(2, 1, 3))


def test_an_ensemble_of_lazy_modules_takes_its_shapes_from_the_first_call() -> None:
    modules = [nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    params = TensorDict.from_modules(*modules, as_module=True)
    model = copy.deepcopy(modules[0])
    assert "weight: f32[-1]" in repr(params)
    x = torch.randn(5, 2)

    def call(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(model):
            return model(x)

    out = torch.vmap(call, (0, None), randomness="different")(params, x)
    weight = params["0", "weight"]
    assert out.shape == (3, 5, 1) and weight.shape == (3, 4, 2) and type(weight) is nn.Parameter
    assert not torch.equal(weight[0], weight[1])
    out.sum().backward()
    assert weight.grad is not None and torch.equal(torch.vmap(call, (0, None))(params, x), out)


# -- torch.func ----------------------------------------------------------------------------------------------------


def test_gradients_of_a_loss_are_a_collection_like_the_parameters() -> None:
    model, x = classifier().eval(), torch.randn(4, 6)
    params = TensorDict.from_module(model).data.select("0", "4")

    def loss(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(model):
            return model(x).square().sum()

    grads = torch.func.grad(loss)(params, x)
    loss_alone = model(x).square().sum()
    loss_alone.backward()
    assert isinstance(grads, TensorDict)
    for key, value in grads.items(True, True):
        torch.testing.assert_close(value, model[int(key[0])].get_parameter(key[1]).grad)
    each = torch.vmap(torch.func.grad(loss), (None, 0))(params, x.unsqueeze(1))
    assert each.batch_size == (4,)
    torch.testing.assert_close(each.sum(0)["0", "weight"], grads["0", "weight"])
    _, value = torch.func.grad_and_value(loss)(params, x)
    torch.testing.assert_close(value, loss_alone)


def test_jacobians_and_hessians_are_those_of_the_leaves() -> None:
    td = TensorDict({"a": torch.randn(3), "n": {"b": torch.randn(2)}}, [])

    def f(td: TensorDict) -> TensorDict:
        return TensorDict({"x": td["a"] ** 2 * td["n", "b"].sum()}, [])

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a**2 * b.sum()

    leaves = (td["a"], td["n", "b"])
    wanted = torch.func.jacrev(plain, (0, 1))(*leaves)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        found = jacobian(f)(td)
        assert isinstance(found, TensorDict) and found["x"].batch_size == (3,)
        torch.testing.assert_close((found["x", "a"], found["x", "n", "b"]), wanted)
        pair = jacobian(lambda s, t: f(s)["x"] + f(t)["x"], argnums=(0, 1))(td, td.clone())
        for part in pair:
            torch.testing.assert_close((part["a"], part["n", "b"]), wanted)
        _, aux = jacobian(lambda t: (f(t), t["a"]), has_aux=True)(td)
        assert torch.equal(aux, td["a"])
    second = torch.func.hessian(lambda t: f(t)["x"].sum())(td)
    expected = torch.func.hessian(lambda a, b: plain(a, b).sum(), (0, 1))(*leaves)
    torch.testing.assert_close(second["a", "n", "b"], expected[0][1])
    torch.testing.assert_close(second["n", "b", "a"], expected[1][0])
    torch.testing.assert_close(second["a", "a"], expected[0][0])


def test_a_module_takes_part_in_transforms() -> None:
    module = TensorDictModule(nn.Linear(3, 1), ["x"], ["y"])
    params = TensorDict.from_module(module).data

    def loss(params: TensorDict, td: TensorDict) -> torch.Tensor:
        with params.to_module(module):
            return module(td)["y"].square().sum()

    td = TensorDict({"x": torch.randn(4, 3)}, [4])
    grads = torch.func.grad(loss)(params, td)
    each = torch.vmap(torch.func.grad(loss), (None, 0))(params, td)
    torch.testing.assert_close(each.sum(0)["module", "weight"], grads["module", "weight"])
    assert "y" not in td.keys()
