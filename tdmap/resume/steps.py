"""Operations that consist of several jobs, and that can be interrupted at any instant: `sort`, `group_by`, `join`...

    out/.tdmap/            beside the journal (see `run`)
      spill-*              what waits between the jobs: rows by ranges of keys, sorted numbers of rows, answers
      pieces               jobs that were begun, the values of their chunks, and what was decided on the way

    job 0   chunks 0..n     ──► spill-*  ─┐       the journal numbers the chunks of all jobs one after the other
    job 1   chunks n..n+m   ──► spill-* ◄─┘
    job 2   chunks n+m..    ──► data/             the output

An operation runs its jobs in the same order each time, since they follow from the data, the arguments and what the jobs
before have found; what does not follow from them, such as free memory, is noted when it is decided (`settled`). So job
number k of a later session is job number k of the first one, and gets the values of the chunks that were done. A job
counts only where what it leaves lies in files that stay (`lasts`); others, which leave numbers in memory, run again.

Job k depends on those before it. Where one of them turns out to be another, or a file that it has filled is gone, what
was done from there on does not count any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor

from tdmap.data.kinds import Data, tensors_of
from tdmap.data.store import OutputFolder
from tdmap.errors import SerializationError, UntrustedFile
from tdmap.frames import warn_user
from tdmap.job import Job, Wrapped
from tdmap.memory.files import known_file, mapped_file
from tdmap.memory.hidden import exists, open_file, remove
from tdmap.memory.regions import region_of
from tdmap.memory.rowfiles import Places
from tdmap.memory.spill import Extent, Spill
from tdmap.plaindata import dump, load, modules_of
from tdmap.plan import merge_ranges
from tdmap.resume.rowlog import (
    PIECES,
    SPILL,
    PacedLog,
    PieceKeeper,
    framed,
    packed_pieces,
    read_frames,
    restore_pieces,
    unpacked_pieces,
    write_all,
)
from tdmap.resume.run import Run, files_of
from tdmap.runtime.commits import STEPS, CommitLog
from tdmap.sinks import Collect, Preallocated, Sink

MODULES = frozenset({"tdmap.bykey.spilling", "tdmap.memory.spill"})
"""Of the classes that values of chunks are of: where rows wait."""

SETTLED, BEGUN, VALUES, MADE = "settled", "begun", "values", "made"
"""What a record is about."""


class LastingSpill(Spill):
    """Intermediate files that stay until the run is over, in its hidden folder.

    Args:
        steps: of the run.
        prefix: of the names of files that workers append to, which nobody knows before.
        number: of the spill among those of the operation.
    """

    lasts = True

    def __init__(self, steps: Steps, prefix: str, number: int) -> None:
        super().__init__(steps.run_of.folder, prefix)
        self._steps: Steps | None = steps
        self._number = number

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_steps": None}

    def mapped(self, name: str, nbytes: int) -> Tensor:
        assert self._steps is not None
        return self._steps.room(f"{SPILL}{self._number}-{name}", nbytes)

    def read_many(self, pieces: Any) -> None:
        super().read_many((self._own(extent), out) for extent, out in pieces)

    def _own(self, extent: Extent) -> Extent:
        if os.path.basename(extent.file) != extent.file or not extent.file.startswith(SPILL):
            raise UntrustedFile(self.folder / PIECES, f"names {extent.file!r:.80}, which is no file of this folder")
        return extent

    def remove(self) -> None:
        """Nothing yet: see `tdmap.resume.rowlog.forget`."""


class Step:
    """A job that was begun.

    Args:
        known_by: tells it from another job in its place.
        base: the number of its first chunk among those of all jobs.
        chunks: how many it has.

    Attributes:
        values: of chunks of which they are known, whether the journal calls them done or not.
    """

    def __init__(self, known_by: str, base: int, chunks: int) -> None:
        self.known_by = known_by
        self.base = base
        self.chunks = chunks
        self.values: dict[int, Any] = {}

    def done(self, committed: Sequence[tuple[int, int]]) -> set[int]:
        """The chunks that are done, by the ranges of all jobs."""
        spans = ((max(start - self.base, 0), min(stop - self.base, self.chunks)) for start, stop in committed)
        return {chunk for start, stop in spans for chunk in range(start, stop)} & self.values.keys()


class Steps:
    """The jobs of an operation: those that earlier sessions have begun, and those of this one. Use it as a context.

    Args:
        run: the run; its folder holds the file of pieces.
    """

    def __init__(self, run: Run) -> None:
        self.run_of = run
        self._path = run.folder / PIECES
        self._token = secrets.token_hex(4)
        self._steps: list[Step] = []
        self._made: dict[str, tuple[int, Any]] = {}
        """Files that jobs fill: how many jobs had been begun before, and what they were to be."""
        self._settled: dict[str, Any] = {}
        self._asked: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._begun = self._spills = self._next = 0
        frames, length = read_frames(self._path)
        for frame in frames:
            self._restore(frame)
        self._fd = open_file(self._path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._fd, length)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    @property
    def has_begun(self) -> bool:
        """Whether any session has begun a job that counts."""
        return bool(self._steps)

    def forget(self) -> None:
        """Nothing has been done, and nothing is to be resumed; not in a fork of the program."""
        assert self.run_of.journal is not None
        if self.run_of.journal.is_mine:
            remove(self.run_of.folder / "journal")
            remove(self._path)

    # -- what earlier sessions have left

    def _restore(self, frame: memoryview) -> None:
        replay: dict[str, Callable[..., Any]] = {
            SETTLED: self._settled.__setitem__,
            BEGUN: self._put,
            VALUES: self._take,
            MADE: self._note_made,
        }
        try:
            kind, *rest = load(frame, MODULES)
            replay[kind](*rest)
        except (ValueError, TypeError, LookupError) as error:
            raise UntrustedFile(self._path, f"cannot be resumed ({error})") from None

    def _put(self, number: int, known_by: str, base: int, chunks: int) -> Step:
        """Job `number` begins; what was known of it, and of those behind it, does not count any more."""
        del self._steps[number:]
        if number != len(self._steps) or base < self._next or chunks < 0:
            raise ValueError("jobs are missing")
        self._steps.append(Step(known_by, base, chunks))
        self._next = base + chunks
        return self._steps[-1]

    def _take(self, number: int, start: int, values: Any) -> None:
        self._steps[number].values.update(enumerate(values, start))

    def _note_made(self, name: str, begun: int, what: Any) -> None:
        """A file was made anew: what jobs have put into it before does not count any more."""
        self._made[name] = begun, what
        del self._steps[begun:]

    # -- what operations ask for, between jobs

    def settle(self, name: str, find: Callable[[], Any]) -> Any:
        number = self._asked[name] = self._asked.get(name, -1) + 1
        name = f"{name} {number}"
        if name not in self._settled:
            self._settled[name] = find()
            self._write(SETTLED, name, self._settled[name])
        return self._settled[name]

    def spill(self) -> LastingSpill:
        self._spills += 1
        return LastingSpill(self, f"{SPILL}{self._token}-", self._spills)

    def room(self, name: str, nbytes: int) -> Tensor:
        """The bytes of a file that jobs fill; uint8 `[nbytes]`, zeros where no earlier session has made it."""
        path = self.run_of.folder / name
        if self._was_made(name, nbytes) and exists(path) and os.lstat(path).st_size == nbytes:
            return known_file(path, nbytes)
        made: Tensor = self._remade(name, nbytes, lambda: mapped_file(path, nbytes))
        return made

    def create(self, store: OutputFolder, example: Data, what: Any) -> Data:
        data = store.load() if self._was_made("output", what) else None
        if data is None:
            data = self._remade("output", what, lambda: store.create(example))
        assert self.run_of.journal is not None
        self.run_of.journal.files = [str(self._path), *files_of(data)]
        return data

    def _was_made(self, name: str, what: Any) -> bool:
        return self._made.get(name) == (self._begun, what)

    def _remade(self, name: str, what: Any, make: Callable[[], Any]) -> Any:
        self._tell_made(name, None)  # what is half made is nothing at all
        made = make()
        self._tell_made(name, what)
        return made

    def _tell_made(self, name: str, what: Any) -> None:
        self._note_made(name, self._begun, what)
        self._write(MADE, name, self._begun, what)

    # -- jobs

    def run(self, job: Job, sink: Sink, run: Callable[[Job, Sink, CommitLog | None], Any]) -> Any:
        token = STEPS.set(None)  # a function of the user's may call operations, too
        try:
            if not lasts(job, sink):
                return run(job, sink, None)
            step = self._next_step(job)
            modules = modules_of(job.fn)
            done = self._restore_into(sink, step, modules)
            if isinstance(sink, Collect) and len(done) == step.chunks:
                sink.open(job.plan, None)  # type: ignore[arg-type]
                return sink.result()
            with _StepLog(self, step, sink, done, modules) as log:
                return run(job, sink, log)
        finally:
            STEPS.reset(token)

    def _next_step(self, job: Job) -> Step:
        number, known_by = self._begun, describe_job(job)
        self._begun += 1
        known = self._steps[number] if number < len(self._steps) else None
        if known is None or known.known_by != known_by or known.chunks != job.plan.num_chunks:
            known = self._put(number, known_by, self._next, job.plan.num_chunks)
            self._write(BEGUN, number, known_by, known.base, known.chunks)
        assert self.run_of.journal is not None
        self.run_of.journal.step(known.base, known.base + known.chunks)
        return known

    def _restore_into(self, sink: Sink, step: Step, modules: frozenset[str]) -> list[int]:
        """Give a sink the values of chunks that are done; those chunks, in order."""
        done = step.done(self.run_of.committed)
        if not isinstance(sink, Collect):
            return sorted(done)
        if isinstance(sink, PieceKeeper):
            found = {}
            for chunk in done:
                with contextlib.suppress(ValueError):  # of a class that is not there: done again
                    pieces = unpacked_pieces(load(step.values[chunk], modules))[2][0]
                    if all(self._is_there(piece.file, piece.offset) for piece in pieces if piece.file):
                        found[chunk] = pieces
            restore_pieces(sink, found, done)
        else:
            sink.restored = {chunk: step.values[chunk] for chunk in done if self._has_all(step.values[chunk])}
        return sorted(sink.restored)

    def _has_all(self, value: Any) -> bool:
        """Whether what a chunk has left can be read: somebody may have removed a file."""
        extents = getattr(value, "extents", ())
        return all(self._is_there(extent.file, extent.offset + extent.nbytes) for extent in extents)

    def _is_there(self, file: str, nbytes: int) -> bool:
        if file not in self._sizes:
            found = os.path.lexists(self.run_of.folder / file)
            self._sizes[file] = os.lstat(self.run_of.folder / file).st_size if found else -1
        return self._sizes[file] >= nbytes

    def _write(self, *record: Any) -> None:
        assert self.run_of.journal is not None
        if not self.run_of.journal.is_mine:
            return  # a fork of the program
        write_all(self._path, self._fd, framed(dump(list(record), MODULES)))

    def note(self, step: Step, start: int, values: list[Any]) -> None:
        """Chunks of a job are done, from `start` on; the journal is told after that."""
        self._write(VALUES, self._steps.index(step), start, values)
        self.run_of.add(step.base + start, step.base + start + len(values))


class _StepLog(PacedLog):
    """The commit log of one job; use it as a context."""

    def __init__(self, steps: Steps, step: Step, sink: Sink, done: Sequence[int], modules: frozenset[str]) -> None:
        super().__init__(steps.run_of)
        self.committed = merge_ranges((chunk, chunk + 1) for chunk in done)
        self._steps = steps
        self._step = step
        self._sink = sink
        self._modules = modules
        self._warned = False

    @property
    def skips(self) -> None:  # type: ignore[override]
        """No rows are skipped."""
        return None

    def add(self, start: int, stop: int) -> None:
        self._pending.append((start, stop))

    def flush(self) -> None:
        """Write the values of the chunks that were done."""
        pending, self._pending = merge_ranges(self._pending), []
        for start, stop in pending:
            if isinstance(self._sink, PieceKeeper):
                self._note_pieces(start, stop, self._sink)
            elif isinstance(self._sink, Collect):
                self._steps.note(self._step, start, list(self._sink.of(start, stop)))
            else:
                self._steps.note(self._step, start, [None] * (stop - start))

    def _note_pieces(self, start: int, stop: int, sink: PieceKeeper) -> None:
        for chunk in range(start, stop):
            try:
                data = dump(packed_pieces(chunk, chunk + 1, sink.of(chunk, chunk + 1)), self._modules)
            except SerializationError as error:
                if not self._warned:
                    self._warned = True
                    warn_user(f"what holds such objects is done again when this run is interrupted: {error}")
                continue
            self._steps.note(self._step, chunk, [data])


def lasts(job: Job, sink: Sink) -> bool:
    """Whether what a job leaves is there in another session, too: in the output, or in intermediate files that stay."""
    if isinstance(sink, Preallocated):
        regions = [region_of(leaf) for leaf in tensors_of(sink.out)]
        return all(region is not None and not region.handle.anonymous for region in regions)
    where = getattr(job.fn, "places", None) or getattr(job.fn, "spill", None)
    return isinstance(sink, Collect) and isinstance(where, (Places, Spill)) and where.lasts


def describe_job(job: Job) -> str:
    """What tells a job from another one that might come in its place: who works, how rows are cut, ranges of keys."""
    fn: Any = job.fn
    names = [type(fn).__qualname__]
    while isinstance(fn, Wrapped):
        fn = fn.fn
        names.append(type(fn).__qualname__)
    text = f"{' of '.join(names)}, {job.plan.length} rows by {job.plan.size}"
    splits = getattr(job.fn, "splits", None)
    if dataclasses.is_dataclass(splits):
        values = [getattr(splits, field.name) for field in dataclasses.fields(splits)]
        text += f", splits {hashlib.blake2b(dump(values), digest_size=8).hexdigest()}"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # another one may cut rows in another way
        text += f", tdmap {importlib.metadata.version('tdmap')}"
    return text
