"""What killed saves left is removed, without looking through a folder of thousands of datasets at every save."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.memmap.disk import staging


def test_a_folder_of_many_entries_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu, looked = [0.0], itertools.count(100), []
    monkeypatch.setattr(staging.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(staging.time, "thread_time", lambda: float(next(cpu)))  # a second each time it is asked
    monkeypatch.setattr(staging, "_rests", {})
    monkeypatch.setattr(staging, "_sweep", lambda folder: looked.append(folder) or staging.FEW + 1)
    td = TensorDict({"a": torch.ones(2)}, [2])
    td.memmap(str(tmp_path / "0"))
    td.memmap(str(tmp_path / "1"))
    assert looked == [str(tmp_path)]
    td.memmap(str(tmp_path / "other" / "0"))
    assert looked == [str(tmp_path), str(tmp_path / "other")]
    clock[0] = 21.0
    td.memmap(str(tmp_path / "2"))
    assert looked[-1] == str(tmp_path)
    assert len(looked) == 3


def test_a_folder_of_few_entries_is_looked_through_by_every_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes, as on a busy machine: what a killed save left is gone with the next one."""
    cpu = itertools.count()
    monkeypatch.setattr(staging.time, "thread_time", lambda: float(next(cpu)))
    monkeypatch.setattr(staging, "_rests", {})
    td = TensorDict({"a": torch.ones(2)}, [2])
    for number in range(3):
        left = tmp_path / f".x.tdlite-{staging._host()}-{1 << 30}-0123abcd"  # no process has this number
        left.mkdir()
        td.memmap(tmp_path / str(number))
        assert not left.exists()


def test_an_interrupted_save_is_swept_by_the_next_save_of_its_process(tmp_path, monkeypatch):
    data, unlink, calls = TensorDict({"x": torch.zeros(9), "y": torch.zeros(9)}, [9]), os.unlink, []
    data.memmap(tmp_path / "data")

    def interrupted(path, *args, **kwargs):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        unlink(path, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", interrupted)
        data.memmap(tmp_path / "data")
    assert len(os.listdir(tmp_path)) == 2
    data.memmap(tmp_path / "data")
    assert os.listdir(tmp_path) == ["data"]
