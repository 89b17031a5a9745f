"""The log of a call: what is written is read again, whatever happens to its tail, and after the machine went down."""

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from tdmap import tuning
from tdmap.job import Job, Source
from tdmap.memory import hidden
from tdmap.output.folder import Folder
from tdmap.plan import ChunkPlan, merge_ranges
from tdmap.run import disk, history, log
from tdmap.run.history import History
from tdmap.run.log import Log, begun
from tests import interpreters, journals

IDENTITY = {
    "kind": "map",
    "name": "f",
    "function": {},
    "source": {},
    "plan": {"rows": 100, "chunk size": 1, "dim": 0, "unbind": False},
    "seed": None,
    "python": "3.11",
}


def open_log(path, files=()):
    opened = Log(path.parent, begun(path.parent, IDENTITY, disk.boot_number()))
    opened.add_files(files)
    return opened


def do(opened, *ranges):
    """The job of a call, some of whose chunks are done; each noted at once."""

    def run(job, sink, chunks):
        for start, stop in ranges:
            chunks.add(start, stop)
            chunks.flush()

    opened.run(Job(Source(torch.zeros(100)), ChunkPlan(100, 1), torch.neg), Folder(None), SimpleNamespace(run=run))


def write(path, *ranges):
    opened = open_log(path)
    do(opened, *ranges)
    opened.close()


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "journal"
    opened = open_log(path)
    do(opened, (0, 3), (3, 5), (8, 9))
    opened.finish(100)
    opened.close()
    history = History(path)
    assert history.header["identity"] == IDENTITY and history.is_complete
    assert history.ranges == [(0, 5), (8, 9)] and history.rows == [6]


def test_sessions_are_counted_and_timed(tmp_path):
    path = tmp_path / "journal"
    write(path, (0, 1))
    write(path, (1, 2), (2, 4))
    assert len(History(path).sessions) == 2 and History(path).rows == [1, 3]


@given(cut=st.integers(1, 100), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_torn_tail_is_ignored_and_cut(tmp_path_factory, cut, data):
    path = tmp_path_factory.mktemp("log") / "journal"
    ranges = [(0, 2), (4, 6), (8, 9)]
    write(path, *ranges)
    whole, ends = path.read_bytes(), [frame.position for frame in journals.frames(path) if frame.kind == b"C"]
    if data.draw(st.booleans()):
        damaged, place = whole[:-cut], len(whole) - cut
    else:  # a damaged byte in the tail, and rubbish behind it
        place = len(whole) - cut
        flipped = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
        damaged = whole[:place] + flipped + whole[place + 1 :] + b"rubbish"
    path.write_bytes(damaged)
    kept = ranges[: sum(end <= place for end in [*ends[1:], len(whole)])]
    assert History(path).ranges == kept
    write(path, (20, 21))
    assert History(path).ranges == [*kept, (20, 21)]


def test_a_header_that_was_never_whole_is_no_log(tmp_path):
    path = tmp_path / "journal"
    assert History(path).header is None
    begun(tmp_path, IDENTITY, None)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert History(path).header is None
    path.write_bytes(whole)
    assert History(path).header is not None and not History(path).begun


def test_zeros_at_the_end_are_no_frame(tmp_path):
    path = tmp_path / "journal"
    whole = log.MAGIC + log.framed(b"H{}") + log.framed(b"F{}")
    for zeros in (1, 8, 16, 4096):
        path.write_bytes(whole + bytes(zeros))
        assert journals.kinds(path) == [b"H", b"F"] and history.frames_of(path)[1][-1][2] == len(whole)


def test_a_later_version_is_refused(tmp_path):
    path = tmp_path / "journal"
    write(path, (0, 1))
    path.write_bytes(log.MAGIC[:-2] + b"99" + path.read_bytes()[len(log.MAGIC) :])
    for ask in (History, lambda path: begun(path.parent, IDENTITY, None)):
        with pytest.raises(ValueError, match="by a later version"):
            ask(path)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10))))
def test_merged_ranges_cover_the_same_numbers(pairs):
    ranges = [(start, start + length) for start, length in pairs]
    merged = merge_ranges(ranges)
    assert {n for a, b in merged for n in range(a, b)} == {n for a, b in ranges for n in range(a, b)}
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(merged))


