"""`tdmap.Profiler` and `profile=`: on every operation and executor, on jobs that fail, as table, trace and picture."""

import gc
import json
import os
import signal

import pytest
import torch
from PIL import Image

import tdmap
from tdmap import tuning
from tdmap.diagnostics.profile import JobProfile
from tensordict_lite import TensorDict
from tests.cells.kinds import plain, rows_of
from tests.cells.operations import OPERATIONS


@pytest.fixture
def data():
    return TensorDict({"x": torch.arange(400.0), "key": torch.arange(400) % 7}, [400])


def add(chunk):
    return TensorDict({"x": chunk["x"] + 1}, chunk.batch_size)


SMALLER = {"join", "group_by.map_groups"}
"""Whose jobs see fewer rows than the dataset has."""

WORKERS = {
    "process": {"num_workers": 2},
    "thread": {"num_workers": 2, "executor": "thread"},
    "serial": {"num_workers": 0},
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_can_be_profiled(name, workers, tmp_path):
    operation, rows = OPERATIONS[name], plain(400)
    with tdmap.Profiler() as prof:
        profiled = operation.read(operation.call(rows, **WORKERS[workers]))
    assert profiled == operation.expected(rows_of(rows))
    assert prof.jobs and all(job.state == "complete" for job in prof.jobs)
    assert sum(job.rows_here for job in prof.jobs) >= 400 or name in SMALLER
    assert prof.verdict.bound != "nothing"
    operation.read(operation.call(rows, **WORKERS[workers], profile=tmp_path / "p.txt"))
    assert "rows/s" in (tmp_path / "p.txt").read_text()


def test_the_processes_of_a_foreign_pool_are_measured_too(data, spawned):
    with tdmap.Profiler() as prof:
        data.map(add, pool=spawned, chunksize=20)
    (job,) = prof.jobs
    assert job.executor == "pool" and job.rows_here == 400 and job.total("cpu") > 0


def test_counts_are_right(data):
    with tdmap.Profiler() as prof:
        tdmap.map(data, add, num_workers=2, chunksize=20, out=data.select("x").clone())
    (job,) = prof.jobs
    assert (job.rows, job.rows_here, job.rows_done, job.chunks, job.chunk_rows) == (400, 400, 400, 20, 20)
    assert job.total("bytes_in") == 400 * (4 + 8)
    assert job.total("bytes_out") == 400 * 4
    assert sum(span.rows for span in job.spans) == 400
    assert job.executor == "process" and job.num_workers == 2 and job.total("rss") > 1 << 20


def test_a_block_covers_its_own_calls_and_no_others(data):
    data.map(add, num_workers=0)
    with tdmap.Profiler() as outer:
        data.map(add, num_workers=0)
        with tdmap.Profiler() as inner:
            data.map(add, num_workers=0)
    data.map(add, num_workers=0)
    assert (len(outer.jobs), len(inner.jobs)) == (2, 1)


def test_a_profiler_is_a_callback_too(data):
    prof = tdmap.Profiler()
    data.map(add, num_workers=2, callbacks=[prof])
    assert prof.jobs[0].rows_here == 400


def test_nothing_is_measured_when_nobody_asks(data):
    class Watch(tdmap.events.Callback):
        seen = ()

        def on_lease_done(self, event):
            self.seen += (event.measures,)

    watch = Watch()
    data.map(add, num_workers=2, callbacks=[watch])
    assert watch.seen and set(watch.seen) == {None}


# -- bad ends ------------------------------------------------------------------------------------------


def fails_at_300(chunk):
    if (chunk["x"] == 300).any():
        raise ArithmeticError("three hundred")
    return add(chunk)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_job_that_fails_leaves_what_was_seen_until_then(workers, data):
    with pytest.raises(ArithmeticError), tdmap.Profiler() as prof:
        data.map(fails_at_300, chunksize=10, **WORKERS[workers])
    (job,) = prof.jobs
    assert job.state == "failed" and job.error == "ArithmeticError: three hundred" and job.rows_here > 0
    assert "failed: ArithmeticError: three hundred" in prof.summary(200)
    json.dumps(prof.to_dict())


def test_profile_of_a_call_that_fails_is_written_all_the_same(data, tmp_path):
    with pytest.raises(ArithmeticError):
        data.map(fails_at_300, chunksize=10, num_workers=2, profile=tmp_path / "p.txt")
    assert "failed" in (tmp_path / "p.txt").read_text()


@pytest.mark.parametrize("name", ["p.txt", "p.json"])
def test_folders_above_a_profile_are_made_before_the_work(data, tmp_path, name):
    data.map(add, num_workers=2, profile=tmp_path / "new" / "folder" / name)
    assert (tmp_path / "new" / "folder" / name).stat().st_size
    (tmp_path / "file").touch()
    ran = tmp_path / "ran"
    with pytest.raises(FileExistsError):
        data.map(lambda chunk: ran.touch(), num_workers=0, profile=tmp_path / "file" / name)
    assert not ran.exists()


def dies_once(chunk, flag):
    if (chunk["x"] == 200).any() and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return add(chunk)


def test_workers_that_die_and_rows_that_are_skipped_are_counted(data, tmp_path):
    flag = str(tmp_path / "flag")
    with tdmap.Profiler() as prof:
        data.map(lambda c: dies_once(c, flag), chunksize=10, num_workers=2)
        data.map(fails_at_300, chunksize=10, num_workers=2, on_error=tdmap.RowErrors())
    first, second = prof.jobs
    assert (first.deaths, first.retries, first.rows_here) == (1, 1, 400)
    assert second.skipped == 1
    assert "1 retries, 1 workers died" in prof.summary(200) and "1 rows skipped" in prof.summary(200)


def test_an_iteration_that_is_paused_or_left_shows_what_was_seen(data):
    with tdmap.Profiler() as prof:
        results = data.map_iter(add, num_workers=2, chunksize=10)
        next(results)
    assert prof.jobs[0].state == "running"
    assert prof.verdict.bound != "nothing" and prof.to_dict()["jobs"][0]["rows_done"] > 0
    results.close()
    assert (prof.jobs[0].state, prof.jobs[0].error) == ("left", "")


@pytest.mark.parametrize("value", [0, 1, None, "", 3.5])
def test_profile_that_makes_no_sense_is_refused(value, data):
    with pytest.raises(TypeError, match="profile must be True"):
        data.map(add, profile=value)


def test_the_same_profiler_cannot_be_entered_twice():
    with tdmap.Profiler() as prof, pytest.raises(RuntimeError, match="at work already"):
        prof.__enter__()


# -- what comes out ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prof():
    data = TensorDict({"x": torch.rand(4000)}, [4000])
    with tdmap.Profiler() as prof:
        data.map(add, num_workers=2, chunksize=50)
        tdmap.sort(data, "x", num_workers=2)
    return prof


@pytest.mark.parametrize("width", [20, 40, 80, 100, 200])
def test_the_summary_fits_any_terminal_and_ends_in_verdict_and_advice(prof, width):
    lines = prof.summary(width).splitlines()
    assert max(map(len, lines)) <= width
    flat = " ".join(" ".join(lines).split())
    assert flat.endswith(prof.verdict.advice) and str(prof.verdict) in flat
    assert flat.count("rows/s") == len(prof.jobs)


def test_the_dict_is_json_and_adds_up(prof):
    found = json.loads(json.dumps(prof.to_dict()))
    assert found["version"] == 1 and found["verdict"]["text"] == str(prof.verdict)
    job = found["jobs"][0]
    assert sum(worker["rows"] for worker in job["workers"]) == job["rows"] == 4000
    assert {"computing", "reading", "writing", "idle"} <= set(job["workers"][0]["seconds"])


def check_trace(text: str) -> list[dict]:
    """The rules of the Trace Event Format for the events that are used."""
    trace = json.loads(text)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "C", "M") and isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
        else:
            assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
    return trace["traceEvents"]


