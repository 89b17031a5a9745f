"""A file that somebody cuts while it is mapped: an error that names it, wherever the rows are read.

Each test runs in a process of its own: what is read beyond the end of a file ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import os, threading, warnings
import torch, tdmap
from tdmap.reducers import Sum
from tensordict_lite import TensorDict
from tensordict_lite.errors import DatasetError

warnings.simplefilter("error")
ROWS = 40_000
made = TensorDict({"k": torch.zeros(ROWS, dtype=torch.int64), "x": torch.arange(ROWS).float()[:, None].expand(-1, 16)})
made.batch_size = [ROWS]

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


def program(tmp_path, code):
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def test_a_file_that_was_cut_before_the_call(tmp_path):
    code = """
    data = dataset("in")
    for name in ("k", "x"):
        os.truncate(f"in/{name}.memmap", 4096)
    CALLS = {
        "map": lambda o: tdmap.map(data, lambda c: c, **o),
        "map_iter": lambda o: list(tdmap.map_iter(data, lambda c: c["x"].sum(), **o)),
        "in place": lambda o: tdmap.map(data, lambda c: c["x"].add_(1) and None, out=data, **o),
        "shuffled": lambda o: list(tdmap.map_iter(data, lambda c: c["x"].sum(), shuffle=True, **o)),
        "reduce": lambda o: tdmap.reduce(data, Sum("x"), **o),
        "filter": lambda o: tdmap.filter(data, lambda c: c["k"] == 0, **o),
        "flat_map": lambda o: tdmap.flat_map(data, lambda c: c, "flat", **o),
        "shuffle": lambda o: tdmap.shuffle(data, 1, **o),
        "scatter": lambda o: tdmap.shuffle(data, 1, method="scatter", **o),
        "sort": lambda o: tdmap.sort(data, "k", **o),
        "group_by": lambda o: tdmap.group_by(data, "k").reduce(Sum("x"), **o),
        "map_groups": lambda o: tdmap.group_by(data, "k").map_groups(lambda g: g[:1], **o),
        "join": lambda o: tdmap.join(made, data, "k", **o),
        "pipeline": lambda o: data.pipeline().map(lambda td: td["x"] + 1).batch(100).collect(**o),
        "pipeline, iterated": lambda o: list(data.pipeline().shuffle(seed=1).batch(100).iter(**o)),
    }
    for options in ({"num_workers": 2}, {"num_workers": 0}, {"num_workers": 2, "executor": "thread"}):
        for name, call in CALLS.items():
            refused(name, lambda: call(options))
    """
    lines = program(tmp_path, code)
    assert len(lines) == 45 and not [line for line in lines if "no error" in line], lines


def test_a_file_that_is_cut_while_workers_read_it(tmp_path):
    code = """
    def cutting(folder):
        def fn(c):
            os.truncate(f"{folder}/x.memmap", 4096)
            return c["x"].sum(1)
        return fn

    def change(c):
        os.truncate("in-2/x.memmap", 4096)
        c["x"].add_(1)

    for number, call in enumerate([
        lambda data, fn: tdmap.map(data, fn, num_workers=2, chunksize=1000),
        lambda data, fn: list(tdmap.map_iter(data, fn, num_workers=2, chunksize=1000)),
        lambda data, fn: tdmap.map(data, change, out=data, num_workers=2, chunksize=1000),
        lambda data, fn: tdmap.filter(data, lambda c: fn(c) > 0, num_workers=2, chunksize=1000),
        lambda data, fn: tdmap.flat_map(data, fn, num_workers=2, chunksize=1000),
    ]):
        data = dataset(f"in-{number}")
        refused(str(number), lambda: call(data, cutting(f"in-{number}")))
    """
    assert program(tmp_path, code) == list("01234")


def test_a_file_that_is_cut_between_two_chunks_that_the_caller_reads(tmp_path):
    code = """
    def cutting(folder):
        def fn(c):
            total = c["x"].sum(1)
            if int(c["x"][0, 0]) == 3000:
                os.truncate(f"{folder}/x.memmap", 4000 * 64)
                threading.Event().wait(0.03)  # longer than the time between two looks
            return total
        return fn

    for number, options in enumerate([
        {"num_workers": 0}, {"num_workers": 1, "executor": "thread"}, {"num_workers": 0, "on_error": "skip"}
    ]):
        data = dataset(f"in-{number}")
        refused(str(number), lambda: tdmap.map(data, cutting(f"in-{number}"), chunksize=1000, **options))
    """
    assert program(tmp_path, code) == list("012")


def test_a_shorter_file_that_takes_the_place_of_a_mapped_one_does_no_harm(tmp_path):
    code = """
    data = dataset("in")
    with open("new", "wb") as file:
        file.write(b"short")
    os.replace("new", "in/x.memmap")
    for options in ({"num_workers": 0}, {"num_workers": 2, "executor": "thread"}):
        assert torch.equal(tdmap.map(data, lambda c: c["x"] + 1, **options), made["x"] + 1)
        assert torch.equal(tdmap.shuffle(data, 1, **options)["x"].sort(0).values, made["x"])
    print("ok")
    """
    assert program(tmp_path, code) == ["ok"]
