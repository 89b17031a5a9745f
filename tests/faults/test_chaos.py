"""Workers and drivers are killed again and again: the output is that of a run that nobody disturbed."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import tdmap
from tensordict_lite import TensorDict


def _load():
    spec = importlib.util.spec_from_file_location("_chaos", Path(__file__).with_name("_chaos.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["_chaos"] = module
    spec.loader.exec_module(module)
    return module


chaos = _load()


def compare(mode, folder, before, options):
    """The bytes of the disturbed output beside those of an undisturbed run."""
    if mode == "reduce":
        wanted = tdmap.map_reduce(before, None, chaos.Total(), **options)
        got = torch.load(folder / "answer.pt")
        assert torch.equal(got[0], wanted[0]) and got[1] == wanted[1], (got, wanted)
        return
    if mode == "map":
        wanted, got = tdmap.map(before, chaos.double, **options), TensorDict.load_memmap(folder / "out")
    else:
        wanted, got = tdmap.map(before, chaos.advance, out=before, **options), TensorDict.load_memmap(folder / "in")
    for key, leaf in wanted.items(True, True):
        assert torch.equal(got[key].view(torch.uint8), leaf.view(torch.uint8)), key


MODES = ("map", "in place", "reduce")
LONG = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "mode, rows, driver_kills, period, seed",
    [
        *((mode, 30_000, 2, 0.2, 0) for mode in ("in place", "reduce")),
        *(pytest.param(mode, 1_000_000, 60, 0.05, seed, marks=LONG) for seed in range(5) for mode in MODES),
    ],
)
def test_killed_workers_and_drivers_change_no_byte(mode, rows, driver_kills, period, seed, tmp_path):
    before = chaos.make(tmp_path, rows).clone()
    run = chaos.Chaos(mode, tmp_path, -(-rows // chaos.CHUNK), driver_kills, period, seed)
    run.run()
    chaos.PAUSE = 0  # for the run that nobody disturbs
    compare(mode, tmp_path, before, {"executor": "serial", "chunksize": chaos.CHUNK, "seed": 5})
    assert run.killed_drivers == driver_kills, run.points
    assert run.killed_workers >= driver_kills, run.killed_workers
