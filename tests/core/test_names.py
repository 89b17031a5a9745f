"""Names of dimensions: where they come from, what keeps them, and what they may not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict, lazy_stack, maybe_dense_stack


@pytest.mark.parametrize("entries", [{}, {"a": torch.zeros(3, 4)}, {"n": {"m": {}}}])
def test_a_row_keeps_the_other_names(entries: dict[str, Any]) -> None:
    td = TensorDict(entries, [3, 4], names=["c", "d"])
    assert td[0].names == td[-1].names == ["d"] and td[0, 0].names == [] and td[:, 0].names == ["c"]
    nested = TensorDict({"n": TensorDict({}, [3, 4], names=["c", "d"])}, [3], names=["c"])
    assert nested[0]["n"].names == ["d"]


SET: dict[str, Callable[[Any, Any], Any]] = {
    "setitem": lambda td, value: td.__setitem__("x", value),
    "set": lambda td, value: td.set("x", value),
    "update": lambda td, value: td.update({"x": value}),
    "setdefault": lambda td, value: td.setdefault("x", value),
}


@pytest.mark.parametrize("how", SET)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_named_entry_names_the_dimensions_of_its_parent(how: str, lazy: bool) -> None:
    td = TensorDict({"y": TensorDict({"z": torch.zeros(3, 2)}, [3, 2]), "t": torch.zeros(3), "s": "word"}, [3])
    td = lazy_stack(list(td.unbind(0))) if lazy else td
    SET[how](td, TensorDict({}, [3, 4], names=["a", "b"]))
    assert td.names == ["a"] and td["y"].names == ["a", None] and td[:2].names == ["a"]
    with pytest.raises(RuntimeError, match="contradict"):
        td["w"] = TensorDict({}, [3, 2], names=["z", "w"])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_named_entry_names_the_collection_that_holds_it(lazy: bool) -> None:
    td = TensorDict({"y": TensorDict({}, [3])}, [3])
    td = lazy_stack(list(td.unbind(0))) if lazy else td
    for parent in ("y", "new"):
        td[parent, "x"] = TensorDict({}, [3, 4], names=["a", "b"])
        assert td[parent].names == ["a"] and td[parent, "x"].names == ["a", "b"]


def test_names_of_the_constructor_and_of_no_dimension_of_the_parent() -> None:
    named = TensorDict({}, [3, 4], names=["a", "b"])
    assert TensorDict({"x": named, "y": TensorDict({}, [3, 2])}, [3])["y"].names == ["a", None]
    assert TensorDict({"x": TensorDict({}, [3, 4], names=[None, "b"])}, [3]).names == [None]
    with pytest.raises(RuntimeError, match="contradict"):
        TensorDict({"x": named, "y": TensorDict({}, [3, 2], names=["z", "w"])}, [3])


@pytest.mark.parametrize("stack", [torch.stack, maybe_dense_stack])
def test_a_stack_has_the_names_that_all_have(stack: Callable[..., Any]) -> None:
    one, other, none = (TensorDict({"z": torch.zeros(3)}, [3], names=names) for names in (["a"], ["b"], None))
    assert stack([one, one]).names == [None, "a"]
    for pair in ([one, other], [one, none], [none, one]):
        assert stack(pair).names == [None, None]
    with pytest.raises(ValueError, match="Not all dim names match"):
        lazy_stack([one, other])


def test_a_name_stands_for_one_dimension_of_each_entry() -> None:
    nested = TensorDict({"n": TensorDict({"e": {"f": torch.zeros(3, 4)}}, [3, 4], names=["c", "d"])}, [3], names=["c"])
    for td, names in (
        (nested, ["d"]),
        (lazy_stack([nested, nested], -1), ["c", "d"]),
        (lazy_stack([nested, nested], 0), ["d", "c"]),
        (TensorDict({"deep": nested}, [3]), ["d"]),
    ):
        before = td.names
        with pytest.raises(ValueError, match="non-unique.*d is already taken"):
            td.names = names
        assert td.names == before
    stack = lazy_stack([nested, nested], 0)
    stack.names = ["q", "r"]
    assert stack["n"].names == ["q", "r", "d"] and stack["n"].contiguous().names == ["q", "r", "d"]


def test_expand_as_follows_the_tree() -> None:
    td = TensorDict(
        {"a": torch.ones(2, 4), "b": TensorDict({"c": torch.ones(2, 1, 1, 4)}, [2, 1, 1]), "s": "word"}, [2]
    )
    other = TensorDict({"b": TensorDict({}, [3, 2, 5, 6])}, [3, 2])
    out = td.expand_as(other)
    assert out["a"].shape == (3, 2, 4) and out["b"].shape == (3, 2, 5, 6) and out["b", "c"].shape == (3, 2, 5, 6, 4)
    assert out["s"] == "word" and td["b"].shape == (2, 1, 1)
    assert td.expand_as(torch.zeros(3, 2))["b"].shape == td.expand_as(other.select())["b"].shape == (3, 2, 1, 1)
    with pytest.raises(RuntimeError, match="expanded shape"):
        out.expand_as(TensorDict({"b": TensorDict({}, [3, 2, 1, 6])}, [3, 2]))
