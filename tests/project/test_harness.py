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


@pytest.mark.parametrize(
    ("floor", "ours", "units", "options", "ratio", "met", "rate"),
    [
        ((1.0, 10.0, 1.0), (2.0, 20.0, 1.0), 100, {"wanted": 0.9}, 0.5, False, 50),  # the median within rounds
        ((1.0,), (1.0,), 10, {"wanted": 0.09}, 0.1, True, 10),  # of a tenth of the work
        ((4.0,), (1.0,), 10, {"measure": "time", "wanted": 0.6}, 0.25, True, 10),  # whatever the work, and a ceiling
    ],
)
def test_a_ratio_is_that_of_work_and_seconds(floor, ours, units, options, ratio, met, rate) -> None:
    bench = Benchmark("b")
    bench.add("floor", scripted(9.0, *floor), units=100, kind="floor")
    bench.add("ours", scripted(9.0, *ours), units=units, against="floor", **options)
    bench.run(rounds=len(floor), quiet=True)
    found = bench.results["ours"]
    assert found.ratio == pytest.approx(ratio) == bench.geometric_mean()
    assert found.met is met and found.rate == pytest.approx(rate)


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
