"""The command line on several folders, on a folder of shards, and on an object store."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tdmap
from tdmap.cli.app import app
from tests.stores.kinds import strings

Run = Callable[[str], Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command line in a folder with three datasets, in this process; it must end with the code that is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for place in range(3):
        strings(10 * place, 10).memmap(tmp_path / f"part{place}")
    (tmp_path / "shardfns.py").write_text(
        "def double(chunk):\n    chunk = chunk.select('x')\n    chunk['x'] = chunk['x'] * 2\n    return chunk\n"
    )

    def command(line: str, code: int = 0) -> Any:
        found = CliRunner().invoke(app, shlex.split(line))
        assert found.exit_code == code, found.output
        return found

    yield command
    sys.modules.pop("shardfns", None)


PARTS = "part0,part1,part2"


def test_map_reads_several_folders_and_writes_shards(run: Run, tmp_path: Path) -> None:
    run(f"map shardfns:double {PARTS} out --rows-per-shard 8 --num-workers 2 --quiet")
    data = tdmap.open(tmp_path / "out")
    assert data.ends == [8, 16, 24, 30] and data["x"].tolist() == list(range(0, 60, 2))
    run("map shardfns:double out again --num-workers 0 --quiet")
    assert tdmap.open(tmp_path / "again")["x"].tolist() == list(range(0, 120, 4))
    run("map shardfns:double out out2 --rows-per-shard 8 --executor thread --num-workers 2 --resume --quiet")
    assert tdmap.open(tmp_path / "out2").ends == [8, 16, 24, 30]


def test_looks_at_shards(run: Run) -> None:
    shown = run(f"info {PARTS}").output
    assert "30 rows" in shown and "int64" in shown and "str" in shown
    rows = json.loads(run(f"--json head {PARTS} -n 3 --start 9").output)["rows"]
    assert [row["x"] for row in rows] == [9, 10, 11] and rows[2]["s"] == "row 11"
    assert "x" in run(f"stats {PARTS} --num-workers 0 --quiet").output


def test_a_run_into_shards_is_shown_and_gone_on_with(run: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import os\n"
        "def fn(chunk):\n"
        "    if int(chunk['x'][0]) >= 16 and not os.path.exists('healed'):\n"
        "        raise ValueError('bad row')\n"
        "    return chunk.select('x')\n"
    )
    line = f"map failing:fn {PARTS} out --rows-per-shard 8 --chunksize 4 --num-workers 0 --resume --quiet"
    try:
        run(line, 1)
        shown = run("status out").output
        assert "interrupted" in shown and "16 of 30 rows done" in shown
        (tmp_path / "healed").touch()
        run(line)
    finally:
        sys.modules.pop("failing", None)
    data = tdmap.open(tmp_path / "out")
    assert data.ends == [8, 16, 24, 30] and data["x"].tolist() == list(range(30))
    found = json.loads(run("--json status out").output)
    assert (found["state"], found["rows_done"], found["sessions"]) == ("complete", 30, 2)
    assert "status reads folders" in run("status s3://bucket/out", 2).output
    journal = tmp_path / "out" / ".tdmap" / "run.json"
    for wrong in ("[]", "{}", '{"run": "x", "identity": {}}'):
        journal.write_text(wrong)
        assert "does not" in run("status out", 2).output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("info part0,nowhere", "nowhere: does not exist"),
        ("info part0,part0", "twice"),
        ("info nothing://x/y", "fsspec does not know"),
        (f"map shardfns:double {PARTS} --in-place", "give OUT"),
        ("map shardfns:double part0 --in-place --rows-per-shard 3", "give OUT"),
        (f"map shardfns:double {PARTS} part1 --rows-per-shard 3", "OUT is IN"),
    ],
)
def test_what_cannot_be_met_is_refused(line: str, told: str, run: Run) -> None:
    assert told in run(line, 2).output


def test_an_output_that_is_there_is_left_alone(run: Run, tmp_path: Path) -> None:
    run("map shardfns:double part0 out --rows-per-shard 4 --num-workers 0 --quiet")
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    run("map shardfns:double part1 out --rows-per-shard 4 --num-workers 0 --quiet", 2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    run("map shardfns:double part1 out --rows-per-shard 4 --num-workers 0 --quiet --overwrite")
    assert tdmap.open("out")["x"].tolist() == list(range(20, 40, 2))


@pytest.mark.xdist_group("stores")
def test_a_store_is_read_and_written(
    run: Run, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    run(f"map shardfns:double {PARTS} {bucket}/set --rows-per-shard 16 --num-workers 0 --quiet")
    assert tdmap.open(f"{bucket}/set")["x"].tolist() == list(range(0, 60, 2))
    assert "30 rows" in run(f"info {bucket}/set").output
    assert "holds a dataset already" in run(f"map shardfns:double part0 {bucket}/set --num-workers 0 --quiet", 2).output
    assert "no such bucket" in run("info s3://no-such-bucket/set", 2).output
