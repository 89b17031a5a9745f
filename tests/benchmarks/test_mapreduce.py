"""The map-reduce benchmark runs at a tiny size; every contender checks its own answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _groups, mapreduce

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


def test_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--rows", "20_000", "--keys", "700", "--only", "tdmap|numpy|Polars|DuckDB")
    cases = run("group", tmp_path, monkeypatch, *options)
    assert [cases[name]["error"] for name in ("tdmap.group_by", "one process of numpy")] == [None, None]


def test_shuffle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = run("shuffle", tmp_path, monkeypatch, "--shuffle-bytes", "3_000_000")
    assert len(cases) == 12 and all(case["error"] is None for case in cases.values())


def test_the_floor_of_groups_survives_keys_whose_hashes_begin_alike() -> None:
    # Two different keys with the same upper bits of the hash come in turns: runs alone would give them twice.
    inverse = pow(int(_groups.GOLDEN), -1, 1 << 64)
    keys = np.array([(h * inverse) % (1 << 64) for h in (5 << 40, (5 << 40) + 1)], dtype=np.uint64).view(np.int64)
    key, value = np.tile(keys, 50), np.arange(100.0)
    for got, wanted in zip(_groups._group_partition(key, value), _groups.group_plainly(key, value), strict=True):
        np.testing.assert_array_equal(got, wanted)
