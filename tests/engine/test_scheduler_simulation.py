"""The scheduler against simulated workers: random deaths, late answers, shrinking leases, slow consumers."""

import sys

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tdmap.runtime import scheduler as scheduler_module
from tdmap.runtime.scheduler import Scheduler, SchedulerPolicy


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as a driver would, and keeps its own books of what was committed."""

    @initialize(
        num_chunks=st.integers(0, 60),
        num_workers=st.integers(1, 5),
        ordered=st.booleans(),
        window=st.integers(1, 12),
        resumed=st.sets(st.integers(0, 59)),
    )
    def start(self, num_chunks, num_workers, ordered, window, resumed):
        self.ordered, self.window = ordered, window
        self.policy = SchedulerPolicy(
            retries=10**6, ordered=ordered, window=window if ordered else 1 << 62, target_seconds=0.05
        )
        resumed = {chunk for chunk in resumed if chunk < num_chunks}
        self.scheduler = Scheduler(
            num_chunks, num_workers, self.policy, [(chunk, chunk + 1) for chunk in sorted(resumed)]
        )
        self.num_chunks = num_chunks
        self.alive = list(range(num_workers))
        self.next_worker = num_workers
        self.now = 0.0
        self.committed = set(resumed)
        self.leases = {}  # id -> [worker, cursor, stop]
        self.old_ids = []
        self.released = 0
        self.consumed = 0

    def _commit(self, lease_id, upto):
        lease = self.leases[lease_id]
        for chunk in range(lease[1], upto):
            assert chunk not in self.committed, f"chunk {chunk} committed twice"
            self.committed.add(chunk)
        lease[1] = max(lease[1], upto)

    def _drop(self, lease_id):
        del self.leases[lease_id]
        self.old_ids.append(lease_id)

    @rule(data=st.data())
    def ask(self, data):
        self._lease(data.draw(st.sampled_from(self.alive)), data.draw(st.sampled_from([None, 1, 3])))

    @rule()
    def ask_for_all(self):
        for worker in self.alive:
            self._lease(worker)

    def _lease(self, worker, limit=None):
        lease = self.scheduler.lease(worker, self.now, limit)
        if lease is None:
            return
        assert lease.start < lease.stop
        chunks = set(range(lease.start, lease.stop))
        assert not chunks & self.committed, "a committed chunk was given out again"
        for _, cursor, stop in self.leases.values():
            assert not chunks & set(range(cursor, stop)), "a chunk is in two hands"
        if self.ordered:
            assert lease.stop <= self.consumed + self.window
        self.leases[lease.id] = [worker, lease.start, lease.stop]

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=st.floats(0, 1))
    def answer(self, data, seconds):
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        _, cursor, stop = self.leases[lease_id]
        upto = data.draw(st.integers(cursor, stop))
        self.now += seconds
        assert self.scheduler.done(lease_id, upto, seconds, self.now)
        self._commit(lease_id, upto)
        self._drop(lease_id)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def partial(self, data):
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        _, cursor, stop = self.leases[lease_id]
        upto = data.draw(st.integers(cursor, stop))
        assert self.scheduler.commit(lease_id, upto)
        self._commit(lease_id, upto)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        _, cursor, stop = self.leases[lease_id]
        new_stop = data.draw(st.integers(cursor, stop))
        self.scheduler.shrunk(lease_id, new_stop)
        self.leases[lease_id][2] = new_stop
        if self.scheduler.get(lease_id) is None:
            self._drop(lease_id)

    @rule(data=st.data())
    def die(self, data):
        worker = data.draw(st.sampled_from(self.alive))
        held = [i for i, lease in self.leases.items() if lease[0] == worker]
        running = None
        if held:
            _, cursor, stop = self.leases[data.draw(st.sampled_from(held))]
            if cursor < stop and data.draw(st.booleans()):
                running = data.draw(st.integers(cursor, stop - 1))
        before = self.scheduler.attempts(running) if running is not None else 0
        loss = self.scheduler.worker_lost(worker, running)
        assert loss.chunk == running
        if running is not None:
            assert loss.attempts == before + 1
        for lease_id in held:
            self._drop(lease_id)
        self.alive.remove(worker)
        self.alive.append(self.next_worker)
        self.next_worker += 1

    @precondition(lambda self: self.old_ids)
    @rule(data=st.data())
    def late_answer(self, data):
        lease_id = data.draw(st.sampled_from(self.old_ids))
        assert not self.scheduler.done(lease_id, self.num_chunks, 0.1, self.now)
        assert not self.scheduler.commit(lease_id, self.num_chunks)

    @rule()
    def straggle(self):
        lease = self.scheduler.straggler(self.now)
        if lease is not None:
            assert self.scheduler.pending == 0
            assert lease.stop - lease.cursor >= 2
            assert self.scheduler.get(lease.id) is lease

    @rule(step=st.integers(1, 10))
    def consume(self, step):
        start, stop = self.scheduler.release()
        assert start == self.released
        assert all(chunk in self.committed for chunk in range(start, stop))
        self.released = stop
        self.consumed = min(self.released, self.consumed + step)
        self.scheduler.consumed(self.consumed)

    @invariant()
    def books_agree(self):
        if not hasattr(self, "scheduler"):
            return
        held = sum(stop - cursor for _, cursor, stop in self.leases.values())
        assert self.scheduler.committed == len(self.committed)
        assert self.scheduler.in_flight == held
        assert self.scheduler.pending + held + len(self.committed) == self.num_chunks
        assert self.scheduler.finished == (len(self.committed) == self.num_chunks)
        if self.ordered:
            assert self.scheduler.in_flight <= self.window

    def teardown(self):
        """Whatever has happened: workers that behave from now on end the job."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(10 * self.num_chunks + 10):
            if self.scheduler.finished:
                break
            self.consumed = self.scheduler.release()[1]
            self.scheduler.consumed(self.consumed)
            for lease_id in list(self.leases):
                stop = self.leases[lease_id][2]
                self.scheduler.done(lease_id, stop, 0.01, self.now)
                self._commit(lease_id, stop)
                self._drop(lease_id)
            for worker in self.alive:
                lease = self.scheduler.lease(worker, self.now)
                if lease is not None:
                    self.leases[lease.id] = [worker, lease.start, lease.stop]
        assert self.scheduler.finished
        assert self.committed == set(range(self.num_chunks))
        assert self.scheduler.release()[1] == self.num_chunks


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSchedulerUnderFaults = SchedulerMachine.TestCase


