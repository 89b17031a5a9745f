"""Worker processes."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tdmap.data.kinds import device_of
from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.memory.links import PageLocker
from tdmap.plan import ChunkPlan
from tdmap.processes import Owner
from tdmap.runtime.executors.base import Seat, Workers
from tdmap.runtime.scheduler import Lease
from tdmap.runtime.undo import Room, undo_room
from tdmap.runtime.wire.lending import Loan, NotLent, take_back
from tdmap.runtime.wire.messages import (
    Begin,
    Done,
    Drop,
    Dropped,
    Failed,
    Grant,
    Joined,
    Left,
    Lost,
    Message,
    Planned,
    Protect,
    Refused,
    Segment,
    WriteTo,
)
from tdmap.runtime.wire.payload import JobPacker
from tdmap.runtime.workers import control as at
from tdmap.runtime.workers.pool import PoolClosedError, PoolMember, WorkerPool
from tdmap.sink import Kind, Sink
from tdmap.tuning import DEFAULT, Tuning
from tensordict_lite.errors import DatasetError

Borrowed = tuple[WorkerPool, Callable[[], None]]


@dataclass(eq=False)
class JobWorker:
    """What a job knows of one of its workers, from the time it joins to the time it leaves."""

    member: PoolMember
    """Of the pool."""
    room: Room | None = None
    """For the rows of the chunk that it runs; None where these cannot be put back."""
    loans: Sequence[Loan] = ()
    """What it was lent of a device's memory, and has not let go of."""
    safe: tuple[int, int] = (-1, 0)
    """Its last results that are here: their lease, and the chunk after them."""
    reason: str = ""
    """Why the driver has killed it."""

    @property
    def first_lease(self) -> Grant:
        """The oldest one that it has not answered."""
        return next(iter(self.member.leases.values()))

    @property
    def running(self) -> int | None:
        """The chunk that it runs, or ran when it ended."""
        chunk = int(self.member.control[at.RUNNING])
        return chunk if chunk >= 0 and self.member.leases else None


