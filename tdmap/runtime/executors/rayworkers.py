"""Actors on a Ray cluster.

Actors on this machine are workers of the process pool in all but name: they open the same memory, run the same loop and
leave the same notes behind when they die. So these are `ProcessWorkers` over another pool. What is added is workers
on other machines, whose rows travel (see `windows`): what they send is brought to its place here, before the driver
hears of it.
"""

from __future__ import annotations

import copy
import functools
import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from tdmap.data.failures import note_skipped
from tdmap.data.kinds import Data, device_of, tensors_of
from tdmap.data.objectlog import append
from tdmap.data.reader import narrow, rows_of
from tdmap.data.sizes import row_bytes_of
from tdmap.data.writer import RowWriter
from tdmap.errors import SerializationError, WorkerStartError
from tdmap.job import Job
from tdmap.plan import ChunkPlan
from tdmap.runtime.executors.base import Seat
from tdmap.runtime.executors.processes import JobWorker, ProcessWorkers
from tdmap.runtime.executors.raypool import RayMember, RayPool
from tdmap.runtime.executors.windows import (
    Answer,
    FarOutput,
    Task,
    TravelPacker,
    Window,
    files_of,
    ship,
    unship,
    writable_files_of,
)
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.undo import Undo
from tdmap.runtime.wire.messages import Done, Grant, Lost, Refused, Segment, Skipped
from tdmap.runtime.wire.packing import is_of_pickling, unpack
from tdmap.runtime.wire.pickle_errors import explain_unpicklable
from tdmap.runtime.wire.remote import PackedError, unpack_error
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers.pool import PoolMember
from tdmap.runtime.workers.surroundings import Surroundings
from tdmap.sink import Kind, Sink
from tdmap.tuning import DEFAULT, Tuning

CANNOT_START = ("RuntimeEnvSetupError", "ActorUnschedulableError", "ActorPlacementGroupRemoved")
"""What Ray says where no second try would help."""

WINDOW_BYTES = 32 << 20
"""Rows of a lease that travel, of the source and of the output: a worker has two leases."""


class RayWorkers(ProcessWorkers):
    """The actors of a pool, for one job.

    Args:
        job: the job.
        borrowed: a reserved pool, and what gives it back.
        wanted: how many of its actors.
        tuning: of the call.
    """

    kind = "ray"
    pool: RayPool

    def __init__(
        self, job: Job, borrowed: tuple[RayPool, Callable[[], None]], wanted: int, tuning: Tuning = DEFAULT
    ) -> None:
        super().__init__(job, borrowed, wanted, tuning)
        self._shares_memory = borrowed[0].cluster.transport in ("auto", "memory")
        self._travel: _Travel | None = None

    def open(self, sink: Sink[Any]) -> None:
        job = self._job
        if self._shares_memory:
            super().open(sink)
        else:  # no worker opens copies of our memory, so none are made
            self._in_place = sink.demands(job.plan).in_place
            self.pool.refresh(self.size)
        self._sink = sink

    def output(self, writer: RowWriter) -> None:
        if self._shares_memory:
            super().output(writer)
        if self._travel is not None:
            self._travel.set_writer(self._seen(writer))
        for worker in self._far():
            worker.send_target()

    def replan(self, plan: ChunkPlan) -> None:
        super().replan(plan)
        if self._travel is not None:
            self._travel.replan(plan)
        for worker in self._far():
            worker.member.call("replan", self._job.number, plan)

    def _far(self) -> list[_FarWorker]:
        return [worker for worker in self._joined.values() if isinstance(worker, _FarWorker)]

    def _seen(self, writer: RowWriter) -> RowWriter:
        """A writer into the memory that other workers see."""
        if self._shares_memory and device_of(writer.out) is None:
            seen: RowWriter = unpack(self._packing.packer.dumps(writer))
            return seen
        return writer

    # -- workers ---------------------------------------------------------------------------------------

    def _join(self, member: PoolMember) -> None:
        assert isinstance(member, RayMember)
        if not member.is_far:
            super()._join(member)
            return
        if self._travel is None:
            data = self._packing.shared_source() if self._shares_memory else self._job.source.data
            self._travel = _Travel(self._job, data)
            if self._sink.writer is not None:
                self._travel.set_writer(self._seen(self._sink.writer))
        member.new_job()
        worker = self._joined[member.number] = _FarWorker(member, self._travel)
        worker.begin()

    def limit(self, worker: int) -> int | None:
        far = self._joined[worker]
        if not isinstance(far, _FarWorker):
            return super().limit(worker)
        if far.travel.careful or self._job.policy.timeout is not None:
            return 0 if far.member.leases else 1
        return far.travel.chunks_at_once()

    def grant(self, worker: int, lease: Lease) -> None:
        super().grant(worker, lease)  # which notes it, and sends it to those that have a socket
        far = self._joined[worker]
        if isinstance(far, _FarWorker):
            far.run(far.member.leases[lease.id])

    def running(self) -> dict[int, tuple[int, float]]:
        found = super().running()
        for worker in self._far():
            if worker.has_begun and worker.member.number in found:
                found[worker.member.number] = worker.first_lease.start, worker.member.heard
        return found

    def _seat_of(self, member: PoolMember) -> Seat:
        assert isinstance(member, RayMember)
        here, node = super()._seat_of(member), member.node
        return Seat(here.pid, f"{here.text} on {node or 'a machine that is not known'}", node)

    def _lose(self, member: PoolMember) -> Lost:
        failure = member.failure if isinstance(member, RayMember) else None
        if type(failure).__name__ in CANNOT_START:
            raise WorkerStartError(f"Ray cannot start a worker: {failure}") from failure
        worker = self._joined.get(member.number)
        if not isinstance(worker, _FarWorker):
            return super()._lose(member)
        worker.note_end(self.pool.has_lost_node(worker.member))
        # What it had was a copy: there is nothing to put back.
        return super()._lose(member)._replace(unprotected=False)

    def close(self, ok: bool, changed: bool) -> None:
        super().close(ok, changed)
        for worker in self._far():
            worker.member.leases.clear()
            worker.member.call("drop")


