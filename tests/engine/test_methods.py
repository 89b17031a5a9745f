"""`data.map` and `data.map_iter` have the options of `tdmap.map` and `tdmap.map_iter`, by name."""

from __future__ import annotations

import inspect

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict, tensorclass


@pytest.mark.parametrize("name", ["map", "map_iter"])
def test_methods_have_the_options_of_the_functions(name):
    ours = list(inspect.signature(getattr(TensorDict, name)).parameters.values())[1:]
    theirs = list(inspect.signature(getattr(tdmap, name)).parameters.values())[1:]
    assert [(p.name, p.default, p.kind) for p in ours] == [(p.name, p.default, p.kind) for p in theirs]


def test_every_option_arrives(monkeypatch):
    seen = {}
    monkeypatch.setattr(tdmap, "map", lambda *args, **options: seen.update(options, args=args))
    data = TensorDict({"x": torch.arange(4)}, [4])
    data.map(len, 0, 3, out="folder", seed=7, retries=5, on_error="skip", max_memory=9, in_keys=["x"])
    assert seen["args"] == (data, len, 0, 3)
    assert (seen["out"], seen["seed"], seen["retries"], seen["max_memory"]) == ("folder", 7, 5, 9)
    assert set(seen) - {"args"} == set(inspect.signature(TensorDict.map).parameters) - {
        "self",
        "fn",
        "dim",
        "num_workers",
    }


def test_an_unknown_option_is_an_error_at_once():
    @tensorclass
    class Point:
        x: torch.Tensor

    for data in (TensorDict({"x": torch.arange(4)}, [4]), Point(torch.arange(4), batch_size=[4])):
        for call in (data.map, data.map_iter):
            with pytest.raises(TypeError, match="has no option 'chunk_size'. Did you mean 'chunksize'"):
                call(lambda td: td, chunk_size=2)
