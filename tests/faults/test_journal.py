"""The journal: what is written is read again, whatever happens to its tail."""

from __future__ import annotations

import itertools
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tdmap import tuning
from tdmap.plan import merge_ranges
from tdmap.run import journal
from tdmap.run.journal import RECORD_BYTES, Journal, Record, Type
from tests import interpreters


def open_journal(path, files=()):
    if not path.exists():
        journal.create(path, {"identity": "mine"})
    return Journal(path, journal.read(path), files)


def write(path, ranges):
    log = open_journal(path)
    for start, stop in ranges:
        log.add(start, stop)
        log.flush()
    log.close()
    return log


def test_ranges_are_read_back(tmp_path):
    path = tmp_path / "journal"
    log = open_journal(path)
    log.add(0, 3)
    log.add(3, 5)
    log.add(8, 9)
    log.complete(100)
    log.close()
    contents = journal.read(path)
    assert contents.header["identity"] == "mine"
    assert contents.ranges() == [(0, 5), (8, 9)]
    assert contents.is_complete()
    assert len([r for r in contents.records if r.type is Type.RANGE]) == 2


def test_sessions_are_counted_and_timed(tmp_path):
    path = tmp_path / "journal"
    write(path, [(0, 1)])
    write(path, [(1, 2)])
    sessions = [r for r in journal.read(path).records if r.type is Type.SESSION]
    assert [r.session for r in sessions] == [1, 2]
    assert all(abs(r.a - time.time()) < 3600 for r in sessions)


@given(cut=st.integers(1, 3 * RECORD_BYTES), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_torn_tail_is_ignored_and_cut(tmp_path_factory, cut, data):
    path = tmp_path_factory.mktemp("journal") / "journal"
    write(path, [(0, 2), (4, 6), (8, 9)])
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        damaged = whole[:-cut]
    else:  # a damaged byte in the tail, and rubbish behind it
        place = len(whole) - cut
        flipped = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
        damaged = whole[:place] + flipped + whole[place + 1 :] + b"rubbish"
    path.write_bytes(damaged)
    kept = 3 - -(-cut // RECORD_BYTES)
    assert journal.read(path).ranges() == [(0, 2), (4, 6), (8, 9)][:kept]
    write(path, [(20, 21)])
    assert journal.read(path).ranges() == [*[(0, 2), (4, 6), (8, 9)][:kept], (20, 21)]


def test_a_header_that_was_never_whole_is_no_journal(tmp_path):
    path = tmp_path / "journal"
    assert journal.read(path) is None
    journal.create(path, {"identity": "mine"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert journal.read(path) is None
    path.write_bytes(whole)
    assert journal.read(path).ranges() == []


def test_a_later_version_is_refused(tmp_path):
    path = tmp_path / "journal"
    journal.create(path, {"version": 99})
    with pytest.raises(ValueError, match="version 99"):
        journal.read(path)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10))))
def test_merged_ranges_cover_the_same_numbers(pairs):
    ranges = [(start, start + length) for start, length in pairs]
    merged = merge_ranges(ranges)
    assert {n for a, b in merged for n in range(a, b)} == {n for a, b in ranges for n in range(a, b)}
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(merged))


