"""Nested tensors below a batch size: as entries, in files of either library, and in other processes."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

from tensordict_lite import DatasetError, TensorDict, tensorclass

PARTS = [torch.arange(6.0).view(2, 3), torch.ones(4, 3)]


def ragged(layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor(PARTS, layout=layout)


def collection(package: Any = None, layout: torch.layout = torch.strided) -> Any:
    cls = TensorDict if package is None else package.TensorDict
    return cls({"x": ragged(layout), "y": torch.arange(2)}, [2])


def assert_whole(data: Any) -> None:
    assert tuple(data.batch_size) == (2,)
    for number, part in enumerate(PARTS):
        row = data[number]
        assert torch.equal(row["x"], part) and int(row["y"]) == number


@tensorclass
class Sample:
    x: torch.Tensor


ENTRIES: dict[str, Callable[[], Any]] = {
    "constructor": collection,
    "from_dict": lambda: TensorDict.from_dict({"x": ragged(), "y": torch.arange(2)}, batch_size=[2]),
    "setitem": lambda: with_item(TensorDict({"y": torch.arange(2)}, [2])),
    "set": lambda: TensorDict({"y": torch.arange(2)}, [2]).set("x", ragged()),
    "update": lambda: TensorDict({"y": torch.arange(2)}, [2]).update({"x": ragged()}),
    "clone": lambda: collection().clone(),
    "apply": lambda: collection().apply(lambda x: x.clone()),
    "pickle": lambda: pickle.loads(pickle.dumps(collection())),
    "memmap": lambda: collection().memmap(),
    "memmap pickle": lambda: through_pickle(collection().memmap()),
}


def through_pickle(data: TensorDict) -> Any:
    return pickle.loads(pickle.dumps(data))  # while `data` lives: anonymous memory travels by handle


def with_item(data: TensorDict) -> TensorDict:
    data["x"] = ragged()
    return data


@pytest.mark.parametrize("name", ENTRIES)
def test_strided_nested_tensor_is_an_entry(name: str) -> None:
    data = ENTRIES[name]()
    assert_whole(data)
    assert data["x"].shape == (2, -1, 3)
    assert repr(data).replace(", device=cpu", "") == repr(collection(reference))


def test_strided_nested_tensor_is_a_field() -> None:
    sample = Sample(ragged(), batch_size=[2])
    sample.x = ragged()
    assert torch.equal(sample[1].x, PARTS[1])


def test_elements_must_be_as_many_as_rows() -> None:
    for write in (lambda: TensorDict({"x": ragged()}, [3]), lambda: TensorDict({}, [3]).set("x", ragged())):
        with pytest.raises(RuntimeError, match=r"batch dimension mismatch.*\[3\].*\[2, -1, 3\]"):
            write()


@pytest.mark.parametrize("method", ["memmap", "memmap_"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensor_is_saved_and_loaded(tmp_path: Path, method: str, layout: torch.layout) -> None:
    mapped = getattr(collection(layout=layout), method)(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    for data in (mapped, loaded):
        assert data["x"].layout == layout
        assert_whole(data)
    if layout is torch.strided:
        loaded[1]["x"].fill_(7)
        assert torch.equal(mapped[1]["x"], torch.full((4, 3), 7.0))


@pytest.mark.parametrize("method", ["memmap", "memmap_"])
def test_either_library_loads_what_the_other_saved(tmp_path: Path, method: str) -> None:
    getattr(collection(reference), method)(tmp_path / "theirs")
    assert_whole(TensorDict.load_memmap(tmp_path / "theirs"))
    assert_whole(collection().load_memmap_(tmp_path / "theirs"))
    getattr(collection(), method)(tmp_path / "ours")
    assert_whole(reference.TensorDict.load_memmap(tmp_path / "ours"))


def test_room_for_a_nested_tensor(tmp_path: Path) -> None:
    data = collection().memmap_like(tmp_path)
    assert not data[1]["x"].any()
    data[1]["x"].copy_(PARTS[1])
    assert torch.equal(TensorDict.load_memmap(tmp_path)[1]["x"], PARTS[1])


def test_table_of_shapes_that_does_not_fit_the_rows_is_an_error(tmp_path: Path) -> None:
    collection().memmap(tmp_path)
    table = tmp_path / "x.shape.memmap"
    table.write_bytes(torch.tensor([[2, 3], [5, 3]]).numpy().tobytes())
    with pytest.raises(DatasetError, match=r"x\.memmap"):
        TensorDict.load_memmap(tmp_path)
