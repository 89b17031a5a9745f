"""The helper process of a log: waits for the disk, so that the driver need not.

    arguments  the folder, and the descriptor of the log
    stdin    names of files, separated by NUL, on one line; then one line for every sync that is wanted, with the
             names of files that have come since
    stdout   the seconds that each sync took, as a little-endian double

It is run as a script, by its path and without site-packages, so it starts in milliseconds. The log is inherited as an
open file: by its name it could be another file by the time that this process has started. When its standard input
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

BESIDES = ("done", "undo", "spill-")
"""Files of these names beside the log are brought to the disk as well."""


def sync(folder: str, log: int, opened: dict[str, int], last: bool) -> None:
    """Bring everything to the disk, and say so in the log, which lies in `folder`."""
    position = os.fstat(log).st_size
    for name in os.listdir(folder):
        if name.startswith(BESIDES):
            try:
                _open(os.path.join(folder, name), opened)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # not needed any more; a link, which is not read
                    raise
    for descriptor in opened.values():
        os.fdatasync(descriptor)
    body = struct.pack("<cqq", b"D", position, last)
    frame = struct.pack("<II", len(body), zlib.crc32(body)) + body  # as `tdmap.run.log` reads it
    os.write(log, frame)
    os.fdatasync(log)


def _open(path: str, opened: dict[str, int]) -> None:
    if path not in opened:
        # Not blocking: it may be a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            opened[path] = descriptor
        else:
            os.close(descriptor)


def _open_all(line: bytes, opened: dict[str, int]) -> None:
    for name in line.decode("utf-8", "surrogateescape").rstrip("\n").split("\0"):
        if name:
            _open(name, opened)


def main(folder: str, log: int) -> None:
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
        sync(folder, log, opened, not line)
        if not line:
            return
        with contextlib.suppress(OSError):
            os.write(1, struct.pack("<d", time.monotonic() - began))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
