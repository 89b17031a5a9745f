"""Every case of the operations benchmark runs, with both libraries and on bare tensors."""

import importlib
import json
import statistics
from pathlib import Path

import pytest
import torch

from benchmarks import core_ops
from benchmarks._core_cases import CoreCase, Kit, all_cases
from tests.differential.harness.snapshot import differences, snapshot

DEPARTS = {("memmap", "index, int"): ["result.is_locked: expected True, found False"]}
"""Where the answers differ on purpose, see `tests/differential/test_departures.py`."""


@pytest.fixture(scope="module")
def kits() -> list[Kit]:
    """Both libraries."""
    return [Kit(pytest.importorskip(name)) for name in (core_ops.OURS, core_ops.REFERENCE)]


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.group}: {case.name}")
def test_case_does_the_same_in_both_libraries_each_time(kits: list[Kit], case: CoreCase) -> None:
    answers = []
    for kit in kits:
        torch.manual_seed(0)
        call = case.make(kit)
        answers.append([snapshot(call()) for _ in range(2)])
    ours, theirs = answers
    for number in range(2):
        found = differences(theirs[number], ours[number], "result", rtol=1e-5)
        assert found == DEPARTS.get((case.group, case.name), [])


def test_there_are_enough_cases_and_names_are_unique() -> None:
    names = [(case.group, case.name) for case in all_cases()]
    assert len(names) == len(set(names)) >= 80
    for case in all_cases():
        if case.floor is not None:
            case.floor()


def test_a_measured_case_is_saved_with_its_ratio(tmp_path: Path) -> None:
    pytest.importorskip(core_ops.REFERENCE)
    kits = [Kit(importlib.import_module(name)) for name in (core_ops.OURS, core_ops.REFERENCE)]
    case = next(case for case in all_cases() if case.group == "index" and case.floor is not None)
    result = core_ops.measure(case, kits, rounds=3, slice_s=1e-4)
    assert result.error is None
    assert result.ratio == pytest.approx(statistics.median(result.ratios), abs=1e-4)  # how large, the machine decides
    assert len(result.ratios) == 3 and min(result.ours, result.reference, result.floor, result.ratio) > 0
    core_ops.save([result], tmp_path, rounds=3)
    document = json.loads((tmp_path / "core_ops.json").read_text())
    assert document["cases"][0]["floor_ratio"] == pytest.approx(result.floor_ratio)
    assert "geometric mean" in core_ops.summary([result])
