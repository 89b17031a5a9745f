"""How worker processes come up: with the caller's Python, and none of the working folder; or not, with a reason."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap.errors import WorkerStartError
from tdmap.runtime.workers import launch
from tdmap.runtime.workers.boot import template_main
from tdmap.runtime.workers.surroundings import import_path
from tests import interpreters
from tests.processes import once

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, pathlib, sys, torch, tdmap

sys.path += [pathlib.Path("/nowhere"), None]  # which Python passes over
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]  # numbers of files that select() does not take

def python(rows):
    return torch.tensor([[len(sys.warnoptions), sys.flags.utf8_mode, sys.flags.no_user_site]] * len(rows))

here = python([0])[0].tolist()
for method in ("fork", "forkserver", "spawn"):
    there = tdmap.map(torch.arange(1), python, num_workers=1, mp_start_method=method)[0].tolist()
    assert there == here == [1, 1, 1], (method, there, here)
print("done")
"""


def test_workers_run_the_callers_python_and_none_of_the_working_folder_beside_a_thousand_files(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "program.py").write_text(PROGRAM)
    for name in ("json", "signal", "gc"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is not the module of Python')")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-s", "-X", "utf8", "-W", "ignore", "bin/program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_python_passes_over_in_the_import_path_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "there", "/a", Path("/b"), None, 3])
    assert import_path() == (f"{tmp_path}/", f"{tmp_path}/there", "/a")


@pytest.mark.parametrize("started", [False, True], ids=["while workers start", "while they work"])
def test_the_process_that_workers_are_forked_from_is_killed(tmp_path, started):
    """By its own kill or by the one of the kernel that is out of memory: another takes its place."""

    def fn(chunk):
        if int(chunk[0]) % 8 == 0 and once(tmp_path / str(int(chunk[0]))):
            os.kill(os.getppid(), signal.SIGKILL)
        return chunk + 1

    launch.close_template()
    with tdmap.WorkerPool(2, start_method="forkserver") as pool:
        if not started:
            pool.warm_up(wait=False)
            os.kill(launch.template()._process.pid, signal.SIGKILL)
        data = torch.arange(32)
        assert torch.equal(tdmap.map(data, fn, pool=pool, chunksize=2, retries=8), data + 1)


def refuse():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_fork_that_the_system_refuses_says_what_to_do(monkeypatch):
    tdmap.close_pools()
    x = torch.arange(3)
    with tdmap.WorkerPool(1, "fork") as pool:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", refuse)
            with pytest.raises(WorkerStartError, match="pids.max.*num_workers="):
                tdmap.map(x, lambda part: part, pool=pool)
        assert torch.equal(tdmap.map(x, lambda part: part + 1, pool=pool), x + 1)


def forked_template(entry, fd, arguments):
    """A template that is a fork of this process, in which no fork succeeds."""
    pid = os.fork()
    if not pid:
        os.fork = refuse
        try:
            template_main({"fd": fd})
        finally:
            os._exit(1)
    return launch.Child(pid)


def test_a_template_that_can_fork_no_more_lives_on(monkeypatch):
    tdmap.close_pools()
    monkeypatch.setattr(launch, "_interpreter", forked_template)
    try:
        for _ in range(2):
            with pytest.raises(WorkerStartError, match="cannot be forked.*num_workers="):
                tdmap.map(torch.arange(3), lambda part: part, num_workers=1, mp_start_method="forkserver")
            assert launch.template().alive
    finally:
        tdmap.close_pools()


def test_a_template_ends_without_a_word_when_its_driver_has_gone():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    socket.send_fds(ours, [json.dumps(["", 1, 1.0]).encode()], [theirs.fileno(), write])
    ours.close()
    os.close(read)
    os.close(write)
    pid = os.fork()
    if not pid:
        try:
            template_main({"fd": theirs.detach()})
        finally:
            os._exit(1)
    theirs.close()
    assert os.waitpid(pid, 0)[1] == 0


THREADS = """
import os, sys, torch, tdmap
{threads}
def parent(rows):
    return torch.full((len(rows),), os.getppid()) + {use}
forked = tdmap.map(torch.arange(2), parent, num_workers=1)[0] == os.getpid()
print("fork" if forked else "forkserver")
"""


@pytest.mark.parametrize(
    ("threads", "use", "method"),
    [
        ("torch.set_num_threads(6); torch.randn(1 << 20).exp()", "0", "fork"),
        ("torch.ones(2, requires_grad=True).sum().backward(); torch.jit.fork(lambda: 1)", "0", "fork"),
        ("import numpy as np; a = np.ones((800, 800)); a @ a", "int((a @ a)[0, 0]) - 800", "fork"),
        ("import pyarrow.csv, io; pyarrow.csv.read_csv(io.BytesIO(b'a,b\\n' + b'1,2\\n' * 500_000))", "0", "fork"),
        (
            "import polars; frame = polars.DataFrame({'a': [1, 2, 2]}).lazy().group_by('a').len(); frame.collect()",
            "frame.collect().height - 2",
            "forkserver",
        ),
        (
            "import ctypes; libc = ctypes.CDLL(None)\n"
            "libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)",
            "0",
            "forkserver",
        ),
        (
            "import _thread; it = _thread.allocate_lock(); it.acquire(); _thread.start_new_thread(it.acquire, ())",
            "0",
            "forkserver",
        ),
    ],
    ids=["torch", "torch's other pools", "numpy", "pyarrow", "polars", "native", "thread without threading"],
)
def test_a_process_forks_only_what_survives_a_fork(threads, use, method, tmp_path):
    if "import p" in threads:
        pytest.importorskip(threads.split()[1].split(".")[0].rstrip(";,"))
    script = tmp_path / "program.py"
    script.write_text(THREADS.format(threads=threads, use=use))
    done = interpreters.run([script])
    assert done.stdout.split() == [method], done.stderr


def test_standard_input_of_workers_is_empty():
    found = tdmap.map(torch.arange(4), lambda x: x * 0 + len(os.read(0, 10)), num_workers=2, mp_start_method="fork")
    assert found.tolist() == [0] * 4
