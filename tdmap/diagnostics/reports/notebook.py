"""A profile in a notebook: a bar of where the time went for each worker, the verdict, and the advice.

Text has the colour of the page, and bars have colours that stand out on white as on black, so that a light and a dark
theme look right without being known. No script is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tdmap.diagnostics.model import Verdict
from tdmap.diagnostics.profile import PARTS, JobProfile, WorkerProfile
from tdmap.diagnostics.reports.tables import COLUMNS, FIGURES, SHOWN_WORKERS, cells, headline

COLOURS = {
    "fn": "#3f9b4f",
    "waits": "#c9a227",
    "memory": "#8e6bbf",
    "read": "#3d7fc1",
    "write": "#e07b28",
    "disp.": "#c2506d",
    "idle": "#8a8a8a",
    "no core": "#4a4a4a",
}
"""Of the groups of `tdmap.diagnostics.reports.tables.COLUMNS`."""

_STYLE = """<style>
.tdmap-profile {font-family: sans-serif; font-size: 13px; line-height: 1.5; color: inherit; max-width: 60em}
.tdmap-profile table {border-collapse: collapse; font-family: monospace; font-size: 12px; color: inherit}
.tdmap-profile td, .tdmap-profile th {padding: 1px 8px; text-align: right;
 white-space: nowrap; border: 0; background: none; color: inherit}
.tdmap-profile .bar {display: flex; height: 14px; margin: 2px 0; border: 1px solid rgba(127,127,127,.5)}
.tdmap-profile .who {display: flex; gap: 8px; align-items: center; font-family: monospace; font-size: 12px}
.tdmap-profile .who > span {width: 6em; flex: none; overflow: hidden}
.tdmap-profile .who > .bar {flex: 1}
.tdmap-profile .key {display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 12px;
 border: 1px solid rgba(127,127,127,.5)}
.tdmap-profile summary {cursor: pointer; opacity: .75}
</style>"""


def render_html(jobs: Sequence[JobProfile], verdict: Verdict) -> str:
    """Jobs, their workers, the verdict and the advice as HTML.

    Example:
        >>> from tdmap.diagnostics.model import judge
        >>> "nothing was run" in render_html([], judge([]))
        True
    """
    advice = f"<div>{escape(verdict.advice)}</div>" if verdict.advice else ""
    told = f"<div><b>{escape(str(verdict))}</b></div>{advice}"
    return f'{_STYLE}<div class="tdmap-profile">{"".join(map(_job, jobs))}{_key() if jobs else ""}{told}</div>'


def _job(job: JobProfile) -> str:
    workers = sorted(job.workers.values(), key=lambda one: -one.rows)
    bars = "".join(_bar(worker) for worker in workers[:SHOWN_WORKERS])
    if len(workers) > SHOWN_WORKERS:
        bars += f"<div>and {len(workers) - SHOWN_WORKERS} more</div>"
    head = "".join(f"<th>{escape(name)}</th>" for name in ("worker", *FIGURES))
    rows = [(_name(worker), [worker]) for worker in workers[:SHOWN_WORKERS]] + [("all", workers)] * (len(workers) > 1)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in (name, *cells(job, some)))}</tr>" for name, some in rows
    )
    table = f"<details><summary>figures</summary><table><tr>{head}</tr>{body}</table></details>"
    return f"<div>{escape(headline(job))}</div>{bars}{table if workers else ''}"


def _name(worker: WorkerProfile) -> str:
    return "none" if worker.worker < 0 else str(worker.worker)


def _bar(worker: WorkerProfile) -> str:
    whole = max(sum(worker.seconds.values()), 1e-9)
    pieces = []
    for group, parts in COLUMNS.items():
        seconds = sum(worker.seconds[part] for part in parts)
        share = 100 * seconds / whole
        if share >= 0.05:
            what = escape(f"{group}: {share:.0f}%, {seconds:.3g} s: {'; '.join(PARTS[part] for part in parts)}")
            pieces.append(f'<div style="width:{share:.1f}%;background:{COLOURS[group]}" title="{what}"></div>')
    return f'<div class="who"><span>{_name(worker)}</span><div class="bar">{"".join(pieces)}</div></div>'


def _key() -> str:
    return "".join(
        f'<span class="key" style="background:{COLOURS[group]}"></span><span>{escape(group)}</span>'
        for group in COLUMNS
    )
