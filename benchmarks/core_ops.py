"""TensorDict operations: this project and the `tensordict` package in turn, on the same inputs, in one process.

    python -m benchmarks.core_ops                    # every case, a minute or two
    python -m benchmarks.core_ops --filter index --quick
    python -m benchmarks.core_ops --grid --quick     # 0 to 3 batch dimensions x layouts x kinds: a quarter of an hour

Prints a line a case: nanoseconds a call for both, their ratio (below 1 is faster than the reference), and how
many times the bare-tensor loop it costs. Times are of this thread (torch has one here); ratios are medians of
ratios within rounds, and the order within a round changes, so that a noisy machine slows both sides alike.
Ends with the geometric mean, and writes `core_ops.json` (`core_grid.json`) into `benchmarks/results`. Of the grid,
cases that the reference refuses are left out. One group is slower for a reason: ``memmap, over another``, where ours
replaces each file at once, and a killed save leaves the old dataset or the new one. What comes out slower is measured
again with more rounds: of thousands of short measurements on a shared machine a few are chance.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks._core_cases import LEAF_BOUND, CoreCase, Kit, all_cases
from benchmarks._core_grid import grid_cases
from benchmarks._harness import RESULTS, machine, recorded_stem
from benchmarks._quiet import Others, cores_of_others, quietness

OURS, REFERENCE = "tensordict_lite", "tensordict"
WANTED_MEAN = 0.6
WANTED_GRID_MEAN = 0.45
GRID_QUIET = 0.9
"""Of the grid, cases below this share of the reference are printed with ``--verbose`` only."""


@dataclass
class Measured:
    """What the rounds gave for one case; times in nanoseconds a call."""

    case: CoreCase
    ours: float = float("nan")
    reference: float = float("nan")
    floor: float | None = None
    ratio: float = float("nan")
    floor_ratio: float | None = None
    ratios: list[float] = field(default_factory=list)
    """Of each round."""
    error: str | None = None

    @property
    def met(self) -> bool:
        """Both promises: the share of the reference's time, and the bound on the bare loop."""
        bounded = not self.case.leaf_bound or self.floor_ratio is None or self.floor_ratio <= LEAF_BOUND
        return self.error is None and self.ratio <= self.case.wanted and bounded


def main() -> int:
    """Run the benchmark from the command line; the exit status says whether every promise was kept."""
    parser = argparse.ArgumentParser(description="TensorDict operations beside the reference package.")
    parser.add_argument("--filter", default="", help="regular expression on 'group: name'")
    parser.add_argument("--grid", action="store_true", help="every operation x kind x layout x batch dimensions")
    parser.add_argument("--verbose", action="store_true", help="every case of the grid")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rounds, slice_s = (7, 5e-4) if options.quick else (25, 2e-3)
    rounds = options.rounds or rounds

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kits = [Kit(importlib.import_module(name)) for name in (OURS, REFERENCE)]
    every = grid_cases() if options.grid else all_cases()
    cases = [case for case in every if re.search(options.filter, f"{case.group}: {case.name}")]
    gc.freeze()  # what is there now stays: collecting before each case would look through it thousands of times
    print(f"{'case':34} {'ours':>10} {'reference':>10} {'ratio':>7} {'x floor':>8}")
    results = []
    before, others = cores_of_others(), Others()
    for case in cases:
        result = measure(case, kits, rounds, slice_s)
        if options.grid and result.ratio > 1:
            result = measure(case, kits, max(25, rounds), 2e-3)
        if options.grid and result.error is not None and result.error.startswith("reference"):
            continue
        results.append(result)
        if not options.grid or options.verbose or result.error is not None or result.ratio > GRID_QUIET:
            print(_line(result), flush=True)
    print(summary(results, WANTED_GRID_MEAN if options.grid else WANTED_MEAN))
    quiet = quietness(before, others.cores())
    save(results, options.results, rounds, "core_grid" if options.grid else "core_ops", options.filter, quiet)
    return 0 if all(result.met for result in results) else 1


