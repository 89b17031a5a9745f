"""Modules of ``tensordict_lite.nn`` where functions of a chunk are expected: map and its relatives, and pipelines."""

from typing import Any

import pytest
import torch
from torch import nn

import tdmap
from tensordict_lite import TensorDict
from tensordict_lite.nn import (
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
)

EXECUTORS = ["serial", "thread", "process"]


@pytest.fixture
def data() -> TensorDict:
    torch.manual_seed(0)
    return TensorDict({"x": torch.randn(24, 5), "meta": {"y": torch.randn(24, 3)}}, [24])


@pytest.fixture
def module() -> TensorDictModule:
    return TensorDictModule(nn.Linear(5, 2), ["x"], [("out", "z")])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_modules_write_their_keys_and_sequences_those_selected(data: TensorDict, module: Any, executor: str) -> None:
    total = TensorDictModule(lambda z: z.sum(-1), [("out", "z")], ["total"])
    chain = TensorDictSequential(module, total, selected_out_keys=["total"])
    wanted = module.module(data["x"]).detach()
    options = {"num_workers": 2, "chunksize": 5, "executor": executor}
    out = tdmap.map(data, module, **options)
    torch.testing.assert_close(out["out", "z"], wanted)
    assert not out["out", "z"].requires_grad and "out" not in data.keys()
    out = data.lock_().map(chain, **options)
    torch.testing.assert_close(out["total"], wanted.sum(-1))
    assert sorted(out.keys()) == ["meta", "total", "x"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_module_that_makes_a_new_tensordict_makes_rows(data: TensorDict, executor: str) -> None:
    module = TensorDictModule(nn.Linear(5, 2), ["x"], ["z"], inplace=False)
    out = data.map(module, num_workers=2, chunksize=5, executor=executor)
    assert list(out.keys()) == ["z"] and out.batch_size == (24,)
    torch.testing.assert_close(out["z"], module.module(data["x"]).detach())


def test_the_other_maps_and_pipelines_take_modules(data: TensorDict, module: Any) -> None:
    wanted = module.module(data["x"]).detach()
    chunks = list(data.map_iter(module, num_workers=2, chunksize=8))
    torch.testing.assert_close(torch.cat([chunk["out", "z"] for chunk in chunks]), wanted)
    total = data.map_reduce(module, lambda a, b: torch.cat([a, b]), num_workers=2, chunksize=8)
    torch.testing.assert_close(total["out", "z"], wanted)
    stages = data.pipeline().map(module).map(WrapModule(lambda td: td.exclude("x"))).batch(7)
    batches = list(stages.iter())
    assert [batch.batch_size[0] for batch in batches] == [7, 7, 7, 3] and "x" not in batches[0].keys()
    torch.testing.assert_close(torch.cat([batch["out", "z"] for batch in batches]), wanted)


def test_an_absent_key_is_named_with_the_module(data: TensorDict) -> None:
    with pytest.raises(Exception, match="'nope'") as caught:
        data.map(TensorDictModule(nn.Linear(5, 2), ["nope"], ["z"]), num_workers=2, chunksize=5)
    assert "Linear" in str(caught.value)
