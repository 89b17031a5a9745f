"""Children that are forked while a folder is locked: they keep nobody waiting when their parent is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.memmap import writer
from tensordict_lite.memmap.disk import locks, staging
from tests.descriptors import descriptors
from tests.processes import in_child


def dataset(value: int) -> TensorDict:
    return TensorDict({"x": torch.full((5,), value), "y": torch.full((5, 2), value)}, [5])


def save(path: Path) -> None:
    dataset(2).memmap(path)


def save_beside_a_file(path: Path) -> None:
    (path / "notes.txt").touch()
    save(path)


def read(path: Path) -> None:
    TensorDict.load_memmap(path)


def append(path: Path) -> None:
    with writer.DatasetWriter(path) as rows:
        rows.append(dataset(2))


CASES = {
    "exchanged": (save, staging, "_exchanged"),
    "moved in": (save_beside_a_file, staging.Staging, "_move_in"),
    "read": (read, locks, "is_at"),
    "append": (append, writer.DatasetWriter, "_commit"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_child_of_a_killed_process_keeps_no_folder_locked(tmp_path: Path, case: str) -> None:
    work, owner, name = CASES[case]
    dataset(1).memmap(tmp_path / "d")
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


@pytest.mark.parametrize("work", [save, save_beside_a_file, read, append])
def test_nothing_stays_open(tmp_path: Path, work: Callable[[Path], None]) -> None:
    dataset(1).memmap(tmp_path / "d")
    before = descriptors()
    work(tmp_path / "d")
    assert descriptors() == before
