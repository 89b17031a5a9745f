"""The same call goes on after an interruption, another one is refused, and a finished one does nothing."""

import fcntl
import functools
import os
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest
import tensordict as reference
import torch

import tdmap
from tdmap import tuning
from tdmap.errors import AlreadyComplete, ResumeMismatch
from tdmap.plan import subtract_ranges
from tdmap.reducers import Count, Mean, Reducer
from tdmap.run import disk
from tdmap.run.history import History
from tdmap.run.ledger import Ledger
from tensordict_lite import TensorDict
from tests import journals
from tests.processes import comes_true, in_child, kill_at

from .operations import OUT_OF_PLACE, RESUMABLE, make, quietly

OPTIONS = {"num_workers": 2, "chunksize": 5}


@pytest.fixture
def data(tmp_path):
    x = torch.arange(600.0).reshape(200, 3)
    return TensorDict({"x": x, "meta": {"row": torch.arange(200)}}, [200]).memmap(tmp_path / "in")


def double(td):
    return TensorDict({"y": td["x"] * 2, "meta": {"row": td["meta", "row"]}}, td.batch_size)


def increment(td):
    td["x"].add_(1)


class Interrupt(Exception):
    """What the user's function raises in the middle."""


def failing(fn, after, marker):
    """`fn`, which raises once on the chunk that begins with row `after`. The marker is a file, so no part changes."""

    def run(td):
        if int(td["meta", "row"][0]) == after and not os.path.exists(marker):
            open(marker, "w").close()
            raise Interrupt
        return fn(td)

    return run


# -- a path as the output ------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_a_path_becomes_an_ordinary_dataset(data, tmp_path, executor):
    result = tdmap.map(data, double, out=tmp_path / "deep" / "out", executor=executor, **OPTIONS)
    assert result["y"].filename == str(tmp_path / "deep" / "out" / "y.memmap")
    for library in (TensorDict, reference.TensorDict):
        loaded = library.load_memmap(tmp_path / "deep" / "out")
        assert torch.equal(loaded["y"], data["x"] * 2) and torch.equal(loaded["meta", "row"], torch.arange(200))
    assert sorted(os.listdir(tmp_path / "deep" / "out")) == ["meta", "meta.json", "y.memmap"]


def test_a_folder_in_use_is_left_alone(data, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="notes.txt"):
        tdmap.map(data, double, out=tmp_path / "other", **OPTIONS)
    with pytest.raises(FileExistsError, match="out=data"):
        tdmap.map(data, double, out=tmp_path / "in", **OPTIONS)
    tdmap.map(data, double, out=tmp_path / "out", **OPTIONS)
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        tdmap.map(data, double, out=tmp_path / "out", **OPTIONS)


# -- going on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_a_run_goes_on_where_it_ended(data, tmp_path, executor):
    fn = failing(double, 100, str(tmp_path / "mark"))
    call = {"out": tmp_path / "out", "resume": True, "executor": executor, **OPTIONS}
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, **call)
    out = tmp_path / "out"
    assert os.listdir(out) == [".tdmap"]  # nothing that looks like a dataset
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        reference.TensorDict.load_memmap(out)
    history = History(out / ".tdmap" / "journal")
    done = history.jobs[0].chunks_done
    assert 0 < done < 40 and (executor != "serial" or done == 20)  # all chunks before the one that raised
    (line,) = history.failures
    assert line["type"] == "Interrupt" and "rows 100:105" in line["notes"][0]
    runs = []

    class Count(tdmap.events.Callback):
        def on_lease_done(self, event):
            runs.append(event.rows)

    result = tdmap.map(data, fn, callbacks=[Count()], **call)
    assert torch.equal(result["y"], data["x"] * 2)
    assert sum(runs) == 200 - 5 * done
    with pytest.raises(FileExistsError, match="holds a dataset already"):
        tdmap.map(data, fn, out=out, **OPTIONS)


OPERATIONS = {
    "map": lambda data, fn, **options: tdmap.map(data, fn, **options),
    "filter": lambda data, fn, **options: tdmap.filter(data, lambda c: fn(c)["x"] > 3, **options),
    "flat_map": lambda data, fn, **options: tdmap.flat_map(data, fn, **options),
}


