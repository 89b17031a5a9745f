"""Status files and `tdmap top`: real jobs in processes of their own, killed ones, and files that strangers wrote."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tdmap
from tdmap.cli import app
from tdmap.diagnostics import StatusFile, jobfiles, live
from tdmap.diagnostics.jobfiles import JobStatus, WorkerStatus, read_jobs
from tdmap.process_state import ProcessId
from tests import interpreters
from tests.terminals import Terminal

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time, torch, tdmap
def wait(chunk):
    open(f"{sys.argv[2]}/{os.getpid()}", "w").close()
    while not os.path.exists(sys.argv[1]) and (chunk[0] >= 300 or len(os.listdir(sys.argv[2])) < 2):
        time.sleep(0.005)
    return chunk
tdmap.map(torch.arange(1000), wait, num_workers=2, chunksize=10, callbacks=[tdmap.diagnostics.StatusFile()])
"""


@pytest.fixture
def job(tmp_path, status_folder):
    """A job in another process, of which both workers have done something, and that goes on until `go` is there."""
    (tmp_path / "workers").mkdir()
    script = tmp_path / "long_job.py"
    script.write_text(PROGRAM)
    process = interpreters.Program([str(script), str(tmp_path / "go"), str(tmp_path / "workers")])
    yield process, status_folder, tmp_path / "go"
    process.kill()
    process.wait()


def wait_for_job(folder: Path, process: interpreters.Program) -> JobStatus:
    while process.poll() is None:
        for found in read_jobs(folder):
            if found.rows_done >= 100 and len(found.workers) == 2:
                return found
        time.sleep(0.02)
    raise AssertionError("the job ended before it said anything")


def test_a_job_is_shown_while_it_runs_and_gone_when_it_is_done(job):
    process, folder, go = job
    found = wait_for_job(folder, process)
    assert (found.name, found.operation, found.rows, found.num_workers) == ("wait", "map", 1000, 2)
    assert found.alive and found.process.pid == process.pid and "long_job.py" in found.program
    answer = CliRunner().invoke(app, ["top"])
    assert answer.exit_code == 0 and "wait" in answer.stdout and "of 1,000 rows" in answer.stdout
    (told,) = json.loads(CliRunner().invoke(app, ["top", "--json"]).stdout)["jobs"]
    assert told["state"] == "running" and told["verdict"] and len(told["workers"]) == 2
    assert all(worker["rss"] > 1 << 20 for worker in told["workers"]), "its workers were looked at"
    go.touch()
    assert process.wait(300) == 0
    assert read_jobs(folder) == [] and "no job is shown here" in CliRunner().invoke(app, ["top"]).stdout


def test_a_killed_job_is_marked_as_dead(job):
    process, folder, _ = job
    wait_for_job(folder, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (found,) = read_jobs(folder)
    assert found.alive is False
    answer = CliRunner().invoke(app, ["top"])
    assert "DEAD wait" in answer.stdout and "ended without a word" in answer.stdout
    assert json.loads(CliRunner().invoke(app, ["top", "--json"]).stdout)["jobs"][0]["state"] == "dead"


def status(folder: Path, file: str = "1-1.json", **facts: object) -> JobStatus:
    """A file as a job writes it."""
    folder.mkdir(exist_ok=True)
    values = {
        "process": ProcessId.own(), "job": 1, "operation": "map", "name": "work", "program": "p.py",
        "executor": "process", "rows": 1000, "chunks": 10, "chunk_rows": 100, "row_bytes": 8, "num_workers": 2,
        "began": time.time() - 60, "updated": time.time(), "rows_done": 500, "rate": 50.0,
    }  # fmt: skip
    made = JobStatus(**{**values, **facts})
    text = {key: value for key, value in vars(made).items() if key != "alive"}
    text["workers"] = [vars(worker) for worker in made.workers]
    (folder / file).write_text(json.dumps(text))
    os.utime(folder / file, (made.updated, made.updated))
    return made


def test_a_number_that_was_given_to_another_process_is_no_life_sign(status_folder):
    other = ProcessId.own()._replace(start=ProcessId.own().start - 5)
    status(status_folder, process=other)
    assert read_jobs(status_folder)[0].alive is False


def test_files_of_long_dead_jobs_are_removed(status_folder):
    dead = ProcessId.own()._replace(start=1)
    status(status_folder, f"{os.getpid()}-1.json", process=dead, updated=time.time() - 2 * jobfiles.KEPT_SECONDS)
    status(status_folder, f"{os.getpid()}-2.json", process=dead, job=2)
    jobfiles.prune(status_folder)
    assert [job.job for job in read_jobs(status_folder)] == [2]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"process": 3}', "[" * 100_000, '{"process": [1, "h", 2, 3, 4]}', "\x00" * 5000],
    ids=["empty", "torn", "list", "null", "no process", "deep", "no facts", "zeros"],
)
def test_files_that_hold_something_else_are_left_out(text, status_folder):
    status(status_folder, "2-2.json")
    (status_folder / "1-1.json").write_text(text)
    assert len(read_jobs(status_folder)) == 1
    assert CliRunner().invoke(app, ["top"]).exit_code == 0


