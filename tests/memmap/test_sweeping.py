"""What killed saves left is removed, without looking through a folder of thousands of datasets at every save."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tensordict_lite import TensorDict
from tensordict_lite.memmap.disk import staging


def test_a_folder_that_takes_long_to_look_through_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu, looked = [0.0], itertools.count(), []
    monkeypatch.setattr(staging.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(staging.time, "thread_time", lambda: float(next(cpu)))  # a second each time it is asked
    monkeypatch.setattr(staging, "_rests", {})
    monkeypatch.setattr(staging, "_sweep", looked.append)
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
