"""The command line: real runs in processes of their own, refusals in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tdmap.cli import app
from tensordict_lite import TensorDict

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

NUMBER = 3
"""


def tdmap(*arguments: object, cwd: Path) -> Answer:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tdmap", *map(str, arguments)]
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100)
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
    [
        ("nowhere", "does not exist"),
        ("work.py", "is a file"),
        (".", "or numbers?"),
        ("broken", "cannot be opened"),
    ],
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
    ran = tdmap("map", function, "numbers", "out", "--workers", 2, "--chunksize", 7, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert "100 rows written to out" in ran.stdout
    out = TensorDict.load_memmap(folder / "out")
    assert torch.equal(out["x"], torch.arange(100.0) * 2)
    assert torch.equal(out["y"], torch.ones(100, 3))
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["numbers", "out", "work.py"]


def test_map_under_spawn_finds_a_module_of_the_working_directory(folder: Path) -> None:
    ran = tdmap("map", "work:double", "numbers", "out", "--workers", 1, "--start-method", "spawn", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert torch.equal(TensorDict.load_memmap(folder / "out")["x"], torch.arange(100.0) * 2)


def test_chunksize_zero_gives_the_function_single_rows(folder: Path) -> None:
    ran = tdmap("map", "work:double_one_row", "numbers", "out", "--workers", 1, "--chunksize", 0, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert torch.equal(TensorDict.load_memmap(folder / "out")["x"], torch.arange(100.0) * 2)


def test_map_in_place_changes_the_dataset(folder: Path) -> None:
    ran = tdmap("map", "work:negate", "numbers", "--in-place", "--workers", 2, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert torch.equal(TensorDict.load_memmap(folder / "numbers")["x"], -torch.arange(100.0))


def test_a_run_in_place_says_that_stored_checksums_are_old(folder: Path) -> None:
    assert ask("verify", "--store", "numbers", cwd=folder).returncode == 0
    ran = tdmap("map", "work:negate", "numbers", "--in-place", "--workers", 1, cwd=folder)
    assert ran.returncode == 0 and "tdmap verify --store numbers" in ran.stdout
    checked = ask("verify", "numbers", cwd=folder)
    assert checked.returncode == 1
    assert "not as it was saved" in checked.stderr and "changed on purpose" in checked.stderr


def test_a_folder_of_an_unfinished_run_says_how_to_go_on(folder: Path) -> None:
    (folder / "out" / ".tdmap").mkdir(parents=True)
    (folder / "out" / ".tdmap" / "journal").write_bytes(b"")
    ran = ask("info", "out", cwd=folder)
    assert ran.returncode == 2
    assert "not come to its end" in ran.stderr and "tdmap status out" in ran.stderr


def test_a_function_that_raises_ends_with_its_traceback_and_leaves_no_output(folder: Path) -> None:
    ran = tdmap("map", "work:fails_on_row_50", "numbers", "out", "--workers", 1, "--chunksize", 10, cwd=folder)
    assert ran.returncode == 1
    assert "ArithmeticError: row fifty is cursed" in ran.stderr
    assert "nothing was written to out" in ran.stderr
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["numbers", "work.py"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["work:duoble", "numbers", "out"], "there is double"),
        (["work:NUMBER", "numbers", "out"], "is a int, not a function"),
        (["nothere:double", "numbers", "out"], "no module 'nothere'"),
        (["nothere.py:double", "numbers", "out"], "no file nothere.py"),
        (["double", "numbers", "out"], "module:function"),
        (["work:double", "nowhere", "out"], "does not exist"),
        (["work:double", "numbers"], "give OUT, or --in-place"),
        (["work:double", "numbers", "out", "--in-place"], "give OUT, or --in-place"),
        (["work:double", "numbers", "numbers"], "OUT is IN"),
        (["work:double", "numbers", "numbers/out"], "inside IN"),
        (["work:double", "numbers", "work.py"], "exists"),
        (["work:negate", "numbers", "out"], "use --in-place"),
        (["work:half", "numbers", "out"], "rows must stay"),
        (["work:double", "numbers", "out", "--start-method", "thread"], "forkserver"),
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
    assert ask("map", "work:double", "numbers", "out", "--workers", 1, cwd=folder).returncode == 2
    ran = tdmap("map", "work:double", "numbers", "out", "--workers", 1, "--overwrite", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert set(TensorDict.load_memmap(folder / "out").keys()) == {"x", "y"}


def test_a_folder_that_is_no_dataset_is_never_replaced(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("years of work")
    ran = ask("map", "work:double", "numbers", "out", "--overwrite", cwd=folder)
    assert ran.returncode == 2
    assert (folder / "out" / "thesis.txt").read_text() == "years of work"


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
    assert good.exit_code == 0 and "as it was saved" in good.output
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
    assert ran.returncode == 0 and "is as it was saved: 4 files" in ran.stdout, ran.stderr
    TensorDict.load_memmap(folder / "numbers.tdz", mode="r+")["x"][3] = -1
    ran = ask("verify", "numbers.tdz", cwd=folder)
    assert ran.returncode == 1 and "x.memmap" in ran.stderr and "1 problem in" in ran.stderr
    ran = ask("verify", "--store", "numbers.tdz", cwd=folder)
    assert ran.returncode == 0 and "4 files in numbers.tdz" in ran.stdout, ran.stderr
    assert ask("verify", "numbers.tdz", cwd=folder).returncode == 0
    ran = ask("map", "work:negate", "numbers.tdz", "--in-place", cwd=folder)
    assert ran.returncode == 2 and "is an archive: unpack it first" in ran.stderr
    ran = tdmap("map", "work:double", "numbers.tdz", "out", "--workers", 2, "--chunksize", 10, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert TensorDict.load_memmap(folder / "out")["x"][:5].tolist() == [0, 2, 4, -2, 8]
