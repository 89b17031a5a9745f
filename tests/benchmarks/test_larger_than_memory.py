"""The benchmark of what is larger than memory runs at a tiny size, where a memory group can be made."""

import json
from pathlib import Path

import pytest

from benchmarks import larger_than_memory
from benchmarks._memory_group import memory_group

pytest.importorskip("matplotlib")


@pytest.mark.soak  # two processes that import everything
def test_a_map_in_a_memory_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_group(1 << 30) as group:
        if group is None:
            pytest.skip("no memory group can be made here")
    monkeypatch.setenv("BENCH_BUSY", "1")
    options = ["--bytes", "3_000_000", "--rounds", "1", "--case", "map", "--share", "300"]
    monkeypatch.setattr(
        "sys.argv", ["larger_than_memory", *options, "--folder", str(tmp_path), "--results", str(tmp_path)]
    )
    larger_than_memory.main()
    cases = json.loads((tmp_path / "larger_than_memory.json").read_text())["cases"]
    assert [case["name"] for case in cases] == ["two processes that widen", "tdmap, map"]
    assert all(case["error"] is None for case in cases) and cases[1]["ratio"] > 0
    assert not list(tmp_path.glob("larger-*")), "the scratch folder is left"


@pytest.mark.parametrize("case", larger_than_memory.CASES)
def test_every_operation_and_its_floor_run(case: str, tmp_path: Path) -> None:
    larger_than_memory.make_data(tmp_path, 300_000)
    floor, _ = larger_than_memory.CASES[case]
    data = {name: larger_than_memory.TensorDict.load_memmap(tmp_path / name) for name in ("wide", "narrow")}
    larger_than_memory.OPERATIONS[case](data, tmp_path / "ours", 0)
    larger_than_memory.floor_of(floor, tmp_path, 2)()