def run_to_end(scheduler, workers, seconds_of, now=0.0):
    """Workers with a clock of their own; returns each worker's time of finishing."""
    clocks = dict.fromkeys(workers, now)
    while not scheduler.finished:
        worker = min(clocks, key=clocks.get)
        lease = scheduler.lease(worker, clocks[worker])
        if lease is None:
            clocks[worker] = min(t for w, t in clocks.items() if w != worker) + 1e-6
            continue
        took = sum(seconds_of(chunk) for chunk in range(lease.start, lease.stop))
        clocks[worker] += took
        scheduler.done(lease.id, lease.stop, took, clocks[worker])
    return clocks


def test_leases_grow_to_tens_of_milliseconds_for_tiny_chunks():
    scheduler = Scheduler(1_000_000, 2)
    sizes = []
    now = 0.0
    for _ in range(12):
        lease = scheduler.lease(0, now)
        sizes.append(lease.stop - lease.start)
        now += 1e-5 * sizes[-1]
        scheduler.done(lease.id, lease.stop, 1e-5 * sizes[-1], now)
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert 2000 <= sizes[-1] <= 4000  # 30 ms of 10 us chunks


def test_slow_chunks_are_leased_one_by_one():
    scheduler = Scheduler(100, 4)
    for worker in range(4):
        lease = scheduler.lease(worker, 0.0)
        scheduler.done(lease.id, lease.stop, 5.0, 5.0)
    lease = scheduler.lease(0, 5.0)
    assert lease.stop - lease.start == 1


def test_last_leases_shrink_so_that_workers_end_together():
    ends = run_to_end(Scheduler(10_000, 4), range(4), lambda chunk: 1e-4)
    assert max(ends.values()) - min(ends.values()) < 0.03


