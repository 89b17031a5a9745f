"""Datasets that are saved into the folder they were loaded from: as they are now, whatever was there before."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tensordict_lite as lib
from tensordict_lite import (
    DatasetError,
    DatasetWriter,
    MemoryMappedTensor,
    TensorDict,
    lazy_stack,
)
from tests.processes import beside, seen_by

COUNT = 6


def test_values_changed_in_copy_on_write_memory_reach_the_file(tmp_path: Path) -> None:
    TensorDict({"x": torch.zeros(COUNT), "n": {"y": torch.zeros(COUNT)}}, [COUNT]).memmap(tmp_path / "d")
    for save in ("memmap", "memmap_", "save"):
        data = TensorDict.load_memmap(tmp_path / "d", mode="r")
        value = data["x"][0].item() + 1
        data["x"].fill_(value)
        getattr(data, save)(tmp_path / "d")
        assert TensorDict.load_memmap(tmp_path / "d")["x"].unique().tolist() == [value]
    mapped = TensorDict.load_memmap(tmp_path / "d", mode="r").memmap(tmp_path / "d")
    mapped["x"].fill_(7)  # what memmap returns is the file, also of what was not changed
    assert TensorDict.load_memmap(tmp_path / "d")["x"].unique().tolist() == [7]
    alone = MemoryMappedTensor.from_filename(tmp_path / "d" / "x.memmap", torch.float32, (COUNT,), mode="r").fill_(9)
    MemoryMappedTensor.from_tensor(alone, filename=tmp_path / "d" / "x.memmap", existsok=True)
    assert TensorDict.load_memmap(tmp_path / "d")["x"].unique().tolist() == [9]


@pytest.mark.parametrize("how", ["memmap", "memmap_", "memmap_like", "unpack"])
def test_no_rows_over_rows(how: str, tmp_path: Path) -> None:
    path = tmp_path / "d"
    rows = TensorDict({"x": torch.arange(COUNT), "n": {"y": torch.ones(COUNT, 2)}, "w": ["a"] * COUNT}, [COUNT])
    rows.memmap(path)
    none = TensorDict.load_memmap(path)
    none = none[none["x"] > 10]
    if how == "unpack":
        none.save(tmp_path / "a.tdz")
        lib.unpack_memmap(tmp_path / "a.tdz", path)
    else:
        getattr(none, how)(path)
    for found in (TensorDict.load_memmap(path), TensorDict.load(lib.pack_memmap(path, tmp_path / "b.tdz"))):
        assert found.batch_size == (0,) and found["n", "y"].shape == (0, 2) and len(found["w"]) == 0
    assert how == "unpack" or not (path / "x.memmap").exists()
    rows.memmap(path)
    assert TensorDict.load_memmap(path)["x"].tolist() == list(range(COUNT))


def stack(count: int) -> Any:
    return lazy_stack([TensorDict({"x": torch.arange(i + 1)}, []) for i in range(count)])


def test_a_shorter_stack_over_a_longer_one(tmp_path: Path) -> None:
    stack(3).memmap(tmp_path / "d")
    stack(2).memmap(tmp_path / "d")
    assert TensorDict.load_memmap(tmp_path / "d").batch_size == (2,)
    TensorDict({"rows": stack(4)}, []).memmap(tmp_path / "n")
    data = TensorDict.load_memmap(tmp_path / "n")
    data["rows"] = data["rows"][1:3]
    data.memmap(tmp_path / "n", copy_existing=True)
    found = TensorDict.load_memmap(tmp_path / "n")["rows"]
    assert [row.tolist() for row in found.get("x", as_list=True)] == [[0, 1], [0, 1, 2]]
    stack(2).save(tmp_path / "a.tdz")
    stack(3).memmap(tmp_path / "u")
    lib.unpack_memmap(tmp_path / "a.tdz", tmp_path / "u")
    assert TensorDict.load_memmap(tmp_path / "u").batch_size == (2,)
    assert TensorDict.load(lib.pack_memmap(tmp_path / "u", tmp_path / "b.tdz")).batch_size == (2,)


def written(path: Path) -> Path:
    with DatasetWriter(path, {"x": ((3,), torch.float32)}) as writer:
        writer.append(TensorDict({"x": torch.ones(5, 3)}, [5]))
    return path


def test_files_with_room_for_more_rows_stay_readable(tmp_path: Path) -> None:
    data = TensorDict.load_memmap(written(tmp_path / "a"))
    data["y"] = torch.zeros(5)
    data.memmap(tmp_path / "a")
    found = TensorDict.load_memmap(tmp_path / "a")
    assert found["x"].sum() == 15 and found["y"].shape == (5,)
    TensorDict.load_memmap(written(tmp_path / "b")).memmap_()
    assert TensorDict.load_memmap(tmp_path / "b")["x"].shape == (5, 3)
    with DatasetWriter(tmp_path / "b") as writer:  # and it can still grow
        writer.append(TensorDict({"x": torch.full((2, 3), 2.0)}, [2]))
    assert TensorDict.load_memmap(tmp_path / "b")["x"].sum() == 27
    TensorDict({"x": torch.arange(6.0)}, [6]).memmap(tmp_path / "c")
    TensorDict({"x": torch.zeros(4)}, [4]).memmap_like(tmp_path / "c")
    TensorDict.load_memmap(tmp_path / "c").memmap(tmp_path / "c")
    assert TensorDict.load_memmap(tmp_path / "c")["x"].tolist() == [0, 1, 2, 3]


# -- readers beside writers -----------------------------------------------------------------------------------------


def many(value: int) -> TensorDict:
    return TensorDict({f"k{number}": torch.full((20,), value) for number in range(30)}, [20])


READ = {
    "load": lambda folder: TensorDict.load_memmap(folder),
    "pack": lambda folder: TensorDict.load(lib.pack_memmap(folder, f"{folder}.tdz")),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("others", [[], ["notes.txt"]], ids=["exchanged", "file by file"])
def test_a_reader_beside_a_writer_finds_one_dataset(read: str, others: list[str], tmp_path: Path) -> None:
    """Of another number of rows each time, so that a mixture of two would not even open."""
    folder, values = tmp_path / "d", itertools.count(1)
    many(0).memmap(folder)
    for name in others:
        (folder / name).touch()

    def save() -> None:
        value = next(values)
        many(value)[: 1 + value % 20].memmap(folder)

    def look() -> int:
        data = READ[read](folder)
        (value,) = {int(column[0]) for column in data.values()}
        assert len(data) == (1 + value % 20 if value else 20)
        return value

    with beside(tmp_path / "ended", [save]):
        assert len(seen_by(look, 150, 6)) > 5


# -- writers of datasets that were replaced ---------------------------------------------------------------------------


def rows(count: int, value: int) -> TensorDict:
    return TensorDict({"x": torch.full((count,), value)}, [count])


def replaced_by_a_save(folder: Path) -> None:
    rows(7, 2).memmap(folder)


def replaced_by_another_folder(folder: Path) -> None:
    with DatasetWriter(f"{folder}-b", {"x": ((), torch.int64)}) as other:
        other.append(rows(7, 2))
    shutil.rmtree(folder)
    os.rename(f"{folder}-b", folder)


def with_another_column(folder: Path) -> None:
    TensorDict.load_memmap(folder).make_memmap("y", (5,), dtype=torch.float32)


@pytest.mark.parametrize("change", [replaced_by_a_save, replaced_by_another_folder, with_another_column])
def test_a_writer_says_that_its_dataset_is_another(change: Any, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    writer = DatasetWriter(folder, {"x": ((), torch.int64)})
    writer.append(rows(5, 1))
    writer.flush()
    change(folder)
    there = TensorDict.load_memmap(folder)["x"].tolist()
    writer.append(rows(2, 3))
    for end in (writer.flush, writer.flush):
        with pytest.raises(DatasetError, match="2 rows were not written: open another DatasetWriter"):
            end()
    assert TensorDict.load_memmap(folder)["x"].tolist() == there
    if change is not with_another_column:
        with DatasetWriter(folder) as again:
            again.append(rows(2, 3))
        assert TensorDict.load_memmap(folder)["x"].tolist() == [*there, 3, 3]


def test_a_refused_entry_leaves_the_dataset_as_it_was(tmp_path: Path) -> None:
    TensorDict({"x": torch.zeros(3)}, [3]).memmap(tmp_path / "d")
    one, other = TensorDict.load_memmap(tmp_path / "d"), TensorDict.load_memmap(tmp_path / "d")
    for wrong in (lambda: other.make_memmap("y", (2,)), lambda: other.make_memmap_from_tensor("y", torch.zeros(2))):
        with pytest.raises(RuntimeError, match="does not start with the batch size"):
            wrong()
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]
    one.make_memmap("y", (3, 2), dtype=torch.float32).fill_(7)
    for late in (lambda: other.make_memmap("y", (3,)), lambda: other.make_memmap_from_tensor("y", torch.zeros(3))):
        with pytest.raises(RuntimeError, match="got an entry 'y' after it was loaded"):
            late()
    assert TensorDict.load_memmap(tmp_path / "d")["y"].unique().tolist() == [7]
    TensorDict({"x": torch.ones(5)}, [5]).memmap(tmp_path / "d")
    with pytest.raises(RuntimeError, match="would be added to another dataset"):
        other.make_memmap("z", (3,))
    assert TensorDict.load_memmap(tmp_path / "d").batch_size == (5,)
