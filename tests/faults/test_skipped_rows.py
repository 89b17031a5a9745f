"""Rows that were skipped before an interruption are reported by the sessions that follow, and by `tdmap status`."""

import json
import os
import signal
import warnings

import pytest
import torch

import tdmap
from tdmap.data.failures import note_skipped, skipped_frame
from tdmap.errors import AlreadyComplete, RemoteError
from tdmap.reducers import Count
from tdmap.run import log
from tdmap.run.status import describe, read_status
from tensordict_lite import TensorDict

BAD = [5, 6, 117, 150]
GOOD = [row for row in range(200) if row not in BAD]
OPTIONS = {"num_workers": 2, "chunksize": 5}


class Unreadable(Exception):
    """An exception of the user's own."""


class Stop(BaseException):
    """Ends a session in the middle."""


def check(td):
    for row in td["row"].tolist():
        if row in BAD:
            raise Unreadable(f"row {row}") if row == 6 else ValueError(f"cannot read row {row}")


def double(td):
    check(td)
    return TensorDict({"x": td["x"] * 2}, td.batch_size)


def increment(td):
    td["x"].add_(1)
    check(td)
    td["x"].mul_(2)


@pytest.fixture
def data(tmp_path):
    return TensorDict({"x": torch.arange(200.0), "row": torch.arange(200)}, [200]).memmap(tmp_path / "in")


class StopAfter(tdmap.events.Callback):
    """Ends the session once so many rows have been skipped."""

    def __init__(self, count):
        self.left = count

    def on_rows_skipped(self, event):
        self.left -= len(event.errors)

    def on_lease_done(self, event):
        if self.left <= 0:
            raise Stop


class End(tdmap.events.Callback):
    def on_job_ended(self, event):
        self.rows = [bad.row for bad in event.errors]


def run(mode, data, tmp_path, **options):
    options = {**OPTIONS, **options}
    if mode == "map":
        return tdmap.map(data, double, out=tmp_path / "out", resume=True, **options)
    if mode == "in place":
        return tdmap.map(data, increment, out=data, resume=True, **options)
    return tdmap.map_reduce(data, double, Count(), resume=tmp_path / "out", **options)


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
@pytest.mark.parametrize("mode", ["map", "in place", "reduce"])
def test_a_later_session_reports_the_rows_of_all_sessions(data, tmp_path, mode, executor):
    with pytest.raises(Stop):
        run(mode, data, tmp_path, on_error="skip", callbacks=[StopAfter(2)], executor=executor)
    errors, end = tdmap.RowErrors(), End()
    data = TensorDict.load_memmap(tmp_path / "in")
    result = run(mode, data, tmp_path, on_error=errors, callbacks=[end], executor=executor)
    assert errors.rows == end.rows == BAD
    assert [type(bad.error) for bad in errors][::2] == [ValueError, ValueError]
    assert str(errors[0].error) == "cannot read row 5" and "in check" in errors[0].traceback
    assert isinstance(errors[1].error, (Unreadable, RemoteError)) and "row 6" in str(errors[1].error)
    if mode == "reduce":
        assert int(result) == 196
    else:
        wanted = torch.arange(200.0)
        wanted[GOOD] = (wanted[GOOD] + (mode == "in place")) * 2
        wanted[BAD] *= mode == "in place"
        assert torch.equal(result["x"], wanted)


@pytest.mark.parametrize("mode", ["map", "in place", "reduce"])
def test_a_complete_run_reports_them_again(data, tmp_path, mode):
    with pytest.warns(tdmap.errors.SkippedRows):
        run(mode, data, tmp_path, on_error="skip")
    again = tdmap.RowErrors()
    with pytest.warns(AlreadyComplete):
        run(mode, data, tmp_path, on_error=again)
    assert again.rows == BAD
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(mode, data, tmp_path, on_error="skip")
    found = {warning.category: warning for warning in caught}
    assert found[tdmap.errors.SkippedRows].message.errors.rows == BAD
    # Not of what the collector finds of other tests.
    own = [warning for warning in caught if not issubclass(warning.category, ResourceWarning)]
    assert all(warning.filename == __file__ for warning in own)


