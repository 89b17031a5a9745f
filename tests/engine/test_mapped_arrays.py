"""Columns of `np.memmap`: workers open their files, and nothing is copied into shared memory."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap.reducers import Sum
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError

ROWS, WIDTH = 8000, 1024
WORKERS = [{"mp_start_method": "fork"}, {"mp_start_method": "forkserver"}]


def shared_bytes() -> int:
    """Shared memory that this process has touched."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) << 10


def array(path: Path, mode: str = "r+", offset: int = 0) -> np.memmap:
    made = np.memmap(path, np.float32, "w+", offset=offset, shape=(ROWS, WIDTH))
    made[:] = np.arange(ROWS)[:, None]
    made.flush()
    return np.memmap(path, np.float32, mode, offset=offset, shape=(ROWS, WIDTH))


pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


def dataset(values: np.ndarray) -> TensorDict:
    return TensorDict({"x": torch.from_numpy(values)}, [ROWS])


def total(td):
    return td["x"][:, 0].double().sum()


CALLS = {
    "iter": lambda d, **o: sum(float(total(batch)) for batch in d.pipeline().batch(20).iter(**o)),
    "epochs": lambda d, **o: sum(float(total(b)) for b in d.pipeline().shuffle(1).repeat(2).batch(20).iter(**o)) / 2,
    "reduce": lambda d, **o: float(
        d.pipeline().map(lambda td: TensorDict({"s": td["x"][:, 0]}, td.shape)).reduce(Sum("s"), **o)
    ),
    "map_iter": lambda d, **o: sum(float(value) for value in tdmap.map_iter(d, total, **o)),
    "map_reduce": lambda d, **o: float(tdmap.map_reduce(d, total, torch.add, **o)),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "mode, offset, part", [("r", 0, slice(None)), ("r+", 4096, slice(1, None)), ("r+", 12, slice(0, None, 2))]
)
@pytest.mark.parametrize("call", list(CALLS))
def test_reading_copies_nothing_into_shared_memory(call, mode, offset, part, workers, tmp_path):
    data = dataset(array(tmp_path / "x.bin", mode, offset))[part]
    wanted = float(total(data))
    before = shared_bytes()  # with results that are under way
    assert CALLS[call](data, num_workers=2, **workers) == wanted
    assert shared_bytes() - before < data["x"].nbytes // 2


def increment(td):
    td["x"].add_(1)


@pytest.mark.parametrize("workers", WORKERS)
def test_rows_that_are_changed_in_place_are_changed_in_the_file(workers, tmp_path):
    values = array(tmp_path / "x.bin")
    data = dataset(values)
    tdmap.map(data, increment, out=data, num_workers=2, **workers)
    assert (values[:, 0] == np.arange(1, ROWS + 1)).all()
    assert (np.fromfile(tmp_path / "x.bin", np.float32) == values.ravel()).all()
    with pytest.raises(PermissionError, match="is read-only"):
        read_only = dataset(np.memmap(tmp_path / "x.bin", np.float32, "r", shape=(ROWS, WIDTH)))
        tdmap.map(read_only, increment, out=read_only, num_workers=2, **workers)


def test_what_is_not_the_file_any_more_is_copied(tmp_path):
    private = array(tmp_path / "x.bin", "c")
    private[:] = 7
    assert CALLS["iter"](dataset(private), num_workers=2) == 7 * ROWS
    values = array(tmp_path / "y.bin")
    (tmp_path / "new").write_bytes(bytes(values.nbytes))
    os.replace(tmp_path / "new", tmp_path / "y.bin")
    assert CALLS["iter"](dataset(values), num_workers=2) == sum(range(ROWS))
    values = array(tmp_path / "z.bin", offset=2)  # no multiple of the size of an element
    assert CALLS["iter"](dataset(values), num_workers=2) == sum(range(ROWS))
    os.unlink(tmp_path / "z.bin")
    assert CALLS["iter"](dataset(values), num_workers=2) == sum(range(ROWS))


@pytest.mark.parametrize("options", [{"num_workers": 0}, *({"num_workers": 2, **workers} for workers in WORKERS)])
@pytest.mark.parametrize("call", ["iter", "epochs", "map_iter", "map_reduce"])
def test_a_truncated_file_is_an_error_that_names_it(call, options, tmp_path):
    data = dataset(array(tmp_path / "x.bin"))
    os.truncate(tmp_path / "x.bin", 4096)
    with pytest.raises(DatasetError, match=r"x\.bin: .*truncated"):
        CALLS[call](data, **options)
