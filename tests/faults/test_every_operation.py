"""Every operation of the table resumes to the same rows, in a folder, in shards and in a store.

The driver is killed before a system call, and again when it resumes; workers and drivers are killed at random; or the
machine goes down, and what had not reached the disk is zeros. The rows are those of an undisturbed call: none is lost,
none is there twice, and no other file is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

import tdmap
from tdmap import tuning
from tdmap.run import disk
from tests import journals
from tests.cells.kinds import plain, rows_of
from tests.cells.operations import OPERATIONS, resumable
from tests.processes import in_child, kill_at, steps_of
from tests.products import sampled

ROWS = 120
NAMES = resumable()
OUTPUTS = ("folder", "shards", "URL")
CALLS = ("open", "close", "write", "pwrite", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate", "link")
STEPS = [(os, name) for name in CALLS]
STATE = {"journal", "lock", "run.json"}
"""Files of a complete call in the hidden folder of its output."""


@pytest.fixture(autouse=True)
def _small_jobs(monkeypatch):
    """Many jobs, chunks and partitions of few rows, all of which are noted at once."""
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)  # the death of processes counts, not the disk
    with tuning.use(log_seconds=0, partition_bytes=700, gather_bytes=512):
        yield


class Place:
    """An output in a folder of its own, and the call that writes it."""

    def __init__(self, name: str, output: str, folder: Path) -> None:
        self.operation, self.folder, self.data = OPERATIONS[name], folder, plain(ROWS)
        self.out, self.temporary = folder / "out", folder / "temporary"
        self.temporary.mkdir()
        self.options: dict[str, Any] = {"out": self.out, **({} if output == "folder" else {"rows_per_shard": 16})}
        if output == "URL":
            self.options |= {"out": f"local://{self.out}", "storage_options": {"auto_mkdir": True}}
        undisturbed = self.operation.call(self.data, num_workers=0)
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


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_driver_is_killed_twice(name, output, tmp_path):
    place, number = Place(name, output, tmp_path), 13 + NAMES.index(name)
    while kill_twice(place, number):
        number *= 6


@pytest.mark.parametrize("name, output", [("map", "folder"), *(("filter", output) for output in OUTPUTS)])
def test_a_driver_is_killed_while_it_cleans_up(name, output, tmp_path):
    place = Place(name, output, tmp_path)
    steps = place.steps()
    for number in range(steps - 60, steps + 1, 2):
        place.die(number)
        place.resume()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_driver_is_killed_at_every_step(name, output, tmp_path):
    place, number = Place(name, output, tmp_path), 1
    while kill_twice(place, number):
        number += 1


class AtRandom(tdmap.events.Callback):
    """Kills workers and drivers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def on_lease_done(self, event: tdmap.events.LeaseDone) -> None:
        victim = self.random.choice([event.worker, os.getpid(), 0, 0, 0])
        if victim:
            os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize("name, output, seed", sampled(32, NAMES, OUTPUTS, range(16)))
def test_workers_and_drivers_are_killed_at_random(name, output, seed, tmp_path):
    place, deaths, status = Place(name, output, tmp_path), 0, -1
    while status:
        chaos = AtRandom(1000 * seed + deaths)
        with tuning.use(light_bytes=0, near_bytes=0):
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
