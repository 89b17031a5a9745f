"""Collections as other things, copies, state dicts, pytrees, and comparison."""

from __future__ import annotations

import collections
import copy
import functools
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate

import tensordict_lite as tdl
import tensordict_lite.utils
from tensordict_lite import NonTensorData, NonTensorStack, TensorDict, assert_close, lazy_stack, tensorclass

Pair = collections.namedtuple("Pair", ["a", "b"])


@tensorclass
class Point:
    x: torch.Tensor
    tag: str = "none"


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"a": torch.arange(6.0).view(3, 2), "b": {"c": torch.ones(3)}, "s": "text"}, [3], names=["row"])


@pytest.fixture
def tensors(td) -> TensorDict:
    return td.exclude("s")


def test_to_dict_forms(td):
    assert td.to_dict()["b"]["c"] is td["b", "c"] and td.to_dict()["s"] == "text"
    assert td.to_dict(convert_tensors=True)["a"] == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(td.to_dict(convert_tensors="numpy")["b"]["c"], np.ndarray)
    assert td.to_dict(tolist_first=True)["b"][0].keys() == {"c"}
    assert TensorDict(a=None, b=1).to_dict(retain_none=False).keys() == {"b"}


def test_tolist_forms(td):
    rows = td.tolist(convert_tensors=True)
    assert rows[1] == {"a": [2.0, 3.0], "b": {"c": 1.0}, "s": "text"}
    assert td.tolist(convert_nodes=False)[2]["a"].tolist() == [4, 5]
    assert TensorDict({"a": torch.zeros(1, 2)}, [1, 2]).tolist(convert_tensors=True) == [[{"a": 0.0}, {"a": 0.0}]]
    with pytest.raises(TypeError, match="convert_nodes"):
        td.tolist(convert_tensors=True, convert_nodes=False)


def test_linked_list_writes_back(td):
    rows = td.tolist(as_linked_list=True)
    rows[0] = {"a": torch.full((2,), 9.0)}
    assert td["a"][0].tolist() == [9, 9]


def test_numpy_shares_memory(td):
    td.numpy()["a"][0, 0] = 7
    assert td["a"][0, 0] == 7
    with pytest.raises(RuntimeError, match="grad"):
        TensorDict(a=torch.ones(1, requires_grad=True)).numpy()


def test_named_tuples(tensors):
    generic = tensors.to_namedtuple()
    assert type(generic).__name__ == "GenericDict" and generic.b.c.sum() == 3
    chosen = tensors.to_namedtuple(Pair)
    assert type(chosen) is Pair and type(chosen.b).__name__ == "GenericDict"
    with pytest.raises(ValueError, match="a b"):
        TensorDict({"a b": torch.zeros(1)}).to_namedtuple()


def test_to_tensordict_copies_and_unlocks():
    source = TensorDict(
        {"p": Point(torch.ones(3), batch_size=[3]), "l": lazy_stack([TensorDict(a=1)] * 3)}, [3]
    ).lock_()
    plain = source.to_tensordict()
    assert type(plain["p"]) is TensorDict and type(plain["l"]) is TensorDict and not plain.is_locked
    assert plain["p", "x"] is not source["p"].x


def test_struct_array_of_nested_and_text(td):
    array = td.to_struct_array()
    assert array.dtype["s"] == np.dtype("U10") and array["b"]["c"].tolist() == [1, 1, 1] and array["a"].shape == (3, 2)
    words = TensorDict({"s": NonTensorStack("ab", "c" * 15)}, [2]).to_struct_array()
    assert words["s"].tolist() == ["ab", "c" * 15]


def test_to_lazystack_gives_views(tensors):
    stack = tensors.to_lazystack(0)
    stack[1]["a"].zero_()
    assert tensors["a"][1].sum() == 0 and stack.to_lazystack(0) is stack
    assert tensors.densify() is tensors
    assert type(TensorDict({"l": stack}, [3]).densify()["l"]) is TensorDict


# -- pytrees ----------------------------------------------------------------------------------------------------


def test_pytree_round_trip_keeps_every_type():
    tree = {"a": [torch.zeros(2), (1, "s")], "p": Pair(torch.ones(2), None), 3: {"k": []}}
    td = TensorDict.from_pytree(tree)
    again = td.to_pytree()
    assert type(again["a"]) is list and type(again["a"][1]) is tuple and again["a"][1][1] == "s"
    assert type(again["p"]) is Pair and again["p"].b is None and again[3] == {"k": []}
    assert TensorDict.from_pytree([torch.zeros(2, 3), torch.ones(2)], auto_batch_size=True).batch_size == (2,)


