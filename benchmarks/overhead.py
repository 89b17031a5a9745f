"""What safety costs: each feature on and off, in turns, on the same data.

    python -m benchmarks.overhead --rows 60_000 --rounds 5

- the journal (`resume=True`) beside a plain run into the same kind of folder, and beside a plain in-place pass; also
  over rows that were just written, which must reach the disk before the time of their file tells them apart;
- the journal of a run that is longer than the interval between two syncs (`--long`);
- the undo buffer beside `undo=False`, on a memory-bound pass that inverts pictures in place, at two chunk sizes;
- retries bookkeeping beside `retries=0`, and seeding beside none;
- the profiler, at the default chunk and at 16 rows;
- leases of the scheduler alone, as chunks a second with leases of one chunk.

A ratio is time with the feature over time without. Prints a table and writes `overhead.json` and `.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tdmap
from benchmarks._harness import RESULTS, Benchmark, Stopwatch
from benchmarks._workload import Workload, invert_rows, normalise_rows
from tdmap.memory.files import written_at
from tdmap.run import disk
from tdmap.runtime.scheduler import Scheduler, SchedulerPolicy
from tdmap.tuning import DEFAULT, use
from tensordict_lite import TensorDict

JOURNAL_WANTED = 1.03
UNDO_WANTED = 1.10
PROFILER_WANTED = 1.02
PROFILER_SMALL_WANTED = 1.05
PASSES = 8
SCHEDULER_WANTED = 100_000
REPEATS = 10


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=float, default=16, help="seconds of the long journalled run; 0: none")
    parser.add_argument("--only", help="regular expression on the names of cases")
    parser.add_argument("--folder", type=Path, help="scratch folder; a temporary one if not given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    torch.set_num_threads(1)
    scratch = options.folder or Path(tempfile.mkdtemp(prefix="overhead-"))
    work = Workload(scratch, options.rows, options.workers)
    bench = Benchmark("overhead", title=f"the cost of safety, {options.rows:,} rows, {options.workers} workers")
    bench.settings = {"rows": options.rows, "workers": options.workers, "rounds": options.rounds}
    try:
        add_journal(bench, work)
        if options.long:
            add_long_journal(bench, work, options.long)
        add_undo(bench, work)
        add_bookkeeping(bench, work)
        add_profiler(bench, work)
        bench.run(options.rounds, only=options.only)
        bench.settings["scheduler"] = scheduler_rate()
        bench.report(options.results)
        print_scheduler(bench.settings["scheduler"])
    finally:
        work.close()


def _pair(
    bench: Benchmark, work: Workload, name: str, off: Callable[[], float], on: Callable[[], float], **how: Any
) -> None:
    bench.add(f"{name}, without", off, units=work.rows, kind="floor", group=name)
    bench.add(f"{name}, with", on, units=work.rows, against=f"{name}, without", measure="time", group=name, **how)


def add_journal(bench: Benchmark, work: Workload) -> None:
    """`resume=True`, out of place and in place."""

    def into_folder(
        resume: bool, sync_seconds: float = DEFAULT.sync_seconds, written: bool = False
    ) -> Callable[[], float]:
        def run() -> float:
            data = work.open()
            if written:
                for _ in range(2):
                    invert_rows(data)
            else:
                written_at(str(work.source_file))  # other cases have changed the rows
            with work.fresh_folder() as folder, use(sync_seconds=sync_seconds):
                start = time.perf_counter()
                result = data.map(normalise_rows, num_workers=work.workers, out=folder / "td", resume=resume)
                seconds = time.perf_counter() - start
                work.check(result["image"])
                disk.wait_for_disk()  # the cases that follow shall not pay for it
            return seconds

        return run

    name = "journal, out of place"
    _pair(bench, work, name, into_folder(False), into_folder(True), wanted=JOURNAL_WANTED)
    # The run is shorter than the usual interval: this is what the disk costs those whose run is not.
    busy = {"units": work.rows, "against": f"{name}, without", "measure": "time", "group": name}
    bench.add(f"{name}, to the disk all the time", into_folder(True, 0.1), **busy)
    bench.add(f"{name}, rows just written", into_folder(True, written=True), **busy)
    # A pass that only inverts takes 50 ms, of which 10 are the cost of beginning any journal: make it a longer one.
    long = {"fn": invert_often, "chunk": 256}
    _pair(
        bench,
        work,
        "journal, in place",
        _invert(work, **long),
        _invert(work, **long, resume=True),
        wanted=JOURNAL_WANTED,
    )


def add_long_journal(bench: Benchmark, work: Workload, seconds: float) -> None:
    """A run that is longer than the interval between syncs: rows are brought to the disk while it goes on."""
    data = work.open()

    def sample(repeats: int) -> float:
        fn = functools.partial(normalise_often, repeats=repeats)
        with work.fresh_folder() as folder:
            start = time.perf_counter()
            data.map(fn, num_workers=work.workers, chunksize=16, out=folder / "td")
            return time.perf_counter() - start

    sample(1)
    once, often = sample(1), sample(REPEATS)
    repeats = max(round((seconds - once) * (REPEATS - 1) / max(often - once, 1e-3)), 1) + 1
    fn = functools.partial(normalise_often, repeats=repeats)

    def run(resume: bool) -> Callable[[], float]:
        def timed() -> float:
            with work.fresh_folder() as folder:
                start = time.perf_counter()
                data.map(fn, num_workers=work.workers, chunksize=16, out=folder / "td", resume=resume)
                seconds = time.perf_counter() - start
                disk.wait_for_disk()
            return seconds

        return timed

    _pair(bench, work, f"journal, {seconds:.0f} s", run(False), run(True), wanted=JOURNAL_WANTED)


def normalise_often(chunk: TensorDict, repeats: int = REPEATS) -> TensorDict:
    """Some work out of place."""
    for _ in range(repeats):
        result = normalise_rows(chunk)
    return result


def invert_often(chunk: TensorDict) -> None:
    """Some work in place; an odd number of inversions."""
    for _ in range(201):
        invert_rows(chunk)


def add_undo(bench: Benchmark, work: Workload) -> None:
    """Copies of the rows that are about to change."""
    for name, chunk, wanted in (("default", None, UNDO_WANTED), ("256", 256, UNDO_WANTED), ("16", 16, UNDO_WANTED)):
        off, on = _invert(work, chunk, undo=False), _invert(work, chunk, undo=True)
        _pair(bench, work, f"undo, in place, chunk {name}", off, on, wanted=wanted)


def add_bookkeeping(bench: Benchmark, work: Workload) -> None:
    """Retries and seeds, with small chunks, where they cost most."""
    out = work.empty_row().expand(work.rows).clone().share_memory_()
    data = work.open()

    def run(**options: Any) -> Callable[[], float]:
        def timed() -> float:
            start = time.perf_counter()
            data.map(normalise_rows, num_workers=work.workers, chunksize=16, out=out, **options)
            return time.perf_counter() - start

        return timed

    _pair(bench, work, "retries, chunk 16", run(retries=0), run(retries=2))
    _pair(bench, work, "seeding, chunk 16", run(), run(seed=1))


def add_profiler(bench: Benchmark, work: Workload) -> None:
    """Clocks in the workers. Several passes each, in processor seconds as well: the effect is smaller than the
    difference between two passes."""
    out = work.empty_row().expand(work.rows).clone().share_memory_()
    data = work.open()

    def run(chunk: int | None, profiled: bool = False) -> Callable[[], float]:
        def timed() -> float:
            with tdmap.Profiler() if profiled else contextlib.nullcontext(), Stopwatch() as watch:
                for _ in range(PASSES):
                    data.map(normalise_rows, num_workers=work.workers, chunksize=chunk, out=out)
            return watch.seconds / PASSES

        return timed

    for name, chunk, wanted in (("default", None, PROFILER_WANTED), ("16", 16, PROFILER_SMALL_WANTED)):
        _pair(bench, work, f"profiler, chunk {name}", run(chunk), run(chunk, profiled=True), wanted=wanted)


def _invert(
    work: Workload, chunk: int | None, resume: bool = False, fn: Callable[[Any], None] = invert_rows, **options: Any
) -> Callable[[], float]:
    """Seconds of a pass in place: the mean of two, of which the second puts the pictures back."""

    def run() -> float:
        data: TensorDict = work.open()

        seconds = 0.0
        for _ in range(2):
            shutil.rmtree(work.source / ".tdmap", ignore_errors=True)
            start = time.perf_counter()
            data.map(fn, num_workers=work.workers, chunksize=chunk, out=data, resume=resume, **options)
            seconds += time.perf_counter() - start
            disk.wait_for_disk()
        return seconds / 2

    return run


def scheduler_rate(chunks: int = 200_000, workers: int = 8, repeats: int = 5) -> dict[str, float]:
    """Chunks a second that a scheduler gives out and takes back, one chunk a lease."""

    def once() -> float:
        scheduler = Scheduler(chunks, workers, SchedulerPolicy(max_lease=1))
        start = time.perf_counter()
        now = 0.0
        while not scheduler.finished:
            for worker in range(workers):
                lease = scheduler.lease(worker, now)
                if lease is not None:
                    now += 1e-6
                    scheduler.done(lease.id, lease.stop, 1e-6, now)
        return chunks / (time.perf_counter() - start)

    return {"chunks_per_second": statistics.median(once() for _ in range(repeats)), "wanted": SCHEDULER_WANTED}


def print_scheduler(rate: dict[str, float]) -> None:
    """Print what `scheduler_rate` gave."""
    met = "yes" if rate["chunks_per_second"] >= rate["wanted"] else "NO"
    print(f"scheduler alone: {rate['chunks_per_second']:,.0f} chunks/s (wanted ≥ {rate['wanted']:,}: {met})")


if __name__ == "__main__":
    main()
