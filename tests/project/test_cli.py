"""The command line: real runs in processes of their own, refusals in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tdmap.cli import app
from tensordict_lite import TensorDict
from tests import interpreters

ROOT = Path(__file__).parents[2]
FUNCTIONS = """
from tensordict_lite import TensorDict

def double(chunk):
    return TensorDict({"x": chunk["x"] * 2, "y": chunk["meta", "y"].float()}, chunk.batch_size)

def double_one_row(row):
    assert row.batch_size == (), row.batch_size
    return TensorDict({"x": row["x"] * 2}, [])

def negate(chunk):
    chunk["x"].neg_()

def fails_on_row_50(chunk):
    if (chunk["x"] == 50).any():
        raise ArithmeticError("row fifty is cursed")
    return double(chunk)

def half(chunk):
    return chunk[: chunk.shape[0] // 2]

def copy_negated(chunk):
    return chunk.copy().set("x", -chunk["x"])

def fails_on_tens(chunk):
    if (chunk["x"] % 10 == 0).any():
        raise ArithmeticError("a round number")
    return chunk.copy().set("x", chunk["x"] + 1)

def wrong_shape(chunk):
    return chunk.copy().set("x", chunk["x"][:, None])

def waits(chunk):
    import os, time
    open("started", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    return chunk.copy().set("x", chunk["x"] * 2)

NUMBER = 3
"""


def tdmap(*arguments: object, cwd: Path) -> Answer:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    ran = interpreters.run(["-m", "tdmap", *map(str, arguments)], cwd=cwd, env=env)
    return Answer(ran.returncode, ran.stdout, ran.stderr)


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


def ask(*arguments: object, cwd: Path) -> Answer:
    """Run a command that starts no worker in this process, which is much faster."""
    path, before = list(sys.path), Path.cwd()
    os.chdir(cwd)
    try:
        ran = CliRunner().invoke(app, [str(a) for a in arguments])
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("work", None)
    return Answer(ran.exit_code, ran.stdout, ran.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a dataset of 100 rows, ``numbers``, and a module of functions, ``work.py``."""
    data = TensorDict({"x": torch.arange(100.0), "meta": {"y": torch.ones(100, 3, dtype=torch.uint8)}}, [100])
    data.memmap(tmp_path / "numbers")
    (tmp_path / "work.py").write_text(FUNCTIONS)
    return tmp_path


def test_info_shows_keys_shapes_types_and_bytes(folder: Path) -> None:
    ran = ask("info", "numbers", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "100 rows" in lines[0]
    assert any("x" in line and "float32" in line and "[100]" in line and "400 B" in line for line in lines)
    assert any("y" in line and "uint8" in line and "[100, 3]" in line and "300 B" in line for line in lines)
    assert lines[-1] == "total 700 B in 2 leaves"


@pytest.mark.parametrize("error", ["closed", "/dev/full"])
def test_a_command_needs_no_standard_error(folder: Path, error: str) -> None:
    def replace() -> None:
        os.close(2)
        if error != "closed":
            os.open(error, os.O_WRONLY)  # the lowest number that is free: 2

    for words, status in ((["map", "work:double", "numbers", "out"], 0), (["info", "nowhere"], 2)):
        ran = subprocess.run(
            [sys.executable, "-m", "tdmap", *words], cwd=folder, stdout=subprocess.PIPE, preexec_fn=replace, check=False
        )
        assert ran.returncode == status and bool(ran.stdout) is (status == 0), words


def test_info_as_json(folder: Path) -> None:
    ran = ask("info", "--json", "numbers", cwd=folder)
    answer = json.loads(ran.stdout)
    assert answer["batch_size"] == [100]
    assert answer["bytes"] == 700
    assert {"key": ["meta", "y"], "shape": [100, 3], "dtype": "uint8", "bytes": 300} in answer["keys"]


def test_info_shows_what_is_not_a_tensor(tmp_path: Path) -> None:
    TensorDict({"x": torch.zeros(4), "note": "a remark"}, [4]).memmap(tmp_path / "data")
    ran = ask("info", "data", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert any("note" in line for line in ran.stdout.splitlines())


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere", "does not exist"), ("work.py", "is a file"), (".", "or numbers?"), ("broken", "cannot be opened")],
)
def test_what_is_not_a_dataset_is_refused(folder: Path, path: str, reason: str) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "meta.json").write_text("{ not json")
    ran = ask("info", path, cwd=folder)
    assert ran.returncode == 2
    assert reason in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("function", ["work:double", "work.py:double"])
def test_map_writes_a_new_dataset(folder: Path, function: str) -> None:
    ran = tdmap("map", function, "numbers", "out", "--num-workers", 2, "--chunksize", 7, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert "100 rows written to out" in ran.stdout
    out = TensorDict.load_memmap(folder / "out")
    assert torch.equal(out["x"], torch.arange(100.0) * 2)
    assert torch.equal(out["y"], torch.ones(100, 3))
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["numbers", "out", "work.py"]


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ("work:double numbers out --mp-start-method spawn", 2),  # the module is in the working directory
        ("work:double_one_row numbers out --chunksize 0", 2),
        ("work:negate numbers --in-place", -1),
        ("work:copy_negated numbers --in-place", -1),
    ],
)
def test_map_does_what_its_options_say(folder: Path, arguments: str, factor: int) -> None:
    ran = tdmap("map", *arguments.split(), "--num-workers", 1, cwd=folder)
    place = "out" if " out " in arguments else "numbers"
    assert ran.returncode == 0 and ("100 rows changed in numbers" in ran.stdout) is (place == "numbers"), ran.stderr
    assert torch.equal(TensorDict.load_memmap(folder / place)["x"], factor * torch.arange(100.0))
    assert sorted(os.listdir(folder / "numbers")) == ["meta", "meta.json", "x.memmap"]


def test_map_in_place_refuses_what_does_not_fit(folder: Path) -> None:
    ran = ask("map", "work:wrong_shape", "numbers", "--in-place", "--num-workers", 0, cwd=folder)
    assert ran.returncode == 1 and "rows that were done stay done" in ran.stderr
    assert "Traceback" not in ran.stderr and "'x'" in ran.stderr


@pytest.mark.parametrize("where", ["out", "in place", "resumed", "in place, resumed"])
def test_rows_that_are_skipped_are_counted_and_listed(folder: Path, where: str) -> None:
    target = ["--in-place"] if "place" in where else ["out"]
    target += ["--resume"] if "resumed" in where else []
    line = ["map", "work:fails_on_tens", "numbers", *target, "--on-error", "skip", "--num-workers", 0, "--chunksize", 7]
    ran = ask(*line, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert (
        "raised on 10 of 100 rows, which " + ("keep what they had" if "place" in where else "are zeros") in ran.stderr
    )
    assert "  row 0: ArithmeticError: a round number" in ran.stderr and "and 5 more" in ran.stderr
    assert "typer" not in ran.stderr and "90 rows" in ran.stdout
    place = "numbers" if "place" in where else "out"
    listed = folder / f"{place}.skipped.jsonl"
    assert str(listed.relative_to(folder)) in ran.stderr
    found = [json.loads(text) for text in listed.read_text().splitlines()]
    assert [line["row"] for line in found] == list(range(0, 100, 10)) and "work.py" in found[0]["traceback"]
    x = TensorDict.load_memmap(folder / place)["x"]
    wanted = torch.arange(100.0) + 1
    wanted[::10] = torch.arange(100.0)[::10] if "place" in where else 0
    assert torch.equal(x, wanted)


def test_nothing_is_said_of_skipped_rows_when_there_are_none(folder: Path) -> None:
    ran = ask("map", "work:double", "numbers", "out", "--on-error", "skip", "--num-workers", 0, "--quiet", cwd=folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert names_in(folder) == ["numbers", "out", "work.py"]


def names_in(folder: Path) -> list[str]:
    return sorted(set(os.listdir(folder)) - {"__pycache__"})


def begin(folder: Path, *arguments: object) -> interpreters.Program:
    """A run whose function waits for the file `go`."""
    command = ["-m", "tdmap", "map", "work:waits", "numbers", *map(str, arguments), "--num-workers", "1"]
    process = interpreters.Program(command, cwd=folder, env={**os.environ, "NO_COLOR": "1"})
    deadline = time.monotonic() + 300
    while not (folder / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("mode", [["out"], ["out", "--overwrite"], ["--in-place"], ["out", "--resume"]])
def test_a_second_run_is_told_who_writes(folder: Path, mode: list[str]) -> None:
    if "--overwrite" in mode:
        TensorDict({"old": torch.zeros(3)}, [3]).memmap(folder / "out")
    process = begin(folder, *mode)
    try:
        ran = ask("map", "work:double", "numbers", *mode, "--num-workers", 0, "--quiet", cwd=folder)
        assert ran.returncode == 2 and "Traceback" not in ran.stderr
        assert f"in process {process.pid}, since" in ran.stderr and "waits" in ran.stderr
    finally:
        (folder / "go").touch()
        process.communicate()
    assert process.returncode == 0
    result = TensorDict.load_memmap(folder / (mode[0] if mode[0] == "out" else "numbers"))
    assert torch.equal(result["x"], torch.arange(100.0) * 2)


@pytest.mark.parametrize("mode", [["out"], ["out", "--overwrite"]])
def test_after_a_run_that_was_killed_the_next_one_begins_anew(folder: Path, mode: list[str]) -> None:
    if "--overwrite" in mode:
        TensorDict({"old": torch.zeros(3)}, [3]).memmap(folder / "out")
    process = begin(folder, *mode)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (folder / "started").unlink()
    if "--overwrite" in mode:
        assert list(TensorDict.load_memmap(folder / "out").keys()) == ["old"]
    ran = ask("map", "work:double", "numbers", *mode, "--num-workers", 0, "--quiet", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert torch.equal(TensorDict.load_memmap(folder / "out")["x"], torch.arange(100.0) * 2)
    assert names_in(folder) == ["numbers", "out", "work.py"]
    assert sorted(os.listdir(folder / "out")) == ["meta.json", "x.memmap", "y.memmap"]


def test_a_dataset_is_replaced_in_one_step_or_not_at_all(folder: Path) -> None:
    TensorDict({"old": torch.zeros(3)}, [3]).memmap(folder / "out")
    ran = ask("map", "work:fails_on_row_50", "numbers", "out", "--overwrite", "--num-workers", 0, cwd=folder)
    assert ran.returncode == 1 and "nothing was written to out" in ran.stderr
    assert list(TensorDict.load_memmap(folder / "out").keys()) == ["old"]
    assert names_in(folder) == ["numbers", "out", "work.py"]


@pytest.mark.parametrize("command", [["info"], ["info", "--json"], ["verify"], ["status"]])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(folder: Path, command: list[str]) -> None:
    if command == ["status"]:
        assert ask("map", "work:double", "numbers", "out", "--resume", "--num-workers", 0, cwd=folder).returncode == 0
    else:
        TensorDict({f"key{number}": torch.zeros(2) for number in range(20)}, [2]).memmap(folder / "out")
    if command == ["verify"]:
        assert ask("verify", "--store", "out", cwd=folder).returncode == 0
    read, write = os.pipe()
    os.close(read)  # nobody reads
    ran = interpreters.run(["-m", "tdmap", *command, "out"], cwd=folder, stdout=write)
    os.close(write)
    assert ran.stderr == "" and ran.returncode in (-signal.SIGPIPE, 0)


@pytest.mark.parametrize("command", [["-m", "tdmap"], ["-c", "from tdmap.cli import main; main()"]])
def test_ctrl_c_while_torch_is_imported_is_one_line(folder: Path, command: list[str]) -> None:
    """Torch is one that waits: as if importing it took ten minutes."""
    (folder / "modules" / "torch").mkdir(parents=True)
    (folder / "modules" / "torch" / "__init__.py").write_text(
        "import time\nopen('importing', 'w').close()\ntime.sleep(600)\n"
    )
    script = folder / "tdmap"
    if command[0] == "-c":  # as pip installs it
        script.write_text(command[1])
        command = [str(script)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "modules"), str(ROOT)])}
    process = subprocess.Popen(
        [sys.executable, *command, "head", "numbers"],
        cwd=folder,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 300
    while not (folder / "importing").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert told == "tdmap: stopped\n" and process.returncode == 130


def test_a_run_in_place_says_that_stored_checksums_are_old(folder: Path) -> None:
    assert ask("verify", "--store", "numbers", cwd=folder).returncode == 0
    ran = tdmap("map", "work:negate", "numbers", "--in-place", "--num-workers", 1, cwd=folder)
    assert ran.returncode == 0 and "tdmap verify --store numbers" in ran.stdout
    checked = ask("verify", "numbers", cwd=folder)
    assert checked.returncode == 1
    assert "differs from its checksums" in checked.stderr and "changed on purpose" in checked.stderr


def test_a_folder_of_an_unfinished_run_says_how_to_go_on(folder: Path) -> None:
    (folder / "out" / ".tdmap").mkdir(parents=True)
    (folder / "out" / ".tdmap" / "journal").write_bytes(b"")
    ran = ask("info", "out", cwd=folder)
    assert ran.returncode == 2
    assert "is unfinished" in ran.stderr and "tdmap status out" in ran.stderr


def test_a_function_that_raises_ends_with_its_traceback_and_leaves_no_output(folder: Path) -> None:
    ran = tdmap("map", "work:fails_on_row_50", "numbers", "out", "--num-workers", 1, "--chunksize", 10, cwd=folder)
    assert ran.returncode == 1
    assert "ArithmeticError: row fifty is cursed" in ran.stderr
    assert "nothing was written to out" in ran.stderr
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["numbers", "work.py"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["work:duoble", "numbers", "out"], "did you mean double"),
        (["work:NUMBER", "numbers", "out"], "is a int, not a function"),
        (["nothere:double", "numbers", "out"], "no module 'nothere'"),
        (["nothere.py:double", "numbers", "out"], "no such file: nothere.py"),
        (["double", "numbers", "out"], "module:function"),
        (["work:double", "nowhere", "out"], "does not exist"),
        (["work:double", "numbers"], "give OUT, or --in-place"),
        (["work:double", "numbers", "out", "--in-place"], "give OUT, or --in-place"),
        (["work:double", "numbers", "numbers"], "OUT is IN"),
        (["work:double", "numbers", "numbers/out"], "inside IN"),
        (["work:double", "numbers", "work.py"], "exists"),
        (["work:negate", "numbers", "out", "--num-workers", "0"], "use --in-place"),
        (["work:half", "numbers", "out", "--num-workers", "0"], "with as many rows as its chunk"),
        (["work:double", "numbers", "out", "--mp-start-method", "thread"], "forkserver"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(folder: Path, arguments: list[str], reason: str) -> None:
    ran = ask("map", *arguments, cwd=folder)
    assert ran.returncode == 2, ran.stderr
    assert reason in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (folder / "out").exists()


def test_existing_output_is_replaced_only_when_asked(folder: Path) -> None:
    TensorDict({"old": torch.zeros(3)}, [3]).memmap(folder / "out")
    refused = ask("map", "work:double", "numbers", "out", "--num-workers", 1, cwd=folder)
    assert refused.returncode == 2 and "out exists; choose another folder, or --overwrite" in refused.stderr
    ran = tdmap("map", "work:double", "numbers", "out", "--num-workers", 1, "--overwrite", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert set(TensorDict.load_memmap(folder / "out").keys()) == {"x", "y"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_output_folder_is_refused(folder: Path) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o500)
    ran = ask("map", "work:double", "numbers", "locked/out", cwd=folder)
    assert ran.returncode == 2
    assert "read-only" in ran.stderr


def test_version(folder: Path) -> None:
    ran = ask("--version", cwd=folder)
    assert ran.returncode == 0
    assert ran.stdout.startswith("tdmap")


def test_verify_names_the_corrupt_file_and_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    TensorDict({"x": torch.arange(4000)}, [4000]).memmap(folder)
    missing = CliRunner().invoke(app, ["verify", str(folder)])
    assert missing.exit_code == 2 and "--store" in missing.output
    assert CliRunner().invoke(app, ["verify", "--store", str(folder)]).exit_code == 0
    good = CliRunner().invoke(app, ["verify", str(folder)])
    assert good.exit_code == 0 and "matches its checksums" in good.output
    with open(folder / "x.memmap", "r+b") as file:
        file.seek(800)
        file.write(b"\xff")
    bad = CliRunner().invoke(app, ["verify", str(folder)])
    assert bad.exit_code == 1 and "x.memmap" in bad.output and "rows" in bad.output


def test_archives_are_shown_verified_and_mapped(folder: Path) -> None:
    data = TensorDict.load_memmap(folder / "numbers")
    data.memmap(folder / "numbers.tdz")
    ran = ask("info", "numbers.tdz", cwd=folder)
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "total 700 B in 2 leaves", ran.stderr
    ran = ask("verify", "numbers.tdz", cwd=folder)
    assert ran.returncode == 0 and "matches its checksums: 4 files" in ran.stdout, ran.stderr
    TensorDict.load_memmap(folder / "numbers.tdz", mode="r+")["x"][3] = -1
    ran = ask("verify", "numbers.tdz", cwd=folder)
    assert ran.returncode == 1 and "x.memmap" in ran.stderr and "1 problem in" in ran.stderr
    ran = ask("verify", "--store", "numbers.tdz", cwd=folder)
    assert ran.returncode == 0 and "4 files in numbers.tdz" in ran.stdout, ran.stderr
    assert ask("verify", "numbers.tdz", cwd=folder).returncode == 0
    ran = ask("map", "work:negate", "numbers.tdz", "--in-place", cwd=folder)
    assert ran.returncode == 2 and "is an archive: unpack it first" in ran.stderr
    ran = tdmap("map", "work:double", "numbers.tdz", "out", "--num-workers", 2, "--chunksize", 10, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert TensorDict.load_memmap(folder / "out")["x"][:5].tolist() == [0, 2, 4, -2, 8]


def test_stats_of_shards_are_those_of_one_folder(tmp_path: Path) -> None:
    x = torch.cat([torch.tensor([500_000.0]), torch.linspace(1, 1_000_000, 999)])
    data = TensorDict({"x": x}, [1000]).memmap(tmp_path / "one")
    data.map(lambda chunk: chunk, out=tmp_path / "shards", rows_per_shard=500, num_workers=0)
    found = []
    for name in ("one", "shards"):
        answer = ask("--json", "stats", name, "--num-workers", "0", "--quiet", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        found.append(json.loads(answer.stdout))
    assert found[0] == found[1]
