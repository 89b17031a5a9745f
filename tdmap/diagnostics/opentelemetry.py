"""Jobs as OpenTelemetry spans and metrics: `callbacks=[OpenTelemetry()]`. Needs `pip install 'tdmap[opentelemetry]'`.

A job is a span, a child of the one that is current when it begins, with an event for each retry, dead worker and chunk
with skipped rows. Metrics: `tdmap.rows`, `tdmap.read` (bytes), `tdmap.lease.duration` (seconds), `tdmap.retries`,
`tdmap.worker.deaths`, `tdmap.rows.skipped`, with the attribute `tdmap.function`.

Without a provider (see OpenTelemetry's documentation) the client does nothing, and so does this.
"""

from __future__ import annotations

from typing import Any

from tdmap.events import Callback, ChunkRetried, JobEnded, JobStarted, LeaseDone, RowsSkipped, WorkerDied


class OpenTelemetry(Callback):
    """Reports jobs as OpenTelemetry spans and metrics.

    Args:
        tracer_provider, meter_provider: providers of spans and metrics. Default: those of the process.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics, trace
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("pip install 'tdmap[opentelemetry]'", name=error.name) from None
        self._trace = trace
        self._tracer = trace.get_tracer("tdmap", tracer_provider=tracer_provider)
        meter = metrics.get_meter("tdmap", meter_provider=meter_provider)
        self._rows = meter.create_counter("tdmap.rows", "{row}", "Rows that are done.")
        self._read = meter.create_counter("tdmap.read", "By", "Bytes of the rows that are done.")
        self._retries = meter.create_counter("tdmap.retries", "{chunk}", "Chunks that went back to the queue.")
        self._deaths = meter.create_counter("tdmap.worker.deaths", "{worker}", "Workers that ended unasked.")
        self._skipped = meter.create_counter("tdmap.rows.skipped", "{row}", "Rows on which the function raised.")
        self._seconds = meter.create_histogram("tdmap.lease.duration", "s", "Time of a run of chunks.")
        self._jobs: dict[int, tuple[JobStarted, Any]] = {}

    def _labels(self, job: int) -> dict[str, str]:
        return {"tdmap.function": self._jobs[job][0].name}

    def on_job_started(self, event: JobStarted) -> None:
        facts: dict[str, Any] = {
            "tdmap.function": event.name,
            "tdmap.rows": event.num_rows,
            "tdmap.chunks": event.num_chunks,
            "tdmap.chunk_rows": event.chunk_rows,
            "tdmap.workers": event.num_workers,
            "tdmap.executor": event.executor,
        }
        self._jobs[event.job] = event, self._tracer.start_span(f"tdmap {event.name}", attributes=facts)

    def on_lease_done(self, event: LeaseDone) -> None:
        labels = self._labels(event.job)
        self._rows.add(event.rows, labels)
        self._read.add(event.rows * self._jobs[event.job][0].row_bytes, labels)
        self._seconds.record(event.seconds, labels)

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        self._retries.add(1, self._labels(event.job))
        facts = {"tdmap.chunk": event.chunk, "tdmap.attempt": event.attempt, "tdmap.reason": event.reason}
        self._jobs[event.job][1].add_event("chunk retried", facts)

    def on_worker_died(self, event: WorkerDied) -> None:
        self._deaths.add(1, self._labels(event.job))
        self._jobs[event.job][1].add_event("worker died", {"tdmap.worker": event.worker, "signal": event.signal or 0})

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        self._skipped.add(len(event.errors), self._labels(event.job))
        self._jobs[event.job][1].add_event("rows skipped", {"tdmap.chunk": event.chunk, "rows": len(event.errors)})

    def on_job_ended(self, event: JobEnded) -> None:
        _, span = self._jobs.pop(event.job)
        span.set_attribute("tdmap.rows_done", event.done_rows)
        if event.ok:
            span.set_status(self._trace.StatusCode.OK)
        elif event.error is not None:
            span.record_exception(event.error)
            span.set_status(self._trace.StatusCode.ERROR, str(event.error))
        span.end()
