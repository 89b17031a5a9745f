"""How many workers one driver can feed: the real scheduler, and the real driver, with simulated workers.

    python -m benchmarks.simulation [--workers 10000] [--rows 1000000000]

A simulated worker is an entry in a queue of events: its lease ends at a simulated time, or it dies before. Chunks have
log-normal times, one worker in twenty is three times slower, and a worker dies about once in 500 leases. The clock is
simulated, the processor time of the scheduler and of the driver is real. Memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import multiprocessing
import random
import resource
import time
from pathlib import Path
from typing import Any

import torch

from tdmap.events import CallbackList
from tdmap.job import Job, Source
from tdmap.output.values import Collect
from tdmap.plan import ChunkPlan
from tdmap.runtime.driver import LEASE_COST, Driver
from tdmap.runtime.executors.base import Workers
from tdmap.runtime.scheduler import Lease, Scheduler, SchedulerPolicy
from tdmap.runtime.wire.messages import Done, Joined, Lost, Segment
from tdmap.sink import Kind
from tdmap.tuning import DEFAULT

CHUNK_ROWS = 1000
CHUNK_SECONDS = 0.01
DEATHS = 1 / 500
"""Of leases that end with the death of their worker."""

WANTED_RATE = 50_000


def speed(worker: int) -> float:
    """How much slower a worker is than most."""
    return 3.0 if worker % 20 == 7 else 1.0


def schedule(rows: int, workers: int) -> dict[str, Any]:
    """A whole job with nothing but the scheduler: real seconds for each lease, failures included."""
    chunks, rng = rows // CHUNK_ROWS, random.Random(5)
    scheduler = Scheduler(chunks, workers, SchedulerPolicy(retries=1000, target_seconds=DEFAULT.lease_seconds))
    times = [rng.lognormvariate(0.0, 0.5) for _ in range(4096)]
    deaths = [rng.random() < DEATHS for _ in range(4096)]
    events: list[tuple[float, int, Lease, float]] = []
    now, leases, lost, gaps, fresh = 0.0, 0, 0, 0, workers
    done = [0] * chunks if chunks <= 1_000_000 else None
    began = time.process_time()

    def give(worker: int, now: float) -> None:
        nonlocal leases
        lease = scheduler.lease(worker, now)
        if lease is not None:
            seconds = (lease.stop - lease.start) * CHUNK_SECONDS * times[leases & 4095] * speed(worker)
            heapq.heappush(events, (now + seconds, lease.id, lease, seconds))
            leases += 1

    for worker in range(workers):
        give(worker, now)
    while events:
        now, number, lease, seconds = heapq.heappop(events)
        worker = lease.worker
        if deaths[number & 4095]:
            half = lease.start + (lease.stop - lease.start) // 2
            _tick(done, lease.start, half)
            scheduler.commit(number, half)
            scheduler.worker_lost(worker, half)
            lost, worker, fresh = lost + 1, fresh, fresh + 1
        else:
            _tick(done, lease.start, lease.stop)
            scheduler.done(number, lease.stop, seconds, now)
        gaps = max(gaps, len(scheduler._done.islands))
        give(worker, now)
    elapsed = time.process_time() - began
    assert scheduler.finished, "chunks were lost"
    assert done is None or set(done) == {1}, "chunks were done twice"
    return {
        "rows": rows,
        "workers": workers,
        "leases": leases,
        "deaths": lost,
        "leases_per_second": leases / elapsed,
        "microseconds_per_lease": elapsed / leases * 1e6,
        "islands": gaps,
        "simulated_seconds": now,
    }


def _tick(done: list[int] | None, start: int, stop: int) -> None:
    if done is not None:
        for chunk in range(start, stop):
            done[chunk] += 1


class SimulatedWorkers(Workers):
    """Workers that exist as events; `wait` moves the simulated clock to the next of them."""

    kind = "simulated"
    forks = True

    def __init__(self, job: Job, workers: int) -> None:
        self._job = job
        self.size = workers
        self._rng = random.Random(5)
        self._times = [self._rng.lognormvariate(0.0, 0.5) for _ in range(4096)]
        self._events: list[tuple[float, int, int, Lease]] = []
        self._free: dict[int, float] = {}
        self._joining = list(range(workers))
        self._fresh = workers
        self._dead: set[int] = set()
        self.now = 0.0
        self.leases = 0

    def open(self, sink: Any) -> None: ...

    def allocate(self, dtype: Any, shape: Any) -> Any: ...

    def close(self, ok: bool, changed: bool) -> None: ...

    def output(self, writer: Any) -> None: ...

    def replan(self, plan: Any) -> None: ...

    def grant(self, worker: int, lease: Lease) -> None:
        self.leases += 1
        seconds = (lease.stop - lease.start) * CHUNK_SECONDS * self._times[self.leases & 4095] * speed(worker)
        ends = max(self._free.get(worker, 0.0), self.now) + seconds
        self._free[worker] = ends
        heapq.heappush(self._events, (ends, lease.id, worker, lease))

    def wait(self, timeout: float) -> list[Any]:
        if self._joining:
            joined, self._joining = self._joining, []
            return [(worker, Joined()) for worker in joined]
        found: list[Any] = []
        while self._events and len(found) < 64:  # what a busy driver finds in its pipes at once
            self.now, number, worker, lease = heapq.heappop(self._events)
            if worker in self._dead:
                continue
            if self._rng.random() < DEATHS:
                self._dead.add(worker)
                self._joining.append(self._fresh)
                self._fresh += 1
                found.append((worker, Lost(9, None, lease.start, number, lease.start, Kind.NONE, 0, "", False)))
                continue
            seconds = (lease.stop - lease.start) * CHUNK_SECONDS
            segment = Segment(self._job.number, number, lease.start, lease.stop, Kind.NONE, ())
            found.append((worker, Done(self._job.number, number, lease.stop, seconds, False, segment, 0)))
        return found


def drive(rows: int, workers: int) -> dict[str, Any]:
    """A whole job with the driver: its loop, its events and its books."""
    data = torch.empty(1, dtype=torch.uint8).expand(rows)
    job = Job(Source(data), ChunkPlan(rows, CHUNK_ROWS, 0), len)
    team = SimulatedWorkers(job, workers)
    driver = Driver(job, Collect(), team, CallbackList([]), row_bytes=1)
    began = time.process_time()
    for _ in driver.run():
        pass
    elapsed = time.process_time() - began
    assert driver.scheduler.finished
    return {
        "rows": rows,
        "workers": workers,
        "leases": team.leases,
        "leases_per_second": team.leases / elapsed,
        "microseconds_per_lease": elapsed / team.leases * 1e6,
        "target_seconds": max(DEFAULT.lease_seconds, LEASE_COST * workers),
    }


def _measured(target: Any, arguments: tuple[Any, ...], pipe: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = target(*arguments)
    found["memory_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    pipe.send(found)


def alone(target: Any, *arguments: Any) -> dict[str, Any]:
    """What a function returns in a process of its own, and how much memory that has gained."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(target, arguments, theirs))
    process.start()
    theirs.close()
    found: dict[str, Any] = ours.recv()
    process.join()
    return found


