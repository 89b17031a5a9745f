"""Actors on a Ray cluster.

Actors on this machine are workers of the process pool in all but name: they open the same memory, run the same loop and
leave the same notes behind when they die. So these are `ProcessWorkers` over another pool. What is added is workers
on other machines, whose rows travel (see `windows`): what they send is brought to its place here, before the driver
hears of it.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Iterator
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
from tdmap.runtime.executors.processes import ProcessWorkers
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
from tdmap.runtime.wire.messages import Done, Grant, Joined, Lost, Segment, Skipped
from tdmap.runtime.wire.packing import UNPICKLABLE, unpack
from tdmap.runtime.wire.pickle_errors import explain_unpicklable
from tdmap.runtime.wire.remote import unpack_error
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
        pool = borrowed[0]
        self._nodes: dict[int, str] = {}
        self._shares_memory = pool.cluster.transport in ("auto", "memory")
        self._travel: _Travel | None = None
        self._careful = 0

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
            for member in self._far():
                self._travel.send_target(member)

    def replan(self, plan: ChunkPlan) -> None:
        super().replan(plan)
        if self._travel is not None:
            self._travel.replan(plan)
        for member in self._far():
            member.call("replan", self._job.number, plan)

    def _far(self) -> Iterator[RayMember]:
        for number in self._begun:
            member = self.pool.members.get(number)
            if isinstance(member, RayMember) and member.is_far:
                yield member

    def _seen(self, writer: RowWriter) -> RowWriter:
        """A writer into the memory that other workers see."""
        if self._shares_memory and device_of(writer.out) is None:
            seen: RowWriter = unpack(self._packing.packer.dumps(writer))
            return seen
        return writer

    # -- workers ---------------------------------------------------------------------------------------

    def _join(self, member: PoolMember) -> Joined:
        assert isinstance(member, RayMember)
        self._nodes[member.number] = member.node
        if not member.is_far:
            return super()._join(member)
        if self._travel is None:
            data = self._packing.shared_source() if self._shares_memory else self._job.source.data
            self._travel = _Travel(self._job, data)
            if self._sink.writer is not None:
                self._travel.set_writer(self._seen(self._sink.writer))
        member.new_job()
        member.on_answer = self._arrived
        self._travel.begin(member)
        self._begun.add(member.number)
        self._pids[member.number] = member.process.pid
        return Joined()

    def limit(self, worker: int) -> int | None:
        member = self.pool.members.get(worker)
        if isinstance(member, RayMember) and member.is_far and self._travel is not None:
            if self._careful or self._job.policy.timeout is not None:
                return 0 if member.leases else 1
            return self._travel.chunks_at_once()
        return super().limit(worker)

    def grant(self, worker: int, lease: Lease) -> None:
        member = self.pool.members[worker]
        if not (isinstance(member, RayMember) and member.is_far and self._travel is not None):
            super().grant(worker, lease)
            return
        if not member.leases:
            member.heard = time.monotonic()
        grant = Grant(self._job.number, lease.id, lease.start, lease.stop, ())
        member.leases[lease.id] = grant
        member.granted += lease.stop - lease.start
        member.call("run", grant, self._travel.window(member, lease.start, lease.stop))

    def revoke(self, worker: int) -> None:
        member = self.pool.members.get(worker)
        if member is not None and not (isinstance(member, RayMember) and member.is_far):
            super().revoke(worker)

    def running(self) -> dict[int, tuple[int, float]]:
        found = super().running()
        for member in self._far():
            found.pop(member.number, None)
            if member.leases:
                since = member.heard if member.has_begun else member.heard + self.tuning.start_seconds
                found[member.number] = next(iter(member.leases.values())).start, since
        return found

    def seat(self, worker: int) -> Seat:
        here, node = super().seat(worker), self._nodes.get(worker, "")
        return Seat(here.pid, f"{here.text} on {node or 'a machine that is not known'}", node)

    # -- what comes back from other machines -------------------------------------------------------------

    def _arrived(self, grant: Grant, answer: Answer | None) -> Iterator[Any]:
        """The messages of an answer, once its rows are in their place."""
        if answer is None:  # the job could not be begun there, which it has said
            yield Done(self._job.number, grant.lease, grant.start, 0.0, False, None, 0)
            return
        assert self._travel is not None
        messages = self._travel.settle(grant, answer)
        self._careful = max(self._careful - (answer.upto - grant.start), 0)
        yield from messages

    def _lose(self, member: PoolMember) -> Lost:
        failure = member.failure if isinstance(member, RayMember) else None
        if type(failure).__name__ in CANNOT_START:
            raise WorkerStartError(f"Ray cannot start a worker: {failure}") from failure
        if not (isinstance(member, RayMember) and member.is_far):
            return super()._lose(member)
        control = member.control
        control[at.RUNNING], control[at.KIND] = -1, int(Kind.PARCEL)
        leases = list(member.leases.values())
        if leases:
            first = leases[0]
            control[at.LEASE], control[at.COMMITTED] = first.lease, first.start
            if not self.pool.has_lost_node(member):
                if first.stop - first.start == 1:
                    control[at.RUNNING] = first.start
                else:  # one of these chunks has ended it: from now on each is run alone, until all have been
                    self._careful = max(self._careful, sum(lease.stop - lease.start for lease in leases))
        # What it had was a copy: there is nothing to put back.
        return super()._lose(member)._replace(unprotected=False)

    def close(self, ok: bool, changed: bool) -> None:
        far = list(self._far())
        super().close(ok, changed)
        for member in far:
            if not member.closed:
                member.leases.clear()
                member.call("drop")


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
        except TimeoutError:
            raise
        except UNPICKLABLE as error:
            raise SerializationError(explain_unpicklable(job.fn, error)) from error
        self.fn_files = packer.files
        self.source_files = files_of(data) if self.order is None else None
        self.writer: RowWriter | None = None
        self.out_files: set[str] | None = None
        self.undo: Undo | None = None
        if job.ledger is not None:
            self.undo = Undo(data, job.plan, job.ledger.room())
        self._surroundings = Surroundings.here()
        self._reads: dict[int, bool] = {}
        self._writes: dict[int, bool] = {}

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

    # -- on the way there --------------------------------------------------------------------------------

    def begin(self, member: RayMember) -> None:
        """Give the job to a worker, once it is known which files it has.

        Raises:
            WorkerStartError: the function needs files that the worker does not have.
        """
        job = self.job
        member.job, member.has_begun = job.number, False
        if self.fn_files and not member.reaches(self.fn_files, written=True):
            raise WorkerStartError(
                f"{job.name} works with files that a worker on {member.node} cannot open, "
                f"{min(self.fn_files)} for one: put them (out=, spill_dir=) into a folder that all machines share, "
                'under the same name, or use this machine alone: executor=tdmap.RayCluster(transport="memory").'
            )
        files = self.source_files
        if files:
            reads = member.reaches(files, written=False)
        else:  # rows in a store, which each machine opens by its URL
            reads = files is not None and bool(rows_of(self.data).folders)
        self._reads[member.number] = reads
        source = TravelPacker().dumps(self.data) if reads else None
        task = Task(job.number, self._surroundings, self.plan, job.policy, self.fn, source, self.order is not None)
        member.call("begin", pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        if self.writer is not None:
            self.send_target(member)

    def send_target(self, member: RayMember) -> None:
        """Tell a worker where results go."""
        writer, dim = self.writer, self.plan.dim
        assert writer is not None
        files = self.out_files
        writes = self._writes[member.number] = bool(files) and member.reaches(files or (), written=True)
        none = narrow(writer.out, dim, 0, 0)
        empty = writer.over(none if device_of(none) is None else none.cpu(), 0)
        packed = TravelPacker()
        target = FarOutput(
            self.job.number,
            packed.dumps(_without_memory(empty)),
            TravelPacker().dumps(writer.out) if writes else None,
        )
        member.call("output", pickle.dumps(target, pickle.HIGHEST_PROTOCOL))

    def chunks_at_once(self) -> int:
        """Most chunks of a lease."""
        row = row_bytes_of(self.data, self.plan.length)
        if self.writer is not None:
            row += row_bytes_of(self.writer.out, self.plan.length)
        return max(WINDOW_BYTES // max(row * self.plan.size, 1), 1)

    def window(self, member: RayMember, start: int, stop: int) -> Window:
        """The rows of a lease."""
        plan = self.plan
        first, last = plan.span(start, stop)
        rows = None
        if not self._reads.get(member.number):
            if self.order is None:
                rows = ship(narrow(self.data, plan.dim, first, last))
            else:
                rows = ship(rows_of(self.data, plan.dim).take(self.order[first:last]))
        out = None
        writer = self.writer
        if writer is not None and not writer.exact and not writer.aliased and not self._writes.get(member.number):
            there = narrow(writer.out, plan.dim, first, last)
            out = ship(there if device_of(there) is None else there.cpu())
        return Window(first, last - first, rows, out)

    # -- on the way back ---------------------------------------------------------------------------------

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


def _without_memory(writer: RowWriter) -> RowWriter:
    """A copy of the writer over empty tensors, so that the other machine opens no file."""
    new = copy.copy(writer)
    new.out = writer.out.clone()
    return new


def _note_skipped(path: str, plan: ChunkPlan, message: Skipped) -> None:
    start = plan.rows(message.chunk)[0]
    failures = [(start + offset, unpack_error(packed), packed.text) for offset, packed in message.errors]
    note_skipped(path, message.chunk, failures)
