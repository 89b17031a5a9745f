"""What the log of a call says: read by a call that resumes it (see `log`, which draws the file), and by `tdmap status`.

This module imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tdmap.data.failures import are_failures, row_errors
from tdmap.errors import RowError, UntrustedFile
from tdmap.memory.hidden import FRAME, SMALL, open_file, parse_json, read
from tdmap.memory.resources import available_memory
from tdmap.plan import ChunkPlan, Ranges, merge_ranges

MAP, IN_PLACE, STEPWISE = "map", "in place", "several jobs"
"""Kinds of runs."""

TRUST, REDO = "trust", "redo"
"""After the machine went down during an in-place run: trust the files as they are, or run every chunk again that is not
known to have reached the disk."""

AFTER_CRASH = (
    f"  - If it was shut down cleanly (file systems unmounted), all changes did: pass resume={TRUST!r}.\n"
    f"  - If running the function twice on a row does no harm, pass resume={REDO!r}, which runs every chunk again that "
    "may not have reached the disk.\n"
    "  - Otherwise restore the dataset from a copy and remove its .tdmap folder."
)

Plain: TypeAlias = "bool | int | str"
"""What a decision may be."""

MAGIC = b"TDMAPL01"

SESSION = struct.Struct("<cqq")
CHUNKS = struct.Struct("<cIqqqI")
END = struct.Struct("<cqI")
DURABLE = struct.Struct("<cqq")
_LETTERS = [bytes([letter]) for letter in range(256)]  # one object for each, however many frames a log has


@dataclass
class LoggedJob:
    """A job, as the log knows it."""

    known_by: str
    chunks: int
    """0 where the first result settles how many there are."""
    rows: int
    done: Ranges = field(default_factory=list)
    """Chunks, in the order in which they were noted."""
    values: list[tuple[int, int, memoryview]] = field(default_factory=list)
    """Ranges of chunks, and their packed values."""
    skipped: dict[int, list[Any]] = field(default_factory=dict)
    """By chunk: the rows that were skipped, as `failure` gives them."""
    rows_done: int = 0
    """Rows of the chunks that are done."""

    @property
    def ranges(self) -> Ranges:
        """The chunks that are done, as runs that neither touch nor overlap."""
        return merge_ranges(self.done)

    @property
    def chunks_done(self) -> int:
        """How many of its chunks are done."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def bad_rows(self) -> list[RowError]:
        """The rows that were skipped."""
        return row_errors(self.skipped.values())


Frame: TypeAlias = tuple[int, bytes, int]
"""Where a frame of a file begins, its letter, and where it ends. A plain tuple of plain values: the garbage collector
does not look at many of them again and again."""


