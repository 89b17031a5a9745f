"""Jobs as Prometheus metrics: `callbacks=[Prometheus()]`. Needs `pip install 'tdmap[prometheus]'`.

    tdmap_rows_total, tdmap_read_bytes_total        rows that are done, and their bytes
    tdmap_lease_seconds                             histogram: what workers took for a run of chunks
    tdmap_retries_total, tdmap_worker_deaths_total, tdmap_skipped_rows_total, tdmap_jobs_failed_total
    tdmap_jobs_running, tdmap_job_rows, tdmap_job_rows_done

All have the label `name`, the function's. Serve them with `prometheus_client.start_http_server(port)`, in a process
that starts no workers by fork afterwards, or write them with `prometheus_client.write_to_textfile` or to a gateway.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from tdmap.events import Callback, ChunkRetried, JobEnded, JobStarted, LeaseDone, RowsSkipped, WorkerDied

BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histogram, in seconds."""

_COUNTERS = {
    "rows": "Rows that are done.",
    "read_bytes": "Bytes of the rows that are done.",
    "retries": "Chunks that went back to the queue.",
    "worker_deaths": "Workers that ended while they were needed.",
    "skipped_rows": "Rows on which the function raised, and which were skipped.",
    "jobs_failed": "Jobs that ended with an exception.",
}
_GAUGES = {
    "jobs_running": "Jobs that run.",
    "job_rows": "Rows of the last job that began.",
    "job_rows_done": "Rows of it that are done.",
}
_known: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def _metrics(registry: Any) -> dict[str, Any]:
    """The metrics of a registry, which takes each name once."""
    from prometheus_client import Counter, Gauge, Histogram

    if registry not in _known:
        label = {"labelnames": ("name",), "namespace": "tdmap", "registry": registry}
        made: dict[str, Any] = {name: Counter(name, text, **label) for name, text in _COUNTERS.items()}
        made |= {name: Gauge(name, text, **label) for name, text in _GAUGES.items()}
        made["lease_seconds"] = Histogram("lease_seconds", "Time of a run of chunks.", buckets=BUCKETS, **label)
        _known[registry] = made
    return _known[registry]


class Prometheus(Callback):
    """Reports jobs as Prometheus metrics.

    Args:
        registry: a `prometheus_client.CollectorRegistry`. Default: the registry of the process.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            from prometheus_client import REGISTRY
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("pip install 'tdmap[prometheus]'", name=error.name) from None
        self._of = _metrics(REGISTRY if registry is None else registry)
        self._jobs: dict[int, JobStarted] = {}

    def _at(self, metric: str, job: int) -> Any:
        return self._of[metric].labels(self._jobs[job].name)

    def on_job_started(self, event: JobStarted) -> None:
        self._jobs[event.job] = event
        self._at("jobs_running", event.job).inc()
        self._at("job_rows", event.job).set(event.num_rows)
        self._at("job_rows_done", event.job).set(0)

    def on_lease_done(self, event: LeaseDone) -> None:
        self._at("rows", event.job).inc(event.rows)
        self._at("read_bytes", event.job).inc(event.rows * self._jobs[event.job].row_bytes)
        self._at("lease_seconds", event.job).observe(event.seconds)
        self._at("job_rows_done", event.job).set(event.done_rows)

    def on_chunk_retried(self, event: ChunkRetried) -> None:
        self._at("retries", event.job).inc()

    def on_worker_died(self, event: WorkerDied) -> None:
        self._at("worker_deaths", event.job).inc()

    def on_rows_skipped(self, event: RowsSkipped) -> None:
        self._at("skipped_rows", event.job).inc(len(event.errors))

    def on_job_ended(self, event: JobEnded) -> None:
        self._at("job_rows_done", event.job).set(event.done_rows)
        self._at("jobs_running", event.job).dec()
        if not event.ok:
            self._at("jobs_failed", event.job).inc()
        del self._jobs[event.job]
