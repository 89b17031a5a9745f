"""Waiting for the disk: a process that has the rows of a call reach it, and then says so in the log of the call.

A thread would make forking unsafe, and the driver would be blocked. The process spends a fraction of its time on it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from tdmap.processes import boot_number as boot_number
from tdmap.processes import close_end, register_end
from tdmap.run import syncer

SYNC_SHARE = 0.25
"""The process may keep the disk busy for this share of the time."""


class Helper:
    """The process that waits for the disk; started when it is first needed.

    Args:
        folder: where the log lies.
        log: descriptor of the log, which the frames are appended to. The process inherits it: by its name it could be
            another file by then.
        seconds: time between two syncs, at least.
    """

    def __init__(self, folder: Path, log: int, seconds: float) -> None:
        self.folder = folder
        self.log = log
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
            command = [sys.executable, "-I", "-S", syncer.__file__, str(self.folder), str(self.log)]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    pass_fds=(self.log,),
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
        assert self._process is not None and self._process.stdin is not None
        names = [name for name in self.files if name not in self._told]
        self._told.update(names)
        try:
            self._process.stdin.write("\0".join(names).encode("utf-8", "surrogateescape") + b"\n")
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
    """Helpers that still wait for the disk end by themselves, without a warning."""
    _reap()
    for process in _helpers:
        process.returncode = 0


def _forget_in_child() -> None:
    for process in _helpers:
        process.returncode = 0
    _helpers.clear()


atexit.register(_leave_helpers)
os.register_at_fork(after_in_child=_forget_in_child)
