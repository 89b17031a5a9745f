"""A resumable run is killed at each of its steps: the next call finds it whole, or goes on to the same bytes."""

import fcntl
import os
import warnings
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.reducers import Reducer
from tdmap.run import disk
from tdmap.runtime import chunkloop, undo
from tensordict_lite import TensorDict
from tests.processes import in_child, kill_at

CALLS = ("open", "close", "write", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate", "fsync", "fdatasync")
STEPS = [
    *((os, name) for name in CALLS),
    (fcntl, "flock"),
    *((undo.Undo, name) for name in ("save", "restore", "release")),
    (chunkloop._Segments, "add"),
    *((torch.Tensor, name) for name in ("add_", "mul_", "copy_")),
]
"""Calls of the system, and steps of a chunk."""
ROWS, CHUNK = 48, 8
BAD = (10, 35)


def double(td):
    if any(row in BAD for row in td["row"].tolist()):
        raise ValueError("bad row")
    return TensorDict({"y": td["x"] * 2, "meta": {"row": td["row"]}, "noise": torch.rand(len(td))}, td.batch_size)


def change(td):
    td["x"].add_(1)
    if any(row in BAD for row in td["row"].tolist()):
        raise ValueError("bad row")
    td["x"].mul_(2)


class Total(Reducer):
    """A sum whose bits depend on the order of the additions."""

    def init(self):
        return torch.zeros(())

    def update(self, state, chunk, start=0):
        return state + (chunk["x"] * (1 + start * 1e-3)).sum()

    def merge(self, a, b):
        return a + b


@tuning.use(log_seconds=0)
def run(mode: str, folder: Path) -> list[int]:
    """The whole program; the rows that it reports as skipped."""
    disk.Helper._start = lambda self: False  # what matters here is the death of processes, not the disk
    errors = tdmap.RowErrors()
    data = TensorDict.load_memmap(folder / "in")
    options = {"executor": "serial", "chunksize": CHUNK, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
        if mode == "folder":
            tdmap.map(data, double, out=folder / "out", resume=True, on_error=errors, **options)
        elif mode == "files":
            out = TensorDict.load_memmap(folder / "out")
            tdmap.map(data, double, out=out, resume=True, on_error=errors, **options)
        elif mode == "in place":
            tdmap.map(data, change, out=data, resume=True, on_error=errors, **options)
        else:
            answer = tdmap.map_reduce(data, None, Total(), resume=folder / "out", **options)
            (folder / "answer").write_bytes(answer.numpy().tobytes())
    return errors.rows


def prepare(mode: str, folder: Path) -> Path:
    folder.mkdir()
    x = torch.randn(ROWS, generator=torch.Generator().manual_seed(0))
    TensorDict({"x": x, "row": torch.arange(ROWS)}, [ROWS]).memmap(folder / "in")
    os.utime(folder / "in" / "x.memmap", ns=(1, 1))
    if mode == "files":
        source = {"y": torch.zeros(ROWS), "meta": {"row": torch.arange(ROWS)}, "noise": torch.zeros(ROWS)}
        TensorDict(source, [ROWS]).memmap(folder / "out")
    return folder


def result(mode: str, folder: Path) -> dict[str, bytes]:
    """The bytes of everything that the run has made."""
    if mode == "reduce":
        return {"answer": (folder / "answer").read_bytes()}
    out = folder / ("in" if mode == "in place" else "out")
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*.memmap") if ".tdmap" not in p.parts}


LONG = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=LONG)])
@pytest.mark.parametrize("mode", ["folder", "files", "in place", "reduce"])
def test_a_run_that_is_killed_at_any_step(tmp_path, mode, every):
    wanted_folder = prepare(mode, tmp_path / "wanted")
    assert in_child(lambda: run(mode, wanted_folder)) == 0
    wanted = result(mode, wanted_folder)
    skipped = [] if mode == "reduce" else list(BAD)
    number, killed = 1 - every, True
    while killed:
        number += every
        work = prepare(mode, tmp_path / f"d{number}")
        killed = kill_at(number, lambda work=work: run(mode, work), STEPS)
        if mode == "folder" and (work / "out" / "meta.json").exists():  # what looks like a dataset is a whole one
            assert result(mode, work) == wanted
        kill_at(number, lambda work=work: run(mode, work), STEPS)  # and whoever goes on dies at the same number

        def last(work=work) -> None:
            assert run(mode, work) == skipped

        assert in_child(last) == 0
        assert result(mode, work) == wanted, f"killed at step {number}"
    assert number > 20
