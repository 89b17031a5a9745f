"""Runs whose number of rows is only known at the end, and that can be interrupted at any instant.

    out/.tdmap/            beside the journal (see `resume`)
      spill-*              rows that wait for their place (see `append`)
      pieces               what is in them: a record for each run of chunks, written before the journal says "done"
      mask                 of a filter: a byte a row

Everything is there before the journal says so, and is brought to the disk before the journal calls it durable. The
second job starts anew when it is interrupted: it only copies, and writes the same bytes to the same places.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tdmap.data.kinds import Data
from tdmap.data.schema import KeyPath, Schema
from tdmap.data.store import OutputFolder
from tdmap.errors import SerializationError
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.hidden import exists, naming, open_file, read, remove, remove_tree
from tdmap.memory.resources import available_memory
from tdmap.plaindata import dump, load, modules_of
from tdmap.plan import merge_ranges
from tdmap.resume import journal as journals
from tdmap.resume.run import Run, RunLog, can_begin_anew, check_identity, files_of, open_run

if TYPE_CHECKING:
    from typing import Self

APPEND, FILTER = "append", "filter"
"""Kinds of runs."""

_CALLS = {APPEND: "flat_map", FILTER: "filter"}

SPILL, PIECES, MASK = "spill-", "pieces", "mask"
"""Names in the hidden folder."""

SECONDS = 0.1
"""Records are written so often."""

HEAD = struct.Struct("<II")
"""Before each record: its length, and its CRC."""


@contextlib.contextmanager
def open_output_run(output: FolderOutput, job: Job, kind: str, file: str, make: Callable[[Path], Any]) -> Iterator[Run]:
    """Begin a run whose output is a folder, or go on with the one that is there.

    Args:
        output: where rows go.
        job: the first of the run, with the user's own function.
        kind: `APPEND`, `FILTER` or `STEPWISE`.
        file: name of the file that says what the first job has found.
        make: makes that file.

    Raises:
        ValueError: the output is no folder.
        FileExistsError: the folder holds something else.
        ResumeMismatch: the folder holds another run; names what differs.
    """
    store = output.store
    if store is None:
        raise ValueError("resume=True keeps its journal in the folder of the result: pass out=a folder.")
    call = f"{_CALLS[kind]}({job.name})" if kind in _CALLS else job.name
    with output.claimed(call, resume=True):
        path = store.hidden / file
        if store.has_journal and not exists(path):
            if not store.is_whole:
                if can_begin_anew(store.hidden / "journal", kind):
                    remove(store.hidden / "journal")  # somebody has removed what it was about
            elif _was_lost(store.hidden / "journal", kind):
                make(path)
        if not store.has_journal:
            store.begin_anew()
            make(path)
        with open_run(store.hidden, job, kind, [str(path)]) as run:
            yield run


def _was_lost(journal: Path, kind: str) -> bool:
    """Whether the end of a run did not reach the disk before the machine went down, though what it needs is removed.

    What its first job had done does not count any more, then. A journal that cannot be read is removed.
    """
    contents = journals.read(journal)
    if contents is None:
        remove(journal)
        return False
    if check_identity(contents.header, journal)["kind"] != kind or contents.is_complete(journals.boot_number()):
        return False
    journals.create(journal, contents.header)  # another run is still told from this one
    return True


def forget(run: Run) -> None:
    """Remove what the first job has left: the run is over."""
    # What names others goes first: were the machine to go down, nobody would look for them.
    for path in [run.folder / PIECES, run.folder / MASK, *run.folder.glob(f"{SPILL}*")]:
        remove_tree(path)


def finish_run(run: Run, result: Data, rows: int) -> Data:
    """A run has come to its end; its result is in its place."""
    assert run.journal is not None
    run.journal.files = files_of(result)
    run.finish(rows)
    forget(run)
    return result


def flush_journal(run: Run) -> None:
    """The first job is over: what it has done must not be done again when the second one is interrupted."""
    assert run.journal is not None
    run.journal.flush()


class Piece(NamedTuple):
    """Rows that wait in a spill file, tensor after tensor."""

    rows: int
    digest: int
    """Of their schema."""
    file: str
    offset: int
    objects: dict[KeyPath, Any]
    """Entries that are no tensors; they travel."""
    schema: Schema | None
    """The first time that a worker sends this one."""


@runtime_checkable
class PieceKeeper(Protocol):
    """Keeps the pieces of every chunk: the sink of the first job."""

    schemas: dict[int, Schema]
    """Every schema that was met, by its digest."""
    restored: dict[int, tuple[Piece, ...]]
    """The pieces of chunks that an earlier session has done, by their number."""

    def of(self, start: int, stop: int) -> tuple[Any, ...]:
        """What is known of the chunks `start..stop`."""
        ...


class FolderOutput(Protocol):
    """An output that may be a folder."""

    store: OutputFolder | None

    def claimed(self, call: str, resume: bool = False) -> AbstractContextManager[None]:
        """Be the only one who writes it."""
        ...

    def result(self) -> Data:
        """The output, with every row in its place."""
        ...


class PacedLog(RunLog):
    """A base for commit logs that write, every now and then, what chunks have left; used as a context.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._pending: list[tuple[int, int]] = []
        self._next = time.monotonic() + SECONDS

    def flush(self) -> None:
        """Write what the chunks that are `_pending` have left."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + SECONDS
            self.flush()
            self.run.tick(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Write what is left, for a job that is over must not run again when a later one is interrupted.

        No room for that must not hide the error that ends the job.
        """
        assert self.run.journal is not None
        try:
            if self.run.journal.is_mine:
                self.flush()
                self.run.journal.flush()
        except OSError:
            if kind is None:
                raise


