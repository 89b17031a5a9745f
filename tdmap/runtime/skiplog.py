"""The driver's side of `on_error`: what workers reported about bad rows, once their chunks are safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tdmap.data.failures import write_list
from tdmap.errors import OutputMismatch, RemoteTraceback, RowError, SkippedRows, add_note
from tdmap.events import Callback, RowsSkipped
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.rowerrors import RowErrors
from tdmap.runtime.commits import CommitLog
from tdmap.runtime.wire.messages import Skipped
from tdmap.runtime.wire.remote import unpack_error

MISFIT_ROWS = 64
"""After so many rows, more results that do not fit than do end the job: it would go on in vain."""


class SkipLog:
    """Collects the failing rows of one job.

    A report counts when its chunk is committed: a worker that dies in between runs the chunk again, and reports
    again.

    Args:
        job: its `on_row_error` is called once with each failing row; None collects them for a warning.
        callbacks: receive `RowsSkipped`.
        log: notes the rows; None for a call without a log.
    """

    def __init__(self, job: Job, callbacks: Callback, log: CommitLog | None = None) -> None:
        self.job = job
        self.callbacks = callbacks
        self.errors = RowErrors()
        self._fitting = self._misfits = 0
        self._log = log
        self._handler: Callable[[BaseException, tuple[int, int]], Any] | None = job.on_row_error
        self._waiting: dict[int, Skipped] = {}

    def begin(self, done: int, earlier: Sequence[RowError]) -> None:
        """Count what earlier sessions have done, too: so many rows, and those that they have skipped."""
        self._fitting = done
        for bad in earlier:
            self.errors(bad.error, (bad.row, bad.row + 1))
            self._fitting -= 1
            self._misfits += isinstance(bad.error, OutputMismatch)
            if self._handler is not None:
                self._handler(bad.error, (bad.row, bad.row + 1))

    def add(self, report: Skipped) -> None:
        """A worker has found bad rows in a chunk."""
        self._waiting[report.chunk] = report

    def void(self, chunk: int) -> None:
        """The worker of a chunk has died, and it runs again: nothing that was said about it holds."""
        self._waiting.pop(chunk, None)
        if self._log is not None and self.job.ledger is not None:
            self._log.note_skipped(chunk, ())

    def commit(self, start: int, stop: int) -> None:
        """The chunks `start..stop` are safe."""
        self._fitting += self.job.plan.count(start, stop)
        for chunk in sorted(chunk for chunk in self._waiting if start <= chunk < stop):
            self._publish(self._waiting.pop(chunk))
        if self._fitting + self._misfits >= MISFIT_ROWS:
            self._check_misfits()

    def _check_misfits(self) -> None:
        """Raise the first misfit where more results do not fit than do: that is the schema, and not the rows."""
        if self._misfits <= self._fitting or self.job.policy.part_of_call:
            return
        first = next(bad.error for bad in self.errors if isinstance(bad.error, OutputMismatch))
        add_note(
            first,
            f"on_error is about single rows, and {self._misfits} of the first {self._misfits + self._fitting} results "
            f"of {self.job.name} do not fit the output: the function and the output have different schemas.",
        )
        raise first

    def _publish(self, report: Skipped) -> None:
        first = self.job.plan.original_row(report.chunk)
        found = []
        for offset, packed in report.errors:
            row, error = self._row(first + offset), unpack_error(packed)
            self.errors(error, (row, row + 1))
            cause = error.__cause__
            self._fitting -= 1
            self._misfits += isinstance(error, OutputMismatch)
            found.append(RowError(row, error, cause.text if isinstance(cause, RemoteTraceback) else ""))
        if self._log is not None and self.job.ledger is None:  # in place, its worker has done so
            self._log.note_skipped(report.chunk, [(bad.row, bad.error, bad.traceback) for bad in found])
        self.callbacks.on_rows_skipped(RowsSkipped(self.job.number, report.chunk, tuple(found)))
        if self._handler is not None:
            for bad in found:
                self._handler(bad.error, (bad.row, bad.row + 1))

    def _row(self, position: int) -> int:
        order = self.job.source.order
        return position if order is None else int(order[position])

    def report(self, earlier: Sequence[RowError], list_in: Path | None) -> None:
        """The run was complete before: say again what it skipped. `list_in` as of `CommitLog`."""
        self.begin(0, earlier)
        self._warn(list_in)

    def finish(self, rows: int) -> None:
        """Every chunk is done: warn of the rows that no handler was told of.

        Args:
            rows: how many the job had.

        Raises:
            Exception: the first row's, when all rows failed: that is the function, and not the data.
        """
        if not self.errors:
            return
        self._check_misfits()
        if len(self.errors) == rows:
            error = self.errors[0].error
            add_note(error, f"on_error: {self.job.name} raised on every one of {len(self.errors)} rows")
            raise error
        self._warn(None if self._log is None else self._log.list_in)

    def _warn(self, list_in: Path | None) -> None:
        if self.errors and self._handler is None:
            where = "in the `errors` of this warning"
            if list_in is not None:
                path = list_in / "skipped.jsonl"
                write_list(self.errors, path)
                where = f"in {path}"
            text = (
                f"{self.job.name}: {self.errors.summary()}, the others were processed. All are {where}; "
                "on_error=tdmap.RowErrors() collects them."
            )
            warn_user(SkippedRows(text, self.errors))
