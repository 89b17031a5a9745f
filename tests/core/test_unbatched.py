"""``UnbatchedTensor``: one tensor for the whole batch, left alone by what changes the batch."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import DatasetWriter, TensorDict, UnbatchedTensor, assert_close, lazy_stack, tensorclass

RAW = torch.arange(77.0).view(7, 11)


@tensorclass
class Item:
    a: torch.Tensor
    u: torch.Tensor


@tensorclass(tensor_only=True)
class Tensors:
    a: torch.Tensor
    u: torch.Tensor


def _tree() -> TensorDict:
    nested = TensorDict({"v": UnbatchedTensor(RAW), "b": torch.zeros(3, 4, 2)}, [3, 4])
    return TensorDict({"a": torch.zeros(3, 5), "u": UnbatchedTensor(RAW), "n": nested}, [3])


SHAPES: dict[str, Callable[[Any], Any]] = {
    "index": lambda td: td[0],
    "slice": lambda td: td[1:],
    "mask": lambda td: td[torch.tensor([True, False, True])],
    "rows": lambda td: td[torch.tensor([0, 0, 2, 1])],
    "None": lambda td: td[None],
    "reshape": lambda td: td.reshape(3, 1),
    "view": lambda td: td.view(1, -1),
    "expand": lambda td: td.expand(2, 3),
    "permute": lambda td: td.unsqueeze(0).permute(1, 0),
    "squeeze": lambda td: td[:1].squeeze(0),
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "split": lambda td: td.split(2)[0],
    "chunk": lambda td: td.chunk(2)[1],
    "unbind": lambda td: td.unbind(0)[1],
    "gather": lambda td: td.gather(0, torch.tensor([1])),
    "masked_select": lambda td: td.masked_select(torch.tensor([True, False, True])),
    "repeat": lambda td: td.repeat(2),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "pad": lambda td: td.pad([1, 1]),
    "narrow": lambda td: td.narrow(0, 0, 2),
    "stack": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td]),
    "lazy_stack": lambda td: lazy_stack([td, td]),
    "lazy, rows": lambda td: lazy_stack([td, td])[:, 1:],
    "lazy, dense": lambda td: lazy_stack([td, td]).contiguous(),
    "to_lazystack": lambda td: td.to_lazystack(0),
    "select": lambda td: td.select("u", ("n", "v")),
    "flatten_keys": lambda td: td.flatten_keys(".").unflatten_keys("."),
    "copy": lambda td: td.copy(),
    "sum": lambda td: td.sum(0),
    "sum all": lambda td: td.sum(),
    "mean, keepdim": lambda td: td.mean(0, keepdim=True),
    "amax": lambda td: td.amax(0),
    "norm": lambda td: td.norm(),
    "masked_fill": lambda td: td.masked_fill(torch.tensor([True, False, True]), 1),
    "where": lambda td: td.where(torch.tensor([True, False, True]), td),
    "new_zeros": lambda td: td.new_zeros(4),
    "batch_size": lambda td: setattr(td, "batch_size", []) or td,
    "filter": lambda td: td.filter_non_tensor_data(),
    "detach": lambda td: td.detach(),
    "lock": lambda td: td.lock_(),
    "to": lambda td: td.to("cpu"),
    "contiguous": lambda td: td.contiguous(),
    "data": lambda td: td.data,
    "apply, new batch": lambda td: td.apply(lambda x: x[0], batch_size=[]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_changes_the_batch_shares_the_tensor_unchanged(name: str) -> None:
    td = _tree()
    out = SHAPES[name](td)
    for key in ("u", ("n", "v")):
        for found in (out[key], out.get(key)):
            assert type(found) is UnbatchedTensor and found.shape == (7, 11), key
            assert found.data_ptr() == RAW.data_ptr(), key
            level = out if key == "u" else out["n"]
            assert found.batch_size[: level.batch_dims] == level.batch_size
    assert td["u"].shape == (7, 11)


VALUES: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "+": (lambda td: td + 1, lambda x: x + 1),
    "+ itself": (lambda td: td + td, lambda x: x + x),
    "+ scalar tensor": (lambda td: td + torch.tensor(2.0), lambda x: x + 2),
    "mul": (lambda td: td.mul(3), lambda x: x * 3),
    "neg": (lambda td: -td, lambda x: -x),
    "abs": (lambda td: td.abs(), lambda x: x.abs()),
    "clamp": (lambda td: td.clamp(1, 5), lambda x: x.clamp(1, 5)),
    "lerp": (lambda td: td.lerp(td + 2, 0.5), lambda x: x + 1),
    "==": (lambda td: td == 3, lambda x: x == 3),
    "== itself": (lambda td: td == td, lambda x: x == x),
    ">": (lambda td: td > 4, lambda x: x > 4),
    "apply": (lambda td: td.apply(lambda x: x * 2), lambda x: x * 2),
    "apply, two": (lambda td: td.apply(lambda x, y: x + y, td), lambda x: x + x),
    "named_apply": (lambda td: td.named_apply(lambda key, x: x + 1), lambda x: x + 1),
    "double": (lambda td: td.double(), lambda x: x.double()),
    "to": (lambda td: td.to(torch.int32), lambda x: x.to(torch.int32)),
    "clone": (lambda td: td.clone(), lambda x: x),
    "to_tensordict": (lambda td: td.to_tensordict(), lambda x: x),
    "deepcopy": (copy.deepcopy, lambda x: x),
    "pickle": (lambda td: pickle.loads(pickle.dumps(td)), lambda x: x),
    "zeros_like": (torch.zeros_like, torch.zeros_like),
    "softmax": (lambda td: td.softmax(0), lambda x: x.softmax(0)),
    "isnan": (lambda td: td.isnan(), torch.isnan),
    "tree_map": (lambda td: torch.utils._pytree.tree_map(lambda x: x * 2, td), lambda x: x * 2),
    "lazy +": (lambda td: lazy_stack([td, td]) + 1, lambda x: x + 1),
    "lazy apply": (lambda td: lazy_stack([td, td]).apply(lambda x: x * 2), lambda x: x * 2),
    "lazy clone": (lambda td: lazy_stack([td, td]).clone(), lambda x: x),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.filterwarnings("ignore:Stacking UnbatchedTensors")
def test_what_changes_values_changes_those_of_the_tensor(name: str) -> None:
    change, on_tensor = VALUES[name]
    out = change(_tree())
    want = on_tensor(RAW)
    for key in ("u", ("n", "v")):
        found = out[key]
        assert type(found) is UnbatchedTensor and found.data_ptr() != RAW.data_ptr()
        assert found.dtype is want.dtype and torch.equal(found.as_subclass(torch.Tensor), want)
        assert found.batch_size == (out if key == "u" else out["n"]).batch_size
    assert type(out["a"]) is torch.Tensor


INPLACE: dict[str, Callable[[Any], Any]] = {
    "zero_": lambda td: td.zero_(),
    "add_": lambda td: td.add_(1),
    "apply_": lambda td: td.apply_(lambda x: x + 1),
    "fill_": lambda td: td.fill_("u", 3),
    "set_": lambda td: td.set_("u", RAW + 5),
    "set_ unbatched": lambda td: td.set_("u", UnbatchedTensor(RAW + 5)),
    "update_": lambda td: td.update_(td + 5),
    "update_ dict": lambda td: td.update_({"u": RAW + 5}),
    "update in place": lambda td: td.update(td + 5, inplace=True),
    "row": lambda td: td.__setitem__(0, (td + 5)[0]),
    "all rows": lambda td: td.__setitem__(slice(None), td + 5),
    "row from dict": lambda td: td.__setitem__(0, {"u": RAW + 5}),
    "set_at_": lambda td: td.set_at_("u", 9.0, 0),
    "entry": lambda td: td["u"].mul_(2),
    "update_at_": lambda td: td.update_at_({"u": UnbatchedTensor(RAW + 5)}, 0),
}


@pytest.mark.parametrize("name", INPLACE)
@pytest.mark.parametrize("locked", [False, True])
def test_writes_in_place_reach_every_tree_that_shares_it(name: str, locked: bool) -> None:
    td = _tree().clone()
    memory, part = td["u"].data_ptr(), td[1:]
    if locked:
        td.lock_()
    INPLACE[name](td)
    assert td["u"].data_ptr() == memory and torch.equal(part["u"], td["u"])
    assert not torch.equal(td["u"].as_subclass(torch.Tensor), RAW)


def test_rows_of_other_entries_leave_it_alone() -> None:
    td = _tree().clone()
    td[0] = TensorDict({"a": torch.ones(5)})
    td[1] = 7
    td.masked_fill_(torch.tensor([False, False, True]), 3)
    td.update_at_({"a": torch.zeros(5)}, 0)
    assert torch.equal(td["u"].as_subclass(torch.Tensor), RAW) and td["a"][1, 0] == 7


def test_a_tensor_of_another_shape_is_refused() -> None:
    td = _tree().clone()
    for write in (
        lambda: td.set_("u", RAW.t()),
        lambda: td.__setitem__(0, {"u": torch.zeros(11)}),
        lambda: td.update_({"u": torch.zeros(7)}),
    ):
        with pytest.raises(RuntimeError, match="shape"):
            write()
    with pytest.raises(RuntimeError, match="unbatched entry"):
        td * torch.ones(3)
    with pytest.raises(RuntimeError, match="unbatched"):
        td.where(torch.tensor([True, False, True]), td + 1)
    with pytest.raises(ValueError, match="Failed to update"):
        td.set_("u", "text")
    assert torch.equal(td["u"].as_subclass(torch.Tensor), RAW)


def test_it_is_a_leaf_like_any_other() -> None:
    td = _tree()
    assert set(td.keys(True, True)) == {"a", "u", ("n", "v"), ("n", "b")} and len(td.keys(True, True)) == 4
    assert set(td.keys(leaves_only=True)) == {"a", "u"} and len(td.keys(True)) == 5
    for items in (td.items(), td.items(True), td.items(True, True), td.items(sort=True)):
        assert type(dict(items)["u"]) is UnbatchedTensor
    assert [type(value) for value in td.values()][:2] == [torch.Tensor, UnbatchedTensor]
    assert td.entry_class("u") is UnbatchedTensor and td.get_item_shape("u") == (7, 11) and not td.is_non_tensor("u")
    assert not td.non_tensor_items() and not td.select("u").is_empty() and td.depth == 1
    assert td.to_dict()["u"].shape == (7, 11) and td.numpy()["u"].shape == (7, 11)
    assert td.to_dict(convert_tensors=True)["u"] == RAW.tolist()
    assert "u: f32[7,11]" in repr(td) and td.dtype is torch.float32
    assert td.param_count() == 15 + 77 + 24 + 77 and td.bytes() == 4 * td.param_count()
    assert list(td.empty(recurse=True).keys(True)) == ["n"]
    assert torch.equal(td.state_dict()["u"], RAW)
    assert_close(td, td.clone())
    with pytest.raises(AssertionError):
        assert_close(td, td + 1)
    assert type(td.clone().pop("u")) is UnbatchedTensor and td.setdefault("u", 1).shape == (7, 11)
    assert type(td.rename_key_("u", "w")["w"]) is UnbatchedTensor
    assert [list(part.keys()) for part in td.split_keys(["w"])][0] == ["w"]
    assert td.get_at("w", 0).shape == (11,)


def test_the_tensor_by_itself_is_a_tensor() -> None:
    u = UnbatchedTensor(RAW)
    assert isinstance(u, torch.Tensor) and u.batch_size == () and u.data_ptr() == RAW.data_ptr()
    for out in (u + 1, u[0], u.sum(), u.view(-1), torch.stack([u, u]), u.clone(), u == u, u.double()):
        assert type(out) is UnbatchedTensor
    assert type(torch.cat([u, RAW])) is torch.Tensor
    assert repr(u).startswith("UnbatchedTensor(tensor(")
    assert UnbatchedTensor([1.0, 2.0]).shape == (2,) and UnbatchedTensor(u).shape == u.shape
    td = TensorDict({"u": u}, [3])
    assert u.batch_size == () and td["u"].batch_size == (3,)
    td["v"] = td["u"] * 2  # what comes out of a tree can go into one
    assert td["v"].shape == (7, 11)


def test_it_ignores_the_batch_size_of_the_others() -> None:
    assert TensorDict({"a": torch.zeros(3, 4), "u": UnbatchedTensor(RAW)}).auto_batch_size_().batch_size == (3, 4)
    assert TensorDict({"u": UnbatchedTensor(RAW)}).auto_batch_size_().batch_size == ()
    td = _tree().exclude("n")
    td.batch_size = [3, 5]
    assert td["u"].batch_size == (3, 5)


def test_stacked_tensors_that_differ_keep_the_first_with_a_warning() -> None:
    one, other = _tree(), _tree().clone() + 1
    with pytest.warns(UserWarning, match="different data storage"):
        out = torch.stack([one, other])
    assert torch.equal(out["u"].as_subclass(torch.Tensor), RAW)
    with pytest.warns(UserWarning, match="different data storage"):
        assert torch.cat([other, one])["u"][0, 0] == 1
    with pytest.warns(UserWarning, match="different data storage"):
        assert lazy_stack([one, other])["u"][0, 0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.stack([one, one[:]])
    with pytest.raises(RuntimeError, match="unbatched"):
        torch.stack([one.select("u"), TensorDict({"u": torch.zeros(3)}, [3])])


def test_gradients_reach_it() -> None:
    td = _tree().clone().requires_grad_()
    assert td["u"].requires_grad and td["u"].is_leaf
    (td * 2)["u"].sum().backward()
    assert (td["u"].grad == 2).all() and (td.grad["u"] == 2).all() and td.grad["u"].shape == (7, 11)
    weight = torch.ones(7, requires_grad=True)
    TensorDict({"u": UnbatchedTensor(weight)}, [3])[0]["u"].sum().backward()
    assert weight.grad.sum() == 7


@pytest.mark.parametrize("kind", [Item, Tensors])
def test_in_a_tensorclass_it_is_a_field(kind: Any) -> None:
    item = kind(torch.zeros(3), UnbatchedTensor(RAW), batch_size=[3])
    for found in (item.u, item.get("u"), item[0].u, torch.stack([item, item]).u, lazy_stack([item, item]).u):
        assert type(found) is UnbatchedTensor and found.data_ptr() == RAW.data_ptr()
    assert item[0].u.batch_size == () and item.to_tensordict()["u"].shape == (7, 11)


def test_it_goes_to_the_device_and_through_torch_save() -> None:
    assert _tree().to("meta")["u"].device.type == "meta"
    assert TensorDict({"u": UnbatchedTensor(RAW)}, [3], device="meta")["u"].device.type == "meta"
    file = io.BytesIO()
    torch.save(_tree(), file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert type(back["u"]) is UnbatchedTensor and torch.equal(back["u"].as_subclass(torch.Tensor), RAW)


def test_files_refuse_it_by_name(tmp_path: Path) -> None:
    for save in (lambda: _tree().memmap(tmp_path / "a"), lambda: _tree().memmap_(), lambda: _tree().memmap_like()):
        with pytest.raises(NotImplementedError, match=r"td\.exclude\('u'\)"):
            save()
    with pytest.raises(NotImplementedError, match="UnbatchedTensor"):
        lazy_stack([_tree(), _tree()]).memmap(tmp_path / "b")
    with (
        pytest.raises(NotImplementedError, match="UnbatchedTensor"),
        DatasetWriter(tmp_path / "c", _tree()[0]) as writer,
    ):
        writer.append(_tree())
    assert not list(tmp_path.iterdir())
    shared = _tree().clone().share_memory_()
    assert shared.is_shared() and shared["u"].is_shared()


def test_chunks_of_a_map_have_it() -> None:
    td = _tree().exclude("n")
    out = td.map(lambda chunk: chunk.exclude("u").set("b", chunk["a"] + chunk["u"].sum()), num_workers=2, chunksize=1)
    assert (out["b"] == RAW.sum()).all()


def test_what_is_computed_with_rows_is_an_ordinary_tensor() -> None:
    td = _tree()
    for mixed in (td["a"] + td["u"].sum(), td["u"][0, :5] * td["a"], torch.cat([td["u"], torch.zeros(7, 11)])):
        assert type(mixed) is torch.Tensor
    td["b"] = td["a"] + td["u"].sum()
    assert td[0]["b"].shape == (5,)
    for own in (td["u"] + 1, td["u"] * torch.tensor(2.0), td["u"].sum(), torch.stack([td["u"], td["u"]])):
        assert type(own) is UnbatchedTensor


@pytest.mark.filterwarnings("error::UserWarning")
def test_results_of_a_map_have_it_once() -> None:
    out = _tree().exclude("n").map(lambda chunk: chunk.set("u", UnbatchedTensor(RAW + 1)), num_workers=2, chunksize=1)
    assert out["u"].shape == (7, 11) and torch.equal(out["u"].as_subclass(torch.Tensor), RAW + 1)
    assert out["u"].batch_size == (3,)


COMPILED: dict[str, Callable[[TensorDict], TensorDict]] = {
    "row": lambda td: td[0],
    "arithmetic": lambda td: td + 1,
    "reshape": lambda td: td.reshape(-1),
    "clone": lambda td: td.clone(),
    "stack": lambda td: torch.stack([td, td]),
    "comparison": lambda td: td == 1,
    "update_": lambda td: td.clone().update_(td.clone().zero_()),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_as_it_is_run(name: str) -> None:
    td = TensorDict({"a": torch.ones(2, 3), "u": UnbatchedTensor(RAW)}, [2, 3])
    torch._dynamo.reset()
    found, expected = torch.compile(COMPILED[name], backend="eager")(td), COMPILED[name](td)
    assert type(found["u"]) is UnbatchedTensor and found.batch_size == expected.batch_size
    for key in ("a", "u"):
        assert torch.equal(found[key].as_subclass(torch.Tensor), expected[key].as_subclass(torch.Tensor))
    assert type(td["u"]._base) is not UnbatchedTensor  # the base of a view is no view