def test_another_pass_in_place_does_not_inherit_them(data, tmp_path):
    run("in place", data, tmp_path, on_error=tdmap.RowErrors())
    errors = tdmap.RowErrors()
    tdmap.map(data, lambda td: td["x"].add_(1) and None, out=data, resume=True, on_error=errors, **OPTIONS)
    assert not errors and read_status(tmp_path / "in").skipped_rows == 0


def test_a_report_of_a_worker_that_died_does_not_hold(data, tmp_path):
    def once(td):
        td["x"].add_(1)
        if 50 in td["row"]:
            if (tmp_path / "died").exists():
                return
            if len(td) == 1:  # the search has come to its end: the report is written, and the worker dies
                (tmp_path / "reported").touch()
            raise ValueError("not yet")
        if 51 in td["row"] and (tmp_path / "reported").exists() and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    errors = tdmap.RowErrors()
    tdmap.map(data, once, out=data, resume=True, on_error=errors, num_workers=1, chunksize=5)
    assert not errors and torch.equal(data["x"], torch.arange(200.0) + 1)


def test_a_report_about_a_chunk_that_nobody_ended_does_not_hold(data, tmp_path):
    with pytest.raises(Stop):
        run("in place", data, tmp_path, on_error="skip", callbacks=[StopAfter(2)], executor="serial")
    note_skipped(tmp_path / "in" / ".tdmap" / "journal", 39, [(199, ValueError("killed at once"), "text")])
    errors = tdmap.RowErrors()
    run("in place", TensorDict.load_memmap(tmp_path / "in"), tmp_path, on_error=errors, executor="serial")
    assert errors.rows == BAD


def test_a_later_version_of_the_library_reports_rows_that_were_skipped_in_place(data, tmp_path, monkeypatch):
    with pytest.raises(Stop):
        run("in place", data, tmp_path, on_error="skip", callbacks=[StopAfter(2)], executor="serial")
    monkeypatch.setattr(log, "_version", lambda: ", tdmap 999")
    errors = tdmap.RowErrors()
    run("in place", TensorDict.load_memmap(tmp_path / "in"), tmp_path, on_error=errors, executor="serial")
    assert errors.rows == BAD


def write_log(path, *frames):
    head = {"identity": {}, "began": 0}
    said = [b"H" + json.dumps(head).encode(), b"B" + json.dumps([0, "job", 10, 100]).encode(), *frames]
    path.write_bytes(log.MAGIC + b"".join(map(log.framed, said)))


def test_only_the_last_frame_of_a_chunk_counts(tmp_path):
    path = tmp_path / "journal"
    write_log(path, skipped_frame(0, 3, [(30, ValueError("old"), "text")]))
    note_skipped(path, 3, [(31, KeyError("new"), "text")])
    note_skipped(path, 4, [(40, ValueError(1, None), "text")])
    note_skipped(path, 5, [(50, ValueError("voided"), "text")])
    note_skipped(path, 5, ())
    note_skipped(path, 6, [(60, Unreadable("why"), "text")])
    found = log.History(path).bad_rows
    assert [(bad.row, type(bad.error), bad.error.args[:1]) for bad in found[:2]] == [
        (31, KeyError, ("new",)),
        (40, ValueError, (1,)),
    ]
    assert [bad.row for bad in found] == [31, 40, 60]
    assert found[2].error.type_name.endswith("test_skipped_rows.Unreadable")


def test_names_in_the_log_run_no_code(tmp_path):
    for name in ("builtins.exec", "builtins.SystemExit", "os.system", "builtins.__import__"):
        errors = [[0, name, ["touch " + str(tmp_path / "owned")], "m", "t"]]
        write_log(tmp_path / "journal", b"K" + json.dumps([0, 0, errors]).encode())
        assert type(log.History(tmp_path / "journal").bad_rows[0].error) is RemoteError
    assert not (tmp_path / "owned").exists()


def test_status_shows_how_many_rows_and_the_first_of_them(data, tmp_path):
    run("map", data, tmp_path, on_error=tdmap.RowErrors())
    status = read_status(tmp_path / "out")
    assert status.skipped_rows == 4 and [bad["row"] for bad in status.skipped] == BAD
    lines = describe(status)
    assert "4 rows were skipped, because the function raised:" in lines
    assert "  row 5: ValueError: cannot read row 5" in lines
    assert "  row 6: Unreadable: row 6" in lines
