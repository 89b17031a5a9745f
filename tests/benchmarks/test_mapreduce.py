"""The map-reduce benchmark runs at a tiny size; every contender checks its own answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mapreduce

pytest.importorskip("matplotlib")


def run(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    command = ["mapreduce", "--case", case, "--rounds", "1", "--folder", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*command, *options])
    mapreduce.main()
    assert (tmp_path / f"mapreduce_{case}.png").exists()
    assert not list(tmp_path.glob(f"mapreduce-{case}-*")), "the scratch folder is left"
    saved = json.loads((tmp_path / f"mapreduce_{case}.json").read_text())
    return {one["name"]: one for one in saved["cases"]}


def test_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = run("moments", tmp_path, monkeypatch, "--bytes", "3_000_000")
    assert cases["tdmap.reduce"]["error"] is None
    assert cases["tdmap.reduce"]["ratio"] > 0 and cases["tdmap.reduce"]["wanted"] == 0.9
    assert cases["numpy, plainly, chunks of 4 MiB"]["error"] is None
