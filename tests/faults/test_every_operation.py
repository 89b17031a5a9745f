"""Every operation of the table resumes to the same rows, in a folder, in shards and in a store.

The driver is killed before a system call, and again when it resumes; workers are killed in each job, or drivers and
workers at random; or the machine goes down, and what had not reached the disk is zeros. Workers run the last job of
some operations, or threads of the driver. The rows are those of an undisturbed call: none is lost, none is there twice,
what is done is not done again, and no other file is left.
"""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.run import disk, log
from tdmap.runtime import driver
from tensordict_lite import TensorDict
from tests import journals
from tests.cells.kinds import KINDS, plain, rows_of
from tests.cells.operations import OPERATIONS, Operation, resumable
from tests.processes import before_each, in_child, kill_at, steps_of
from tests.products import sampled

from .operations import VARIANTS, quietly

ROWS = 120
NAMES = resumable()
OUTPUTS = ("folder", "shards", "URL")
BY_THREADS = [(name, "folder, by threads") for name in ("filter", "shuffle", "sort", "drop_duplicates")]
"""The last job runs in threads of the driver, those before it in two processes."""
CALLS = ("open", "close", "write", "pwrite", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate", "link")
STEPS = [(os, name) for name in CALLS]
STATE = {"journal", "lock", "run.json"}
"""Files of a complete call in the hidden folder of its output."""


@pytest.fixture(autouse=True)
def _small_jobs(monkeypatch):
    """Many jobs, chunks and partitions of few rows, all of which are noted at once."""
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)  # the death of processes counts, not the disk
    with tuning.use(log_seconds=0, partition_bytes=700, gather_bytes=512, light_bytes=0):
        yield


class Place:
    """An output in a folder of its own, and the call that writes it."""

    def __init__(self, name: str, output: str, folder: Path) -> None:
        self.folder, self.data = folder, plain(ROWS)
        self.data["n"] = TensorDict({"y": self.data["x"] * 2, "z": {"u": self.data["f"]}}, [ROWS])
        self.operation = OPERATIONS[name] if name in OPERATIONS else Operation(VARIANTS[name], list)
        self.out, self.temporary = folder / "out", folder / "temporary"
        self.temporary.mkdir()
        self.options: dict[str, Any] = {"out": self.out}
        if output in ("shards", "URL"):
            self.options |= {"rows_per_shard": 16}
        if output == "folder, by threads":
            self.options |= {"num_workers": 2, "mp_start_method": "fork"}
        if output == "URL":
            self.options |= {"out": f"local://{self.out}", "storage_options": {"auto_mkdir": True}}
        undisturbed = self.operation.call(self.data, out=None, num_workers=0)
        if name in OPERATIONS:
            assert self.operation.read(undisturbed) == self.operation.expected(rows_of(self.data))
        self.wanted = self.read(undisturbed)

    @staticmethod
    def read(result: Any) -> list[Any]:
        return [rows_of(part) for part in (result if isinstance(result, tuple) else (result,))]

    def call(self, **options: Any) -> Any:
        tempfile.tempdir = str(self.temporary)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
                return self.operation.call(self.data, **{"num_workers": 0, "resume": True, **self.options, **options})
        finally:
            tempfile.tempdir = None

    def resume(self) -> None:
        """Call once more, look at what it leaves, and remove it."""
        assert self.read(self.call()) == self.wanted
        assert os.listdir(self.temporary) == []
        assert {path.name for path in self.out.rglob(".tdmap/**/*") if path.is_file()} <= STATE
        shutil.rmtree(self.out)

    def die(self, number: int) -> bool:
        return kill_at(number, self.call, STEPS)

    def stop(self, number: int) -> None:
        """Ctrl-C before a step."""

        def work() -> None:
            def interrupt(count: int) -> None:
                if count == number:
                    raise KeyboardInterrupt

            before_each(STEPS, interrupt)
            with contextlib.suppress(KeyboardInterrupt):
                self.call()

        assert in_child(work) == 0

    def steps(self) -> int:
        """Of a whole call, whose output is removed."""
        count = steps_of(self.call, STEPS)
        shutil.rmtree(self.out)
        return count


