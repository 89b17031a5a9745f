"""Who runs which chunks: a state machine without processes, clocks or I/O.

    pending ranges ──lease()──► Lease (worker, start, cursor, stop) ──commit()/done()──► committed ranges
         ▲                        │                                                        │
         ├──── worker_lost() ─────┤  blamed chunk: one more attempt, alone                 ▼
         └──── shrunk() ──────────┘  given back, because another worker idles       release() in order

A *lease* is a run of consecutive chunks that one worker holds. Its size follows the measured time of a chunk, so
that a lease is tens of milliseconds of work whether a chunk takes a microsecond or a minute: the cost of talking
to a worker then vanishes. Near the end leases shrink (guided self-scheduling, Polychronopoulos and Kuck 1987),
and a worker that still holds many chunks while another idles is asked to give half of them back.

Every method takes the time as an argument, so tests drive years of faults in milliseconds.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tdmap.tuning import DEFAULT

NO_LIMIT = 1 << 62
"""More chunks than there are."""


@dataclass(slots=True)
class Lease:
    """A run of chunks `start..stop` in the hands of one worker."""

    id: int
    worker: int
    start: int
    stop: int
    cursor: int
    """First chunk that is not committed yet."""
    granted_at: float
    asked_back: bool = False
    """The worker was asked to give chunks back and has not answered."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What the death of a worker meant for its chunks."""

    chunk: int | None
    """The chunk that was running and has one more failed attempt, or None."""
    attempts: int
    """Failed attempts of that chunk, this one included."""
    exhausted: bool
    """No further attempt is allowed: the job must end."""


@dataclass(frozen=True, slots=True)
class SchedulerPolicy:
    """The knobs of a `Scheduler`; the defaults suit every job."""

    retries: int = 2
    """How often a chunk may run again after its worker died or was stuck."""
    timeout: float | None = None
    """Seconds that one chunk may run, or None."""
    ordered: bool = False
    """Results are released in the order of the chunks, and unreleased work is bounded by `window`."""
    window: int = NO_LIMIT
    """With `ordered`: how many chunks past the last consumed one may be leased."""
    target_seconds: float = DEFAULT.lease_seconds
    """Work that a lease should hold."""
    max_lease: int = NO_LIMIT
    """Most chunks in a lease."""
    depth: int = 2
    """Leases that a worker may hold: one that runs and one that waits for it."""


@dataclass(slots=True)
class ChunkSet:
    """A set of chunk numbers, kept as a front (everything below is in) and the islands beyond it.

    Islands that touch become one: there are no more of them than there are gaps, however long the front stands still.
    """

    front: int = 0
    islands: dict[int, int] = field(default_factory=dict)
    """Where they end, by where they begin."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where they begin, by where they end."""

    def add(self, start: int, stop: int) -> None:
        """Add `start..stop`, which must not be in yet."""
        end = self.islands.pop(stop, None)
        if end is not None:
            del self.ends[end]
            stop = end
        if start == self.front:
            self.front = stop
            return
        begin = self.ends.pop(start, start)
        self.islands[begin] = stop
        self.ends[stop] = begin


