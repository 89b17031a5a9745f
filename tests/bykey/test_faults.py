"""A worker killed in any job of an operation by key changes no bit of the result, and leaves no file."""

import os
import signal

import pytest
import torch

import tdmap
from tdmap.reducers import Count, Reducer
from tensordict_lite import TensorDict


def dataset(rows):
    random = torch.Generator().manual_seed(0)
    keys = torch.randint(0, rows // 3, (rows,), generator=random)
    return TensorDict({"k": keys, "v": torch.randn(rows, generator=random), "row": torch.arange(rows)}, [rows])


class Dying(Reducer):
    """Kills its process in the middle of a partition, once."""

    def __init__(self, marker):
        self.marker = marker

    def init(self):
        return 0

    def update(self, state, chunk, start=0):
        if int(chunk["k"][0]) == 500:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return state + len(chunk)

    def merge(self, a, b):
        return a + b


def test_a_worker_that_dies_within_a_partition(tmp_path):
    data = dataset(3000)
    counted = tdmap.group_by(data, "k").reduce({"n": Dying(str(tmp_path / "died"))}, num_workers=2)
    assert (tmp_path / "died").exists()
    assert counted["n"].tolist() == data["k"].unique(return_counts=True)[1].tolist()


@pytest.mark.parametrize("where", ["out", "spill", "temporary"])
def test_no_file_is_left_after_an_error(where, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    data = dataset(3000)
    spill = str(tmp_path / "spill") if where == "spill" else None
    out = tmp_path / "out" if where == "out" else None

    def fail(rows):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tdmap.group_by(data, "k", spill_dir=spill).map_groups(fail, num_workers=2, out=out, chunksize=100)
    assert [path for path in tmp_path.rglob("*") if path.name != "spill"] == []


def test_a_key_that_always_kills_is_named():
    def poison(rows):
        if len(rows) == 100 and int(rows["row"][0]) == 700:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows["k"]

    with pytest.raises(tdmap.errors.WorkerLost, match="rows 700:800"):
        tdmap.group_by(dataset(3000), poison).reduce(Count(), num_workers=2, chunksize=100)
