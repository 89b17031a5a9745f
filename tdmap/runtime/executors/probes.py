"""Whether another machine has the same folders: found by files that are put there, and not guessed from names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable
from typing import NamedTuple

SAMPLE_BYTES = 1 << 16
"""Bytes at both ends of a file by which it is known where nothing may be written beside it."""


class Probe(NamedTuple):
    """A question about one folder."""

    path: str
    """A file in it."""
    token: str
    """What it holds, or the digest of its ends."""
    answer: bool
    """An answer is to be put beside it."""


class Probes:
    """Questions about the folders of some files; a context, which leaves nothing behind.

    Args:
        files: the files.
        written: they will be written: that must be possible over there, and be seen here.
    """

    def __init__(self, files: Iterable[str], written: bool) -> None:
        self._written = written
        self.questions: list[Probe] = []
        self._folders: dict[str, str] = {}
        for file in sorted(files):
            self._folders.setdefault(os.path.dirname(file), file)

    def __enter__(self) -> Probes:
        for folder, file in self._folders.items():
            token = secrets.token_hex(16)
            path = os.path.join(folder, f".tdmap-probe-{token[:12]}")
            try:
                with open(path, "x") as probe:
                    probe.write(token)
                    probe.flush()
                    os.fsync(probe.fileno())
                self.questions.append(Probe(path, token, True))
            except OSError:
                self.questions.append(Probe(file, digest(file), False))
        return self

    def __exit__(self, *error: object) -> None:
        for probe in self.questions:
            if probe.answer:
                for path in (probe.path, f"{probe.path}.answer"):
                    with contextlib.suppress(OSError):
                        os.unlink(path)

    def accept(self, answers: Iterable[bool]) -> bool:
        """Whether the other machine has all of these folders."""
        return all(there and self._seen(probe) for probe, there in zip(self.questions, answers))

    def _seen(self, probe: Probe) -> bool:
        if not probe.answer:
            return not self._written
        with contextlib.suppress(OSError), open(f"{probe.path}.answer") as file:
            return file.read() == probe.token[::-1]
        return not self._written


def answer(questions: Iterable[Probe]) -> list[bool]:
    """On the other machine: whether it finds what was put there."""
    return [_finds(probe) for probe in questions]


def _finds(probe: Probe) -> bool:
    try:
        if not probe.answer:
            return digest(probe.path) == probe.token
        with open(probe.path) as file:
            if file.read(64) != probe.token:
                return False
    except OSError:
        return False
    with contextlib.suppress(OSError), open(f"{probe.path}.answer", "x") as file:  # it may be readable only
        file.write(probe.token[::-1])
        file.flush()
        os.fsync(file.fileno())
    return True


def digest(path: str) -> str:
    """Of the size of a file and of both its ends."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        found.update(str(size).encode())
        found.update(file.read(SAMPLE_BYTES))
        file.seek(max(size - SAMPLE_BYTES, 0))
        found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()
