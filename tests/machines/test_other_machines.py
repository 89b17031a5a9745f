"""Where a system lacks what Linux has, something else takes its place, and the main job gives the same rows.

docs/other-machines.md lists what, with the tests of this file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Run = Callable[..., str]


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE / "without"), str(ROOT)]),
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    command, pipe = [sys.executable, str(HERE / "zygote.py")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run(zygote: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runs the main job in `tmp_path`, on a machine without something; what it printed."""

    def run(without: str, *arguments: str) -> str:
        (tmp_path / "job").mkdir()
        log = tmp_path / "log.txt"
        request = {"without": without, "arguments": [str(tmp_path / "job"), *arguments], "log": str(log)}
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        status = zygote.stdout.readline().strip()
        printed = log.read_text()
        assert status == "0", printed
        return printed

    return run


LACKING = ["memfd_create", "posix_fallocate", "proc", "pidfd_open", "prctl", "memfd_create,dev_shm"]
OF_THE_CALLER = ["sched_getaffinity", "copy_file_range", "posix_fadvise", "renameat2", "madvise_dontneed"]
"""What matters in any process, so that no worker is needed to miss it."""


@pytest.mark.parametrize(("without", "workers"), [*product(LACKING, "2"), *product(OF_THE_CALLER, "0")])
def test_a_system_that_lacks_one_thing_does_the_main_job(run: Run, without: str, workers: str) -> None:
    assert "done" in run(without, "--method", "fork", "--workers", workers)


def test_a_system_without_fork_starts_fresh_workers(run: Run) -> None:
    assert "methods ('spawn',)" in run("fork", "--workers", "1")


def test_a_system_without_sequenced_packets_has_no_template(run: Run) -> None:
    assert "methods ('fork', 'spawn')" in run("seqpacket", "--method", "spawn", "--workers", "1")


def test_a_machine_like_macos_does_the_main_job(run: Run) -> None:
    assert "done" in run("macos", "--method", "spawn", "--workers", "1")


def test_without_files_in_memory_none_is_left_in_the_temporary_folder(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    assert "temporary files made" in run("macos", "--method", "fork", "--temporary", str(place))
    assert list(place.iterdir()) == []


def test_a_start_method_that_the_system_lacks_is_named(run: Run) -> None:
    printed = run("fork", "--refused", "fork")
    assert "mp_start_method must be one of spawn on this system, or None: got 'fork'." in printed


def test_the_doctor_says_what_another_machine_has(run: Run) -> None:
    assert "1 warning spawn; here spawn" in run("macos,fork", "--doctor"), "nobody says how much memory there is"


def test_a_ray_job_says_that_it_needs_linux(run: Run) -> None:
    printed = run("macos", "--refused", "ray")
    assert 'executor="ray" needs Linux on the machine that calls' in printed


def test_a_system_without_posix_files_is_told_so_at_import(run: Run) -> None:
    printed = run("fcntl", "--import-only")
    assert "ImportError: tensordict_lite needs a POSIX system" in printed and "WSL" in printed
