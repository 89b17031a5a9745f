"""A progress bar, as a callback."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

from tdmap.events import Callback, ChunkRetried, JobEnded, JobStarted, LeaseDone, RowsSkipped
from tdmap.process_state import running_operation

UNSEEN = 1e-9
"""Seconds after which a bar shows itself, of one that is told when."""

_shown: weakref.WeakSet[ProgressBar] = weakref.WeakSet()


class ProgressBar(Callback):
    """Shows finished rows, rate, remaining time, retried chunks and skipped rows with tqdm (`pbar=True`). Shows nothing
    if the output is not a terminal.

    An operation of several jobs, such as a sort, has one bar, which each job fills once with the rows of the dataset.

    Args:
        **options: passed to `tqdm.tqdm`, for instance `desc=`, `file=` or `disable=`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._bar: Any = None
        self._rows = 0
        self._jobs = 0
        self._scale = 1.0
        self._trouble: dict[str, int] = {}

    def on_job_started(self, event: JobStarted) -> None:
        operation = running_operation()
        name = event.name if operation is None or operation.name in ("map", "map_iter") else operation.name
        self._jobs += 1
        if self._bar is None:
            self._rows, self._jobs = event.num_rows, 1
            if operation is not None:
                operation.callback(self.close)
            self._begin(name)
        else:
            self._bar.reset(self._rows)
            self._bar.set_description(f"{name}, step {self._jobs}")
        self._scale = self._rows / max(event.num_rows, 1)

    def _begin(self, name: str) -> None:
        if not _takes_text(self.options.get("file") or sys.stderr):
            return
        from tqdm.auto import tqdm

        # tqdm's monitor is a thread, and a second thread is what makes forking workers unsafe.
        monitor, tqdm.monitor_interval = tqdm.monitor_interval, 0
        try:
            settings = {"total": self._rows, "desc": name, "unit": "row", "unit_scale": True}
            if "file" not in self.options:
                settings["disable"] = None  # where the output is no terminal
            # A bar that has shown itself does so once more when it is collected. If Ctrl-C comes while it is made, that
            # would be after the message: it shows itself once it has an owner that closes it.
            self._bar = bar = tqdm(**{**settings, "delay": UNSEEN, **self.options})
            _shown.add(self)
            if not bar.disable and bar.delay == UNSEEN:
                bar.refresh()
                bar.delay = 0.0
        finally:
            tqdm.monitor_interval = monitor

    def on_lease_done(self, event: LeaseDone) -> None:
        if self._bar is None:
            return
        done, rows = round(event.done_rows * self._scale), round(event.rows * self._scale)
        if self._bar.n == 0 and done > rows:
            # Rows of earlier sessions of a resumed run say nothing about the rate of this one.
            self._bar.initial = self._bar.n = self._bar.last_print_n = done - rows
        self._show(done)

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        self._count("retried", 1)

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        self._count("skipped", len(event.errors))

    def _count(self, what: str, number: int) -> None:
        self._trouble[what] = self._trouble.get(what, 0) + number
        if self._bar is not None:
            self._bar.set_postfix(self._trouble, refresh=False)

    def _show(self, done: int) -> None:
        if done > self._bar.n:
            self._bar.update(done - self._bar.n)

    def on_job_ended(self, event: JobEnded) -> None:
        if self._bar is not None:
            self._show(round(event.done_rows * self._scale))
            if running_operation() is None:
                self.close()

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._trouble = {}


def _takes_text(stream: Any) -> bool:
    """Whether a stream can be written to; standard error is None in a program without a console."""
    try:
        stream.write("")
    except Exception:
        return False
    return True


class StageBars(Callback):
    """A bar for each job of a pipeline (`pbar=True` there), under the name of its stages.

    A cache that is written first is a job, and so is each part of a `zip` or `concat`, and what is done to the rows
    afterwards. Jobs that run together have bars side by side.
    """

    def __init__(self) -> None:
        self._bars: dict[int, _StageBar] = {}

    def on_job_started(self, event: JobStarted) -> None:
        self._bars[event.job] = bar = _StageBar()
        bar.on_job_started(event)

    def on_lease_done(self, event: LeaseDone) -> None:
        if event.job in self._bars:
            self._bars[event.job].on_lease_done(event)

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        if event.job in self._bars:
            self._bars[event.job].on_chunk_retried(event)

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        if event.job in self._bars:
            self._bars[event.job].on_rows_skipped(event)

    def on_job_ended(self, event: JobEnded) -> None:
        bar = self._bars.pop(event.job, None)
        if bar is not None:
            bar.on_job_ended(event)


class _StageBar(ProgressBar):
    def on_job_started(self, event: JobStarted) -> None:
        self._rows = event.num_rows
        self._begin(event.name)

    def on_job_ended(self, event: JobEnded) -> None:
        if self._bar is not None:
            self._show(event.done_rows)
        self.close()


def _hide_in_child() -> None:
    """A fork collects its copies of bars, and a bar that is collected shows itself once more."""
    for progress in list(_shown):
        if progress._bar is not None:
            progress._bar.disable = True
            progress._bar = None
    _shown.clear()


os.register_at_fork(after_in_child=_hide_in_child)