@tuning.use(log_seconds=0, sync_seconds=0)
def test_after_a_power_loss_only_what_reached_the_disk_counts(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    log = open_journal(path, [str(rows)])
    deadline = time.monotonic() + 300
    for start, stop in ((0, 5), (5, 10)):  # again and again, while the run goes on
        log.add(start, stop)
        while journal.read(path).ranges(journal.boot_number() + 1) != [(0, stop)]:
            log.tick(time.monotonic())
            assert time.monotonic() < deadline
            time.sleep(0.01)
    contents = journal.read(path)
    assert contents.is_settled(journal.boot_number()) and not contents.is_settled(journal.boot_number() + 1)
    log._helper.seconds = log._helper._next = float("inf")
    log._helper.finish()  # the helper, too, ends with the machine: what follows never reaches the disk
    log._helper.join()
    log._helper.files = []
    log.add(10, 20)
    log.flush()
    contents, here = journal.read(path), journal.boot_number()
    assert contents.ranges(here) == [(0, 20)]
    assert contents.ranges(here + 1) == [(0, 10)]
    log.complete(20)
    assert journal.read(path).is_complete(here)
    assert not journal.read(path).is_complete(here + 1)


def test_a_later_sync_does_not_bring_back_what_a_power_loss_took(tmp_path, monkeypatch):
    monkeypatch.setattr(journal.Helper, "_start", lambda self: False)
    path, here = tmp_path / "journal", journal.boot_number()
    log = open_journal(path)
    log.add(0, 50)
    log.close()
    for boot, done in ((here + 1, (0, 10)), (here + 2, (10, 20))):
        monkeypatch.setattr(journal, "boot_number", lambda boot=boot: boot)
        log = journal.Journal(path, journal.read(path))
        log.add(*done)
        log.flush()
        with open(path, "ab") as file:  # what the helper writes after a sync
            file.write(journal.Record(Type.DURABLE, path.stat().st_size).pack())
        log.close()
    assert journal.read(path).ranges(here + 2) == [(0, 20)]  # and none of the 50 that were lost
    assert journal.read(path).ranges(here + 3) == [(0, 20)]
    assert journal.read(path).ranges(here) == [(0, 20)]


def test_the_end_of_a_run_reaches_the_disk(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    log = open_journal(path, files=[str(rows)])
    log.add(0, 10)
    log.complete(10)
    log.close(wait=True)
    contents = journal.read(path)
    assert contents.is_complete(journal.boot_number() + 1)
    assert contents.is_settled(journal.boot_number() + 1)


@tuning.use(log_seconds=0, sync_seconds=0)
def test_the_end_reaches_the_disk_though_the_helper_was_killed(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    log = open_journal(path, files=[str(rows)])
    log.tick(time.monotonic())
    helper = log._helper._process
    helper.kill()
    helper.wait()
    log.add(0, 10)
    log.complete(10)
    log.close(wait=True)
    assert journal.read(path).is_complete(journal.boot_number() + 1)


def test_nothing_is_called_durable_when_a_file_cannot_be_reached(tmp_path):
    path = tmp_path / "journal"
    log = open_journal(path, files=[str(tmp_path / "gone")])
    log.add(0, 10)
    log.complete(10)
    log.close(wait=True)
    assert not any(r.type is Type.DURABLE for r in journal.read(path).records)
    assert not journal.read(path).is_settled(journal.boot_number() + 1)


def test_the_helper_goes_on_to_the_disk_when_the_driver_is_killed(tmp_path):
    path, rows = tmp_path / "journal", tmp_path / "rows"
    rows.write_bytes(b"rows")
    code = """
import os, signal, sys, time
from pathlib import Path
from tdmap import tuning
from tdmap.run import journal
path = Path(sys.argv[1])
journal.create(path, {})
with tuning.use(log_seconds=0, sync_seconds=0):
    log = journal.Journal(path, journal.read(path), [sys.argv[2]])
log.add(0, 10)
while log._helper._process is None:
    log.tick(time.monotonic())
log.add(10, 20)
log.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert interpreters.run(["-c", code, str(path), str(rows)]).returncode == -9
    deadline = time.monotonic() + 300
    while not journal.read(path).is_settled(journal.boot_number() + 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert journal.read(path).ranges(journal.boot_number() + 1) == [(0, 20)]


def test_a_record_is_one_write_of_its_own_size():
    record = Record(Type.RANGE, 1 << 40, 1 << 41, session=7, milliseconds=1 << 31)
    assert len(record.pack()) == RECORD_BYTES == 32
    assert Record.unpack(record.pack()) == record
