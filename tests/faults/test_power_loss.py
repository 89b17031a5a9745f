"""The machine went down in the middle of an in-place run: what is refused, and the two ways on."""

import json
import os

import pytest
import torch

import tdmap
from tdmap.errors import ResumeMismatch
from tdmap.run import disk
from tdmap.run.history import History
from tdmap.run.ledger import Ledger
from tdmap.run.status import describe, read_status
from tensordict_lite import LazyStackedTensorDict, TensorDict
from tests import interpreters, journals
from tests.processes import comes_true

OPTIONS = {"num_workers": 2, "chunksize": 5}


class Interrupt(Exception):
    """Ends the first session."""


def interrupted(data, tmp_path, monkeypatch, change):
    """A run that has ended after some of its chunks; the machine starts anew, and nothing had reached the disk."""

    def fn(td):
        if int(td["row"][0]) == 100 and not os.path.exists(marker):
            open(marker, "w").close()
            raise Interrupt
        change(td)

    marker = str(tmp_path / "mark")
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    journals.next_boot(monkeypatch)
    return fn


@pytest.fixture
def data(tmp_path):
    return TensorDict({"x": torch.arange(200.0), "row": torch.arange(200)}, [200]).memmap(tmp_path / "in")


def test_the_error_and_the_status_name_the_ways_on(data, tmp_path, monkeypatch):
    fn = interrupted(data, tmp_path, monkeypatch, lambda td: td["x"].add_(1))
    with pytest.raises(ResumeMismatch, match="machine went down") as caught:
        tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    status = read_status(tmp_path / "in")
    assert status.torn
    for text in (str(caught.value), "\n".join(describe(status))):
        assert "resume='trust'" in text and "resume='redo'" in text and "from a copy" in text


def test_trust_goes_on_with_the_files_as_they_are(data, tmp_path, monkeypatch):
    fn = interrupted(data, tmp_path, monkeypatch, lambda td: td["x"].add_(1))
    tdmap.map(data, fn, out=data, resume="trust", **OPTIONS)
    assert torch.equal(data["x"], torch.arange(200.0) + 1)


def test_redo_runs_again_what_may_not_have_reached_the_disk(data, tmp_path, monkeypatch):
    fn = interrupted(data, tmp_path, monkeypatch, lambda td: td["x"].clamp_(max=50))
    # What the crash left: one chunk says that it is done and is old, another is half new, with a torn copy.
    ledger = Ledger(tmp_path / "in" / ".tdmap", data, tdmap.plan.ChunkPlan(200, 5))
    data["x"][60:65] = torch.arange(60.0, 65.0)
    ledger.done[12] = 1
    room = ledger.room()
    room.mark[0] = 31
    room.buffers[0].fill_(-1)
    tdmap.map(data, fn, out=data, resume="redo", **OPTIONS)
    assert torch.equal(data["x"], torch.arange(200.0).clamp(max=50))
    assert torch.equal(TensorDict.load_memmap(tmp_path / "in")["row"], torch.arange(200))


@pytest.mark.parametrize("resume", ["trust", "redo"])
def test_another_run_does_not_begin_over_rows_that_may_be_changed(data, tmp_path, monkeypatch, resume):
    interrupted(data, tmp_path, monkeypatch, lambda td: td["x"].add_(1))
    for pattern in ("done", "undo-*"):  # the ledger was lost, and rows were not
        for file in (tmp_path / "in" / ".tdmap").glob(pattern):
            file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(ResumeMismatch, match="unfinished in-place run that differs"):
        tdmap.map(data, lambda td: td["x"].mul_(3), out=data, resume=resume, **OPTIONS)


def test_redo_keeps_what_had_reached_the_disk(data, tmp_path, monkeypatch):
    fn = interrupted(data, tmp_path, monkeypatch, lambda td: td["x"].add_(1))
    path = tmp_path / "in" / ".tdmap" / "journal"
    contents = History(path)
    journals.say_durable(path)  # the helper had been in time for everything
    tdmap.map(data, fn, out=data, resume="redo", **OPTIONS)
    times = data["x"] - torch.arange(200.0)
    for start, stop in contents.ranges:
        assert (times[5 * start : 5 * stop] == 1).all()
    assert contents.ranges and set(times.tolist()) <= {1.0, 2.0}  # 2: redone, because its record was lost


def test_after_a_death_of_processes_both_are_as_true(data, tmp_path):
    for resume in ("trust", "redo"):
        folder = tmp_path / resume
        again = data.clone().memmap(folder / "in")
        with pytest.MonkeyPatch.context() as patch:
            fn = interrupted(again, folder, patch, lambda td: td["x"].add_(1))
        tdmap.map(again, fn, out=again, resume=resume, **OPTIONS)
        assert torch.equal(again["x"], torch.arange(200.0) + 1)


def test_any_other_word_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="True, False, 'trust' or 'redo'"):
        tdmap.map(data, lambda td: None, out=data, resume="maybe", **OPTIONS)


def test_the_command_line_goes_on(tmp_path):
    (tmp_path / "functions.py").write_text(
        "import os\n\ndef negate(td):\n    if 50 in td['x'] and not os.path.exists('mended'):\n"
        "        raise ValueError('row fifty')\n    td['x'].neg_()\n"
    )
    TensorDict({"x": torch.arange(100)}, [100]).memmap(tmp_path / "in")

    def command(*arguments):
        return interpreters.run(["-m", "tdmap", *arguments], cwd=tmp_path)

    line = ["map", "functions:negate", "in", "--in-place", "--chunksize", "5", "--num-workers", "1", "--resume"]
    assert command(*line).returncode == 1
    path = tmp_path / "in" / ".tdmap" / "journal"
    # The program does not wait for the disk: what brings the rows there says so in the journal, some time later.
    assert comes_true(lambda: History(path).is_settled(disk.boot_number() + 1))
    journals.keep(path, b"HSBCNKEF", boots=1)  # another boot, and nothing reached the disk
    (tmp_path / "mended").touch()
    refused = command(*line)
    assert refused.returncode == 2 and "machine went down" in refused.stderr
    assert json.loads(command("status", "in", "--json").stdout)["torn"] is True
    assert command(*line, "--trust", "--redo").returncode == 2
    done = command(*line, "--trust")
    assert done.returncode == 0, done.stderr
    assert torch.equal(TensorDict.load_memmap(tmp_path / "in")["x"], -torch.arange(100))


def test_another_name_of_the_machine_is_not_another_boot(monkeypatch):
    here = disk.boot_number()
    name = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(name)(("Linux", "other-container", *name[2:])))
    assert disk.boot_number() == here


def test_a_lazy_stack_in_place_is_refused_with_the_ways_on(tmp_path):
    parts = [TensorDict({"x": torch.arange(3.0) + row}, [3]) for row in range(10)]
    stack = LazyStackedTensorDict(*parts, stack_dim=0).memmap(tmp_path / "lazy")
    with pytest.raises(ValueError, match="LazyStackedTensorDict.*save the rows as columns first"):
        tdmap.map(stack, lambda td: td.apply_(lambda x: x + 1), out=stack, resume=True, **OPTIONS)
    assert not (tmp_path / "lazy" / ".tdmap").exists()
    result = tdmap.map(
        stack, lambda td: td.contiguous().apply(lambda x: x + 1), out=tmp_path / "out", resume=True, **OPTIONS
    )
    assert torch.equal(result["x"], stack["x"] + 1)
