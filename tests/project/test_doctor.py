"""`tdmap doctor`: facts for an issue report, checks that try things, an exit code, any width."""

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tdmap import doctor, tuning
from tdmap.cli import app


@pytest.fixture(autouse=True)
def _forks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh workers import torch for seconds; the example of the command's help starts them."""
    monkeypatch.setattr(doctor, "start_methods", lambda: ("fork",))


@pytest.fixture(autouse=True)
def _a_machine_with_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However little memory and disk other tests have left, and however long a worker takes to begin beside them."""
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(doctor, "system_memory", lambda: 8 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(8 << 30, 0, 8 << 30))
    with tuning.use(answer_seconds=3600.0):
        yield


def checks(folder: Path) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine(folder).checks}


def test_everything_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    report = doctor.examine(tmp_path)
    assert report.verdict == f"all {len(report.checks)} checks passed", report.checks
    assert {"memory", "shared memory", "disk", "open files", "threads", "workers by fork"} <= set(checks(tmp_path))
    assert {"tdmap", "python", "system", "torch", "cuda", "cores", "memory", "start methods"} <= set(report.facts)
    assert list(tmp_path.iterdir()) == []


def test_json_has_the_same_and_an_exit_code(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json", "--folder", str(tmp_path)])
    found = json.loads(done.output)
    assert (done.exit_code, found["ok"], found["verdict"]) == (0, True, f"all {len(found['checks'])} checks passed")
    assert found["facts"]["torch"] == torch.__version__
    done = CliRunner().invoke(app, ["doctor", "--json", "--folder", str(tmp_path / "gone")])
    found = json.loads(done.output)
    assert (done.exit_code, found["ok"]) == (1, False)
    (bad,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert bad["name"] == "disk" and "is no folder" in bad["found"] and "--folder" in bad["advice"]


@pytest.mark.parametrize("columns", [20, 40, 100])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    done = CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path)])
    assert done.exit_code == 0 and max(map(len, done.output.splitlines())) <= columns
    words = "".join(done.output.split())
    assert "checkspassed" in words and torch.__version__ in words and "->" not in words


def test_a_check_that_raises_is_a_problem_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no worker\ncame")

    monkeypatch.setattr(doctor, "map", broken)
    found = checks(tmp_path)
    assert [found[name].state for name in ("shared memory", "workers by fork", "disk")] == ["problem", "problem", "ok"]
    assert found["shared memory"].found == "RuntimeError: no worker came"
    assert CliRunner().invoke(app, ["doctor", "--folder", str(tmp_path)]).exit_code == 1


def test_what_works_less_well_is_a_warning_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    monkeypatch.setattr(doctor, "system_memory", lambda: 1 << 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(doctor, "_locks", lambda _: False)
    found = checks(tmp_path)
    for name, advice in {
        "threads": "export OMP_NUM_THREADS=1",
        "memory": "close other programs",
        "open files": "ulimit -n 4096",
        "disk": "mount it with flock",
    }.items():
        assert found[name].state == "warning" and advice in found[name].advice
    report = doctor.Findings(checks=list(found.values()))
    assert report.verdict == "4 warnings" and not report.problems


def test_a_torch_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    assert doctor.check_versions().state == "problem"
    monkeypatch.setattr(torch, "__version__", "2.13.0a0+git123")
    assert doctor.check_versions().state == "ok"
