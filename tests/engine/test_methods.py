"""`data.map` and `data.map_iter` have the options of `tdmap.map` and `tdmap.map_iter`, by name."""

import inspect

import pytest
import torch

import tdmap
from tdmap.ops.iteration.map_iter import MapIterArguments
from tdmap.ops.map import MapArguments
from tdmap.run.options import options_of
from tensordict_lite import TensorDict


@pytest.mark.parametrize("name", ["map", "map_iter"])
def test_methods_have_the_options_of_the_functions(name):
    ours = inspect.signature(getattr(TensorDict, name)).parameters
    theirs = {
        n: p for n, p in inspect.signature(getattr(tdmap, name)).parameters.items() if n not in ("data", "options")
    }
    assert {n: (ours[n].default, ours[n].kind) for n in theirs} == {n: (p.default, p.kind) for n, p in theirs.items()}
    assert {*ours} - {"self"} == {*theirs, *options_of(getattr(tdmap, name))}


@pytest.mark.parametrize(("name", "told"), [("map", MapArguments), ("map_iter", MapIterArguments)])
def test_type_checkers_know_the_options_of_the_functions(name, told):
    fn = getattr(tdmap, name)
    overloaded = {"data", "fn", "dim", "out", "in_keys", "options"}
    assert set(told.__annotations__) == {*inspect.signature(fn).parameters, *options_of(fn)} - overloaded


def test_every_option_arrives(monkeypatch):
    seen = {}
    monkeypatch.setattr(tdmap, "map", lambda *args, **options: seen.update(options, args=args))
    data = TensorDict({"x": torch.arange(4)}, [4])
    data.map(len, 0, 3, out="folder", seed=7, retries=5, on_error="skip", max_memory=9, in_keys=["x"])
    assert seen["args"][1:] == (len, 0) and seen["args"][0] is data
    given = ("num_workers", "out", "seed", "retries", "max_memory")
    assert [seen[name] for name in given] == [3, "folder", 7, 5, 9]
    assert set(seen) - {"args"} == set(inspect.signature(TensorDict.map).parameters) - {"self", "fn", "dim"}
