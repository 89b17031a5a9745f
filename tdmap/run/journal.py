"""The journal of a run: an append-only record of finished chunks, from which the run can be resumed.

    journal:   magic │ header (JSON, CRC) │ record │ record │ record │ ... │ (torn tail: ignored, and cut)
    record:    type, kind, session, milliseconds, a, b, CRC32             32 bytes, one write

    driver    chunks safe ──► RANGE records, several times a second, without waiting for the disk
    helper    fdatasync(output files) ──► DURABLE(position) ──► fdatasync(journal), every few seconds

There are two dangers. When processes are killed, the page cache stays: a RANGE record is valid, because it and its rows
are both in the cache. When the machine goes down, data that had not reached the disk is lost: then only ranges before
the last DURABLE position count, which is written when the rows are on the disk. Every session notes the boot id of the
machine, which tells the two cases apart.

A small helper process waits for the disk. A thread would make forking unsafe, and the driver would be blocked. The
helper spends at most a fraction of its time on it.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import errno
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tdmap.errors import UntrustedFile
from tdmap.memory.hidden import LARGE, SMALL, naming, open_file, parse_json, printable, replace_file
from tdmap.plan import merge_ranges
from tdmap.process_state import Owner, close_end, register_end
from tdmap.process_state import boot_number as boot_number
from tdmap.run import syncer
from tdmap.tuning import current

MAGIC = b"TDMAPJ01"
VERSION = 1
_RECORD = struct.Struct("<BBHIIqqI")
RECORD_BYTES = _RECORD.size
_BODY = RECORD_BYTES - 4

SYNC_SHARE = 0.25
"""The helper may keep the disk busy for this share of the time."""


class Type(enum.IntEnum):
    """What a record says."""

    SESSION = 1
    """A run begins; `a`: seconds since 1970, `b`: digest of the machine's boot."""
    RANGE = 2
    """The chunks `a..b` are done."""
    DURABLE = 3
    """Every range in the first `a` bytes of the journal is on the disk. `b` is 1 when nobody wrote any more."""
    COMPLETE = 4
    """The run is over; `a`: rows."""
    FAILED = 5
    """The run ended with an error, on chunk `a` or -1."""
    PLAN = 6
    """The size of the later chunks is decided by the first result: `a` rows."""


class Record(NamedTuple):
    """One entry of a journal."""

    type: Type
    a: int = 0
    b: int = 0
    session: int = 0
    milliseconds: int = 0
    """Since the session began."""
    kind: int = 0

    def pack(self) -> bytes:
        """The bytes of the record, with its CRC."""
        session, milliseconds = self.session & 0xFFFF, self.milliseconds & 0xFFFFFFFF
        body = _RECORD.pack(self.type, self.kind, session, milliseconds, 0, self.a, self.b, 0)[:_BODY]
        return body + zlib.crc32(body).to_bytes(4, "little")

    @staticmethod
    def unpack(data: bytes) -> Record | None:
        """The record in `data`; None when it is torn or damaged."""
        if len(data) < RECORD_BYTES or zlib.crc32(data[:_BODY]) != int.from_bytes(data[_BODY:RECORD_BYTES], "little"):
            return None
        kind, extra, session, milliseconds, _, a, b, _ = _RECORD.unpack(data[:RECORD_BYTES])
        try:
            return Record(Type(kind), a, b, session, milliseconds, extra)
        except ValueError:  # of a later version
            return None


class Contents(NamedTuple):
    """What a journal says."""

    header: dict[str, Any]
    records: list[Record]
    start: int
    """Where the records begin."""
    stop: int
    """Where they end; what follows is torn."""

    def position(self, index: int) -> int:
        """Where record `index` begins."""
        return self.start + index * RECORD_BYTES

    def ranges(self, boot: int | None = None) -> list[tuple[int, int]]:
        """The chunks that are done, as runs that neither touch nor overlap.

        Args:
            boot: the boot of the machine now. Ranges written during another one count only where they had reached
                the disk. None: every range counts.
        """
        return merge_ranges((r.a, r.b) for r in self._valid(boot) if r.type is Type.RANGE)

    @property
    def chunk_size(self) -> int | None:
        """Rows of the chunks after the first ones, once a result has settled them."""
        return next((r.a for r in self.records if r.type is Type.PLAN and r.a > 0), None)

    def is_complete(self, boot: int | None = None) -> bool:
        """Whether a run has come to its end."""
        return any(r.type is Type.COMPLETE for r in self._valid(boot))

    def is_settled(self, boot: int) -> bool:
        """Whether no change that a run made to its files can have been lost: of this boot, or on the disk."""
        last = next((r for r in reversed(self.records) if r.type in (Type.SESSION, Type.DURABLE)), None)
        if last is None:
            return True
        return last.b == boot if last.type is Type.SESSION else bool(last.b) or self._last_boot() == boot

    def _last_boot(self) -> int | None:
        return next((r.b for r in reversed(self.records) if r.type is Type.SESSION), None)

    def _valid(self, boot: int | None) -> list[Record]:
        """The records that count in a boot: what had not reached the disk when the machine went down is lost for good.

        So a sync in a later boot says nothing of ranges that were written before that.
        """
        if boot is None:
            return self.records
        kept: list[tuple[int, Record]] = []
        durable, last = 0, None
        for index, record in enumerate(self.records):
            if record.type is Type.SESSION:
                if record.b != last:
                    kept = self._on_disk(kept, durable)
                last = record.b
            elif record.type is Type.DURABLE:
                durable = max(durable, record.a)
            kept.append((index, record))
        return [record for _, record in (kept if last == boot else self._on_disk(kept, durable))]

    def _on_disk(self, records: list[tuple[int, Record]], durable: int) -> list[tuple[int, Record]]:
        """Those that are still there when the machine has gone down."""
        lost = (Type.RANGE, Type.COMPLETE)
        return [(i, record) for i, record in records if record.type not in lost or self.position(i) < durable]


