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
import os
import pickle
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dill

from tdmap import journal as journals
from tdmap._data import Data
from tdmap.checkpoint import read_own
from tdmap.job import Job
from tdmap.journal import merge_ranges
from tdmap.placing import Output
from tdmap.resume import Run, files_of, open_run
from tdmap.runtime.owner import Owner
from tdmap.runtime.skipfile import SkipFile

if TYPE_CHECKING:
    from tdmap.append import Pieces

APPEND, FILTER = "append", "filter"
"""Kinds of runs."""

SPILL, PIECES, MASK = "spill-", "pieces", "mask"
"""Names in the hidden folder."""

SECONDS = 0.1
"""Records are written so often."""

_HEAD = struct.Struct("<II")


@contextlib.contextmanager
def open_output_run(output: Output, job: Job, kind: str, file: str, make: Callable[[Path], Any]) -> Iterator[Run]:
    """Begin a run whose output is a folder, or go on with the one that is there.

    Args:
        output: where rows go.
        job: the first of the run, with the user's own function.
        kind: `APPEND` or `FILTER`.
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
    journal, path = store.hidden / "journal", store.hidden / file
    if journal.exists() and not path.exists() and not store.is_whole:
        journal.unlink()  # somebody has removed what it was about
    elif journal.exists() and not path.exists() and _was_lost(journal, kind):
        make(path)
    if not journal.exists():
        output.claim()
        store.hidden.mkdir(parents=True)
        make(path)
    with open_run(store.hidden, job, kind, [str(path)]) as run:
        yield run


def _was_lost(journal: Path, kind: str) -> bool:
    """Whether the end of a run did not reach the disk before the machine went down, though what it needs is removed.

    What its first job had done does not count any more, then. A journal that cannot be read is removed.
    """
    contents = journals.read(journal)
    if contents is None:
        journal.unlink()
        return False
    if contents.header["identity"]["kind"] != kind or contents.is_complete(journals.boot_number()):
        return False
    journals.create(journal, contents.header)  # another run is still told from this one
    return True


def forget(run: Run) -> None:
    """Remove what the first job has left: the run is over."""
    # What names others goes first: were the machine to go down, nobody would look for them.
    for path in [run.folder / PIECES, run.folder / MASK, *run.folder.glob(f"{SPILL}*")]:
        path.unlink(missing_ok=True)


def finish_run(run: Run, output: Output, rows: int) -> Data:
    """Publish the result of a run that has come to its end."""
    assert run.journal is not None
    result = output.result()
    run.journal.files = files_of(result)
    run.finish(rows)
    forget(run)
    return result


def flush_journal(run: Run) -> None:
    """The first job is over: what it has done must not be done again when the second one is interrupted."""
    assert run.journal is not None
    run.journal.flush()


class PieceLog:
    """The commit log of the first job of `append`.

    Args:
        run: the run.
        pieces: the sink; gets the pieces of chunks that an earlier session has done.
    """

    def __init__(self, run: Run, pieces: Pieces) -> None:
        self.run = run
        self.pieces = pieces
        self._path = run.folder / PIECES
        self._pending: list[tuple[int, int]] = []
        self._next = time.monotonic() + SECONDS
        self._owner = Owner()
        records, length = read_records(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._fd, length)
        self._restore(records)

    def _restore(self, records: list[tuple[int, int, tuple[Any, ...]]]) -> None:
        found: dict[int, tuple[Any, ...]] = {}
        for start, stop, values in records:
            found.update(zip(range(start, stop), values))  # a chunk that was done again counts as it was last
        known = {piece.digest: piece.schema for value in found.values() for piece in value or () if piece.schema}
        done = {chunk for start, stop in self.run.committed for chunk in range(start, stop)}
        for chunk, value in sorted(found.items()):
            if chunk in done and all(piece.digest in known for piece in value or ()):
                self.pieces.restored[chunk] = value
        self.pieces.schemas.update(known)
        self.committed = merge_ranges((chunk, chunk + 1) for chunk in self.pieces.restored)

    @property
    def skips(self) -> SkipFile:
        return self.run.skips

    def add(self, start: int, stop: int) -> None:
        self._pending.append((start, stop))
        self.run.add(start, stop)

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + SECONDS
            self.flush()
            self.run.tick(now)

    def flush(self) -> None:
        """Write the pieces of the chunks that were done."""
        data = b"".join(_record(start, stop, self.pieces.of(start, stop)) for start, stop in self._pending)
        self._pending.clear()
        while data and self._owner.is_here:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Write what is left."""
        self.flush()
        os.close(self._fd)
        flush_journal(self.run)


def _record(start: int, stop: int, values: tuple[Any, ...]) -> bytes:
    try:
        body = pickle.dumps((start, stop, values), pickle.HIGHEST_PROTOCOL)
    except Exception:  # classes that are local to a function: dill knows how
        body = dill.dumps((start, stop, values))
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read_records(path: Path) -> tuple[list[tuple[int, int, tuple[Any, ...]]], int]:
    """The records in a file of pieces, and where the last whole one ends.

    Raises:
        PermissionError: the file belongs to another user.
    """
    data, at = read_own(path), 0
    records = []
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        # Without a length: zeros, which a file may end in when the machine went down. They are their own CRC.
        if not length or len(body) < length or zlib.crc32(body) != crc:
            break
        records.append(dill.loads(body))
        at += _HEAD.size + length
    return records, at
