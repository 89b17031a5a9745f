"""Leases whose rows travel: a worker that cannot open the driver's memory works on a window of the dataset.

    driver                                       worker on another machine
    ──────                                       ─────────────────────────
    rows of the lease ──► Window ──────────────► a copy of its own, with a row number at its head
    (and those of out)                           the very loop of any other worker runs on it
    changed rows, results  ◄───────── Answer ◄── what has changed of it, and what was written

Rows are read and written here, by the driver, unless they lie in files that the worker has as well (a shared folder):
then the window is read from there, and results are written there and are on the disk before the lease is over.
"""

from __future__ import annotations

import os
import pickle
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdmap.data.join import allocate_like
from tdmap.data.kinds import Data, tensors_of, with_tensors
from tdmap.data.reader import Reader, narrow, rows_of
from tdmap.data.writer import RowWriter
from tdmap.job import Policy
from tdmap.memory.spill import Spill
from tdmap.plan import ChunkPlan
from tdmap.runtime.chunkloop import ChunkLoop
from tdmap.runtime.executors.base import run_lease
from tdmap.runtime.undo import MAX_BYTES, Undo, allocate_room
from tdmap.runtime.wire.messages import Done, Grant, Message
from tdmap.runtime.wire.packing import Packer, rebuild_bytes, unpack
from tdmap.runtime.wire.parcels import IN_LINE, Parcel, ParcelReader, ParcelWriter
from tdmap.runtime.wire.remote import pack_error
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers.surroundings import Surroundings
from tensordict_lite.gathering import bytes_of
from tensordict_lite.memmap.disk.files import write_all
from tensordict_lite.memmap.disk.mapping import region_of


class Window(NamedTuple):
    """The rows of a lease."""

    first: int
    """The row of the plan that is the first."""
    length: int
    """How many there are."""
    rows: Parcel | None
    """Theirs, shipped; None: they are read from files that every machine has."""
    out: Parcel | None
    """Those of the output, shipped; None: they are not wanted."""


class Answer(NamedTuple):
    """What came of a lease."""

    messages: tuple[Message, ...]
    """As any worker sends them."""
    changed: Parcel | None
    """Rows of the source below `upto`, shipped; None when they are as they were."""
    written: Parcel | None
    """Those of the output, shipped; None when nothing was written, or they are in files that every machine has."""
    upto: int
    """One past the last chunk that was done."""


class Task(NamedTuple):
    """A job, for workers of other machines."""

    job: int
    surroundings: Surroundings
    plan: ChunkPlan
    policy: Policy
    fn: bytes
    source: bytes | None
    """The dataset, as files that every machine has; None: rows are sent."""
    ordered: bool
    """Rows are in an order of their own: changes to them are of no use."""


class FarOutput(NamedTuple):
    """The output of a job, for workers of other machines."""

    job: int
    writer: bytes
    """A RowWriter over no rows."""
    files: bytes | None
    """The output itself, as files that every machine has; None: rows are sent back."""


def ship(data: Data) -> Parcel:
    """Rows as bytes, which Ray's object store takes as they are."""
    parcel = ParcelWriter(IN_LINE).pack(data)
    return parcel._replace(data=np.frombuffer(parcel.data, np.uint8))  # type: ignore[arg-type]


def unship(parcel: Parcel) -> Data:
    """The rows, in memory of their own."""
    return ParcelReader().unpack(parcel)


class TravelPacker(Packer):
    """Packs for other machines: tensors as their bytes, or as the path of their file.

    Attributes:
        files: files that what was packed refers to, by path.
    """

    def __init__(self) -> None:
        super().__init__(private=True)
        self.files: set[str] = set()

    def reduce(self, value: Any) -> Any:
        if isinstance(value, Spill):
            self.files.add(os.path.join(value.folder, "spill"))
        return super().reduce(value)

    def _stays(self, buffer: pickle.PickleBuffer, apart: object) -> bool:
        return True

    def _reduce_here(self, tensor: Tensor, private: bool) -> Any:
        region = region_of(tensor)
        if region is not None and not region.handle.anonymous:
            self.files.add(region.handle.path)
            return super()._reduce_here(tensor, private)
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        data = bytes_of(plain).tobytes() if plain.numel() else b""
        return rebuild_bytes, (tensor.dtype, tuple(tensor.shape), data)


def files_of(data: Data) -> set[str] | None:
    """The files in which all tensors of `data` lie; None where one lies elsewhere."""
    rows = rows_of(data)
    found = set(rows.files)
    for leaf in (leaf for part in rows.in_memory for leaf in tensors_of(part)):
        region = region_of(leaf)
        if region is None or region.handle.anonymous:
            return None
        found.add(region.handle.path)
    return found


def writable_files_of(out: Data, plan: ChunkPlan) -> set[str] | None:
    """The files of an output whose rows are runs of bytes in them; None where there are not."""
    files = files_of(out)
    if files is None or plan.dim != 0 or any(not leaf.is_contiguous() for leaf in tensors_of(out)):
        return None
    return files


