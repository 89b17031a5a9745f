"""A progress bar, as a callback."""

from __future__ import annotations

from typing import Any

from tdmap.events import Callback, JobEnded, JobStarted, LeaseDone


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
