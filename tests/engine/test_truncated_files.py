"""A file that is truncated while it is mapped: an error that names it, before a job and while workers read it.

Each test runs in a process of its own: reading beyond the end of a mapped file ends it.
"""

import textwrap
from pathlib import Path

from tests import interpreters
from tests.cells.operations import OPERATIONS

NAMES = list(OPERATIONS)

HEAD = f"""
import multiprocessing, os, warnings
import torch, tdmap
from tests.cells.operations import OPERATIONS
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError

warnings.simplefilter("error")
NAMES = {NAMES}
ROWS = 40_000
made = TensorDict({{"x": torch.arange(ROWS), "k": torch.arange(ROWS) % 3}}, [ROWS])

def dataset(folder):
    made.memmap(folder)
    return TensorDict.load_memmap(folder)

def refused(name, call):
    try:
        call()
    except DatasetError as error:
        assert "x.memmap" in str(error) or "k.memmap" in str(error), error
        print(name)
    else:
        print("no error:", name)
"""


def program(tmp_path: Path, code: str) -> list[str]:
    done = interpreters.run(["-c", HEAD + textwrap.dedent(code)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def test_a_file_that_was_truncated_before_the_call(tmp_path: Path) -> None:
    code = """
    data, whole = dataset("in"), dataset("whole")
    for name in ("k", "x"):
        os.truncate(f"in/{name}.memmap", 4096)

    def change(c):
        c["x"].add_(1)

    CALLS = {
        **{name: lambda o, one=one: one.read(one.call(data, **o)) for name, one in OPERATIONS.items() if name in NAMES},
        "map, out": lambda o: tdmap.map(whole, lambda c: c, out=data, **o),
        "in place": lambda o: tdmap.map(data, change, out=data, **o),
        "shuffled": lambda o: list(tdmap.map_iter(data, lambda c: c["x"].sum(), shuffle=True, **o)),
        "scatter": lambda o: tdmap.shuffle(data, 1, method="scatter", **o),
        "join, second": lambda o: tdmap.join(made, data, "k", **o),
        "pipeline, iterated": lambda o: list(data.pipeline().shuffle(seed=1).batch(100).iter(**o)),
        "pipeline, in the workers of a DataLoader": lambda o: list(
            torch.utils.data.DataLoader(data.pipeline().map(lambda td: td["x"] + 1).batch(100), None)
        ),
    }
    for options in ({"num_workers": 2}, {"num_workers": 0}, {"num_workers": 2, "executor": "thread"}):
        for name, call in CALLS.items():
            refused(name, lambda: call(options))
    """
    lines = program(tmp_path, code)
    assert len(lines) == 3 * (len(NAMES) + 7) and not [line for line in lines if "no error" in line], lines


def test_a_file_that_is_truncated_while_workers_read_it(tmp_path: Path) -> None:
    code = """
    def truncating(folder):
        def fn(c):
            os.truncate(f"{folder}/x.memmap", 4096)
            return c["x"].clone()
        return fn

    def change(c):
        os.truncate("in-2/x.memmap", 4096)
        c["x"].add_(1)

    class Deaths(tdmap.events.Callback):
        def on_chunk_retried(self, event):
            print("retried")

    options = {"chunksize": 1000, "retries": 1000, "callbacks": [Deaths()]}
    pool = multiprocessing.get_context("fork").Pool(1)
    CALLS = [
        lambda data, fn, o: tdmap.map(data, fn, **o),
        lambda data, fn, o: list(tdmap.map_iter(data, fn, **o)),
        lambda data, fn, o: tdmap.map(data, change, out=data, **o),
        lambda data, fn, o: tdmap.filter(data, lambda c: fn(c) > 0, **o),
        lambda data, fn, o: tdmap.flat_map(data, fn, **o),
        lambda data, fn, o: tdmap.map(made, lambda c: data[:] if fn(data) is None else c["x"], **o),
        lambda data, fn, o: tdmap.map(data, fn, chunksize=1000, pool=pool),
    ]
    for number, call in enumerate(CALLS):
        data, workers = dataset(f"in-{number}"), 1 if number == 5 else 2
        refused(str(number), lambda: call(data, truncating(f"in-{number}"), {"num_workers": workers, **options}))
    pool.terminate()
    """
    lines = program(tmp_path, code)
    assert [line for line in lines if line != "retried"] == list("0123456")
    assert lines.count("retried") <= 1  # of the rows that only the function knows


def test_a_shorter_file_that_takes_the_place_of_a_mapped_one_does_no_harm(tmp_path: Path) -> None:
    code = """
    data = dataset("in")
    with open("new", "wb") as file:
        file.write(b"short")
    os.replace("new", "in/x.memmap")
    for options in ({"num_workers": 0}, {"num_workers": 2, "executor": "thread"}):
        assert torch.equal(tdmap.map(data, lambda c: c["x"] + 1, **options), made["x"] + 1)
        assert torch.equal(tdmap.shuffle(data, 1, **options)["x"].sort().values, made["x"])
    print("ok")
    """
    assert program(tmp_path, code) == ["ok"]