def kill_twice(place: Place, number: int) -> bool:
    """Kill the driver at a step, and at another one when it resumes; False: it came to its end before."""
    killed = place.die(number)
    place.die(number // 2 + 3)
    place.resume()
    return killed


LONG = [pytest.mark.soak, pytest.mark.timeout(3600)]
OTHERS = [*((name, "folder") for name in VARIANTS), *BY_THREADS]


@pytest.mark.parametrize("name, output", [*sampled(3, NAMES, OUTPUTS), *OTHERS])
def test_a_driver_is_killed_twice(name, output, tmp_path):
    place, number = Place(name, output, tmp_path), 13 + [*NAMES, *VARIANTS].index(name)
    while kill_twice(place, number):
        number *= 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name, output", [*product(NAMES, OUTPUTS), *OTHERS])
def test_a_driver_is_killed_twice_at_every_step(name, output, tmp_path):
    place, number = Place(name, output, tmp_path), 1
    while kill_twice(place, number):
        number += 1


CLEANING = [("map", "folder"), *(("filter", output) for output in OUTPUTS)]


@pytest.mark.parametrize(
    "name, output, end, last, every",
    [
        *((*case, "killed", 60, 20) for case in CLEANING),
        *((*case, "interrupted", 60, 30) for case in CLEANING),
        *((*case, "killed", 120, 30) for case in BY_THREADS),
    ],
)
def test_a_driver_is_stopped_in_its_last_steps(name, output, end, last, every, tmp_path):
    """While it cleans up, and while threads of it run the last job."""
    place = Place(name, output, tmp_path)
    steps = place.steps()
    for number in range(steps - last, steps + 1, every):
        (place.die if end == "killed" else place.stop)(number)
        place.resume()


def test_a_driver_is_killed_while_it_removes_files_that_it_had_made(tmp_path):
    """A dataset of which a part is removed is none."""
    place = Place("filter", "folder", tmp_path)
    for number in range(1, 9):
        assert kill_at(4, place.call, [(log.Log, "_note_made")])  # the files are there, and the log does not say so
        kill_at(number, place.call, [(os, "unlink")])
        place.resume()


@pytest.mark.parametrize("name", ["shuffle of text", "flat_map of text"])
@pytest.mark.parametrize("step", ["link", "replace", "unlink", "rmdir"])
@pytest.mark.parametrize("first, every", [(1, 7), *(pytest.param(first, 7, marks=LONG) for first in range(2, 8))])
def test_a_driver_is_killed_while_it_adds_or_moves_text(name, step, first, every, tmp_path):
    """The files have two names while ragged entries are added, and lie in two folders while the dataset moves."""
    place, number = Place(name, "folder", tmp_path), first
    while kill_at(number, place.call, [(os, step)]):
        place.resume()
        number += every


@pytest.mark.parametrize("name, kind, number", sampled(12, NAMES, KINDS, [20, 45, 90]))
def test_a_driver_is_killed_with_every_kind_of_rows(name, kind, number, tmp_path):
    operation, data = OPERATIONS[name], KINDS[kind](tmp_path)

    def call():
        return operation.call(data, out=tmp_path / "out", resume=True, num_workers=0)

    if kind not in operation.refuses:
        kill_at(number, call, STEPS)
        assert operation.read(quietly(call)) == operation.expected(rows_of(data))


class Chunks(tdmap.events.Callback):
    """Notes the chunks that are done, and kills the program when they are so many."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self.path, self.last, self.count = path, last, 0

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        self.count += event.stop - event.start
        self.path.write_text(str(self.count))
        if self.last is not None and self.count >= self.last:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def single_chunks(monkeypatch):
    """Each chunk is a lease of its own."""
    policy = driver.Driver._policy
    monkeypatch.setattr(driver.Driver, "_policy", lambda self, nbytes: replace(policy(self, nbytes), max_lease=1))


@pytest.mark.usefixtures("single_chunks")
@pytest.mark.parametrize("name", ["map", "filter", "flat_map", "sort", "shuffle", "join", "group_by.reduce"])
def test_what_is_done_is_not_done_again(name, tmp_path):
    place, counts = Place(name, "folder", tmp_path), tmp_path / "counts"

    def chunks(last: int | None = None) -> int:
        status = in_child(lambda: place.call(chunksize=10, callbacks=[Chunks(counts, last)]))
        assert status == (0 if last is None else signal.SIGKILL)
        return int(counts.read_text())

    total = chunks()
    for last in (total // 2, total - 2):
        shutil.rmtree(place.out)
        chunks(last)
        # The chunk that was done when the program was killed may not have been noted.
        assert total <= last + chunks() <= total + 2
        assert place.read(place.call(chunksize=10)) == place.wanted


@pytest.mark.usefixtures("single_chunks")
def test_a_group_is_not_handed_to_the_function_again(tmp_path):
    data, calls = TensorDict({"k": torch.arange(200) % 37, "x": torch.arange(200)}, [200]), tmp_path / "calls"

    def first(rows):
        with open(calls, "a") as file:
            file.write(f"{int(rows['k'][0])}\n")
        if len(calls.read_text().splitlines()) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[:1]

    def call():
        return tdmap.group_by(data, "k").map_groups(first, out=tmp_path / "out", resume=True, num_workers=0)

    assert in_child(call) == signal.SIGKILL
    assert call()["k"].tolist() == list(range(37))
    seen = [int(line) for line in calls.read_text().splitlines()]
    assert set(seen) == set(range(37)) and len(seen) < 37 + 5  # those of the partition that it died in come twice


class InEachJob(tdmap.events.Callback):
    """Kills a worker in each job of processes, as soon as it has done something."""

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.killed: set[int] = set()

    def on_job_started(self, event: tdmap.events.JobStarted) -> None:
        if event.executor == "process":
            self.jobs.add(event.job)

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        if event.job in self.jobs - self.killed:
            self.killed.add(event.job)
            os.kill(event.worker, signal.SIGKILL)


@pytest.mark.parametrize("name", [name for name in (*NAMES, *VARIANTS) if name != "pack"])  # which retries nothing
def test_a_worker_is_killed_in_each_job(name, tmp_path):
    place, killer = Place(name, "folder", tmp_path), InEachJob()
    with tuning.use(near_bytes=0):
        found = place.call(resume=False, num_workers=2, retries=9, chunksize=10, callbacks=[killer])
    assert place.read(found) == place.wanted
    assert killer.killed == killer.jobs != set()
    assert not [*place.out.rglob(".tdmap")] and os.listdir(place.temporary) == []


class AtRandom(tdmap.events.Callback):
    """Kills workers and drivers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.in_processes = False

    def on_job_started(self, event: tdmap.events.JobStarted) -> None:
        self.in_processes = event.executor == "process"

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        victim = self.random.choice([event.worker if self.in_processes else 0, os.getpid(), 0, 0, 0])
        if victim:
            os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 16))])
