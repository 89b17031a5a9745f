"""``MetaData``: one value of a whole tree, through every operation, every kind of collection, files and processes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
    TensorDict,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensorclass,
    lazy_stack,
    tensorclass,
)


@tensorclass
class Item:
    a: torch.Tensor
    m: Any


def _tree(value: Any = "cm") -> TensorDict:
    nested = {"non_tensor": NonTensorData("a string!"), "metadata": MetaData[str](value), "x": torch.zeros(2, 3)}
    return TensorDict({"a": torch.arange(6.0).view(2, 3), "data": nested, "m": MetaData(value)}, [2, 3])


OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    "index": lambda td: td[0],
    "slice": lambda td: td[:, 1:],
    "mask": lambda td: td[torch.tensor([True, False])],
    "rows": lambda td: td[torch.tensor([0, 1, 1])],
    "reshape": lambda td: td.reshape(6),
    "view": lambda td: td.view(-1, 2),
    "permute": lambda td: td.permute(1, 0),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "squeeze": lambda td: td[:1].squeeze(0),
    "expand": lambda td: td.expand(4, 2, 3),
    "split": lambda td: td.split(1)[0],
    "unbind": lambda td: td.unbind(1)[0],
    "gather": lambda td: td.gather(0, torch.tensor([[0, 0, 1]])),
    "repeat": lambda td: td.repeat(2, 1),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 0),
    "stack": lambda td: torch.stack([td, td.clone()]),
    "cat": lambda td: torch.cat([td, td.clone()]),
    "lazy_stack": lambda td: lazy_stack([td, td.clone()], 1),
    "lazy, dense": lambda td: lazy_stack([td, td.clone()], 1).to_tensordict(),
    "lazy, rows": lambda td: lazy_stack([td, td.clone()])[:, 0],
    "to_lazystack": lambda td: td.to_lazystack(1),
    "clone": lambda td: td.clone(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "to": lambda td: td.to(torch.float64),
    "device": lambda td: td.to("cpu"),
    "+": lambda td: td + 1,
    "add_": lambda td: td.add_(1),
    "<": lambda td: td < 1,
    "apply": lambda td: td.apply(lambda x: x * 2),
    "named_apply": lambda td: td.named_apply(lambda k, x: x),
    "sum": lambda td: td.sum(0),
    "mean all": lambda td: td.mean(),
    "max": lambda td: td.amax(0),
    "where": lambda td: td.where(torch.tensor([True, False]), td),
    "masked_fill": lambda td: td.masked_fill(torch.tensor([True, False]), 0),
    "select": lambda td: td.select("m", ("data", "metadata")),
    "exclude": lambda td: td.exclude("a"),
    "flatten_keys": lambda td: td.flatten_keys("-").unflatten_keys("-"),
    "zeros_like": torch.zeros_like,
    "new_zeros": lambda td: td.new_zeros(5),
    "empty": lambda td: td.empty(recurse=True),
    "update": lambda td: td.update(td.clone()),
    "update_": lambda td: td.update_(td.clone()),
    "row": lambda td: td.clone(),
    "lock": lambda td: td.lock_(),
    "shared": lambda td: td.share_memory_(),
    "mapped": lambda td: td.memmap(),
    "tree_map": lambda td: torch.utils._pytree.tree_map(lambda x: x, td),
    "vmap": lambda td: torch.vmap(lambda x: x)(td),
    "densify": lambda td: td.densify(),
    "detach": lambda td: td.detach(),
    "state_dict": lambda td: _tree("other").load_state_dict(td.state_dict()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_value_stays_and_the_batch_size_follows(name: str) -> None:
    out = OPERATIONS[name](_tree())
    for key, cls in (("m", MetaData), (("data", "metadata"), MetaData[str])):
        entry = out.get(key)
        assert type(entry) is cls and out[key] == "cm", key
        level = out if key == "m" else out.get("data")
        assert entry.batch_size == level.batch_size


def test_it_is_what_it_is_called() -> None:
    one = MetaData("x")
    assert isinstance(one, NonTensorDataBase) and not isinstance(one, NonTensorData)
    assert is_non_tensor(one) and is_tensorclass(one)
    assert MetaData[int] is MetaData[int] and issubclass(MetaData[int], MetaData)
    assert repr(MetaData("x", batch_size=[2])) == "MetaData(data=x, batch_size=torch.Size([2]), device=None)"
    assert repr(MetaData[int](3)).startswith("MetaData[int](data=3")
    td = TensorDict({"m": one, "t": MetaData[int](3), "a": torch.zeros(2)}, [2])
    assert "m: MetaData" in repr(td) and "t: MetaData[int]" in repr(td)
    assert list(td.keys(True, True)) == ["a"] and "m" in td.keys(True, True, is_leaf=is_leaf_nontensor)
    assert td.to_dict()["m"] == "x" and td.get_non_tensor("t") == 3 and not td.select("m").is_empty()
    assert MetaData(NonTensorData("y")).data == "y" and NonTensorData(MetaData("y")).data == "y"


@pytest.mark.parametrize(
    ("parameter", "good", "bad"),
    [(int, 3, "x"), (str, "x", 3), (list[int], [1], (1,)), (int | None, None, "x"), (dict, {}, [])],
)
def test_a_type_in_brackets_is_checked(parameter: Any, good: Any, bad: Any) -> None:
    entry = MetaData[parameter](good, batch_size=[2])
    assert entry.data == good
    td = TensorDict({"m": entry}, [2])
    for write in (lambda: MetaData[parameter](bad), lambda: td.set_("m", bad), lambda: setattr(entry, "data", bad)):
        with pytest.raises((TypeError, ValueError), match="Expected data of type|Failed to update"):
            write()
    assert td["m"] == good
    back = pickle.loads(pickle.dumps(entry))
    assert type(back) is type(entry) and back.data == good


@pytest.mark.parametrize("lazy", [False, True])
def test_collections_that_disagree_give_a_value_each(lazy: bool) -> None:
    trees = [_tree("cm"), _tree("mm")]
    out = lazy_stack(trees) if lazy else torch.stack(trees)
    assert isinstance(out.get("m"), NonTensorStack)
    assert out.get("m").tolist() == [[["cm"] * 3] * 2, [["mm"] * 3] * 2]
    assert out[1]["m"] == "mm" if lazy else out[1].get("m").tolist() == [["mm"] * 3] * 2
    joined = torch.cat(trees, 1)  # nothing is lost
    assert joined.get("m").tolist() == [["cm"] * 3 + ["mm"] * 3] * 2
    assert type(torch.stack([MetaData[int](1), MetaData(1)])) is NonTensorStack


def test_another_value_in_a_row_makes_a_value_a_row() -> None:
    for write in (
        lambda td: td.__setitem__(0, TensorDict({"m": MetaData("mm")}, [3])),
        lambda td: td.__setitem__(0, {"m": "mm"}),
        lambda td: td.set_at_("m", "mm", 0),
        lambda td: td.update_at_({"m": MetaData("mm", batch_size=[3])}, 0),
    ):
        td = _tree()
        write(td)
        assert td.get("m").tolist() == [["mm"] * 3, ["cm"] * 3]
    td = _tree()
    td[0] = _tree()[1]
    assert isinstance(td.get("m"), MetaData)
    padded = _tree().pad([0, 1]).get("m")
    assert padded.tolist() == [["cm"] * 3] * 2 + [[None] * 3]


def test_written_in_place_it_keeps_its_class() -> None:
    td = _tree().lock_()
    td.set_("m", "mm")
    td.update_({("data", "metadata"): "mm"})
    assert isinstance(td.get("m"), MetaData) and type(td["data"].get("metadata")) is MetaData[str]
    assert td["m"] == "mm" and td["data", "metadata"] == "mm"
    td = _tree()
    td["m"] = "plain"
    assert isinstance(td.get("m"), NonTensorData)


def test_it_compares_with_every_form_of_itself() -> None:
    td = _tree()
    for other in (td.clone(), td.to_dict(), TensorDict(td.to_dict(), [2, 3]), lazy_stack(list(td.unbind(0)))):
        assert (td == other).all()
    assert not (td == _tree("mm")).all() and (td != _tree("mm"))["m"].all()
    assert bool(MetaData("x") == NonTensorData("x")) and not bool(MetaData("x") == MetaData("y"))


def test_in_a_tensorclass_it_is_a_field() -> None:
    item = Item(torch.zeros(2), MetaData("x"), batch_size=[2])
    assert item.m == "x" and item[0].m == "x" and torch.stack([item, item]).m == "x"
    assert lazy_stack([item, item]).m == "x" and isinstance(item.to_tensordict().get("m"), MetaData)


def test_it_takes_the_batch_size_of_its_tree() -> None:
    assert TensorDict({"m": MetaData("x", batch_size=[5])}, [2]).get("m").batch_size == (2,)
    assert TensorDict({"m": MetaData("x", batch_size=[5])}).get("m").batch_size == (5,)
    td = TensorDict({"m": MetaData("x"), "a": torch.zeros(3, 4)}).auto_batch_size_()
    assert td.get("m").batch_size == (3, 4)


def test_it_is_saved_under_its_name(tmp_path: Path) -> None:
    td = _tree()
    td["typed"], td["list"] = MetaData[int](3), MetaData({"k": [1, 2]})
    mapped = td.memmap(tmp_path / "a")
    loaded = TensorDict.load_memmap(tmp_path / "a")
    for back in (mapped, loaded):
        assert type(back.get("m")) is MetaData and type(back.get("typed")) is MetaData[int]
        assert back["list"] == {"k": [1, 2]} and back.get("m").batch_size == (2, 3)
    mapped.set_("m", "mm")
    assert TensorDict.load_memmap(tmp_path / "a")["m"] == "mm"
    mapped[0] = TensorDict({"m": MetaData("row")}, [3])
    assert isinstance(TensorDict.load_memmap(tmp_path / "a").get("m"), NonTensorStack)
    lazy_stack([_tree(), _tree()]).memmap(tmp_path / "b")
    assert type(TensorDict.load_memmap(tmp_path / "b").get("m")) is MetaData


def test_files_go_to_the_reference_and_back(tmp_path: Path) -> None:
    reference = pytest.importorskip("tensordict")
    TensorDict({"m": MetaData("x"), "a": torch.zeros(2)}, [2]).memmap(tmp_path / "ours")
    theirs = reference.TensorDict.load_memmap(tmp_path / "ours").get("m")
    assert isinstance(theirs, reference.MetaData) and theirs.data == "x"
    made = {"m": reference.MetaData("x"), "t": reference.MetaData[int](3), "a": torch.zeros(2)}
    reference.TensorDict(made, [2]).memmap(tmp_path / "theirs")
    ours = TensorDict.load_memmap(tmp_path / "theirs")
    assert type(ours.get("m")) is MetaData and type(ours.get("t")) is MetaData[int] and ours["t"] == 3


def test_it_loads_with_weights_only() -> None:
    file = io.BytesIO()
    torch.save(TensorDict({"m": MetaData("x"), "t": MetaData[int](3)}, [2]), file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert type(back.get("m")) is MetaData and type(back.get("t")) is MetaData[int]


def test_it_goes_through_a_map() -> None:
    td = TensorDict({"a": torch.arange(8.0), "m": MetaData("x")}, [8])
    out = td.map(lambda chunk: chunk.set("b", chunk["a"] * 2), num_workers=2, chunksize=2)
    assert type(out.get("m")) is MetaData and out.get("m").batch_size == (8,)
    out = td.map(lambda chunk: chunk.set("m", MetaData(int(chunk["a"][0]))), num_workers=2, chunksize=4)
    assert out.get("m").tolist() == [0] * 4 + [4] * 4


def test_an_object_that_can_be_called_is_called() -> None:
    assert NonTensorData(lambda x, y=1: x + y)(1, y=2) == 3 and MetaData(len)([1]) == 1
    with pytest.raises(TypeError, match="holds a str, which is not callable"):
        NonTensorData("x")()


def _described(chunk: TensorDict) -> TensorDict:
    source = {"a": chunk["a"] + 1, "m": MetaData("all"), "n": {"rows": MetaData(len(chunk))}}
    return TensorDict(source, chunk.batch_size)


@pytest.mark.parametrize("workers", [0, 2])
def test_results_of_a_map_keep_it_where_it_is_the_same_in_all_chunks(workers: int) -> None:
    td = TensorDict({"a": torch.zeros(5)}, [5])
    out = td.map(_described, num_workers=workers, chunksize=2)
    assert type(out.get("m")) is MetaData and out.get("m").batch_size == (5,) and out["m"] == "all"
    assert out["n"].get("rows").tolist() == [2, 2, 2, 2, 1]
