"""The progress bar counts rows, and measures the rate of this session alone."""

from __future__ import annotations

import io

import torch

import tdmap
from tdmap.events import JobEnded, JobStarted, LeaseDone


def started(rows: int) -> JobStarted:
    return JobStarted(1, "work", rows, 10, rows // 10, 2, "process", 0.0)


def test_rows_of_earlier_sessions_do_not_count_for_the_rate():
    bar = tdmap.ProgressBar(file=io.StringIO())
    bar.on_job_started(started(1000))
    inner = bar._bar
    bar.on_lease_done(LeaseDone(1, 0, 6, 7, 100, 0.1, 700, 0.0))
    assert (inner.n, inner.initial) == (700, 600)
    bar.on_lease_done(LeaseDone(1, 0, 7, 8, 100, 0.1, 800, 0.0))
    assert (inner.n, inner.initial) == (800, 600)
    bar.on_job_ended(JobEnded(1, True, 1000, 1.0, None))
    assert inner.n == 1000


def test_a_fresh_run_begins_with_nothing():
    bar = tdmap.ProgressBar(file=io.StringIO())
    bar.on_job_started(started(1000))
    inner = bar._bar
    bar.on_lease_done(LeaseDone(1, 0, 0, 1, 100, 0.1, 100, 0.0))
    assert (inner.n, inner.initial) == (100, 0)


def test_the_bar_of_a_run_ends_full():
    text = io.StringIO()
    bar = tdmap.ProgressBar(file=text)
    tdmap.map(torch.arange(100), lambda x: x + 1, num_workers=2, chunksize=10, callbacks=[bar])
    assert "100/100" in text.getvalue()
