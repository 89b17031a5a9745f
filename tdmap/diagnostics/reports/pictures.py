"""Profiles as pictures: what each worker did when, the throughput, and the memory."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tdmap.diagnostics.model import Verdict
from tdmap.diagnostics.profile import JobProfile, Span

COLOURS = {"reading": "#4c78a8", "fn": "#54a24b", "writing": "#f58518", "between": "#d0d0d0"}
BINS = 100
"""Pieces that the time is cut into for the throughput."""

DRAWN = 4000
"""Leases that are drawn one by one; of more, neighbours of a worker are joined."""


def draw_profile(jobs: Sequence[JobProfile], verdict: Verdict, path: Path) -> None:
    """Draw the leases, the rows a second and the memory of the workers.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: nothing was run.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plot needs matplotlib: pip install matplotlib", name=error.name) from None
    spans = [span for job in jobs for span in job.spans]
    if not spans:
        raise ValueError("nothing to draw: no chunk was done while the profiler was active.")
    began = min(job.began for job in jobs)
    workers = sorted({span.worker for span in spans})
    figure = Figure(figsize=(11, 5 + 0.28 * min(len(workers), 24)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [max(len(workers), 3) * 0.28 + 0.6, 1.5, 1.5]
    timeline, rate, memory = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    _draw_timeline(timeline, spans, workers, began)
    _draw_rate(rate, spans, began)
    _draw_memory(memory, spans, workers, began)
    for job in jobs[1:]:
        for axes in (timeline, rate, memory):
            axes.axvline(job.began - began, color="black", linewidth=0.6, linestyle=":")
    memory.set_xlabel("seconds")
    lines = textwrap.wrap(str(verdict), 110) + textwrap.wrap(verdict.advice, 110)
    figure.suptitle("\n".join(lines), fontsize=10)
    figure.savefig(path, dpi=110)


def _draw_timeline(axes: Any, spans: Sequence[Span], workers: Sequence[int], began: float) -> None:
    place = {worker: number for number, worker in enumerate(workers)}
    bars: dict[str, tuple[list[float], list[float], list[float]]] = {name: ([], [], []) for name in COLOURS}
    for worker in workers:
        own = [span for span in spans if span.worker == worker]
        for group in _joined(own, max(DRAWN // len(workers), 50)):
            start, whole = group[0].began - began, sum(span.ended - span.began for span in group)
            sums = [sum(span.parts[stage] for span in group) for stage in range(3)]
            pieces = [*zip(("reading", "fn", "writing"), sums), ("between", max(whole - sum(sums), 0.0))]
            stretch = (group[-1].ended - group[0].began) / max(whole, 1e-9) if len(group) > 1 else 1.0
            for name, seconds in pieces:
                if seconds > 0:
                    where, widths, lefts = bars[name]
                    where.append(place[worker])
                    widths.append(seconds * stretch)
                    lefts.append(start)
                    start += seconds * stretch
    for name, (where, widths, lefts) in bars.items():
        if where:
            axes.barh(where, widths, left=lefts, height=0.8, color=COLOURS[name], label=name)
    axes.set_yticks(range(len(workers)), [str(worker) for worker in workers], fontsize=8)
    axes.set_ylabel("worker")
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)


def _joined(spans: Sequence[Span], most: int) -> list[Sequence[Span]]:
    """Leases of a worker in groups, which limits the number of bars."""
    each = -(-len(spans) // most)
    return [spans[at : at + each] for at in range(0, len(spans), each)]


def _draw_rate(axes: Any, spans: Sequence[Span], began: float) -> None:
    end = max(span.ended for span in spans) - began
    width = max(end / BINS, 1e-6)
    rows = [0.0] * BINS
    for span in spans:  # the rows of a lease are spread over its time
        first, last = (
            (span.began - began) / width,
            max((span.ended - began) / width, (span.began - began) / width + 1e-9),
        )
        for piece in range(max(int(first), 0), min(int(last) + 1, BINS)):
            share = (min(last, piece + 1) - max(first, piece)) / (last - first)
            rows[piece] += span.rows * max(share, 0.0)
    axes.stairs(
        [count / width for count in rows], [width * edge for edge in range(BINS + 1)], fill=True, color="#72b7b2"
    )
    axes.set_ylabel("rows/s")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))


def _draw_memory(axes: Any, spans: Sequence[Span], workers: Sequence[int], began: float) -> None:
    for worker in workers[:12]:
        own = [span for span in spans if span.worker == worker and span.rss]
        axes.plot(
            [span.ended - began for span in own], [span.rss / 2**20 for span in own], linewidth=1, label=str(worker)
        )
    axes.set_ylabel("rss, MiB")
    axes.set_ylim(bottom=0)
    if len(workers) <= 12:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