def test_the_trace_has_a_track_a_worker_and_boxes_that_nest(prof, tmp_path):
    prof.save_trace(tmp_path / "t.json")
    events = check_trace((tmp_path / "t.json").read_text())
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    workers = {span.worker for job in prof.jobs for span in job.spans}
    assert {f"worker {worker}" for worker in workers} <= set(tracks.values())
    leases = [event for event in events if event.get("cat") == "lease"]
    assert sum(event["args"]["rows"] for event in leases) == sum(job.rows_here for job in prof.jobs)
    for track in tracks:  # what is on one track lies one after the other, or within
        open_until: list[float] = []
        for event in sorted(
            (e for e in events if e["ph"] == "X" and e["tid"] == track), key=lambda one: (one["ts"], -one["dur"])
        ):
            while open_until and open_until[-1] <= event["ts"] + 0.01:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 0.01
            open_until.append(event["ts"] + event["dur"])


def test_the_plot_is_a_picture_of_some_size(prof, tmp_path):
    prof.plot(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        colours = picture.convert("RGB").getcolors(1 << 20)
        assert picture.width >= 800 and picture.height >= 400 and len(colours) > 20
    with pytest.raises(ValueError, match="nothing to draw"):
        tdmap.Profiler().plot(tmp_path / "q.png")


def test_a_folder_gets_all_of_it(data, tmp_path):
    data.map(add, num_workers=2, profile=tmp_path / "deep" / "folder")
    names = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    assert names == {"summary.txt", "profile.json", "trace.json", "profile.png"}
    check_trace((tmp_path / "deep" / "folder" / "trace.json").read_text())


def test_true_prints_to_standard_error(data, capsys):
    data.map(add, num_workers=2, profile=True)
    seen = capsys.readouterr()
    assert seen.out == "" and "bound by" in seen.err


def test_two_profiles_are_compared(prof, data):
    with tdmap.Profiler() as other:
        data.map(add, num_workers=2)
    text = other.compare(prof, 100)
    assert "before" in text and "after" in text and "ratio" in text and str(prof.verdict) in " ".join(text.split())


@tuning.use(traced_leases=5)
def test_many_leases_do_not_fill_the_memory():
    with tdmap.Profiler() as prof:
        tdmap.map(torch.zeros(3000, 1), lambda x: x, num_workers=2, chunksize=1)
    job: JobProfile = prof.jobs[0]
    assert len(job.spans) == 5 and job.rows_here == 3000


def count_descriptors(chunk):
    gc.disable()
    return chunk.apply(lambda x: torch.full_like(x, len(os.listdir("/proc/self/fd"))))


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_descriptors_do_not_wait_for_the_garbage_collector(executor):
    data = TensorDict({"x": torch.arange(40)}, [40])
    with tdmap.WorkerPool(2) as pool:
        options = {"pool": pool} if executor == "process" else {"executor": executor, "num_workers": 2}
        try:
            counts = [data.map(count_descriptors, chunksize=20, profile=True, **options)["x"].max() for _ in range(6)]
        finally:
            gc.enable()
    assert counts[-1] <= counts[1] + 1