def test_tree_map_follows_the_shape_of_the_results(td):
    out = _pytree.tree_map(lambda x: x + 1, td)
    assert out["s"] == "text" and out.names == ["row"] and out["a"].sum() == 21
    assert _pytree.tree_map(lambda x: x[0], td).batch_size == ()
    assert _pytree.tree_map(torch.sum, td)["b"].batch_size == ()
    assert _pytree.tree_map(lambda x: x[None], td).batch_size == (1, 3)
    assert len(_pytree.tree_leaves(td)) == 2
    assert _pytree.tree_leaves(NonTensorData("x")) == []


def test_tree_map_keeps_classes():
    point = Point(torch.ones(3), tag="t", batch_size=[3])
    assert type(_pytree.tree_map(lambda x: x * 2, point)) is Point
    ragged = lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3))])
    assert [m["a"].sum() for m in _pytree.tree_map(lambda x: x + 1, ragged).tensordicts] == [2, 3]
    assert (
        type(_pytree.tree_map(lambda x: x + 1, lazy_stack([TensorDict(a=1)] * 2))).__name__ == "LazyStackedTensorDict"
    )


def test_vmap_maps_a_batch_dimension():
    td = TensorDict(
        {"a": torch.arange(12.0).view(3, 4), "n": {"b": torch.ones(3, 4, 5)}, "s": "x"}, [3, 4], names=["x", "y"]
    )
    seen = []

    def step(row):
        seen.append((row.batch_size, row["n"].batch_size, row.names, row["s"]))
        return row + 1

    assert_close(torch.vmap(step)(td), td + 1)
    out = torch.vmap(step, in_dims=1, out_dims=1)(td)
    assert out.batch_size == (3, 4) and out.names == ["x", None]
    assert seen == [((4,), (4,), ["y"], "x"), ((3,), (3,), ["x"], "x")]
    assert torch.vmap(lambda row, w: row["a"].sum() * w, (0, None))(td, 2.0).tolist() == [12, 44, 76]


def test_vmap_over_tensorclasses_and_lazy_stacks():
    point = Point(torch.arange(3.0), batch_size=[3])
    assert torch.vmap(lambda p: p + 1)(point).x.tolist() == [1, 2, 3]
    stack = lazy_stack([TensorDict({"a": torch.full((3,), float(i))}, [3]) for i in range(2)])
    assert torch.vmap(lambda m: m["a"].sum())(stack).tolist() == [0, 3]


@pytest.mark.parametrize(
    "fn",
    [
        lambda v: v + 1,
        lambda v: v.apply(lambda x: x * 2).select("a"),
        lambda v: v.set("n", v["a"] * 2),
        lambda v: v.update({"a": v["a"] + 1}),
        lambda v: v.flatten_keys(".").unflatten_keys("."),
        lambda v: torch.stack([v[0], v[1].clone()]),
        lambda v: TensorDict({"a": v["a"], "b": {"c": v["b", "c"]}}, [3]).exclude("a").lock_(),
    ],
)
def test_compile_sees_through(fn):
    td = TensorDict({"a": torch.arange(3.0), "b": {"c": torch.ones(3)}}, [3])
    compiled = torch.compile(fn, backend="eager", fullgraph=True)
    assert_close(compiled(td.clone()), fn(td.clone()))


# -- copies ------------------------------------------------------------------------------------------------------


def through_torch(value, **kwargs):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


@pytest.mark.parametrize(
    "copied",
    [
        lambda v: pickle.loads(pickle.dumps(v)),
        copy.deepcopy,
        functools.partial(through_torch, weights_only=False),
        functools.partial(through_torch, weights_only=True),
    ],
)
def test_deep_copies_share_nothing(td, copied):
    new = copied(td)
    assert_close(new, td)
    assert new["a"].data_ptr() != td["a"].data_ptr() and new["b"] is not td["b"]
    assert new.names == ["row"] and new["s"] == "text" and new.batch_size == (3,)