def measure(case: CoreCase, kits: list[Kit], rounds: int, slice_s: float) -> Measured:
    """Time the case for both kits and the floor, ``rounds`` times in changing order."""
    result = Measured(case)
    calls: dict[str, Callable[[], Any]] = {}
    try:
        for label, kit in reversed(list(zip(("ours", "reference"), kits))):
            calls[label] = case.make(kit)
            calls[label]()
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        result.error = f"{label}: {type(error).__name__}: {text}"
        return result
    if case.floor is not None:
        calls["floor"] = case.floor
        case.floor()  # which makes its inputs, where they are many
    counts = {label: _calibrate(call, slice_s) for label, call in calls.items()}
    order, chance = list(calls), random.Random(0)
    seen: dict[str, list[float]] = {label: [] for label in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            chance.shuffle(order)
            for label in order:
                seen[label].append(_time(calls[label], counts[label]))
    finally:
        gc.enable()
    result.ours, result.reference = statistics.median(seen["ours"]), statistics.median(seen["reference"])
    result.ratio = _paired(seen["ours"], seen["reference"])
    result.ratios = [round(ours / theirs, 4) for ours, theirs in zip(seen["ours"], seen["reference"])]
    if "floor" in seen:
        result.floor = statistics.median(seen["floor"])
        result.floor_ratio = _paired(seen["ours"], seen["floor"])
    return result


def _paired(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, theirs))


def _calibrate(call: Callable[[], Any], slice_s: float) -> int:
    count = 1
    while (spent := _time(call, count) * count * 1e-9) < slice_s / 4:
        count *= 2
    return max(1, int(count * slice_s / spent))


def _time(call: Callable[[], Any], count: int) -> float:
    """Nanoseconds a call over ``count`` calls: of this thread, so that what else the machine runs is left out."""
    times = range(count)
    start = time.thread_time_ns()
    for _ in times:
        call()
    return (time.thread_time_ns() - start) / count


def _line(result: Measured) -> str:
    name = f"{result.case.group}: {result.case.name}"
    if result.error is not None:
        return f"{name:34} failed  {result.error[:100]}"
    floor = "" if result.floor_ratio is None else f"{result.floor_ratio:8.2f}"
    mark = "" if result.met else "   <-- " + _reason(result)
    return f"{name:34} {result.ours:8.0f}ns {result.reference:8.0f}ns {result.ratio:7.2f} {floor:>8}{mark}"


def _reason(result: Measured) -> str:
    if result.ratio > result.case.wanted:
        return f"wanted {result.case.wanted:g} of the reference"
    return f"wanted {LEAF_BOUND:g} x floor"


def summary(results: list[Measured], wanted: float = WANTED_MEAN) -> str:
    """The geometric means, overall and a group, and what missed its mark."""
    good = [result for result in results if result.error is None]
    if not good:
        return "no case ran"
    mean = statistics.geometric_mean(result.ratio for result in good)
    lines = ["", f"geometric mean {mean:.3f} of the reference's time over {len(good)} cases (wanted {wanted})"]
    for group in dict.fromkeys(result.case.group for result in good):
        ratios = [result.ratio for result in good if result.case.group == group]
        lines.append(f"  {group:12} {statistics.geometric_mean(ratios):.3f}   worst {max(ratios):.2f}")
    above = sum(result.ratio > 1 for result in good)
    missed = sum(not result.met for result in results)
    lines.append(f"{above} slower than the reference, {missed} short of a mark, {len(results) - len(good)} failed")
    return "\n".join(lines)


def save(
    results: list[Measured],
    folder: Path,
    rounds: int,
    name: str = "core_ops",
    chosen: str = "",
    quiet: dict[str, Any] | None = None,
) -> None:
    """Write everything measured to ``<name>.json``."""
    good = [result.ratio for result in results if result.error is None]
    cases = [
        {
            "group": r.case.group, "name": r.case.name, "ours_ns": r.ours, "reference_ns": r.reference,
            "floor_ns": r.floor, "ratio": r.ratio, "ratios": r.ratios, "floor_ratio": r.floor_ratio,
            "wanted": r.case.wanted, "leaf_bound": r.case.leaf_bound, "met": r.met, "error": r.error,
        }
        for r in results
    ]  # fmt: skip
    for case in cases:
        case.update({key: None for key, value in case.items() if isinstance(value, float) and value != value})
    document = {
        "benchmark": name, "filter": chosen, "rounds": rounds, "machine": {**machine(), **(quiet or {})},
        "geometric_mean": statistics.geometric_mean(good) if good else None, "cases": cases,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    stem = recorded_stem(name, bool((quiet or {}).get("busy")))
    (folder / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