class Scheduler:
    """Gives chunks to workers, and decides what happens when one fails.

    Args:
        num_chunks: chunks of the job.
        num_workers: workers that will ask for leases; only a hint for sizing.
        policy: the knobs.
        committed: chunks that an earlier run has committed already, as `merge_ranges` gives them.
        borders: chunks, ascending, at which leases end.
        blocks: chunks, ascending, up to which leases go on where they may.

    Example:
        >>> scheduler = Scheduler(num_chunks=2, num_workers=1)
        >>> lease = scheduler.lease(worker=0, now=0.0)
        >>> scheduler.done(lease.id, lease.stop, seconds=0.1, now=0.1)
        True
        >>> scheduler.committed, scheduler.finished
        (1, False)
    """

    def __init__(
        self,
        num_chunks: int,
        num_workers: int,
        policy: SchedulerPolicy | None = None,
        committed: Iterable[tuple[int, int]] = (),
        borders: Sequence[int] = (),
        blocks: Sequence[int] = (),
    ) -> None:
        self.num_chunks = num_chunks
        self.num_workers = max(num_workers, 1)
        self.policy = policy or SchedulerPolicy()
        self.committed = 0
        self.seconds_per_chunk: float | None = None
        self.borders = borders
        self.blocks = blocks
        self._pending: list[tuple[int, int]] = []
        self._pending_count = 0
        self._leases: dict[int, Lease] = {}
        self._held: dict[int, list[int]] = {}
        self._attempts: dict[int, int] = {}
        self._next_id = 0
        self._last_size = 1
        self._lead, self._weight = 0, 1.0
        self._blameless = 0
        self._done = ChunkSet()
        self._released = 0
        self._consumed = 0
        self._cancelled = False
        self._failed = NO_LIMIT
        position = 0
        for start, stop in committed:
            self._put_back(position, start)
            self._done.add(start, stop)
            self.committed += stop - start
            position = stop
        self._put_back(position, num_chunks)

    # -- what the driver asks ----------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Every chunk is committed."""
        return self.committed == self.num_chunks

    @property
    def in_flight(self) -> int:
        """Chunks that workers hold now."""
        return sum(lease.stop - lease.cursor for lease in self._leases.values())

    @property
    def pending(self) -> int:
        """Chunks that wait for a worker."""
        return self._pending_count

    def holds(self, worker: int) -> bool:
        """Whether `worker` has chunks in hand."""
        return bool(self._held.get(worker))

    def is_full(self, worker: int) -> bool:
        """Whether `worker` holds as many leases as it may."""
        return len(self._held.get(worker, ())) >= self.policy.depth

    def get(self, lease_id: int) -> Lease | None:
        """The lease with this number, while a worker holds it."""
        return self._leases.get(lease_id)

    def leases_of(self, worker: int) -> list[Lease]:
        """The leases that `worker` holds, oldest first."""
        return [self._leases[i] for i in self._held.get(worker, ())]

    def attempts(self, chunk: int) -> int:
        """How often `chunk` has failed so far."""
        return self._attempts.get(chunk, 0)

    def extend(self, num_chunks: int, weight: float, policy: SchedulerPolicy) -> None:
        """There are more chunks than was known at first.

        Args:
            num_chunks: how many there are in all.
            weight: work of a chunk that was known, in chunks of the others.
            policy: the knobs from now on.
        """
        self._lead, self._weight, self.policy = self.num_chunks, weight, policy
        if self.seconds_per_chunk is not None:
            self.seconds_per_chunk /= weight
        if num_chunks > self.num_chunks:
            self._put_back(self.num_chunks, num_chunks)
            self.num_chunks = num_chunks

    def _weight_of(self, chunk: int) -> float:
        return self._weight if chunk < self._lead else 1.0

    # -- giving out --------------------------------------------------------------------------------

    def lease(self, worker: int, now: float, limit: int | None = None) -> Lease | None:
        """The next run of chunks for `worker`, or None when it should wait.

        Args:
            worker: the worker that asks.
            now: the time.
            limit: most chunks to give.
        """
        if not self._pending or self._cancelled:
            return None
        held = self._held.get(worker)
        if held and (self.seconds_per_chunk is None or len(held) >= self.policy.depth):
            return None
        start, stop = self._pending[0]
        horizon = self._consumed + self.policy.window if self.policy.ordered else stop
        horizon = min(horizon, self._failed)
        if start >= horizon:
            return None
        size = self._lease_size(start)
        if held and self._pending_count <= size * self.num_workers:
            return None  # the tail: what is left goes to idle workers
        if limit is not None:
            size = min(size, limit)
        end = min(start + max(size, 1), stop, horizon)
        if self.blocks:  # another worker would read the rest of the block again
            block = bisect.bisect_left(self.blocks, end)
            most = start + min(self.policy.max_lease, NO_LIMIT if limit is None else limit)
            end = min(self.blocks[block] if block < len(self.blocks) else stop, stop, horizon, most)
        if self.borders:  # a lease that lies in one folder opens only that
            border = bisect.bisect_right(self.borders, start)
            end = min(end, self.borders[border]) if border < len(self.borders) else end
        if end < stop:
            heapq.heapreplace(self._pending, (end, stop))
        else:
            heapq.heappop(self._pending)
        self._pending_count -= end - start
        self._next_id += 1
        lease = Lease(self._next_id, worker, start, end, start, now)
        self._leases[lease.id] = lease
        if held is None:
            self._held[worker] = [lease.id]
        else:
            held.append(lease.id)
        return lease

    def _lease_size(self, start: int) -> int:
        if self.seconds_per_chunk is None:
            return 1
        seconds = self.seconds_per_chunk * self._weight_of(start)
        wanted = int(self.policy.target_seconds / max(seconds, 1e-9))
        fair = -(-self._pending_count // (2 * self.num_workers))
        # No faster than eightfold: the first chunks (cold caches, lazy imports) say little about the rest.
        size = max(min(wanted, fair, 8 * self._last_size, self.policy.max_lease), 1)
        self._last_size = max(size, self._last_size // 2)
        return size

    # -- coming back -------------------------------------------------------------------------------

    def commit(self, lease_id: int, upto: int) -> bool:
        """The chunks of a lease below `upto` are safe. False when the lease is not (or no longer) held."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        upto = min(upto, lease.stop)
        if upto > lease.cursor:
            self._done.add(lease.cursor, upto)
            self.committed += upto - lease.cursor
            lease.cursor = upto
            self._blameless = 0
        return True

    def done(self, lease_id: int, upto: int, seconds: float, now: float) -> bool:
        """A worker has ended a lease: chunks below `upto` are committed, the others go back to the queue.

        Args:
            lease_id: the lease.
            upto: one past the last chunk that was committed.
            seconds: time that the worker spent.
            now: the time.

        Returns:
            False for an answer that comes too late to count (its lease was taken away).
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        ran = upto - lease.start
        self.commit(lease_id, upto)
        if ran > 0:
            sample = max(seconds, 0.0) / (ran * self._weight_of(lease.start))
            known = self.seconds_per_chunk
            self.seconds_per_chunk = sample if known is None else 0.5 * (known + sample)
        self._end(lease)
        return True

    def shrunk(self, lease_id: int, new_stop: int) -> None:
        """A worker gives back the chunks of a lease from `new_stop` on."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        lease.asked_back = False
        new_stop = max(new_stop, lease.cursor)
        if new_stop < lease.stop:
            self._put_back(new_stop, lease.stop)
            lease.stop = new_stop
        if lease.start == lease.stop:
            self._end(lease)

    def worker_lost(self, worker: int, running: int | None) -> Loss:
        """A worker is gone: its uncommitted chunks go back, and the one that was running is blamed.

        Args:
            worker: the worker.
            running: the chunk that it ran when it ended, or None when it ran none.
        """
        blamed: int | None = None
        for lease_id in list(self._held.get(worker, ())):
            lease = self._leases[lease_id]
            if running is not None and lease.cursor <= running < lease.stop:
                blamed = running
                self._put_back(lease.cursor, running)
                self._put_back(running, running + 1)  # alone, so that a second death costs no other chunk
                self._put_back(running + 1, lease.stop)
                lease.stop = lease.cursor
            self._end(lease)
        self._held.pop(worker, None)
        if blamed is None:
            self._blameless += 1
            patience = 2 * self.num_workers + self.policy.retries
            return Loss(None, 0, exhausted=self._blameless > patience)
        attempts = self._attempts[blamed] = self._attempts.get(blamed, 0) + 1
        return Loss(blamed, attempts, exhausted=attempts > self.policy.retries)

    def failed(self, worker: int, chunk: int) -> None:
        """A chunk has failed for good: nothing from it on is given out, and its worker's chunks go back."""
        self._failed = min(self._failed, chunk)
        for lease in self.leases_of(worker):
            self._end(lease)

    @property
    def is_stuck(self) -> bool:
        """Whether a chunk has failed, and those before it are released, or no worker runs any."""
        return self._released >= self._failed or not self._leases

    def _end(self, lease: Lease) -> None:
        self._put_back(lease.cursor, lease.stop)
        del self._leases[lease.id]
        held = self._held.get(lease.worker)
        if held is not None:
            held.remove(lease.id)
            if not held:
                del self._held[lease.worker]

    def _put_back(self, start: int, stop: int) -> None:
        """Queue the chunks `start..stop`, if there are any."""
        if stop > start:
            heapq.heappush(self._pending, (start, stop))
            self._pending_count += stop - start

    # -- stragglers, clocks, order -----------------------------------------------------------------

    def straggler(self, now: float) -> Lease | None:
        """The lease that should be shared, when nothing is pending and a worker idles; None when none should.

        The caller asks its worker to give chunks back, and reports them with `shrunk`.
        """
        if self._pending or self._cancelled:
            return None
        best: Lease | None = None
        for lease in self._leases.values():
            left = lease.stop - lease.cursor
            if left < 2 or lease.asked_back:
                continue
            overdue = now - lease.granted_at > self.policy.target_seconds
            long = left * (self.seconds_per_chunk or 0.0) > self.policy.target_seconds / 4
            if (overdue or long) and (best is None or left > best.stop - best.cursor):
                best = lease
        if best is not None:
            best.asked_back = True
        return best

    def overdue(self, running: Mapping[int, tuple[int, float]], now: float) -> list[int]:
        """Workers whose running chunk has exceeded the timeout.

        Args:
            running: for each busy worker, its chunk and the time when that began.
            now: the time, on the same clock.
        """
        limit = self.policy.timeout
        if limit is None:
            return []
        return [worker for worker, (_, since) in running.items() if now - since > limit]

    def release(self) -> tuple[int, int]:
        """The chunks `start..stop` that have become next in order since the last call (often empty)."""
        start, self._released = self._released, self._done.front
        return start, self._released

    def consumed(self, upto: int) -> None:
        """The consumer has taken the results of every chunk below `upto`: the window moves on."""
        self._consumed = upto

    def cancel(self) -> None:
        """Give out nothing any more."""
        self._cancelled = True