class _Travel:
    """The rows of one job that travel.

    Args:
        job: the job.
        data: its dataset, in the memory that other workers see.
    """

    def __init__(self, job: Job, data: Data) -> None:
        self.job = job
        self.plan = job.plan
        self.data = data
        self.order = job.source.order
        packer = TravelPacker()
        try:
            self.fn = packer.dumps(job.fn)
        except Exception as error:
            if not is_of_pickling(error):
                raise
            raise SerializationError(explain_unpicklable(job.fn, error)) from error
        self.fn_files = packer.files
        self.source_files = files_of(data) if self.order is None else None
        self.writer: RowWriter | None = None
        self.out_files: set[str] | None = None
        self.undo: Undo | None = None
        if job.ledger is not None:
            self.undo = Undo(data, job.plan, job.ledger.room())
        self.surroundings = Surroundings.here()
        self.careful = 0
        """So many chunks more are run alone: one of them has ended a worker."""

    def replan(self, plan: ChunkPlan) -> None:
        """The size of the later chunks is settled."""
        self.plan = plan
        self.job = replace(self.job, plan=plan)
        if self.writer is not None:
            self.writer.plan = plan
        if self.undo is not None:
            self.undo.plan = plan

    def set_writer(self, writer: RowWriter) -> None:
        """Results have a place from now on."""
        self.writer = writer
        self.out_files = None if writer.aliased else writable_files_of(writer.out, self.plan)

    def chunks_at_once(self) -> int:
        """Most chunks of a lease."""
        row = row_bytes_of(self.data, self.plan.length)
        if self.writer is not None:
            row += row_bytes_of(self.writer.out, self.plan.length)
        return max(WINDOW_BYTES // max(row * self.plan.size, 1), 1)

    def settle(self, grant: Grant, answer: Answer) -> list[Any]:
        """Bring the rows of an answer to their place; the messages that are left to be told."""
        changed = None if answer.changed is None else unship(answer.changed)
        written = None if answer.written is None else unship(answer.written)
        done = answer.messages[-1]
        segments = [one for one in answer.messages if isinstance(one, Segment)]
        if isinstance(done, Done) and done.segment is not None:
            segments.append(done.segment)
        objects = {
            chunk: value
            for one in segments
            if one.kind is Kind.OBJECTS
            for chunk, value in zip(range(one.start, one.stop), one.values)
        }
        base = self.plan.span(grant.start, grant.stop)[0]
        with torch.no_grad():
            if self.undo is None:
                if grant.start < answer.upto:
                    self._put(grant.start, answer.upto, base, changed, written)
                return list(answer.messages)
            for message in answer.messages:
                if isinstance(message, Skipped) and self.undo.room.skipped is not None:
                    _note_skipped(self.undo.room.skipped, self.plan, message)
            for chunk in range(grant.start, answer.upto):
                self._put_noted(self.undo, chunk, base, changed, written, objects)
        return list(answer.messages)

    def _put(self, start: int, stop: int, base: int, changed: Data, written: Data) -> None:
        first, last = self.plan.span(start, stop)
        dim, count = self.plan.dim, last - first
        pairs = [(self.data, changed)]
        if self.writer is not None:
            pairs.append((self.writer.out, written))
        for place, rows in pairs:
            if rows is not None:
                for column, new in zip(tensors_of(place), tensors_of(rows)):
                    column.narrow(dim, first, count).copy_(new.narrow(dim, first - base, count))

    def _put_noted(
        self, undo: Undo, chunk: int, base: int, changed: Data, written: Data, objects: dict[int, Any]
    ) -> None:
        """One chunk of a run in place that may have to be resumed: done, or not begun, at any instant."""
        undo.save(chunk)
        self._put(chunk, chunk + 1, base, changed, written)
        if chunk in objects and undo.room.objects is not None:
            pieces: Any = unship(objects[chunk])
            append(undo.room.objects, chunk, pieces)
        assert undo.done is not None
        undo.done[chunk] = 1
        undo.release()


class _FarWorker(JobWorker):
    """A worker on another machine.

    Args:
        member: the member of the pool that it is.
        travel: the rows of the job.
    """

    member: RayMember

    def __init__(self, member: RayMember, travel: _Travel) -> None:
        super().__init__(member)
        self.travel = travel
        self.has_begun = False
        """It has read the function."""
        self.reads = self.writes = False
        """It has the files of the rows, and those of the output."""

    # -- on the way there --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Give the job to it, once it is known which files it has.

        Raises:
            WorkerStartError: the function needs files that it does not have.
        """
        member, travel, job = self.member, self.travel, self.travel.job
        if travel.fn_files and not member.reaches(travel.fn_files, written=True):
            raise WorkerStartError(
                f"{job.name} works with files that a worker on {member.node} cannot open, "
                f"{min(travel.fn_files)} for one: put them (out=, spill_dir=) into a folder that all machines share, "
                'under the same name, or use this machine alone: executor=tdmap.RayCluster(transport="memory").'
            )
        files = travel.source_files
        if files:
            self.reads = member.reaches(files, written=False)
        else:  # rows in a store, which each machine opens by its URL
            self.reads = files is not None and bool(rows_of(travel.data).folders)
        source = TravelPacker().dumps(travel.data) if self.reads else None
        task = Task(
            job.number, travel.surroundings, travel.plan, job.policy, travel.fn, source, travel.order is not None
        )
        member.call("begin", pickle.dumps(task, pickle.HIGHEST_PROTOCOL), then=self._has_read)
        if travel.writer is not None:
            self.send_target()

    def send_target(self) -> None:
        """Tell it where results go."""
        writer, dim, files = self.travel.writer, self.travel.plan.dim, self.travel.out_files
        assert writer is not None
        self.writes = bool(files) and self.member.reaches(files or (), written=True)
        none = narrow(writer.out, dim, 0, 0)
        empty = writer.over(none if device_of(none) is None else none.cpu(), 0)
        packed = TravelPacker()
        target = FarOutput(
            self.travel.job.number,
            packed.dumps(_without_memory(empty)),
            TravelPacker().dumps(writer.out) if self.writes else None,
        )
        self.member.call("output", pickle.dumps(target, pickle.HIGHEST_PROTOCOL), then=self._refuses)

    def run(self, grant: Grant) -> None:
        """Have it run a lease."""
        then = functools.partial(self._has_run, grant)
        self.member.call("run", grant, self._window(grant.start, grant.stop), then=then)

    def _window(self, start: int, stop: int) -> Window:
        """The rows of a lease."""
        travel, plan, writer = self.travel, self.travel.plan, self.travel.writer
        first, last = plan.span(start, stop)
        rows = out = None
        if not self.reads:
            if travel.order is None:
                rows = ship(narrow(travel.data, plan.dim, first, last))
            else:
                rows = ship(rows_of(travel.data, plan.dim).take(travel.order[first:last]))
        if writer is not None and not writer.exact and not writer.aliased and not self.writes:
            there = narrow(writer.out, plan.dim, first, last)
            out = ship(there if device_of(there) is None else there.cpu())
        return Window(first, last - first, rows, out)

    # -- on the way back ---------------------------------------------------------------------------------

    def _refuses(self, error: PackedError | None) -> Iterable[Any]:
        return () if error is None else (Refused(self.travel.job.number, error),)

    def _has_read(self, error: PackedError | None) -> Iterable[Any]:
        if error is None:
            self.has_begun, self.member.heard = True, time.monotonic()
        return self._refuses(error)

    def _has_run(self, grant: Grant, answer: Answer | None) -> Iterable[Any]:
        """The messages of an answer, once its rows are in their place."""
        if self.member.leases.get(grant.lease) is not grant:  # of a job that is over
            return ()
        if answer is None:  # the job could not be begun there, which it has said
            return (Done(grant.job, grant.lease, grant.start, 0.0, False, None, 0),)
        messages = self.travel.settle(grant, answer)
        self.travel.careful = max(self.travel.careful - (answer.upto - grant.start), 0)
        return messages

    def note_end(self, with_node: bool) -> None:
        """It has ended, perhaps with its machine: note what it ran, as a worker of this machine does itself."""
        control, leases = self.member.control, list(self.member.leases.values())
        control[at.RUNNING], control[at.KIND] = -1, int(Kind.PARCEL)
        if not leases:
            return
        first = leases[0]
        control[at.LEASE], control[at.COMMITTED] = first.lease, first.start
        if with_node:
            return
        if first.stop - first.start == 1:
            control[at.RUNNING] = first.start
        else:  # one of these chunks has ended it: from now on each is run alone, until all have been
            self.travel.careful = max(self.travel.careful, sum(lease.stop - lease.start for lease in leases))


def _without_memory(writer: RowWriter) -> RowWriter:
    """A copy of the writer over empty tensors, so that the other machine opens no file."""
    new = copy.copy(writer)
    new.out = writer.out.clone()
    return new


def _note_skipped(path: str, plan: ChunkPlan, message: Skipped) -> None:
    start = plan.rows(message.chunk)[0]
    failures = [(start + offset, unpack_error(packed), packed.text) for offset, packed in message.errors]
    note_skipped(path, message.chunk, failures)
