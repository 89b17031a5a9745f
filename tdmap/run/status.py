"""How far a resumable run has come, read from its log at any time. Imports neither torch nor numpy."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdmap.errors import RemoteError, RowError, UntrustedFile
from tdmap.memory import hidden
from tdmap.memory.hidden import HIDDEN, SHARDS, SHARDS_ROWS, SHARDS_RUN, printable
from tdmap.memory.holder import UNKNOWN, Holder, holder_of
from tdmap.plan import merge_ranges
from tdmap.ranks.rank import homes_in
from tdmap.run import disk
from tdmap.run.history import AFTER_CRASH, IN_PLACE, PER_SHARD, STEPWISE, History, check_identity, plan_of

SKIPPED_SHOWN = 10
"""Skipped rows that a status lists."""


@dataclass
class Status:
    """What a log says about its run."""

    name: str
    """Name of the function, or of an operation of several jobs."""
    kind: str
    """ "map", "in place", "reduce", "several jobs"..."""
    state: str
    """ "complete", "running" or "interrupted"."""
    rows: int
    """Rows of the source."""
    rows_done: int
    """Rows whose results are safe."""
    rows_per_second: float | None
    """In the last session that did any; None when none did."""
    seconds: float | None
    """Time that all sessions took; None where it is not noted (several folders)."""
    sessions: int
    """How often the run was begun or resumed."""
    began: float
    """Seconds since 1970."""
    argv: list[str] = field(default_factory=list)
    """The program that began it."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """What sessions ended with, if not well; oldest first."""
    skipped_rows: int = 0
    """Rows on which the function raised, and which `on_error` let it skip."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """The first of them: row, type and message of its exception."""
    writer: dict[str, Any] | None = None
    """Who writes there at this moment: pid, host, since, call and program, as far as that is known."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """Of a run that ranks share, until all of them are done: rank, world_size and state of each that has begun."""
    step: tuple[int, int, int] | None = None
    """Of an operation of several jobs that is not complete: the number of the job that was begun last, counted from 1,
    how many of its chunks are done, and how many it has (0: not known yet). `rows_done` are
    those of the first job, as long as no other has begun."""
    torn: bool = False
    """The machine went down while rows were changed in place, and nothing tells which changes reached the disk."""

    @property
    def fraction(self) -> float:
        """Between 0 and 1."""
        return self.rows_done / self.rows if self.rows else 1.0


def read_status(path: str | os.PathLike[str]) -> Status | None:
    """The state of the run in a folder; None when no run was ever journalled there.

    Args:
        path: the output folder, or the dataset of an in-place run.

    Nothing is written, run or imported, and files of other users may be looked at. Texts have no control characters.

    Raises:
        UntrustedFile: the journal is a link or a device, or larger than one gets, or says nothing of a run.
        ValueError: it was written by a later version.
    """
    log = History(Path(path) / HIDDEN / "journal", own=False)
    return _status_of_shards(Path(path)) if log.header is None else _status_of_log(Path(path), log.header, log)


def _status_of_log(path: Path, header: dict[str, Any], log: History) -> Status:
    """The state of a run, from its log; and those of its ranks."""
    identity, writer = check_identity(header, path / HIDDEN / "journal"), _writer_of(path)
    ranks, logs = [], [log]
    if log.by_ranks and not log.is_complete:
        for rank, home in homes_in(path / HIDDEN):
            own = History(home / HIDDEN / "journal", own=False)
            if own.header is None:
                continue
            logs.append(own)
            at_work = _writer_of(home)
            writer = writer or at_work
            state = "complete" if own.is_complete else "interrupted" if at_work is None else "running"
            ranks.append({"rank": rank.rank, "world_size": rank.world_size, "state": state})
    several = identity["kind"] == STEPWISE
    skipped = [bad for one in logs for bad in one.bad_rows]
    errors = [error for one in logs for line in one.failures for error in _error(line)]
    job = log.jobs[-1] if log.jobs else None
    return Status(
        **_told_by(header, identity, log.is_complete, writer),
        rows=identity["plan"]["rows"],
        rows_done=_rows_done(identity["plan"], several, logs),
        rows_per_second=None if several or log.by_ranks else _rate(log),
        seconds=sum(log.sessions) / 1000 if not ranks else max(sum(one.sessions) for one in logs) / 1000,
        sessions=sum(len(one.sessions) for one in logs),
        errors=sorted(errors, key=lambda error: error["time"]),
        skipped_rows=len(skipped),
        skipped=[_row(bad) for bad in skipped[:SKIPPED_SHOWN]],
        ranks=ranks,
        step=(len(log.jobs), job.chunks_done, job.chunks) if several and job and not log.is_complete else None,
        torn=identity["kind"] == IN_PLACE and not log.is_settled(disk.boot_number()),
    )


def _rows_done(description: dict[str, Any], several: bool, logs: list[History]) -> int:
    log, rows = logs[0], int(description["rows"])
    if log.is_complete:
        return rows
    if several:
        return log.jobs[0].rows_done if len(log.jobs) == 1 else 0
    plan = plan_of(description, next((one.chunk_size for one in logs if one.chunk_size), None))
    return sum(plan.count(*span) for span in merge_ranges(span for one in logs for span in one.ranges))


def _status_of_shards(path: Path) -> Status | None:
    """The same of a run that writes several folders, from what it notes of each; None when there was none."""
    data = hidden.read(path / SHARDS_RUN, own=False)
    if data is None:
        rows = path / HIDDEN / SHARDS_ROWS  # which an operation writes before they are copied into shards
        return read_status(rows) if rows.is_dir() and not rows.is_symlink() else None
    header: Any = None
    with contextlib.suppress(ValueError):
        header = hidden.parse_json(data)
    if type(header) is not dict or not str(header.get("run")).isalnum():
        raise UntrustedFile(str(path / SHARDS_RUN), "does not identify its run")
    identity = check_identity(header, path / SHARDS_RUN)
    rows, size, complete = identity["plan"]["rows"], identity["plan"].get(PER_SHARD), (path / SHARDS).exists()
    if type(size) is not int or size < 1:
        raise UntrustedFile(str(path / SHARDS_RUN), f"does not say how many rows a shard has: {size!r:.40}")
    notes = path / HIDDEN / str(header["run"])
    done = [int(note.name) for note in notes.iterdir() if note.name.isdecimal()] if notes.is_dir() else []
    writer = _writer_of(path)
    return Status(
        **_told_by(header, identity, complete, writer),
        rows=rows,
        rows_done=rows if complete else sum(max(min(size, rows - number * size), 0) for number in done),
        rows_per_second=None,
        seconds=None,
        sessions=header["sessions"] if type(header.get("sessions")) is int else 1,
    )


def _told_by(
    header: Mapping[str, Any], identity: Mapping[str, Any], complete: bool, writer: Holder | None
) -> dict[str, Any]:
    """What a status says of every kind of run, by the header that it began with."""
    return {
        "name": printable(identity["name"]),
        "kind": printable(identity["kind"]),
        "state": "complete" if complete else "interrupted" if writer is None else "running",
        "began": _seconds(header.get("began")),
        "argv": [printable(word) for word in _list(header.get("argv"))],
        "writer": _describe_writer(writer),
    }


def _rate(log: History) -> float | None:
    """Rows a second, in the last session that has done any."""
    found = [(rows, took) for rows, took in zip(log.rows, log.sessions) if rows]
    return found[-1][0] / max(found[-1][1] / 1000, 1e-3) if found else None


def _writer_of(folder: Path) -> Holder | None:
    writer = holder_of(folder)
    if writer is not None and writer.process.is_alive is False:
        return None  # killed; its workers are about to vanish
    return writer


def _describe_writer(writer: Holder | None) -> dict[str, Any] | None:
    if writer is None or writer is UNKNOWN:
        return None if writer is None else {}
    pid, host = writer.process.pid, writer.process.host
    return {"pid": pid, "host": host, "since": writer.since, "call": writer.call, "program": writer.program}


def _seconds(value: Any) -> float:
    """A time, whatever a file says; one that a calendar has."""
    plain = type(value) in (int, float) and 0 <= value < 1 << 36
    return float(value) if plain else 0.0


def _list(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _error(line: Any) -> list[dict[str, Any]]:
    if type(line) is not dict:
        return []
    notes = [printable(note) for note in _list(line.get("notes"))]
    texts = {"type": printable(line.get("type", "")), "error": _text(line.get("error", ""))}
    return [{"time": _seconds(line.get("time")), **texts, "notes": notes}]


def _text(value: Any) -> str:
    return "\n".join(printable(line) for line in str(value).splitlines()[:20])


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _row(bad: RowError) -> dict[str, Any]:
    name = bad.error.type_name if isinstance(bad.error, RemoteError) else type(bad.error).__name__
    text = str(bad.error).removeprefix(f"{name}: ")
    return {"row": bad.row, "type": printable(name.rpartition(".")[2]), "error": _text(text)}


def describe(status: Status) -> list[str]:
    """The status as lines of text for people."""
    rate = "" if status.rows_per_second is None else f", {status.rows_per_second:,.0f} rows/s"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.began))
    took = "" if status.seconds is None else f", {status.seconds:.1f} s in all"
    done = f"{status.rows_done:,} of {status.rows:,} rows done ({status.fraction:.1%}){rate}"
    if status.step is not None:
        chunks = f"{status.step[1]:,} of {status.step[2]:,}" if status.step[2] else f"{status.step[1]:,}"
        done = f"job {status.step[0]}: {chunks} chunks done; {status.rows:,} rows"
    lines = [
        f"{status.name} ({status.kind}): {status.state}",
        done,
        f"began {began}, {status.sessions} session{'s' if status.sessions != 1 else ''}{took}",
    ]
    if status.argv:
        lines.append(f"begun by {' '.join(status.argv)}")
    if status.writer:
        who = status.writer
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_seconds(who["since"])))
        lines.append(
            f"process {who['pid']} on {who['host']} has been running since {since}: {who['call']} ({who['program']})"
        )
    for state in ("running", "interrupted", "complete"):
        found = [str(rank["rank"]) for rank in status.ranks if rank["state"] == state]
        if found:
            lines.append(f"{state}: {'rank' if len(found) == 1 else 'ranks'} {', '.join(found)}")
    for error in status.errors[-5:]:
        when = time.strftime("%H:%M:%S", time.localtime(error["time"]))
        note = f" ({error['notes'][0]})" if error.get("notes") else ""
        what = ": ".join(filter(None, (error["type"], _first_line(error["error"]))))
        lines.append(f"{when} {what}{note}")
    if status.skipped_rows:
        rows = "1 row was" if status.skipped_rows == 1 else f"{status.skipped_rows:,} rows were"
        lines.append(f"{rows} skipped, because the function raised:")
        lines += [f"  row {bad['row']}: {bad['type']}: {_first_line(bad['error'])}" for bad in status.skipped]
        if status.skipped_rows > len(status.skipped):
            lines.append(f"  and {status.skipped_rows - len(status.skipped):,} more")
    if status.torn:
        lines.append("the machine went down during the run, and it is unknown which changes reached the disk")
        lines += AFTER_CRASH.splitlines()
    return lines
