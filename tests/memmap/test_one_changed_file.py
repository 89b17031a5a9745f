"""Saves that change one file of a dataset: one swap, so that the dataset is whole whenever somebody looks."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict, tensorclass
from tensordict_lite.errors import DatasetError
from tensordict_lite.memmap import save as saving
from tensordict_lite.memmap.disk import staging
from tests.memmap.test_crash import STEPS
from tests.processes import in_child, kill_at

ROWS = 50


@tensorclass
class Sample:
    x: torch.Tensor
    label: torch.Tensor


def one_leaf(version: int) -> TensorDict:
    return TensorDict({"x": torch.full((ROWS, 3), version)}, [ROWS])


def save_one(path: Path, version: int) -> None:
    one_leaf(version).memmap(path)


def change_an_entry(path: Path, version: int) -> None:
    """One entry of a mapped dataset is another tensor, the rest is in its files already."""
    data = TensorDict.load_memmap(path).unlock_() if (path / "meta.json").exists() else TensorDict(batch_size=[ROWS])
    data["x"] = torch.full((ROWS, 3), version)
    data["meta", "kept"] = data.get(("meta", "kept"), torch.arange(ROWS))
    data.memmap_(path)


def change_an_entry_below(path: Path, version: int) -> None:
    data = TensorDict.load_memmap(path).unlock_() if (path / "meta.json").exists() else TensorDict(batch_size=[ROWS])
    data["kept"] = data.get("kept", torch.arange(ROWS))
    data["below", "x"] = torch.full((ROWS, 3), version)
    data.memmap_(path)


def change_a_tensorclass(path: Path, version: int) -> None:
    if path.exists():
        data = Sample.load_memmap(path).unlock_()
    else:
        data = Sample(x=torch.zeros(()), label=torch.arange(ROWS), batch_size=[])
    data.x = torch.full((ROWS, 3), version)
    data.memmap_(path)


SAVES = [save_one, change_an_entry, change_an_entry_below, change_a_tensorclass]


def version_at(path: Path) -> int:
    data = TensorDict.load_memmap(path)
    (x,) = {data.get("x", None), data.get(("below", "x"), None)} - {None}
    (version,) = x.unique().tolist()
    for kept in (data.get("kept", None), data.get(("meta", "kept"), None), data.get("label", None)):
        assert kept is None or kept.tolist() == list(range(ROWS))
    return version


@pytest.mark.parametrize("save", SAVES)
def test_killed_at_any_step_the_dataset_is_whole(tmp_path: Path, save: Callable[[Path, int], None]) -> None:
    found = []
    number, killed = 0, True
    while killed:
        number += 1
        path = tmp_path / f"d{number}"
        save(path, 1)
        killed = kill_at(number, lambda path=path: save(path, 2), STEPS)
        found.append(version_at(path))
        if not killed:
            assert found[-1] == 2
        save(path, 3)
        assert version_at(path) == 3
        assert not [name for name in os.listdir(path) if "tdlite" in name]
    assert set(found) == {1, 2}


@pytest.mark.parametrize("save", SAVES)
def test_metadata_stay_and_old_readers_keep_what_they_opened(
    tmp_path: Path, save: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "d", 1)
    old = TensorDict.load_memmap(tmp_path / "d")
    before = os.stat(tmp_path / "d" / "meta.json")
    monkeypatch.setattr(staging, "Staging", None)  # no folder is made
    save(tmp_path / "d", 2)
    after = os.stat(tmp_path / "d" / "meta.json")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    x = old.get("x", None) if "x" in old.keys() else old["below", "x"]
    assert x.unique().tolist() == [1] and version_at(tmp_path / "d") == 2


def test_readers_beside_writers_find_it_whole(tmp_path: Path) -> None:
    save_one(tmp_path / "d", 0)
    problems: list[BaseException] = []
    ended = threading.Event()

    def write(first: int) -> None:
        try:
            for version in range(first, first + 100):
                mapped = one_leaf(version).memmap(tmp_path / "d")
                assert mapped["x"].unique().tolist() == [version]  # its own, whoever comes after it
        except BaseException as problem:
            problems.append(problem)

    def read() -> None:
        try:
            while not ended.is_set():
                version_at(tmp_path / "d")
        except BaseException as problem:
            problems.append(problem)

    writers = [threading.Thread(target=write, args=(first,)) for first in (1, 1000, 2000)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert not problems
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]


def test_metadata_that_change_meanwhile_are_replaced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the metadata and the turn, somebody saves a dataset of another shape."""
    save_one(tmp_path / "d", 1)
    real, others = staging.turn_in, [TensorDict({"x": torch.zeros(7, 2, dtype=torch.int16)}, [7])]

    def turn_in(folder: str) -> int:
        if others:
            others.pop().memmap(folder)
        return real(folder)

    monkeypatch.setattr(saving, "may_overwrite", lambda sizes: False)
    monkeypatch.setattr(staging, "turn_in", turn_in)
    save_one(tmp_path / "d", 2)
    assert not others and version_at(tmp_path / "d") == 2
    assert TensorDict.load_memmap(tmp_path / "d")["x"].shape == (ROWS, 3)
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]


def test_a_link_in_the_place_is_refused_and_a_linked_folder_followed(tmp_path: Path) -> None:
    save_one(tmp_path / "d", 1)
    (tmp_path / "link").symlink_to(tmp_path / "d")
    save_one(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink() and version_at(tmp_path / "d") == 2
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(ROWS * 3 * 8))
    (tmp_path / "d" / "x.memmap").unlink()
    (tmp_path / "d" / "x.memmap").symlink_to(precious)
    with pytest.raises(DatasetError, match="Refusing to write through a symlink"):
        save_one(tmp_path / "d", 3)
    assert not any(precious.read_bytes())
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]


def test_a_missing_file_is_written_again(tmp_path: Path) -> None:
    save_one(tmp_path / "d", 1)
    (tmp_path / "d" / "x.memmap").unlink()
    save_one(tmp_path / "d", 2)
    assert version_at(tmp_path / "d") == 2


@pytest.mark.parametrize("name", ["pwrite", "open"])
def test_a_failing_call_leaves_the_old_file_and_no_litter(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_one(tmp_path / "d", 1)
    real = getattr(os, name)

    def failing(path: object, *args: object, **kwargs: object) -> object:
        if name == "pwrite" or ".tdlite-" in str(path):
            monkeypatch.setattr(os, name, real)
            raise OSError(errno.EIO, "broken disk")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(saving, "may_overwrite", lambda sizes: False)
    monkeypatch.setattr(os, name, failing)
    with pytest.raises(OSError, match="broken disk"):
        save_one(tmp_path / "d", 2)
    assert version_at(tmp_path / "d") == 1
    save_one(tmp_path / "d", 3)
    assert version_at(tmp_path / "d") == 3


def test_a_limit_on_the_size_of_files_names_the_file(tmp_path: Path) -> None:
    TensorDict({"x": torch.zeros(20_000)}).memmap(tmp_path / "d")

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(OSError, match=r"too large.*x\.memmap"):
            TensorDict({"x": torch.ones(20_000)}).memmap(tmp_path / "d")

    assert in_child(save) == 0
    assert not TensorDict.load_memmap(tmp_path / "d")["x"].any()
    assert sorted(os.listdir(tmp_path / "d")) == ["meta.json", "x.memmap"]
