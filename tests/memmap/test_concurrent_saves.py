"""Several processes save into one folder at once: each of them is there whole, one after the other."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict
from tests.memmap.test_crash import STEPS
from tests.processes import forked, kill_at

PROCESSES, LEAVES, ROUNDS = 4, 8, 6


def rows(number: int) -> TensorDict:
    """A dataset that tells by every element, and by its length, who has written it."""
    source = {f"k{leaf}": torch.full((300 + number,), number) for leaf in range(LEAVES)}
    source["nested"] = {"x": torch.full((300 + number, 2), float(number))}
    return TensorDict(source, [300 + number])


def is_whole(data: TensorDict, number: int) -> bool:
    return len(data) == 300 + number and all(bool((leaf == number).all()) for leaf in data.values(True, True))


@pytest.mark.parametrize("options", [{}, {"atomic": True}], ids=["", "atomic"])
@pytest.mark.parametrize("existing", [False, True], ids=["new folder", "over a dataset"])
def test_concurrent_saves_do_not_mix(tmp_path: Path, existing: bool, options: dict[str, bool]) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / ("out" if existing else f"out{number}")
        if existing and not number:
            rows(9).memmap(folder)

        def save(number: int, folder: Path = folder) -> int:
            return 0 if is_whole(rows(number).memmap(folder, **options), number) else 1

        assert forked(save, PROCESSES) == [0] * PROCESSES
        last = TensorDict.load_memmap(folder)
        assert is_whole(last, len(last) - 300)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize("length", [300, 309], ids=["in place", "moved in"])
def test_an_atomic_save_works_after_one_that_was_killed_at_any_step(tmp_path: Path, length: int, every: int) -> None:
    number, killed = 0, True
    while killed:
        number += every
        folder = tmp_path / f"d{number}"
        rows(0).memmap(folder)
        killed = kill_at(number, lambda folder=folder: rows(length - 300).memmap(folder), STEPS)
        rows(7).memmap(folder, atomic=True)
        assert is_whole(TensorDict.load_memmap(folder), 7)
        assert not [name for name in os.listdir(folder) if "tdlite" in name]
    assert number > 20


def test_a_save_whose_folder_is_exchanged_beneath_it_begins_anew(tmp_path: Path, monkeypatch: Any) -> None:
    """What a path leads to while a folder is made in it may be the old one, which is being removed."""
    rows(1).memmap(tmp_path / "d")
    real = os.mkdir

    def mkdir(path: Any, *args: Any) -> None:
        if os.path.dirname(path) == str(tmp_path / "d"):
            monkeypatch.setattr(os, "mkdir", real)
            raise FileNotFoundError(errno.ENOENT, "removed", path)
        real(path, *args)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert is_whole(rows(2).memmap(tmp_path / "d"), 2)
    assert os.mkdir is real and is_whole(TensorDict.load_memmap(tmp_path / "d"), 2)


def test_a_save_does_not_follow_a_link_in_place_of_a_nested_folder(tmp_path: Path) -> None:
    rows(1).memmap(tmp_path / "data")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.memmap").write_bytes(b"precious")
    for name in os.listdir(tmp_path / "data" / "nested"):
        os.unlink(tmp_path / "data" / "nested" / name)
    os.rmdir(tmp_path / "data" / "nested")
    os.symlink(tmp_path / "outside", tmp_path / "data" / "nested")
    with pytest.raises(RuntimeError, match="symlink"):
        rows(2).memmap(tmp_path / "data")
    assert os.listdir(tmp_path / "outside") == ["x.memmap"]
    assert (tmp_path / "outside" / "x.memmap").read_bytes() == b"precious"
