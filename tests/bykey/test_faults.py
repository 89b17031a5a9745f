"""A worker killed in any job of an operation by key changes no bit of the result, and leaves no file."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.reducers import Count, Mean, Quantile, Reducer, Sum
from tensordict_lite import TensorDict


@pytest.fixture(autouse=True)
def small_pieces():
    """Workers do every job, in many chunks."""
    with tuning.use(partition_bytes=4096, light_bytes=0, near_bytes=0):
        yield


class Killer(tdmap.events.Callback):
    """Kills a worker in each job, as soon as it has done something."""

    def __init__(self):
        self.jobs, self.killed = [], {}

    def on_job_started(self, event):
        self.jobs.append(event.job)

    def on_lease_done(self, event):
        if event.job not in self.killed and event.worker != os.getpid():
            self.killed[event.job] = event.worker
            os.kill(event.worker, signal.SIGKILL)


def dataset(rows):
    random = torch.Generator().manual_seed(0)
    keys = torch.randint(0, rows // 3, (rows,), generator=random)
    return TensorDict({"k": keys, "v": torch.randn(rows, generator=random), "row": torch.arange(rows)}, [rows])


def leaves(data):
    return {key: leaf.contiguous().view(torch.uint8).tolist() for key, leaf in data.items(True, True)}


REDUCERS = {"sum": Sum("v"), "mean": Mean("v"), "n": Count()}

OPERATIONS = {
    "reduce": lambda data, **options: tdmap.group_by(data, "k").reduce(REDUCERS, **options),
    "one by one": lambda data, **options: tdmap.group_by(data, "k").reduce({"q": Quantile("v")}, **options),
    "map_groups": lambda data, **options: tdmap.group_by(data, "k").map_groups(lambda rows: rows[:2], **options),
    "sort": lambda data, **options: tdmap.sort(data, ["k", "v"], **options),
    "join": lambda data, **options: tdmap.join(data, data, "k", **options),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_killed_worker_in_each_job(name, tmp_path):
    data, operation, killer = dataset(4000), OPERATIONS[name], Killer()
    expected = operation(data, num_workers=0, chunksize=100)
    result = operation(data, num_workers=2, chunksize=100, out=tmp_path / "out", retries=9, callbacks=[killer])
    assert leaves(result) == leaves(expected)
    assert len(killer.jobs) >= 2 and set(killer.killed) == set(killer.jobs)
    assert not (tmp_path / "out" / ".tdmap").exists()


@tuning.use(available_memory=0, bucket_bytes=1024)
def test_a_killed_worker_while_rows_travel_with_their_keys(tmp_path):
    test_a_killed_worker_in_each_job("sort", tmp_path)


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


def test_a_worker_that_dies_within_a_chunk(tmp_path):
    data = dataset(3000)
    marker = str(tmp_path / "died")

    def key(rows):
        if 1500 in rows["row"] and len(rows) == 100:  # a chunk, not the sample that the caller reads
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return rows["k"]

    # The chunk in the middle is read by the caller too, so one beside it is chosen.
    data["row"] = (data["row"] + 300) % 3000
    result = tdmap.group_by(data, key).reduce({"n": Count()}, num_workers=2, chunksize=100)
    assert os.path.exists(marker)
    assert result["n"].tolist() == data["k"].unique(return_counts=True)[1].tolist()


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
