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
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def test_a_file_that_was_cut_before_the_call(tmp_path):
    code = """
    data = dataset("in")
    for name in ("k", "x"):
        os.truncate(f"in/{name}.memmap", 4096)

    def change(c):
        c["x"].add_(1)

    CALLS = {
        "map": lambda o: tdmap.map(data, lambda c: c, **o),
        "map_iter": lambda o: list(tdmap.map_iter(data, lambda c: c["x"].sum(), **o)),
        "in place": lambda o: tdmap.map(data, change, out=data, **o),
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


def test_a_file_that_is_cut_while_the_caller_reads_it(tmp_path):
    code = """
    SERIAL, THREADS = {"num_workers": 0}, {"num_workers": 2, "executor": "thread"}

    def cutting(folder, fn=lambda c: TensorDict({"y": c["x"].sum(1)}, c.batch_size)):
        def cut(c):
            if int(c["x"][0, 0]) == 3000:
                os.truncate(f"{folder}/x.memmap", 3500 * 64)
            return fn(c)
        return cut

    def change(c):
        c["x"].add_(1)

    def fails(c):  # on the zeros that it is given
        assert c["x"].shape[0] == 1 or c["x"][-1, 0] > 0 or c["x"][0, 0] == 0
        return c["x"].sum(1)

    CALLS = [
        lambda data, fn, o: tdmap.map(data, fn, **o),
        lambda data, fn, o: tdmap.map(data, fn, out="out", **o),
        lambda data, fn, o: list(tdmap.map_iter(data, fn, **o)),
        lambda data, fn, o: tdmap.map(data, fn, on_error="skip", **o),
        lambda data, fn, o: tdmap.flat_map(data, fn, "flat", **o),
        lambda data, fn, o: tdmap.filter(data, lambda c: fn(c)["y"] > 0, **o),
    ]
    for options in (SERIAL, THREADS):
        for number, call in enumerate(CALLS):
            data = dataset("in")
            refused(str(number), lambda: call(data, cutting("in"), {"chunksize": 1000, **options}))
            assert not os.path.exists("out") and not os.path.exists("flat")
        for number, (fn, more) in enumerate([
            (lambda c: c, {}),  # nobody has read the rows when the function returns them
            (lambda c: c, {"out": "out"}),
            (change, {"in place": True}),
            (fails, {}),
            (fails, {"on_error": "skip"}),
        ]):
            data = dataset("in")
            place = {"out": data} if more.pop("in place", False) else {}
            refused(str(number), lambda: tdmap.map(data, cutting("in", fn), chunksize=1000, **options, **more, **place))
            assert not os.path.exists("out")
    """
    assert program(tmp_path, code) == list("01234501234") * 2


def test_a_chunk_that_was_read_from_a_cut_file_is_not_done(tmp_path):
    code = """
    data = dataset("in")
    def fn(c):
        if os.path.exists("cut") and int(c["x"][0, 0]) == 3000:
            os.truncate("in/x.memmap", 3500 * 64)
        return TensorDict({"y": c["x"] + 0}, c.batch_size)

    open("cut", "w").close()
    refused("cut", lambda: tdmap.map(data, fn, out="out", resume=True, num_workers=0, chunksize=1000))
    os.remove("cut")
    times = {name: os.stat(f"in/{name}").st_mtime_ns for name in os.listdir("in")}
    with open("in/x.memmap", "r+b") as file:
        file.write(made["x"].numpy().tobytes())
    data = TensorDict.load_memmap("in")
    assert torch.equal(tdmap.map(data, fn, out="again", num_workers=0)["y"], made["x"])
    try:
        tdmap.map(data, fn, out="out", resume=True, num_workers=0, chunksize=1000)
    except tdmap.errors.ResumeMismatch:  # the source is not the same file
        from tdmap.resume import journal
        from pathlib import Path
        assert journal.read(Path("out/.tdmap/journal")).ranges(None) == [(0, 3)]
        print("ok")
    """
    assert program(tmp_path, code) == ["cut", "ok"]


def test_what_was_given_in_place_of_a_cut_file_is_gone_after_the_job(tmp_path):
    code = """
    data = dataset("in")
    os.truncate("in/x.memmap", 4096)
    refused("cut", lambda: tdmap.map(data, lambda c: c["x"] + 1, num_workers=0))
    assert float(data["x"][10, 0]) == 10
    pid = os.fork()
    if not pid:
        data["x"].sum()  # ends it, as ever: no zeros that are taken for rows
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
    """
    assert program(tmp_path, code) == ["cut", "7"]


def test_each_job_meets_the_cut_itself_while_another_one_goes_on(tmp_path):
    code = """
    def add(c):
        return c["x"] + 1

    for number, other in enumerate([{"num_workers": 0}, {"num_workers": 2, "executor": "thread"}, {"num_workers": 2}]):
        whole, data = dataset(f"whole-{number}"), dataset(f"in-{number}")
        rows = tdmap.map_iter(whole, lambda c: c["k"] + 0, chunksize=10, **other)
        next(rows)  # it is open as long as the others run
        os.truncate(f"in-{number}/x.memmap", 4096)
        for _ in range(2):
            for options in ({"num_workers": 0}, {"num_workers": 2, "executor": "thread"}):
                refused("map", lambda: tdmap.map(data, add, **options))
                refused("map_iter", lambda: list(tdmap.map_iter(data, add, **options)))
                refused("reduce", lambda: tdmap.reduce(data, Sum("x"), **options))
                refused("pipeline", lambda: data.pipeline().map(add).batch(100).collect(**options))
                assert torch.equal(tdmap.map(whole, add, **options), made["x"] + 1)
        rows.close()
    """
    lines = program(tmp_path, code)
    assert lines == ["map", "map_iter", "reduce", "pipeline"] * 12


def test_other_bus_errors_end_the_program_as_before(tmp_path):
    code = """
    import faulthandler, mmap
    from pathlib import Path
    faulthandler.enable(open("trace", "w"))
    with open("file", "w+b") as file:
        file.truncate(4096)
        rows = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)

    def fn(c):
        pid = os.fork()
        if not pid:  # nobody would ask, in a fork
            rows[0]
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 7
        return c["x"].sum(1)

    data = dataset("in")
    tdmap.map(data, fn, num_workers=0)
    pid = os.fork()
    if not pid:
        rows[0]
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(pid, 0)[1]), Path("trace").read_text().count("Fatal Python error: Bus error") > 1)
    """
    assert program(tmp_path, code) == ["7 True"]


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
