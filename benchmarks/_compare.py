"""Recorded figures beside those of another day: what changed by more than the rounds differ.

A case that is compared with another one is judged by that ratio, which the speed of the machine leaves alone; one that
stands alone by its seconds, which it does not. A change counts when the ranges of the rounds, without the best and the
worst of five or more, do not meet, and the medians differ by `LEAST`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST = 0.03
"""Changes that are smaller are none, however well the rounds agree."""

UNKNOWN = 0.05
"""Spread of a figure that was recorded without one."""


@dataclass(frozen=True)
class Change:
    """A case in two recordings. Values are such that more is slower."""

    name: str
    measure: str
    """What the values are: "ratio" or "seconds"."""
    old: list[float]
    new: list[float]

    @property
    def factor(self) -> float:
        """Median of the new over that of the old: above 1 is slower."""
        return statistics.median(self.new) / statistics.median(self.old)

    @property
    def verdict(self) -> str:
        """ "slower", "faster", or "" for a change within the spread."""
        old, new = _range(self.old), _range(self.new)
        if len(self.old) < 2 or len(self.new) < 2 or abs(self.factor - 1) < LEAST:
            return ""
        return "slower" if new[0] > old[1] else "faster" if new[1] < old[0] else ""


def _range(values: list[float]) -> tuple[float, float]:
    """The smallest and the largest; of five or more the second ones.

    >>> _range([3.0, 1.0, 2.0]), _range([1.0, 2.0, 3.0, 4.0, 90.0])
    ((1.0, 3.0), (2.0, 4.0))
    """
    ordered = sorted(values)
    kept = ordered[1:-1] if len(ordered) >= 5 else ordered
    return kept[0], kept[-1]


def changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    """The cases that two recordings of one benchmark have in common."""
    before = {_name(case): case for case in old.get("cases", ())}
    for case in new.get("cases", ()):
        past = before.get(_name(case))
        if past is None:
            continue
        ratios = _ratios(past, old), _ratios(case, new)
        if all(ratios):
            yield Change(_name(case), "ratio", *ratios)
        elif past.get("seconds") and case.get("seconds") and not case.get("against"):
            yield Change(_name(case), "seconds", past["seconds"], case["seconds"])


def _name(case: dict[str, Any]) -> str:
    """Of a case; those of core_ops are alike in groups."""
    return case["name"] if "ours_ns" not in case else f"{case['group']}: {case['name']}"


def _ratios(case: dict[str, Any], whole: dict[str, Any]) -> list[float]:
    """Of each round, seconds over those of the case beside it; older files hold only the seconds."""
    speed = case.get("measure") == "speed"
    if case.get("ratios"):
        return [1 / one for one in case["ratios"]] if speed else list(case["ratios"])
    if case.get("ratio") and not case.get("seconds"):  # one figure of many rounds, such as those of core_ops
        return [case["ratio"] * (1 - UNKNOWN), case["ratio"] * (1 + UNKNOWN)]
    other = next((one for one in whole["cases"] if one["name"] == case.get("against")), None)
    if other is None or not case.get("seconds") or len(other["seconds"]) < len(case["seconds"]):
        return []
    scale = case["units"] / other["units"] if speed else 1.0
    return [mine / theirs / scale for mine, theirs in zip(case["seconds"], other["seconds"])]


def recordings(path: Path) -> dict[str, dict[str, Any]]:
    """The recordings of a folder, or of one file, by benchmark.

    Raises:
        SystemExit: there are none.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    try:
        found = {one["benchmark"]: one for one in (json.loads(file.read_text()) for file in files if file.is_file())}
    except (ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{path} holds something else than recorded benchmarks: {error}") from None
    if not found:
        raise SystemExit(f"{path} holds no recorded benchmark")
    return found


def compare(old: Path, new: Path) -> int:
    """Print what changed; the exit code is 1 if something became slower."""
    before, after = recordings(old), recordings(new)
    common = [name for name in after if name in before]
    if not common:
        raise SystemExit(f"{old} has {', '.join(before)}, and {new} has {', '.join(after)}: nothing to compare")
    slower = 0
    for name in common:
        for which, one in (("old", before[name]), ("new", after[name])):
            if one.get("machine", {}).get("busy"):
                print(f"{name}: the {which} figures are of a machine that was busy with something else")
        found = list(changes(before[name], after[name]))
        flagged = [change for change in found if change.verdict]
        slower += sum(change.verdict == "slower" for change in flagged)
        print(f"{name}: {len(flagged)} of {len(found)} cases changed by more than their spread")
        for change in sorted(flagged, key=lambda one: -abs(one.factor - 1)):
            print(f"  {change.verdict} {change.factor:6.2f} ×  {change.name} ({_told(change)})")
    return 1 if slower else 0


def _told(change: Change) -> str:
    parts = []
    for values in (change.old, change.new):
        low, high = _range(values)
        parts.append(f"{statistics.median(values):.3g} [{low:.3g}, {high:.3g}]")
    return f"{change.measure} {' → '.join(parts)}"
