"""State dicts of tensorclasses: tensors under their keys, what else their fields hold in the metadata."""

import io
import threading
from collections import OrderedDict
from typing import Any

import pytest
import tensordict as reference
import torch

from tensordict_lite import NonTensorData, TensorDict, lazy_stack, tensorclass


def _classes(tensorclass: Any) -> tuple[Any, Any]:
    @tensorclass
    class Inner:
        v: torch.Tensor
        t: str = "in"

    @tensorclass
    class Outer:
        x: torch.Tensor
        y: torch.Tensor = None
        s: str = "hi"
        words: Any = None
        inner: Inner = None

    return Inner, Outer


Inner, Outer = _classes(tensorclass)


def _filled(inner: Any = Inner, outer: Any = Outer, **kwargs: Any) -> Any:
    return outer(torch.ones(3), s="q", inner=inner(torch.zeros(3), t="z", batch_size=[3]), batch_size=[3], **kwargs)


def _blank() -> Any:
    return Outer(torch.zeros(3), torch.ones(3), inner=Inner(torch.ones(3), batch_size=[3]), batch_size=[3])


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("locked", [True, False])
def test_objects_of_fields_come_back(flatten: bool, stored: bool, locked: bool) -> None:
    state = _filled().state_dict(flatten=flatten)
    if stored:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=False)
    other = _blank()
    other.y = None
    other = other.lock_() if locked else other
    other.load_state_dict(state)
    assert (other.s, other.inner.t, other.y) == ("q", "z", None)
    assert other.x.tolist() == [1, 1, 1] and other.inner.v.tolist() == [0, 0, 0]


def test_metadata_is_that_of_the_reference() -> None:
    mine, theirs = _filled().state_dict(), _filled(*_classes(reference.tensorclass)).state_dict()
    assert set(mine) == set(theirs) == {"x", "inner.v"}
    assert dict(mine._metadata) == dict(theirs._metadata)
    other = _blank()
    other.load_state_dict(theirs)
    assert (other.s, other.inner.t, other.y) == ("q", "z", None)


def test_a_list_of_one_object_a_row_stays_apart_from_one_list() -> None:
    full = _filled(words=["a", "b", "c"])
    other = _blank()
    other.load_state_dict(full.state_dict())
    assert other.words == ["a", "b", "c"] and other[1].words == "b"
    full.set_non_tensor("words", ["a", "b", "c"])
    other.load_state_dict(full.state_dict())
    assert other.words == other[1].words == ["a", "b", "c"]


def test_tensorclasses_within_trees_are_strict_about_tensors() -> None:
    state = TensorDict({"c": _filled(), "w": "word"}, [3]).state_dict()
    assert set(state) == {"c.x", "c.inner.v"}
    td = TensorDict({"c": _blank(), "w": ""}, [3]).load_state_dict(state)
    assert (td["c"].s, td["c"].inner.t, td["w"]) == ("q", "z", "word")
    plain = TensorDict({}, [3]).load_state_dict(state, strict=False)
    assert (plain["c", "s"], plain["c", "inner", "t"], plain["w"]) == ("q", "z", "word") and ("c", "y") not in plain
    del state["c.x"]
    with pytest.raises(RuntimeError, match="lacks the keys"):
        TensorDict({"c": _blank(), "w": ""}, [3]).load_state_dict(state)


@pytest.mark.parametrize("key", ["zz", "inner.zz"])
@pytest.mark.parametrize("flatten", [True, False])
def test_a_key_that_is_not_a_field_is_refused_or_ignored(key: str, flatten: bool) -> None:
    state = _filled().state_dict(flatten=flatten)
    inner = state["inner"] if not flatten and key != "zz" else state
    inner[key if inner is state else "zz"] = torch.ones(3)
    instance = _blank()
    with pytest.raises(KeyError, match="'zz'.*whose fields are"):
        instance.load_state_dict(state)
    instance.load_state_dict(state, strict=False)
    assert instance.x.equal(_filled().x) and instance.inner.v.equal(_filled().inner.v)


def test_joined_keys_are_not_fields_if_they_are_not_taken_apart() -> None:
    state = _filled().state_dict()
    for asked in (state, dict(state)):
        with pytest.raises(KeyError, match=r"'inner\.v'"):
            _blank().load_state_dict(asked, from_flatten=False)
        assert _blank().load_state_dict(asked, strict=False, from_flatten=False).x.equal(_filled().x)


def test_fields_below_the_root_are_complete() -> None:
    state = _filled().state_dict()
    del state["inner.v"]
    with pytest.raises(RuntimeError, match=r"lacks the keys \['v'\]"):
        _blank().load_state_dict(state)
    del state["x"]
    kept = _blank()
    kept.load_state_dict(state, strict=False)
    assert kept.x.equal(_blank().x) and kept.s == "q"


def test_the_layout_of_the_first_versions_loads() -> None:
    old = OrderedDict(_tensordict=OrderedDict(x=torch.ones(3) * 5), _non_tensordict={"s": "old", "y": None})
    other = _blank()
    other.load_state_dict(old)
    assert other.x.tolist() == [5, 5, 5] and (other.s, other.y) == ("old", None)


def test_what_is_no_tensor_goes_in_as_it_is() -> None:
    lock = threading.Lock()
    full = _filled(words=lock)
    other = _blank()
    other.load_state_dict(full.state_dict())
    assert other.words is lock


@pytest.mark.parametrize("objects", [("a", "b"), ("a", "a")])
@pytest.mark.parametrize("size, dim", [([3], -1), ([1, 3], 0), ([0], 0)])
def test_a_lazy_stack_of_batches_loads_its_objects(size, dim, objects):
    members = [TensorDict({"x": torch.zeros(size), "s": NonTensorData(o, batch_size=size)}, size) for o in objects]
    stack = lazy_stack(members, dim)
    stack.load_state_dict(stack.state_dict())
    expected = lazy_stack(members, dim).get("s").tolist()
    other = lazy_stack([TensorDict({"x": torch.ones(size), "s": NonTensorData("z", batch_size=size)}, size)] * 2, dim)
    other = other.clone()
    other.load_state_dict(stack.state_dict())
    assert stack.get("s").tolist() == other.get("s").tolist() == expected
