"""The files of an in-place run: which chunks are done, and copies of the rows of unfinished chunks.

    worker                                         the next call, after all processes were killed
    ──────                                         ──────────────────────────────────────────────
    mark := 0                nothing to put back
    copy rows ──► undo file
    mark := chunk + 1        the copy is complete
    run the function                               mark names a chunk that is not done: undo file ──► rows
    done[chunk] := 1         the chunk is done     chunks that are done never run again

Both are mapped files: a store to a mapped file survives the death of its process, at any instruction. Each store is one
aligned integer or byte, so nothing is half-written. Restoring rows twice does no harm, because the copy stays until the
chunk is done.

The first byte of `done` is 1, so that a file of zeros is not taken for a run that has changed nothing.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from tdmap.data.kinds import Data, tensors_of
from tdmap.data.objectlog import OBJECTS
from tdmap.memory.files import mapped_file
from tdmap.memory.hidden import open_file, read, remove_tree
from tdmap.memory.shm import ALIGNMENT, align
from tdmap.plan import ChunkPlan, Ranges, subtract_ranges
from tdmap.run.identity import refuse
from tdmap.runtime.undo import Room, Undo
from tensordict_lite.memmap.disk.files import stat_of


class Ledger:
    """The files of one in-place run.

    Args:
        folder: where they are, or will be.
        data: the dataset.
        plan: how its rows are cut.
        logged: the chunks that are done according to the log of an earlier session. None: there was no such session,
            or the machine went down since, and the ledger may lack chunks.

    Raises:
        ResumeMismatch: the ledger lacks some of these chunks, or is cut or gone.
    """

    def __init__(self, folder: Path, data: Data, plan: ChunkPlan, logged: Ranges | None = None) -> None:
        self.folder = folder
        self.data = data
        self.plan = plan
        self._numbers = itertools.count()
        path, size = folder / "done", 1 + plan.num_chunks
        held = stat_of(path, follow=False)
        if logged is not None and (held is None or held.st_size != size):
            _refuse(path, "is gone" if held is None else f"has {held.st_size:,} bytes instead of {size:,}")
        marks = _kept(path, size)
        self.done = marks[1:]
        if logged is not None and not marks[0]:
            _refuse(path, "was overwritten with zeros")
        if lost := subtract_ranges(logged or [], self.committed()):
            _refuse(path, f"lacks chunks that the log names as done, the first of them chunk {lost[0][0]}")
        marks[0] = 1

    @property
    def lock(self) -> Path:
        """The file on which workers hold a shared lock while they may write rows."""
        return self.folder / "workers.lock"

    def room(self) -> Room:
        """A new undo file, for one worker."""
        path = self.folder / f"undo-{next(self._numbers)}"
        return self._room(path)

    def _room(self, path: Path) -> Room:
        shapes, total = self._layout()
        storage = _kept(path, total)
        buffers = [
            storage[offset : offset + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for offset, dtype, shape in shapes
        ]
        mark, skipped, objects = storage[:8].view(torch.int64), self.folder / "journal", self.folder / OBJECTS
        return Room(buffers, mark, self.done, str(self.lock), str(skipped), str(objects))

    def _layout(self) -> tuple[list[tuple[int, torch.dtype, torch.Size]], int]:
        plan, offset, shapes = self.plan, ALIGNMENT, []
        rows = plan.most_rows
        for leaf in tensors_of(self.data):
            shape = torch.Size((*leaf.shape[: plan.dim], rows, *leaf.shape[plan.dim + 1 :]))
            shapes.append((offset, leaf.dtype, shape))
            offset = align(offset + shape.numel() * leaf.element_size())
        return shapes, offset

    def committed(self) -> Ranges:
        """The chunks that are done, as runs."""
        edges = torch.diff(self.done.to(torch.int8), prepend=torch.zeros(1, dtype=torch.int8))
        starts = (edges == 1).nonzero().flatten().tolist()
        stops = (edges == -1).nonzero().flatten().tolist()
        return list(zip(starts, [*stops, self.plan.num_chunks]))

    def recover(self) -> int:
        """Put back the rows of chunks that were running when all processes died. Returns the number of such chunks."""
        count = 0
        for path in sorted(self.folder.glob("undo-*")):
            if path.lstat().st_size == self._layout()[1]:
                room = self._room(path)
                assert room.mark is not None
                chunk = int(room.mark[0]) - 1
                if 0 <= chunk < self.plan.num_chunks and not self.done[chunk]:
                    with torch.no_grad():
                        Undo(self.data, self.plan, room).restore(chunk)
                    count += 1
        self._forget_undo()
        return count

    def _forget_undo(self) -> None:
        for path in self.folder.glob("undo-*"):
            remove_tree(path)

    def restart(self, done: Ranges) -> None:
        """Count only these chunks as done, and leave all rows as they are."""
        self._forget_undo()
        self.done.zero_()
        for start, stop in done:
            self.done[start:stop] = 1


def has_changes(folder: Path) -> bool:
    """Whether the ledger in a folder says of any chunk that it is done, or that its rows are being changed."""
    return any(map(any, (_begin_of(path) for path in folder.glob("undo-*")))) or any((read(folder / "done") or b"")[1:])


def _refuse(path: Path, found: str) -> NoReturn:
    refuse(
        path.parent,
        [f"the file {path.name}, which says which rows are changed, {found}"],
        "holds an unfinished in-place run that cannot be resumed",
        "Rows would be changed twice: put the file back, or restore the dataset from a copy and remove its .tdmap "
        "folder.",
    )


def _begin_of(path: Path) -> bytes:
    with open(open_file(path), "rb") as file:
        return file.read(8)


def forget(folder: Path) -> None:
    """The run is over: remove its files."""
    for path in [*folder.glob("undo-*"), folder / "done"]:
        remove_tree(path)


def _kept(path: Path, nbytes: int) -> Tensor:
    return mapped_file(path, nbytes, keep=True, mode=0o666)