# -- files -------------------------------------------------------------------------------------------


def create(path: Path, header: dict[str, Any], durable: bool = True) -> None:
    """Create a new journal at `path`, atomically; replaces an old one."""
    text = json.dumps({"version": VERSION, **header}).encode()
    data = MAGIC + struct.pack("<II", len(text), zlib.crc32(text)) + text
    replace_file(path, data, durable)


def read(path: Path, own: bool = True) -> Contents | None:
    """Read the journal at `path`; None when there is none, or its header is incomplete.

    Reading stops at the first record that is torn or damaged: what follows was written later.

    Args:
        path: the journal.
        own: the file must belong to the caller. False for commands that only look.

    Raises:
        ValueError: it is of a later version, or its header is not one.
        UntrustedFile: it is a link, a device, somebody else's, or larger than a journal gets.
    """
    try:
        fd = open_file(path, limit=LARGE, own=own)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(fd, "rb") as file:
        begin = file.read(len(MAGIC) + 8)
        if begin[: len(MAGIC)] != MAGIC or len(begin) < len(MAGIC) + 8:
            return None
        length, crc = struct.unpack_from("<II", begin, len(MAGIC))
        if not 0 < length <= SMALL:
            return None
        text = file.read(length)
        if len(text) < length or zlib.crc32(text) != crc:
            return None
        try:
            header = parse_json(text)
        except ValueError as error:
            raise UntrustedFile(path, f"has a header that this library does not write ({error})") from None
        header = _checked(header, path)
        start = position = len(begin) + length
        records = []
        while (record := Record.unpack(file.read(RECORD_BYTES))) is not None:
            records.append(record)
            position += RECORD_BYTES
        return Contents(header, records, start, position)


def _checked(header: Any, path: Path) -> dict[str, Any]:
    if type(header) is not dict or "version" not in header:
        raise ValueError(f"{path} has a header that this library does not write.")
    if header["version"] != VERSION:
        found = printable(header["version"], 20)
        raise ValueError(f"{path} was written in version {found} of the format, and this library reads {VERSION}.")
    return header


class Journal:
    """Appends to a journal; one writer at a time, besides its own helper.

    Args:
        path: a journal that `create` made.
        contents: what it says so far (see `read`); a torn tail is cut.
        files: the files whose rows must be on the disk before a range is durable.
    """

    def __init__(self, path: Path, contents: Contents, files: Iterable[str] = ()) -> None:
        self.path = path
        self.tuning = current()
        self._fd = open_file(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._fd, contents.stop)
        sessions = [r.session for r in contents.records if r.type is Type.SESSION]
        self.session = max(sessions, default=0) + 1
        self._began = self._last = time.monotonic()
        self._open: dict[int, int] = {}
        self._owner = Owner()
        self._helper = Helper(path.parent, self._fd, self.tuning.sync_seconds)
        self._helper.files = list(files)
        self._write([Record(Type.SESSION, int(time.time()), boot_number())])

    @property
    def is_mine(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self._owner.is_here

    @property
    def files(self) -> list[str]:
        """The files whose rows must be on the disk before a range is durable."""
        return self._helper.files

    @files.setter
    def files(self, files: list[str]) -> None:
        self._helper.files = files

    def settle(self, chunk_size: int) -> None:
        """Note the size of the later chunks. Written at once, before any of them is noted."""
        self._write([Record(Type.PLAN, chunk_size)])

    def add(self, start: int, stop: int) -> None:
        """The chunks `start..stop` are done; written at the next `tick` that is due."""
        # Neighbours of one lease come in order: extend the run that ends where this one begins.
        begin = self._open.pop(start, start)
        self._open[stop] = begin

    def tick(self, now: float) -> None:
        """Write what is due, by the monotonic clock."""
        if now - self._last >= self.tuning.log_seconds:
            self._last = now
            self.flush()
            self._helper.tick(now)

    def flush(self) -> None:
        """Write the ranges that were added."""
        if self._open:
            merged = merge_ranges((start, stop) for stop, start in self._open.items())
            self._write([Record(Type.RANGE, start, stop) for start, stop in merged])
            self._open.clear()

    def complete(self, rows: int) -> None:
        """Note the end of the run. The helper brings it to the disk; this does not wait for it."""
        self.flush()
        self._write([Record(Type.COMPLETE, rows)])
        self._helper.finish()

    def failed(self, chunk: int = -1) -> None:
        """Note that the run ended with an error. A full disk here must not hide that error."""
        try:
            self.flush()
            self._write([Record(Type.FAILED, chunk)])
        except OSError:
            self._open.clear()  # chunks that are not noted will be done again

    def close(self, wait: bool = False) -> None:
        """Write what is left; `wait` until it is on the disk."""
        if self._fd >= 0:
            if self.is_mine:
                self.flush()
                self._helper.finish()
            os.close(self._fd)
            self._fd = -1
        if wait and self.is_mine:
            self._helper.join()

    def _write(self, records: list[Record]) -> None:
        if not self.is_mine:  # a fork that unwinds the run of its parent
            return
        milliseconds = int((time.monotonic() - self._began) * 1000)
        data = b"".join(r._replace(session=self.session, milliseconds=milliseconds).pack() for r in records)
        with naming(self.path):
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, "no space left on device for the journal", str(self.path))