def main() -> None:
    """Print the tables, and write them into benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--out", type=Path, default=None, help="write the figures there, as JSON")
    options = parser.parse_args()
    scheduled = [alone(schedule, rows, options.workers) for rows in (options.rows // 10, options.rows)]
    print(f"the scheduler alone, {options.workers:,} workers, one death in {1 / DEATHS:.0f} leases")
    for one in scheduled:
        print(
            f"  {one['rows']:>13,} rows  {one['leases']:>9,} leases  {one['deaths']:>6,} deaths  "
            f"{one['leases_per_second']:>9,.0f} leases/s  {one['microseconds_per_lease']:5.1f} us each  "
            f"{one['islands']:>6,} gaps  {one['memory_mib']:6.1f} MiB more"
        )
    counts = [count for count in (10, 100, 1000, options.workers) if count <= options.workers]
    print("the driver: its loop, books and messages, without a wire")
    driven = [alone(drive, options.rows, count) for count in counts]
    for one in driven:
        need = one["workers"] / one["target_seconds"]
        print(
            f"  {one['workers']:>6,} workers  {one['leases_per_second']:>9,.0f} leases/s it can do, {need:>8,.0f} "
            f"wanted at {one['target_seconds']:.2f} s a lease: busy {need / one['leases_per_second']:6.1%}"
        )
    most = driven[-1]["leases_per_second"] * DEFAULT.lease_seconds
    print(f"  at {DEFAULT.lease_seconds} s a lease it would be saturated at {most:,.0f} workers: leases grow with them")
    rate = scheduled[-1]["leases_per_second"]
    growth = scheduled[-1]["memory_mib"] - scheduled[0]["memory_mib"]
    verdict = "reached" if rate >= WANTED_RATE else "MISSED"
    print(f"wanted: {WANTED_RATE:,} leases/s: {verdict} ({rate:,.0f}); ten times the rows take {growth:+.1f} MiB")
    if options.out is not None:
        options.out.write_text(json.dumps({"scheduler": scheduled, "driver": driven}, indent=1))
    assert math.isfinite(rate)


if __name__ == "__main__":
    main()