class PieceLog(PacedLog):
    """The commit log of the first job of `append`.

    Args:
        run: the run.
        pieces: the sink; gets the pieces of chunks that an earlier session has done.
        fn: the function of the job. Objects among the rows may be of classes of its module.
    """

    def __init__(self, run: Run, pieces: PieceKeeper, fn: Any) -> None:
        super().__init__(run)
        self.pieces = pieces
        self._path = run.folder / PIECES
        self._warned = False
        self._modules = modules_of(fn)
        records, length = read_records(self._path, self._modules)
        self._fd = open_file(self._path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._fd, length)
        self._restore(records)

    def _restore(self, records: list[tuple[int, int, tuple[Any, ...]]]) -> None:
        found: dict[int, tuple[Any, ...]] = {}
        for start, stop, values in records:
            found.update(zip(range(start, stop), values))  # a chunk that was done again counts as it was last
        done = {chunk for start, stop in self.run.committed for chunk in range(start, stop)}
        restore_pieces(self.pieces, found, done)
        self.committed = merge_ranges((chunk, chunk + 1) for chunk in self.pieces.restored)

    def add(self, start: int, stop: int) -> None:
        self._pending.append((start, stop))
        super().add(start, stop)

    def flush(self) -> None:
        """Write the pieces of the chunks that were done."""
        data = b"".join(self._record(start, stop) for start, stop in merge_ranges(self._pending))
        self._pending.clear()
        write_all(self._path, self._fd, data)

    def _record(self, start: int, stop: int) -> bytes:
        try:
            return pack_record(start, stop, self.pieces.of(start, stop), self._modules)
        except SerializationError as error:
            if not self._warned:
                self._warned = True
                warn_user(
                    f"chunks whose rows hold such objects are done again when this run is interrupted: {error}",
                )
            return b""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, at)
        finally:
            os.close(self._fd)


def restore_pieces(sink: PieceKeeper, found: Mapping[int, tuple[Any, ...]], done: Collection[int]) -> None:
    """Have a sink begin with the pieces of these chunks, of which those count that are done and can be understood."""
    known = {piece.digest: piece.schema for value in found.values() for piece in value or () if piece.schema}
    for chunk, value in sorted(found.items()):
        if chunk in done and all(piece.digest in known for piece in value or ()):
            sink.restored[chunk] = value
    sink.schemas.update(known)


