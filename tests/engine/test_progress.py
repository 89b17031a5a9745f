"""The progress bar counts rows, and measures the rate of this session alone."""

import contextlib
import gc
import io
import re
import sys

import pytest
import torch

import tdmap
from tdmap.diagnostics import progress
from tdmap.events import JobEnded, JobStarted, LeaseDone
from tdmap.run.operation import entry_point
from tensordict_lite import TensorDict


def started(rows: int) -> JobStarted:
    return JobStarted(1, "work", rows, 10, rows // 10, 2, "process", 0.0)


@pytest.mark.parametrize("before", [0, 600])
def test_rows_of_earlier_sessions_do_not_count_for_the_rate(before):
    bar = tdmap.types.ProgressBar(file=io.StringIO())
    bar.on_job_started(started(1000))
    inner = bar._bar
    for done in (before + 100, before + 200):
        bar.on_lease_done(LeaseDone(1, 0, 6, 7, 100, 0.1, done, 0.0))
        assert (inner.n, inner.initial) == (done, before)
    bar.on_job_ended(JobEnded(1, True, 1000, 1.0, None))
    assert inner.n == 1000


def test_the_bar_of_a_run_ends_full():
    text = io.StringIO()
    bar = tdmap.types.ProgressBar(file=text)
    tdmap.map(torch.arange(100), lambda x: x + 1, num_workers=2, chunksize=10, callbacks=[bar])
    assert "100/100" in text.getvalue()


def test_an_operation_of_several_jobs_has_one_bar_in_rows():
    text = io.StringIO()
    bar = tdmap.types.ProgressBar(file=text, mininterval=0)
    tdmap.sort(torch.randperm(5000), lambda x: x, num_workers=2, callbacks=[bar])
    shown = text.getvalue()
    assert "sort, step 2" in shown and "5.00k/5.00k" in shown and "permute" not in shown
    assert shown.count("\n") == 1, "one line, which is written over"


def test_retries_and_skipped_rows_are_shown():
    bar = tdmap.types.ProgressBar(file=io.StringIO(), mininterval=0)
    bar.on_job_started(started(1000))
    bar.on_chunk_retried(tdmap.events.ChunkRetried(1, 3, (300, 400), 1, "killed"))
    bar.on_rows_skipped(tdmap.events.RowsSkipped(1, 4, (None, None)))
    bar.on_rows_skipped(tdmap.events.RowsSkipped(1, 5, (None,)))
    bar.on_lease_done(LeaseDone(1, 0, 0, 1, 100, 0.1, 100, 0.0))
    bar.on_job_ended(JobEnded(1, True, 1000, 1.0, None))
    assert "retried=1, skipped=3" in bar.options["file"].getvalue()


def lines_until(stop, fn):
    """Ctrl-C before line `stop` of what a call runs to begin a bar; how many lines that were."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        code = frame.f_code
        if event == "line" and code.co_filename == progress.__file__ and code.co_name != "close":
            lines += 1
            if lines == stop:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fn()
    finally:
        sys.settrace(before)
    return lines


def test_a_bar_that_is_stopped_as_it_begins_shows_nothing_afterwards():
    """A bar that is collected must not show itself once more, behind the message about the stop."""
    text = io.StringIO()

    def begin():
        bar = tdmap.types.ProgressBar(file=text)
        entry_point(lambda: bar.on_job_started(started(1000)))()

    total = lines_until(0, begin)
    assert "0%" in text.getvalue(), "it is shown before anything is done"
    for stop in range(1, total + 1):
        text.truncate(text.seek(0))
        try:
            lines_until(stop, begin)
        except KeyboardInterrupt:
            shown = text.getvalue()  # as long as the frames of the stop are there, as where the message is written
        gc.collect()
        assert text.getvalue() == shown, f"after line {stop} of {total}"


def test_nothing_is_written_where_nobody_looks(capfd):
    tdmap.close_pools()  # workers of an earlier test would write where that one looked
    tdmap.map(torch.arange(1000), lambda x: x + 1, num_workers=2, pbar=True)
    tdmap.sort(torch.arange(1000), lambda x: x, num_workers=2, pbar=True)
    assert capfd.readouterr().err == ""


class Broken(io.StringIO):
    def write(self, text):
        raise RuntimeError("no console")


@pytest.mark.parametrize("stream", ["none", "closed", "raises"])
def test_without_standard_error_there_is_no_bar(stream, monkeypatch):
    file = {"none": None, "closed": io.StringIO(), "raises": Broken()}[stream]
    if stream == "closed":
        file.close()
    rows = TensorDict({"x": torch.arange(8)}, [8])
    monkeypatch.setattr(sys, "stderr", file)
    for pbar in [True] if file is None else [True, tdmap.types.ProgressBar(file=file)]:
        options = {"num_workers": 0} | ({"pbar": True} if pbar is True else {"callbacks": [pbar]})
        assert len(tdmap.map(rows, double, **options)) == len(rows.pipeline().map(double).collect(**options)) == 8
        assert tdmap.sort(rows, "x", **options)["x"].tolist() == list(range(8))


def test_the_bar_of_an_operation_that_fails_is_ended():
    text = io.StringIO()
    bar = tdmap.types.ProgressBar(file=text)
    with contextlib.suppress(ZeroDivisionError):
        tdmap.map(torch.arange(1000), lambda x: 1 // 0, num_workers=0, callbacks=[bar])
    assert bar._bar is None and text.getvalue().endswith("\n")


class Terminal(io.StringIO):
    """A terminal that remembers what was shown."""

    def isatty(self) -> bool:
        return True


def double(chunk):
    return chunk * 2


def negate(chunk):
    return -chunk


def names_shown(text: str) -> set[str]:
    return {part.split(":")[0].strip() for part in re.split(r"[\r\n]|\x1b\[A", text) if "%|" in part}


def plus_one(chunk):
    return TensorDict({"x": chunk["x"] + 1}, chunk.batch_size)


def minus_one(chunk):
    return TensorDict({"x": chunk["x"] - 1}, chunk.batch_size)


def test_a_pipeline_has_a_bar_for_each_job_under_the_name_of_its_stages(tmp_path, monkeypatch):
    rows = TensorDict({"x": torch.arange(1000)}, [1000])
    for run in (
        lambda chain: list(chain.batch(10).iter(num_workers=2, pbar=True)),
        lambda chain: chain.collect(num_workers=2, pbar=True),
    ):
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        folder = tmp_path / f"cache{len(list(tmp_path.iterdir()))}"
        run(rows.pipeline().map(plus_one).cache(folder).map(minus_one))
        shown = terminal.getvalue()
        assert names_shown(shown) == {"plus_one", "minus_one"}, shown
        assert shown.count("1.00k/1.00k") >= 2, "both end full"


def test_parts_of_a_pipeline_have_bars_of_their_own(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    left, right = tdmap.Pipeline(torch.arange(600)).map(double), tdmap.Pipeline(torch.arange(600)).map(negate)
    both = left.filter(everything).concat(right.filter(everything))
    assert sum(1 for _ in both.batch(100).iter(num_workers=2, pbar=True)) == 12
    assert {name.split(" + ")[0] for name in names_shown(terminal.getvalue())} == {"double", "negate"}


def everything(chunk):
    return torch.ones(len(chunk), dtype=torch.bool)