def call(name, data, fn, out, num_workers=1):
    return OPERATIONS[name](data, fn, out=out, resume=True, num_workers=num_workers, chunksize=2)


@pytest.mark.parametrize("second", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
def test_an_unfinished_run_is_not_replaced_by_another_operation(first, second, tmp_path):
    def fail(chunk):
        if 15 in chunk["x"]:
            raise ValueError("stop")
        return chunk

    rows = TensorDict({"x": torch.arange(20)}, [20])
    with pytest.raises(ValueError, match="stop"):
        call(first, rows, fail, tmp_path / "out")
    files = sorted(path for path in (tmp_path / "out").rglob("*"))
    if first != second:
        with pytest.raises(ResumeMismatch, match="of kind|it was a call of"):
            call(second, rows, fail, tmp_path / "out")
        assert sorted(path for path in (tmp_path / "out").rglob("*")) == files


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("second", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
def test_a_run_of_which_nothing_is_done_gives_way_to_another(first, second, killed, tmp_path):
    def fail(chunk):
        if not killed:
            raise ValueError("stop")
        if 4 in chunk["x"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return TensorDict({"x": chunk["x"].double(), "y": chunk["x"]}, chunk.batch_size)

    rows = TensorDict({"x": torch.arange(20)}, [20])
    if killed:
        with tuning.use(log_seconds=600):  # files are made, and the log says of no chunk that it is done
            assert in_child(lambda: call(first, rows, fail, tmp_path / "out", 0)) == signal.SIGKILL
    else:
        with pytest.raises(ValueError, match="stop"):
            call(first, rows, fail, tmp_path / "out")
    wanted = call(second, rows, torch.clone, tmp_path / "wanted")
    assert (call(second, rows, torch.clone, tmp_path / "out") == wanted).all()


@pytest.mark.parametrize("executor", ["process", "thread", "serial"])
def test_in_place_work_goes_on_and_is_done_once(data, tmp_path, executor):
    fn = failing(increment, 100, str(tmp_path / "mark"))

    def late(td):  # the rows are changed, and then it raises
        increment(td)
        fn(td)

    with pytest.raises(Interrupt):
        tdmap.map(data, late, out=data, resume=True, executor=executor, **OPTIONS)
    data = TensorDict.load_memmap(tmp_path / "in")
    assert tdmap.map(data, late, out=data, resume=True, executor=executor, **OPTIONS) is data
    wanted = torch.arange(600.0).reshape(200, 3) + 2
    assert torch.equal(TensorDict.load_memmap(tmp_path / "in")["x"], wanted)
    with pytest.warns(AlreadyComplete):
        tdmap.map(data, late, out=data, resume=True, executor=executor, **OPTIONS)
    assert torch.equal(data["x"], wanted)
    assert not list((tmp_path / "in" / ".tdmap").glob("undo-*"))


def test_workers_lock_the_rows_that_they_may_change(data, tmp_path):
    """The next call waits for one that outlives its driver."""

    def change(td):
        increment(td)
        with open(tmp_path / "in" / ".tdmap" / "workers.lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    tdmap.map(data, change, out=data, resume=True, **OPTIONS)
    assert torch.equal(data["x"], torch.arange(600.0).reshape(200, 3) + 1)


def test_passes_in_place_follow_each_other_and_none_is_repeated(data):
    def twice(td):
        td["x"].mul_(2)

    def script():
        tdmap.map(data, increment, out=data, resume=True, **OPTIONS)
        tdmap.map(data, twice, out=data, resume=True, **OPTIONS)

    script()
    wanted = (torch.arange(600.0).reshape(200, 3) + 1) * 2
    assert torch.equal(data["x"], wanted)
    with pytest.warns(AlreadyComplete):
        script()
    assert torch.equal(data["x"], wanted)


NEW_DATASETS = [name for name in RESUMABLE if not name.startswith("reduce")]


@pytest.mark.parametrize("name", NEW_DATASETS)
def test_a_result_that_is_changed_in_place_later_is_still_complete(name, tmp_path):
    def script():
        RESUMABLE[name](make(), tmp_path / "out", num_workers=0)
        out = TensorDict.load_memmap(tmp_path / "out")
        return tdmap.map(out, increment, out=out, resume=True, num_workers=0)

    wanted = OUT_OF_PLACE[name](make(), tmp_path / "other", num_workers=0)["x"] + 1
    assert torch.equal(quietly(script)["x"], wanted)
    assert torch.equal(quietly(script)["x"], wanted)


@pytest.mark.parametrize("name", NEW_DATASETS)
def test_a_complete_run_whose_dataset_was_removed_is_done_again(name, tmp_path):
    out = tmp_path / "out"
    wanted = RESUMABLE[name](make(), out, num_workers=0).clone()
    for path in out.iterdir():
        if path.name != ".tdmap":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert (RESUMABLE[name](make(), out, num_workers=0) == wanted).all()
    assert (TensorDict.load_memmap(out) == wanted).all()


class Ordered(Reducer):
    """Sees which chunks it got, in which order."""

    def init(self):
        return ""

    def update(self, state, chunk, start=0):
        return f"{state}{start}"

    def merge(self, a, b):
        return f"({a} {b})"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mapper": increment}, r"it was a call of map_reduce\(double\), and is one of map_reduce\(increment\)"),
        ({"mapper": None}, r"it was a call of map_reduce\(double\), and is one of map_reduce"),
        ({"reducer": {"m": Mean("y"), "n": Count()}}, "map_reduce.*differs in: reducer 'n'"),
        ({"dim": -1}, "the argument dim was 0, and is -1"),
        ({"chunksize": 7}, "the option chunksize was 5, and is 7"),
        ({"num_chunks": 3, "chunksize": None}, "the option num_chunks was absent, and is 3"),
        ({"seed": 3}, "the seed"),
    ],
)
def test_a_reduction_is_told_from_others_by_its_arguments(data, tmp_path, changed, said):
    given = {"mapper": double, "reducer": {"m": Mean("y")}, "resume": tmp_path / "out", **OPTIONS}
    wanted = tdmap.map_reduce(data, **given)
    with pytest.raises(ResumeMismatch, match=said):
        tdmap.map_reduce(data, **{**given, **changed})
    with pytest.warns(AlreadyComplete):
        assert torch.equal(tdmap.map_reduce(data, **given)["m"], wanted["m"])


def test_an_answer_whose_states_were_removed_is_an_error_with_what_to_do(data, tmp_path):
    tdmap.reduce(data, Mean("x"), resume=tmp_path / "out", **OPTIONS)
    (tmp_path / "out" / ".tdmap" / "states-0").unlink()
    with pytest.raises(FileNotFoundError, match="remove the folder to run it again"), pytest.warns(AlreadyComplete):
        tdmap.reduce(data, Mean("x"), resume=tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize("spoilt", ["torn states", "states that end in zeros", "log"])
def test_states_that_are_torn_or_without_their_log_are_not_trusted(data, tmp_path, spoilt):
    fn = failing(lambda td: td, 100, str(tmp_path / "mark"))
    with pytest.raises(Interrupt):
        tdmap.map_reduce(data, fn, Ordered(), resume=tmp_path / "out", **OPTIONS)
    states, options = tmp_path / "out" / ".tdmap" / "states-0", dict(OPTIONS)
    if spoilt != "log":
        whole = states.read_bytes()
        states.write_bytes(whole[:-3] if spoilt == "torn states" else whole[:-30] + bytes(30))
    else:
        states.with_name("journal").unlink()
        options["chunksize"] += 2
    wanted = tdmap.map_reduce(data, None, Ordered(), **options)
    assert tdmap.map_reduce(data, fn, Ordered(), resume=tmp_path / "out", **options) == wanted


# -- another run ---------------------------------------------------------------------------------------


def interrupted(data, tmp_path, **options):
    fn = failing(double, 100, str(tmp_path / "mark"))
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=tmp_path / "out", resume=True, **{**OPTIONS, "seed": 1, **options})
    return fn


def refused(match, *arguments, **options):
    with pytest.raises(ResumeMismatch, match=match) as caught:
        tdmap.map(*arguments, resume=True, **{**OPTIONS, "seed": 1, **options})
    assert isinstance(caught.value, ValueError) and caught.value.changes
    return str(caught.value)


def test_another_plan_or_seed_is_named(data, tmp_path):
    fn, out = interrupted(data, tmp_path), tmp_path / "out"
    refused("chunk size was 5, and is 10", data, fn, out=out, chunksize=10)
    refused("seed was 1, and is 2", data, fn, out=out, seed=2)
    refused("rows was 200, and is 100", data[:100], fn, out=out)
    tdmap.map(data, fn, out=out, resume=True, **OPTIONS, seed=1)


def test_what_a_refusal_advises_can_be_done(data, tmp_path):
    """`overwrite=True` replaces a dataset that the call has made: rows that are given, answers and unfinished runs
    take none."""
    given = TensorDict({"y": torch.zeros(200, 3), "meta": {"row": torch.zeros(200, dtype=torch.int64)}}, [200])
    given = given.memmap(tmp_path / "given")
    fn = failing(double, 100, str(tmp_path / "mark"))
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=given, resume=True, **OPTIONS)
    (tmp_path / "mark").unlink()
    interrupted(data, tmp_path)
    tdmap.reduce(data, Mean("x"), resume=tmp_path / "answer", **OPTIONS)
    calls = {
        "folder": lambda: tdmap.map(data, double, out=tmp_path / "out", resume=True, **OPTIONS)["y"],
        "given": lambda: tdmap.map(data, lambda td: double(td).mul(2), out=given, resume=True, **OPTIONS)["y"],
        "answer": lambda: tdmap.reduce(data, Mean(("meta", "row")), resume=tmp_path / "answer", **OPTIONS),
    }
    for wanted, call in zip((data["x"] * 2, data["x"] * 4, torch.tensor(99.5)), calls.values(), strict=True):
        with pytest.raises(ResumeMismatch, match="Choose another folder") as caught:
            call()
        advice = str(caught.value).splitlines()[-1]
        assert "overwrite" not in advice
        named = Path(re.search("remove (/[^ ]*) to run it again", advice)[1])
        named.unlink() if named.is_file() else shutil.rmtree(named)
        assert torch.equal(call().double(), wanted.double())


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("place", ["folder", "given"])
def test_what_a_refusal_advises_ranks_can_be_done(data, tmp_path, place, is_complete):
    """Ranks take no `overwrite=True`, and a dataset that is given stays when the call is begun anew."""
    given = data.memmap_like(tmp_path / "given") if place == "given" else None

    def call(factor, rank):
        fn = lambda td: TensorDict({"x": td["x"] * factor, "meta": td["meta"].clone()}, td.batch_size)  # noqa: E731
        tdmap.map(data, fn, out=tmp_path / "out" if given is None else given, shard=(rank, 2), resume=True, **OPTIONS)

    for rank in range(1 + is_complete):
        call(2, rank)
    with pytest.raises(ResumeMismatch) as caught:
        call(3, 1)
    advice = str(caught.value).splitlines()[-1]
    assert "overwrite" not in advice
    shutil.rmtree(re.search("remove (/[^ ]*) to run it again", advice)[1])
    for rank in range(2):
        call(3, rank)
    found = TensorDict.load_memmap(tmp_path / "out") if given is None else given
    assert torch.equal(found["x"], data["x"] * 3)


def test_another_function_is_named_with_what_changed(data, tmp_path):
    def make(scale, power=1):
        def fn(td, power=power):
            if scale == 0:
                raise Interrupt
            return TensorDict({"y": td["x"] * scale**power}, td.batch_size)

        return fn

    out = tmp_path / "out"
    with pytest.raises(Interrupt):
        tdmap.map(data, make(0), out=out, resume=True, **OPTIONS)
    tdmap.map(data, make(2), out=out, resume=True, **OPTIONS)  # nothing had been done yet: any run may begin
    with pytest.raises(ResumeMismatch, match="closure variable scale"):
        tdmap.map(data, make(3), out=out, resume=True, **OPTIONS)
    with pytest.raises(ResumeMismatch, match="default 0"):
        tdmap.map(data, make(2, power=2), out=out, resume=True, **OPTIONS)
    with pytest.raises(ResumeMismatch, match="code"):
        tdmap.map(data, double, out=out, resume=True, **OPTIONS)


def test_another_source_is_named(data, tmp_path):
    fn, out = interrupted(data, tmp_path), tmp_path / "out"
    os.utime(tmp_path / "in" / "x.memmap", (86400, 86400))
    wanted = (
        r"(?s)source's 'x' has changed: its file was written at 20\d\d-\d\d-\d\d \d\d:.* written at 1970-01-02 .*"
        r"the function itself.* chunk = chunk\.clone\(\)"
    )
    refused(wanted, TensorDict.load_memmap(tmp_path / "in"), fn, out=out)


def test_another_in_place_run_has_to_wait(data, tmp_path):
    fn = failing(increment, 100, str(tmp_path / "mark"))
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    with pytest.raises(ResumeMismatch, match="finish that run first"):
        tdmap.map(data, increment, out=data, resume=True, **OPTIONS)
    tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    tdmap.map(data, increment, out=data, resume=True, **OPTIONS)
    assert torch.equal(data["x"], torch.arange(600.0).reshape(200, 3) + 2)


def test_resume_needs_files(data):
    with pytest.raises(ValueError, match="path of a folder as out="):
        tdmap.map(data, double, resume=True)
    memory = data.clone()
    with pytest.raises(ValueError, match="memory-mapped"):
        tdmap.map(memory, increment, out=memory, resume=True)
    with pytest.raises(ValueError, match="undo=True"):
        tdmap.map(data, increment, out=data, resume=True, undo=False)


# -- other processes ------------------------------------------------------------------------------------


def test_nothing_is_left_running(data, tmp_path):
    tdmap.map(data, double, out=tmp_path / "out", resume=True, **OPTIONS)

    def helpers():
        found = []
        for child in psutil.Process().children(recursive=True):
            try:
                if "syncer" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    assert comes_true(lambda: not helpers())


@pytest.mark.parametrize("row, again", [(0, False), (5, False), (5, True)])
def test_another_run_does_not_begin_over_changes_that_no_log_knows_of(data, tmp_path, row, again):
    """The program was killed before the log said that a chunk was done: in the first chunk, or after it.

    And again when the rows of that chunk had been put back.
    """

    def killed(td):
        td["x"].add_(1)
        if int(td["meta", "row"][0]) == row:
            os.kill(os.getpid(), signal.SIGKILL)

    with tuning.use(log_seconds=600):
        work = functools.partial(tdmap.map, data, killed, out=data, resume=True, num_workers=0, chunksize=5)
        assert in_child(work) == signal.SIGKILL
        assert not again or kill_at(1, work, [(Ledger, "room")])
    assert not History(tmp_path / "in" / ".tdmap" / "journal").ranges
    with pytest.raises(ResumeMismatch, match="unfinished in-place run that differs"):
        tdmap.map(data, increment, out=data, resume=True, **OPTIONS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_that_raised_at_once_may_be_mended(data, num_workers):
    def raises(td):
        td["x"].add_(1)
        raise Interrupt

    before = data["x"].clone()
    with pytest.raises(Interrupt):
        tdmap.map(data, raises, out=data, resume=True, num_workers=num_workers, chunksize=5)
    tdmap.map(data, increment, out=data, resume=True, **OPTIONS)
    assert torch.equal(data["x"], before + 1)


def test_chunks_that_only_workers_knew_to_be_done_are_shown_as_done(data, tmp_path):
    fn = failing(increment, 100, str(tmp_path / "mark"))
    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    disk.wait_for_disk()  # the journal does not change after this
    path = tmp_path / "in" / ".tdmap" / "journal"
    before = History(path).ranges
    assert before
    journals.keep(path, b"H")  # as if the driver had heard of nothing

    class Stop(tdmap.events.Callback):
        def on_job_started(self, event):
            raise Interrupt

    with pytest.raises(Interrupt):
        tdmap.map(data, fn, out=data, resume=True, callbacks=[Stop()], **OPTIONS)
    assert subtract_ranges(before, History(path).ranges) == []
    tdmap.map(data, fn, out=data, resume=True, **OPTIONS)
    assert torch.equal(data["x"], torch.arange(600.0).reshape(200, 3) + 1)