def test_deepcopy_copies_objects_and_keeps_shared_tensors_shared():
    leaf, payload = torch.zeros(3), {"k": [1]}
    td = TensorDict({"a": leaf, "b": {"again": leaf}, "o": payload_of(payload)}, [3])
    new = copy.deepcopy(td)
    new["o"]["k"].append(2)
    assert payload == {"k": [1]} and new["a"] is new["b", "again"] and new["a"] is not leaf
    stack = lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3))])
    copied = copy.deepcopy(stack)
    assert type(copied) is type(stack) and copied[0]["a"].data_ptr() != stack[0]["a"].data_ptr()


def payload_of(value):
    return NonTensorData(value, batch_size=[3])


def test_copies_and_locks(td):
    td.lock_()
    assert pickle.loads(pickle.dumps(td)).is_locked and not copy.copy(td).is_locked and not copy.deepcopy(td).is_locked
    assert copy.copy(td)["a"] is td["a"] and copy.copy(td)["b"] is not td["b"]


# -- state dicts -----------------------------------------------------------------------------------------------------


def test_state_dict_round_trip(td):
    state = td.state_dict()
    assert list(state) == ["a", "b.c"] and state._metadata["b"]["batch_size"] == (3,)
    assert list(td.state_dict(prefix="p.")) == ["p.a", "p.b.c"]
    for flatten in (True, False):
        new = td.clone()
        new["a"].zero_(), new.set("s", "other")
        leaf = new["a"]
        new.lock_().load_state_dict(td.state_dict(flatten=flatten))
        assert new["a"] is leaf and new["s"] == "text"
        assert_close(new, td)


def test_load_state_dict_checks_keys_and_takes_the_batch_size(tensors):
    state = tensors.state_dict()
    with pytest.raises(RuntimeError, match=r"extra keys \['a'\]"):
        tensors.exclude("a").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"lacks the keys \['a'\]"):
        tensors.clone().load_state_dict(tensors.exclude("a").state_dict())
    assert "a" in tensors.exclude("a").load_state_dict(state, strict=False)
    flat = TensorDict({"a": torch.zeros(3, 2), "b": {"c": torch.zeros(3)}})
    assert flat.load_state_dict(state).batch_size == flat["b"].batch_size == (3,)
    assert flat.load_state_dict(state, assign=True)["a"] is state["a"]


