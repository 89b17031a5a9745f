"""Workers and whole programs that are killed in every job of an operation, and disks that are full."""

from __future__ import annotations

import multiprocessing
import os
import signal
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.errors import AlreadyComplete, ResumeMismatch
from tdmap.memory import hidden, rowfiles
from tdmap.output import scatter
from tdmap.run import log
from tensordict_lite import TensorDict
from tests import interpreters, journals

from .conftest import Killer, bits, make

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def small_blocks():
    """Cut every job into many chunks, so that a worker can be killed in the middle of it."""
    small = {"bucket_bytes": 1 << 9, "gather_bytes": 1 << 9, "copy_bytes": 1 << 9, "near_bytes": 0}
    with tuning.use(available_memory=0, **small):
        yield


def third(td):
    return td["x"] % 3 == 0


def twice(td):
    return [td[third(td)], td[:1]]


OPERATIONS = {
    "filter": (2, lambda data, out, **options: tdmap.filter(data, third, out=out, chunksize=3, **options)),
    "flat_map": (2, lambda data, out, **options: tdmap.flat_map(data, twice, out=out, chunksize=3, **options)),
    "shuffle": (1, lambda data, out, **options: tdmap.shuffle(data, 7, out=out, method="gather", **options)),
    "shuffle over the disk": (
        4,
        lambda data, out, **options: tdmap.shuffle(data, 7, out=out, method="scatter", **options),
    ),
}
PHASES = [(name, job) for name, (jobs, _) in OPERATIONS.items() for job in range(jobs)]


@pytest.mark.parametrize(("name", "job"), PHASES)
@pytest.mark.usefixtures("small_blocks")
def test_a_worker_killed_in_any_job_changes_nothing(name, job, tmp_path):
    data = make()
    jobs, run = OPERATIONS[name]
    wanted = bits(run(data, None, num_workers=0))
    killer = Killer(job)
    with tdmap.WorkerPool(2) as pool:
        got = run(data, tmp_path / "out", pool=pool, callbacks=[killer])
    assert killer.killed and killer.deaths == 1 and len(killer.seen) == jobs
    assert bits(got) == wanted == bits(TensorDict.load_memmap(tmp_path / "out"))