class History:
    """What a log says.

    Args:
        path: the file.
        boot: the machine's boot now: frames that it lost when it went down do not count. None: all of them count.
        own: the file must be the caller's. False for commands that only look.

    Attributes:
        header: of the call; None where the file holds no log, or a torn one.
        stop: where the last whole frame ends.
        sessions: milliseconds that each session took.
        rows: rows of the chunks that each session has done.

    Raises:
        UntrustedFile: it is a link, a device or another user's; or a frame says what this library does not write.
        ValueError: it was written by a later version.
    """

    def __init__(self, path: Path, boot: int | None = None, own: bool = True) -> None:
        self.header: dict[str, Any] | None = None
        self.jobs: list[LoggedJob] = []
        self.decided: dict[str, Plain] = {}
        self.made: dict[str, tuple[int, Any]] = {}
        self.failures: list[dict[str, Any]] = []
        self.is_complete = False
        self.sessions: list[int] = []
        self.rows: list[int] = []
        self._boot: int | None = None
        self._began = 0
        self._on_disk = True
        data, frames = frames_of(path, own)
        self.stop = frames[-1][2] if frames else 0
        try:
            for start, kind, stop in frames if boot is None else _counting(data, frames, boot):
                self._apply(start, kind, data[start + FRAME.size : stop])
        except (ValueError, TypeError, LookupError, AttributeError, struct.error) as error:
            raise UntrustedFile(path, f"holds a frame that cannot be read ({error})") from None

    def _apply(self, position: int, kind: bytes, body: memoryview) -> None:
        if kind == b"C":
            _, number, start, stop, rows, milliseconds = CHUNKS.unpack_from(body)
            job = self.jobs[number]
            job.done.append((start, stop))
            job.rows_done = min(job.rows_done + rows, job.rows)
            if len(body) > CHUNKS.size:
                job.values.append((start, stop, body[CHUNKS.size :]))
            self._last_for(milliseconds, rows)
            return
        content = bytes(body[1:])
        if kind == b"B":
            number, known_by, chunks, rows = parse_json(content)
            if not all(type(n) is int and 0 <= n < 1 << 62 for n in (number, chunks, rows)) or number > len(self.jobs):
                raise ValueError("jobs are missing")
            self.jobs[number:] = [LoggedJob(str(known_by), chunks, rows)]
        elif kind == b"N":
            name, value = parse_json(content)
            if type(value) not in (bool, int, str):
                raise ValueError("no decision")
            self.decided[str(name)] = value
        elif kind == b"M":
            name, before, what = parse_json(content)
            self.made[str(name)] = before, what
            del self.jobs[before:]
        elif kind == b"K":
            number, chunk, errors = parse_json(content)
            if type(chunk) is not int or not are_failures(errors):
                raise ValueError("no rows that were skipped")
            self.jobs[number].skipped[chunk] = errors
        elif kind == b"S":
            self._boot, self._began, self._on_disk = SESSION.unpack(body)[2], position, False
            self.sessions.append(0)
            self.rows.append(0)
        elif kind == b"D":
            _, upto, last = DURABLE.unpack(body)
            self._on_disk = bool(last) and upto > self._began
        elif kind == b"E":
            self.is_complete = True
            self._last_for(END.unpack(body)[2])
        elif kind == b"F":
            self.failures.append(parse_json(content))
        elif kind == b"H":
            self.header = parse_json(content)

    def _last_for(self, milliseconds: int, rows: int = 0) -> None:
        if self.sessions:
            self.sessions[-1] = max(self.sessions[-1], milliseconds)
            self.rows[-1] += rows

    @property
    def begun(self) -> bool:
        """Whether a session has done anything that a later one builds on."""
        return bool(self.jobs or self.made or self.is_complete)

    @property
    def has_results(self) -> bool:
        """Whether a session has left anything that another run must not replace."""
        return self.is_complete or any(job.done for job in self.jobs)

    @property
    def by_ranks(self) -> bool:
        """Whether several programs do it, each a part."""
        return self.header is not None and bool(self.header.get("ranks"))

    @property
    def ranges(self) -> Ranges:
        """The chunks of the first job that are done."""
        return self.jobs[0].ranges if self.jobs else []

    @property
    def bad_rows(self) -> list[RowError]:
        """The rows that all jobs have skipped."""
        return [bad for job in self.jobs for bad in job.bad_rows]

    @property
    def chunk_size(self) -> int | None:
        """Rows of the later chunks of the first job, once its first result has settled them."""
        known = self.decided.get(size_of(0))
        return None if known is None else int(known)

    def is_settled(self, boot: int) -> bool:
        """Whether no change that a session made to its files can have been lost: of this boot, or on the disk."""
        return self._boot in (None, boot) or self._on_disk


def frames_of(path: Path, own: bool = True) -> tuple[memoryview, list[Frame]]:
    """The content of a file, and its whole frames."""
    data = memoryview(b"")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        small = os.lstat(path).st_size <= SMALL
        data = memoryview((read(path, SMALL, own) or b"") if small else whole_frames(path, len(MAGIC), own))
    if data[: len(MAGIC)] != MAGIC:
        if data[: len(MAGIC) - 2] == MAGIC[:-2] and len(data) > len(MAGIC):
            raise ValueError(f"{path} was written by a later version of this library: found {bytes(data[:8])!r}.")
        if not MAGIC.startswith(bytes(data[: len(MAGIC)]).rstrip(b"\0")):  # what a power failure leaves of a log
            raise UntrustedFile(path, "is not a log of this library")
        return data, []
    frames, at, end = [], len(MAGIC), len(data)
    while at + FRAME.size <= end:
        length, crc = FRAME.unpack_from(data, at)
        start, stop = at + FRAME.size, at + FRAME.size + length
        # A file may end in zeros when the machine went down: a frame of no bytes, whose CRC is 0.
        if not length or stop > end or zlib.crc32(data[start:stop]) != crc:
            break
        frames.append((at, _LETTERS[data[start]], stop))
        at = stop
    return data, frames


