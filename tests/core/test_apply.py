"""Functions over the leaves of one or several trees."""

from __future__ import annotations

import pytest
import torch

from tensordict_lite import TensorDict, assert_close, is_leaf_nontensor, lazy_stack


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 4), "b": {"c": torch.ones(3, 1), "d": {"e": torch.ones(3)}}, "s": "x"}, [3])


def increment(x):
    return x + 1


def test_apply_keeps_the_tree_names_and_device():
    td = TensorDict({"a": torch.zeros(3)}, [3], names=["row"], device="cpu").lock_()
    out = td.apply(increment)
    assert out["a"].sum() == 3 and out.names == ["row"] and out.device == td.device and not out.is_locked
    assert td.apply(increment, propagate_lock=True).is_locked


def test_several_inputs_and_defaults(td):
    assert_close(td.apply(lambda x, y: x + 2 * y, td), td * 3)
    with pytest.raises(KeyError, match='"b"'):
        td.apply(lambda x, y: x + y, td.exclude("b"))
    out = td.apply(lambda x, y: x if y is None else x + y, td.exclude("b"), default=None)
    assert out["b", "c"].sum() == 3


def test_none_drops_entries_and_emptied_levels(td):
    out = td.apply(lambda x: x if x.ndim == 2 and x.shape[1] == 4 else None)
    assert list(out.keys(True)) == ["a", "s"]
    kept = td.apply(lambda x: None, filter_empty=False)
    assert list(kept.keys(True)) == [("b", "d"), "b", "s"]


@pytest.mark.parametrize(("filter_empty", "is_none"), [(None, True), (True, True), (False, False)])
def test_result_is_none_when_nothing_is_left(td, filter_empty, is_none):
    out = td.exclude("s").apply(lambda x: None, filter_empty=filter_empty)
    assert (out is None) == is_none


def test_levels_that_were_empty_stay_unless_filtered():
    td = TensorDict({"a": torch.zeros(3), "z": {}}, [3])
    assert "z" in td.apply(increment) and "z" not in td.apply(increment, filter_empty=True)
    assert TensorDict({}, [3]).apply(increment).batch_size == (3,)


def test_new_batch_size_reaches_every_level(td):
    out = td.apply(lambda x: x[0], batch_size=[])
    assert out.batch_size == out["b", "d"].batch_size == out.get("s").batch_size == ()
    with pytest.raises(RuntimeError, match="key 'a'"):
        td.apply(lambda x: x[:2])
    assert td.apply(lambda x: x[:2], batch_size=[2])["b", "c"].shape == (2, 1)


def test_device_of_the_result(td):
    out = td.apply(increment, device="meta")
    assert out.device == out["b"].device == out["b", "c"].device == torch.device("meta")
    assert td.to("cpu").apply(increment, device=None).device is None


def test_inplace_writes_into_the_leaves(td):
    leaf = td["b", "c"]
    assert td.lock_().apply_(lambda x: None if x.ndim == 1 else x * 5) is td
    assert td["b", "c"] is leaf and leaf.sum() == 15 and td["b", "d", "e"].sum() == 3
    with pytest.raises(RuntimeError, match="shape"):
        td.apply(lambda x: x[:2], inplace=True)


def test_out_receives_the_results(td):
    out = TensorDict({"other": torch.zeros(3)}, [3])
    assert td.apply(increment, out=out) is out
    assert set(out.keys()) == {"other", "a", "b", "s"} and out["b", "d", "e"].sum() == 6
    with pytest.raises(RuntimeError, match="batch size of `out`"):
        td.apply(increment, out=out, batch_size=[])


def test_is_leaf_and_call_on_nested_choose_the_arguments(td):
    seen = []
    td.apply(lambda x: seen.append(type(x).__name__), is_leaf=is_leaf_nontensor)
    assert seen == ["Tensor", "Tensor", "Tensor", "NonTensorData"]
    seen.clear()
    td.apply(lambda x: seen.append(type(x).__name__), call_on_nested=True)
    assert seen == ["Tensor", "TensorDict", "NonTensorData"]


def test_named_apply_passes_names_or_paths(td):
    names, paths = [], []
    td.named_apply(lambda key, x: names.append(key))
    td.named_apply(lambda key, x, y: paths.append(key), td, nested_keys=True)
    assert names == ["a", "c", "e"] and paths == ["a", ("b", "c"), ("b", "d", "e")]
    assert list(td.named_apply(lambda key, x: x if key == "c" else None).keys(True, True)) == [("b", "c")]


def test_results_of_other_types_become_entries(td):
    out = td.apply(lambda x: {"twice": x * 2})
    assert out["b", "c", "twice"].sum() == 6
    assert td.apply(lambda x: "word")["a"] == "word"


def test_errors_of_the_function_pass_through(td):
    with pytest.raises(ZeroDivisionError):
        td.apply(lambda x: 1 / 0)


def test_unknown_arguments_warn(td):
    with pytest.warns(FutureWarning, match="typo"):
        td.apply(increment, typo=1)


def test_apply_on_lazy_stacks_and_levels():
    stack = lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3))])
    assert [member["a"].sum().item() for member in stack.apply(increment).tensordicts] == [2, 3]
    td = TensorDict({"n": lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(2))])}, [2])
    assert td.apply(increment)["n"]["a"].sum() == 4
    assert td.apply(lambda x, y: x + y + 1, td)["n"]["a"].sum() == 4
