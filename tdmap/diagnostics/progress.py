"""A progress bar, as a callback."""

from __future__ import annotations

import os
import weakref
from typing import Any

from tdmap.events import Callback, JobEnded, JobStarted, LeaseDone

_shown: weakref.WeakSet[ProgressBar] = weakref.WeakSet()


class ProgressBar(Callback):
    """Shows rows done, rate and remaining time with tqdm (`pbar=True`).

    Args:
        **options: passed to `tqdm.tqdm`, for instance `desc=`, `file=` or `disable=`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._bar: Any = None

    def on_job_started(self, event: JobStarted) -> None:
        from tqdm.auto import tqdm

        # tqdm's monitor is a thread, and a second thread is what makes forking workers unsafe.
        monitor, tqdm.monitor_interval = tqdm.monitor_interval, 0
        try:
            settings = {"total": event.num_rows, "desc": event.name, "unit": "row", "unit_scale": True}
            self._bar = tqdm(**{**settings, **self.options})
            _shown.add(self)
        finally:
            tqdm.monitor_interval = monitor

    def on_lease_done(self, event: LeaseDone) -> None:
        if self._bar is not None and self._bar.n == 0 and event.done_rows > event.rows:
            # Rows of earlier sessions of a run that goes on: they say nothing about the rate of this one.
            self._bar.initial = self._bar.n = self._bar.last_print_n = event.done_rows - event.rows
        if self._bar is not None and event.done_rows > self._bar.n:
            self._bar.update(event.done_rows - self._bar.n)

    def on_job_ended(self, event: JobEnded) -> None:
        if self._bar is not None:
            if event.done_rows > self._bar.n:
                self._bar.update(event.done_rows - self._bar.n)
            self._bar.close()
            self._bar = None


def _hide_in_child() -> None:
    """A fork collects its copies of bars, and a bar that is collected shows itself once more."""
    for progress in list(_shown):
        if progress._bar is not None:
            progress._bar.disable = True
            progress._bar = None
    _shown.clear()


os.register_at_fork(after_in_child=_hide_in_child)
