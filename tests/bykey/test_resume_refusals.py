"""What a resumed operation by key refuses and finds: other calls, other writers, planted files, a power loss."""

import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.errors import ResumeMismatch, UntrustedFile
from tdmap.reducers import Count, Sum
from tdmap.run import disk, history, log
from tdmap.run.history import History
from tdmap.run.log import framed
from tdmap.run.status import describe, read_status
from tdmap.run.values import pack, unpack
from tensordict_lite import TensorDict
from tests import journals
from tests.processes import in_child

ROWS = 400


class Interrupt(Exception):
    """Ends a session."""


class Stop(tdmap.events.Callback):
    """Raises, or kills, when the second job has begun and some of its chunks are done."""

    def __init__(self, kill: bool = False) -> None:
        self.jobs = 0
        self.kill = kill

    def on_job_started(self, event: Any) -> None:
        self.jobs += 1

    def on_lease_done(self, event: Any) -> None:
        if self.jobs > 1:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interrupt


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)
    x = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    with tuning.use(log_seconds=0):
        yield TensorDict({"x": x, "v": torch.arange(ROWS).double(), "b": x % 3}, [ROWS]).memmap(tmp_path / "in")


def sort(data: Any, out: Path, **options: Any) -> Any:
    given = {"chunksize": 50, "num_workers": 0, "resume": True, **options}
    return tdmap.sort(data, given.pop("key", "x"), out=out, **given)


def begin(data: Any, out: Path) -> None:
    with pytest.raises(Interrupt):
        sort(data, out, callbacks=[Stop()])


def negated(chunk: Any) -> Any:
    return -chunk["x"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": "v"}, "the argument key was 'x', and is 'v'"),
        ({"key": ["x", "b"]}, "the argument key was 'x', and is ['x', 'b']"),
        ({"key": negated}, "it was a call of sort, and is one of sort(negated)"),
        ({"descending": True}, "the argument descending was False, and is True"),
        ({"chunksize": 60}, "the option chunksize was 50, and is 60"),
    ],
)
def test_another_call_is_refused_and_told_apart(changed, said, data, tmp_path):
    begin(data, tmp_path / "out")
    with pytest.raises(ResumeMismatch, match=re.escape(said)):
        sort(data, tmp_path / "out", **changed)
    assert torch.equal(sort(data, tmp_path / "out")["x"], torch.arange(ROWS))


def test_another_reducer_key_function_or_second_dataset_is_refused(data, tmp_path):
    groups, out = tdmap.group_by(data, "b"), tmp_path / "out"
    groups.reduce({"s": Sum("v")}, out=out, resume=True, num_workers=0)
    with pytest.raises(ResumeMismatch, match=r"result of another run(.|\n)*differs in: reducers 's'"):
        groups.reduce({"s": Sum("x")}, out=out, resume=True, num_workers=0)
    counted = {"out": tmp_path / "counted", "resume": True, "num_workers": 0}
    tdmap.group_by(data, lambda chunk: chunk["x"] % 3).reduce(Count(), **counted)
    with pytest.raises(ResumeMismatch, match=r"result of another run(.|\n)*differs in: key function"):
        tdmap.group_by(data, lambda chunk: chunk["x"] % 5).reduce(Count(), **counted)
    b = TensorDict({"b": torch.arange(3), "y": torch.arange(3)}, [3])
    tdmap.join(data, b, "b", out=tmp_path / "joined", resume=True, num_workers=0)
    b["y"][1] = 7
    with pytest.raises(ResumeMismatch, match="differs in: b: 'y'"):
        tdmap.join(data, b, "b", out=tmp_path / "joined", resume=True, num_workers=0)


def test_a_call_that_was_wrong_from_the_beginning_is_forgotten(data, tmp_path):
    with pytest.raises(KeyError, match="vv"):
        sort(data, tmp_path / "out", key="vv")
    assert read_status(tmp_path / "out") is None
    assert torch.equal(sort(data, tmp_path / "out")["x"], torch.arange(ROWS))


