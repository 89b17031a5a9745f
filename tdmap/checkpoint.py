"""Reductions that can be gone on with: the states that wait in the merge tree, in one small file.

The tree holds a handful of merged states at any time, and they say which chunks they stand for. So the file that
holds them is the whole memory of a reduction: it is replaced, whole, every now and then, and a run goes on from it
with the same tree, and the same bits. A second file is written less often and waits for the disk, for when the
machine itself goes down.

States are pickles, because a reducer may keep what it likes. A file of somebody else is therefore not opened.
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from pathlib import Path
from typing import Any

from tdmap import journal
from tdmap.reducers.base import Node
from tdmap.resume import Run
from tdmap.runtime.owner import Owner
from tdmap.runtime.skipfile import SkipFile
from tdmap.sinks import Fold

SECONDS = 0.25
"""States are saved so often, or less often where that takes long."""

DISK_SECONDS = 5.0
"""And brought to the disk so often."""

SHARE = 0.02
"""Share of the time that saving may take."""

NEWEST, ON_DISK = "states", "states.disk"

_MAGIC = b"TDMAPS01"


def save(path: Path, nodes: list[Node], durable: bool = True) -> None:
    """Replace the file by one that holds these nodes."""
    data = pickle.dumps(nodes, pickle.HIGHEST_PROTOCOL)
    journal.replace_file(path, _MAGIC + zlib.crc32(data).to_bytes(4, "little") + data, durable)


def load(path: Path) -> list[Node]:
    """The nodes in the file; none when there is no file, or not a whole one.

    Raises:
        PermissionError: the file belongs to another user.
    """
    data = read_own(path)
    body = data[len(_MAGIC) + 4 :]
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(4, "little") != data[len(_MAGIC) :][:4]:
        return []
    nodes: list[Node] = pickle.loads(body)
    return nodes


def read_own(path: Path) -> bytes:
    """The content of a file that holds pickles; nothing when there is no file.

    Raises:
        PermissionError: the file belongs to another user.
    """
    try:
        owner = path.stat().st_uid
    except FileNotFoundError:
        return b""
    if owner != os.geteuid():
        raise PermissionError(
            f"{path} belongs to user {owner}: it holds pickles, which can run code when they are read. "
            "Copy the folder if you trust its owner, or use another one."
        )
    return path.read_bytes()


class FoldLog:
    """The commit log of a reduction.

    Args:
        run: the run.
        sink: the sink whose states are saved.
    """

    def __init__(self, run: Run, sink: Fold) -> None:
        self.run = run
        self.sink = sink
        self._next = time.monotonic() + SECONDS
        self._next_disk = time.monotonic() + DISK_SECONDS
        self._new = False
        self._owner = Owner()
        run.skips.load(self.committed)

    @property
    def skips(self) -> SkipFile:
        return self.run.skips

    @property
    def committed(self) -> list[tuple[int, int]]:
        return journal.merge_ranges((start, stop) for start, stop, _ in self.sink.restored)

    def add(self, start: int, stop: int) -> None:
        self._new = True
        self.run.add(start, stop)

    def tick(self, now: float) -> None:
        if self._new and now >= self._next:
            self.save()
            after = time.monotonic()
            self._next = after + max(SECONDS, (after - now) / SHARE)
            self.run.tick(after)
            if after >= self._next_disk:
                save(self.run.folder / ON_DISK, self.sink.nodes())
                end = time.monotonic()
                self._next_disk = end + max(DISK_SECONDS, (end - after) / SHARE)

    def save(self) -> None:
        """Save the states now; a fork has nothing to save."""
        if not self._owner.is_here:
            return
        save(self.run.folder / NEWEST, self.sink.nodes(), durable=False)
        self._new = False


def restore(run: Run) -> list[Node]:
    """The states that an earlier session has saved."""
    return load(run.folder / NEWEST) or load(run.folder / ON_DISK)


def answer(run: Run) -> Any:
    """The merged state of a reduction that is over."""
    (node,) = restore(run)
    return node[2]