def pack_record(start: int, stop: int, values: tuple[Any, ...], modules: Collection[str]) -> bytes:
    """The pieces of the chunks `start..stop` as a record.

    Raises:
        SerializationError: their rows hold objects that are no data.
    """
    return framed(dump(packed_pieces(start, stop, values), modules))


def write_all(path: Path, fd: int, data: bytes) -> None:
    """Write records behind those of a file, which an error names."""
    with naming(path):
        while data:
            data = data[os.write(fd, data) :]


def framed(body: bytes) -> bytes:
    """A record, with what tells a whole one from a torn one."""
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def packed_pieces(start: int, stop: int, values: tuple[Any, ...]) -> list[Any]:
    """The pieces of the chunks `start..stop` as data, column by column."""
    pieces = [piece for found in values for piece in found or ()]
    counts = [-1 if found is None else len(found) for found in values]
    columns = [[piece[column] for piece in pieces] for column in range(4)]  # rows, digest, file, offset
    objects = {number: piece.objects for number, piece in enumerate(pieces) if piece.objects}
    skeletons = {number: piece.schema.skeleton for number, piece in enumerate(pieces) if piece.schema is not None}
    return [start, stop, counts, columns, objects, skeletons]


def read_records(path: Path, modules: Collection[str]) -> tuple[list[tuple[int, int, tuple[Any, ...]]], int]:
    """The records in a file of pieces, and where the last whole one ends.

    Records that cannot be read as pieces count as if they were not there: their chunks are done again.

    Raises:
        UntrustedFile: the file is not this library's, or not the caller's.
    """
    frames, length = read_frames(path)
    records = []
    for body in frames:
        with contextlib.suppress(ValueError):
            records.append(unpacked_pieces(load(body, modules)))
    return records, length


def read_frames(path: Path) -> tuple[list[memoryview], int]:
    """What the whole records in a file hold, and where the last of them ends. Errors as `read_records`."""
    data, at = memoryview(read(path, available_memory() // 2) or b""), 0
    frames = []
    while at + HEAD.size <= len(data):
        length, crc = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + length]
        # Without a length: zeros, which a file may end in when the machine went down. They are their own CRC.
        if not length or len(body) < length or zlib.crc32(body) != crc:
            break
        frames.append(body)
        at += HEAD.size + length
    return frames, at


def unpacked_pieces(record: Any) -> tuple[int, int, tuple[Any, ...]]:
    """What `packed_pieces` was given.

    Raises:
        ValueError: it was not.
    """
    try:
        start, stop, counts, columns, objects, skeletons = record
        pieces = [
            _piece_of(rows, digest, file, offset, objects.get(number, {}), skeletons.get(number))
            for number, (rows, digest, file, offset) in enumerate(zip(*columns, strict=True))
        ]
        numbers = [start, stop, *counts]
    except (TypeError, AttributeError) as error:
        raise ValueError("not a record of pieces") from error
    if any(type(number) is not int for number in numbers) or stop - start != len(counts):
        raise ValueError("not a record of pieces")
    ends = list(itertools.accumulate(max(count, 0) for count in counts))
    if ends and ends[-1] != len(pieces):
        raise ValueError("not a record of pieces")
    found = [None if count < 0 else tuple(pieces[end - count : end]) for count, end in zip(counts, ends)]
    return start, stop, tuple(found)


def _piece_of(rows: Any, digest: Any, file: Any, offset: Any, objects: Any, skeleton: Any) -> Piece:
    if not all(type(number) is int and number >= 0 for number in (rows, digest, offset)):
        raise ValueError("numbers are missing")
    if type(file) is not str or (file and (os.path.basename(file) != file or not file.startswith(SPILL))):
        raise ValueError(f"{file!r} is no file of this folder")
    schema = None if skeleton is None else Schema(skeleton)
    if type(objects) is not dict or (schema is not None and schema.digest != digest):
        raise ValueError("rows are not as they were described")
    return Piece(rows, digest, file, offset, objects, schema)
