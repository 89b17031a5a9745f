"""Collections that are mapped from files in whose places a later save has put others, and saves beside each other."""

import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import MemoryMappedTensor, NonTensorData, NonTensorStack, TensorDict
from tensordict_lite.memmap import save as saving
from tensordict_lite.memmap.disk import placed
from tests.memmap.trees import leaves

COUNT = 7


def dataset(value: int, count: int = COUNT) -> TensorDict:
    return TensorDict({"a": torch.full((count,), value), "below": {"b": torch.full((count, 2), value)}}, [count])


def values_of(data: Any) -> list[int]:
    return sorted({int(value) for leaf in leaves(data) for value in leaf.unique()})


@pytest.fixture(params=["asked by name", "asked by number"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's links to mapped files, and where there are none."""
    if request.param == "asked by number":

        def refuse(path: str) -> str:
            raise PermissionError(path)

        monkeypatch.setattr(placed.os, "readlink", refuse)


def make_unexchangeable(path: Path) -> None:
    """With a file of the user's in it, the files of a folder are replaced one by one."""
    (path / "notes.txt").touch()


def replace_files(path: Path, value: int, count: int) -> None:
    make_unexchangeable(path)
    dataset(value, count).memmap(path)


REPLACE: dict[str, Callable[[Path, int, int], Any]] = {
    "all files": replace_files,
    "the folder": lambda path, value, count: dataset(value, count).memmap(path),
}


@pytest.mark.parametrize("replace", REPLACE)
@pytest.mark.parametrize("count", [COUNT, COUNT - 3], ids=["same shape", "fewer rows"])
@pytest.mark.parametrize("save", ["memmap", "memmap_", "save", "memmap_()"])
def test_an_older_collection_is_saved_whole(tmp_path: Path, replace: str, count: int, save: str, how: None) -> None:
    old = dataset(1).memmap(tmp_path / "d")
    REPLACE[replace](tmp_path / "d", 2, count)
    assert values_of(old) == [1]
    if save == "memmap_()":
        old.memmap_()
    else:
        getattr(old, save)(tmp_path / "d")
    assert values_of(TensorDict.load_memmap(tmp_path / "d")) == [1]
    assert TensorDict.load_memmap(tmp_path / "d").batch_size == (COUNT,)


@pytest.mark.parametrize("replace", REPLACE)
def test_an_older_collection_with_a_new_entry_is_saved_whole(tmp_path: Path, replace: str, how: None) -> None:
    old = dataset(1).memmap(tmp_path / "d").unlock_()
    REPLACE[replace](tmp_path / "d", 2, COUNT)
    old["c"] = torch.full((COUNT,), 1)
    old.memmap_(tmp_path / "d")
    assert values_of(TensorDict.load_memmap(tmp_path / "d")) == [1]
    old["c"].fill_(5)  # it is mapped
    assert TensorDict.load_memmap(tmp_path / "d")["c"].unique().tolist() == [5]


def test_what_is_in_its_file_is_not_written_again(tmp_path: Path, how: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(1).memmap(tmp_path / "d")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    again = TensorDict.load_memmap(tmp_path / "link")
    monkeypatch.setattr(saving._Save, "_write", None)
    assert data.memmap(tmp_path / "d")["a"] is data["a"] and data.memmap_() is data
    assert again.memmap(tmp_path / "d")["a"] is again["a"]


@pytest.mark.parametrize("replace", REPLACE)
def test_an_older_tensor_is_pickled_by_value(tmp_path: Path, replace: str, how: None) -> None:
    old = dataset(1).memmap(tmp_path / "d")
    blob = pickle.dumps(old)
    assert pickle.loads(blob)["a"].data_ptr() == old["a"].data_ptr()
    REPLACE[replace](tmp_path / "d", 2, COUNT)
    assert values_of(pickle.loads(pickle.dumps(old))) == [1]
    new = TensorDict.load_memmap(tmp_path / "d")
    again = pickle.loads(pickle.dumps(new))  # and is not taken for what is there now
    assert values_of(again) == [2]
    again["a"].fill_(3)
    assert new["a"].unique().tolist() == [3] and old["a"].unique().tolist() == [1]


def test_an_older_jagged_entry_is_pickled_by_value(tmp_path: Path, how: None) -> None:
    def jagged(value: float) -> TensorDict:
        rows = [torch.full((n + 1, 2), value) for n in range(3)]
        return TensorDict({"rows": torch.nested.nested_tensor(rows)}, [3])

    old = jagged(1).memmap(tmp_path / "d")
    jagged(2).memmap(tmp_path / "d")
    back = pickle.loads(pickle.dumps(old))["rows"]
    assert [row.unique().tolist() for row in back.unbind()] == [[1.0]] * 3
    old.memmap_()
    assert [row.unique().tolist() for row in TensorDict.load_memmap(tmp_path / "d")["rows"].unbind()] == [[1.0]] * 3


def test_an_older_tensor_is_written_to_its_own_name(tmp_path: Path, how: None) -> None:
    name = tmp_path / "x.memmap"
    old = MemoryMappedTensor.from_tensor(torch.ones(3), filename=name)
    assert MemoryMappedTensor.from_tensor(old, filename=name) is old
    MemoryMappedTensor.from_tensor(torch.full((3,), 2.0), filename=name, existsok=True)
    assert old.unique().tolist() in ([1], [2])  # written over or replaced
    MemoryMappedTensor.from_tensor(old, filename=name, existsok=True)
    assert torch.equal(MemoryMappedTensor.from_filename(name, torch.float32, (3,)), old)


# -- beside each other ---------------------------------------------------------------------------------------------


def together(*works: Callable[[], None]) -> None:
    problems: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def test_saves_of_files_and_of_whole_folders_take_turns(tmp_path: Path) -> None:
    dataset(0).memmap(tmp_path / "d")

    make_unexchangeable(tmp_path / "d")

    def save(folder: str, first: int) -> None:
        for value in range(first, first + 60):
            mapped = dataset(value).memmap(tmp_path / folder)
            assert values_of(mapped) == [value]
            if value == first + 30:
                (tmp_path / "d" / "notes.txt").unlink(missing_ok=True)

    together(*[partial(save, "d", first) for first in (1000, 2000, 3000, 4000)], partial(save, "one", 5000))
    assert values_of(TensorDict.load_memmap(tmp_path / "d"))[0] in (1059, 2059, 3059, 4059)
    assert len(values_of(TensorDict.load_memmap(tmp_path / "d"))) == 1
    assert not [path for path in tmp_path.rglob("*") if "tdlite" in path.name]


@pytest.mark.parametrize("replace", REPLACE)
def test_what_stays_in_its_file_is_still_there_when_the_rest_moves_in(
    tmp_path: Path, replace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a new entry is written beside mapped ones, somebody replaces these: they are written, too."""
    data = dataset(1).memmap(tmp_path / "d").unlock_()
    real = saving.check_room
    new = {"a": torch.full((COUNT,), 1), "c": torch.full((COUNT,), 1), "e": {"f": torch.full((COUNT, 2), 1)}}
    for key, value in new.items():
        data[key] = value
        others = [lambda: REPLACE[replace](tmp_path / "d", 2, COUNT)]

        def check_room(*args: Any, others: list[Callable[[], Any]] = others) -> None:
            if others:
                others.pop()()
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(saving, "check_room", check_room)
            data.memmap_(tmp_path / "d")
        assert not others
        assert values_of(TensorDict.load_memmap(tmp_path / "d")) == [1]
        assert all(placed.is_placed(leaf.untyped_storage(), leaf.filename) for leaf in leaves(data))
        data.unlock_()


OBJECTS: dict[str, Callable[[int], Any]] = {
    "a string a row": lambda count: NonTensorStack(*"abcdefgh"[:count]),
    "an object a row": lambda count: NonTensorStack(*[{"row": row} for row in range(count)]),
    "a pickle a row": lambda count: NonTensorStack(*[{row} for row in range(count)]),
    "one object": lambda count: NonTensorData("text", batch_size=[count]),
}


@pytest.mark.parametrize("replace", REPLACE)
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("nested", [False, True])
def test_objects_set_in_an_older_collection_do_not_spoil_the_one_there(
    tmp_path: Path, replace: str, kind: str, nested: bool
) -> None:
    """They would be another number of rows than all other entries have."""

    def save(path: Path, value: int, count: int) -> Any:
        tree = dataset(value, count).set(("below", "o") if nested else "o", OBJECTS[kind](count))
        if replace == "all files" and value > 1:
            make_unexchangeable(path)
        return tree.memmap(path, allow_pickle=True)

    old = save(tmp_path / "d", 1, COUNT)
    save(tmp_path / "d", 2, COUNT - 3)
    there = TensorDict.load_memmap(tmp_path / "d", allow_pickle=True).to_dict()
    parent = old["below"] if nested else old
    with pytest.raises(RuntimeError, match="a later save replaced the dataset"):
        parent.set_("o", NonTensorStack(*"12345678"[:COUNT]))
    now = TensorDict.load_memmap(tmp_path / "d", allow_pickle=True).to_dict()
    assert str(now) == str(there)