class WindowLoop:
    """Runs leases of one job on another machine.

    Args:
        task: the job.
    """

    def __init__(self, task: Task) -> None:
        task.surroundings.enter(own_process=False)
        task.surroundings.settings.enter()
        task.surroundings.thread.enter()
        self.task = task
        self.plan = task.plan
        self.control = at.local_control()
        self._fn = unpack(task.fn)
        self._source = None if task.source is None else unpack(task.source)
        self._loop: ChunkLoop | None = None
        self._writer: RowWriter | None = None
        self._files: Data = None
        self._messages: list[Message] = []

    def output(self, target: FarOutput) -> None:
        """Results have a place from now on."""
        self._writer = unpack(target.writer)
        self._files = None if target.files is None else unpack(target.files)

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan
        if self._loop is not None:
            self._loop.replan(plan)

    def run(self, grant: Grant, window: Window) -> Answer:
        """Run a lease."""
        task, plan = self.task, self.plan
        if window.rows is None:
            rows = rows_of(self._source, plan.dim)
            before = data = rows.window(window.first, window.first + window.length)
            if rows.is_view:
                data = with_tensors(before, [leaf.clone() for leaf in tensors_of(before)])
        else:
            before, data = unship(window.rows), unship(window.rows)
        writer = self._place(window, data)
        reader = Reader(data, plan, None, window.first)
        if not task.policy.may_write:
            reader.exposed = []  # the rows are copies
        loop = self._loop_over(reader)
        loop.writer = writer
        self._messages.clear()
        done: Any = run_lease(loop, grant.lease, grant.start, grant.stop, pack_error)
        upto = done.upto if isinstance(done, Done) else done.chunk
        if not task.policy.may_write or task.ordered or upto == grant.start or same(before, data):
            changed = None
        else:
            changed = ship(narrow(data, plan.dim, 0, plan.rows(upto - 1)[1] - window.first))
            done = done._replace(mutated=True)
        written = None if writer is None or writer.aliased else self._keep(writer, window, upto)
        return Answer((*self._messages, done), changed, written, upto)

    def _loop_over(self, reader: Reader) -> ChunkLoop:
        task, data = self.task, reader.data
        if self._loop is None:
            pack = ParcelWriter(IN_LINE).pack
            emit = self._messages.append
            self._loop = ChunkLoop(task.job, reader, self._fn, task.policy, self.control, pack, emit, own_fn=True)
        else:
            self._loop.look_at(reader)
        self._loop.undo = None
        if task.policy.skip and task.policy.undo and not task.ordered:
            nbytes = sum(leaf.nbytes for leaf in tensors_of(data))
            if nbytes <= MAX_BYTES:
                room = allocate_room(data, self.plan, lambda dtype, shape: torch.empty(shape, dtype=dtype))
                self._loop.undo = Undo(data, self.plan, room, reader.base)
        return self._loop

    def _place(self, window: Window, data: Data) -> RowWriter | None:
        if self._writer is None:
            return None
        if self._writer.aliased:
            out = data
        elif window.out is not None:
            out = unship(window.out)
        elif self._files is not None and not self._writer.exact:
            kept = narrow(self._files, self.plan.dim, window.first, window.first + window.length)
            out = with_tensors(kept, [leaf.clone() for leaf in tensors_of(kept)])
        else:
            rows = ChunkPlan(window.length, max(window.length, 1), self.plan.dim)
            out = allocate_like(self._writer.out, rows, lambda dtype, shape: torch.zeros(shape, dtype=dtype))
        writer = self._writer.over(out, window.first)
        writer.plan = self.plan
        writer.prepare()
        return writer

    def _keep(self, writer: RowWriter, window: Window, upto: int) -> Parcel | None:
        if upto <= 0:
            return None
        count = self.plan.rows(upto - 1)[1] - window.first
        if count <= 0:
            return None
        rows = narrow(writer.out, self.plan.dim, 0, count)
        if self._files is None:
            return ship(rows)
        for column, new in zip(tensors_of(self._files), tensors_of(rows)):
            write_rows(column, window.first, new)
        return None


def same(before: Data, after: Data) -> bool:
    """Whether the bytes of two trees of the same shape are the same."""
    return all(
        bytes_of(old.contiguous()) == bytes_of(new.contiguous())
        for old, new in zip(tensors_of(before), tensors_of(after))
        if old.numel()
    )


def write_rows(column: Tensor, first: int, rows: Tensor) -> None:
    """Write rows of a contiguous tensor through its file, and wait until they are on the disk.

    Not through a mapping: on a file system of the network that would write whole pages, with rows of others in them.
    """
    region = region_of(column)
    assert region is not None
    if not rows.numel():
        return
    row_bytes = column[0].numel() * column.element_size()
    place = region.offset * column.element_size() + first * row_bytes
    path = region.handle.path
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(fd, bytes_of(rows.contiguous()), place, path)
        os.fdatasync(fd)
    finally:
        os.close(fd)
