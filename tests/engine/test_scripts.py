"""Whole programs: no guard around `__main__`, Ctrl-C, closed stdin, quiet exits, no orphans."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests import interpreters
from tests.processes import left_behind

ROOT = Path(__file__).resolve().parents[2]


def fork(tmp_path, code, *arguments):
    """A program whose start and end are those of any other."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return interpreters.Program([str(script), *arguments])


def start(tmp_path, code, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
        # A shell that starts the tests in the background has them ignore Ctrl-C, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(tmp_path, code, *arguments, start=start):
    process = start(tmp_path, code, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


METHODS = ("fork", "forkserver", "spawn")
SCRIPT = """
    import sys, torch, tdmap
    from tensordict_lite import TensorDict

    print("imported")
    SCALE = 3

    class Box:
        def __init__(self, value):
            self.value = value

    def helper(x):
        return x * SCALE

    def scale(td):
        return TensorDict({"y": helper(td["x"])}, td.batch_size)

    class Oops(Exception):
        pass

    def fail(td):
        raise Oops("from a script")

    data = TensorDict({"x": torch.arange(20.0)}, [20])
    for method in sys.argv[1:]:
        options = {"num_workers": 2 if method == "fork" else 1, "mp_start_method": method}
        result = data.map(scale, chunksize=3, **options)
        assert torch.equal(result["y"], data["x"] * 3)
        boxes = list(data.map_iter(lambda td: Box(int(td["x"][0])), chunksize=5, **options))
        assert [box.value for box in boxes] == [0, 5, 10, 15] and all(type(box) is Box for box in boxes)
        try:
            data.map(fail, **options)
        except Oops as error:
            print(error, method)
"""


def test_a_script_needs_no_guard_and_exits_quietly(tmp_path):
    process = start(tmp_path, SCRIPT, *METHODS)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == ["imported", *(f"from a script {method}" for method in METHODS)]
    assert not left_behind(process.pid)


def test_printed_lines_appear_once(tmp_path):
    code = """
        import sys, torch, tdmap
        sys.stdout.write("before ")
        def show(x):
            sys.stdout.write(f"chunk {int(x[0])}\\n")
            return x
        tdmap.map(torch.arange(4), show, num_workers=2, chunksize=1, mp_start_method="fork")
        print("after")
    """
    code, out, err = run(tmp_path, code, start=fork)
    assert (code, err) == (0, "")
    assert out.count("before") == 1
    assert sorted(line for line in out.replace("before ", "").splitlines()) == [
        "after",
        "chunk 0",
        "chunk 1",
        "chunk 2",
        "chunk 3",
    ]


def test_closed_standard_streams(tmp_path):
    code = """
        import os, sys
        os.close(0)
        import torch, tdmap
        x = torch.arange(10)
        for method in sys.argv[1:]:
            assert torch.equal(tdmap.map(x, lambda part: part + 1, num_workers=1, mp_start_method=method), x + 1)
    """
    assert run(tmp_path, code, "fork", "spawn", start=fork) == (0, "", "")


def test_exit_in_the_middle_of_a_loop(tmp_path):
    code = """
        import sys, torch, tdmap
        for part in tdmap.map_iter(torch.arange(1000), lambda x: x, num_workers=2, chunksize=1):
            sys.exit(3)
    """
    process = start(tmp_path, code)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (3, "", "")
    assert not left_behind(process.pid)


def test_a_loop_that_is_still_open_at_exit(tmp_path):
    code = """
        import torch, tdmap
        stream = tdmap.map_iter(torch.arange(1000), lambda x: x, num_workers=2, chunksize=1)
        print(next(stream))
    """
    assert run(tmp_path, code) == (0, "tensor([0])\n", "")
