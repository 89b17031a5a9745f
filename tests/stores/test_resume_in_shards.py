"""Operations with `resume=True` into shards and stores: the rows, and the copy of them, are resumed."""

import os
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap.run.status import read_status
from tensordict_lite import TensorDict
from tests.cells.operations import OPERATIONS

ROWS = 120


def make() -> TensorDict:
    x = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    return TensorDict({"x": x, "k": x % 40, "f": x.double() / 3}, [ROWS])


def call(name: str, out: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
        return OPERATIONS[name].call(
            make(), out=out, **{"rows_per_shard": 16, "resume": True, "num_workers": 0, **options}
        )


def left_behind() -> list[str]:
    """Folders for the rows of datasets in stores."""
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("tdmap-rows")]


class Interrupt(Exception):
    """Ends a session."""


class Stop(tdmap.events.Callback):
    """Ends a session after so many leases."""

    def __init__(self, leases: int) -> None:
        self.leases = leases

    def on_lease_done(self, event: Any) -> None:
        self.leases -= 1
        if self.leases < 0:
            raise Interrupt


class StopIn(tdmap.events.Callback):
    """Ends a session in the copy of the rows, or before it."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.job = ""

    def on_job_started(self, event: Any) -> None:
        self.job = event.name

    def on_lease_done(self, event: Any) -> None:
        if self.stage == ("copy" if self.job == "as_it_is" else "rows"):
            raise Interrupt


@pytest.fixture
def store(monkeypatch, tmp_path):
    """The URL of a place in a store, and a temporary folder of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return f"memory://resumed-{uuid.uuid4().hex}/out"


@pytest.mark.parametrize("stage", ["rows", "copy", "complete"])
def test_another_call_is_refused_by_name(stage, tmp_path):
    out, options = tmp_path / "out", {"rows_per_shard": 16, "resume": True, "num_workers": 0}
    try:
        call("sort", out, callbacks=[StopIn(stage)])
    except Interrupt:
        assert stage != "complete"
    assert (out / ".tdmap" / "run.json").exists() is (stage != "rows")
    assert read_status(out).state == ("complete" if stage == "complete" else "interrupted")
    with pytest.raises(tdmap.errors.ResumeMismatch, match="the argument key was 'x', and is 'f'"):
        tdmap.sort(make(), "f", out=out, **options)
    with pytest.raises(FileExistsError, match="holds a dataset already" if stage == "complete" else "unfinished run"):
        tdmap.sort(make(), "x", out=out, rows_per_shard=16)
    assert call("sort", out)[:]["x"].tolist() == list(range(ROWS))


def test_a_call_that_is_complete_is_not_done_again(tmp_path, store):
    for out in (tmp_path / "out", store):
        call("sort", out)
        with pytest.warns(tdmap.errors.AlreadyComplete, match="the run of sort was complete before"):
            again = tdmap.sort(make(), "x", out=out, rows_per_shard=16, resume=True, num_workers=0, callbacks=[Stop(0)])
        assert len(again) == ROWS


def test_interrupted_rows_do_not_lie_where_others_look(store, tmp_path):
    with pytest.raises(Interrupt):
        call("sort", store, callbacks=[StopIn("rows")])
    (folder,) = left_behind()
    assert Path(tempfile.gettempdir(), folder).stat().st_mode & 0o077 == 0