def test_state_dict_refuses_ambiguous_keys():
    td = TensorDict({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    with pytest.raises(KeyError, match="flatten=False"):
        td.state_dict()
    again = td.apply(torch.ones_like)
    again.load_state_dict(td.state_dict(flatten=False))
    assert (again == td).all() and again["a", "b"].item() == 0


# -- comparison, merging, batches ------------------------------------------------------------------------------------


def test_assert_close_names_the_key(tensors):
    other = tensors.clone()
    other["b", "c"] += 0.5
    with pytest.raises(AssertionError, match=r"\('b', 'c'\).*mse = 0.5000"):
        assert_close(tensors, other)
    assert assert_close(tensors, other, atol=1.0, rtol=0)
    with pytest.raises(KeyError, match=r"below \('b',\).*\['c'\]"):
        assert_close(tensors, tensors.exclude(("b", "c")))
    assert assert_close(tensors, tensors.exclude("a"), intersection=True)
    with pytest.raises(AssertionError, match="dtype"):
        assert_close(tensors, tensors.to(torch.float64))
    with pytest.raises(TypeError):
        assert_close(tensors, {})
    with pytest.raises(RuntimeError, match=r"\[3\] and \[2\]"):
        assert_close(TensorDict(a=torch.zeros(3)), TensorDict(a=torch.zeros(2)))


def test_merge_prefers_the_first_and_combines_on_request():
    one = TensorDict(x=torch.tensor(0), n=TensorDict(y=torch.tensor(1)))
    two = TensorDict(x=torch.tensor(5), n=TensorDict(y=torch.tensor(6), z=torch.tensor(7)))
    merged = tdl.merge_tensordicts(one, two)
    assert merged["x"] == 0 and set(merged["n"].keys()) == {"y", "z"} and set(one["n"].keys()) == {"y"}
    summed = tdl.merge_tensordicts(one, two, callback_exist={("n", "y"): lambda *v: sum(v)})
    assert summed["n", "y"] == 7 and summed["x"] == 0
    with pytest.raises(RuntimeError, match="two"):
        tdl.merge_tensordicts(one)


def test_collate_in_a_data_loader():
    samples = [(TensorDict(x=torch.full((2,), float(i))), i) for i in range(5)]
    td, labels = next(iter(DataLoader(samples, batch_size=4, collate_fn=tdl.collate)))
    assert td.batch_size == (4,) and labels.tolist() == [0, 1, 2, 3]
    assert tdl.collate([{"k": torch.zeros(2)}, {"k": torch.ones(2)}])["k"].shape == (2, 2)
    assert tdl.collate(td) is td


def test_data_loader_without_a_collate_function_stacks_samples(td):
    """As with the package tensordict: rows, tensorclasses, ragged rows, and collections within tuples and dicts."""
    batches = list(DataLoader(td, batch_size=2))
    assert [batch.batch_size for batch in batches] == [(2,), (1,)]
    assert (
        all(type(batch) is TensorDict for batch in batches)
        and (torch.cat(batches).exclude("s") == td.exclude("s")).all()
    )
    points = default_collate([Point(x=torch.ones(2), tag="a"), Point(x=torch.zeros(2), tag="b")])
    assert type(points) is Point and points.batch_size == (2,) and points.tag == ["a", "b"]
    ragged = default_collate([TensorDict(x=torch.zeros(2)), TensorDict(x=torch.zeros(3))])
    assert isinstance(ragged, tdl.LazyStackedTensorDict) and ragged[1]["x"].shape == (3,)
    pairs, numbers = default_collate([(td[0], 1), (td[1], 2)])
    assert pairs["b", "c"].shape == (2,) and numbers.tolist() == [1, 2]
    assert default_collate([{"rows": td[0]}, {"rows": td[2]}])["rows"]["a"].tolist() == [[0, 1], [4, 5]]


def test_collate_pads_masks_and_nests():
    samples = [
        TensorDict(ids=torch.ones(n, dtype=torch.long), points=torch.randn(n + 1, 3), score=torch.tensor(float(n)))
        for n in (2, 3)
    ]
    batch = tdl.collate(samples, pad_keys={"ids": 7}, nested_keys=["points"], mask_key="mask")
    assert batch["ids"].tolist() == [[1, 1, 7], [1, 1, 1]] and batch["mask", "ids"].sum() == 5
    assert batch["points"].is_nested and batch["score"].tolist() == [2, 3]
    loader = DataLoader(
        tdl.lazy_stack(samples),
        batch_size=2,
        collate_fn=functools.partial(tdl.collate, pad_keys={"ids": 7, "points": 0}),
    )
    assert next(iter(loader))["ids"].tolist() == [[1, 1, 7], [1, 1, 1]]
    with pytest.raises(KeyError, match="'q'"):
        tdl.collate(samples, pad_keys={"q": 0})
    for options in ({"mask_key": "m"}, {"pad_keys": {"ids": 0}, "nested_keys": ["ids"]}, {"nested_keys": ["ids"]}):
        with pytest.raises(ValueError):
            tdl.collate(samples, **options)


def test_what_is_converted_is_not_linked_to_the_collection() -> None:
    td = TensorDict({"s": ["a", "b"], "n": TensorDict({"deep": [["a", "b"], ["c", "d"]]}, [2])}, [2])
    for found in (td.to_dict(), td.numpy(), td.to_namedtuple()._asdict()):
        nested = found["n"] if isinstance(found["n"], dict) else found["n"]._asdict()
        assert type(found["s"]) is list and type(nested["deep"][0]) is list
        found["s"][0] = nested["deep"][0][0] = "changed"
    assert td["s"] == ["a", "b"] and td["n", "deep"] == [["a", "b"], ["c", "d"]]


def test_a_deep_copy_of_a_tensor_that_is_there_twice_is_there_twice() -> None:
    x = torch.ones(3)
    copied = copy.deepcopy(TensorDict(a=x, n=TensorDict(b=x)))
    assert copied["a"] is copied["n", "b"] and copied["a"] is not x
    alone, pair = copy.deepcopy([x, TensorDict(a=x)])
    assert pair["a"] is alone


def test_words_of_a_configuration_are_bools() -> None:
    reference = pytest.importorskip("tensordict.utils")

    def answer(library: Any, word: Any) -> Any:
        try:
            return library.strtobool(word)
        except Exception as error:
            return type(error)

    for word in ("yes", "Y", "t", "True", "on", "1", "no", "N", "f", "false", "OFF", "0", "", " yes", "maybe", True):
        assert answer(tensordict_lite.utils, word) == answer(reference, word), word