def test_a_draw_without_a_seed_is_drawn_once(data, tmp_path):
    torch.manual_seed(0)
    out = tmp_path / "out"

    def shuffle() -> Any:
        return tdmap.shuffle(data, None, out=out, resume=True, num_workers=0)

    def die() -> None:
        tdmap.shuffle(data, None, out=out, resume=True, num_workers=0, callbacks=[Die()])

    class Die(tdmap.events.Callback):
        def on_job_started(self, event: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == signal.SIGKILL
    drawn = History(out / ".tdmap" / "journal").decided["seed 0"]
    wanted = torch.randperm(ROWS, generator=torch.Generator().manual_seed(drawn))
    assert torch.equal(shuffle()["x"], data["x"][wanted])


def test_the_status_tells_the_job_and_its_chunks(data, tmp_path):
    begin(data, tmp_path / "out")
    status = read_status(tmp_path / "out")
    assert status.state == "interrupted" and status.kind == "several jobs" and status.rows_done == 0
    assert status.step is not None and status.step[0] == 2
    assert any(line.startswith("job 2: ") for line in describe(status))
    sort(data, tmp_path / "out")
    status = read_status(tmp_path / "out")
    assert status.state == "complete" and status.step is None and status.rows_done == ROWS


@pytest.mark.parametrize("lost", ["spill-*", "spill-*-index-0", "data", "journal"])
def test_files_that_somebody_has_removed_are_made_again(lost, data, tmp_path):
    def die() -> None:
        sort(data, tmp_path / "out", callbacks=[Stop(kill=True)])

    assert in_child(die) == signal.SIGKILL
    for path in (tmp_path / "out" / ".tdmap").glob(lost):
        os.rename(path, tmp_path / path.name)
    assert torch.equal(sort(data, tmp_path / "out")["x"], torch.arange(ROWS))


def test_links_in_the_place_of_its_files_are_not_followed(data, tmp_path):
    begin(data, tmp_path / "out")
    hidden, secret = tmp_path / "out" / ".tdmap", tmp_path / "secret"
    secret.write_bytes(b"secret")
    (index,) = hidden.glob("spill-*-index-0")
    os.rename(index, tmp_path / "index")
    os.symlink(tmp_path / "index", index)
    with pytest.raises(UntrustedFile):
        sort(data, tmp_path / "out")
    os.remove(index)
    os.rename(hidden / "journal", tmp_path / "journal")
    os.symlink(secret, hidden / "journal")
    with pytest.raises(UntrustedFile):
        sort(data, tmp_path / "out")
    assert secret.read_bytes() == b"secret"


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "notes"])
def test_records_that_name_other_files_are_refused(name, data, tmp_path):
    begin(data, tmp_path / "out")
    path, changed, count = tmp_path / "out" / ".tdmap" / "journal", log.MAGIC, 0
    for frame in journals.frames(path):
        body = frame.body
        if frame.kind == b"C" and b"spill-" in body:
            values = unpack(body[history.CHUNKS.size :])
            values["files"] = [name] * len(values["files"])
            body, count = body[: history.CHUNKS.size] + pack(values), count + 1
        changed += framed(body)
    assert count
    path.write_bytes(changed)
    (tmp_path / "secret").write_bytes(bytes(1 << 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(sort(data, tmp_path / "out")["x"], torch.arange(ROWS))  # their chunks are done again


def test_a_user_function_may_call_operations_itself(data, tmp_path):
    def counted(rows: Any) -> Any:
        inner = tdmap.sort(rows, "v", descending=True, num_workers=0)
        return TensorDict({"b": inner["b"][:1], "v": inner["v"][:1], "n": torch.tensor([len(inner)])}, [1])

    groups = tdmap.group_by(data, "b")
    found = groups.map_groups(counted, out=tmp_path / "out", resume=True, num_workers=0)
    counts = groups.reduce({"n": Count()}, num_workers=0)
    assert torch.equal(found["n"], counts["n"])