@pytest.mark.parametrize("to", ["memory", "folder", "given"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bucket_that_is_half_written_is_fetched_again(to, tmp_path, monkeypatch):
    """Of the way over the disk, whose rows wait in the output itself: a worker dies within each of its writes."""
    data = make()
    del data["word"], data["same"]
    columns = sum(value[0].numel() > 0 for value in data.values(True, True))
    wanted = bits(tdmap.shuffle(data, 7, num_workers=0, method="gather"))
    write, settle = rowfiles.Places.write, scatter._Settle._settle
    deadly, seen, settling = multiprocessing.Value("i", -1), multiprocessing.Value("i", 0), []

    def settled(self, bucket):
        settling.append(bucket)
        return settle(self, bucket)

    def torn(self, number, fd, row, block):
        with seen.get_lock():
            seen.value += bool(settling)
            dies = settling and seen.value == deadly.value
        write(self, number, fd, row, block[: len(block) // 2] if dies else block)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(rowfiles.Places, "write", torn)
    monkeypatch.setattr(scatter._Settle, "_settle", settled)
    for number in range(1, 3 * columns + 1, 2):
        deadly.value, seen.value = number, 0
        given = tdmap.shuffle(data, 1, num_workers=0, method="gather")
        out = {"memory": None, "folder": tmp_path / str(number), "given": given}[to]
        settling.clear()
        deaths = Killer(-1)
        with tdmap.WorkerPool(2, start_method="fork") as pool:
            got = tdmap.shuffle(data, 7, out=out, method="scatter", pool=pool, callbacks=[deaths])
        assert deaths.deaths == 1 and bits(got) == wanted


def test_a_function_that_kills_its_worker_gives_its_rows_once(tmp_path):
    data, flag = make(), tmp_path / "died"

    def deadly(td):
        if 100 in td["x"].tolist() and not flag.exists():
            flag.touch()
            os._exit(9)
        return twice(td)

    with tdmap.WorkerPool(2) as pool:
        rows = tdmap.flat_map(data, deadly, chunksize=7, pool=pool)
    assert flag.exists() and bits(rows) == bits(tdmap.flat_map(data, twice, chunksize=7, num_workers=0))


# -- the whole program ---------------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys, warnings
    import tdmap, tdmap.tuning
    from tensordict_lite import TensorDict
    warnings.simplefilter("error")

    class Killer(tdmap.events.Callback):
        leases, jobs = 0, 0
        def on_job_started(self, event):
            self.jobs += 1
        def on_lease_done(self, event):
            self.leases += self.jobs == job
            if self.leases and event.done_rows >= (150 if job == 1 else 10):
                os.kill(os.getpid(), signal.SIGKILL)

    name, job, source, out, log = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]

    def third(td):
        with open(log, "a") as file:
            file.write("x" * len(td))
        return td["x"] % 3 == 0

    def kept(td):
        mask = third(td)
        return [td[mask], td[:1]]

    data = TensorDict.load_memmap(source)
    options = dict(resume=True, num_workers=2, chunksize=3, callbacks=[Killer()])
    with tdmap.tuning.use(log_seconds=0, copy_bytes=1 << 9, gather_bytes=1 << 9):  # what is done is noted at once
        operation, fn = (tdmap.filter, third) if name == "filter" else (tdmap.flat_map, kept)
        operation(data, fn, out=out, **options)
"""


def program(tmp_path, name, job):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    arguments = [name, str(job), str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "log")]
    return interpreters.run([str(script), *arguments], cwd=tmp_path)


@pytest.mark.parametrize("name", ["filter", "flat_map"])
def test_a_program_killed_in_each_job_goes_on(name, tmp_path):
    data = make().exclude("word").memmap(tmp_path / "in")
    for job in (1, 2):
        done = program(tmp_path, name, job)
        assert done.returncode == -9, done.stderr
        assert not (tmp_path / "out" / "meta.json").exists()
    first = (tmp_path / "log").stat().st_size
    assert 200 <= first < 300  # what was done before the first death was not done again
    done = program(tmp_path, name, 0)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").stat().st_size == first
    wanted = data[third(data)] if name == "filter" else tdmap.flat_map(data, twice, chunksize=3, num_workers=0)
    assert bits(TensorDict.load_memmap(tmp_path / "out")) == bits(wanted)
    assert sorted(path.name for path in (tmp_path / "out" / ".tdmap").iterdir()) == ["journal", "lock"]


@pytest.mark.parametrize("name", ["filter", "flat_map"])
def test_another_run_in_the_folder_is_refused(name, tmp_path):
    data = make().memmap(tmp_path / "in")

    def run(by, **options):
        if name == "filter":
            return tdmap.filter(data, lambda td: td["x"] % by == 0, out=tmp_path / "out", resume=True, **options)
        return tdmap.flat_map(data, lambda td: td[td["x"] % by == 0], out=tmp_path / "out", resume=True, **options)

    first = run(3, num_workers=2)
    with pytest.warns(AlreadyComplete, match="nothing was done"):
        assert bits(run(3, num_workers=1)) == bits(first)
    with pytest.raises(ResumeMismatch, match="closure variable by"):
        run(4, num_workers=2)
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        tdmap.filter(data, third, out=tmp_path / "out", num_workers=2)


def test_an_interrupted_run_is_not_mistaken_for_none(tmp_path):
    data = make()

    def failing(td):
        if int(td["x"][0]) >= 100 and not (tmp_path / "mended").exists():
            raise OSError("the network is down")
        return td[third(td)]

    def run(**options):
        return tdmap.flat_map(data, failing, out=tmp_path / "out", num_workers=2, chunksize=5, **options)

    with pytest.raises(OSError, match="network"):
        run(resume=True)
    with pytest.raises(FileExistsError, match="unfinished run"):
        run()
    (tmp_path / "mended").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bits(run(resume=True)) == bits(data[third(data)])


def test_torn_records_are_done_again(tmp_path):
    data = make()

    def failing(td):
        if int(td["x"][0]) >= 190 and not (tmp_path / "mended").exists():
            raise OSError("the network is down")
        return td[third(td)]

    def run():
        return tdmap.flat_map(data, failing, out=tmp_path / "out", num_workers=2, chunksize=5, resume=True)

    with pytest.raises(OSError, match="network"):
        run()
    path = tmp_path / "out" / ".tdmap" / "journal"
    os.truncate(path, next(frame.position for frame in journals.frames(path) if frame.kind == b"F") - 5)
    (tmp_path / "mended").touch()
    assert bits(run()) == bits(data[third(data)])


# -- publishing ----------------------------------------------------------------------------------------


def nested(data):
    rows = data.exclude("word")
    return TensorDict({"deep": TensorDict({"in": rows, "y": data["x"] * 2}, [len(data)]), "x": data["x"]}, [len(data)])


def deep_third(td):
    return td["x"] % 3 == 0


def deep_rows(td):
    return td[deep_third(td)]


PUBLISHERS = {
    "filter": lambda data, out: tdmap.filter(data, deep_third, out=out, resume=True, num_workers=0),
    "flat_map": lambda data, out: tdmap.flat_map(data, deep_rows, out=out, resume=True, num_workers=0),
    "map": lambda data, out: tdmap.map(data, _same, out=out, resume=True, num_workers=0),
}


def _same(td):
    return td


def contents(folder):
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in files.items() if not name.startswith(".tdmap")}


@pytest.mark.parametrize("step", ["first move", "second move", "meta", "clean", "finish"])
@pytest.mark.parametrize("name", PUBLISHERS)
def test_a_nested_output_whose_publishing_was_interrupted_is_gone_on_with(name, step, tmp_path, monkeypatch):
    data, run, out = nested(make()), PUBLISHERS[name], tmp_path / "out"
    run(data, tmp_path / "wanted")
    replace, remove, moves = os.replace, hidden.remove_tree, []

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    def moving(source, target):
        if Path(source).parent.name == "data":
            moves.append(target)
            if len(moves) == {"first move": 1, "second move": 2}.get(step) or (
                step == "meta" and Path(source).name == "meta.json"
            ):
                raise KeyboardInterrupt
        replace(source, target)

    def cleaning(path):
        if moves and Path(path).name == "data":
            raise KeyboardInterrupt
        remove(path)

    for _ in range(2):  # the run that goes on is interrupted as well
        with monkeypatch.context() as patch:
            moves.clear()
            patch.setattr("tdmap.data.store.os.replace", moving)
            if step == "finish":
                patch.setattr("tdmap.run.log.Log.finish", interrupt)
            if step == "clean":
                patch.setattr("tdmap.data.store.hidden.remove_tree", cleaning)
            with pytest.raises(KeyboardInterrupt):
                run(data, out)
            if step == "clean" or (name == "map" and step != "finish"):
                break  # it has only to move what is left
    assert bits(run(data, out)) == bits(TensorDict.load_memmap(tmp_path / "wanted"))
    assert contents(out) == contents(tmp_path / "wanted")
    assert {path.name for path in (out / ".tdmap").iterdir()} == {"journal", "lock"}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", PUBLISHERS)
def test_a_run_whose_end_was_lost_with_the_machine_is_done_again(name, durable, tmp_path, monkeypatch):
    data, run, out = nested(make()), PUBLISHERS[name], tmp_path / "out"
    wanted = bits(run(data, tmp_path / "wanted"))
    monkeypatch.setattr("tdmap.run.disk.Helper.finish", lambda helper: None)  # it did not get to the disk
    run(data, out)
    path = out / ".tdmap" / "journal"
    if durable:  # the chunks did, and the end did not
        journals.say_durable(path, next(frame.position for frame in journals.frames(path) if frame.kind == b"E"))
    journals.next_boot(monkeypatch)
    if name != "map":
        with pytest.raises(ResumeMismatch):
            PUBLISHERS["flat_map" if name == "filter" else "filter"](data, out)
    assert bits(run(data, out)) == wanted == bits(TensorDict.load_memmap(out))
    assert contents(out) == contents(tmp_path / "wanted")
    with pytest.warns(AlreadyComplete):
        assert bits(run(data, out)) == wanted


def test_zeros_at_the_end_of_a_log_are_no_frame(tmp_path):
    path = tmp_path / "journal"
    whole = log.MAGIC + log.framed(b"H{}") + log.framed(b"F{}")
    for zeros in (1, 8, 16, 4096):
        path.write_bytes(whole + bytes(zeros))
        assert journals.kinds(path) == [b"H", b"F"] and log.frames_of(path)[1][-1][2] == len(whole)


# -- full disks ----------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_that_names_the_place(tmp_path):
    # The limit holds for shared memory too, so threads do the work here.
    script = f"""
        import resource, signal, torch, tdmap
        from tensordict_lite import TensorDict
        data = TensorDict({{"x": torch.zeros(1000, 100)}}, [1000])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        threads = dict(num_workers=2, executor="thread")
        for name, call in {{
            "flat_map": lambda out: tdmap.flat_map(data, lambda td: td, out=out, **threads),
            "filter": lambda out: tdmap.filter(data, lambda td: td["x"][:, 0] == 0, out=out, **threads),
            "shuffle": lambda out: tdmap.shuffle(data, 1, out=out, method="scatter", **threads),
        }}.items():
            try:
                call({str(tmp_path)!r} + "/" + name)
            except OSError as error:
                print(name, error)
    """
    done = interpreters.run(["-c", textwrap.dedent(script)], cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["flat_map", "filter", "shuffle"], done.stderr
    assert all(str(tmp_path / line.split()[0]) in line for line in lines), lines
    assert list(tmp_path.iterdir()) == []  # nothing half-made stays


def test_zero_rows_can_be_resumed(tmp_path):
    empty = TensorDict({"x": torch.zeros(0, 2)}, [0])
    assert tdmap.filter(empty, third, out=tmp_path / "a", resume=True).shape == (0,)
    rows = tdmap.flat_map(make(), lambda td: td.select("x")[:0], out=tmp_path / "b", resume=True, num_workers=2)
    assert rows.shape == (0,) and rows["x"].dtype == torch.int64