def whole_frames(path: Path, at: int, own: bool = True) -> bytes:
    """The beginning of a large file, up to its last whole frame; the first begins at byte `at`.

    The file is read in blocks first: a sparse one may have any size.
    """
    with open(open_file(path, limit=available_memory() // 2, own=own), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(at)
        while len(head := file.read(FRAME.size)) == FRAME.size:
            length, crc = FRAME.unpack(head)
            stop, found = at + FRAME.size + length, 0
            if not length or stop > size:
                break
            while (left := stop - file.tell()) and (block := file.read(min(left, 1 << 20))):
                found = zlib.crc32(block, found)
            if found != crc:
                break
            at = stop
        file.seek(0)
        return file.read(at)


def _counting(data: memoryview, frames: Sequence[Frame], boot: int) -> Sequence[Frame]:
    """The frames that count: what had not reached the disk when the machine went down is lost for good."""
    kept: list[Frame] = []
    durable, last = 0, boot
    for frame in frames:
        at, kind, _ = frame
        if kind == b"S":
            _, _, then = SESSION.unpack_from(data, at + FRAME.size)
            if then != last:
                kept = [one for one in kept if one[0] < durable or one[1] not in b"CE"]
            last = then
        elif kind == b"D":
            durable = max(durable, DURABLE.unpack_from(data, at + FRAME.size)[1])
        kept.append(frame)
    return kept if last == boot else [one for one in kept if one[0] < durable or one[1] not in b"CE"]


def size_of(job: int) -> str:
    """What a decision of the size of chunks is called."""
    return f"chunk size of job {job}"


# -- the run that a log belongs to ---------------------------------------------------------------------

PER_SHARD = "rows per shard"
"""What the plan of a run that writes shards says besides."""

BY_RESULT = "by the first result"
"""The chunk size of a plan that is open."""


def describe_plan(plan: ChunkPlan) -> dict[str, Any]:
    """A plan as a dict of plain values."""
    size = f"{BY_RESULT}, after {plan.lead}" if plan.is_open else plan.size
    return {"rows": plan.length, "chunk size": size, "dim": plan.dim, "unbind": plan.unbind}


def plan_of(description: dict[str, Any], chunk_size: int | None) -> ChunkPlan:
    """The plan of a run in a log, as far as it is known; `chunk_size` is what the first result has settled."""
    rows, size = int(description["rows"]), description["chunk size"]
    if isinstance(size, int):
        return ChunkPlan(rows, max(size, 1))
    lead = int(str(size).rpartition(" ")[2])
    return ChunkPlan(rows, max(chunk_size or rows, 1), lead=lead)


def check_identity(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The identity in the header of a journal, which is at `path`.

    Raises:
        UntrustedFile: the header is not one that this library writes.
    """
    identity = header.get("identity")
    wanted = {"kind": str, "name": str, "function": dict, "source": dict, "plan": dict, "python": str}
    if type(identity) is dict and all(type(identity.get(key)) is kind for key, kind in wanted.items()):
        if "seed" in identity and _is_plan(identity["plan"]):
            return identity
    raise UntrustedFile(path, "does not identify its run")


def _is_plan(description: dict[str, Any]) -> bool:
    """Whether it is what `describe_plan` gives."""
    rows, size = description.get("rows"), description.get("chunk size")
    if type(size) is str:
        lead = size.removeprefix(f"{BY_RESULT}, after ")
        size = int(lead) if lead.isdecimal() and len(lead) < 19 else None
    return all(type(number) is int and 0 <= number < 1 << 62 for number in (rows, size))
