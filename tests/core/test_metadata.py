"""``MetaData``: one value of a whole tree, in files, in ``torch.save``, in calls and in maps."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import MetaData, NonTensorData, NonTensorStack, TensorDict, lazy_stack


def _tree(value: Any = "cm") -> TensorDict:
    nested = {"non_tensor": NonTensorData("a string!"), "metadata": MetaData[str](value), "x": torch.zeros(2, 3)}
    return TensorDict({"a": torch.arange(6.0).view(2, 3), "data": nested, "m": MetaData(value)}, [2, 3])


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


def _described(chunk: TensorDict) -> TensorDict:
    source = {"a": chunk["a"] + 1, "m": MetaData("all"), "n": {"rows": MetaData(len(chunk))}}
    return TensorDict(source, chunk.batch_size)


@pytest.mark.parametrize("workers", [0, 2])
def test_results_of_a_map_keep_it_where_it_is_the_same_in_all_chunks(workers: int) -> None:
    td = TensorDict({"a": torch.zeros(5)}, [5])
    out = td.map(_described, num_workers=workers, chunksize=2)
    assert type(out.get("m")) is MetaData and out.get("m").batch_size == (5,) and out["m"] == "all"
    assert out["n"].get("rows").tolist() == [2, 2, 2, 2, 1]