def test_texts_of_a_file_cannot_command_the_terminal(status_folder):
    status(status_folder, name="x\x1b[2J\x07y", program="[bold]z")
    shown = CliRunner().invoke(app, ["top"]).stdout
    assert "\x1b" not in shown and "\x07" not in shown and "[bold]z" in shown


def test_what_is_no_folder_of_yours_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    runner = CliRunner()
    for place, why in [("gone", "does not exist"), ("file", "not a folder"), ("link", "symbolic link")]:
        answer = runner.invoke(app, ["top", str(tmp_path / place)])
        assert answer.exit_code == 2 and why in answer.stderr


def files_seen_by(folder, **options):
    """The jobs that a callback finds in a folder while a job runs."""
    seen = []

    class Look(tdmap.events.Callback):
        def on_lease_done(self, event):
            seen.extend(read_jobs(folder))

    watchers = [*options.pop("callbacks", ()), Look()]
    result = tdmap.map(torch.arange(100), lambda x: x, chunksize=1, callbacks=watchers, **options)
    assert torch.equal(result, torch.arange(100))
    return seen


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "executor": "thread"}])
def test_a_job_writes_a_status_only_when_it_is_asked_to(options, status_folder):
    assert files_seen_by(status_folder, **options) == [] and not status_folder.exists()
    status = StatusFile()
    for _ in range(2):  # one callback may watch many jobs
        assert {job.rows for job in files_seen_by(status_folder, callbacks=[status], **options)} == {100}
        assert list(status_folder.iterdir()) == []


def test_jobs_of_one_program_have_a_file_each(tmp_path):
    status = StatusFile(tmp_path / "status")
    rows = zip(  # noqa: B905
        tdmap.map_iter(torch.arange(20), lambda x: x, num_workers=0, chunksize=1, callbacks=[status]),
        tdmap.map_iter(torch.arange(20), lambda x: x, num_workers=0, chunksize=1, callbacks=[status]),
    )
    next(rows), next(rows)
    assert len({job.job for job in read_jobs(tmp_path / "status")}) == 2
    del rows
    assert read_jobs(tmp_path / "status") == []


def test_a_status_that_cannot_be_written_harms_no_job(tmp_path):
    (tmp_path / "status").write_text("in the way")
    assert files_seen_by(tmp_path / "other", num_workers=2, callbacks=[StatusFile(tmp_path / "status")]) == []


