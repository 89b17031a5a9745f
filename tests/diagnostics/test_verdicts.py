"""The verdict on jobs whose bottleneck is known, run for real; and what the model makes of given figures."""

import re
import textwrap
import time

import pytest
import torch

import tdmap
from tdmap.diagnostics.model import judge
from tdmap.diagnostics.profile import PARTS, JobProfile, WorkerProfile, divide
from tdmap.events import Measures
from tensordict_lite import TensorDict
from tests import interpreters


def spin(seconds: float) -> None:
    """Compute for so much CPU time, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def computes(chunk):
    spin(0.004)
    return chunk + 1


def sleeps(chunk):
    time.sleep(0.004)
    return chunk + 1


def allocates(chunk):
    fresh = torch.empty(96 << 20, dtype=torch.uint8)  # more than malloc keeps: new pages each time
    fresh[::4096] = 1
    return chunk + 1


COLUMNS = torch.zeros(1 << 16, 16)


def transposed(chunk):
    return COLUMNS.t()[: len(chunk)]  # a view, and slow to copy


def first_column(chunk):
    return chunk[:, 0]


def same(chunk):
    return chunk


def on_rows(fn, rows, columns=8, **options):
    return lambda: tdmap.map(torch.zeros(rows, columns), fn, num_workers=2, **{"chunksize": 1, **options})


def iterated(data, fn, seconds, **options):
    """The consumer takes so long over each chunk."""

    def run():
        for _ in tdmap.map_iter(data, fn, num_workers=2, **options):
            time.sleep(seconds)

    return run


JOBS = {
    "fn": (on_rows(computes, 100), "fn", "all cores are used|set num_workers="),
    "fn that waits": (on_rows(sleeps, 100), "fn", "waits most of its time: set num_workers=8"),
    "memory": (on_rows(allocates, 60, chunksize=2), "memory", "new pages"),
    "reading": (
        lambda: iterated(torch.zeros(40_000, 2048).share_memory_(), first_column, 0, chunksize=1000, shuffle=True)(),
        "reading",
        "copied from memory",
    ),
    "writing": (
        lambda: on_rows(transposed, 640, chunksize=16, out=torch.zeros(640, 1 << 16).share_memory_())(),
        "writing",
        "results are written at",
    ),
    "dispatch": (on_rows(same, 60_000, 1), "dispatch", r"set chunksize=\d+"),
    "consumer": (
        iterated(torch.zeros(60, 8), same, 0.01, chunksize=1),
        "consumer",
        "loop over the results faster.*set num_workers=1",
    ),
    "too few chunks": (
        on_rows(lambda chunk: spin(0.3) or chunk, 100, chunksize=100),
        "chunks",
        "1 chunk for 2 workers: set chunksize=12|2 workers for 1 cores",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_verdict_names_what_bounds_a_job(name):
    run, bound, advice = JOBS[name]
    tdmap.map(torch.zeros(4), same, num_workers=2, chunksize=1)  # workers are there
    quiet = False
    for _ in range(5):  # other programs may have the cores for a part of a job, which then is bound by them
        with tdmap.Profiler() as prof:
            run()
        verdict = prof.verdict
        if verdict.bound == bound and re.search(advice, verdict.advice):
            break
        quiet |= verdict.starved < 0.1
    else:
        if not quiet:
            pytest.skip("other programs had a part of the cores during each of five jobs")
    assert verdict.bound == bound, prof.summary(120)
    assert re.search(advice, verdict.advice), verdict.advice
    assert 0 < verdict.share <= 1 and verdict.workers == 2


@pytest.mark.parametrize("name", ["fn", "dispatch", "consumer", "writing"])
def test_the_parts_of_a_workers_time_are_all_of_it(name):
    with tdmap.Profiler() as prof:
        JOBS[name][0]()
    for job in prof.jobs:
        assert sum(job.parts.values()) == pytest.approx(job.worker_seconds, rel=0.02)
        assert all(seconds >= 0 for worker in job.workers.values() for seconds in worker.seconds.values())


def test_what_comes_from_the_disk_is_counted(tmp_path):
    """A dataset that is not in the page cache, in a program of its own, so that nobody maps its pages. How long it
    takes depends on the disk, which may be the memory of another machine."""
    TensorDict({"x": torch.zeros(1000, 16384)}, [1000]).memmap_(tmp_path / "data")
    program = textwrap.dedent(
        """
        import os, sys
        folder = sys.argv[1]
        for name in os.listdir(folder):
            if name.endswith(".memmap"):
                fd = os.open(os.path.join(folder, name), os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        import torch, tdmap
        from tensordict_lite import TensorDict
        data = TensorDict.load_memmap(folder)
        tdmap.map(torch.zeros(4), torch.sqrt, num_workers=2)  # workers are there, and the engine is imported
        with tdmap.Profiler() as prof:
            data.map(lambda chunk: chunk["x"][:, ::1024].sum(1), num_workers=2)
        job = prof.jobs[0]
        print(job.total("disk_read"), job.total("reads"), job.parts["reading"])
        print(prof.summary(120))
        """
    )
    for _ in range(5):  # a fast disk may have read ahead of every row but the first
        done = interpreters.run(["-c", program, tmp_path / "data"])
        assert done.returncode == 0, done.stderr
        disk, faults, reading = done.stdout.splitlines()[0].split()
        if int(disk) < 25 << 20:
            pytest.skip("this file system keeps files in memory, whatever it is told")
        assert int(faults) > 0, done.stdout
        if float(reading) > 0:
            return
    pytest.fail(f"no time was counted: {done.stdout}")


# -- the model, on given figures -----------------------------------------------------------------------


def profile(workers: int = 2, cores: int = 2, seconds: float = 10.0, chunks: int = 1000, **parts: float) -> JobProfile:
    """A job whose workers spent so many seconds each on some parts, and computed otherwise."""
    job = JobProfile(1, "work", "map", 100_000, chunks, 100, workers, "process", 1000, 0.0, cores, seconds, "complete")
    for number in range(workers):
        worker = job.workers[number] = WorkerProfile(number, chunks=chunks // workers)
        worker.seconds.update(parts)
        worker.seconds["computing"] += seconds - sum(parts.values())
    return job


def test_what_does_not_grow_with_workers_is_the_next_bound():
    verdict = judge([profile(reading=0.7, dispatch=0.2)])
    assert verdict.bound == "fn" and verdict.share == pytest.approx(0.91)
    # A worker reads for 7 % of its time, so 14 workers keep the disk busy all the time: each second, 1/14 of it each.
    assert (verdict.next_bound, verdict.next_workers) == ("reading", 14)
    assert str(verdict) == (
        "bound by fn (91% of worker time); 2.0 of 2 workers busy; reading would bound it at 14 workers"
    )


@pytest.mark.parametrize(
    "parts, bound",
    [
        ({"reading": 6.0}, "reading"),
        ({"writing": 6.0}, "writing"),
        ({"memory": 6.0}, "memory"),
        ({"dispatch": 6.0}, "dispatch"),
        ({"consumer": 6.0}, "consumer"),
        ({"starting": 6.0}, "starting"),
        ({"caller": 6.0}, "caller"),
        ({"waiting": 9.0}, "fn"),
        ({"starved": 6.0, "reading": 3.0}, "reading"),
    ],
)
def test_the_largest_part_is_the_bound_and_a_missing_core_is_none(parts, bound):
    verdict = judge([profile(**parts)])
    assert verdict.bound == bound and verdict.advice
    assert ("no core was free for 60%" in str(verdict)) == ("starved" in parts)


def test_cores_that_are_not_used_are_named():
    assert "2 of 16 cores are used: set num_workers=16" in judge([profile(cores=16)]).advice
    assert "there are 8 workers for 2 cores" in judge([profile(8, starved=7.0)]).advice


def test_idle_time_counts_from_a_quarter_on_where_chunks_are_few():
    assert judge([profile(chunks=3, idle=3.0)]).bound == "chunks"
    assert judge([profile(chunks=1000, idle=3.0)]).bound == "fn"
    assert "give out=" in judge([profile(caller=9.0)]).advice


def test_nothing_has_a_verdict_too():
    assert str(judge([])) == "nothing was run"


def test_a_lease_is_divided_without_a_rest():
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        values = torch.rand(25, generator=generator).mul(2).tolist()
        measures = Measures(*values)._replace(began=0.0, ended=values[1], chunks=int(values[2] * 1e4))
        parts = divide(measures, int(values[5] * 1e6))
        assert set(parts) <= set(PARTS) and all(value >= -1e-9 for value in parts.values()), parts
        if sum([measures.read, measures.fn, measures.write]) <= measures.ended:
            assert sum(parts.values()) == pytest.approx(measures.ended)
