"""Profiles as tables for a terminal, narrow ones too."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdmap.diagnostics.model import Verdict
from tdmap.diagnostics.profile import JobProfile, WorkerProfile

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NARROW = 96
"""Below so many columns there is a list instead of a table."""

SHOWN_WORKERS = 16
"""With more workers only their sum is shown, and the first of them."""

COLUMNS = {
    "fn": ("computing",),
    "waits": ("waiting",),
    "memory": ("memory",),
    "read": ("reading",),
    "write": ("writing",),
    "disp.": ("dispatch",),
    "idle": ("starting", "consumer", "caller", "idle"),
    "no core": ("starved",),
}
"""Columns of shares, and the parts of the time that they show."""

FIGURES = ("rows/s", "in/s", "out/s", *COLUMNS, "CPU", "faults", "rss", "uss")
"""The columns that `cells` fills."""


def summary(jobs: Sequence[JobProfile], verdict: Verdict, width: int | None = None) -> str:
    """Jobs and workers as a table, the verdict, and the advice."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    blocks: list[RenderableType] = []
    for job in jobs:
        blocks.append(headline(job))
        blocks.append(_list(job) if columns < NARROW else _table(job))
    blocks.append(str(verdict))
    if verdict.advice:
        blocks.append(verdict.advice)
    return render(blocks, columns)


def render(blocks: Sequence[RenderableType], columns: int) -> str:
    """As plain text of so many columns."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=columns, color_system=None, highlight=False, markup=False)
    for block in blocks:
        console.print(block)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def headline(job: JobProfile) -> str:
    """What a job was, in a line."""
    what = job.name if job.operation in (job.name, "map", "map_iter") else f"{job.operation}: {job.name}"
    workers = f"{job.num_workers} {job.executor} worker{'s'[: job.num_workers != 1]}"
    rows = f"{job.rows_here:,} row{'s'[: job.rows_here != 1]} in {job.seconds:.3g} s"
    text = f"{what}: {rows}, {workers}, {job.chunks:,} chunk{'s'[: job.chunks != 1]} of {job.chunk_rows}"
    more = [f"{job.retries} retries" if job.retries else "", f"{job.deaths} workers died" if job.deaths else ""]
    more.append(f"{job.skipped} rows skipped" if job.skipped else "")
    if job.stalled > 0.1 * max(job.seconds, 1e-9):
        more.append(f"the machine waited {job.stalled:.2g} s for memory")
    there, back = job.total("to_device"), job.total("from_device")
    if there or back:
        seconds = max(job.seconds, 1e-9)
        more.append(f"device link: {size(there / seconds)}/s there, {size(back / seconds)}/s back")
    if job.state == "failed":
        more.append(f"failed: {job.error}")
    return ", ".join([text, *filter(None, more)])


def _table(job: JobProfile) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("worker", *FIGURES):
        table.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    workers = sorted(job.workers.values(), key=lambda one: -one.rows)
    for worker in workers[:SHOWN_WORKERS]:
        name = "none" if worker.worker < 0 else str(worker.worker)
        table.add_row(name, *cells(job, [worker]))
    if len(workers) > 1:
        table.add_row("all", *cells(job, workers))
    return table


def cells(job: JobProfile, workers: Sequence[WorkerProfile]) -> list[str]:
    """The figures of some workers, as text."""
    seconds = max(job.seconds, 1e-9)
    whole = max(sum(sum(worker.seconds.values()) for worker in workers), 1e-9)
    shares = [sum(worker.seconds[part] for worker in workers for part in parts) / whole for parts in COLUMNS.values()]
    return [
        f"{sum(worker.rows for worker in workers) / seconds:,.0f}",
        size(sum(worker.bytes_in for worker in workers) / seconds),
        size(sum(worker.bytes_out for worker in workers) / seconds),
        *[f"{share:.0%}" for share in shares],
        f"{sum(worker.cpu for worker in workers) / (seconds * len(workers)):.0%}",
        count(sum(worker.faults + worker.reads for worker in workers)),
        size(max(worker.rss for worker in workers)),
        size(max(worker.uss for worker in workers)),
    ]


def _list(job: JobProfile) -> str:
    workers = list(job.workers.values())
    if not workers:
        return ""
    return "\n".join(f"{name:<8}{value:>9}" for name, value in zip(FIGURES, cells(job, workers)))


def comparison(
    before: Sequence[JobProfile], after: Sequence[JobProfile], old: Verdict, new: Verdict, width: int | None = None
) -> str:
    """Two profiles side by side, and the ratios of the second to the first."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "before", "after", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    first, second = _totals(before), _totals(after)
    for name, value in second.items():
        if "device" in name and not value and not first[name]:
            continue
        was = first[name]
        ratio = f"{value / was:.2f}" if was else ""
        table.add_row(name, _number(name, was), _number(name, value), ratio)
    columns = width or shutil.get_terminal_size((100, 24)).columns
    return render([table, f"before: {old}", f"after:  {new}"], columns)


def _totals(jobs: Sequence[JobProfile]) -> dict[str, float]:
    seconds = sum(job.seconds for job in jobs)
    rows = sum(job.rows_here for job in jobs)
    whole = max(sum(sum(job.parts.values()) for job in jobs), 1e-9)
    shares = {name: sum(job.parts[part] for job in jobs for part in parts) / whole for name, parts in COLUMNS.items()}
    return {
        "seconds": seconds,
        "rows/s": rows / max(seconds, 1e-9),
        "bytes in/s": sum(job.total("bytes_in") for job in jobs) / max(seconds, 1e-9),
        "bytes out/s": sum(job.total("bytes_out") for job in jobs) / max(seconds, 1e-9),
        "bytes to device/s": sum(job.total("to_device") for job in jobs) / max(seconds, 1e-9),
        "bytes from device/s": sum(job.total("from_device") for job in jobs) / max(seconds, 1e-9),
        **{f"{name}, share": share for name, share in shares.items()},
        "CPU seconds": sum(job.total("cpu") for job in jobs),
        "page faults": sum(job.total("faults") + job.total("reads") for job in jobs),
        "peak rss": max((worker.rss for job in jobs for worker in job.workers.values()), default=0),
        "retries": sum(job.retries for job in jobs),
    }


def _number(name: str, value: float) -> str:
    if name.endswith("share"):
        return f"{value:.0%}"
    if "bytes" in name or "rss" in name:
        return size(value)
    if "seconds" in name:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def size(nbytes: float) -> str:
    """Bytes, short.

    Example:
        >>> size(0), size(1536), size(3 << 30)
        ('-', '1.5K', '3.0G')
    """
    if nbytes < 1:
        return "-"
    power = 0
    while nbytes >= 1000 and power < 4:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.0f}{'BKMGT'[power]}" if nbytes >= 10 or not power else f"{nbytes:.1f}{'BKMGT'[power]}"


def count(number: float) -> str:
    """A number, short.

    Example:
        >>> count(950), count(12_300), count(4_000_000)
        ('950', '12k', '4M')
    """
    power = 0
    while number >= 1000 and power < 3:
        number, power = number / 1000, power + 1
    return f"{number:.0f}{('', 'k', 'M', 'G')[power]}"
