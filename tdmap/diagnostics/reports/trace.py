"""Profiles in the Trace Event Format, which ui.perfetto.dev and chrome://tracing show: one track a worker.

The format is described in Google's document "Trace Event Format". Used are complete events ("X"), counters ("C") and
metadata ("M"); times are microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tdmap.diagnostics.model import judge
from tdmap.diagnostics.profile import JobProfile, Span

STAGES = ("read", "fn", "write")


def write_trace(jobs: Sequence[JobProfile], path: Path) -> None:
    """Write a trace; a file that is there already is replaced when the new one is whole."""
    began = min((job.began for job in jobs), default=0.0)
    new = path.with_name(f".{path.name}.new")
    with new.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        first = True
        for event in trace_events(jobs, began):
            file.write(("" if first else ",\n") + json.dumps(event))
            first = False
        file.write("\n]}\n")
    new.replace(path)


def trace_events(jobs: Sequence[JobProfile], began: float) -> Iterator[dict[str, Any]]:
    """The events of jobs, on a clock that begins at `began` (`time.monotonic()`)."""
    driver = os.getpid()
    yield _meta("process_name", driver, 0, "tdmap")
    yield _meta("thread_name", driver, 0, "jobs")
    tracks: set[int] = set()
    for job in jobs:
        what = {"rows": job.rows, "chunks": job.chunks, "chunk_rows": job.chunk_rows, "verdict": str(judge([job]))}
        yield _complete(job.name, "job", job.began - began, job.seconds, driver, 0, what)
        for number in sorted(job.workers):
            if number >= 0 and number not in tracks:
                tracks.add(number)
                yield _meta("thread_name", driver, _track(number), f"worker {number}")
        for span in job.spans:
            yield from _lease(job, span, began, driver)


def _track(worker: int) -> int:
    return worker + 1  # 0 is that of the jobs, and threads are counted from 0


def _lease(job: JobProfile, span: Span, began: float, driver: int) -> Iterator[dict[str, Any]]:
    start, seconds = span.began - began, max(span.ended - span.began, 0.0)
    facts = {"chunks": [span.start, span.stop], "rows": span.rows}
    yield _complete(job.name, "lease", start, seconds, driver, _track(span.worker), facts)
    for stage, part in zip(STAGES, span.parts):
        if part > 0:
            # The stages of a lease alternate chunk by chunk; here each is drawn in one piece.
            part = min(part, span.ended - began - start)
            yield _complete(stage, "stage", start, part, driver, _track(span.worker), {})
            start += part
    if span.rss:
        yield {
            "name": f"rss of worker {span.worker}",
            "ph": "C",
            "ts": round((span.ended - began) * 1e6, 3),
            "pid": driver,
            "args": {"MiB": round(span.rss / 2**20, 1)},
        }


def _complete(
    name: str, category: str, start: float, seconds: float, pid: int, tid: int, facts: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"name": name, "cat": category, "ph": "X", **times, "pid": pid, "tid": tid, "args": facts}


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
