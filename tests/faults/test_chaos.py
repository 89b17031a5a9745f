"""Workers and drivers are killed again and again: the output is that of a run that nobody disturbed."""

import signal
import time
from itertools import product

import pytest
import torch

import tdmap
from tdmap import tuning
from tensordict_lite import TensorDict
from tests.processes import in_child

from .test_every_operation import AtRandom
from .test_every_step import Total, result


def double(td):
    """Out of place; draws random numbers too."""
    time.sleep(0.001)
    return TensorDict({"y": td["x"] * 2, "noise": torch.rand(td.batch_size)}, td.batch_size)


def advance(td):
    """In place, and slow in the middle, where the rows are half changed."""
    td["x"].add_(1)
    td["row"].mul_(3)
    time.sleep(0.001)
    td["x"].mul_(1.5)
    td["row"].add_(1)


def slowly(td):
    time.sleep(0.001)
    return td


def run(mode, folder, callbacks=()):
    data = TensorDict.load_memmap(folder / "in")
    options = {"num_workers": 2, "chunksize": 16, "retries": 1000, "seed": 5, "callbacks": [*callbacks]}
    if mode == "map":
        tdmap.map(data, double, out=folder / "out", resume=True, **options)
    elif mode == "in place":
        tdmap.map(data, advance, out=data, resume=True, **options)
    else:
        answer = tdmap.map_reduce(data, slowly, Total(), resume=folder / "out", **options)
        (folder / "answer").write_bytes(answer.numpy().tobytes())


LONG = [pytest.mark.soak, pytest.mark.timeout(1200)]
LARGE = [("map", 200_000), ("in place", 200_000), ("reduce", 40_000)]  # a killed reduction loses what it had not saved


@pytest.mark.parametrize(
    "mode, rows, seed",
    [
        ("in place", 600, 0),
        ("reduce", 400, 0),  # test_every_operation.py has the others
        *(pytest.param(*case, seed, marks=LONG) for case, seed in product(LARGE, range(5))),
    ],
)
def test_killed_workers_and_drivers_change_no_byte(mode, rows, seed, tmp_path):
    x = torch.randn(rows, generator=torch.Generator().manual_seed(0))
    for place in ("disturbed", "quiet"):
        TensorDict({"x": x, "row": torch.arange(rows)}, [rows]).memmap(tmp_path / place / "in")
    status, deaths = -1, -1
    while status:
        deaths += 1
        chaos = AtRandom(1000 * seed + deaths)
        with tuning.use(log_seconds=0, lease_seconds=0.003 if rows < 1000 else tuning.DEFAULT.lease_seconds):
            status = in_child(lambda: run(mode, tmp_path / "disturbed", [chaos]))  # noqa: B023
        assert status in (0, signal.SIGKILL)
    run(mode, tmp_path / "quiet")
    assert result(mode, tmp_path / "disturbed") == result(mode, tmp_path / "quiet")
    assert deaths >= 2