def test_a_write_that_finds_no_room_leaves_whole_frames(tmp_path, monkeypatch):
    path, real = tmp_path / "journal", os.write
    write(path, (0, 1))
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"no space left.*journal"):
        patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[: len(data) // 2]))
        hidden.append_frame(path, b"K[0, 0, []]")
    assert path.read_bytes() == before
    hidden.append_frame(path, b"K[0, 0, []]")
    assert journals.kinds(path)[-1] == b"K"


# -- the machine goes down -----------------------------------------------------------------------------


@tuning.use(log_seconds=0, sync_seconds=0)
def test_after_a_power_loss_only_what_reached_the_disk_counts(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    opened, here = open_log(path, [str(rows)]), disk.boot_number()
    deadline = time.monotonic() + 300

    def run(job, sink, chunks):
        for start, stop in ((0, 5), (5, 10)):  # again and again, while the call runs
            chunks.add(start, stop)
            while History(path, here + 1).ranges != [(0, stop)]:
                chunks.tick(time.monotonic())
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert History(path).is_settled(here) and not History(path).is_settled(here + 1)
        opened._helper.seconds = opened._helper._next = float("inf")
        opened._helper.finish()  # the helper, too, ends with the machine: what follows never reaches the disk
        opened._helper.join()
        opened._helper.files = []
        chunks.add(10, 20)

    opened.run(Job(Source(torch.zeros(100)), ChunkPlan(100, 1), torch.neg), Folder(None), SimpleNamespace(run=run))
    assert History(path, here).ranges == [(0, 20)]
    assert History(path, here + 1).ranges == [(0, 10)]
    opened.finish(100)
    assert History(path, here).is_complete
    assert not History(path, here + 1).is_complete


def test_a_later_sync_does_not_bring_back_what_a_power_loss_took(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)
    path, here = tmp_path / "journal", disk.boot_number()
    write(path, (0, 50))
    for boot, done in ((here + 1, (0, 10)), (here + 2, (10, 20))):
        monkeypatch.setattr(disk, "boot_number", lambda boot=boot: boot)
        write(path, done)
        journals.say_durable(path)
    assert History(path, here + 2).ranges == [(0, 20)]  # and none of the 50 that were lost
    assert History(path, here + 3).ranges == [(0, 20)]
    assert History(path, here).ranges == [(0, 20)]


def test_the_last_sync_of_a_session_says_nothing_of_the_next_one(tmp_path, monkeypatch):
    """It may come when the next one has begun already."""
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)
    path, here = tmp_path / "journal", disk.boot_number()
    write(path, (0, 5))
    upto = path.stat().st_size
    write(path, (5, 10))
    journals.say_durable(path, upto, last=True)
    assert not History(path).is_settled(here + 1)
    journals.say_durable(path, last=True)
    assert History(path).is_settled(here + 1)


@pytest.mark.parametrize("killed", [False, True])
def test_the_end_of_a_call_reaches_the_disk(tmp_path, killed):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    with tuning.use(log_seconds=0, sync_seconds=0):
        opened = open_log(path, [str(rows)])
    if killed:  # the process that waits for the disk
        opened.tick(time.monotonic())
        opened._helper._process.kill()
        opened._helper._process.wait()
    do(opened, (0, 10))
    opened.finish(10, [str(rows)])
    opened.close()
    disk.wait_for_disk()
    later = disk.boot_number() + 1
    assert History(path, later).is_complete and History(path).is_settled(later)


def test_nothing_is_called_durable_when_a_file_cannot_be_reached(tmp_path):
    path = tmp_path / "journal"
    opened = open_log(path, [str(tmp_path / "gone")])
    do(opened, (0, 10))
    opened.finish(10, [str(tmp_path / "gone")])
    opened.close()
    disk.wait_for_disk()
    assert b"D" not in journals.kinds(path)
    assert not History(path).is_settled(disk.boot_number() + 1)


def test_the_helper_goes_on_to_the_disk_when_the_driver_is_killed(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    code = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from tdmap import tuning
from tests.faults.test_log import do, open_log
with tuning.use(log_seconds=0, sync_seconds=0):
    log = open_log(Path(sys.argv[1]), [sys.argv[2]])
while log._helper._process is None:
    log.tick(time.monotonic())
do(log, (0, 10), (10, 20))
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    done = interpreters.run(["-c", code, str(path), str(rows)], cwd=root)
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 300
    while not History(path).is_settled(disk.boot_number() + 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert History(path, disk.boot_number() + 1).ranges == [(0, 20)]