@pytest.mark.parametrize("name, output", sampled(6, NAMES, OUTPUTS))
def test_workers_and_drivers_are_killed_at_random(name, output, seed, tmp_path):
    place, deaths, status = Place(name, output, tmp_path), 0, -1
    while status:
        chaos = AtRandom(1000 * seed + deaths)
        near_bytes = (seed + NAMES.index(name)) % 2 << 20  # the last job of some operations: by threads, or by workers
        with tuning.use(near_bytes=near_bytes):
            status = in_child(lambda: place.call(num_workers=2, retries=1000, callbacks=[chaos]))  # noqa: B023
        assert status in (0, signal.SIGKILL)
        deaths += 1
    place.resume()


def contents(folder: Path) -> dict[int, tuple[Path, bytes]]:
    """Files of rows, of the output and intermediate ones, by their inode: a whole output is moved to its place."""
    whole = ("journal", "lock", ".json")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(whole)]
    return {path.stat().st_ino: (path, path.read_bytes()) for path in files}


def reach_the_disk(folder: Path) -> dict[int, tuple[Path, bytes]]:
    """All files reach the disk, and the logs say so."""
    for path in folder.rglob("journal"):
        if journals.frames(path):
            journals.say_durable(path)
    return contents(folder)


@pytest.mark.parametrize("name, share", sampled(6, NAMES, [0.2, 0.4, 0.6, 0.8, 0.95, 1.2]))
def test_the_machine_goes_down(name, share, tmp_path, monkeypatch):
    place = Place(name, "folder", tmp_path)
    steps = place.steps()
    place.die(int(share * steps / 2))
    durable = reach_the_disk(place.out)
    place.die(int(share * steps))
    for inode, (path, now) in contents(place.out).items():  # what came after this is lost, but for the log
        old = durable[inode][1][: len(now)] if inode in durable else b""
        path.write_bytes(old + bytes(len(now) - len(old)))
    journals.next_boot(monkeypatch)
    place.resume()
