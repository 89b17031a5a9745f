"""The benchmark harness computes what it prints."""

import json
import math
from pathlib import Path

import pytest

from benchmarks._harness import Benchmark


def scripted(*seconds: float):
    """A case that reports these seconds, the first for the warm-up."""
    left = list(seconds)
    return lambda: left.pop(0)


def test_speed_ratio_is_the_median_within_rounds() -> None:
    bench = Benchmark("b")
    bench.add("floor", scripted(9.0, 1.0, 10.0, 1.0), units=100, kind="floor")
    bench.add("ours", scripted(9.0, 2.0, 20.0, 1.0), units=100, against="floor", wanted=0.9)
    bench.run(rounds=3, quiet=True)
    assert bench.results["ours"].ratio == pytest.approx(0.5)
    assert bench.results["ours"].met is False
    assert bench.results["ours"].rate == pytest.approx(50.0)


def test_speed_ratio_accounts_for_different_amounts_of_work() -> None:
    bench = Benchmark("b")
    bench.add("reference", scripted(1.0, 1.0), units=10)
    bench.add("ours", scripted(1.0, 1.0), units=100, against="reference", wanted=10)
    bench.run(rounds=1, quiet=True)
    assert bench.results["ours"].ratio == pytest.approx(10.0)
    assert bench.results["ours"].met is True


def test_time_ratio_has_a_ceiling() -> None:
    bench = Benchmark("b")
    bench.add("reference", scripted(1.0, 4.0), units=1)
    bench.add("ours", scripted(1.0, 1.0), units=1, against="reference", measure="time", wanted=0.6)
    bench.run(rounds=1, quiet=True)
    assert bench.results["ours"].ratio == pytest.approx(0.25)
    assert bench.results["ours"].met is True
    assert bench.geometric_mean() == pytest.approx(0.25)


def test_a_case_that_fails_is_reported_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_BUSY", "1")  # with tests, for one

    def broken() -> float:
        raise OSError("no such library")

    bench = Benchmark("b")
    bench.add("broken", broken, units=1, wanted=1)
    bench.add("ours", scripted(1.0, 1.0), units=1)
    bench.run(rounds=1, quiet=True)
    bench.save(tmp_path, chart=False)
    saved = {case["name"]: case for case in json.loads((tmp_path / "b.json").read_text())["cases"]}
    assert saved["broken"]["error"] == "OSError: no such library"
    assert saved["broken"]["median_s"] is None
    assert saved["ours"]["median_s"] == 1.0
    assert math.isnan(bench.results["broken"].median)
    assert "failed" in bench.table()


def test_only_keeps_what_a_chosen_case_is_compared_with() -> None:
    bench = Benchmark("b")
    bench.add("floor", scripted(1.0, 1.0), units=1)
    bench.add("ours", scripted(1.0, 1.0), units=1, against="floor")
    bench.add("peer", scripted(1.0, 1.0), units=1, against="floor")
    bench.run(rounds=1, only="ours", quiet=True)
    assert list(bench.results) == ["floor", "ours"]


def test_only_that_matches_nothing_names_the_cases() -> None:
    bench = Benchmark("b")
    bench.add("floor", scripted(1.0), units=1)
    with pytest.raises(SystemExit, match="floor"):
        bench.run(rounds=1, only="nothing", quiet=True)
