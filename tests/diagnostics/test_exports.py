"""Jobs as Prometheus metrics and OpenTelemetry spans, read back with their own clients."""

import os
import signal

import pytest
import torch

import tdmap


def one(chunk):
    return chunk + 1


def fails_on_30(chunk):
    if (chunk == 30).any():
        raise ArithmeticError("thirty")
    return chunk + 1


def dies_once(chunk, flag):
    if (chunk == 20).any() and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk + 1


def run_all(tmp_path, *callbacks):
    """A good job, one with a dead worker and a row that is skipped, and one that fails."""
    data, flag = torch.arange(100), str(tmp_path / f"flag{len(os.listdir(tmp_path))}")
    tdmap.map(data, one, num_workers=2, chunksize=10, callbacks=callbacks)
    tdmap.map(data, lambda chunk: dies_once(chunk, flag), num_workers=2, chunksize=10, callbacks=callbacks)
    tdmap.map(data, fails_on_30, num_workers=2, chunksize=10, on_error=tdmap.RowErrors(), callbacks=callbacks)
    with pytest.raises(ArithmeticError):
        tdmap.map(data, fails_on_30, num_workers=0, chunksize=10, callbacks=callbacks)


def test_prometheus_counts_what_happened(tmp_path):
    client = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from tdmap.diagnostics.prometheus import Prometheus

    registry = client.CollectorRegistry()
    run_all(tmp_path, Prometheus(registry))
    path = str(tmp_path / "metrics.prom")
    client.write_to_textfile(path, registry)
    with open(path) as file:
        families = list(text_string_to_metric_families(file.read()))
    samples = {(s.name, s.labels.get("name")): s.value for f in families for s in f.samples if "le" not in s.labels}
    assert samples["tdmap_rows_total", "one"] == 100
    assert samples["tdmap_read_bytes_total", "one"] == 800
    assert samples["tdmap_lease_seconds_count", "one"] >= 1
    assert samples["tdmap_worker_deaths_total", "<lambda>"] == samples["tdmap_retries_total", "<lambda>"] == 1
    assert samples["tdmap_skipped_rows_total", "fails_on_30"] == 1
    assert samples["tdmap_jobs_failed_total", "fails_on_30"] == 1
    assert samples["tdmap_jobs_running", "one"] == samples["tdmap_jobs_running", "fails_on_30"] == 0
    assert samples["tdmap_job_rows_done", "<lambda>"] == 100


def test_two_exporters_share_a_registry(tmp_path):
    client = pytest.importorskip("prometheus_client")
    from tdmap.diagnostics.prometheus import Prometheus

    registry = client.CollectorRegistry()
    for _ in range(2):
        tdmap.map(torch.arange(10), one, num_workers=0, callbacks=[Prometheus(registry)])
    assert registry.get_sample_value("tdmap_rows_total", {"name": "one"}) == 20


def test_opentelemetry_has_a_span_a_job_and_metrics(tmp_path):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from tdmap.diagnostics.opentelemetry import OpenTelemetry

    spans, reader, traces = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    meters = MeterProvider(metric_readers=[reader])
    with traces.get_tracer("test").start_as_current_span("outer") as outer:
        run_all(tmp_path, OpenTelemetry(traces, meters))
    good, died, skipped, failed, _ = spans.get_finished_spans()
    assert good.name == "tdmap one" and good.status.is_ok and good.attributes["tdmap.rows_done"] == 100
    assert all(span.parent.span_id == outer.get_span_context().span_id for span in (good, failed))
    assert {event.name for event in died.events} == {"worker died", "chunk retried"}
    assert [event.name for event in skipped.events] == ["rows skipped"]
    assert not failed.status.is_ok and failed.events[-1].attributes["exception.message"] == "thirty"
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    values = {
        (metric.name, point.attributes["tdmap.function"]): getattr(point, "value", None) or point.count
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert values["tdmap.rows", "one"] == 100 and values["tdmap.read", "one"] == 800
    assert values["tdmap.lease.duration", "one"] >= 1
    assert values["tdmap.worker.deaths", "<lambda>"] == values["tdmap.retries", "<lambda>"] == 1
    assert values["tdmap.rows.skipped", "fails_on_30"] == 1
    meters.shutdown()
    traces.shutdown()


def test_without_providers_nothing_happens():
    pytest.importorskip("opentelemetry.sdk")
    from tdmap.diagnostics.opentelemetry import OpenTelemetry

    tdmap.map(torch.arange(10), one, num_workers=0, callbacks=[OpenTelemetry()])


@pytest.mark.parametrize(
    "package, module, name, extra",
    [
        ("prometheus_client", "prometheus", "Prometheus", r"tdmap\[prometheus\]"),
        ("opentelemetry", "opentelemetry", "OpenTelemetry", r"tdmap\[opentelemetry\]"),
    ],
)
def test_a_client_that_is_not_installed_is_named(package, module, name, extra, monkeypatch):
    import importlib
    import sys

    exporter = getattr(importlib.import_module(f"tdmap.diagnostics.{module}"), name)
    for loaded in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=extra):
        exporter()