def test_an_idle_worker_gets_half_of_a_long_lease():
    scheduler = Scheduler(64, 2, SchedulerPolicy(target_seconds=1.0))
    first = scheduler.lease(0, 0.0)
    scheduler.done(first.id, first.stop, 0.001, 0.001)
    while (lease := scheduler.lease(0, 0.001)) is not None:
        assert scheduler.straggler(now=5.0) is None or not scheduler.pending  # what is pending is given out first
    while (lease := scheduler.lease(1, 0.001)) is not None:
        scheduler.done(lease.id, lease.stop, 0.001, 0.001)
    held = scheduler.leases_of(0)
    assert held and scheduler.pending == 0
    asked = scheduler.straggler(now=5.0)
    assert asked is not None and asked.worker == 0
    assert scheduler.straggler(now=5.0) is not asked  # it is asked once
    middle = (asked.start + asked.stop) // 2
    stop = asked.stop
    scheduler.shrunk(asked.id, middle)
    lease = scheduler.lease(1, 5.0)
    assert middle <= lease.start < stop
    scheduler.shrunk(lease.id, lease.start)
    assert scheduler.get(lease.id) is None and not scheduler.leases_of(1)


def test_a_worker_that_has_answered_is_asked_again():
    scheduler = Scheduler(9, 1, SchedulerPolicy(target_seconds=1.0))
    scheduler.done(scheduler.lease(0, 100.0).id, 1, 0.001, 100.0)
    leases = [scheduler.lease(worker, 100.0) for worker in range(4)]
    assert scheduler.pending == 0
    assert scheduler.straggler(100.5) is None  # their time is not over
    assert [scheduler.straggler(105.0) for _ in range(3)] == [*leases[:2], None]
    scheduler.shrunk(leases[0].id, leases[0].stop)
    assert scheduler.straggler(105.0) is leases[0]


def test_a_chunk_that_killed_its_worker_runs_alone():
    scheduler = Scheduler(100, 1, SchedulerPolicy(retries=2, target_seconds=10))
    lease = scheduler.lease(0, 0.0)
    scheduler.done(lease.id, lease.stop, 0.001, 0.0)
    lease = scheduler.lease(0, 0.0)
    assert lease.stop - lease.start > 3
    victim = lease.start + 2
    scheduler.commit(lease.id, victim - 1)  # the results of the one before have not arrived
    loss = scheduler.worker_lost(0, victim)
    assert (loss.chunk, loss.attempts, loss.exhausted) == (victim, 1, False)
    assert scheduler.pending == 100 - scheduler.committed
    lost = scheduler.lease(1, 0.0)
    assert (lost.start, lost.stop) == (victim - 1, victim)
    scheduler.done(lost.id, lost.stop, 0.001, 0.0)
    again = scheduler.lease(1, 0.0)
    assert (again.start, again.stop) == (victim, victim + 1)
    assert not scheduler.worker_lost(1, victim).exhausted
    assert scheduler.lease(2, 0.0).start == victim
    assert scheduler.worker_lost(2, victim).exhausted


def test_nothing_is_leased_beyond_the_window():
    scheduler = Scheduler(5, 2, SchedulerPolicy(ordered=True, window=1))
    assert scheduler.lease(0, 0.0).stop == 1
    assert scheduler.lease(1, 0.0) is None
    scheduler.consumed(1)
    assert scheduler.lease(1, 0.0).start == 1


def test_the_first_chunk_of_a_second_lease_is_queued_once():
    """Its worker dies in it, before anything is known of the lease before."""
    scheduler = Scheduler(100, 1, SchedulerPolicy(target_seconds=10))
    scheduler.done(scheduler.lease(0, 0.0).id, 1, 0.001, 0.0)
    first, second = scheduler.lease(0, 0.0), scheduler.lease(0, 0.0)
    assert scheduler.worker_lost(0, second.start).chunk == first.stop == second.start
    assert scheduler.pending == 99
    assert leased(scheduler)[:2] == [(first.start, first.stop), (second.start, second.start + 1)]


def test_workers_that_die_before_running_anything_end_the_job():
    scheduler = Scheduler(10, 2, SchedulerPolicy(retries=2))
    outcomes = []
    for worker in range(20):
        scheduler.lease(worker, 0.0)
        outcomes.append(scheduler.worker_lost(worker, None).exhausted)
    assert outcomes[0] is False and outcomes[-1] is True


def test_workers_that_die_between_leases_that_others_end_end_no_job():
    scheduler = Scheduler(100, num_workers=1)
    for _ in range(50):
        lease = scheduler.lease(0, now=0.0)
        scheduler.commit(lease.id, lease.start + 1)
        assert not scheduler.worker_lost(0, None).exhausted


