"""TensorDictParams that is changed in place keeps its parameters, as torch.nn.Module.to does."""

from typing import Any

import pytest
import torch
from torch import nn

from tensordict_lite import TensorDict, lazy_stack
from tensordict_lite.nn import TensorDictParams


def _params() -> TensorDictParams:
    weights = TensorDict(w=torch.ones(2, 3).t(), n=TensorDict(b=torch.zeros(3), i=torch.arange(3)))
    return TensorDictParams(weights)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.to(torch.float64, inplace=True),
        lambda p: p.to("cpu", torch.float16, inplace=True),
        lambda p: p.to(torch.float64, cast_filter=lambda path, leaf: path == ("w",), inplace=True),
        lambda p: p.contiguous(inplace=True),
    ],
)
def test_an_optimiser_goes_on_with_the_same_parameters(change: Any) -> None:
    params = _params()
    weight = params["w"]
    weight.grad = torch.ones_like(weight)
    optimiser = torch.optim.SGD(params.parameters(), lr=0.25)
    assert change(params) is params
    assert params["w"] is weight and weight.grad is not None and weight.grad.dtype == weight.dtype
    assert [name for name, _ in params.named_parameters()] == ["w", "n.b"]
    assert [name for name, _ in params.named_buffers()] == ["n.i"]
    optimiser.step()
    assert (params["w"] == 0.75).all()


def test_the_device_and_the_batch_size_follow_in_place() -> None:
    params = TensorDictParams(TensorDict(w=torch.ones(3, 2), batch_size=[3]))
    params.to("meta", batch_size=[], inplace=True)
    assert params.device == params["w"].device == torch.device("meta") and params.batch_size == ()
    assert isinstance(params["w"], nn.Parameter)


def test_tensors_that_cannot_be_trained_become_buffers_in_place() -> None:
    params = _params().to(torch.int32, inplace=True)
    assert not list(params.parameters())
    assert {name: buffer.dtype for name, buffer in params.named_buffers()} == dict.fromkeys(
        ["w", "n.b", "n.i"], torch.int32
    )


@pytest.mark.parametrize("no_convert", [False, True])
def test_a_lazy_stack_below_the_root_raises_before_anything_is_converted(no_convert: bool) -> None:
    tree = TensorDict(w=torch.ones(2), n=TensorDict(stack=lazy_stack([TensorDict(a=1.0)] * 2)))
    with pytest.raises(RuntimeError, match="LazyStackedTensorDict within a TensorDictParams isn't permitted"):
        TensorDictParams(tree, no_convert=no_convert)
    assert type(tree["w"]) is torch.Tensor


@pytest.mark.parametrize("write", ["set", "__setitem__", "update"])
def test_a_lazy_stack_is_not_written_as_an_entry(write: str) -> None:
    params, stack = _params(), lazy_stack([TensorDict(a=1.0)] * 2)
    with pytest.raises(RuntimeError, match="within a TensorDictParams"):
        params.update({"stack": stack}) if write == "update" else getattr(params, write)("stack", stack)
    assert list(params.keys()) == ["w", "n"]


def test_a_lazy_stack_updates_parameters_with_its_stacked_entries() -> None:
    params = TensorDictParams(TensorDict(w=torch.ones(2, 3), n=TensorDict(b=torch.ones(2))))
    params.update(lazy_stack([TensorDict(w=torch.zeros(3), n=TensorDict(b=float(i))) for i in range(2)]).copy())
    assert params["n", "b"].tolist() == [0.0, 1.0]
    assert {name for name, _ in params.named_parameters()} == {"w", "n.b"}


def test_skip_leaves_a_lazy_stack_as_it_is() -> None:
    tree = TensorDict(w=torch.ones(2), stack=lazy_stack([TensorDict(a=1.0)] * 2))
    assert TensorDictParams(tree, no_convert="skip")["stack"] is tree["stack"]


@pytest.mark.parametrize("key", ["zz", ("zz", "q"), ("n", "zz", "q", "r")])
def test_an_entry_that_does_not_fit_leaves_no_level_behind(key: Any) -> None:
    params = TensorDictParams(
        TensorDict(w=torch.ones(3), n=TensorDict(b=torch.ones(3), batch_size=[3]), batch_size=[3])
    )
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        params.set(key, torch.ones(5))
    assert set(params.keys(True)) == {"w", "n", ("n", "b")}
    assert isinstance(params.set(key, torch.ones(3))[key], nn.Parameter)
