"""What bounds a job: the model behind the verdict of a profile.

The time of the workers, wall time × workers, is divided into parts (`tdmap.diagnostics.profile`). Time without a free
core is left out: it belongs to other programs. The bound is the largest group of the rest; where chunks are few, idle
time is the bound from a quarter of the time on, because all of it can be had for nothing.

    fn         computing, waiting       the function
    memory     memory                   pages for what the function allocates
    reading    reading                  rows from the disk, or in another order
    writing    writing                  results to their place
    dispatch   dispatch                 chunks that are too small
    consumer   consumer                 the loop over the results
    starting   starting                 a job that is too short for its workers
    caller     caller                   the thread that called, which makes room for results and joins them
    chunks     idle                     fewer chunks than workers can share

"Reading would bound it at n workers" takes the function to speed up with workers, and the disk, the memory and the
thread that gives out leases not to: with n workers they are busy all the time. That is the worst case, so n is the
least number of workers at which it can happen. It assumes enough cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tdmap.diagnostics.profile import JobProfile

GROUPS = {
    "fn": ("computing", "waiting"),
    "memory": ("memory",),
    "reading": ("reading",),
    "writing": ("writing",),
    "dispatch": ("dispatch",),
    "consumer": ("consumer",),
    "starting": ("starting",),
    "caller": ("caller",),
    "chunks": ("idle",),
}
"""What may bound a job, and the parts of the time that say so."""

IDLE = 0.25
"""With fewer than `FEW` chunks a worker, idle time is the bound from this share on."""

FEW = 8

GOOD_CHUNK = 1e-3
"""Seconds of work that make the cost of a chunk vanish."""

STARVED = 0.2
"""From this share on, it is said that cores were missing."""

FAR = 1000
"""At more workers than this it is not said what would bound the job."""


@dataclass(frozen=True)
class Verdict:
    """What bounds a job, and what to do."""

    bound: str
    """A name of `GROUPS`; "nothing" when nothing was run."""
    share: float
    """Of the time of the workers, between 0 and 1; time without a free core left out."""
    busy: float
    """Workers that had a lease, on average."""
    workers: int
    next_bound: str
    """What would be the bound with more workers; empty when unknown."""
    next_workers: int
    """With how many; 0 when unknown."""
    starved: float
    """Share of the time of the workers without a free core."""
    advice: str
    """One line."""

    def __str__(self) -> str:
        if self.bound == "nothing":
            return "nothing was run"
        name = "too few chunks" if self.bound == "chunks" else self.bound
        text = f"bound by {name} ({self.share:.0%} of worker time); {self.busy:.1f} of {self.workers} workers busy"
        if self.next_workers:
            text += f"; {self.next_bound} would bound it at {self.next_workers} workers"
        if self.starved >= STARVED:
            text += f"; no core was free for {self.starved:.0%} of the time"
        return text


def judge(jobs: Iterable[JobProfile]) -> Verdict:
    """The verdict on jobs together, such as those of one operation."""
    jobs = [job for job in jobs if job.workers]
    if not jobs:
        return Verdict("nothing", 0.0, 0.0, 0, "", 0, 0.0, "")
    parts: dict[str, float] = {}
    for job in jobs:
        for part, seconds in job.parts.items():
            parts[part] = parts.get(part, 0.0) + seconds
    groups = {name: sum(parts[part] for part in members) for name, members in GROUPS.items()}
    whole = max(sum(parts.values()), 1e-9)
    fair = max(whole - parts["starved"], 1e-9)
    bound = max(groups, key=groups.__getitem__)
    if groups["chunks"] >= IDLE * fair and all(_has_few_chunks(job) for job in jobs):
        bound = "chunks"
    wall = max(sum(job.seconds for job in jobs), 1e-9)
    away = parts["starting"] + parts["consumer"] + parts["caller"] + parts["idle"]
    workers = max(job.num_workers for job in jobs)
    next_bound, next_workers = _next(jobs, bound, groups, wall, workers)
    starved = parts["starved"] / whole
    advice = _advice(max(jobs, key=lambda job: job.worker_seconds), bound, parts, starved, wall)
    busy = max(whole - away, 0.0) / wall
    share = groups[bound] / fair
    return Verdict(bound, share, busy, workers, next_bound, next_workers, starved, advice)


def _next(jobs: list[JobProfile], bound: str, groups: dict[str, float], wall: float, workers: int) -> tuple[str, int]:
    """What does not scale with the workers, and the number of workers at which it is the whole time."""
    if bound not in ("fn", "memory", "dispatch"):
        return "", 0
    driver = 0.0 if any(job.consumer for job in jobs) else sum(job.driver_cpu for job in jobs)
    serial = {"reading": groups["reading"], "writing": groups["writing"], "giving out leases": driver}
    if any(job.executor == "serial" for job in jobs):
        del serial["giving out leases"]
    name = max(serial, key=serial.__getitem__)
    # Seconds of it that a second of the job holds; with so many workers more, it fills the second.
    rate = serial[name] / wall
    most = round(workers / rate) if rate > 0 else FAR
    return (name, most) if workers < most < FAR else ("", 0)


def _advice(job: JobProfile, bound: str, parts: dict[str, float], starved: float, wall: float) -> str:
    workers, cores = job.num_workers, job.cores
    if starved > STARVED and workers > cores and job.executor != "serial":
        return f"there are {workers} workers for {cores} cores: set num_workers={cores}"
    if bound == "fn":
        return _about_function(job, parts)
    done = max(sum(worker.chunks for worker in job.workers.values()), 1)
    if bound == "memory":
        per_chunk = parts["memory"] / done
        return (
            f"the kernel spends {per_chunk * 1e3:.2g} ms a chunk on new pages: work in place, write with out=, or set "
            f"a smaller chunksize than {job.chunk_rows}, so that memory is used again"
        )
    if bound == "reading":
        return _about_reading(job)
    if bound == "writing":
        rate = job.total("bytes_out") / max(wall, 1e-9)
        return (
            f"results are written at {rate / 1e6:,.0f} MB/s: smaller dtypes, fewer entries, faster storage for out=, "
            "or in place where the shapes allow it"
        )
    if bound == "dispatch":
        each = max(sum(worker.busy for worker in job.workers.values()) / done, 1e-6)
        rows = max(round(job.chunk_rows * GOOD_CHUNK / each), 2 * job.chunk_rows, 2)
        rows = min(_round(rows), max(job.rows // max(4 * workers, 1), 1))
        if rows <= job.chunk_rows or job.chunk_rows == 0:
            return "there is too little work to share: num_workers=0 runs it in the caller"
        return f"set chunksize={rows}: a chunk of {job.chunk_rows} rows is {each * 1e6:.0f} µs of work"
    if bound == "consumer":
        needed = max(round(workers * (1 - parts["consumer"] / max(sum(parts.values()), 1e-9)) + 0.5), 1)
        fewer = f", or set num_workers={needed}" if needed < workers else ""
        return f"make the loop over the results faster, move its work into the function{fewer}"
    if bound == "caller":
        return "the thread that called makes room for results, joins or copies them: give out=, best a folder"
    if bound == "starting":
        return "the job is short for its workers: call it on more rows, keep a WorkerPool, or set num_workers=0"
    return _about_chunks(job)


def _about_function(job: JobProfile, parts: dict[str, float]) -> str:
    workers, cores = job.num_workers, job.cores
    if parts["waiting"] > parts["computing"]:
        if job.executor == "serial":
            return "the function waits most of its time: use workers, more than there are cores"
        kind = "" if job.executor == "thread" else ', or executor="thread" with many'
        return f"the function waits most of its time: set num_workers={workers * 4}{kind}"
    if workers < cores:
        if job.executor != "serial" and job.chunks <= workers:
            rows = max(job.rows // (4 * cores), 1)
            return f"{workers} of {cores} cores are used: set chunksize={rows}, and num_workers={cores}"
        return f"{workers} of {cores} cores are used: set num_workers={cores}"
    return "all cores are used: make the function faster; py-spy record --subprocesses shows where its time goes"


def _about_reading(job: JobProfile) -> str:
    disk, rows = job.total("disk_read"), job.total("bytes_in")
    if disk < rows / 4:
        return "rows are copied from memory, not read from the disk: smaller dtypes, or fewer keys (data.select)"
    if disk > rows * 5 / 4:  # around each row the disk is read for more than the row
        return "rows are read in another order than they are stored in: shuffle once with tdmap.shuffle(out=...)"
    rate = disk / max(job.seconds, 1e-9) / 1e6
    return f"rows come from the disk at {rate:,.0f} MB/s: faster storage, smaller dtypes, or fewer keys (data.select)"


def _has_few_chunks(job: JobProfile) -> bool:
    return job.chunks < FEW * job.num_workers


def _about_chunks(job: JobProfile) -> str:
    wanted = max(job.num_workers, 1) * 4
    rows = max(job.rows // wanted, 1)
    if rows < job.chunk_rows:
        chunks = f"{job.chunks} chunk{'s'[: job.chunks != 1]}"
        return f"{chunks} for {job.num_workers} workers: set chunksize={_round_down(rows)}"
    few = max(min(job.chunks, job.rows), 1)
    return f"{job.rows} rows are too few for {job.num_workers} workers: set num_workers={few}"


def _round(rows: int) -> int:
    """To two digits: the measure is no better."""
    size: int = 10 ** max(len(str(rows)) - 2, 0)
    return -(-rows // size) * size


def _round_down(rows: int) -> int:
    size: int = 10 ** max(len(str(rows)) - 2, 0)
    return max(rows // size * size, 1)