NUMBERS = ["1e999", "-1e999", "NaN", "1e300", "-1", "1" + "0" * 5000, "true", '"5"', "null", "[]", "{}"]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:6])
def test_a_file_whose_numbers_are_none_is_left_out(number, status_folder):
    made = status(status_folder, "2-2.json", workers=[WorkerStatus(1, 2, 3.0, 4, 5)], rate=1e-320)
    facts = json.loads((status_folder / "2-2.json").read_text())
    for key, value in [*facts.items(), *((f"workers {k}", v) for k, v in vars(made.workers[0]).items())]:
        if isinstance(value, (int, float)):
            entry = f'"{key.removeprefix("workers ")}": {json.dumps(value)}'
            text = (status_folder / "2-2.json").read_text()
            head, found, tail = text.rpartition(entry) if key.startswith("workers") else text.partition(entry)
            assert found
            (status_folder / "1-1.json").write_text(head + found[: found.index(":") + 2] + number + tail)
            assert len(read_jobs(status_folder)) == 1, key
    answer = CliRunner().invoke(app, ["top", "--json"])
    assert answer.exit_code == 0 and len(json.loads(answer.stdout)["jobs"]) == 1


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
def test_any_terminal_is_wide_enough(columns, status_folder):
    from tdmap.diagnostics.reports.tables import render

    made = status(status_folder, workers=[WorkerStatus(os.getpid(), 500, 50.0, 400, 500)], retries=2, skipped=3)
    lines = render([live.screen([(made, {})], columns, "here")], columns).splitlines()
    assert max(map(len, lines)) <= columns
    flat = " ".join(" ".join(lines).split())
    assert "500 of 1,000 rows" in flat and "10 s left" in flat and "2 retries" in flat


@pytest.mark.parametrize(
    "look, busy, said",
    [
        (live.ProcessSample(cpu=0.97), 55.0, "bound by fn"),
        (live.ProcessSample(cpu=0.3, starved=0.65), 55.0, "have no core for 65%"),
        (live.ProcessSample(cpu=0.05, state="D"), 55.0, "bound by the disk"),
        (live.ProcessSample(cpu=0.05, state="S"), 55.0, "in fn 92% of the time, and compute 5%"),
        (live.ProcessSample(cpu=0.05, state="S"), 5.0, "idle"),
    ],
)
def test_what_is_seen_from_outside_makes_a_verdict(look, busy, said, status_folder):
    workers = [WorkerStatus(number, 100, busy) for number in (1, 2)]
    made = status(status_folder, workers=workers)
    assert said in live.verdict_so_far(made, {1: look, 2: look})


def test_top_in_a_terminal_follows_a_job_and_leaves_on_ctrl_c(job):
    """In a pseudo-terminal, resized while it looks."""
    process, folder, _ = job
    wait_for_job(folder, process)
    run = Terminal(folder, 100, "top", "--interval", "0.1")
    try:
        run.until("of 1,000 rows")
        run.seen = b""
        run.resize(24)
        run.until("1,000")
        run.type(b"\x03")
        assert run.end() == 0
    finally:
        run.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_of_a_real_other_user_is_refused(tmp_path):
    """What a user meets who looks into a folder of root's."""
    folder = tmp_path / "status"
    folder.mkdir(mode=0o700)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = CliRunner().invoke(app, ["top", str(folder)])
            os.write(there, answer.stderr.encode()[:4000])
            code = answer.exit_code
        finally:
            os._exit(code)
    os.close(there)
    with os.fdopen(here, "rb") as file:
        said = file.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    # Where a folder above is closed as well, it is not even seen that there is one.
    assert "belongs to another user" in said or "does not exist" in said or "Permission denied" in said
    assert len(said.splitlines()) == 1


def test_files_and_datasets_that_go_while_it_looks_harm_nobody(status_folder, monkeypatch):
    """A job ends, and its file and dataset go, between the look at the folder and that into the file."""
    status(status_folder, "1-1.json", rows_done=100)
    status(status_folder, "2-2.json", job=2, program="of data that is gone")
    names = [*os.listdir(status_folder), "9-9.json"]
    with monkeypatch.context() as patch:
        patch.setattr(jobfiles.os, "listdir", lambda folder: names)
        (status_folder / "1-1.json").unlink()
        assert [job.job for job in read_jobs(status_folder)] == [2]
    watcher = live.Watcher()
    for rows in (200, 50, 1000, 2000):  # another run into the same folder begins again, or has more rows
        made = status(status_folder, "2-2.json", job=2, rows_done=rows, rate=0.0)
        (job,) = read_jobs(status_folder)
        assert job.rows_done == rows and made.rows == job.rows
        facts = live.facts(job, watcher.look(job))
        assert facts["rows_done"] == rows and facts["remaining"] is None
        assert CliRunner().invoke(app, ["top"]).exit_code == 0
