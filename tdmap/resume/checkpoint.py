"""Reductions that can be resumed: the states that wait in the merge tree, in one small file.

The tree holds a handful of merged states at any time, and they say which chunks they stand for. So the file that
holds them is the whole memory of a reduction: it is replaced, whole, every now and then, and a run goes on from it
with the same tree, and the same bits. A second file is written less often and waits for the disk, for when the
machine itself goes down.

States are written as data (see `plaindata`), so a file of somebody else's runs nothing.
"""

from __future__ import annotations

import errno
import time
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tdmap.errors import UntrustedFile
from tdmap.memory import hidden
from tdmap.memory.resources import available_memory
from tdmap.plaindata import dump, load, modules_of
from tdmap.plan import merge_ranges
from tdmap.reducers.base import Node, Reducer
from tdmap.resume.run import Run, RunLog
from tdmap.sinks import Fold

SECONDS = 0.25
"""States are saved so often, or less often where that takes long."""

DISK_SECONDS = 5.0
"""And brought to the disk so often."""

SHARE = 0.02
"""Share of the time that saving may take."""

NEWEST, ON_DISK = "states", "states.disk"

_MAGIC = b"TDMAPS02"


def save(path: Path, nodes: list[Node], modules: Collection[str], durable: bool = True) -> None:
    """Replace the file by one that holds these nodes.

    Raises:
        SerializationError: a state holds something that is no data.
    """
    data = dump(nodes, modules)
    hidden.replace_file(path, _MAGIC + zlib.crc32(data).to_bytes(4, "little") + data, durable)


def read_nodes(path: Path, modules: Collection[str]) -> list[Node]:
    """The nodes in the file; none when there is no file, or not a whole one.

    Args:
        path: the file.
        modules: names of the modules whose own classes states may be of.

    Raises:
        UntrustedFile: it is not this library's, or not the caller's.
    """
    data = memoryview(hidden.read(path, available_memory() // 2) or b"")
    body = data[len(_MAGIC) + 4 :]
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body) != int.from_bytes(data[len(_MAGIC) :][:4], "little"):
        return []
    try:
        nodes: list[Node] = load(body, modules)
        if type(nodes) is not list or not all(_is_node(node) for node in nodes):
            raise ValueError("it holds no states")
        return nodes
    except ValueError as error:
        raise UntrustedFile(path, f"cannot be resumed ({error})") from None


def _is_node(node: Any) -> bool:
    return type(node) is tuple and len(node) == 3 and type(node[0]) is int and type(node[1]) is int


class FoldLog(RunLog):
    """The commit log of a reduction.

    Args:
        run: the run.
        sink: the sink whose states are saved.
    """

    def __init__(self, run: Run, sink: Fold) -> None:
        super().__init__(run)
        self.sink = sink
        self._modules = modules_of(sink.reducer)
        self._next = time.monotonic() + SECONDS
        self._next_disk = time.monotonic() + DISK_SECONDS
        self._new = False
        run.skips.load(self.committed)

    @property
    def committed(self) -> list[tuple[int, int]]:
        return merge_ranges((start, stop) for start, stop, _ in self.sink.restored)

    def add(self, start: int, stop: int) -> None:
        self._new = True
        super().add(start, stop)

    def tick(self, now: float) -> None:
        if self._new and now >= self._next:
            self.save()
            after = time.monotonic()
            self._next = after + max(SECONDS, (after - now) / SHARE)
            self.run.tick(after)
            if after >= self._next_disk:
                save(self.run.folder / ON_DISK, self.sink.nodes(), self._modules)
                end = time.monotonic()
                self._next_disk = end + max(DISK_SECONDS, (end - after) / SHARE)

    def save(self) -> None:
        """Save the states now."""
        assert self.run.journal is not None
        if not self.run.journal.is_mine:
            return  # a fork of the driver, which knows less by now
        save(self.run.folder / NEWEST, self.sink.nodes(), self._modules, durable=False)
        self._new = False


def restore(run: Run, reducer: Reducer[Any]) -> list[Node]:
    """The states that an earlier session has saved."""
    modules = modules_of(reducer)
    return read_nodes(run.folder / NEWEST, modules) or read_nodes(run.folder / ON_DISK, modules)


def answer(run: Run, reducer: Reducer[Any]) -> Any:
    """The merged state of a reduction that is over.

    Raises:
        FileNotFoundError: its file has been removed.
    """
    nodes = restore(run, reducer)
    if len(nodes) != 1:
        path = run.folder / NEWEST
        raise FileNotFoundError(
            errno.ENOENT, "the answer of this reduction was here, and is gone; remove the folder to run anew", str(path)
        )
    return nodes[0][2]
