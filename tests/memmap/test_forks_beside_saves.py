"""Children that are forked while a folder is locked: they keep nobody waiting when their parent is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.memmap import writer
from tensordict_lite.memmap.disk import inplace, staging, turns
from tests.descriptors import descriptors
from tests.processes import in_child


def dataset(value: int) -> TensorDict:
    return TensorDict({"x": torch.full((5,), value), "y": torch.full((5, 2), value)}, [5])


def save(path: Path) -> None:
    dataset(2).memmap(path)


def save_a_longer_one(path: Path) -> None:
    torch.cat([dataset(2), dataset(2)]).memmap(path)


def change_one_large_file(path: Path) -> None:
    TensorDict({"x": torch.full((5000,), 2)}, [5000]).memmap(path)


def read(path: Path) -> None:
    TensorDict.load_memmap(path)


def append(path: Path) -> None:
    with writer.DatasetWriter(path) as rows:
        rows.append(dataset(2))


CASES = {
    "in place": (save, inplace, "_write"),
    "moved in": (save_a_longer_one, staging.Staging, "_move_in"),
    "one file": (change_one_large_file, staging, "_replace_file"),
    "read": (read, turns, "is_at"),
    "append": (append, writer.DatasetWriter, "_commit"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_child_of_a_killed_process_keeps_no_folder_locked(tmp_path: Path, case: str) -> None:
    if case == "in place" and not os.major(tmp_path.stat().st_dev):
        pytest.skip("the temporary folder is not on a disk of this machine")
    work, owner, name = CASES[case]
    (TensorDict({"x": torch.zeros(5000).long()}, [5000]) if case == "one file" else dataset(1)).memmap(tmp_path / "d")
    (tells, told), (waits, goes) = os.pipe(), os.pipe()

    def forking_and_killed() -> None:
        def step(*args: Any, **kwargs: Any) -> None:
            child = os.fork()
            if child == 0:
                os.close(goes)
                os.write(told, b".")
                os.read(waits, 1)  # until the test has ended
                os._exit(0)
            os.read(tells, 1)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, step)
        work(tmp_path / "d")

    try:
        assert in_child(forking_and_killed) == signal.SIGKILL
        dataset(3).memmap(tmp_path / "d")
        assert TensorDict.load_memmap(tmp_path / "d")["y"].eq(3).all()
    finally:
        for end in (goes, waits, tells, told):
            os.close(end)


@pytest.mark.parametrize("work", [save, save_a_longer_one, read, append])
def test_nothing_stays_open(tmp_path: Path, work: Callable[[Path], None]) -> None:
    dataset(1).memmap(tmp_path / "d")
    before = descriptors()
    work(tmp_path / "d")
    assert descriptors() == before