class ProcessWorkers(Workers):
    """The members of a pool, for one job.

    Args:
        job: the job.
        borrowed: a reserved pool, and what gives it back.
        wanted: how many of its workers.
        tuning: of the call.
    """

    kind = "process"

    def __init__(self, job: Job, borrowed: Borrowed, wanted: int, tuning: Tuning = DEFAULT) -> None:
        self.pool, self._give_back = borrowed
        self.tuning = tuning
        self.size = wanted
        self._owner = Owner()
        self._job = job
        self._packing = JobPacker()
        self._output: bytes | None = None
        self._planned: bytes | None = None
        self._joined: dict[int, JobWorker] = {}
        self._left: dict[int, Seat] = {}
        """Where those were that the last `wait` has seen leave."""
        self._free_rooms: list[Room] = []
        self._in_place = False
        self._locker: PageLocker | None = None
        self._device_writer: RowWriter | None = None
        self._refused: NotLent | None = None
        self._ran = False
        """A worker that has left had run something."""
        self._forks = True
        """Workers may be forks of this process: they use no device."""

    # -- the job -------------------------------------------------------------------------------------

    def allocate(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        return self._packing.arena.empty(dtype, shape)

    def open(self, sink: Sink[Any]) -> None:
        job = self._job
        asked = sink.demands(job.plan)
        self._in_place, self._locker = asked.in_place, asked.locker
        writer = sink.writer
        if writer is not None and device_of(writer.out) is not None:
            self._device_writer, writer = writer, None
            self._forks = False
        self._forks = self._forks and getattr(job.fn, "forks", True)
        self.pool.refresh(self.size, self._forks)  # first of all: workers that have to start do so while we pack
        payload = self._packing.pack(job, writer)
        self._begin = pickle.dumps(Begin(job.number, payload), pickle.HIGHEST_PROTOCOL)

    def output(self, writer: RowWriter) -> None:
        self._output = pickle.dumps(
            WriteTo(self._job.number, self._packing.packer.dumps(writer)), pickle.HIGHEST_PROTOCOL
        )
        for worker in self._joined.values():
            worker.member.send_bytes(self._output)

    def replan(self, plan: ChunkPlan) -> None:
        self._job = replace(self._job, plan=plan)
        self._planned = pickle.dumps(Planned(self._job.number, plan), pickle.HIGHEST_PROTOCOL)
        for worker in self._joined.values():
            worker.member.send_bytes(self._planned)

    # -- talking to workers --------------------------------------------------------------------------

    def _join(self, member: PoolMember) -> None:
        taken = {int(worker.member.control[at.RANK]) for worker in self._joined.values()}
        worker = self._joined[member.number] = JobWorker(member)
        control = member.control
        control[at.CANCEL] = control[at.GIVE_BACK] = control[at.UNDO] = 0
        control[at.RANK] = min(set(range(self.size)) - taken)
        control[at.LEASE] = -1
        member.new_job(self._locker)
        member.send_bytes(self._begin)
        if self._planned is not None:  # before what is as large as the chunks are now
            member.send_bytes(self._planned)
        policy = self._job.policy
        if self._free_rooms:
            worker.room = self._free_rooms.pop()
        elif policy.may_write or policy.skip:  # else workers have private pages
            worker.room = undo_room(self._job, self._packing.arena.empty)
        if worker.room is not None:
            member.send(Protect(self._job.number, self._packing.packer.dumps(worker.room)))
        if self._device_writer is not None:
            # Memory of a device is lent to one receiver at a time.
            payload, worker.loans = self._packing.lend_writer(self._device_writer)
            member.send(WriteTo(self._job.number, payload))
        if self._output is not None:
            member.send_bytes(self._output)

    def limit(self, worker: int) -> int | None:
        member, most = self._joined[worker].member, self.pool.max_tasks_per_child
        if self.pool.is_worn(member):
            return 0
        return None if most is None else most - member.granted

    def grant(self, worker: int, lease: Lease) -> None:
        member = self._joined[worker].member
        if not member.leases:
            member.heard = time.monotonic()
        grant = Grant(self._job.number, lease.id, lease.start, lease.stop, member.reader.take_freed())
        member.leases[lease.id] = grant
        member.granted += lease.stop - lease.start
        member.send(grant)

    def revoke(self, worker: int) -> None:
        self._joined[worker].member.control[at.GIVE_BACK] = 1

    def running(self) -> dict[int, tuple[int, float]]:
        found = {}
        for number, worker in self._joined.items():
            member = worker.member
            since, chunk = member.control[at.SINCE], member.control[at.RUNNING]
            if not member.leases:
                continue
            if chunk < 0:  # between two chunks, or still busy with the job's imports; or it has been stopped
                found[number] = (worker.first_lease.start, member.heard + self.tuning.start_seconds)
            elif since == member.control[at.SINCE]:
                found[number] = (chunk, since / 1e9)
        return found

    def kill(self, worker: int, reason: str) -> None:
        self._joined[worker].reason = reason
        self._joined[worker].member.process.kill()

    def seat(self, worker: int) -> Seat:
        joined = self._joined.get(worker)
        return self._left[worker] if joined is None else self._seat_of(joined.member)

    def _seat_of(self, member: PoolMember) -> Seat:
        pid = member.process.pid
        return Seat(pid, f"in worker process {pid}")

    # -- listening -----------------------------------------------------------------------------------

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        events: list[tuple[int, Message]] = []
        self._left.clear()
        for member in list(self.pool.members.values()):
            if member.ready and member.number not in self._joined and len(self._joined) < self.size:
                self._join(member)
                events.append((member.number, Joined()))
        if events:
            return events
        for member, messages, ended in self.pool.listen(timeout):
            for message in messages:
                event = self._event(member, message)
                if event is not None:
                    events.append((member.number, event))
            if ended:
                events.append((member.number, self._lose(member)))
            elif not member.leases and self.pool.is_worn(member):
                self.pool.recycle(member)
                self._forget(member)
                self.pool.fill(self.size, self._forks)
                events.append((member.number, Left()))
        return events

    def _event(self, member: PoolMember, message: Any) -> Message | None:
        worker = self._joined.get(member.number)
        # A greeting, which the next `wait` answers; or the last word on a job that was over before it came.
        if worker is None or message.job != self._job.number:
            return None
        if isinstance(message, (Done, Failed)):
            start = member.leases.pop(message.lease).start
            member.heard = time.monotonic()
            self._in_place |= message.mutated
            if isinstance(message, Done):
                member.chunks += message.upto - start
                member.rows += self._job.plan.count(start, message.upto)
        try:
            message = member.reader.open(message)
        except OSError:  # the worker has died: its chunks run again
            return None
        if isinstance(message, Segment):
            worker.safe = message.lease, message.stop
        if isinstance(message, Refused) and message.output and self._device_writer is not None:
            self._refused = NotLent(f"memory of the output could not be opened {self.seat(member.number).text}")
            self._refused.__cause__ = message.error
            message = message._replace(error=self._refused)
        event: Message = message
        return event

    def _lose(self, member: PoolMember) -> Lost:
        code, control = self.pool.remove(member, lost=True, kill=False), member.control
        worker = self._forget(member)
        self.pool.fill(self.size, self._forks)
        return Lost(
            signal=-code if code is not None and code < 0 else None,
            exit_code=code if code is not None and code >= 0 else None,
            running=worker.running,
            lease=int(control[at.LEASE]),
            committed=int(control[at.COMMITTED]),
            kind=Kind(control[at.KIND]),
            peak_memory=int(control[at.PEAK]),
            reason=worker.reason,
            unprotected=self._in_place and worker.room is None,
        )

    def _forget(self, member: PoolMember) -> JobWorker:
        """Forget a worker that has ended, perhaps before it joined: undo half a chunk, and have back what it had."""
        worker = self._joined.pop(member.number, None) or JobWorker(member)
        self._left[member.number] = self._seat_of(member)
        self._put_back(worker)
        take_back(worker.loans)
        if worker.room is not None:
            self._free_rooms.append(worker.room)  # the copy has been put back, or is not needed
        self._ran |= member.control[at.LEASE] >= 0
        return worker

    def _put_back(self, worker: JobWorker) -> None:
        """Undo what a worker that has ended did to the rows of the chunk that it ran."""
        control, running = worker.member.control, worker.running
        if worker.room is None or running is None:
            return
        # Results that travel are safe once they are here, which their sender may not have lived to note.
        lease, safe = worker.safe
        if lease == control[at.LEASE] and safe > running:
            return
        if control[at.UNDO] == running + 1 and control[at.COMMITTED] <= running:
            with contextlib.suppress(DatasetError):  # of a truncated file, which ends the job: a worker meets it too
                self._packing.restore(self._job, worker.room, running)

    # -- the end -------------------------------------------------------------------------------------

    def check(self) -> None:
        self.pool.check_open()

    def __exit__(self, *error: object) -> None:
        if self._owner.is_here:  # a fork's copy of an iterator, which it collects, has no pool to give back
            self._give_back()

    def close(self, ok: bool, changed: bool) -> None:
        try:
            if not ok:
                self._stop()
            for worker in list(self._joined.values()):
                member = worker.member
                if member.closed:  # with its pool, or because it has not stopped
                    self._forget(member)
                    continue
                # After an error it is unknown which slots the worker still believes to be in use.
                member.keeps_slots = ok and self._locker is not None
                member.send(Drop(self._job.number, member.keeps_slots, bool(worker.loans)))
            if self._device_writer is not None:
                self._have_back()
        finally:
            with torch.no_grad():
                self._packing.write_back(changed)

    def _have_back(self) -> None:
        """Wait, for a moment, until workers have let go of what they were lent; those that end never will."""
        deadline = time.monotonic() + self.tuning.let_go_seconds
        while any(worker.loans for worker in self._joined.values()) and (left := deadline - time.monotonic()) > 0:
            for member, messages, ended in self.pool.listen(left):
                worker = self._joined.get(member.number)
                dropped = any(isinstance(one, Dropped) and one.job == self._job.number for one in messages)
                if worker is not None and dropped:
                    worker.loans = ()
                if ended:
                    self.pool.remove(member)
                    self._forget(member)

    def _stop(self) -> None:
        """Let workers end their chunk, for a moment; then end them."""
        busy = [worker.member for worker in self._joined.values() if worker.member.leases]
        for member in busy:
            member.control[at.CANCEL] = 1
        with contextlib.suppress(PoolClosedError):  # whose workers have been killed
            self._await_last_chunks(busy)
        if self._refused is not None:
            began = any(worker.member.control[at.LEASE] >= 0 for worker in self._joined.values())
            self._refused.begun = self._ran or began
        for member in busy:
            if member.leases:
                self.pool.remove(member)

    def _await_last_chunks(self, busy: list[PoolMember]) -> None:
        deadline = time.monotonic() + self.tuning.grace_seconds
        while any(m.leases and not m.closed for m in busy) and (left := deadline - time.monotonic()) > 0:
            for member, messages, ended in self.pool.listen(left):
                for message in messages:
                    if isinstance(message, (Done, Failed)) and message.job == self._job.number:
                        member.leases.pop(message.lease, None)
                if ended:
                    self.pool.remove(member)
