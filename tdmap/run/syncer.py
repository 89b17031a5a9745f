"""The helper process of a journal: waits for the disk, so that the driver need not.

    arguments  the folder, the descriptor of the journal, and "log" or "journal": the format of the record that it adds
    stdin    names of files, separated by NUL, on one line; then one line for every sync that is wanted, with the
             names of files that have come since
    stdout   the seconds that each sync took, as a little-endian double

It is run as a script, by its path and without site-packages, so it starts in milliseconds. The journal is inherited as
an open file: by its name it could be another file by the time that this process has started. When its standard input
closes, because the run is over or the driver has been killed, it syncs a last time and leaves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import struct
import sys
import time
import zlib

DURABLE = 3
"""The record type of a journal that says: every range before this position is on the disk."""

LOG_MAGIC = b"TDMAPL01"
FRAME = struct.Struct("<II")
"""Before each frame of a log: the length and the CRC32 of what follows (see `tdmap.run.log`)."""

BESIDES = ("done", "undo", "skipped", "spill-")
"""Files of these names beside the journal are brought to the disk as well."""


def sync(folder: str, log: int, opened: dict[str, int], last: bool, is_log: bool) -> None:
    """Bring everything to the disk, and say so in the journal, which `log` appends to and which lies in `folder`."""
    position = os.fstat(log).st_size
    for name in os.listdir(folder):
        if name.startswith(BESIDES):
            try:
                _open(os.path.join(folder, name), opened)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # not needed any more; a link, which nobody reads
                    raise
    for descriptor in opened.values():
        os.fdatasync(descriptor)
    if is_log:
        body = struct.pack("<cqq", b"D", position, last)
        record = FRAME.pack(len(body), zlib.crc32(body)) + body
    else:
        body = struct.pack("<BBHIIqq", DURABLE, 0, 0, 0, 0, position, last)
        record = body + zlib.crc32(body).to_bytes(4, "little")
    os.write(log, record)
    os.fdatasync(log)


def _open(path: str, opened: dict[str, int]) -> None:
    if path not in opened:
        # Not blocking: somebody may have put a FIFO there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            opened[path] = descriptor
        else:
            os.close(descriptor)


def _open_all(line: bytes, opened: dict[str, int]) -> None:
    for name in line.decode("utf-8", "surrogateescape").rstrip("\n").split("\0"):
        if name:
            _open(name, opened)


def main(folder: str, log: int, is_log: bool) -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    with contextlib.suppress(OSError):
        os.nice(10)  # the workers come first
    opened: dict[str, int] = {}
    _open_all(sys.stdin.buffer.readline(), opened)
    while True:
        line = sys.stdin.buffer.readline()
        _open_all(line, opened)
        began = time.monotonic()
        sync(folder, log, opened, not line, is_log)
        if not line:
            return
        with contextlib.suppress(OSError):
            os.write(1, struct.pack("<d", time.monotonic() - began))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "log")
