"""A dataset whose files somebody has replaced since it was mapped: its rows are those that were mapped, everywhere."""

import os
import shutil

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError
from tests.cells.kinds import plain, rows_of
from tests.cells.operations import OPERATIONS
from tests.products import sampled

ROWS = 60


def dataset(shift: int = 0) -> TensorDict:
    data = plain(ROWS)
    data["x"] += shift
    data["k"] *= -1 if shift else 1
    return data.set("n", TensorDict({"v": data["x"].float()}, [ROWS]))


def replaced(folder, how: str) -> TensorDict:
    """What was loaded from a folder that another dataset of the same shape has been put in place of."""
    dataset().memmap(folder)
    loaded = TensorDict.load_memmap(folder, mode="r" if how == "read only" else "r+") if how != "made" else None
    loaded = dataset().memmap(folder) if loaded is None else loaded
    if how == "folder":
        dataset(1000).memmap(folder.with_name("other"))
        folder.rename(folder.with_name("kept"))
        folder.with_name("other").rename(folder)
    else:
        dataset(1000).memmap(folder)
    return loaded


def add_one(chunk):
    return TensorDict({"y": chunk["x"] + 1}, chunk.batch_size)


def double(chunk):
    chunk["x"].mul_(2)


HOWS = ["writable", "read only", "made", "folder"]


@pytest.mark.parametrize(("name", "how"), sampled(2, OPERATIONS, HOWS))
def test_every_operation_reads_the_rows_that_were_mapped(tmp_path, name, how):
    operation, wanted = OPERATIONS[name], rows_of(dataset())
    data = replaced(tmp_path / "data", how)
    assert operation.read(operation.call(data, num_workers=2)) == operation.expected(wanted)
    if operation.has_output:
        result = operation.call(data, out=tmp_path / "out", num_workers=0)
        assert operation.read(result) == operation.expected(wanted)


def test_in_place_writes_the_rows_that_are_mapped_and_no_others(tmp_path):
    data = replaced(tmp_path / "data", "writable")
    tdmap.map(data, double, num_workers=2)
    assert torch.equal(data["x"], dataset()["x"] * 2)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "data")["x"], dataset(1000)["x"])


def test_results_go_to_the_output_that_is_mapped_and_to_no_other(tmp_path):
    out = TensorDict({"y": torch.zeros(ROWS, dtype=torch.int64)}, [ROWS])
    mapped = out.memmap(tmp_path / "out")
    out.memmap(tmp_path / "out")
    tdmap.map(dataset(), add_one, out=mapped, num_workers=2)
    assert torch.equal(mapped["y"], dataset()["x"] + 1)
    assert not TensorDict.load_memmap(tmp_path / "out")["y"].any()


class Replace(tdmap.events.Callback):
    """Puts another dataset in place of the one that is being read, so that a new worker finds that."""

    def __init__(self, folder):
        self.folder = folder
        self.done = False

    def on_lease_done(self, event):
        if not self.done:
            self.done = True
            dataset(1000).memmap(self.folder)


def test_a_worker_that_comes_later_does_not_open_another_file(tmp_path):
    """It takes the place of a killed one, when the files have been replaced under the running job."""
    dataset().memmap(tmp_path / "data")
    data, flag = TensorDict.load_memmap(tmp_path / "data"), tmp_path / "killed"

    def dies_once(chunk):
        if 0 not in chunk["x"] and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        return add_one(chunk)

    try:
        found = tdmap.map(
            data, dies_once, num_workers=1, chunksize=5, retries=3, callbacks=[Replace(tmp_path / "data")]
        )
    except DatasetError as error:
        assert "another file has taken the place" in str(error)
    else:
        assert torch.equal(found["y"], dataset()["x"] + 1)


def test_a_dataset_whose_folder_has_gone(tmp_path):
    dataset().memmap(tmp_path / "data")
    data = TensorDict.load_memmap(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    assert torch.equal(tdmap.map(data, add_one, num_workers=2)["y"], dataset()["x"] + 1)
