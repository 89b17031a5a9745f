"""Modules that read and write tensordicts: what the comparison with the reference leaves open."""

import copy
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tensordict_lite
from tensordict_lite import NonTensorData, TensorClass, TensorDict, TensorDictParams
from tensordict_lite.nn import (
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    WrapModule,
    as_tensordict_module,
    dispatch,
    set_skip_existing,
    skip_existing,
)


def rows(*size: int) -> TensorDict:
    return TensorDict({"x": torch.randn(*size, 4), "n": {"y": torch.ones(size)}}, list(size))


class Statistics(TensorDictModuleBase):
    in_keys = ["x"]
    out_keys = ["mean", "std"]

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict):
        x = tensordict["x"]
        return tensordict.update({"mean": x.mean(-1), "std": x.std(-1)})


@pytest.mark.parametrize(
    ("key", "name"),
    [("ab", "ab"), (("ab",), "ab"), ((("ab",),), "ab"), (("a", "b"), "a_b"), (("a", ("b",)), "a_b")],
    ids=str,
)
def test_dispatch_names_a_key_however_it_is_spelled(key: Any, name: str) -> None:
    class Doubled(nn.Module):
        in_keys = [key]
        out_keys = ["y"]

        @dispatch
        def forward(self, tensordict):
            return tensordict.set("y", tensordict[key] * 2)

    assert Doubled()(**{name: torch.ones(())}) == 2 == Doubled()(torch.ones(()))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_keys_selection_and_parameters(copied) -> None:
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 2), ["x"], ["h"]), Statistics(), selected_out_keys=["mean"]
    )
    module[1].select_out_keys("mean")
    twin = copied(module)
    td = rows(3)
    assert twin.out_keys == ["mean"] and twin[1].out_keys_source == ["mean", "std"]
    assert torch.equal(twin(td.copy())["mean"], module(td.copy())["mean"])
    assert sorted(twin(td.copy()).keys()) == ["mean", "n", "x"]


def test_keys_of_a_class_belong_to_each_instance() -> None:
    one, other = Statistics(), Statistics()
    one.select_out_keys("mean")
    assert one.out_keys == ["mean"] and other.out_keys == ["mean", "std"]
    assert sorted(one(x=torch.ones(2, 3)).shape) == [2] and len(other(x=torch.ones(2, 3))) == 2


def test_a_property_that_fails_says_why() -> None:
    class Broken(TensorDictModule):
        @property
        def value(self):
            return self.module.absent

    with pytest.raises(AttributeError, match="absent"):
        _ = Broken(nn.ReLU(), ["x"], ["o"]).value


def test_a_sequence_is_edited_as_a_list() -> None:
    one = TensorDictModule(torch.abs, ["x"], ["h"])
    two = TensorDictModule(torch.abs, ["h"], ["o"])
    seq = TensorDictSequential(one).append(two)
    assert seq.out_keys == ["h", "o"] and list(seq) == [one, two]
    seq.insert(0, lambda td: td)
    assert len(seq) == 3 and isinstance(seq[0], WrapModule)
    named = TensorDictSequential({"one": one, "two": two})
    assert named["two"] is two and named[1] is two and list(named[:1]) == [one] and named.one is one


def test_decorated_methods_and_classmethods() -> None:
    class Scaled:
        scale = 3

        @as_tensordict_module(in_keys="x", out_keys="o")
        def of_instance(self, x):
            return x * self.scale

        @classmethod
        @as_tensordict_module(in_keys=["x"], out_keys=["o"])
        def of_class(cls, x):
            return x * cls.scale

    td = TensorDict(x=torch.ones(2))
    assert (Scaled().of_instance(td)["o"] == 3).all() and (Scaled.of_class(x=torch.ones(2)) == 3).all()


def test_modules_are_skipped_in_the_thread_that_asks_only() -> None:
    seen = []
    with set_skip_existing(True, thread_local=True):
        thread = threading.Thread(target=lambda: seen.append(skip_existing()))
        thread.start()
        thread.join()
        with set_skip_existing(["a"]):
            inside = skip_existing()
        assert skip_existing() is True
    assert seen == [False] and inside == ["a"] and skip_existing() is False


def test_a_mode_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError), set_skip_existing(True):
        raise ValueError
    assert skip_existing() is False


class Pair(TensorClass):
    a: torch.Tensor
    b: torch.Tensor


class Nested(TensorClass):
    pair: Pair
    total: torch.Tensor


class Named(TensorClass):
    a: torch.Tensor
    name: NonTensorData


class AddUp(TensorClassModuleBase[Pair, Nested]):
    def forward(self, x: Pair) -> Nested:
        return Nested(pair=x, total=x.a + x.b, batch_size=x.batch_size)


def test_a_module_of_tensorclasses_as_one_of_tensordicts() -> None:
    module = AddUp().as_td_module()
    assert module.in_keys == ["a", "b"] and module.out_keys == [("pair", "a"), ("pair", "b"), "total"]
    td = TensorDict({"a": torch.ones(3), "b": torch.ones(3), "other": torch.zeros(3)}, [3])
    out = module(td)
    assert type(out) is TensorDict and sorted(out.keys()) == ["pair", "total"] and "total" not in td.keys()
    assert (module(a=torch.ones(3), b=torch.ones(3))[-1] == 2).all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module(td, other=1)
    assert "ignores ['other']" in str(caught[0].message)


def test_a_module_of_tensorclasses_with_a_field_of_objects() -> None:
    class Same(TensorClassModuleBase[Named, Named]):
        def forward(self, x: Named) -> Named:
            return x

    module = Same().as_td_module()
    assert module.in_keys == ["a", "name"]
    assert module(TensorDict({"a": torch.ones(3), "name": "s"}, [3]))["name"] == "s"


def test_a_module_of_tensorclasses_needs_both_classes() -> None:
    class ToTensor(TensorClassModuleBase[Pair, torch.Tensor]):
        def forward(self, x: Pair) -> torch.Tensor:
            return x.a

    assert ToTensor.output_type is torch.Tensor
    with pytest.raises(ValueError, match="output_type of ToTensor must be a tensorclass"):
        ToTensor().as_td_module()


NEW_VALUES = {
    "update": lambda p: p.update({"a": torch.zeros(2)}),
    "update by name": lambda p: p.update(a=torch.zeros(2)),
    "update nested": lambda p: p.update({"b": {"c": torch.zeros(1)}}),
    "update at a path": lambda p: p.update({("b", "c"): torch.zeros(1)}),
    "update from a collection": lambda p: p.update(p.data.clone()),
    "update with new entries": lambda p: p.update({"n": torch.zeros(2), "m": {"k": torch.zeros(1)}}),
    "set": lambda p: p.set("a", torch.zeros(2)),
    "set nested": lambda p: p.set(("b", "c"), torch.zeros(1)),
    "assign": lambda p: p.__setitem__("a", torch.zeros(2)),
    "setdefault": lambda p: p.setdefault("n", torch.zeros(2)),
}


@pytest.mark.parametrize("way", NEW_VALUES)
def test_what_is_written_into_parameters_becomes_a_parameter(way: str) -> None:
    params = TensorDictParams(tensordict_lite.TensorDict({"a": torch.ones(2), "b": {"c": torch.ones(1)}}))
    NEW_VALUES[way](params)
    leaves = dict(params.items(True, True))
    assert all(isinstance(leaf, nn.Parameter) for leaf in leaves.values())
    assert len(list(params.parameters())) == len(leaves) and not list(params.buffers())
