"""How far a resumable run has come, read from its journal by anybody, at any time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdmap import journal
from tdmap.errors import RemoteError
from tdmap.journal import Type
from tdmap.plan import ChunkPlan
from tdmap.resume import AFTER_CRASH, IN_PLACE, plan_of
from tdmap.rowerrors import RowError
from tdmap.runtime import skipfile
from tdmap.runtime.skipfile import row_errors
from tdmap.store import HIDDEN

SKIPPED_SHOWN = 10
"""Skipped rows that a status lists."""


@dataclass
class Status:
    """What a journal says about its run."""

    name: str
    """Name of the function."""
    kind: str
    """ "map", "in place" or "reduce"."""
    state: str
    """ "complete", "running" or "interrupted"."""
    rows: int
    """Rows of the source."""
    rows_done: int
    """Rows whose results are safe."""
    rows_per_second: float | None
    """In the last session that did any; None when none did."""
    seconds: float
    """Time that all sessions took."""
    sessions: int
    """How often the run was begun or gone on with."""
    began: float
    """Seconds since 1970."""
    argv: list[str] = field(default_factory=list)
    """The program that began it."""
    command: dict[str, Any] | None = None
    """How `tdmap resume` calls it again; None when a program of the user's began it."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """What sessions ended with, if not well; oldest first."""
    skipped_rows: int = 0
    """Rows on which the function raised, and which `on_error` let it skip."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """The first of them: row, type and message of its exception."""
    torn: bool = False
    """The machine went down while rows were changed in place, and nobody knows which changes reached the disk."""

    @property
    def fraction(self) -> float:
        """Between 0 and 1."""
        return self.rows_done / self.rows if self.rows else 1.0


def read_status(path: str | os.PathLike[str]) -> Status | None:
    """The state of the run in a folder; None when no run was ever journalled there.

    Args:
        path: the output folder, or the dataset of an in-place run.

    Raises:
        PermissionError: the journal belongs to another user.
        ValueError: it was written by a later version.
    """
    folder = Path(path) / HIDDEN
    contents = journal.read(folder / "journal")
    if contents is None:
        return None
    identity = contents.header["identity"]
    plan = plan_of(identity["plan"], contents)
    rate, seconds, sessions = _rate(contents, plan)
    skipped = row_errors(skipfile.read(folder / skipfile.NAME))
    complete = contents.is_complete()
    return Status(
        name=identity["name"],
        kind=identity["kind"],
        state="complete" if complete else "running" if _is_locked(folder / "lock") else "interrupted",
        rows=plan.length,
        rows_done=plan.length if complete else sum(plan.count(*span) for span in contents.ranges()),
        rows_per_second=rate,
        seconds=seconds,
        sessions=sessions,
        began=contents.header["began"],
        argv=contents.header["argv"],
        command=contents.header["command"],
        errors=_errors(folder / "errors.jsonl"),
        skipped_rows=len(skipped),
        skipped=[_row(bad) for bad in skipped[:SKIPPED_SHOWN]],
        torn=identity["kind"] == IN_PLACE and not contents.is_settled(journal.boot_number()),
    )


def _rate(contents: journal.Contents, plan: ChunkPlan) -> tuple[float | None, float, int]:
    rows: dict[int, int] = {}
    last: dict[int, int] = {}
    for record in contents.records:
        if record.type is Type.DURABLE:
            continue
        last[record.session] = max(last.get(record.session, 0), record.milliseconds)
        if record.type is Type.RANGE:
            rows[record.session] = rows.get(record.session, 0) + plan.count(record.a, record.b)
    seconds = sum(last.values()) / 1000
    if not rows:
        return None, seconds, len(last)
    session = max(rows)
    return rows[session] / max(last[session] / 1000, 1e-3), seconds, len(last)


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _errors(path: Path) -> list[dict[str, Any]]:
    errors = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # torn
                errors.append(json.loads(line))
    return errors


def _row(bad: RowError) -> dict[str, Any]:
    name = bad.error.type_name if isinstance(bad.error, RemoteError) else type(bad.error).__name__
    return {"row": bad.row, "type": name.rpartition(".")[2], "error": str(bad.error).removeprefix(f"{name}: ")}


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def describe(status: Status) -> list[str]:
    """The same for people, line by line."""
    rate = "" if status.rows_per_second is None else f", {status.rows_per_second:,.0f} rows/s"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.began))
    lines = [
        f"{status.name} ({status.kind}): {status.state}",
        f"{status.rows_done:,} of {status.rows:,} rows done ({status.fraction:.1%}){rate}",
        f"began {began}, {status.sessions} session{'s' if status.sessions != 1 else ''}, {status.seconds:.1f} s in all",
    ]
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
        lines.append("the machine went down meanwhile, and nobody knows which changes reached the disk")
        lines += AFTER_CRASH.splitlines()
    return lines
