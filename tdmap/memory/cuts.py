"""A mapped file that is truncated while the caller reads it: an error, where the program would be killed.

Reading a mapped page beyond the end of its file raises SIGBUS. Handlers of the `signal` module run too late: the
instruction would fault again and again. So while jobs run, a handler of the C library is set. It maps a page of zeros
over the missing one, notes the file, and lets the instruction go on. The code that runs chunks looks for such notes
before a chunk counts as done, and raises an error. When another job begins, and when the last one has ended, the
original mappings are restored: who reads there next meets the cut itself.

This works on Linux with the usual signal layout. Elsewhere SIGBUS ends the process. It also ends worker processes,
which are replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from tdmap.process import hooks
from tensordict_lite.errors import DatasetError

_SIGINFO = 4
_FIXED = 0x10
_ZEROS = "/dev/zero"
_FAILED = ctypes.c_void_p(-1).value


class _Action(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class _Mapping(NamedTuple):
    """A mapping of a file, as the kernel lists it."""

    start: int
    stop: int
    shared: bool
    writable: bool
    offset: int
    inode: int
    path: str


class _Cut(NamedTuple):
    """A part of a mapping where zeros have replaced the file."""

    start: int
    mapping: _Mapping
    reason: str


class _Catcher:
    """The SIGBUS handler of this process, set while a job needs it."""

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._sigaction = libc.mmap, libc.sigaction
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._callback = kind(self._fault)  # kept: the kernel has its address
        self._before = _Action()
        self._is_set = False
        self._users: weakref.WeakSet[Cuts] = weakref.WeakSet()  # an exception may end one that has not begun
        self._lock = threading.RLock()
        self.cuts: list[_Cut] = []
        """The cuts found since the first running job set the handler."""
        self._filled: list[_Cut] = []
        """Those of them whose zeros are still there."""

    def acquire(self, user: Cuts) -> None:
        with self._lock:
            self._restore_all()  # what other jobs have met is no news for this one, and it must not read their zeros
            self._users.add(user)
            if not self._is_set:
                self._is_set = True
                action = _Action(ctypes.cast(self._callback, ctypes.c_void_p).value, flags=_SIGINFO)
                self._sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(self._before))

    def release(self, user: Cuts) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._step_back()
                self.cuts = []
                self._restore_all()

    def forget(self) -> None:
        """In a forked child: no job of its own would ask for the notes."""
        self._lock, self._users = threading.RLock(), weakref.WeakSet()
        self._step_back()

    def _step_back(self) -> None:
        if self._is_set:
            self._is_set = False
            self._sigaction(signal.SIGBUS, ctypes.byref(self._before), None)

    def _fault(self, _: int, info: int, context: int) -> None:
        try:
            # After three numbers, aligned: the address that was read.
            address = ctypes.c_uint64.from_address(info + 16).value
            with self._lock:  # whoever begins a job just now would take zeros that are not there yet for restored
                if not self._users or not self._fill(address):
                    self._step_back()  # and fault again
        except BaseException:
            self._step_back()

    def _fill(self, address: int) -> bool:
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        mapping = _mapping_at(address)
        if mapping is None:  # perhaps another thread has been here meanwhile
            return any(cut.start <= page < cut.mapping.stop for cut in self._filled)
        stop, reason = page + mmap.PAGESIZE, "a page of it could not be read or written: there is no room, or an error"
        with contextlib.suppress(OSError):  # removed meanwhile, or memory that never had a name
            info = os.stat(mapping.path)
            if info.st_ino == mapping.inode and info.st_size <= mapping.offset + page - mapping.start:
                stop = mapping.stop
                reason = f"it has {info.st_size:,} bytes now: somebody has cut it since it was opened. Load it again"
        cut = _Cut(page, mapping._replace(stop=stop), reason)
        self._filled.append(cut)
        self.cuts.append(cut)  # before other threads see the zeros
        fd = os.open(_ZEROS, os.O_RDWR | os.O_CLOEXEC)
        try:
            flags = mmap.MAP_PRIVATE | _FIXED
            done = self._mmap(page, stop - page, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
        finally:
            os.close(fd)
        return bool(done != _FAILED)

    def _restore_all(self) -> None:
        """Map the files again: nobody else must read zeros."""
        cuts, self._filled = self._filled, []
        self._filled += [cut for cut in cuts if not self._restore(cut)]

    def _restore(self, cut: _Cut) -> bool:
        """Map a file again; False where that would end a job that runs."""
        mapping = cut.mapping
        zeros = next((there for there in _mappings() if there.start <= cut.start < there.stop), None)
        if zeros is None or zeros.path != _ZEROS:
            return True  # the file is no longer mapped there, and another mapping may use these addresses
        mode, protection = os.O_RDONLY, mmap.PROT_READ
        if mapping.writable:
            protection |= mmap.PROT_WRITE
            mode = os.O_RDWR if mapping.shared else mode
        try:
            fd = os.open(mapping.path, mode | os.O_CLOEXEC)
        except OSError:
            fd = -1
        flags = _FIXED | (mmap.MAP_SHARED if mapping.shared else mmap.MAP_PRIVATE)
        offset = mapping.offset + cut.start - mapping.start
        if fd < 0 or os.fstat(fd).st_ino != mapping.inode:  # then nobody may read it
            if self._users:  # no page of it would be filled again
                if fd >= 0:
                    os.close(fd)
                return False
            flags, protection = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, 0
        self._mmap(cut.start, min(mapping.stop, zeros.stop) - cut.start, protection, flags, fd, offset)
        if fd >= 0:
            os.close(fd)
        return True


def _mappings() -> Iterator[_Mapping]:
    """The mappings of files of this process."""
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            fields = line.rstrip(b"\n").split(None, 5)
            if len(fields) == 6:
                start, stop = (int(end, 16) for end in fields[0].split(b"-"))
                path = os.fsdecode(fields[5].removesuffix(b" (deleted)"))
                kind = fields[1].endswith(b"s"), b"w" in fields[1]
                yield _Mapping(start, stop, *kind, int(fields[2], 16), int(fields[4]), path)


def _mapping_at(address: int) -> _Mapping | None:
    """The mapping of a file of data that an address lies in; None for code and its constants."""
    mapping = next((found for found in _mappings() if found.start <= address < found.stop), None)
    return mapping if mapping is not None and (mapping.shared or mapping.writable) else None


def _make_catcher() -> _Catcher | None:
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return None
    with contextlib.suppress(OSError, AttributeError, ValueError):
        return _Catcher()
    return None


_catcher: _Catcher | None = _make_catcher()
if _catcher is not None:
    hooks.in_child(hooks.SIGNALS, _catcher.forget)


class Cuts:
    """The truncated files that one job has met. Other jobs that run at the same time in this process see them too.

    Example:
        >>> cuts = Cuts()
        >>> cuts.error is None
        True
        >>> cuts.close()
    """

    def __init__(self) -> None:
        self._found: list[_Cut] = []
        if _catcher is not None:
            _catcher.acquire(self)
            self._found = _catcher.cuts
        self._before = len(self._found)

    @property
    def error(self) -> DatasetError | None:
        """The error that the job must raise, or None."""
        if len(self._found) == self._before:
            return None
        cut = self._found[-1]
        return DatasetError(cut.mapping.path, cut.reason)

    def check(self) -> None:
        """Raise `error`, if there is one."""
        if (error := self.error) is not None:
            raise error

    def close(self) -> None:
        """The job is over. May be called again."""
        if _catcher is not None:
            _catcher.release(self)
