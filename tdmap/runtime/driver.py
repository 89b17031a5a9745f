"""Runs a job on workers: the loop between the scheduler and the workers' messages.

    scheduler ──Lease──► driver ──grant──► workers (processes, threads, a foreign pool)
        ▲                  │  ▲                │
        └──commit, done────┘  └──messages──────┘
                           ├──► sink       (results that travelled, and which chunks are safe)
                           └──► callbacks  (events)

The driver knows no process and no pipe; workers know no scheduler.

A job belongs to the process that began it. When that process forks, its child has a copy of the driver, which it may
close, collect or ask for more: the copy sends no messages, stops no workers and writes nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tdmap.data.kinds import tensor_bytes, tensors_of
from tdmap.data.objects import piece_bytes
from tdmap.data.reader import rows_of
from tdmap.errors import ChunkTimeout, WorkerLost, WorkerStartError
from tdmap.events import CallbackList, ChunkRetried, JobEnded, JobStarted, LeaseDone, ResultTaken, WorkerDied
from tdmap.frames import warn_user
from tdmap.job import Job
from tdmap.memory.mapped import check_mapped_files, read_only_file
from tdmap.plan import Ranges, merge_ranges
from tdmap.processes import Owner
from tdmap.runtime.chunkloop import note_rows
from tdmap.runtime.commits import CommitLog
from tdmap.runtime.executors.base import Workers
from tdmap.runtime.ondevice import OnDevice
from tdmap.runtime.scheduler import Scheduler, SchedulerPolicy
from tdmap.runtime.skiplog import SkipLog
from tdmap.runtime.wire.messages import Done, Failed, GaveBack, Joined, Left, Lost, Message, Refused, Segment, Skipped
from tdmap.sink import Kind, Sink, Taken
from tdmap.tuning import DEFAULT, Tuning

STREAM_BYTES = 4 << 20
"""Input bytes of a lease whose results travel: what a consumer may find in flight, several times a worker."""

STREAM_CHUNKS = 256
"""And its chunks, at most."""

LEASE_COST = 1e-4
"""Seconds of this process that a lease may cost, whatever the number of workers: of many, each is given more work."""

LEASE_BYTES = 32 << 20
"""Input bytes of a lease, at most. A worker lets go of the pages that it has read between leases, and holds in memory
what it has fetched from a store for two."""

FAR_SECONDS = 0.5
"""Work of a lease whose rows come from a store: they are fetched in one request for each column, and each request
costs its round trip."""

ASKED_AT_ONCE = 16
"""Workers that are asked to give work back before the others are listened to again."""


class Driver:
    """One run of one job.

    Args:
        job: what is to be done.
        sink: where results go.
        workers: who does it.
        callbacks: who watches.
        row_bytes: bytes of a row of the source.
        log: notes which chunks are done; None for a call without a log.
        asked_workers: how many there would be with enough chunks.
        tuning: of the call.
    """

    def __init__(
        self,
        job: Job,
        sink: Sink[Any],
        workers: Workers,
        callbacks: CallbackList,
        row_bytes: int,
        log: CommitLog | None = None,
        asked_workers: int = 0,
        tuning: Tuning = DEFAULT,
    ) -> None:
        self.job = job
        self.sink = sink
        self.workers = workers
        self.callbacks = callbacks
        self.log = log
        self.asked_workers = asked_workers
        self.row_bytes = row_bytes
        self.tuning = tuning
        self._demands = sink.demands(job.plan)
        self.rows, self.chunks, self.done_rows = job.plan.length, job.plan.num_chunks, 0
        self._sizes: dict[int, int | None] = {}
        """Bytes of the results of the first chunks; None where there is none, or an earlier run has done the chunk."""
        known = [] if log is None else self._leave_out(log)
        policy = self._policy(row_bytes * job.plan.most_rows)
        self.scheduler = Scheduler(job.plan.num_known, workers.size, policy, known, *_borders(job))
        self.changed = False
        self._mutated = self._has_results = False
        self.skips = SkipLog(job, callbacks, log) if job.policy.skip else None
        self._idle: set[int] = set()
        """Workers that hold nothing."""
        self._hungry: set[int] = set()
        """Workers that hold something, and could hold more."""
        self._announced = False
        self._first_result = False
        # Rows that do not fit can be skipped where they are made, so the first result must be known there.
        self._one_first = bool(job.policy.skip) and self._demands.first_alone
        self._failure: tuple[int, Exception] | None = None
        """The first chunk that has failed, and its error, which waits for the results before it."""
        self._owner = Owner(f"the job {job.name}")

    def _leave_out(self, log: CommitLog) -> Ranges:
        """The chunks that an earlier run has done, or that other programs do; they are counted."""
        plan = self.job.plan
        for start, stop in log.committed:
            self.done_rows += plan.count(start, stop)
            if plan.is_open:
                self._sizes.update(dict.fromkeys(range(start, stop)))
        for start, stop in log.elsewhere:
            self.rows -= plan.count(start, stop)
            self.chunks -= stop - start
        return merge_ranges([*log.committed, *log.elsewhere])

    def _policy(self, chunk_bytes: int) -> SchedulerPolicy:
        policy, asked = self.job.policy, self._demands
        far = rows_of(self.job.source.data).is_remote
        if asked.ordered is None:
            limit = max(LEASE_BYTES // max(chunk_bytes, 1), 1)
            if asked.max_lease is not None:
                limit = min(limit, asked.max_lease)
            seconds = max(self.tuning.lease_seconds, LEASE_COST * self.workers.size, FAR_SECONDS if far else 0)
            return SchedulerPolicy(policy.retries, policy.timeout, target_seconds=seconds, max_lease=limit)
        largest = max(min(STREAM_BYTES // max(chunk_bytes, 1), STREAM_CHUNKS), 1)
        window = 2 * largest * self.workers.size + self.workers.size
        ahead = asked.ahead
        if ahead is not None:
            # Beside the one that the consumer has. A worker holds two leases: one that runs, one that waits for it.
            window, largest = max(ahead, 1) + 1, max(ahead // (2 * self.workers.size), 1)
        return SchedulerPolicy(
            retries=policy.retries,
            timeout=policy.timeout,
            ordered=True,
            max_lease=largest,
            window=window,
            target_seconds=FAR_SECONDS if far else self.tuning.lease_seconds,
        )

    def run(self) -> Iterator[tuple[int, Any]]:
        """Run the job. Yields (chunk, result) in order when the sink streams, else nothing.

        Raises:
            WorkerLost: a chunk's worker died once too often.
            ChunkTimeout: a chunk ran too long once too often.
            DatasetError: a mapped file of the rows or of the output was truncated.
            RuntimeError: this is a fork of the process that began the job.
            Exception: whatever the function raised, with a note.
        """
        began = time.monotonic()
        if self.callbacks.callbacks:
            self._tell_of_start(began)
        error: BaseException | None = None
        try:
            if self.skips is not None:
                self.skips.begin(self.done_rows, () if self.log is None else self.log.skipped)
            self.sink.open(self.job.plan, self.workers.allocate)
            self._check_files()
            self.workers.open(self.sink)
            self._announced = self.sink.writer is not None
            yield from self._loop()
            if self.skips is not None:
                self.skips.finish(self.rows)
            self._warn_of_changes()
        except BaseException as caught:
            error = caught
            if isinstance(caught, (OSError, LookupError, ValueError)):
                # What a fork finds, or a job whose workers were ended from outside: closed pipes and no worker.
                self._owner.require()
                self.workers.check()
            raise
        finally:
            if self._owner.is_here:
                self._close(error, began)

    def _tell_of_start(self, now: float) -> None:
        self.callbacks.on_job_started(
            JobStarted(
                self.job.number,
                self.job.name,
                self.rows,
                self.chunks,
                self.job.plan.size,
                self.workers.size,
                self.workers.kind,
                now,
                self.row_bytes,
                max(self.asked_workers, self.workers.size),
                self.done_rows,
            )
        )

    def _check_files(self) -> None:
        """Raise DatasetError when a mapped file of the rows or of the output was truncated."""
        out = [] if self.sink.writer is None else tensors_of(self.sink.writer.out)
        check_mapped_files([*tensors_of(self.job.source.data), *out])

    def _require_writable(self) -> None:
        """Raise PermissionError where the function has changed rows of files that may only be read."""
        file = read_only_file(tensors_of(self.job.source.data))
        if file is not None:
            raise PermissionError(
                f"{self.job.name} changes rows in place, and {file} is read-only: nothing was written. Load "
                "the dataset with mode='r+' from writable files, or return the result."
            )

    def _warn_of_changes(self) -> None:
        writer = self.sink.writer
        meant = self._demands.in_place or (writer is not None and writer.aliased)
        if (
            self.changed
            and writer is None
            and not (meant or self._mutated or self._has_results or isinstance(self.job.fn, OnDevice))
            and rows_of(self.job.source.data).is_view  # else it is an error
        ):
            warn_user(
                f"{self.job.name} returned None for every chunk and changed no rows, so the result is None: return "
                "the chunk or a dict of columns, or change the tensors of the chunk in place. Ignore this warning "
                "if the function is called for its side effects only."
            )
        if self._mutated and self._has_results and not meant:
            warn_user(
                f"{self.job.name}: the function changed rows of the source in place, and also returned "
                "results: the source now holds the changed rows. To keep the source, begin the function with "
                "chunk = chunk.clone(). To change it in place, return None."
            )

    def _close(self, error: BaseException | None, began: float) -> None:
        try:
            self.scheduler.cancel()
            self.workers.close(error is None, self.changed)
            if error is not None:
                self.sink.abandon()
        finally:
            if self.callbacks.callbacks:
                seconds, skipped = time.monotonic() - began, () if self.skips is None else tuple(self.skips.errors)
                self.callbacks.on_job_ended(
                    JobEnded(self.job.number, error is None, self.done_rows, seconds, error, skipped)
                )

    def _loop(self) -> Iterator[tuple[int, Any]]:
        scheduler = self.scheduler
        tick = 0.5 if self.job.policy.timeout is None else min(0.5, self.job.policy.timeout / 4)
        ordered = self._demands.ordered
        if ordered is not None:
            scheduler.consumed(scheduler.release()[1])  # what an earlier run has yielded
        while not scheduler.finished or self.job.plan.is_open:
            self._owner.require()  # a callback may have forked
            events = self.workers.wait(tick)
            self._owner.require()  # and so may a signal handler
            for worker, message in events:
                self._handle(worker, message)
            if self.log is not None:
                self.log.tick(time.monotonic())
            if self.callbacks.tickers:
                self.callbacks.on_tick(time.monotonic())
            if ordered is not None:
                for chunk in range(*scheduler.release()):
                    if self.callbacks.takers:
                        yield from self._watched(chunk, ordered)
                    else:
                        yield chunk, ordered.take(chunk)
                    self._still_ours()
                    # Back at work: the consumer has had its time, and asks for the next one.
                    scheduler.consumed(chunk + 1)
            self._fill_all()
            if self.job.policy.timeout is not None:
                self._check_clock()
            if self._failure is not None and scheduler.is_stuck:
                raise self._failure[1]

    def _still_ours(self) -> None:
        """Raise RuntimeError when the consumer has forked, and this is the child; unless there are no workers."""
        if self.workers.forks and not self._owner.is_here:
            self._owner = Owner(self._owner.what)
        self._owner.require()

    def _watched(self, chunk: int, ordered: Taken) -> Iterator[tuple[int, Any]]:
        began = time.monotonic()
        yield chunk, ordered.take(chunk)
        now = time.monotonic()
        self.callbacks.on_result_taken(ResultTaken(self.job.number, chunk, now - began, now))

    # -- giving out --------------------------------------------------------------------------------

    def _fill_all(self) -> None:
        if not self._announced and self.sink.writer is not None:
            self.workers.output(self.sink.writer)
            self._announced = True
        for worker in (*self._idle, *self._hungry):
            more = self._fill(worker)
            self._note(worker)
            if not more:
                break
        now = time.monotonic()
        for _ in range(min(len(self._idle), ASKED_AT_ONCE)):  # nothing is left: have others give some of theirs back
            straggler = self.scheduler.straggler(now)
            if straggler is None:
                return
            self.workers.revoke(straggler.worker)

    def _note(self, worker: int) -> None:
        """Know how much a worker holds, after that has changed. Those who hold enough are not looked at every time."""
        self._forget(worker)
        if not self.scheduler.holds(worker):
            self._idle.add(worker)
        elif not self.scheduler.is_full(worker):
            self._hungry.add(worker)

    def _forget(self, worker: int) -> None:
        """Give it nothing more."""
        self._idle.discard(worker)
        self._hungry.discard(worker)

    def _fill(self, worker: int) -> bool:
        """Give a worker all it may hold; False where nothing is left for workers of its kind.

        A worker that has just been given its first chunk may have to wait for more, and others must not wait with it.
        """
        now, given = time.monotonic(), False
        while not self.scheduler.is_full(worker):
            limit = self.workers.limit(worker)
            if limit == 0:
                break
            if not self._first_result and not self._announced:
                # Nothing is known about the results yet: one chunk each, which travels, and then the place is set.
                if self._one_first and self.scheduler.in_flight:
                    return False
                limit = 1
            lease = self.scheduler.lease(worker, now, limit)
            if lease is None:
                return given
            self.workers.grant(worker, lease)
            given = True
        return True

    def _check_clock(self) -> None:
        running = self.workers.running()
        for worker in self.scheduler.overdue(running, time.monotonic()):
            rows = self.job.plan.describe(running[worker][0])
            self.workers.kill(worker, f"{rows} ran longer than {self.job.policy.timeout} s")

    # -- coming back -------------------------------------------------------------------------------

    def _handle(self, worker: int, message: Message) -> None:
        if isinstance(message, Done):
            if message.segment is not None:
                self._accept(message.segment)
            if message.mutated and not self._mutated:
                self._require_writable()
                self.changed = self._mutated = True
            lease = self.scheduler.get(message.lease)
            if lease is not None:
                start = lease.start
                self.scheduler.done(message.lease, message.upto, message.seconds, time.monotonic())
                self._note(worker)
                if self.callbacks.callbacks:
                    self._report(worker, start, message)
        elif isinstance(message, Segment):
            self._accept(message)
        elif isinstance(message, Skipped):
            assert self.skips is not None
            self.skips.add(message)
        elif isinstance(message, Joined):
            self._note(worker)
        elif isinstance(message, GaveBack):
            self.scheduler.shrunk(message.lease, message.stop)
            self._note(worker)  # who may have given back a whole lease
        elif isinstance(message, Failed):
            self.changed |= message.mutated
            note_rows(message.error, self.job.plan, message.chunk, self.job.name, self.workers.seat(worker).text)
            self._fail(worker, message.chunk, message.error)
        elif isinstance(message, Refused):
            raise message.error
        elif isinstance(message, Left):
            self._forget(worker)
        else:
            self._handle_loss(worker, message)

    def _fail(self, worker: int, chunk: int, error: Exception) -> None:
        """End the job with the error of a chunk: at once, or after the results before it if results come in order."""
        if self._demands.ordered is None:
            raise error
        if self._failure is None or chunk < self._failure[0]:
            self._failure = chunk, error
        self.scheduler.failed(worker, chunk)
        self._forget(worker)

    def _accept(self, segment: Segment) -> None:
        _, number, _, stop, kind, values = segment
        lease = self.scheduler.get(number)
        if lease is None or stop <= lease.cursor:
            return
        start = lease.cursor
        if self.job.plan.is_open:
            for chunk in range(start, stop):
                self._sizes[chunk] = self._result_bytes(chunk, kind, values[chunk - start] if kind.travels else None)
            self._settle_plan()
        self._first_result |= kind is not Kind.FAILED
        self.changed |= (kind is Kind.NONE and self.job.policy.may_write) or self._demands.in_place
        self._has_results |= kind is not Kind.NONE and kind is not Kind.FAILED
        self.sink.accept(start, stop, kind, values)
        self.scheduler.commit(number, stop)
        if self.skips is not None:
            self.skips.commit(start, stop)
        if self.log is not None:
            self.log.add(start, stop)
        self.done_rows += self.job.plan.count(start, stop)

    def _result_bytes(self, chunk: int, kind: Kind, value: Any) -> int | None:
        """Bytes of the result of a chunk, the same however it came; None where there is none."""
        if kind is Kind.PARCEL:
            return self.sink.value_bytes(value)
        writer, plan = self.sink.writer, self.job.plan
        if writer is None or kind not in (Kind.WRITTEN, Kind.OBJECTS):
            return None
        # Written at once: a later chunk, or an earlier run, had shown what the output looks like.
        tensors = tensor_bytes(writer.out, plan.length) * plan.count(chunk, chunk + 1)
        return tensors + sum(map(piece_bytes, value or ()))

    def _settle_plan(self) -> None:
        """Choose the size of the later chunks by the first chunk that has a result. Waits for one."""
        plan, size = self.job.plan, self.job.plan.size
        for chunk in range(plan.num_known):
            if chunk not in self._sizes:
                return
            nbytes = self._sizes[chunk]
            if nbytes is not None:
                each = self.row_bytes + nbytes // max(plan.count(chunk, chunk + 1), 1)
                size = plan.size_for(each)
                break
        else:
            each = self.row_bytes
        plan = plan.settled(size)
        self.job = replace(self.job, plan=plan)
        if self.skips is not None:
            self.skips.job = self.job
        if self.job.on_settled is not None:
            self.job.on_settled(plan)
        self.sink.replan(plan)
        self.workers.replan(plan)
        weight = min(plan.lead / plan.size, 1.0)
        self.scheduler.extend(plan.num_chunks, weight, self._policy(each * plan.size))
        self.scheduler.borders, self.scheduler.blocks = _borders(self.job)

    def _report(self, worker: int, start: int, done: Done) -> None:
        seat = self.workers.seat(worker)
        self.callbacks.on_lease_done(
            LeaseDone(
                self.job.number,
                seat.pid,
                start,
                done.upto,
                self.job.plan.count(start, done.upto),
                done.seconds,
                self.done_rows,
                time.monotonic(),
                done.measures,
                self.job.plan.first_row(start),
                seat.node,
            )
        )

    def _handle_loss(self, worker: int, lost: Lost) -> None:
        self._forget(worker)
        lease = self.scheduler.get(lost.lease)
        if lease is not None and lease.worker == worker and not lost.kind.travels:
            stop = min(lost.committed, lease.stop)
            self._accept(Segment(self.job.number, lease.id, lease.start, stop, lost.kind, ()))
        loss, seat = self.scheduler.worker_lost(worker, lost.running), self.workers.seat(worker)
        self.callbacks.on_worker_died(
            WorkerDied(
                self.job.number,
                seat.pid,
                lost.signal,
                lost.exit_code,
                loss.chunk,
                seat.node,
            )
        )
        if lost.signal == signal.SIGBUS:
            self._check_files()
        if lost.unprotected and loss.chunk is not None:
            raise self._loss_error(worker, lost, loss.chunk, loss.attempts, half_changed=True)
        if loss.exhausted:
            error = self._loss_error(worker, lost, loss.chunk, loss.attempts)
            if loss.chunk is None:
                raise error
            self._fail(worker, loss.chunk, error)
        elif loss.chunk is not None:
            if self.skips is not None:
                self.skips.void(loss.chunk)
            self.callbacks.on_chunk_retried(
                ChunkRetried(
                    self.job.number,
                    loss.chunk,
                    self.job.plan.original_rows(loss.chunk),
                    loss.attempts,
                    how_it_ended(lost),
                )
            )

    def _loss_error(
        self, worker: int, lost: Lost, chunk: int | None, attempts: int, half_changed: bool = False
    ) -> Exception:
        how = how_it_ended(lost)
        if chunk is None:
            return WorkerStartError(
                f"workers end before they run anything ({how}). Check that the program can be imported, and "
                "that memory is free."
            )
        rows = self.job.plan.original_rows(chunk)
        text = f"{self.job.plan.describe(chunk)} (chunk {chunk}) of {self.job.name}"
        if lost.reason:
            times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            return ChunkTimeout(f"{text}: stopped after {times}: {lost.reason}.", rows)
        if half_changed:
            return WorkerLost(
                f"{text}: the worker ({self.workers.seat(worker).text}) died: {how}{_peak(lost)}. The function "
                "works in place, and these rows may be partly changed. They have no undo copy (undo=False, "
                "or chunks too large), so the chunk was not run again. Restore the rows, or use a smaller "
                "chunksize.",
                rows,
                lost.signal,
                lost.exit_code,
                lost.peak_memory or None,
            )
        return WorkerLost(
            f"{text}: {_deaths(attempts, self.workers.seat(worker).text)} {how}{_peak(lost)}. The function "
            "crashes on these rows, or needs more memory than is free: run it on these rows alone, or use a "
            "smaller chunksize.",
            rows,
            lost.signal,
            lost.exit_code,
            lost.peak_memory or None,
        )


def how_it_ended(lost: Lost) -> str:
    """How a worker ended, in words."""
    if lost.reason:
        return lost.reason
    if lost.signal is not None:
        try:
            name = signal.Signals(lost.signal).name
        except ValueError:
            name = f"signal {lost.signal}"
        return f"killed by {name}" + (" (the out-of-memory killer uses it)" if name == "SIGKILL" else "")
    if lost.exit_code is not None:
        return f"exited with code {lost.exit_code}"
    return "ended for an unknown reason"


def _deaths(attempts: int, worker: str) -> str:
    if attempts == 1:
        return f"the worker ({worker}) died:"
    return f"{attempts} workers died, the last one ({worker}):"


def _peak(lost: Lost) -> str:
    return f", with a peak memory of {lost.peak_memory / 2**20:.0f} MiB" if lost.peak_memory else ""


def _borders(job: Job) -> tuple[list[int], list[int]]:
    """The chunks with which the rows of another folder begin, and those of another block."""
    if job.source.order is not None:
        return [], []
    rows, chunk_from = rows_of(job.source.data), job.plan.chunk_from
    return sorted(set(map(chunk_from, rows.borders))), sorted(set(map(chunk_from, rows.blocks)))
