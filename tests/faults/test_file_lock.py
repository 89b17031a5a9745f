"""Locks of short steps: they end with their step, whoever was forked meanwhile."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tdmap.errors import UntrustedFile
from tdmap.memory import hidden
from tdmap.memory.hidden import FileLock
from tests.descriptors import descriptors


def test_the_second_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path), pytest.raises(BlockingIOError, match="lock is locked by another call"):
        FileLock(path)
    with FileLock(path, patience=60) as lock:
        assert lock.works


def test_a_child_that_was_forked_meanwhile_does_not_keep_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with FileLock(tmp_path / "lock"):
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)  # lives until the parent has asked
            os._exit(0)
    try:
        with FileLock(tmp_path / "lock"):
            pass
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_an_error_in_the_step_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileLock(tmp_path / "lock"):
        raise ZeroDivisionError
    with FileLock(tmp_path / "lock"):
        pass


def test_without_locks_of_files_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(hidden.fcntl, "flock", refuse)
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert not first.works and not second.works


def test_another_error_of_the_system_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, how: int) -> None:
        raise OSError(errno.EIO, "input or output")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        with pytest.raises(OSError, match="input or output"):
            FileLock(tmp_path / "lock")
    assert not descriptors(tmp_path)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedFile):
        FileLock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
