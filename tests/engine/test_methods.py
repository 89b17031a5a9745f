"""`data.map` and `data.map_iter` pass their options to `tdmap.map` and `tdmap.map_iter`."""

import inspect

import pytest
import torch

import tdmap
from tdmap.ops.iteration.map_iter import MapIterArguments
from tdmap.ops.map import MapArguments
from tdmap.run.options import options_of
from tensordict_lite import TensorDict


@pytest.mark.parametrize(("name", "told"), [("map", MapArguments), ("map_iter", MapIterArguments)])
def test_type_checkers_know_the_options_of_the_functions(name, told):
    fn = getattr(tdmap, name)
    overloaded = {"data", "fn", "dim", "out", "in_keys", "options"}
    assert set(told.__annotations__) == {*inspect.signature(fn).parameters, *options_of(fn)} - overloaded


@pytest.mark.parametrize("name", ["map", "map_iter"])
def test_what_is_given_arrives_and_nothing_else(name, monkeypatch):
    seen = []
    monkeypatch.setattr(tdmap, name, lambda *args, **options: seen.append((args, options)))
    data = TensorDict({"x": torch.arange(4)}, [4])
    method, given = getattr(data, name), {"seed": 7, "retries": 5, "on_error": "skip", "in_keys": ["x"]}
    method(len, 0, 3, **given)
    method(len, 1, num_workers=0)
    method(len)
    assert [args[0] is data for args, _ in seen] == [True] * 3
    assert [(*args[1:], options) for args, options in seen] == [
        (len, 0, {"num_workers": 3, **given}),
        (len, 1, {"num_workers": 0}),
        (len, 0, {}),
    ]