def leased(scheduler, seconds=0.0):
    """All leases of one worker, whose chunks take so long."""
    found = []
    while (lease := scheduler.lease(0, 0.0)) is not None:
        found.append((lease.start, lease.stop))
        scheduler.done(lease.id, lease.stop, seconds * (lease.stop - lease.start), 0.0)
    return found


def test_leases_end_at_borders_and_where_chunks_change_their_size():
    scheduler = Scheduler(4, num_workers=1, borders=[4, 100, 130])
    scheduler.done(scheduler.lease(0, now=0.0).id, 2, 0.0, 0.0)
    scheduler.extend(400, 1.0, SchedulerPolicy())
    found = leased(scheduler)
    assert {4, 100, 130} <= {stop for _, stop in found} and all(start < stop for start, stop in found)
    scheduler = Scheduler(40, num_workers=1)
    scheduler.done(scheduler.lease(0, now=0.0).id, 1, 0.0, 0.0)
    scheduler.extend(400, 1.0, SchedulerPolicy())
    assert 40 in {stop for _, stop in leased(scheduler)}


def test_leases_are_sized_by_the_work_of_the_chunks_that_come():
    """The first chunks are a tenth of the later ones."""
    scheduler = Scheduler(4, num_workers=1, policy=SchedulerPolicy(target_seconds=1.0))
    for _ in range(4):
        lease = scheduler.lease(0, now=0.0, limit=1)
        assert lease.stop - lease.start == 1
        scheduler.done(lease.id, lease.stop, 0.05, now=0.0)
    scheduler.extend(400, 0.1, SchedulerPolicy(target_seconds=1.0))
    sizes = [stop - start for start, stop in leased(scheduler, 0.5)]
    assert sizes[0] == 2 and max(sizes) == 2


def test_blocks_end_where_the_consumer_lags_behind():
    policy = SchedulerPolicy(ordered=True, window=6)
    scheduler = Scheduler(40, num_workers=1, policy=policy, blocks=[10, 20, 30, 40])
    assert scheduler.lease(0, now=0.0).stop == 6


def test_no_answer_about_a_lease_reaches_beyond_it():
    scheduler = Scheduler(100, num_workers=1)
    scheduler.done(scheduler.lease(0, now=0.0).id, 1, 0.0, 0.0)
    lease = scheduler.lease(0, now=0.0)
    assert (lease.start, lease.stop) == (1, 9)
    scheduler.commit(lease.id, 5)
    scheduler.shrunk(lease.id, 3)  # too late: these are done
    assert (lease.stop, scheduler.committed, scheduler.pending) == (5, 5, 95)
    scheduler.commit(lease.id, 9)
    assert scheduler.committed == 5


def test_the_last_chunks_are_not_taken_in_advance():
    scheduler = Scheduler(4, num_workers=2)
    scheduler.done(scheduler.lease(0, now=0.0).id, 1, 0.0, 0.0)
    assert scheduler.lease(0, now=0.0) is not None
    assert scheduler.lease(0, now=0.0) is None and scheduler.pending == 2
    assert scheduler.lease(1, now=0.0) is not None


def test_overdue_names_the_workers_past_the_timeout():
    scheduler = Scheduler(10, 2, SchedulerPolicy(timeout=2.0))
    running = {7: (0, 10.0), 8: (1, 11.5)}
    assert scheduler.overdue(running, now=12.5) == [7]
    assert Scheduler(10, 2).overdue(running, now=1e9) == []


def test_a_cancelled_scheduler_gives_out_nothing():
    scheduler = Scheduler(10, 2)
    scheduler.cancel()
    assert scheduler.lease(0, 0.0) is None
    assert scheduler.straggler(1e9) is None


def lines_run(count):
    """How many lines of Python the scheduler runs for so many chunks, each a lease of its own."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line" and frame.f_code.co_filename == scheduler_module.__file__
        return trace

    scheduler = Scheduler(count, 8, SchedulerPolicy(max_lease=1))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        worker = 0
        while not scheduler.finished:
            lease = scheduler.lease(worker, 0.0)
            scheduler.done(lease.id, lease.stop, 1e-5, 0.0)
            worker = (worker + 1) % 8
    finally:
        sys.settrace(before)
    return lines


def test_the_work_for_a_chunk_does_not_grow_with_their_number():
    few, many = lines_run(500) / 500, lines_run(5000) / 5000
    assert many < 1.05 * few < 200