# -- bringing rows to the disk -----------------------------------------------------------------------


class Helper:
    """The process that waits for the disk; started when it is first needed.

    Args:
        folder: where the journal lies.
        journal: descriptor of the journal, which DURABLE records are appended to. The process inherits it: by its
            name it could be another file by then.
        seconds: time between two syncs, at least.
        format: of the record that says so: "journal" or "log".
    """

    def __init__(self, folder: Path, journal: int, seconds: float, format: str = "journal") -> None:
        self.folder = folder
        self.format = format
        self.journal = journal
        self.seconds = seconds
        self.files: list[str] = []
        self._told: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = False
        self._next = time.monotonic() + seconds

    def tick(self, now: float) -> None:
        """Ask for a sync when it is due."""
        if self._busy:
            self._listen(now)
        if not self._busy and now >= self._next and self.files and self._start():
            self._busy = self._send_names()

    def _start(self) -> bool:
        if self._process is None:
            _reap()
            command = [sys.executable, "-I", "-S", syncer.__file__, str(self.folder), str(self.journal), self.format]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    pass_fds=(self.journal,),
                )
            except OSError:  # no more processes: the page cache must do
                self._next = float("inf")
                return False
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            _helpers.append(self._process)
            register_end(self._process.stdin)  # a forked worker must not hold it open
            self._told.clear()
            return self._send_names()
        return True

    def _send_names(self) -> bool:
        """One line, with the files that the process does not know yet."""
        names = [name for name in self.files if name not in self._told]
        self._told.update(names)
        return self._send("\0".join(names).encode("utf-8", "surrogateescape") + b"\n")

    def _send(self, data: bytes) -> bool:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            return True
        except OSError:  # it has been killed: the next one takes its place
            self._process = None
            self._next = time.monotonic() + self.seconds
            return False

    def _listen(self, now: float) -> None:
        assert self._process is not None and self._process.stdout is not None
        data: bytes | None = self._process.stdout.read(8)
        if data is None:  # still at it
            return
        self._busy = False
        if len(data) < 8:
            self._process = None
            self._next = now + self.seconds
            return
        (took,) = struct.unpack("<d", data)
        self._next = now + max(self.seconds, took / SYNC_SHARE)

    def finish(self) -> None:
        """Have everything brought to the disk, without waiting for it."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self.files and self._start():
            if not self._told.issuperset(self.files):
                self._send_names()
            self._close_pipes()

    def _close_pipes(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                assert self._process.stdin is not None and self._process.stdout is not None
                close_end(self._process.stdin)
                self._process.stdout.close()

    def join(self) -> None:
        """Wait until it has."""
        if self._process is not None:
            self._process.wait()


_helpers: list[subprocess.Popen[bytes]] = []


def _reap() -> None:
    """Let go of helpers that have ended."""
    _helpers[:] = [process for process in _helpers if process.poll() is None]


def wait_for_disk() -> None:
    """Wait until the runs of this process that are over have reached the disk."""
    for process in _helpers:
        process.wait()
    _helpers.clear()


def _leave_helpers() -> None:
    """Helpers that still wait for the disk end by themselves: nobody need be warned of them."""
    _reap()
    for process in _helpers:
        process.returncode = 0


def _forget_in_child() -> None:
    for process in _helpers:
        process.returncode = 0
    _helpers.clear()


atexit.register(_leave_helpers)
os.register_at_fork(after_in_child=_forget_in_child)
