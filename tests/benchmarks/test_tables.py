"""The benchmark of tables runs at a tiny size; every contender's answer is checked."""

import json
from pathlib import Path

import pytest

from benchmarks import tables

pytest.importorskip("matplotlib")


def test_every_contender_answers_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_BUSY", "1")
    sizes = ["--rows", "5_000", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["tables", *sizes, "--folder", str(tmp_path), "--results", str(tmp_path)])
    tables.main()
    cases = json.loads((tmp_path / "tables.json").read_text())["cases"]
    ours = [case["name"] for case in cases if case["kind"] == "ours"]
    assert ours == [f"tdmap, {name}" for name in tables.CASES]
    assert all(case["error"] is None for case in cases)
    assert all(case["ratio"] > 0 and case["measure"] == "lead" for case in cases if case["kind"] == "peer")
    assert not list(tmp_path.glob("tables-*")), "the scratch folder is left"
