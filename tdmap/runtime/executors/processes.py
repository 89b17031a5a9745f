"""Worker processes."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tdmap.data.kinds import device_of
from tdmap.data.writer import RowWriter
from tdmap.job import Job
from tdmap.memory.links import PageLocker
from tdmap.plan import ChunkPlan
from tdmap.process_state import Owner
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
    Hello,
    Joined,
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
from tdmap.runtime.workers.pool import PoolMember, WorkerPool
from tdmap.sink import Kind, Sink
from tdmap.tuning import DEFAULT, Tuning
from tensordict_lite.errors import DatasetError

Borrowed = tuple[WorkerPool, Callable[[], None]]


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
        self._pids: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._begun: set[int] = set()
        self._undo: dict[int, Room] = {}
        self._free_rooms: list[Room] = []
        self._safe: dict[int, tuple[int, int]] = {}
        self._in_place = False
        self._locker: PageLocker | None = None
        self._device_writer: RowWriter | None = None
        self._loans: dict[int, list[Loan]] = {}
        """What workers were lent, and have not let go of."""
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
        for number in self._begun:
            self.pool.members[number].send_bytes(self._output)

    def replan(self, plan: ChunkPlan) -> None:
        self._job = replace(self._job, plan=plan)
        self._planned = pickle.dumps(Planned(self._job.number, plan), pickle.HIGHEST_PROTOCOL)
        for number in self._begun:
            self.pool.members[number].send_bytes(self._planned)

    # -- talking to workers --------------------------------------------------------------------------

    def _join(self, member: PoolMember) -> Joined:
        member.control[at.CANCEL] = member.control[at.GIVE_BACK] = 0
        taken = {int(self.pool.members[number].control[at.RANK]) for number in self._begun}
        member.control[at.RANK] = min(set(range(self.size)) - taken)
        member.new_job(self._locker)
        member.control[at.UNDO] = 0
        member.control[at.LEASE] = -1
        member.send_bytes(self._begin)
        if self._planned is not None:  # before what is as large as the chunks are now
            member.send_bytes(self._planned)
        room, policy = self._free_rooms.pop() if self._free_rooms else None, self._job.policy
        if room is None and (policy.may_write or policy.skip):  # else workers have private pages
            room = undo_room(self._job, self._packing.arena.empty)
        if room is not None:
            self._undo[member.number] = room
            member.send(Protect(self._job.number, self._packing.packer.dumps(room)))
        if self._device_writer is not None:
            # Memory of a device is lent to one receiver at a time.
            payload, self._loans[member.number] = self._packing.lend_writer(self._device_writer)
            member.send(WriteTo(self._job.number, payload))
        if self._output is not None:
            member.send_bytes(self._output)
        self._begun.add(member.number)
        self._pids[member.number] = member.process.pid
        return Joined()

    def limit(self, worker: int) -> int | None:
        member, most = self.pool.members.get(worker), self.pool.max_tasks_per_child
        if member is None or self.pool.is_worn(member):
            return 0
        return None if most is None else most - member.granted

    def grant(self, worker: int, lease: Lease) -> None:
        member = self.pool.members[worker]
        if not member.leases:
            member.heard = time.monotonic()
        grant = Grant(self._job.number, lease.id, lease.start, lease.stop, member.reader.take_freed())
        member.leases[lease.id] = grant
        member.granted += lease.stop - lease.start
        member.send(grant)

    def revoke(self, worker: int) -> None:
        self.pool.members[worker].control[at.GIVE_BACK] = 1

    def running(self) -> dict[int, tuple[int, float]]:
        found = {}
        for number, member in list(self.pool.members.items()):
            since, chunk = member.control[at.SINCE], member.control[at.RUNNING]
            if not member.leases:
                continue
            if chunk < 0:  # between two chunks, or still busy with the job's imports; or it has been stopped
                first = next(iter(member.leases.values()))
                found[number] = (first.start, member.heard + self.tuning.start_seconds)
            elif since == member.control[at.SINCE]:
                found[number] = (chunk, since / 1e9)
        return found

    def kill(self, worker: int, reason: str) -> None:
        self._reasons[worker] = reason
        self.pool.members[worker].process.kill()

    def seat(self, worker: int) -> Seat:
        pid = self._pids.get(worker, 0)
        return Seat(pid, f"in worker process {pid}")

    # -- listening -----------------------------------------------------------------------------------

    def wait(self, timeout: float) -> list[tuple[int, Message]]:
        events: list[tuple[int, Message]] = []
        for member in list(self.pool.members.values()):
            if member.ready and member.number not in self._begun and len(self._begun) < self.size:
                events.append((member.number, self._join(member)))
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
                self._replace(member)
        return events

    def _event(self, member: PoolMember, message: Any) -> Message | None:
        if isinstance(message, Hello):
            return self._join(member) if len(self._begun) < self.size else None
        if message.job != self._job.number:  # the last word of a worker on a job that was over before it came
            return None
        if isinstance(message, (Done, Failed)):
            start = member.leases.pop(message.lease).start
            member.heard = time.monotonic()
            self._in_place |= message.mutated
            if isinstance(message, Done):
                member.chunks += message.upto - start
                member.rows += self._job.plan.count(start, message.upto)
        if isinstance(message, Segment):
            self._safe[member.number] = (message.lease, message.stop)
        try:
            message = member.reader.open(message)
        except OSError:  # the worker has died: its chunks run again
            return None
        if isinstance(message, Refused) and message.output and self._device_writer is not None:
            self._refused = NotLent(f"memory of the output could not be opened {self.seat(member.number).text}")
            self._refused.__cause__ = message.error
            message = message._replace(error=self._refused)
        event: Message = message
        return event

    def _take_back(self, number: int) -> None:
        """A worker has ended, and has not said that it let go of what it was lent."""
        self._ran = True
        take_back(self._loans.pop(number, ()))

    def _lose(self, member: PoolMember) -> Lost:
        control = member.control
        running = int(control[at.RUNNING])
        code = self.pool.remove(member, lost=True, kill=False)
        self._put_back(member)
        self._pids.setdefault(member.number, member.process.pid)
        self._replace(member)
        return Lost(
            signal=-code if code is not None and code < 0 else None,
            exit_code=code if code is not None and code >= 0 else None,
            running=running if running >= 0 and member.leases else None,
            lease=int(control[at.LEASE]),
            committed=int(control[at.COMMITTED]),
            kind=Kind(control[at.KIND]),
            peak_memory=int(control[at.PEAK]),
            reason=self._reasons.pop(member.number, ""),
            unprotected=self._in_place and member.number not in self._undo,
        )

    def _put_back(self, member: PoolMember) -> None:
        """Undo what a worker that has ended did to the rows of the chunk that it ran."""
        control = member.control
        running, room = int(control[at.RUNNING]), self._undo.get(member.number)
        if room is None or not member.leases or running < 0:
            return
        # Results that travel are safe once they are here, which their sender may not have lived to note.
        lease, safe = self._safe.get(member.number, (-1, 0))
        if lease == control[at.LEASE] and safe > running:
            return
        if control[at.UNDO] == running + 1 and control[at.COMMITTED] <= running:
            with contextlib.suppress(DatasetError):  # of a truncated file, which ends the job: a worker meets it too
                self._packing.restore(self._job, room, running)

    def _replace(self, member: PoolMember) -> None:
        """Start another worker for one that has ended, and free what that one had."""
        self._take_back(member.number)
        self._begun.discard(member.number)
        if member.number in self._undo:
            self._free_rooms.append(self._undo[member.number])  # the copy has been put back, or is not needed
        self.pool.fill(self.size, self._forks)

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
            for number in self._begun:
                member = self.pool.members.get(number)
                if member is not None:
                    # After an error it is unknown which slots the worker still believes to be in use.
                    member.keeps_slots = ok and self._locker is not None
                    member.send(Drop(self._job.number, member.keeps_slots, number in self._loans))
            if self._loans:
                self._have_back()
        finally:
            with torch.no_grad():
                self._packing.write_back(changed)

    def _have_back(self) -> None:
        """Wait, for a moment, until workers have let go of what they were lent; those that end never will."""
        deadline = time.monotonic() + self.tuning.let_go_seconds
        while self._loans and (left := deadline - time.monotonic()) > 0:
            for number in [number for number in self._loans if number not in self.pool.members]:
                self._take_back(number)
            for member, messages, ended in self.pool.listen(left) if self._loans else ():
                if any(isinstance(message, Dropped) and message.job == self._job.number for message in messages):
                    self._loans.pop(member.number, None)
                if ended:
                    self.pool.remove(member)

    def _stop(self) -> None:
        """Let workers end their chunk, for a moment; then end them."""
        if self.pool.is_closed:  # the collector ends a pool and a job on it in any order: no worker is left to stop
            return
        busy = [m for m in list(self.pool.members.values()) if m.leases]
        for member in busy:
            member.control[at.CANCEL] = 1
        deadline = time.monotonic() + self.tuning.grace_seconds
        while (left := deadline - time.monotonic()) > 0 and any(
            m.leases and m.number in self.pool.members for m in busy
        ):
            for member, messages, ended in self.pool.listen(left):
                for message in messages:
                    if isinstance(message, (Done, Failed)) and message.job == self._job.number:
                        member.leases.pop(message.lease, None)
                if ended:
                    self.pool.remove(member)
        if self._refused is not None:
            begun = [self.pool.members[number] for number in self._begun if number in self.pool.members]
            self._refused.begun = self._ran or any(member.control[at.LEASE] >= 0 for member in begun)
        for member in busy:
            if member.leases and member.number in self.pool.members:
                self._begun.discard(member.number)
                self.pool.remove(member)
                self._put_back(member)
