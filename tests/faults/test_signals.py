"""Signals to the program that maps: it ends soon, nobody is left, nothing is leaked, and what is done stays done."""

import os
import signal
import textwrap
import time

import pytest
import torch

from tensordict_lite import TensorDict
from tests import interpreters
from tests.processes import left_behind, left_in_shared_memory


def start(folder, code, *arguments):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return interpreters.Program([str(script), *map(str, arguments)])


def wait_for(path, process):
    deadline = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "number", "to_group"),
    [
        *(("fork", number, False) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        ("forkserver", signal.SIGKILL, False),
        ("spawn", signal.SIGTERM, False),
        *((method, signal.SIGINT, True) for method in ("fork", "forkserver")),  # as a terminal sends it
    ],
)
def test_a_signal_ends_the_driver_and_leaves_no_process_and_no_memory(tmp_path, method, number, to_group):
    code = """
        import signal, sys, time, torch, tdmap
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite that was started by nohup ignores it
        mark = sys.argv[1]
        def slow(x):
            open(mark, "w").close()
            time.sleep(600)
            return x
        try:
            workers = 1 if sys.argv[2] == "spawn" else 2
            tdmap.map(torch.zeros(10, 100_000), slow, num_workers=workers, chunksize=1, mp_start_method=sys.argv[2])
        except KeyboardInterrupt:
            print("interrupted")
    """
    before = set(os.listdir("/dev/shm"))
    mark = tmp_path / "running"
    process = start(tmp_path, code, mark, method)
    wait_for(mark, process)
    (os.killpg if to_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=300)  # the function sleeps for ten minutes
    if number == signal.SIGINT:
        assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert number == signal.SIGINT or process.returncode == -number
    assert left_behind(process.pid) == []
    assert not left_in_shared_memory(before)


def test_after_ctrl_c_no_descriptor_is_lost_and_the_workers_serve(tmp_path):
    code = """
        import gc, os, sys, time, torch, tdmap
        mark = sys.argv[1]
        def slow(x):
            open(mark, "w").close()
            time.sleep(600)
            return x
        def count():
            return len(os.listdir("/proc/self/fd"))
        x = torch.zeros(40, 50_000)
        with tdmap.WorkerPool(2) as pool:
            tdmap.map(x, lambda part: part + 1, pool=pool, chunksize=2)
            before = count()
            try:
                for part in tdmap.map_iter(x, slow, pool=pool, chunksize=1):
                    pass
            except KeyboardInterrupt:
                print("interrupted")
            assert torch.equal(tdmap.map(x, lambda part: part + 1, pool=pool, chunksize=2), x + 1)
            pool.warm_up()
            gc.collect()  # the traceback of the interrupt held the job, in a cycle
            assert count() <= before + 2, (before, count())
    """
    mark = tmp_path / "running"
    process = start(tmp_path, code, mark)
    wait_for(mark, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert left_behind(process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_in_place_run_that_was_stopped_goes_on_exactly(tmp_path, number):
    code = """
        import sys, time
        from pathlib import Path
        from tensordict_lite import TensorDict
        folder = Path(sys.argv[1])
        def change(td):
            td["x"].add_(1)
            if td["x"][0] == 41:
                (folder / "running").touch()
                time.sleep(1 if (folder / "again").exists() else 600)
            td["x"].mul_(2)
        data = TensorDict.load_memmap(folder / "data")
        data.map(change, out=data, resume=True, num_workers=2, chunksize=4)
    """
    TensorDict({"x": torch.arange(200.0)}, [200]).memmap(tmp_path / "data")
    process = start(tmp_path, code, tmp_path)
    wait_for(tmp_path / "running", process)
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode != 0 and left_behind(process.pid) == []
    (tmp_path / "again").touch()
    process = start(tmp_path, code, tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert torch.equal(TensorDict.load_memmap(tmp_path / "data")["x"], (torch.arange(200.0) + 1) * 2)
