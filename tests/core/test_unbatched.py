"""``UnbatchedTensor``: one tensor for the whole batch, left alone by what changes the batch."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import DatasetWriter, TensorDict, UnbatchedTensor, lazy_stack

RAW = torch.arange(77.0).view(7, 11)


def _tree() -> TensorDict:
    nested = TensorDict({"v": UnbatchedTensor(RAW), "b": torch.zeros(3, 4, 2)}, [3, 4])
    return TensorDict({"a": torch.zeros(3, 5), "u": UnbatchedTensor(RAW), "n": nested}, [3])


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


@pytest.mark.parametrize("to", ["w", ("n", "w")])
def test_a_renamed_entry_stays_unbatched(to: Any) -> None:
    td = _tree().rename_key_("u", to)
    assert td[0].get(to).shape == td.unsqueeze(0).get(to).shape == RAW.shape
