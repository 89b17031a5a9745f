"""The mapping interface: what is in a collection, under which keys, and how entries come and go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_lite import NonTensorData, TensorDict, assert_close, default_is_leaf, is_leaf_nontensor, lazy_stack


@pytest.fixture
def td() -> TensorDict:
    return TensorDict(
        {"a": torch.zeros(3, 4), "b": {"d": {"e": torch.zeros(3)}, "c": torch.zeros(3, 1)}, "s": "text", "z": {}}, [3]
    )


def keys(td: TensorDict) -> list:
    return list(td.keys(True))


# -- views ------------------------------------------------------------------------------------------------------


def test_nested_keys_come_before_their_container(td):
    assert keys(td) == ["a", ("b", "d", "e"), ("b", "d"), ("b", "c"), "b", "s", "z"]


def test_items_come_after_their_container_and_sort_puts_it_first(td):
    assert [key for key, _ in td.items(True)] == ["a", "b", ("b", "d"), ("b", "d", "e"), ("b", "c"), "s", "z"]
    assert list(td.keys(True, sort=True)) == ["a", "b", ("b", "c"), ("b", "d"), ("b", "d", "e"), "s", "z"]


@pytest.mark.parametrize(
    ("is_leaf", "expected"),
    [
        (None, ["a", ("b", "d", "e"), ("b", "c")]),
        (default_is_leaf, ["a", ("b", "d", "e"), ("b", "c")]),
        (is_leaf_nontensor, ["a", ("b", "d", "e"), ("b", "c"), "s"]),
        (lambda cls: issubclass(cls, TensorDict), [("b", "d"), "b", "z"]),
    ],
)
def test_is_leaf_decides_what_leaves_only_lists(td, is_leaf, expected):
    view = td.keys(True, True, is_leaf=is_leaf)
    assert list(view) == expected
    assert len(view) == len(expected)
    assert len(list(td.values(True, True, is_leaf=is_leaf))) == len(expected)


def test_key_views_follow_later_changes(td):
    flat, nested, leaves = td.keys(), td.keys(True), td.keys(True, True)
    td["b", "new"] = torch.ones(3)
    td["top"] = torch.ones(3)
    assert "top" in flat and len(flat) == 5
    assert ("b", "new") in nested and len(nested) == len(list(nested)) == 9
    assert len(leaves) == len(list(leaves)) == 5


def test_membership_takes_nested_keys_in_any_spelling(td):
    assert ("b", ("d", ("e",))) in td and ("b", "nope") not in td and ("a", "q") not in td
    assert (("b",), "c") in td.keys(True) and ("b", "c") not in td.keys()
    with pytest.raises(RuntimeError, match="takes a key"):
        1 in td  # noqa: B015
    with pytest.raises(TypeError, match="strings"):
        1 in td.keys()  # noqa: B015


def test_flat_keys_are_a_set(td):
    assert td.keys() & {"a", "q"} == {"a"}
    assert td.keys() == {"a", "b", "s", "z"}


def test_views_of_a_lazy_stack_list_shared_keys(td):
    stack = lazy_stack([td, td.exclude("a")])
    assert sorted(stack.keys()) == ["b", "s", "z"]
    assert ("b", "c") in list(stack.keys(True, True))


# -- single entries -------------------------------------------------------------------------------------------------


def test_pop_removes_and_returns(td):
    assert td.pop(("b", "c")).shape == (3, 1)
    assert ("b", "c") not in td and "b" in td
    assert td.pop("nope", 5) == 5
    assert isinstance(td.pop("s"), NonTensorData)


def test_pop_names_what_is_missing_and_what_is_close(td):
    with pytest.raises(KeyError, match=r'"b\.q" not found.*Did you mean'):
        td.pop(("b", "q"))
    with pytest.raises(ValueError, match="'a' is a Tensor"):
        td.pop(("a", "q"))
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().pop("a")


def test_every_getter_gives_its_default_below_a_tensor(td):
    inner = TensorDict({"l": lazy_stack([TensorDict(a=torch.ones(n)) for n in (2, 3)])}, [2])
    for tree, key in ((td, ("a", "q")), (td, ("b", "c", "q", "r")), (inner, ("l", "a", "q")), (inner["l"], ("a", "q"))):
        assert key not in tree and key not in tree.keys(True)
        for read in (tree.get, tree.pop, tree.get_non_tensor, lambda key, default, t=tree: t.get_at(key, 0, default)):
            assert read(key, 5) == 5
        for read in (tree.get, tree.pop, tree.get_non_tensor, tree.get_item_shape, tree.entry_class, tree.del_):
            with pytest.raises(ValueError, match=r"is a Tensor, not a tensordict, so it has no entry"):
                read(key)
    with pytest.raises(KeyError, match="'s' is a NonTensorData"):
        td.pop(("s", "q"))


def test_popitem_takes_the_last_entry():
    td = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    assert td.popitem()[0] == "b"
    td.popitem()
    with pytest.raises(KeyError, match="empty"):
        td.popitem()


def test_setdefault_writes_only_what_is_missing(td):
    first = td.setdefault(("b", "n", "m"), torch.ones(3))
    assert td.setdefault(("b", "n", "m"), torch.zeros(3)) is first
    assert td.lock_().setdefault("a", None).shape == (3, 4)


def test_non_tensor_accessors(td):
    td.set_non_tensor(("b", "number"), 3)
    assert td["b", "number"] == 3 and td.is_non_tensor(("b", "number")) and not td.is_non_tensor("a")
    assert td.get_non_tensor("s") == "text" and td.get_non_tensor("nope", None) is None
    assert [key for key, _ in td.non_tensor_items(include_nested=True)] == [("b", "number"), "s"]
    with pytest.raises(KeyError):
        td.is_non_tensor("nope")


def test_entry_class_and_shape(td):
    assert td.entry_class("a") is torch.Tensor and td.entry_class("nope") is type(None)
    assert td.get_item_shape(("b", "c")) == (3, 1)


def test_create_nested_replaces_tensors_on_the_way_and_keeps_levels(td):
    td.create_nested(("b", "d", "u")).create_nested(("a", "v"))
    assert ("b", "d", "e") in td and ("b", "d", "u") in td
    assert td["a", "v"].batch_size == (3,)


# -- update -------------------------------------------------------------------------------------------------------


def test_update_merges_levels_and_shares_values(td):
    nested, value = td["b"], torch.ones(3)
    td.update({"b": {"d": {"f": value}}, ("b", "g"): value}, top=value)
    assert td["b"] is nested and td["b", "d", "f"] is value and td["top"] is value
    assert ("b", "d", "e") in td


@pytest.mark.parametrize("size", [(), (3,), (3, 2)])
def test_update_checks_the_whole_batch_size(size):
    td = TensorDict({}, size)
    good = torch.zeros(*size, 5)
    assert td.update({"a": good})["a"] is good
    for bad in [(), (3,), (3, 3), (2, 2)]:
        if torch.Size(bad[: len(size)]) != torch.Size(size):
            with pytest.raises(RuntimeError, match="'a'"):
                td.update({"a": torch.zeros(bad)})


def test_update_with_clone_shares_nothing():
    other = TensorDict({"q": torch.ones(3), "n": {"m": torch.ones(3)}}, [3])
    td = TensorDict({}, [3]).update(other, clone=True)
    assert td["q"] is not other["q"] and td["n"] is not other["n"] and td["n", "m"] is not other["n", "m"]


def test_update_inplace_keeps_storage_and_adds_new_keys(td):
    before = td["a"]
    td.update({"a": torch.ones(3, 4, dtype=torch.int64), "new": torch.ones(3)}, inplace=True)
    assert td["a"] is before and before.sum() == 12 and "new" in td


def test_update_restricted_to_keys(td):
    source = {"q": torch.ones(3), "b": {"u": torch.ones(3), "v": torch.ones(3)}}
    td.update(source, keys_to_update=["nope", ("b", "u")])
    assert ("b", "u") in td and ("b", "v") not in td and "q" not in td


def test_update_is_leaf_replaces_whole_levels(td):
    td.update({"b": TensorDict({"k": torch.ones(3)}, [3])}, is_leaf=lambda cls: issubclass(cls, TensorDict))
    assert list(td["b"].keys()) == ["k"]


def test_update_refuses_contradicting_batch_sizes_unless_told():
    td = TensorDict({"a": torch.zeros(3)}, [3])
    source = TensorDict({"a": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError, match="update_batch_size=True"):
        td.update(source)
    assert td.update(source, update_batch_size=True).batch_size == (2,)
    with pytest.raises(RuntimeError, match="missing from the source"):
        td.update(TensorDict({}, [5]), update_batch_size=True)


def test_update_of_a_locked_collection():
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3]).lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"a": torch.ones(3)})
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"n": {"new": torch.ones(3)}}, inplace=True)
    assert td.update({"n": {"b": torch.ones(3)}}, inplace=True)["n", "b"].sum() == 3


def test_update__writes_in_place_and_names_bad_entries(td):
    leaf = td["b", "c"]
    td.lock_().update_(TensorDict({"b": {"c": torch.ones(3, 1)}}, [3])).update_(a=1)
    assert td["b", "c"] is leaf and leaf.sum() == 3 and td["a"].sum() == 12
    with pytest.raises(KeyError, match=r"b\.q"):
        td.update_({"b": {"q": torch.ones(3)}})
    with pytest.raises(RuntimeError, match=r"\('b', 'c'\).*\[3, 1\]"):
        td.update_({"a": torch.zeros(3, 4), "b": {"c": torch.ones(2, 7)}})


def test_update__replaces_non_tensor_values_under_lock(td):
    assert td.lock_().update_({"s": "other"})["s"] == "other"


def test_update_at_writes_rows(td):
    td.update_at_({"a": torch.ones(4), "b": {"c": torch.ones(1)}}, 0)
    td.update_at_({"a": torch.full((2, 4), 2.0)}, torch.tensor([False, True, True]))
    assert td["a"].sum() == 4 + 16 and td["b", "c"].sum() == 1
    with pytest.raises(KeyError):
        td.update_at_({"q": torch.ones(4)}, 0)


def test_replace_leaves_the_original_alone(td):
    new = td.replace({"b": {"c": torch.ones(3)}}, a=torch.ones(3))
    assert new["a"].shape == (3,) and td["a"].shape == (3, 4) and td["b", "c"].shape == (3, 1)
    assert td.replace() is td
    with pytest.raises(RuntimeError, match="mapping"):
        td.replace([1])


# -- keys of the tree -----------------------------------------------------------------------------------------------


def test_select_keeps_the_asked_order_and_shares(td):
    part = td.lock_().select("s", ("b", "c"), "a")
    assert list(part.keys(True)) == ["s", ("b", "c"), "b", "a"]
    assert part["a"] is td["a"] and not part.is_locked
    assert td.select("b")["b"] is td["b"]


def test_select_strict_and_not(td):
    with pytest.raises(KeyError, match='"q"'):
        td.select("a", ("b", "q"))
    with pytest.raises(KeyError, match="not a tensordict"):
        td.select(("a", "q"))
    assert keys(td.select("q", ("b", "q"), ("b", "c"), strict=False)) == [("b", "c"), "b"]
    with pytest.raises(RuntimeError, match="one by one"):
        td.select(["a", "b"])


def test_select_and_exclude_in_place(td):
    nested = td["b"]
    assert td.select("a", ("b", "c"), inplace=True) is td
    assert keys(td) == ["a", ("b", "c"), "b"] and td["b"] is nested
    assert keys(td.exclude("a", ("b", "nope"), inplace=True)) == [("b", "c"), "b"]
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().exclude("b", inplace=True)


def test_exclude_keeps_emptied_levels(td):
    assert keys(td.exclude(("b", "c"), ("b", "d"), "s", "nope")) == ["a", "b", "z"]
    assert ("b", "c") in td


def test_rename_key_moves_entries(td):
    value = td["a"]
    td.rename_key_("a", ("b", "a")).rename_key_("b", ("b", "inner"))
    assert td["b", "inner", "a"] is value and "a" not in td
    with pytest.raises(KeyError, match="safe=True"):
        td.rename_key_("z", "s", safe=True)
    with pytest.raises(TypeError):
        td.rename_key_("z", 1)


def test_rename_keys_swaps_chains_and_drops_emptied_levels():
    td = TensorDict(a=torch.tensor(0), b=torch.tensor(1), n=TensorDict(c=torch.tensor(2)))
    out = td.rename_keys({"a": "b", "b": "a", ("n", "c"): "c"})
    assert (out["a"], out["b"], out["c"]) == (1, 0, 2) and "n" not in out and ("n", "c") in td


@pytest.mark.parametrize(
    ("mapping", "error"),
    [
        ({"a": "x", "b": "x"}, ValueError),
        ({"n": "x", ("n", "c"): "y"}, ValueError),
        ({"a": "x", "b": ("x", "y")}, ValueError),
        ({"a": "b"}, ValueError),
        ({"a": ("b", "q")}, ValueError),
        ({"q": "x"}, KeyError),
    ],
)
def test_rename_keys_refuses_ambiguous_mappings(mapping, error):
    td = TensorDict(a=torch.tensor(0), b=torch.tensor(1), n=TensorDict(c=torch.tensor(2)))
    with pytest.raises(error):
        td.rename_keys(mapping)


def test_split_keys_by_list_mapping_and_function(td):
    one, two, three, rest = td.split_keys(["a"], {("b", "c"): "renamed"}, lambda path, leaf: path[-1] == "e")
    assert keys(one) == ["a"] and keys(two) == ["renamed"]
    assert keys(three) == [("b", "d", "e"), ("b", "d"), "b"] and keys(rest) == ["s"]
    assert "a" in td
    *_, same = td.split_keys(["a"], inplace=True)
    assert same is td and "a" not in td


def test_split_keys_default_and_structure(td):
    part, rest = td.split_keys(["q", "a"], strict=False, default=torch.ones(3), reproduce_struct=True)
    assert set(part.keys()) == {"b", "z", "q", "a"} and "z" in rest
    with pytest.raises(KeyError):
        td.split_keys(["q"])


def test_separates_takes_entries_out(td):
    part = td.separates("a", ("b", "c"))
    assert set(part.keys(True, True)) == {"a", ("b", "c")}
    assert set(td.keys(True, True)) == {("b", "d", "e")} and "z" not in td


def test_flatten_and_unflatten_are_inverse(td):
    flat = td.flatten_keys(".")
    assert list(flat.keys()) == ["a", "b.d.e", "b.c", "s"] and flat["b.c"] is td["b", "c"]
    assert_close(flat.unflatten_keys("."), td.exclude("z"))
    assert list(td.flatten_keys("/", inplace=True).keys()) == ["a", "s", "b/d/e", "b/c"]


def test_flatten_and_unflatten_report_collisions():
    with pytest.raises(KeyError, match=r"a\.b"):
        TensorDict({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}}).flatten_keys(".")
    for order in (("a.b", "a"), ("a", "a.b")):
        with pytest.raises(KeyError, match="a"):
            TensorDict(dict.fromkeys(order, torch.zeros(1))).unflatten_keys(".")


def test_unflatten_does_not_touch_levels_of_the_origin():
    td = TensorDict({"a": {"c": torch.zeros(1)}, "a.b": torch.ones(1)})
    assert set(td.unflatten_keys(".")["a"].keys()) == {"c", "b"}
    assert set(td["a"].keys()) == {"c"}


def test_flatten_as_context_writes_back(td):
    with td.flatten_keys(".") as flat:
        flat["b.new"] = torch.ones(3)
        flat["a"] += 1
    assert td["b", "new"].sum() == 3 and td["a"].sum() == 12
    with td.lock_().flatten_keys(".") as flat:
        flat["a"] += 1
    assert td["a"].sum() == 24
    flat = TensorDict({"x.y": torch.zeros(1)})
    with flat.unflatten_keys(".") as tree:
        tree["x", "z"] = torch.ones(1)
    assert set(flat.keys()) == {"x.y", "x.z"}


def test_filters(td):
    assert "s" not in td.filter_non_tensor_data() and "s" in td
    assert "z" not in td.filter_empty_()
    assert TensorDict(a=TensorDict(s="x")).filter_empty_()["a", "s"] == "x"


def test_empty_keeps_metadata():
    td = TensorDict(
        {"a": torch.zeros(3), "n": {"b": torch.zeros(3)}, "s": "x"}, [3], names=["row"], device="cpu"
    ).lock_()
    new = td.empty(recurse=True)
    assert set(new.keys()) == {"n", "s"} and new.names == ["row"] and new.device == td.device and not new.is_locked
    assert new.is_empty() is False and td.empty().is_empty()
    other = td.empty(batch_size=[2, 2], device=None, names=["a", "b"])
    assert other.batch_size == (2, 2) and other.device is None and other.names == ["a", "b"]
    with pytest.raises(RuntimeError, match="does not start with it"):
        td.empty(recurse=True, batch_size=[7])


def test_depth_counts_levels_with_leaves(td):
    assert td.depth == 2 and TensorDict(a=TensorDict()).depth == 0


# -- entries joined, metadata read off ------------------------------------------------------------------------------


def test_cat_and_stack_tensors_replace_their_sources():
    td = TensorDict({"a": torch.zeros(3, 2), "b": torch.ones(3, 1), "c": torch.ones(3, 2)}, [3])
    td.cat_tensors("a", "b", out_key=("n", "ab"), dim=1, keep_entries=True)
    td.stack_tensors("a", "c", out_key="a", dim=-1)
    assert td["n", "ab"].shape == (3, 3) and td["a"].shape == (3, 2, 2) and "c" not in td and "b" in td


def test_failed_join_changes_nothing():
    td = TensorDict({"a": torch.zeros(3, 2), "b": torch.ones(3, 2)}, [3])
    with pytest.raises(RuntimeError):
        td.stack_tensors("a", "b", out_key="c", dim=0)
    with pytest.raises(KeyError):
        td.cat_tensors("a", "q", out_key="c")
    assert list(td.keys()) == ["a", "b"]


def test_all_leaves_into_one_tensor():
    td = TensorDict({"b": torch.zeros(2), "a": torch.ones(2), "n": {"c": torch.full((2,), 2.0)}}, [2])
    assert td.stack_from_tensordict(1)[0].tolist() == [0, 1, 2]
    assert td.stack_from_tensordict(1, sorted=True)[0].tolist() == [1, 0, 2]
    assert td.cat_from_tensordict(0, sorted=[("n", "c"), "a", "b"]).tolist() == [2, 2, 1, 1, 0, 0]
    with pytest.raises(RuntimeError, match="every leaf"):
        td.cat_from_tensordict(0, sorted=["a"])


def test_auto_batch_size():
    td = TensorDict({"a": torch.zeros(3, 4, 5), "b": {"c": torch.zeros(3, 4, 6)}, "s": "x", "z": {}})
    td.auto_batch_size_()
    assert td.batch_size == (3, 4) and td["b"].batch_size == (3, 4, 6) and td.get("s").batch_size == (3, 4)
    td.auto_batch_size_(1)
    assert td.batch_size == td["b"].batch_size == (3,)


def test_auto_and_clear_device():
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2)}}, [2])
    assert td.auto_device_()["n"].device == torch.device("cpu")
    assert td.clear_device_()["n"].device is None
    td["m"] = torch.zeros(2, device="meta")
    assert td.auto_device_().device is None


@pytest.mark.parametrize("index", [["a", "b"], ["a"], (0, ["a", "b"])])
def test_a_list_of_names_says_how_entries_are_selected(index: Any) -> None:
    td = TensorDict({"a": torch.zeros(3, 2), "b": torch.zeros(3, 2)}, [3, 2])
    with pytest.raises(TypeError, match=r"td\.select\('a'"):
        td[index]


@pytest.mark.parametrize("old", ["b", ("b", "c"), "s"])
def test_a_key_that_has_no_place_under_its_new_name_stays(td: TensorDict, old: Any) -> None:
    stack = lazy_stack([td.clone(), td.clone()])
    for each in (td, stack):
        before = each.clone()
        with pytest.raises(KeyError, match="'a'"):
            each.rename_key_(old, ("a", "q"))
        assert set(each.keys(True, True)) == set(before.keys(True, True)) and (each == before).all()
        assert each["s"] == before["s"]
