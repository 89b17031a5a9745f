"""The log of a call: which chunks of which jobs are done, with their values. An interrupted call resumes from it.

    out/.tdmap/journal    magic │ frame │ frame │ ... │ (torn tail: ignored, and cut)
    frame                 length, CRC32 │ a letter, content

    H  identity     JSON                              M  file made     JSON: name, jobs before it, what it holds
    S  session      time, boot of the machine         K  rows skipped  JSON: job, chunk, errors
    B  job begins   JSON: job, description, size      D  durable       frames before this position are on the disk
    C  chunks done  job, chunks, rows, time │ values        E  end           rows, time
    N  decision     JSON: name, value                 F  failure       JSON: time, error

Ranks write a log each (see `tdmap.ranks.folder`). In place, workers append frames K themselves, and which chunks are
done says the ledger (see `ledger`), which is written first.

An operation runs the same jobs in the same order each time, so job k of a later session is job k of the first one. What
does not follow from the arguments, such as free memory, is a decision, logged before it is used. Where job k turns out
to be another job, or a file that it filled is gone, that job and all later ones run again.

A process that is killed leaves the page cache, so every whole frame counts. When the machine goes down, frames C and E
count only before the last D of that boot. Intermediate files lie beside the log (`spill-*`). So does the state of job
k, if it is a reduction (`states-k`): it is replaced, not appended. A second copy (`states-k.disk`) waits for the disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from tdmap.data.failures import Failure, skipped_frame
from tdmap.data.kinds import Data
from tdmap.errors import SerializationError, UntrustedFile
from tdmap.execution import Execution
from tdmap.frames import warn_user
from tdmap.job import Job, Wrapped
from tdmap.memory.files import known_file, mapped_file
from tdmap.memory.hidden import (
    FRAME,
    SMALL,
    framed,
    open_file,
    read,
    remove,
    replace_file,
    write_frames,
)
from tdmap.memory.scratch import temporary_path
from tdmap.memory.spill import PREFIX, Spill, is_spill_file, spill_beside
from tdmap.output.outputfolder import DATA, OutputFolder, files_of, remove_unfinished
from tdmap.output.values import Collect, Fold
from tdmap.plan import ChunkPlan, Ranges, merge_ranges, subtract_ranges
from tdmap.processes import Owner
from tdmap.run import disk
from tdmap.run.history import (
    CHUNKS,
    END,
    MAGIC,
    SESSION,
    History,
    LoggedJob,
    Plain,
    check_identity,
    size_of,
    whole_frames,
)
from tdmap.run.identity import OVERWRITE, differences, refuse_other
from tdmap.run.ledger import Ledger
from tdmap.run.values import PLAIN, Codec, modules_of, pack, unpack
from tdmap.sink import Sink
from tdmap.tuning import current
from tensordict_lite.memmap.disk.files import stat_of

T = TypeVar("T")

STATE_SHARE = 0.02
"""Share of the time that saving a state may take: it is saved less often where that takes long."""

SPILL, STATES, DISK = PREFIX, "states-", ".disk"
"""How the names of files beside the log begin, and end."""


def begun(
    folder: Path,
    identity: dict[str, Any],
    boot: int | None,
    ranks: bool = False,
    durable: bool = False,
    again: str = OVERWRITE,
) -> History:
    """What the log in a hidden folder says of a call; a new log, where none of it has begun.

    Args:
        folder: the folder.
        identity: of the call.
        boot: as `History`.
        ranks: several programs do it, each a part.
        durable: a new log is on the disk before this returns.
        again: how a run is begun anew, for the error.

    Raises:
        ResumeMismatch: the folder holds another run; names what differs.
        UntrustedFile: it holds what this library does not put there.
    """
    path = folder / "journal"
    history = History(path, boot)
    if history.header is not None:
        changes = changes_of(history, identity, ranks, path)
        if not changes:
            return history
        done = History(path)  # what the machine may have lost when it went down counts, too
        # A rank does not hold the lock of a run of one program, which may be at work.
        if done.has_results or done.by_ranks or (ranks and done.begun):
            refuse_other(folder, changes, done.is_complete, again)
    header = {"identity": identity, "began": time.time(), "argv": sys.argv} | ({"ranks": True} if ranks else {})
    clean(folder)
    replace_file(path, MAGIC + framed(b"H" + json.dumps(header).encode()), durable)
    return History(path)


def changes_of(history: History, identity: dict[str, Any], ranks: bool, path: Path) -> list[str]:
    """How a call differs from that of a log, one sentence each."""
    assert history.header is not None
    changes = differences(check_identity(history.header, path), identity)
    if history.by_ranks is not ranks and not history.is_complete:
        who = ("one program", "ranks (shard=)")
        changes.append(f"it was a run of {who[not ranks]}, and is one of {who[ranks]}")
    return changes


class Log:
    """The log of a call, open for writing. Begin it with `open_run`.

    Args:
        folder: the hidden folder. The caller holds its lock.
        history: what the log says, which `begun` has read or made.

    Attributes:
        is_complete: nothing is left to do.
        ledger: of an in-place run: which chunks are done, whatever the log says.
        elsewhere: chunks that other ranks do.
        list_in: the folder for a list of the rows that are skipped, for people; None: there is none.
    """

    def __init__(self, folder: Path, history: History, ledger: Ledger | None = None) -> None:
        self.folder = folder
        self.path = folder / "journal"
        self.tuning = current()
        self.ledger = ledger
        self.elsewhere: Ranges = []
        self.list_in: Path | None = None
        self._asked: dict[str, int] = {}
        self._begun = self._spills = 0
        self._began = time.monotonic()
        self._token = secrets.token_hex(4)
        self._sizes: dict[str, int] = {}
        self._owner = Owner()
        self._history = history
        self._fd = open_file(self.path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._fd, history.stop)
        self._helper = disk.Helper(folder, self._fd, self.tuning.sync_seconds)
        if not self.is_complete:
            self.write(SESSION.pack(b"S", int(time.time()), disk.boot_number()))

    @property
    def is_complete(self) -> bool:
        """Whether the call has come to its end, in this session or an earlier one."""
        return self._history.is_complete

    @property
    def resumes(self) -> bool:
        """Whether an earlier session has begun a job."""
        return bool(self._history.jobs)

    def add_files(self, files: Iterable[str]) -> None:
        """Files of the output, which must be on the disk before chunks are durable, as those in the folder."""
        self._helper.files += files

    def write(self, *bodies: bytes) -> None:
        """Append frames; nothing in a fork of the program. Errors as `write_frames`."""
        if bodies and self._owner.is_here:
            write_frames(self._fd, self.path, b"".join(map(framed, bodies)))

    def sync(self) -> None:
        """Wait until the log is on the disk."""
        if self._owner.is_here:
            os.fdatasync(self._fd)

    @property
    def milliseconds(self) -> int:
        """Since the session began."""
        return min(int((time.monotonic() - self._began) * 1000), 0xFFFFFFFF)

    # -- between jobs --------------------------------------------------------------------------------

    def decide(self, name: str, find: Callable[[], Plain]) -> Any:
        """What an earlier session decided, or what `find` decides now, without a job."""
        number = self._asked[name] = self._asked.get(name, -1) + 1
        known = f"{name} {number}"
        if known not in self._history.decided:
            self.note_decision(known, find())
        return self._history.decided[known]

    def note_decision(self, name: str, value: Plain) -> None:
        """Write a decision at once, before it is used."""
        self._history.decided[name] = value
        self.write(b"N" + json.dumps([name, value]).encode())

    def spill(self) -> Spill:
        """The next intermediate files, which stay until the call is over (see `clean`)."""
        self._spills += 1
        return Spill(self.folder, f"{SPILL}{self._token}-", room=functools.partial(self._room, self._spills))

    def _room(self, spill: int, name: str, nbytes: int) -> Tensor:
        """The bytes of a file that jobs fill; uint8 `[nbytes]`, zeros unless an earlier session has made it."""
        name = f"{SPILL}{spill}-{name}"
        path = self.folder / name
        info = stat_of(path, follow=False)
        if info is not None and info.st_size == nbytes and self._was_made(name, nbytes):
            return known_file(path, nbytes)
        made: Tensor = self._make(name, nbytes, lambda: mapped_file(path, nbytes))
        return made

    def create(self, store: OutputFolder, example: Data, what: object) -> Data:
        """The files of the output: those that an earlier session made for `what`, or new ones."""
        data = store.load() if self._was_made("output", what) else None
        if data is None:
            data = self._make("output", what, lambda: store.create(example))
        self.add_files(files_of(data))
        return data

    def lost(self, name: str) -> None:
        """The file that jobs from here on have filled is gone: they run again."""
        self._note_made(name, None)

    def _was_made(self, name: str, what: object) -> bool:
        return self._history.made.get(name) == (self._begun, what)

    def _make(self, name: str, what: object, make: Callable[[], T]) -> T:
        self._note_made(name, None)  # a file that is half made is none
        made = make()
        self._note_made(name, what)
        return made

    def _note_made(self, name: str, what: object) -> None:
        self._history.made[name] = self._begun, what
        del self._history.jobs[self._begun :]
        self.write(b"M" + json.dumps([name, self._begun, what]).encode())

    # -- jobs ----------------------------------------------------------------------------------------

    def run(self, job: Job, sink: Sink[T], execution: Execution) -> T:
        """Run the next job of the call, as far as it is not done, and return the result of its sink."""
        if not sink.lasts(job):
            return execution.run(job, sink)
        job = replace(job, ledger=self.ledger)
        number, known = self._next_job(job)
        if job.plan.is_open and size_of(number) in self._history.decided:  # cut as an earlier session has decided
            job = replace(job, plan=job.plan.settled(int(self._history.decided[size_of(number)])))
        kind: type[JobLog] = StateLog if isinstance(sink, Fold) else JobLog
        with kind(self, number, known, job, sink) as log:
            # Rows that were skipped are reported by the driver, or when the log of a call that is complete is opened.
            all_known = isinstance(sink, (Collect, Fold)) and log.has_all and (self.is_complete or not job.policy.skip)
            if all_known:
                sink.open(job.plan, None)  # type: ignore[arg-type]
                return sink.result()
            if self.is_complete:
                gone = "the result of this call is missing; remove the folder to run it again"
                raise FileNotFoundError(errno.ENOENT, gone, str(self.folder / f"{STATES}{number}"))
            return execution.run(replace(job, on_settled=log.settled) if job.plan.is_open else job, sink, log)

    def _next_job(self, job: Job) -> tuple[int, LoggedJob]:
        number, known_by, jobs = self._begun, describe_job(job), self._history.jobs
        self._begun += 1
        if number < len(jobs) and (self.is_complete or jobs[number].known_by == known_by):
            return number, jobs[number]
        for suffix in ("", DISK):  # of another job in its place
            remove(self.folder / f"{STATES}{number}{suffix}")
        chunks = 0 if job.plan.is_open else job.plan.num_chunks
        jobs[number:] = [LoggedJob(known_by, chunks, job.plan.length)]
        self.write(b"B" + json.dumps([number, known_by, chunks, job.plan.length]).encode())
        return number, jobs[number]

    def is_there(self, file: str, nbytes: int) -> bool:
        """Whether an intermediate file of this folder has so many bytes."""
        if not is_spill_file(file):
            return False
        if file not in self._sizes:
            info = stat_of(self.folder / file, follow=False)
            self._sizes[file] = -1 if info is None else info.st_size
        return self._sizes[file] >= nbytes

    def tick(self, now: float) -> None:
        """Bring to the disk what is due, by the monotonic clock."""
        self._helper.tick(now)

    # -- the end -------------------------------------------------------------------------------------

    def finish(self, rows: int, files: list[str] | None = None) -> None:
        """The call is over, its result in place; `files` where those of the output have other names now."""
        if files is not None:
            self._helper.files = files
        self.write(END.pack(b"E", rows, self.milliseconds))
        self._history.is_complete = True
        self._helper.finish()

    def merge(self, others: list[History], chunks: int, rows: int) -> None:
        """Take over what the logs of all ranks say of their job, which is done."""
        skipped = {chunk: bad for other in others if other.jobs for chunk, bad in other.jobs[0].skipped.items()}
        self.write(
            b"B" + json.dumps([0, "ranks", chunks, rows]).encode(),
            CHUNKS.pack(b"C", 0, 0, chunks, rows, self.milliseconds),
            *(b"K" + json.dumps([0, chunk, bad]).encode() for chunk, bad in sorted(skipped.items())),
        )

    def failed(self, error: BaseException) -> None:
        """The call ended with an error; what is done stays done."""
        if not self._owner.is_here:
            return
        if not self._history.begun:  # an argument was wrong: the next call may be another one
            remove(self.path)
            return
        notes = list(getattr(error, "__notes__", []))
        line = {"time": time.time(), "type": type(error).__name__, "error": str(error), "notes": notes}
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            self.write(b"F" + json.dumps(line).encode())

    def close(self) -> None:
        """Close the file. The helper syncs once more, in the background, unless `finish` has asked for that."""
        if self._owner.is_here and not self.is_complete:
            self._helper.finish()
        os.close(self._fd)


class JobLog(contextlib.AbstractContextManager["JobLog"]):
    """The chunks of one job, as its driver sees them; a context."""

    def __init__(self, log: Log, number: int, known: LoggedJob, job: Job, sink: Sink[Any]) -> None:
        self._log, self._number, self._known, self._sink, self._plan = log, number, known, sink, job.plan
        self._codec: Codec = getattr(job.fn, "value_codec", PLAIN)
        self._modules = modules_of(job.fn) if isinstance(sink, Collect) else frozenset()
        self._pending: Ranges = []
        self._next = time.monotonic() + log.tuning.log_seconds
        self._warned = False
        self._ledger = log.ledger
        done = self._restore(job.plan.num_known)
        if known.skipped:
            self._forget_undone(known, done)
        known.done = list(done)
        self.elsewhere: Ranges = log.elsewhere
        self.committed = subtract_ranges(done, log.elsewhere)
        self.has_all = self.committed == [(0, job.plan.num_chunks)] and not job.plan.is_open
        self.skipped = known.bad_rows
        self.list_in = log.list_in

    def note_skipped(self, chunk: int, failures: Sequence[Failure]) -> None:
        """Note the rows that were skipped in a chunk; its frame "done" follows."""
        self._log.write(skipped_frame(self._number, chunk, failures))

    def _forget_undone(self, known: LoggedJob, done: Ranges) -> None:
        """Drop skipped rows of chunks that are not done: these chunks run again."""
        void = [chunk for chunk in known.skipped if not any(start <= chunk < stop for start, stop in done)]
        self._log.write(*(skipped_frame(self._number, chunk, ()) for chunk in void))
        known.skipped = {chunk: rows for chunk, rows in known.skipped.items() if chunk not in void}

    def _restore(self, chunks: int) -> Ranges:
        """Give the sink what earlier sessions have left; the chunks that need not run again."""
        if self._ledger is not None:
            committed = self._ledger.committed()
            self._pending += subtract_ranges(committed, self._known.ranges)  # of workers whose driver was killed
            return committed
        ranges = merge_ranges((max(start, 0), min(stop, chunks)) for start, stop in self._known.done)
        if not isinstance(self._sink, Collect):
            return ranges
        done = {chunk for start, stop in ranges for chunk in range(start, stop)}
        values: dict[int, Any] = {}
        for start, stop, packed in self._known.values:
            with contextlib.suppress(ValueError, TypeError, LookupError):  # of a class that is gone: done again
                found = self._codec.unpack(unpack(packed, self._modules))
                values.update(enumerate(found, start) if len(found) == stop - start else ())
        self._sink.restore({chunk: values[chunk] for chunk in sorted(done & values.keys())}, self._log.is_there)
        return merge_ranges((chunk, chunk + 1) for chunk in self._sink.restored)

    def settled(self, plan: ChunkPlan) -> None:
        """The first result has settled how rows are cut. Written at once, before any later chunk."""
        self._plan = plan
        self._log.note_decision(size_of(self._number), plan.size)

    def add(self, start: int, stop: int) -> None:
        """The chunks are done; written at the next `tick` that is due."""
        if self._ledger is not None:
            self._ledger.done[start:stop] = 1
        self._pending.append((start, stop))

    def tick(self, now: float) -> None:
        """Write what is due."""
        if now >= self._next:
            self.flush()
            self._next = now + self._log.tuning.log_seconds
            self._log.tick(now)

    def flush(self) -> None:
        """Write the chunks that are done."""
        pending, self._pending, frames = merge_ranges(self._pending), [], []
        for start, stop in pending:
            values = b""
            if isinstance(self._sink, Collect):
                try:
                    values = pack(self._codec.pack(self._sink.of(start, stop)), self._modules)
                except SerializationError as error:
                    self._warn(error)
                    continue
            rows = self._plan.count(start, stop)
            head = CHUNKS.pack(b"C", self._number, start, stop, rows, self._log.milliseconds)
            frames.append(head + values)
        self._log.write(*frames)

    def _warn(self, error: SerializationError) -> None:
        if not self._warned:
            self._warned = True
            warn_user(f"chunks whose rows hold such objects run again when this call is resumed: {error}")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # What is done stays done, however the job ends. A full disk must not hide the error that ends it.
        with contextlib.suppress(OSError, SerializationError) if kind is not None else contextlib.nullcontext():
            self.flush()


class StateLog(JobLog):
    """The same of a reduction, whose merged states say themselves which chunks they stand for."""

    def __init__(self, log: Log, number: int, known: LoggedJob, job: Job, sink: Sink[Any]) -> None:
        super().__init__(log, number, known, job, sink)
        self._next_disk, self._checked = time.monotonic() + log.tuning.sync_seconds, False

    def _restore(self, chunks: int) -> Ranges:
        assert isinstance(self._sink, Fold)
        self._modules = modules_of(self._sink.reducer)
        self._sink.restored = read_states(self._log.folder, self._number, self._modules)
        return merge_ranges((start, stop) for start, stop, _ in self._sink.restored)

    def tick(self, now: float) -> None:
        if self._pending and now >= self._next:
            self.flush()
            after = time.monotonic()
            self._next = after + max(self._log.tuning.log_seconds, (after - now) / STATE_SHARE)
            if after >= self._next_disk:
                self._log.sync()  # says of which job the state is
                self._save(DISK, durable=True)
                end = time.monotonic()
                self._next_disk = end + max(self._log.tuning.sync_seconds, (end - after) / STATE_SHARE)

    def flush(self) -> None:
        if self._pending:
            self._save("", durable=False)
            super().flush()

    def _save(self, suffix: str, durable: bool) -> None:
        assert isinstance(self._sink, Fold)
        if not self._log._owner.is_here:
            return  # a fork of the driver knows less by now
        body = pack(self._sink.nodes(), self._modules, check=not self._checked)
        self._checked = True
        replace_file(self._log.folder / f"{STATES}{self._number}{suffix}", framed(body), durable)


def read_states(folder: Path, job: int, modules: frozenset[str]) -> list[Any]:
    """The states of a job that an earlier session has saved, each with its chunks; none where there are none.

    Raises:
        UntrustedFile: the file is not the caller's, or holds something else.
    """
    for name in (f"{STATES}{job}", f"{STATES}{job}{DISK}"):
        info = stat_of(folder / name, follow=False)
        if info is None:
            continue
        small = info.st_size <= SMALL
        data = memoryview((read(folder / name) or b"") if small else whole_frames(folder / name, 0))
        body = data[FRAME.size :]
        if len(data) < FRAME.size or FRAME.unpack_from(data) != (len(body), zlib.crc32(body)):
            continue  # torn when the machine went down
        try:
            found = unpack(body, modules)
            if type(found) is list and all(map(_is_node, found)):
                return found
            raise ValueError("it holds no states")
        except ValueError as error:
            raise UntrustedFile(folder / name, f"cannot be resumed ({error})") from None
    return []


def _is_node(node: object) -> bool:
    return type(node) is tuple and len(node) == 3 and type(node[0]) is int and type(node[1]) is int


def describe_job(job: Job) -> str:
    """What tells a job from another one in its place: what runs, how rows are cut, ranges of keys."""
    if job.ledger is not None:
        return "in place"  # rows that are changed stay changed: the identity of the call says all
    fn: Any = job.fn
    names = [type(fn).__qualname__]
    while isinstance(fn, Wrapped):
        fn = fn.fn
        names.append(type(fn).__qualname__)
    size = f"the first result, after {job.plan.lead}" if job.plan.is_open else job.plan.size
    text = f"{' of '.join(names)}, {job.plan.length} rows by {size}"
    splits = getattr(job.fn, "splits", None)
    if dataclasses.is_dataclass(splits):
        values = [getattr(splits, field.name) for field in dataclasses.fields(splits)]
        plain = json.dumps(values, default=lambda array: array.tolist())
        text += f", splits {hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()}"
    return text + _version()


@functools.cache
def _version() -> str:
    """Of this library: another version may cut rows in another way."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f", tdmap {importlib.metadata.version('tdmap')}"
    return ""


def run_logged(log: Log | None, execution: Execution, job: Job, sink: Sink[T]) -> T:
    """Run a job of a call; with a log, as far as it is not done."""
    return execution.run(job, sink) if log is None else log.run(job, sink, execution)


def spill_for(
    log: Log | None, store: OutputFolder | None, spill_dir: str | os.PathLike[str] | None, *, later: bool = False
) -> Spill:
    """Intermediate files of a call: beside its log, in `spill_dir`, in the folder of its output, or in a temporary one.

    Args:
        log, store, spill_dir: of the call.
        later: as `Spill`.
    """
    if log is not None:
        return log.spill()
    if spill_dir is not None:
        os.makedirs(spill_dir, exist_ok=True)
        return Spill(temporary_path("tdmap-spill", spill_dir))
    return Spill(later=later) if store is None else spill_beside(store.hidden)


def clean(folder: Path) -> None:
    """Remove what a call that is over has kept beside its log."""
    for name in os.listdir(folder):
        if name.startswith((SPILL, STATES)) or name == DATA:
            remove_unfinished(folder / name)
